"""Records of kind `clustering` on the page: tables by side and reading, sentences, members, sweeps."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_runs import CONTEXT, MakeRun
from test_masking_page import MASKED
from test_page import page

from robustmetric import recipe
from robustmetric.records import Record
from robustmetric.report.clustering import BOTH, CLEAN, GALLERY, QUERY, by_reading, groups, sentences, tables
from robustmetric.report.masking_flag import MARK
from robustmetric.report.runs import read_runs
from robustmetric.report.sweeps import sweeps

OWN_DATA = "cd" * 8
ENGINE = {"norm": "linf", "radius": 8 / 255, "steps": 10, "step_size": 2 / 255, "attack": "WholeSet(attack=Shift())"}


def record(trial: str, sides: str, reading: str, recall: float, f1: float | None = None, **changes: Any) -> Record:
    scores = {"R@1": recall, "R@8": recall + 5} | ({} if f1 is None else {"NMI": f1 + 30, "F1": f1, "F1 std": 0.25})
    settings = {"suite": "clustering", "data": "cars", "trial": trial, "sides": sides, "reading": reading}
    settings |= {"data_fingerprint": OWN_DATA} | ({} if trial == "clean" else {**ENGINE, **changes})
    intervals = {"R@1": (recall - 1, recall + 1)}
    context = {**CONTEXT, "chance": 1.5}
    return Record("clustering", f"{trial}, {sides}, {reading}", scores, settings, intervals, 100, 2.0, 0, context)


def strongest(sides: str, reading: str, recall: float, f1: float | None = None, **changes: Any) -> Record:
    by = {"R@1": "A1", "R@8": "A1", "NMI": "joint", "F1": "joint"}
    return record("strongest", sides, reading, recall, f1, by=by, **changes)


def of_reading(reading: str, shift: float = 0.0) -> list[Record]:
    return [
        record("clean", CLEAN, reading, 50.0 + shift, 15.0),
        record("A1", BOTH, reading, 20.0 + shift, 4.0),
        record("A1", QUERY, reading, 22.0 + shift),
        record("A1", GALLERY, reading, 24.0 + shift),
        strongest(BOTH, reading, 20.0 + shift, 3.0),
    ]


ENSEMBLE = [*of_reading("member 1", -3), *of_reading("member 2", -2), *of_reading("V1, C1")]
ALONE = of_reading("alone", -10)


def test_the_headline_has_ensembles_by_vote_beside_single_models(make_run: MakeRun) -> None:
    runs = read_runs([make_run("eat", *ENSEMBLE), make_run("at", *ALONE)])
    (group,) = groups(runs)
    headline, *others = tables(group, runs)
    assert [(line.attack, line.run, line.reading) for line in headline.lines] == [
        ("clean", "eat", "V1, C1"),
        ("clean", "at", "alone"),
        ("A1 at 8/255", "eat", "V1, C1"),
        ("A1 at 8/255", "at", "alone"),
        ("strongest at 8/255", "eat", "V1, C1"),
        ("strongest at 8/255", "at", "alone"),
    ]
    a1 = headline.lines[2].cells
    assert {column: cell.value for column, cell in a1.items()} == {
        (BOTH, "R@1"): "20.0", (BOTH, "R@8"): "25.0", (BOTH, "NMI"): "34.0", (BOTH, "F1"): "4.0",
        (QUERY, "R@1"): "22.0", (GALLERY, "R@1"): "24.0",
    }  # fmt: skip
    # Below recall its interval, below F1 its deviation over k-means seeds (0.25, rounded to even), of a summary whose.
    assert (a1[BOTH, "R@1"].below, a1[BOTH, "F1"].below) == ("19.0 to 21.0", "± 0.2")
    assert headline.lines[4].cells[BOTH, "F1"].below == "by joint"
    assert (QUERY, "R@1") not in headline.lines[0].cells, "nobody moved a side of the clean search"
    assert [table.title for table in others] == ["member 1", "member 2"]
    assert all(line.run == "eat" for table in others for line in table.lines)


def test_members_stand_beside_the_vote(make_run: MakeRun) -> None:
    runs = read_runs([make_run("eat", *ENSEMBLE), make_run("at", *ALONE)])
    (group,) = groups(runs)
    table = by_reading(group, runs)
    assert table is not None
    assert [(line.reading, line.attack) for line in table.lines] == [
        (reading, attack)
        for reading in ("member 1", "member 2", "V1, C1")
        for attack in ("clean", "strongest at 8/255")
    ]
    assert table.lines[0].cells[BOTH, "R@1"].value == "47.0"
    (single,) = groups(runs[1:])
    assert by_reading(single, runs[1:]) is None


def test_the_strongest_attack_is_put_into_words(make_run: MakeRun) -> None:
    runs = read_runs([make_run("at", *ALONE, strongest(BOTH, "alone", 5.0, 1.0, radius=32 / 255))])
    (group,) = groups(runs)
    assert sentences(group, runs) == [
        "at, every image moved by at most 8/255, 100 queries: R@1 falls from 40.0 to 10.0 (A1), F1 falls from 15.0 to "
        "3.0 (joint). By chance R@1 is 1.5."
    ]


def near(trial: str, clean: float, moved: float, **changes: Any) -> Record:
    found = record(trial, BOTH, "alone", 20.0, 4.0, **changes)
    return replace(found, context={**found.context, "cosines": {"clean": clean, "moved": moved, "own": 0.125}})


def test_an_attack_that_brings_all_images_to_one_place_is_told(make_run: MakeRun) -> None:
    apart, narrow = near("A2", 0.5, 0.9), near("A3", 0.97, 0.99)
    larger = near("A4", 0.5, 0.99, radius=32 / 255)
    runs = read_runs([make_run("at", *ALONE, near("A1", 0.5, 0.96), apart, narrow, larger, near("A1", 0.5, 0.97))])
    (group,) = groups(runs)
    assert sentences(group, runs)[1:] == [
        "at: A1 brings all images to one place (mean cosine of two 0.97, clean 0.50; 0.12 to the own clean image), "
        "where neighbours are left to small differences."
    ], "the newest; not where they stay apart, or lay together before, nor of another radius"


def test_queries_that_cannot_hit_and_attacks_that_cannot_begin_are_told(make_run: MakeRun) -> None:
    flat = [
        replace(one, context={**one.context, "percent_without_gradient_at_the_start": share})
        for one, share in ((near("A2", 0.5, 0.9), 100.0), (near("A3", 0.5, 0.9), 50.0))
    ]
    lonely = [replace(one, settings={**one.settings, "without_positives": 1200}) for one in (*ALONE, *flat)]
    runs = read_runs([make_run("at", *lonely)])
    (group,) = groups(runs)
    assert sentences(group, runs)[1:] == [
        "at: 1,200 queries have no image of their class to find.",
        "at: A2 has no gradient to begin with on 100 % of the images: what it leaves says little.",
    ]


def swept(reading: str) -> list[Record]:
    steps = [record(f"{n} steps", BOTH, reading, 30.0 - n, 5.0, steps=n) for n in (1, 2, 10)]
    radii = [(16, 12.0), (32, 6.0)]
    return [
        record("clean", CLEAN, reading, 50.0, 15.0),
        *steps,
        *(record("A1", BOTH, reading, value, 2.0, radius=r / 255, step_size=r / 4 / 255) for r, value in radii),
        strongest(BOTH, reading, 6.0, 2.0),
    ]


def test_steps_and_radii_become_curves(make_run: MakeRun) -> None:
    runs = read_runs([make_run("eat", *swept("V1, C1")), make_run("at", *ALONE)])
    (group,) = groups(runs)
    found = sweeps(group, runs, "sweep")
    assert [sweep.title for sweep in found] == [
        "R@1 against steps", "F1 against steps", "R@1 against radius", "F1 against radius",
    ]  # fmt: skip
    assert all(sweep.styles == (0,) for sweep in found), "one point is no curve"
    assert found[0].caption == "Shift at 8/255, steps of 2/255."
    assert found[2].caption == "Shift, 10 steps of 0.25 of the radius."
    # Ticks at the clean model and at the ten-step climbs: 8/255, 16/255, 32/255.
    assert all(f">{tick}<" in found[2].plot for tick in ("0", "8/255", "16/255", "32/255"))
    assert found[0].plot != found[1].plot


def of_weights(weights: str, share: float, found: Sequence[Record], seed: int = 0) -> list[Record]:
    """Another evaluation: every score that share of what it was."""
    return [
        replace(
            one,
            scores={name: share * value for name, value in one.scores.items()},
            intervals={},
            settings={**one.settings, "weights": weights},
            seed=seed,
        )
        for one in found
    ]


@pytest.mark.parametrize(("weights", "seed"), [("new", 0), ("old", 1)])
def test_words_and_curves_are_of_the_evaluation_that_the_tables_show(
    weights: str, seed: int, make_run: MakeRun
) -> None:
    measured = swept("alone")
    # Of other weights, or of the same with another seed: either way the newest evaluation counts.
    old, new = of_weights("old", 1.0, measured), of_weights(weights, 0.5, measured, seed)
    again, alone = read_runs([make_run("at", *old, *new)]), read_runs([make_run("alone", *new, name="at")])
    (group,), (wanted,) = groups(again), groups(alone)
    assert tables(group, again) == tables(wanted, alone)
    assert sentences(group, again) == sentences(wanted, alone) != []
    assert "R@1 falls from 25.0 to 3.0" in sentences(group, again)[0]
    assert sweeps(group, again, "sweep") == sweeps(wanted, alone, "sweep") != []


def test_old_weights_do_not_fill_what_the_new_ones_lack(make_run: MakeRun) -> None:
    runs = read_runs([make_run("at", *of_weights("old", 1.0, ALONE), *of_weights("new", 0.5, ALONE[:1]))])
    (group,) = groups(runs)
    assert [line.attack for line in tables(group, runs)[0].lines] == ["clean"] and sentences(group, runs) == []


def test_another_count_or_k_means_is_not_compared(make_run: MakeRun) -> None:
    few = replace(ALONE[0], count=6, settings={**ALONE[0].settings, "queries": 6})
    by_faiss = replace(ALONE[0], settings={**ALONE[0].settings, "reading_rules": {"backend": "faiss"}})
    runs = read_runs([make_run("at", *ALONE), make_run("few", few), make_run("faiss", by_faiss)])
    assert [str(group) for group in groups(runs)] == [
        "cars, suite clustering, 100 queries",
        "cars, suite clustering, 6 queries",
        "cars, suite clustering, k-means by faiss, 100 queries",
    ]


def test_a_masked_run_is_flagged_beside_its_clusters(make_run: MakeRun, tmp_path: Path) -> None:
    shown = page(tmp_path, make_run("eat", *ENSEMBLE, *MASKED), make_run("at", *ALONE))
    names = {row[1] for row in shown.cells if row and row[0].startswith(("clean", "A1", "strongest"))}
    assert names == {f"eat {MARK} masked: fails gradient_free", "at"}


def test_a_run_that_was_only_checked_for_masking_was_evaluated(make_run: MakeRun, tmp_path: Path) -> None:
    shown = page(tmp_path, make_run("fs", *MASKED))
    assert "Is it real?" in shown.text
    assert "has not been evaluated" not in shown.text and "No evaluation has been recorded" not in shown.text


def test_numbers_in_bfloat16_or_of_other_suites_are_not_compared(make_run: MakeRun) -> None:
    fast = record("clean", CLEAN, "alone", 49.0, 14.0)
    fast.settings["precision"] = "bf16"
    other = record("clean", CLEAN, "alone", 48.0, 14.0)
    other.settings["suite"] = "clustering_adaptive"
    runs = read_runs([make_run("at", *ALONE, fast, other)])
    assert [str(group) for group in groups(runs)] == [
        "cars, suite clustering, 100 queries",
        "cars, suite clustering, bf16, 100 queries",
        "cars, suite clustering_adaptive, 100 queries",
    ]


def test_the_page_shows_it_all(make_run: MakeRun, tmp_path: Path) -> None:
    shown = page(tmp_path, make_run("eat", *ENSEMBLE), make_run("at", *ALONE))
    assert "Clustering under attack: cars, suite clustering, 100 queries" in shown.text
    assert "has not been evaluated" not in shown.text and "No evaluation has been recorded" not in shown.text
    rows = [row for row in shown.cells if row and row[0] == "A1 at 8/255"]
    assert rows[0] == [
        "A1 at 8/255", "eat", "V1, C1", "20.0 19.0 to 21.0", "25.0", "34.0", "–", "4.0 ± 0.2",  # noqa: RUF001
        "22.0 21.0 to 23.0", "24.0 23.0 to 25.0",
    ]  # fmt: skip
    header = next(row for row in shown.cells if row and row[0] == "attack")
    assert header == ["attack", "run", "read by", "both sides", "query only", "gallery only"]
    assert "pairwise F1" in shown.text, "what the scores mean"


def test_a_page_without_such_records_has_no_such_section(make_run: MakeRun, tmp_path: Path) -> None:
    plain = Record("clean", "clean", {"R@1": 90.0}, {"suite": "demo", "data": "digits"}, {}, 5)
    assert "Clustering under attack" not in page(tmp_path, make_run("plain", plain)).text


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_points_make_no_curve(count: int, make_run: MakeRun) -> None:
    some = [record(f"{n} steps", BOTH, "alone", 30.0 - n, 5.0, steps=n) for n in range(1, count + 1)]
    runs = read_runs([make_run("at", record("clean", CLEAN, "alone", 50.0, 15.0), *some)])
    assert sweeps(groups(runs)[0], runs, "sweep") == []


def published_run(make_run: MakeRun, name: str, *records: Record) -> Path:
    """A run of one of the paper's recipes."""
    trained = Record("validation", "clean", {"R@1": 50.0}, {"epoch": 60, "data_fingerprint": OWN_DATA}, {}, 100)
    path = make_run(name.replace("/", "-"), trained, *records, recipe_file=f"recipes/{name}.yaml")
    recipe.save(recipe.load(recipe.locate(name)), path / "recipe.yaml")
    return path


