"""Sweeps: the product of values trained in turn, a table as they come, nothing run twice, faults said first."""

import csv
import json
from pathlib import Path

import pytest

from commands import Command

SMALL = ("digits/plain", "epochs=1", "sampler.batch=224", "model.trunk.hidden=16", "model.trunk.dim=8")


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_sweep_trains_each_value_and_skips_what_is_finished(command: Command, suite: Path, tmp_path: Path) -> None:
    done = command("sweep", *SMALL, "seed=0,1", "-o", "s")
    assert done.code == 0, done.err
    assert done.out.strip() == "s/sweep.csv"
    assert "s: 2 runs of digits/plain, 0 finished before" in done.err and "2/2  seed1: R@1" in done.err
    rows = table(tmp_path / "s")
    assert [(row["run"], row["seed"]) for row in rows] == [("seed0", "0"), ("seed1", "1")]
    facts = json.loads((tmp_path / "s" / "seed1" / "run.json").read_text())
    assert facts["seed"] == 1 and facts["command"].endswith("model.trunk.dim=8 seed=1"), "each run says how it was made"
    weights = {path: path.stat().st_mtime_ns for path in tmp_path.glob("s/*/model.safetensors")}

    again = command("sweep", *SMALL, "seed=0,1", "--evaluate", suite, "-o", "s")
    assert "2 runs of digits/plain, 2 finished before" in again.err and "1/2  seed0 (finished before)" in again.err
    assert weights == {path: path.stat().st_mtime_ns for path in tmp_path.glob("s/*/model.safetensors")}
    attacked = table(tmp_path / "s")
    assert [row["R@1"] for row in attacked] == [row["R@1"] for row in rows] == [row["clean R@1"] for row in attacked]
    assert {"ES:R 0.1", "ES:R 0.2", "CA+ 0.2"} <= set(attacked[0])

    (tmp_path / "s" / "seed0" / "results.jsonl").unlink()
    anew = command("sweep", *SMALL, "seed=0,1", "--evaluate", suite, "-o", "s")
    assert anew.code == 0, anew.err
    first, second = table(tmp_path / "s")
    assert (first["R@1"], first["ES:R 0.2"], second) == ("", attacked[0]["ES:R 0.2"], attacked[1])


def test_a_sweep_is_attacked_on_as_many_queries_as_are_asked_for(command: Command, suite: Path, tmp_path: Path) -> None:
    options = ("--evaluate", suite, "--queries", 12, "--batch", 5, "--search", "tf32")
    assert command("sweep", *SMALL, "seed=0,1", *options, "-o", "s").code == 0
    for path in tmp_path.glob("s/*/results.jsonl"):
        found = [json.loads(line) for line in path.read_text().splitlines()]
        attacked = [record for record in found if record["kind"] == "attack"]
        assert attacked and all((r["count"], r["settings"]["batch"]) == (12, 5) for r in attacked)


def test_a_sweep_is_attacked_at_the_radius_that_is_asked_for(command: Command, suite: Path, tmp_path: Path) -> None:
    for radius in ("3/255", "0.05"):
        assert command("sweep", *SMALL, "seed=0,1", "--evaluate", suite, "--radius", radius, "-o", "s").code == 0
    found = [json.loads(line) for line in (tmp_path / "s" / "seed0" / "results.jsonl").read_text().splitlines()]
    radii = sorted({record["settings"]["radius"] for record in found if record["kind"] == "attack"})
    assert radii == pytest.approx([3 / 255, 0.05]), "none of the suite's own, and the second sweep adds to the first"


def test_options_of_an_evaluation_without_a_suite_are_refused_before_any_training(
    command: Command, tmp_path: Path
) -> None:
    for option in (("--radius", "0.1"), ("--queries", 12), ("--search", "tf32")):
        error = command("sweep", *SMALL, "seed=0,1", *option, "-o", "s").error
        assert "expected --evaluate SUITE with them" in error and not (tmp_path / "s").exists()


def test_a_run_that_was_stopped_goes_on(command: Command, tmp_path: Path) -> None:
    longer = (SMALL[0], "epochs=2", *SMALL[2:])
    assert command("train", *longer, "seed=0", "-o", "whole").code == 0
    whole = (tmp_path / "whole" / "model.safetensors").read_bytes()
    # One epoch of two is done and its state saved; the weights are not written yet.
    begun = tmp_path / "s" / "seed0"
    assert command("train", *SMALL, "seed=0", "-o", begun).code == 0
    (begun / "model.safetensors").unlink()
    (begun / "recipe.yaml").write_text((begun / "recipe.yaml").read_text().replace("epochs: 1", "epochs: 2"))
    done = command("sweep", *longer, "seed=0,1", "-o", "s")
    assert done.code == 0 and "2 runs of digits/plain, 0 finished before" in done.err
    assert (begun / "model.safetensors").read_bytes() == whole
    epochs = [json.loads(line)["kind"] for line in (begun / "results.jsonl").read_text().splitlines()]
    assert epochs.count("train") == 2, "the first epoch is not trained again"
    assert len(table(tmp_path / "s")) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits/plain", "epocs=1,2"], "'epocs' is not a setting of a recipe; did you mean 'epochs'"),
        (["digits/plain", "seed=0,x"], "seed 'x'"),
        (["digits/plain", "sampler.batch=8,7"], "an odd batch of 7 images"),
        (["digits/plain", "seed=0"], "nothing varies; expected a setting with values"),
        (["digits/plain", "seed=0,1", "--evaluate", "ers22"], "'ers22' is no file and no suite"),
        (["digits/plain", "seed=0,1", "--evaluate", "ers224", "--search", "tf23"], "search 'tf23' is not known"),
        (
            ["digits/plain", "seed=0,1", "--evaluate", "clustering", "--search", "tf32"],
            "suite clustering searches in fp32 or bf16, not in tf32",
        ),
        (
            ["digits/plain", "seed=0,1", "--evaluate", "clustering", "--search", "fp16"],
            "suite clustering searches in fp32 or bf16, not in fp16",
        ),
        (
            ["digits/plain", "seed=0,1", "--evaluate", "demo", "--search", "bf16"],
            "suite demo searches in fp32, tf32 or fp16, not in bf16",
        ),
        (["digits/classifier", "model.classes=10,4"], "a classifier of 4 classes"),
        (["tabular/digits-arml", "seed=0,1"], "run `robustmetric certify"),
    ],
)
def test_a_fault_of_any_run_is_said_before_the_first(
    words: list[str], message: str, command: Command, tmp_path: Path
) -> None:
    assert message in command("sweep", *words).error
    assert not (tmp_path / "runs").exists()


def test_a_folder_of_other_settings_is_refused(command: Command, tmp_path: Path) -> None:
    assert command("sweep", *SMALL, "seed=0,1", "-o", "s").code == 0
    error = command("sweep", SMALL[0], "epochs=2", *SMALL[2:], "seed=0,1", "-o", "s").error
    assert "seed0 was made with other settings for 'epochs'; expected the same ones" in error
