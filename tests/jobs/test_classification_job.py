"""A classifier from recipe to ledger row by the command line: train, evaluate, resume, transfer, report."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from commands import Command
from robustmetric import records
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.compare import compare
from robustmetric.jobs.evaluate import run_suite
from robustmetric.jobs.ledger import read_row
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.target import find_target
from robustmetric.jobs.train import train
from robustmetric.jobs.workers import Workers
from robustmetric.records import Record
from robustmetric.report.comparison import comparison
from robustmetric.report.ledger import faults

SHORT = """
rounded: false
engine: {ball: {name: ball, radius: 0.08}}
survivors: {AutoAttack: [APGD-CE, APGD-T, FAB-T, Square]}
attacks:
  PGD: {attack: {name: misclassify, loss: cross_entropy}, engine: {name: pgd, steps: 3, step_size: 0.04}, repeats: 2}
  Feature match: {attack: {name: feature_match, targets: 3}, engine: {name: pgd, steps: 3, step_size: 0.04, keep: best}}
  RayS: {attack: {name: misclassify, loss: margin}, engine: {name: rays, queries: 30}}
  APGD-CE: {attack: {name: misclassify, loss: cross_entropy}, engine: {name: apgd, steps: 5, goal: 1e4}}
  APGD-T: {attack: {name: misclassify_towards, loss: dlr, targets: 2}, engine: {name: apgd, steps: 5, goal: 1e4}}
  FAB-T: {attack: {name: misclassify_towards, loss: margin, targets: 2}, engine: {name: fab, steps: 5}}
  Square: {attack: {name: misclassify, loss: margin}, engine: {name: square, queries: 30, goal: 0}}
"""
NAMES = ["PGD", "Feature match", "RayS", "APGD-CE", "APGD-T", "FAB-T", "Square"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of digits/classifier that differ in their seed."""
    folder = tmp_path_factory.mktemp("classifiers")
    for seed in (0, 1):
        train("digits/classifier", ["epochs=4", f"seed={seed}"], folder / f"seed{seed}")
    return folder


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    """One of them, to write into."""
    return Path(shutil.copytree(runs / "seed0", tmp_path / "run"))


@pytest.fixture
def short(tmp_path: Path) -> Path:
    path = tmp_path / "classification.yaml"
    path.write_text(SHORT)
    return path


def measured(run: Path) -> dict[str, Record]:
    kinds = ("clean", "attack", "worst_case")
    return {r.name: r for r in records.latest(records.read(run / "results.jsonl")) if r.kind in kinds}


def test_training_is_validated_by_accuracy(runs: Path) -> None:
    (found,) = [r for r in records.read(runs / "seed0" / "results.jsonl") if r.kind == "validation"]
    assert found.scores["accuracy"] > 60 and "R@1" not in found.scores


def test_evaluate_resume_and_what_a_resume_needs(run: Path, short: Path, command: Command) -> None:
    words = ("evaluate", run, short, "--queries", 16, "--batch", 8)
    first = command(*words)
    assert first.code == 0 and "AutoAttack at 0.08: accuracy" in first.err and "worst case at 0.08" in first.err
    found = measured(run)
    assert list(found) == ["clean", *NAMES, "AutoAttack", "worst case"]
    standing = found["APGD-T"].settings["standing"]
    left = f"accuracy {found['APGD-T'].scores['accuracy']:.4g} (on the {standing} of 16 still right)\n"
    assert f"  then APGD-T at 0.08: {left}" in first.err
    assert "  APGD-CE at 0.08: accuracy" in first.err and "then RayS" not in first.err
    accuracies = {name: record.scores["accuracy"] for name, record in found.items()}
    assert all(record.count == 16 and record.intervals["accuracy"] for record in found.values())
    assert min(accuracies.values()) == accuracies["worst case"] <= accuracies["AutoAttack"] == accuracies["Square"]
    # Rows that are lost are 0 from then on, so the order above holds by itself; that something was lost does not.
    lost = found["AutoAttack"].context["lost_first_to"]
    assert lost["APGD-CE"] > 0 and sum(lost.values()) == (accuracies["clean"] - accuracies["AutoAttack"]) * 16 / 100
    assert accuracies["AutoAttack"] < accuracies["clean"] and found["PGD"].settings["rounded"] is False
    assert found["PGD"].scores["lowest run"] >= accuracies["PGD"] and len(found["PGD"].context["runs"]) == 2

    again = command(*words)
    assert "nothing to do" in again.err and measured(run) == found

    # A crash after APGD-T: what came later is done again, from the outcomes that were kept.
    lines = (run / "results.jsonl").read_text().splitlines(keepends=True)
    (run / "results.jsonl").write_text("".join(lines[:-4]))
    rest = command(*words)
    assert "FAB-T" in rest.err and "APGD-T at" not in rest.err
    assert {name: record.scores for name, record in measured(run).items()} == {n: r.scores for n, r in found.items()}

    # Without the outcomes of each image nobody knows who is left: everything is measured again, to the same end.
    shutil.rmtree(run / "queries")
    whole = command(*words)
    assert all(f"{name} at 0.08" in whole.err for name in NAMES)
    assert {name: record.scores for name, record in measured(run).items()} == {n: r.scores for n, r in found.items()}


@pytest.mark.parametrize(
    ("name", "idle"),
    [
        ("autoattack", "the other 3: APGD-T, FAB-T, Square"),
        # Its Square attacks all images.
        ("classification", "the other 2: APGD-T, FAB-T"),
    ],
)
def test_a_shipped_suite_runs_and_leaves_nothing_at_a_radius_beyond_all_digits(
    name: str, idle: str, run: Path, command: Command
) -> None:
    made = command("evaluate", run, name, "--queries", 2, "--radius", 0.9)
    assert made.code == 0 and "of 2 still right)" not in made.err
    assert made.err.count(f"nothing is left at 0.9 for {idle}\n") == 1
    found = measured(run)
    assert found["AutoAttack"].scores["accuracy"] == found["worst case"].scores["accuracy"] == 0
    assert found["APGD-T"].settings["standing"] == 0 and "targets=9" in found["APGD-T"].settings["attack"]