def test_what_the_paper_has_of_a_run_stands_below_it(make_run: MakeRun, tmp_path: Path) -> None:
    eat, own = published_run(make_run, "cars/eat_eat", *ENSEMBLE), make_run("own", *ALONE)
    runs = read_runs([eat, own, published_run(make_run, "cub/eat_naive", *ENSEMBLE)])
    (group,) = groups(runs)
    headline, *others = tables(group, runs)
    lines = {(line.attack, line.run): line for line in headline.lines}
    order = [key for key in lines if key[0] == "clean"]
    names = ["cars-eat_eat", "cars-eat_eat, published", "own", "cub-eat_naive", "cub-eat_naive, published"]
    assert [run for _, run in order] == names
    attacked = lines["A1 at 8/255", "cars-eat_eat, published"]
    assert attacked.reading == "arXiv 2501.01025, Table 1" and attacked.style == 0
    assert {score: cell.value for (_, score), cell in attacked.cells.items()} == {
        "R@1": "22.8", "R@8": "54.2", "NMI": "36.1", "F1": "5.8",
    }  # fmt: skip
    assert lines["clean", "cub-eat_naive, published"].reading == "arXiv 2501.01025, Table 3, CUB-200-2010"
    assert ("strongest at 8/255", "cars-eat_eat, published") not in lines, "the paper has one attack"
    assert not any("published" in line.run for table in others for line in table.lines)
    assert "cars-eat_eat, published" in page(tmp_path, eat).text


