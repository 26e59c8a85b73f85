"""What several attacks leave is what a reader sees first: before single attacks, in words, and marked on the page."""

from pathlib import Path
from typing import Any

import pytest
from sample_runs import CONTEXT, MakeRun

from robustmetric.records import Record
from robustmetric.report.classification import classification_tables
from robustmetric.report.page import write_page
from robustmetric.report.runs import read_runs
from robustmetric.report.scores import DASH
from robustmetric.report.tables import Column, summaries
from robustmetric.report.verdict import verdict
from robustmetric.report.worst_case_schema import faults

SUITE = {"suite": "classification", "data": "cifar10"}


def clean(value: float, score: str = "accuracy") -> Record:
    return Record("clean", "clean", {score: value}, {**SUITE, "chance": 10.0}, {}, 1000, 1.0, 0, CONTEXT)


def attacked(name: str, value: float, kind: str = "attack", score: str = "accuracy", **scores: float) -> Record:
    settings = {**SUITE, "norm": "linf", "mode": "fixed", "radius": 8 / 255}
    interval = {score: (value - 3, value + 3)}
    return Record(kind, name, {score: value, **scores}, settings, interval, 1000, 1.0, 0, CONTEXT)


def run(value: float, pgd: float, auto: float, worst: float) -> tuple[Record, ...]:
    repeated: dict[str, Any] = {"lowest run": pgd + 0.2, "max - min": 0.3}
    single = attacked("PGD-20", pgd, **repeated)
    return clean(value), single, attacked("AutoAttack", auto, "worst_case"), attacked("worst case", worst, "worst_case")


MADRY, SCATTERED = run(87.1, 45.0, 44.0, 43.5), run(90.0, 70.5, 36.6, 36.0)


def test_worst_cases_stand_between_the_clean_number_and_single_attacks(make_run: MakeRun) -> None:
    (table,) = summaries(read_runs([make_run("madry", *MADRY)]))
    assert [table.quantity(column) for column in table.columns] == [
        "clean accuracy", "AutoAttack accuracy", "worst case accuracy", "PGD-20 accuracy", "PGD-20 lowest run",
    ]  # fmt: skip
    assert [column.is_worst for column in table.columns] == [False, True, True, False, False]
    assert table.rows["madry"][Column("accuracy", "worst case", "", round(8 / 255, 9), True)].value == 43.5


def test_the_verdict_is_on_the_worst_case_and_not_on_the_kindest_attack(make_run: MakeRun) -> None:
    runs = read_runs([make_run("madry", *MADRY), make_run("scattering", *SCATTERED)])
    (said,) = verdict(summaries(runs)[0], runs)
    assert said == (
        "At radius 8/255, under the worst of 1 attacks for each image, on 1000 images, the accuracy of madry "
        "falls from 87.1 to 43.5; scattering keeps 36.0 of its 90.0."
    )


def test_single_attacks_on_a_classifier_prove_nothing(make_run: MakeRun) -> None:
    runs = read_runs([make_run("scattering", *SCATTERED[:2])])
    (said,) = verdict(summaries(runs)[0], runs)
    assert said == (
        "No worst case over several attacks was measured here, so nothing is said about robustness. "
        "Clean accuracy, on 1000 images: scattering 90.0."
    )


@pytest.mark.parametrize(
    ("others", "subject"), [((), "classifier"), ((clean(90.0, "R@1"),), "model")], ids=["classifiers", "both"]
)
def test_the_page_marks_the_worst_case(
    others: tuple[Record, ...], subject: str, make_run: MakeRun, tmp_path: Path
) -> None:
    paths = [make_run("madry", *MADRY), *([make_run("encoder", *others)] if others else [])]
    page = write_page(paths, tmp_path / "page").read_text()
    assert f"How easily can this {subject} be fooled?" in page
    assert "that are named rightly" in page
    assert ("nearest embeddings" in page) == (subject == "model")
    left = "accuracy" if subject == "classifier" else "search and of the accuracy"
    assert f"The numbers say what is left of the {left}." in page
    assert page.count('<td class="worst">') == 2 * len(paths) and "43.5" in page


def row(defence: str, seed: int, **accuracy: float) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in accuracy.items()}
    runs = {"lowest run": {"PGD-20": 70.7}, "max - min": {"PGD-20": 0.3}}
    block = {"norm": "linf", "radius": 8 / 255, "accuracy": {**named, "worst case": 36.0}, **runs}
    model = "wide_resnet16_8"
    return {
        "id": f"cifar10-{model}-{defence}-scaled-seed{seed}", "data": "cifar10", "defence": defence, "seed": seed,
        "queries": 1000, "protocol": "scaled", "model": model, "clean": {"accuracy": 90.0}, "classification": block,
    }  # fmt: skip


def test_the_table_of_classifiers_by_hand() -> None:
    retrieval = {"id": "y", "defence": "act", "clean": {"R@1": 50.0}}
    (text,) = classification_tables("cifar10", [row("scattering", 0, PGD_20=70.5, AutoAttack=36.6), retrieval])
    assert text.splitlines() == [
        "### cifar10, classifiers, protocol scaled, wide_resnet16_8, 8/255",
        "",
        "| defence | seed | clean | PGD-20 | **AutoAttack** | **worst case** | images |",
        "| --- | --: | --: | --: | --: | --: | --: |",
        "| `scattering` | 0 | 90.0 | 70.5 (70.7, 0.3) | **36.6** | **36.0** | 1000 |",
        "",
        "Percent right; in brackets the lowest run of several, and how far runs lie apart "
        "(each image's worst stands before).",
    ]


def test_what_was_not_measured_is_a_dash() -> None:
    (text,) = classification_tables("cifar10", [row("a", 0, PGD_20=70.5), row("b", 0, FGSM=5.0)])
    assert f"| `a` | 0 | 90.0 | {DASH} | 70.5 (70.7, 0.3) | {DASH} | **36.0** | 1000 |" in text


def test_an_attack_that_met_only_what_others_left_has_no_column() -> None:
    whole, swept = row("a", 0, Square=50.0, AutoAttack=40.0), row("b", 0, Square=36.6, AutoAttack=36.6)
    swept["classification"]["in_turn"] = ["Square"]
    (text,) = classification_tables("cifar10", [swept])
    assert "Square" not in text and "| **36.6** | **36.0** |" in text
    (text,) = classification_tables("cifar10", [whole, swept])
    assert "| Square | **AutoAttack** |" in text
    assert f"| `b` | 0 | 90.0 | {DASH} | **36.6** |" in text and "| `a` | 0 | 90.0 | 50.0 | **40.0** |" in text


def test_turns_are_of_attacks_that_the_row_has() -> None:
    good = row("a", 0, Square=50.0)
    good["classification"]["in_turn"] = ["Square"]
    assert faults(good) == []
    good["classification"]["in_turn"] = ["FAB-T"]
    assert faults(good) == ["classification.in_turn ['FAB-T'] are no attacks of its accuracy"]