def test_auto_rank_runs_on_a_retrieval_run(trained: Path, tmp_path: Path, command: Command) -> None:
    run = shutil.copytree(trained, tmp_path / "plain")
    assert command("evaluate", run, "auto_rank", "--queries", 4, "--radius", 0.9).code == 0
    found = measured(Path(run))
    assert sum(found["AutoRank"].context["lost_first_to"].values()) > 0
    assert found["AutoRank"].scores["R@1"] == found["RayS"].scores["R@1"] <= found["APGD-ES"].scores["R@1"]
    assert found["AutoRank"].scores["R@1"] < found["clean"].scores["R@1"]


def test_transfer_needs_a_source_and_hits_itself_hardest(runs: Path, run: Path, command: Command) -> None:
    words = ("evaluate", run, "transfer", "--queries", 40, "--radius", 0.1)
    assert "name a run folder with --surrogate RUN" in command(*words).error
    assert command(*words, "--surrogate", runs / "seed1").code == 0
    found = {name: record.scores["accuracy"] for name, record in measured(run).items()}
    # From itself: below the command, which refuses that.
    target = find_target(str(run), data=None, out=None)
    arena = Arena.prepare(target.model, target.dataset, target.view, Workers(torch.device("cpu")), limit=40)
    own = load_suite("transfer", 0.1, surrogate=str(runs / "seed0"))
    found |= {record.name: record.scores["accuracy"] for record, _ in run_suite(arena, own, 0, {})}
    assert found["PGD-100 from seed0"] < found["PGD-100 from seed1"] <= found["clean"]
    assert (
        "no attack asks for a surrogate" in command("evaluate", run, "autoattack", "--surrogate", runs / "seed1").error
    )


def test_a_surrogate_of_another_kind_is_refused(run: Path, trained: Path, command: Command) -> None:
    refused = command("evaluate", run, "transfer", "--queries", 4, "--surrogate", trained)
    assert refused.code == 2 and "is no classifier of the target's 10 classes" in refused.err


def test_a_suite_of_rankings_is_refused_to_a_classifier(run: Path, command: Command) -> None:
    for suite in ("demo", "clustering"):
        assert "the model is a classifier" in command("evaluate", run, suite, "--queries", 4).error


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("rounded: maybe", "rounded 'maybe' is not known"),
        ("survivors: [APGD-CE]", "are no lists of attacks under names"),
        ("survivors: {all: [PDG]}", "'PDG' is no attack of the suite"),
    ],
)
def test_a_suite_with_a_wrong_setting_is_refused(
    change: str, words: str, run: Path, short: Path, command: Command
) -> None:
    kept = [line for line in SHORT.splitlines() if line.partition(":")[0] != change.partition(":")[0]]
    short.write_text("\n".join([*kept, change]))
    assert words in command("evaluate", run, short).error


def test_a_finished_run_becomes_a_row_a_table_and_a_page(
    runs: Path, run: Path, short: Path, tmp_path: Path, command: Command
) -> None:
    spec = (run / "recipe.yaml").read_text().replace("epochs: 4", "epochs: 20")
    (run / "recipe.yaml").write_text(spec)  # The protocol of digits' classifiers, were it trained to its end.
    assert command("evaluate", run, short, "--batch", 540, "--radius", "0.1").code == 0
    row = read_row(run)
    assert faults(row) == [] and row["protocol"] == "classifier" and row["queries"] == 540
    block, found = row["classification"], measured(run)
    assert row["clean"] == {"accuracy": round(found["clean"].scores["accuracy"], 4)} and block["radius"] == 0.1
    assert block["accuracy"] == {n: round(found[n].scores["accuracy"], 4) for n in [*NAMES, "AutoAttack", "worst case"]}
    assert set(block["lowest run"]) == {"PGD"} and row["defence"] == "plain" and row["cost_fe"] == 3.0
    assert faults({**row, "classification": {**block, "accuracy": {"PGD": 1.0, "worst case": 2.0}}}) == [
        "classification: PGD below the worst case"
    ]
    assert faults({**row, "classification": {"accuracy": {}}}) == ["classification has no norm and radius"]

    results = tmp_path / "digits"
    results.mkdir()
    (results / f"{row['id']}.json").write_text(json.dumps(row))
    table = comparison(results)
    assert f"| `plain` | 0 | {found['clean'].scores['accuracy']:.1f} |" in table and "**worst case**" in table

    assert command("report", run, "-o", tmp_path / "page").code == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert "How easily can this classifier be fooled?" in page and "under the worst of 7 attacks for each image" in page


def test_two_classifiers_are_compared_image_by_image(runs: Path, short: Path, tmp_path: Path, command: Command) -> None:
    folders = [Path(shutil.copytree(runs / f"seed{seed}", tmp_path / f"seed{seed}")) for seed in (0, 1)]
    for folder in folders:
        assert command("evaluate", folder, short, "--queries", 16).code == 0
    found = {difference.title: difference for difference in compare(*folders)}
    assert {"accuracy", "AutoAttack accuracy at 0.08", "worst case accuracy at 0.08"} <= set(found)
    worst = [measured(folder)["worst case"].scores["accuracy"] for folder in folders]
    assert [found["worst case accuracy at 0.08"].first, found["worst case accuracy at 0.08"].second] == worst
