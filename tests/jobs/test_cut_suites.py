"""Rows of the ledger of suites about clustering that did not come to their end."""

from dataclasses import replace
from pathlib import Path

from clustering_runs import READINGS, run, trial
from robustmetric import records
from robustmetric.jobs.ledger import read_row
from robustmetric.report.clustering_rows import table
from robustmetric.report.ledger import faults


def cut(path: Path, suite: str, *kept: str) -> Path:
    """The run as an evaluation leaves it that was cut after these attacks: without the others, and the strongest."""
    found = records.read(path / "results.jsonl")
    (path / "results.jsonl").unlink()
    for record in found:
        if record.settings.get("suite") != suite or record.settings["trial"] in ("clean", *kept):
            records.append(path / "results.jsonl", record)
    return path


def test_a_suite_that_was_cut_counts_with_the_attacks_that_were_run(tmp_path: Path) -> None:
    whole = read_row(run(tmp_path / "whole"))["clustering"]
    assert whole["adaptive"]["attacks"] == ["margin", "joint margin"] and whole["adaptive"]["of"] == 17
    assert "of" not in whole["pgd10"], "that suite is of one attack"
    row = read_row(cut(run(tmp_path / "cut"), "clustering_adaptive", "margin"))
    assert faults(row) == []
    block, vote = row["clustering"]["adaptive"], READINGS.index("V1, C1")
    assert block["R@1"] == 9 + vote and block["query only"]["R@1"] == 10 + vote and "by" not in block
    assert (block["attacks"], block["of"]) == (["margin"], 17)
    assert row["clustering"]["readings"]["member 2"]["adaptive"] == {"R@1": 10.0, "NMI": 20.0, "F1": 2.5}
    both = {**row, "seed": 1, "clustering": {**row["clustering"], "adaptive": whole["adaptive"]}}
    assert "(1 of 17 attacks) |" in table("cars", [row, both]), "of several seeds the fewest"
    nothing = read_row(cut(run(tmp_path / "nothing"), "clustering_adaptive"))
    assert "adaptive" not in nothing["clustering"] and "attacks)" not in table("cars", [nothing])


def test_a_transfer_is_one_attack_of_its_suite_whatever_its_source(tmp_path: Path) -> None:
    path = run(tmp_path / "run", "cars/eat_at", alone=True)
    for source, recall in (("a", 3.0), ("b", 5.0)):
        shared = {
            "queries": 8131,
            "gallery": 8131,
            "weights": "ab" * 8,
            "batch": 128,
            "data": "cars",
            "precision": "fp32",
        }
        name = f"transferred shift from {source}"
        for record in trial("clustering_adaptive", name, recall, "alone", shared, surrogate_weights=source):
            records.append(path / "results.jsonl", record)
    block = read_row(path)["clustering"]["adaptive"]
    # Two of the suite's own, and one of its transfers from two sources: 14 of the 17 are left.
    assert block["R@1"] == 3.0 and block["by"]["R@1"] == "transferred shift from a"
    assert len(block["attacks"]) == 4 and block["of"] == 4 + 14


def test_of_two_ways_to_evaluate_that_with_more_attacks_counts(tmp_path: Path) -> None:
    path = run(tmp_path / "run", "cars/eat_at", alone=True)
    for record in records.read(path / "results.jsonl"):
        if record.settings.get("suite") == "clustering_adaptive" and record.settings["trial"] in ("clean", "margin"):
            worse = {score: value / 2 for score, value in record.scores.items()}
            records.append(
                path / "results.jsonl", replace(record, scores=worse, settings={**record.settings, "batch": 64})
            )
    assert read_row(path)["clustering"]["adaptive"]["R@1"] == 4.0
