"""A trial of several restarts that is cut goes on with those that are finished, to the very same records."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustmetric.attacks import joint
from robustmetric.attacks.centroid import Centroid
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.joint import WholeSet
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.data.base import Dataset
from robustmetric.data.digits import Digits
from robustmetric.data.transforms import Identity
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.clustering import run_clustering
from robustmetric.jobs.folder import save_arrays
from robustmetric.jobs.workers import Workers
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.records import Record

ENGINE = PGD(Ball(0.2), steps=2, step_size=0.1)
JOINT = Trial("joint", WholeSet(Centroid(target="random"), bank="moving", restarts=3, judge="NMI"), ENGINE)
ONCE = Trial("once", WholeSet(EmbeddingShift()), ENGINE)


@pytest.fixture(scope="module")
def arena() -> Arena:
    whole = Digits().load()
    rows = torch.arange(80)
    names = tuple(whole.queries.names[i] for i in rows.tolist())
    some = replace(
        whole.queries, inputs=whole.queries.inputs[rows], labels=whole.queries.labels[rows], names=names,
        sizes=whole.queries.sizes[rows],
    )  # fmt: skip
    torch.manual_seed(0)
    model: nn.Module = Encoder(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8))
    data = Dataset("digits", train=whole.train, queries=some)
    return Arena.prepare(model, data, Identity(), Workers(torch.device("cpu")), batch_size=32)


def run(arena: Arena, folder: Path | None, seed: int = 0) -> list[Record]:
    return list(run_clustering(arena, Suite("small", [JOINT, ONCE]), seed, {}, folder=folder))


class Cut(Exception):
    """The time is up."""


@pytest.fixture
def climbs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many climbs there were; setting its first number to 0 ends one where it begins."""
    left, climb = [100], joint._climb

    def counted(*words: object) -> tuple[Tensor, Tensor]:
        if left[0] == 0:
            raise Cut
        left[0] -= 1
        left.append(1)
        return climb(*words)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(joint, "_climb", counted)
    return left


def test_a_trial_goes_on_with_the_restarts_that_are_finished(arena: Arena, tmp_path: Path, climbs: list[int]) -> None:
    expected = run(arena, None)
    assert len(climbs) == 1 + 4, "three restarts, and one climb of the other trial"
    climbs[:] = [2]
    with pytest.raises(Cut):
        run(arena, tmp_path)
    assert len(list((tmp_path / "restarts").iterdir())) == 2
    climbs[:] = [100]
    found = run(arena, tmp_path)
    assert len(climbs) == 1 + 2, "the third restart, and the other trial"
    assert [(r.key, r.scores, r.intervals) for r in found] == [(r.key, r.scores, r.intervals) for r in expected]
    assert list((tmp_path / "restarts").iterdir()) == [], "the records are written"


def test_restarts_of_another_seed_and_damaged_ones_are_not_taken(
    arena: Arena, tmp_path: Path, climbs: list[int]
) -> None:
    for damage in ("another seed", "another shape", "no file"):
        climbs[:] = [2]
        with pytest.raises(Cut):
            run(arena, tmp_path, seed=1 if damage == "another seed" else 0)
        for path in sorted((tmp_path / "restarts").iterdir()):
            if damage == "another shape":
                save_arrays(path, {"embeddings": torch.zeros(3, 8).numpy(), "seconds": torch.zeros(()).numpy()})
            elif damage == "no file":
                path.write_bytes(b"PK")
        climbs[:] = [100]
        run(arena, tmp_path, seed=0)
        assert len(climbs) == 1 + 4, damage


def test_seconds_of_what_was_recalled_count(arena: Arena, tmp_path: Path, climbs: list[int]) -> None:
    climbs[:] = [2]
    with pytest.raises(Cut):
        run(arena, tmp_path)
    for path in (tmp_path / "restarts").iterdir():
        with path.open("rb") as file:
            kept = dict(np.load(file))
        save_arrays(path, {**kept, "seconds": torch.tensor(1000.0).numpy()})
    climbs[:] = [100]
    joint_records = [r for r in run(arena, tmp_path) if r.settings["trial"] == "joint"]
    assert all(2000 < record.seconds < 2100 for record in joint_records)
