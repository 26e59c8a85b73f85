"""The clustering job: a record for every side and reading, numbers that agree with the metrics, resuming."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from commands import Command
from robustmetric import records
from robustmetric.api import evaluate
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.joint import WholeSet, embed_all
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.vote import NeighbourMargin
from robustmetric.data.base import Dataset, Split
from robustmetric.data.digits import Digits
from robustmetric.data.transforms import Identity
from robustmetric.errors import InputError
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.clustering import (
    CLEAN,
    KS,
    SIDES,
    _cosines,
    check_search,
    is_clustering,
    run_clustering,
    strongest,
    voters,
)
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.workers import Workers
from robustmetric.metrics.clustering import cluster_metrics
from robustmetric.metrics.voting import Reading
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.ensemble import Ensemble
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, frozen
from robustmetric.perturb.seeking import Search
from robustmetric.records import Record

ENGINE = PGD(Ball(0.2), steps=3, step_size=0.1)
A1 = Trial("A1", WholeSet(EmbeddingShift()), ENGINE)
MARGIN = Trial("joint margin", WholeSet(NeighbourMargin(), bank="moving"), ENGINE)
SUITE = Suite("small", [A1, MARGIN])
CONTEXT = {"commit": "none"}


def encoder(seed: int) -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Encoder(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8))


def part(split: Split, rows: Tensor) -> Split:
    names = tuple(split.names[i] for i in rows.tolist())
    return replace(split, inputs=split.inputs[rows], labels=split.labels[rows], names=names, sizes=split.sizes[rows])


def prepared(model: nn.Module, dataset: Dataset, limit: int | None = None) -> Arena:
    return Arena.prepare(model, dataset, Identity(), Workers(torch.device("cpu")), batch_size=32, limit=limit)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    whole = Digits().load()
    return Dataset("digits", train=whole.train, queries=part(whole.queries, torch.arange(80)))


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    return Ensemble([encoder(seed) for seed in range(3)])


@pytest.fixture(scope="module")
def found(ensemble: Ensemble, digits: Dataset) -> list[Record]:
    return list(run_clustering(prepared(ensemble, digits), SUITE, 0, CONTEXT, {"data": "digits"}))


def of(found: list[Record], trial: str, sides: str, reading: str) -> Record:
    (record,) = [
        r for r in found if (r.settings["trial"], r.settings["sides"], r.settings["reading"]) == (trial, sides, reading)
    ]
    return record


def test_every_side_and_reading_has_a_record(found: list[Record]) -> None:
    readings = Reading(3).names
    assert len(readings) == 3 + 2 + 3
    # Clean once, two attacks and the strongest for three sides.
    assert len(found) == len(readings) * (1 + 3 * len(SIDES))
    assert len({record.key for record in found}) == len(found)
    recall = {f"R@{k}" for k in KS}
    clusters = {f"{name}{tail}" for name in ("NMI", "AMI", "F1") for tail in ("", " std")}
    for record in found:
        named = set(record.scores)
        whole = record.settings["sides"] in (CLEAN, "both sides")
        extra = {name for name in clusters if not (name.endswith("std") and record.settings["trial"] == "strongest")}
        assert named == (recall | extra if whole else recall)
        assert all(0 <= value <= 100 or name == "AMI" for name, value in record.scores.items())
        assert record.count == 80 and record.context["commit"] == "none"


def test_clean_scores_are_those_of_the_metrics(found: list[Record], ensemble: Ensemble, digits: Dataset) -> None:
    with frozen(ensemble) as embed:
        z = embed_all(embed, digits.queries.inputs.float() / 255, 32)
    labels = digits.queries.labels
    runs = [cluster_metrics(z, labels, seed=seed) for seed in range(5)]
    record = of(found, "clean", CLEAN, "concatenated")
    assert record.scores["NMI"] == pytest.approx(100 * sum(run["NMI"] for run in runs) / 5, abs=0.5)
    distances = torch.cdist(z, z).fill_diagonal_(torch.inf)
    hits = (labels[distances.argmin(dim=1)] == labels).float().mean()
    assert record.scores["R@1"] == pytest.approx(100 * float(hits))
    assert record.intervals["R@1"][0] <= record.scores["R@1"] <= record.intervals["R@1"][1]


def test_each_side_is_searched_as_it_says(found: list[Record]) -> None:
    sides = {name: of(found, "A1", name, "V1, C1").scores["R@1"] for name in SIDES}
    clean = of(found, "clean", CLEAN, "V1, C1").scores["R@1"]
    assert len({*sides.values(), clean}) > 2
    assert max(sides["query only"], sides["gallery only"]) < clean
    assert of(found, "A1", "both sides", "V1, C1").context["percent_without_gradient_at_the_start"] == 0


def test_how_near_moved_embeddings_are_is_noted(found: list[Record], ensemble: Ensemble, digits: Dataset) -> None:
    cosines = of(found, "A1", "both sides", "V1, C1").context["cosines"]
    with frozen(ensemble) as embed:
        z = embed_all(embed, digits.queries.inputs.float() / 255, 32)
    pairs = z @ z.T
    assert cosines["clean"] == pytest.approx(float(pairs.triu(1).sum() / (80 * 79 / 2)), abs=1e-4)
    assert -1 <= cosines["own"] < 0.999 and -1 <= cosines["moved"] <= 1 and cosines["moved"] != cosines["clean"]
    for trial, sides in (("clean", CLEAN), ("strongest", "both sides")):
        assert not {"cosines", "percent_without_gradient_at_the_start"} & set(of(found, trial, sides, "V1, C1").context)


def test_lengths_that_differ_have_no_cosines_to_be_told() -> None:
    z = torch.eye(3)
    assert _cosines(z, z.roll(1, 0)) == {"cosines": {"clean": 0.0, "moved": 0.0, "own": 0.0}}
    assert _cosines(z, torch.ones(3, 3) / 3**0.5)["cosines"]["moved"] == pytest.approx(1.0)
    assert _cosines(2 * z, z) == {}


def test_the_strongest_is_named_for_every_score(found: list[Record]) -> None:
    for sides in SIDES:
        record = of(found, "strongest", sides, "V1, C1")
        both = {trial: of(found, trial, sides, "V1, C1").scores for trial in ("A1", "joint margin")}
        for name, value in record.scores.items():
            assert value == min(scores[name] for scores in both.values())
            assert both[record.settings["by"][name]][name] == value


@pytest.mark.parametrize("search", ["tf32", "fp16"])
def test_a_search_that_whole_sets_do_not_have_is_refused(ensemble: Ensemble, digits: Dataset, search: Search) -> None:
    quick = replace(prepared(ensemble, digits), search=search)
    with pytest.raises(InputError, match=f"suite small searches in fp32 or bf16, not in {search}"):
        next(run_clustering(quick, SUITE, 0, CONTEXT))


@pytest.mark.parametrize("suite", ["classification", "autoattack", "ers224", "demo", "masking"])
def test_suites_that_are_not_of_whole_sets_may_search_in_float16(suite: str) -> None:
    for search in ("fp32", "tf32", "fp16"):
        check_search(load_suite(suite), search)


def test_strongest_keeps_radii_apart(found: list[Record]) -> None:
    other = [replace(r, settings={**r.settings, "radius": 0.3}) for r in found if r.settings["trial"] == "A1"]
    measured = [r for r in found if r.settings["trial"] == "A1"]
    assert len(strongest([*measured, *other], {})) == 2 * len(strongest(measured, {})) == 2 * len(measured)


def test_the_strongest_says_all_that_its_attacks_have_in_common(found: list[Record]) -> None:
    clean, summary = of(found, "clean", CLEAN, "V1, C1"), of(found, "strongest", "both sides", "V1, C1")
    shared = {key: value for key, value in clean.settings.items() if key not in ("trial", "sides", "reading")}
    assert {"queries", "gallery", "batch", "precision", "reading_rules"} <= set(shared)
    assert {key: summary.settings.get(key) for key in shared} == shared
    assert "steps" not in summary.settings and "attack" not in summary.settings


@pytest.mark.parametrize("change", ["queries", "precision", "search", "fp32 after bf16", "k-means seeds"])
def test_another_evaluation_has_a_strongest_of_its_own(
    change: str, ensemble: Ensemble, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, reading = replace(SUITE, trials=[A1]), Reading(3, seeds=1)
    arena = prepared(ensemble, digits, limit=20)
    before = replace(arena, search="bf16") if change == "fp32 after bf16" else arena
    first = [
        replace(r, scores=dict.fromkeys(r.scores, 0.0))
        for r in run_clustering(before, suite, 0, CONTEXT, reading=reading)
    ]
    if change == "queries":
        arena = prepared(ensemble, digits)
    if change == "search":
        arena = replace(arena, search="bf16")
    if change == "precision":
        settings = arena.settings() | {"precision": "bf16"}
        monkeypatch.setattr(Arena, "settings", lambda _: settings)
    if change == "k-means seeds":
        reading = replace(reading, seeds=2)
    done = {record.key: record for record in first}
    second = list(run_clustering(arena, suite, 0, CONTEXT, None, done, reading))
    summary, single = (of(second, trial, "both sides", "V1, C1") for trial in ("strongest", "A1"))
    assert summary.count == single.count and summary.scores["R@1"] == single.scores["R@1"]
    assert summary.settings["precision"] == single.settings["precision"]
    assert summary.settings["reading_rules"] == single.settings["reading_rules"]


def test_the_strongest_is_of_every_attack_that_was_ever_run(ensemble: Ensemble, digits: Dataset) -> None:
    arena, written = prepared(ensemble, digits), []
    # As with and without --surrogate: the suite has fewer attacks the second time, and another the third.
    for trials in ([MARGIN], [A1], [A1, replace(A1, label="again")]):
        done = {record.key: record for record in written}
        written += run_clustering(arena, replace(SUITE, trials=trials), 0, CONTEXT, None, done)
    for sides in SIDES:
        found = [r for r in written if (r.settings["sides"], r.settings["reading"]) == (sides, "V1, C1")]
        last = [r for r in found if r.settings["trial"] == "strongest"][-1]
        single = [r for r in found if r.settings["trial"] != "strongest"]
        assert last.scores["R@1"] == min(record.scores["R@1"] for record in single)
        named = [r for r in single if r.settings["trial"] == last.settings["by"]["R@1"]]
        assert [record.scores["R@1"] for record in named] == [last.scores["R@1"]]
    assert (
        of(written, "joint margin", "both sides", "V1, C1").scores["R@1"]
        < (of(written, "A1", "both sides", "V1, C1").scores["R@1"])
    )


def test_what_is_finished_is_not_run_again(found: list[Record], ensemble: Ensemble, digits: Dataset) -> None:
    arena = prepared(ensemble, digits)
    done = {record.key: record for record in found}
    assert list(run_clustering(arena, SUITE, 0, CONTEXT, {"data": "digits"}, done)) == []
    without = {key: record for key, record in done.items() if record.settings["trial"] != "A1"}
    again = list(run_clustering(arena, SUITE, 0, CONTEXT, {"data": "digits"}, without))
    assert {record.settings["trial"] for record in again} == {"A1"}
    assert [record.scores for record in again] == [r.scores for r in found if r.settings["trial"] == "A1"]
    other_seed = run_clustering(arena, replace(SUITE, trials=[A1]), 1, CONTEXT, {"data": "digits"}, done)
    assert next(other_seed).settings["trial"] == "clean"


def test_clean_images_are_embedded_once_for_all_trials(ensemble: Ensemble, digits: Dataset) -> None:
    arena, images = prepared(ensemble, digits), list[int]()
    hook = ensemble.register_forward_hook(lambda module, given, z: images.append(len(z)))
    list(run_clustering(arena, SUITE, 0, CONTEXT))
    hook.remove()
    still, moving = 1 + 3 + 1, 3 * 2 + 1  # A1 also embeds what it leaves; a moving bank is embedded before every step
    # 32 of each tell whether there is a slope, and 32 asked twice whether the model draws at random.
    assert sum(images) == 80 * (1 + still + moving) + 2 * 32 + 2 * 32


def test_queries_without_positives_are_counted_and_reported(digits: Dataset) -> None:
    queries = digits.queries
    # One image of class 0 alone: its query cannot hit. The other classes keep all of theirs.
    first = (queries.labels == 0).nonzero()[0, 0]
    rows = torch.cat([first[None], (queries.labels != 0).nonzero()[:40, 0]])
    lonely = Dataset("lonely", train=digits.train, queries=part(queries, rows))
    records_of = list(run_clustering(prepared(encoder(0), lonely), replace(SUITE, trials=[A1]), 0, CONTEXT))
    assert all(r.settings["without_positives"] == 1 for r in records_of if r.settings["trial"] != "strongest")
    assert all(r.settings["reading"] == "alone" for r in records_of)
    whole = list(run_clustering(prepared(encoder(0), digits), replace(SUITE, trials=[A1]), 0, CONTEXT))
    assert "without_positives" not in whole[0].settings


def test_an_attack_that_cannot_begin_says_so(digits: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """As PGD on the distance to the clean self would not from there: such an attack leaves everything as it was."""

    class Rounded(nn.Module):
        dim, shape = 64, (1, 8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return (x * 4).round().flatten(1) + 1

    few = Dataset("few", train=digits.train, queries=part(digits.queries, torch.arange(40)))
    for model, share in ((Rounded(), 100.0), (encoder(0), 0.0)):
        said = list(run_clustering(prepared(model, few), replace(SUITE, trials=[A1]), 0, CONTEXT))
        assert said[1].context["percent_without_gradient_at_the_start"] == share
        told = "A1: no image has a gradient where the climb begins" in capsys.readouterr().err
        assert told == (share == 100)


def test_a_gallery_of_its_own_is_moved_too(digits: Dataset) -> None:
    queries, gallery = part(digits.queries, torch.arange(20)), part(digits.queries, torch.arange(20, 80))
    apart = Dataset("apart", train=digits.train, queries=queries, gallery=gallery)
    found = list(run_clustering(prepared(encoder(0), apart), replace(SUITE, trials=[A1]), 0, CONTEXT))
    scores = {(r.settings["trial"], r.settings["sides"]): r.scores["R@1"] for r in found}
    assert all(r.count == 20 for r in found)
    assert len({scores["A1", sides] for sides in SIDES} | {scores["clean", CLEAN]}) > 1
    with frozen(encoder(0)) as embed:
        z, items = (embed_all(embed, split.inputs.float() / 255, 32) for split in (queries, gallery))
    hits = gallery.labels[torch.cdist(z, items).argmin(dim=1)] == queries.labels
    assert scores["clean", CLEAN] == pytest.approx(100 * float(hits.float().mean()))


def test_too_many_neighbours_or_clusters_are_refused(digits: Dataset) -> None:
    arena = prepared(encoder(0), digits)
    with pytest.raises(InputError, match="k = 100 neighbours asked of 79 items"):
        list(run_clustering(arena, SUITE, 0, CONTEXT, reading=Reading(ks=(1, 100))))
    with pytest.raises(InputError, match="81 clusters asked of 80 points"):
        list(run_clustering(arena, SUITE, 0, CONTEXT, reading=Reading(clusters=81)))


def test_images_of_one_class_are_refused_before_anything_is_moved(digits: Dataset) -> None:
    alike = part(digits.queries, (digits.queries.labels == digits.queries.labels[0]).nonzero()[:, 0])
    arena = prepared(encoder(0), Dataset("alike", train=digits.train, queries=alike))
    with pytest.raises(InputError, match="of one class only; expected two or more"):
        next(run_clustering(arena, SUITE, 0, CONTEXT))


def test_an_attack_on_single_queries_is_refused(digits: Dataset) -> None:
    mixed = replace(SUITE, trials=[A1, Trial("ES", EmbeddingShift(), ENGINE)])
    with pytest.raises(InputError, match=r"'ES'.*expected whole_set"):
        list(run_clustering(prepared(encoder(0), digits), mixed, 0, CONTEXT))


def test_members_are_those_of_an_ensemble(ensemble: Ensemble) -> None:
    assert voters(ensemble) == 3 and voters(encoder(0)) == 1


@pytest.mark.parametrize("name", ["clustering", "clustering_adaptive", "clustering_noise", "clustering_sweep"])
def test_our_suites_are_of_whole_sets(name: str) -> None:
    suite = load_suite(name)
    assert is_clustering(suite) and all(isinstance(trial.attack, WholeSet) for trial in suite.trials)
    assert not is_clustering(load_suite("demo"))


def test_the_paper_s_attack_is_ten_steps_of_a_quarter_radius() -> None:
    (trial,) = load_suite("clustering").trials
    assert trial.engine == PGD(Ball(8 / 255), steps=10, step_size=2 / 255)
    assert trial.attack == WholeSet(EmbeddingShift(), bank="still")


def test_noise_moves_every_image_whatever_the_gradient(digits: Dataset) -> None:
    suite = load_suite("clustering_noise")
    engines = [trial.engine for trial in suite.runs()]
    assert [engine.ball.radius for engine in engines] == [8 / 255, 16 / 255, 32 / 255]
    assert all(isinstance(engine, PGD) and engine.steps == 0 and engine.random_start for engine in engines)
    found = list(run_clustering(prepared(encoder(0), digits), suite, 0, CONTEXT))
    own = [
        r.context["cosines"]["own"] for r in found if (r.settings["trial"], r.settings["sides"]) == ("noise", SIDES[0])
    ]
    assert 1 > own[0] > own[1] > own[2], "the more the farther"
    clean = digits.queries.inputs.float() / 255
    moved = engines[2](lambda x: torch.full((len(x),), torch.nan), clean, torch.Generator().manual_seed(0))
    away = (moved - clean).abs().flatten(1)
    assert (away.amax(dim=1) > 0).all() and away.max() <= 32 / 255 + 1e-6 and moved.min() >= 0 and moved.max() <= 1


def test_one_s_own_encoder_can_be_evaluated_too(digits: Dataset) -> None:
    images, labels = digits.queries.inputs[:40].float() / 255, digits.queries.labels[:40]
    found = evaluate(encoder(0), images, labels, suite="clustering")
    assert [record.settings["trial"] for record in found] == ["clean", *["A1"] * 3, *["strongest"] * 3]


def test_evaluate_runs_a_clustering_suite_and_says_when_it_is_done(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    suite = tmp_path / "short.yaml"
    suite.write_text(
        "engine: {name: pgd, ball: {name: ball, radius: 0.2}, steps: 1, step_size: 0.1}\n"
        "attacks:\n  A1: {attack: {name: whole_set, attack: {name: embedding_shift}}}\n"
    )
    out = tmp_path / "run"
    result = command("evaluate", trained, suite, "--out", out)
    assert result.code == 0, result.err
    told = result.out + result.err
    assert "NMI std" in told and "AMI" not in told, "no deviation of a score that is not told"
    written = records.read(out / "results.jsonl")
    assert [r.name for r in written if r.kind == "clustering"][:2] == [
        "clean, neither side, alone",
        "A1, both sides, alone",
    ]
    again = command("evaluate", trained, suite, "--out", out)
    assert again.code == 0 and len(records.read(out / "results.jsonl")) == len(written)
