"""A suite from clean to ERS: both modes, means of batch means, scores per query, and what a resume needs of them."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from robustmetric import records
from robustmetric.attacks.base import Climb
from robustmetric.attacks.mismatch import TargetedMismatch
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.data.base import Dataset
from robustmetric.data.digits import Digits
from robustmetric.data.transforms import Identity
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.climbs import AT_MOST, Climbs
from robustmetric.jobs.ers import Store, batch_weights
from robustmetric.jobs.evaluate import measure_trial, run_suite
from robustmetric.jobs.folder import beside
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.workers import Workers
from robustmetric.metrics.robustness import SUB_SCORES, bootstrap, ers, ers_per_query
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.records import Record

TRIALS = 9
"""Of ers224: ten scores, as ES has two."""


def few_digits() -> Dataset:
    digits = Digits().load()
    few = replace(
        digits.queries,
        inputs=digits.queries.inputs[:120],
        labels=digits.queries.labels[:120],
        names=digits.queries.names[:120],
        sizes=digits.queries.sizes[:120],
    )
    return Dataset("digits", train=digits.train, queries=few)


@pytest.fixture(scope="module")
def arena() -> Arena:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Encoder(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8))
    return Arena.prepare(model, few_digits(), Identity(), Workers(torch.device("cpu")), limit=50, batch_size=20)


@pytest.fixture(scope="module")
def suite() -> Suite:
    """The published suite, in three steps."""
    whole = load_suite("ers224", 0.1)
    return replace(whole, trials=[replace(t, engine=replace(t.engine, steps=3, step_size=0.05)) for t in whole.trials])


@pytest.fixture(scope="module")
def found(arena: Arena, suite: Suite) -> list[Record]:
    return [record for record, _ in run_suite(arena, suite, 0, {})]


def written(path: Path, made: Iterator[tuple[Record, object]]) -> list[Record]:
    """The records as a later process reads them."""
    for record, _ in made:
        records.append(path, record)
    return records.read(path)


def of_mode(found: list[Record], mode: str) -> list[Record]:
    return [record for record in found if record.settings.get("mode") == mode]


def test_a_suite_ends_each_mode_with_its_ers(found: list[Record]) -> None:
    kinds = [(record.kind, record.settings.get("mode")) for record in found]
    both = [("attack", "fixed"), ("attack", "compat")] * (TRIALS - 1)
    last = [(kind, mode) for mode in ("fixed", "compat") for kind in ("attack", "ers")]
    assert kinds == [("clean", None), *both, *last]


def test_embeddings_of_other_lengths_have_ten_numbers_and_no_ers(
    arena: Arena, suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = Arena.prepare(arena.model.trunk, few_digits(), Identity(), arena.workers, limit=20, batch_size=20)
    found = [record for record, _ in run_suite(bare, suite, 0, {})]
    assert {record.kind for record in found} == {"clean", "attack"}
    said = capsys.readouterr().err
    assert said.count("embeddings are not of unit length") == 2 and "no ERS in mode fixed" in said
    scores = [record.scores for record in of_mode(found, "fixed")]
    assert {name for each in scores for name in each} == set(SUB_SCORES)
    assert -1 <= next(each["TMA"] for each in scores if "TMA" in each) <= 1 + 1e-6, "a cosine all the same"


@pytest.mark.parametrize("mode", ["fixed", "compat"])
def test_ers_is_that_of_the_ten_numbers_beside_it(found: list[Record], mode: str) -> None:
    *attacks, total = of_mode(found, mode)
    ten = {name: value for record in attacks for name, value in record.scores.items()}
    assert total.name == "ERS" and total.scores == {"ERS": ers(ten), **ten} and list(ten) == list(SUB_SCORES)
    low, high = total.intervals["ERS"]
    assert low <= total.scores["ERS"] <= high
    assert {name: total.intervals[name] for name in ten} == {k: v for r in attacks for k, v in r.intervals.items()}
    assert total.count == 50 and total.seconds == pytest.approx(sum(record.seconds for record in attacks))
    assert len(total.settings["attacks"]) == TRIALS and "attack" not in total.settings
    assert total.settings["radius"] == 0.1 and total.settings["weights"] == attacks[0].settings["weights"]


def test_the_items_that_were_aimed_at_are_kept_beside_the_scores(arena: Arena, suite: Suite, tmp_path: Path) -> None:
    found = [record for record, _ in run_suite(arena, suite, 0, {}, folder=tmp_path)]
    fixed = {record.name: dict(np.load(beside(tmp_path, record))) for record in of_mode(found, "fixed")[:-1]}
    assert {name for name, kept in fixed.items() if "targets" in kept} == {
        "CA+",
        "CA-",
        "QA+",
        "QA-",
        "TMA",
        "GTM",
        "GTT",
    }
    assert all(kept["targets"].shape == (50, 1) for kept in fixed.values() if "targets" in kept)
    labels = arena.gallery.labels.numpy()
    own = labels[arena.rows.numpy()]
    assert (labels[fixed["GTM"]["targets"][:, 0]] != own).all(), "never of the query's own class"
    assert fixed["TMA"]["targets"].max() > 50 and len(np.unique(fixed["TMA"]["targets"])) > 10, "places in the gallery"


def test_the_interval_resamples_the_ten_numbers_of_a_query_together(
    arena: Arena, suite: Suite, found: list[Record], tmp_path: Path
) -> None:
    list(run_suite(arena, suite, 0, {}, folder=tmp_path))
    store = Store(tmp_path)
    for mode, weights in (("fixed", None), ("compat", batch_weights(50, 20))):
        *attacks, total = of_mode(found, mode)
        values = {name: kept for record in attacks for name, kept in (store.of(record) or {}).items()}
        assert total.intervals["ERS"] == pytest.approx(bootstrap(ers_per_query(values), weights=weights))
        for record in attacks:
            for name, value in record.scores.items():
                mean = values[name].mean() if weights is None else (weights * values[name]).sum() / weights.sum()
                assert value == pytest.approx(float(mean), rel=1e-5, abs=1e-5)


def test_compat_counts_a_smaller_last_batch_as_a_whole_one(arena: Arena, suite: Suite) -> None:
    assert batch_weights(5, 2).tolist() == [0.5, 0.5, 0.5, 0.5, 1.0]
    assert batch_weights(4, 2).tolist() == [0.5] * 4
    trial = next(t for t in suite.trials if t.label == "ES")
    for mode in ("fixed", "compat"):
        record, values, pictures = measure_trial(arena, trial.in_mode(mode), {}, 0, {})
        shift = values["ES:D"]
        # 50 queries in batches of 20, 20 and 10.
        expected = shift.mean() if mode == "fixed" else torch.stack([p.mean() for p in shift.split(20)]).mean()
        assert record.scores["ES:D"] == pytest.approx(float(expected), rel=1e-5)
        assert record.settings["mode"] == mode and (pictures is not None) == (mode == "fixed")
    assert float(shift.mean()) != pytest.approx(record.scores["ES:D"], rel=1e-4)


def test_compat_scores_images_that_are_not_rounded(arena: Arena) -> None:
    # A third of a grey level: nothing of it survives in 8 bits.
    engine = PGD(Ball(0.33 / 255), steps=2, step_size=0.33 / 255, random_start=False)
    trial = Trial("TMA", TargetedMismatch(), engine)
    still = measure_trial(arena, replace(trial, engine=replace(engine, steps=0)), {}, 0, {})[1]["TMA"]
    cosine = {mode: measure_trial(arena, trial.in_mode(mode), {}, 0, {})[1]["TMA"] for mode in ("fixed", "compat")}
    torch.testing.assert_close(cosine["fixed"], still)
    assert (cosine["compat"] > still + 1e-5).double().mean() > 0.9, "moved, each by a little: all are near 1 here"


SHARED = ("TMA", "GTT")


def test_both_modes_share_a_climb_where_they_choose_the_same(arena: Arena, suite: Suite, found: list[Record]) -> None:
    """50 queries are three batches; the rest choose otherwise in each mode, or leave other items out of a list."""
    for record in found[1:]:
        batches = record.context.get("batches_climbed_in_another_mode")
        is_shared = record.kind == "attack" and record.settings["mode"] == "compat" and record.name in SHARED
        assert batches == (3 if is_shared else None), (record.name, record.settings["mode"])
    alone = {trial.label: measure_trial(arena, trial, {}, 0, {})[0] for trial in suite.runs() if trial.mode == "compat"}
    for record in of_mode(found, "compat")[:-1]:
        assert record.scores == alone[record.name].scores, record.name


def test_climbs_of_another_trial_are_forgotten_and_too_many_are_not_kept(suite: Suite) -> None:
    one, other = suite.trials[0], suite.trials[1]
    climb = Climb(torch.zeros(2, 3), {"index": torch.zeros(2)})
    climbs, device = Climbs(), torch.device("cpu")
    climbs.begin(one, device)
    climbs.keep(0, climb)
    climbs.keep(0, Climb(torch.ones(2, 3), {}))
    climbs.begin(one.in_mode("compat"), device)
    assert climbs.of(0) is climb and climbs.of(2) is None
    for trial in (other, replace(one, engine=replace(one.engine, steps=0))):
        climbs.begin(trial, device)
        assert climbs.of(0) is None
    large = Climb(torch.zeros(1).expand(AT_MOST // 4), {})
    climbs.keep(0, large)
    climbs.keep(1, climb)
    assert climbs.of(0) is large and climbs.of(1) is None


def test_a_finished_suite_is_not_run_again(arena: Arena, suite: Suite, tmp_path: Path) -> None:
    done = written(tmp_path / "results.jsonl", run_suite(arena, suite, 0, {}, folder=tmp_path / "queries"))
    assert len(done) == 1 + 2 * (TRIALS + 1)
    finished = {record.key: record for record in done}
    assert not list(run_suite(arena, suite, 0, {}, finished=finished, folder=tmp_path / "queries"))
    # Another seed is other work, also for ERS.
    assert len(list(islice(run_suite(arena, suite, 1, {}, finished=finished), 3))) == 3


@pytest.mark.parametrize("at", [1, 5, TRIALS + 1, TRIALS + 4])
def test_a_resumed_suite_has_the_same_ers_and_interval(
    arena: Arena, suite: Suite, found: list[Record], tmp_path: Path, at: int
) -> None:
    path, folder = tmp_path / "results.jsonl", tmp_path / "queries"
    before = written(path, islice(run_suite(arena, suite, 0, {}, folder=folder), at))
    assert len(before) == at
    finished = {record.key: record for record in before}
    after = written(path, run_suite(arena, suite, 0, {}, finished=finished, folder=folder))
    assert [(r.kind, r.name) for r in after] == [(r.kind, r.name) for r in found]
    for resumed, whole in zip(after, found, strict=True):
        assert resumed.scores == whole.scores and resumed.intervals == whole.intervals


def test_without_the_scores_per_query_ers_has_no_interval(
    arena: Arena, suite: Suite, found: list[Record], tmp_path: Path
) -> None:
    folder = tmp_path / "queries"
    before = written(tmp_path / "results.jsonl", islice(run_suite(arena, suite, 0, {}, folder=folder), 2 * TRIALS))
    finished = {record.key: record for record in before}
    assert len(list(folder.iterdir())) == 2 * TRIALS, "clean, and all attacks but the last"
    file = beside(folder, next(r for r in before if r.settings.get("mode") == "fixed"))
    intact = file.read_bytes()
    # Not kept, damaged, of other queries.
    for spoil in (
        lambda: file.unlink(),
        lambda: file.write_bytes(intact[:50]),
        lambda: np.savez(file, **{name: np.zeros(3) for name in SUB_SCORES}),
    ):
        file.write_bytes(intact)
        spoil()
        total, _ = next(run_suite(arena, suite, 0, {}, finished=finished, folder=folder))
        assert (total.kind, total.scores) == ("ers", of_mode(found, "fixed")[-1].scores)
        assert "ERS" not in total.intervals and "CA+" in total.intervals


def test_attacks_of_another_engine_make_no_ers_together(arena: Arena, suite: Suite) -> None:
    still = [replace(t, engine=replace(t.engine, steps=0)) for t in suite.trials]
    one = replace(suite, modes=(), trials=[*still[:-1], replace(still[-1], engine=replace(still[-1].engine, steps=1))])
    assert [record.kind for record, _ in run_suite(arena, one, 0, {})] == ["clean"] + ["attack"] * TRIALS