def test_a_run_that_differs_from_its_recipe_suite_or_radius_has_nothing_published(make_run: MakeRun) -> None:
    changed = published_run(make_run, "cars/eat_at", *ALONE)
    spec = recipe.load(changed / "recipe.yaml")
    spec["defence"]["attack"]["steps"] = 20
    recipe.save(spec, changed / "recipe.yaml")
    moved = [replace(one, settings={**one.settings, "suite": "clustering_short"}) for one in ENSEMBLE]
    other = published_run(make_run, "cars/eat_eat", *moved)
    smaller = [replace(one, settings={**one.settings, "radius": 4 / 255}) for one in ENSEMBLE]
    weaker = published_run(make_run, "cars/eat_mixup", *(one for one in smaller if one.settings["trial"] != "clean"))
    for path in (changed, other, weaker):
        (group,) = groups(runs := read_runs([path]))
        assert not any("published" in line.run for line in tables(group, runs)[0].lines)


def test_other_data_has_nothing_published_beside_it(make_run: MakeRun, tmp_path: Path) -> None:
    """As `evaluate RUN clustering --data OTHER` leaves the run of a recipe; folders of one name may differ, too."""
    elsewhere = [
        replace(one, settings={**one.settings, "data": data, "data_fingerprint": "ef" * 8})
        for one in ENSEMBLE
        for data in ("own_photos", "cars")
    ]
    path = published_run(make_run, "cars/eat_eat", *elsewhere)
    runs = read_runs([path])
    assert not any("published" in line.run for group in groups(runs) for line in tables(group, runs)[0].lines)
    assert "cars-eat_eat, published" not in page(tmp_path, path).text
    both = published_run(
        make_run, "cars/eat_eat-r16", *(one for one in elsewhere if one.settings["data"] != "cars"), *ENSEMBLE
    )
    runs = read_runs([both])
    shown = {group.data for group in groups(runs) for line in tables(group, runs)[0].lines if "published" in line.run}
    assert shown == {"cars"}


def test_a_run_trained_on_other_data_than_its_recipe_has_nothing_published(make_run: MakeRun) -> None:
    for number, (change, is_own) in enumerate(
        [({"name": "cub"}, False), ({"name": "cars", "validation": 0.2}, False), ({"name": "cars", "root": "/x"}, True)]
    ):
        path = published_run(make_run, ("cars/eat_eat", "cars/eat_naive", "cars/eat_at")[number], *ENSEMBLE)
        recipe.save({**recipe.load(path / "recipe.yaml"), "data": change}, path / "recipe.yaml")
        (group,) = groups(runs := read_runs([path]))
        assert any("published" in line.run for line in tables(group, runs)[0].lines) == is_own
