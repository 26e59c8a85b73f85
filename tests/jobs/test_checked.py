"""A masking suite that is cut goes on after the last check that ended, and says what it would have said uncut."""

import functools
import shutil
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch

from commands import Command, finish, start
from robustmetric import records
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.data.digits import Digits
from robustmetric.data.transforms import Identity
from robustmetric.diagnose.masking import Masking
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.diagnose import run_masking
from robustmetric.jobs.folder import beside
from robustmetric.jobs.workers import Workers
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.records import Record

LITTLE = Masking(
    images=12, restarts=2, starts=2, start_steps=3, counts=(1, 4), sizes=(1.0, 2.0), apgd_steps=3, queries=9, draws=2,
    votes=3,
)  # fmt: skip
CHECKS = ["randomness", "zero_gradients", "restarts", "loss_curves", "step_size", "loss_against_margin", "radius_sweep",
          "steps", "binarisation", "black_box", "gradient_free", "hard_label", "worst_case"]  # fmt: skip
SETTING_UP = 3
"""Answers it takes to know that a model has a gradient, and whether it draws at random."""
SLOW = """
engine: {name: pgd, ball: {name: ball, radius: 0.15}, steps: 2, step_size: 0.08}
attacks:
  masking:
    attack: {name: masking, images: 12, restarts: 2, starts: 1, start_steps: 2, counts: [1, 2], sizes: [1.0],
             apgd_steps: 2, queries: 3000}
"""
Uncut = Callable[[float], tuple[list[tuple[object, ...]], int]]
"""By `sigma`: what a suite that is not cut finds, and how often it asks."""


class Counted(torch.nn.Module):
    """An encoder that counts how often it is asked; with `sigma` it answers at random."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.model, self.sigma, self.asked = Encoder(ConvNet(side=8, kernel=3, widths=(4,), hidden=16, dim=8)), sigma, 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.asked += 1
        return self.model(inputs + self.sigma * torch.randn_like(inputs) if self.sigma else inputs)


def counted(sigma: float = 0.0) -> tuple[Counted, Arena]:
    torch.manual_seed(0)
    model = Counted(sigma)
    place = Arena.prepare(model, Digits().load(), Identity(), Workers(torch.device("cpu")), limit=40, batch_size=8)
    model.asked = 0
    return model, place


def suite(radius: float = 0.15) -> Suite:
    return Suite("masking", [Trial("masking", LITTLE, PGD(Ball(radius), 2, 0.08))])


def written(path: Path, found: list[Record]) -> dict[str, Record]:
    """The records as a run folder gives them back."""
    for record in found:
        records.append(path, record)
    return {record.key: record for record in records.read(path)}


def facts(found: list[Record]) -> list[tuple[object, ...]]:
    """All that does not hang on the clock, as a file has it."""
    return [(record.name, record.scores, record.count, record.context) for record in found]


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> Uncut:
    """Run once for each `sigma`, whatever the number of checks after which the other is cut."""

    @functools.cache
    def run(sigma: float) -> tuple[list[tuple[object, ...]], int]:
        model, place = counted(sigma)
        whole = list(run_masking(place, suite(), 0, {}, folder=tmp_path_factory.mktemp("whole")))
        return facts(whole), model.asked

    return run


@pytest.mark.parametrize(("sigma", "ended"), [(0.0, 1), (0.0, 2), (0.0, 10), (0.05, 1), (0.05, 7)])
def test_a_suite_that_was_cut_goes_on_with_the_checks_that_are_missing(
    sigma: float, ended: int, uncut: Uncut, tmp_path: Path
) -> None:
    whole, at_once = uncut(sigma)
    model, place = counted(sigma)
    first = list(islice(run_masking(place, suite(), 0, {}, folder=tmp_path / "cut"), ended))
    before, model.asked = model.asked, 0
    done = written(tmp_path / "results.jsonl", first)
    rest = list(run_masking(place, suite(), 0, {}, finished=done, folder=tmp_path / "cut"))
    assert facts([*first, *rest]) == whole
    # Whether one draw makes a function of a model that draws at random is asked by two passes, then and again.
    asked_again = 2 if sigma and ended > 1 else 0
    assert before + model.asked == at_once + SETTING_UP + asked_again
    # What one check after another took, not the time since the command was typed again.
    assert rest[-1].seconds == pytest.approx(sum(record.seconds for record in (*first, *rest[:-1])))


def test_where_only_the_summary_is_missing_no_check_is_run(tmp_path: Path) -> None:
    model, place = counted()
    whole = list(run_masking(place, suite(), 0, {}, folder=tmp_path / "kept"))
    assert [record.name for record in whole] == [*CHECKS, "verdict"]
    assert set(whole[3].context["losses"]["lines"]) == {"margin of neighbours", "soft vote", "ES"}
    model.asked = 0
    done = written(tmp_path / "results.jsonl", whole[:-1])
    assert facts(list(run_masking(place, suite(), 0, {}, finished=done, folder=tmp_path / "kept"))) == facts(whole[-1:])
    assert model.asked == SETTING_UP


def test_checks_of_other_settings_seed_or_weights_are_not_taken_for_these(tmp_path: Path) -> None:
    _, place = counted()
    cut = list(islice(run_masking(place, suite(), 0, {}, folder=tmp_path / "kept"), 4))
    done = {record.key: record for record in cut}

    def first(seed: int = 0, radius: float = 0.15) -> str:
        return next(run_masking(place, suite(radius), seed, {}, finished=done, folder=tmp_path / "kept")).name

    assert first() == CHECKS[4] and first(seed=1) == first(radius=0.2) == "randomness"
    torch.nn.init.zeros_(next(place.model.parameters()))
    assert first() == "randomness"


@pytest.mark.parametrize("harm", [lambda file: file.unlink(), lambda file: file.write_bytes(file.read_bytes()[:40])])
def test_a_check_whose_file_is_gone_or_damaged_is_run_again_and_it_alone(
    harm: Callable[[Path], object], tmp_path: Path
) -> None:
    _, place = counted()
    kept = tmp_path / "kept"
    whole = list(islice(run_masking(place, suite(), 0, {}, folder=kept), 5))
    harm(beside(kept, whole[3]))
    done = {record.key: record for record in whole}
    rest = list(run_masking(place, suite(), 0, {}, finished=done, folder=kept))
    assert [record.name for record in rest] == [CHECKS[3], *CHECKS[5:], "verdict"]
    assert facts(rest[:1]) == facts(whole[3:4])


def test_a_command_that_was_killed_between_two_checks_goes_on(command: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text(SLOW)
    shutil.copytree(trained, tmp_path / "cut")
    shutil.copytree(trained, tmp_path / "whole")
    results = tmp_path / "cut" / "results.jsonl"
    process = start(tmp_path, "evaluate", "cut", "slow.yaml")
    try:
        deadline = time.monotonic() + 100
        while len(_checks(results)) < 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        process.kill()
        finish(process)
    ended = _checks(results)
    assert 3 <= len(ended) < len(CHECKS)
    again = command("evaluate", "cut", "slow.yaml")
    assert again.code == 0, again.err
    assert [record.name for record in _checks(results)] == [*CHECKS, "verdict"]  # none of them twice
    assert not any(f"cut  {record.name} at" in again.err for record in ended)
    assert command("evaluate", "whole", "slow.yaml").code == 0
    assert facts(_checks(results)) == facts(_checks(tmp_path / "whole" / "results.jsonl"))


def _checks(path: Path) -> list[Record]:
    return [record for record in records.read(path) if record.kind == "masking"]
