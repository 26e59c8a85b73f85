"""Verify: a row measured again from its weights agrees, one that was changed does not; what cannot be done is said."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import Command
from robustmetric import records
from robustmetric.data.base import data_root
from robustmetric.errors import InputError
from robustmetric.jobs.assemble import without_pretrained
from robustmetric.jobs.ledger import fingerprint_of, write_rows
from robustmetric.jobs.target import evaluate
from robustmetric.jobs.train import train
from robustmetric.jobs.verify import verify
from robustmetric.jobs.workers import Hardware
from robustmetric.jobs.zoo import keep

ROOT = Path(__file__).parents[2]
TABULAR = ROOT / "results" / "tabular" / "digits-euclidean-seed0.json"
ID = "digits-convnet-plain_m-seed0"
SMALL = ["epochs=30", "sampler.batch=224", "model.trunk.hidden=16", "model.trunk.dim=8"]
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its row in results/digits and its copy in zoo/: as `train`, `evaluate`, `ledger`, `export --zoo` do it."""
    home = tmp_path_factory.mktemp("project")
    run = train("digits/plain", SMALL, home / "run", hardware=Hardware(accelerator="cpu"))
    evaluate(str(run), "ers_sketch224", hardware=Hardware(accelerator="cpu"))
    (row,) = write_rows([run], home / "results" / "digits")
    assert row.stem == ID
    keep(run, home / "zoo")
    return home


@pytest.fixture
def changed(project: Path, tmp_path: Path) -> Callable[[Change], Path]:
    """The project elsewhere, with a change made to its row."""

    def make(change: Change) -> Path:
        home = shutil.copytree(project, tmp_path / "copy")
        path = home / "results" / "digits" / f"{ID}.json"
        row = json.loads(path.read_text())
        change(row)
        path.write_text(json.dumps(row))
        return path

    return make


def row_of(project: Path) -> Path:
    return project / "results" / "digits" / f"{ID}.json"


def test_a_true_row_agrees_on_all_queries_and_on_a_sample(project: Path, command: Command) -> None:
    whole = command("verify", row_of(project), "--device", "cpu")
    assert whole.code == 0, whole.out
    assert f"{ID}.safetensors, 896 of 896 queries, CPU" in whole.out
    lines = {line.split()[0]: line for line in whole.out.splitlines()}
    assert {"R@1", "mAP", "NMI", "probe", "ES:D", "ES:R", "GTM"} <= set(lines) and "all " in whole.out
    assert all("agrees" in lines[score] for score in ("R@1", "NMI", "ES:R"))
    assert "not measured again" not in whole.out
    few = command("verify", row_of(project), "--queries", 16, "--attack", "GTM", "--device", "cpu")
    assert few.code == 0 and "not measured again: ES:D, ES:R" in few.out
    part = command("verify", row_of(project), "--queries", 32, "--attack", "GTM", "--device", "cpu", "--json")
    found = {check["name"]: check for check in map(json.loads, part.out.splitlines())}
    assert part.code == 0 and "ES:R" not in found and found["GTM"]["count"] == 32
    low, high = found["R@1"]["interval"]
    assert high - low > 10, "32 queries tell R@1 to some 10 points"
    assert found["NMI"]["count"] == 896, "clusters are of the whole gallery"


def test_the_weights_themselves_give_the_recorded_numbers(project: Path) -> None:
    found = verify(row_of(project), model=project / "run", device="cpu")
    assert found.differing == [] and found.left_out == ()
    assert all(check.found == pytest.approx(check.recorded, abs=2e-3) for check in found.checks)


@pytest.mark.parametrize(
    ("block", "score", "by"), [("clean", "R@1", -1.0), ("clean", "mAP", 1.0), ("ES", "ES:D", 0.03)]
)
def test_a_changed_number_is_found_on_all_queries(
    block: str, score: str, by: float, changed: Callable[[Change], Path], command: Command
) -> None:
    def change(row: dict[str, Any]) -> None:
        scores = row["clean"] if block == "clean" else row["attacks"]["fixed"]
        scores[score] += by

    done = command("verify", changed(change), "--device", "cpu", "--attack", "ES")
    assert done.code == 1
    assert done.out.splitlines()[-1].endswith(f"differ: {score}")
    assert [line.split()[0] for line in done.out.splitlines() if line.endswith("DIFFERS")] == [score]


def test_a_number_far_off_is_found_on_a_sample(changed: Callable[[Change], Path], command: Command) -> None:
    path = changed(lambda row: row["clean"].update({"R@1": 40.0}))
    done = command("verify", path, "--device", "cpu", "--queries", 64, "--attack", "GTM")
    assert done.code == 1 and done.out.splitlines()[-1].endswith("differ: R@1")


def test_the_copy_of_a_run_is_exported_under_the_id_of_its_row(project: Path, command: Command, tmp_path: Path) -> None:
    done = command("export", project / "run", "--zoo", "zoo")
    assert done.code == 0 and done.out.strip() == f"zoo/{ID}.safetensors"
    assert (tmp_path / done.out.strip()).read_bytes() == (project / "zoo" / f"{ID}.safetensors").read_bytes()


def test_the_accuracy_of_a_classifier_is_verified_and_the_rest_named(tmp_path: Path) -> None:
    settings = ["epochs=1", "sampler.batch=64"]
    run = train("digits/classifier", settings, tmp_path / "run", hardware=Hardware(accelerator="cpu"))
    (seen,) = [record for record in records.read(run / "results.jsonl") if record.kind == "validation"]
    row = {
        "id": "digits-convnet-plain-classifier-seed0", "data": "digits", "model": "convnet", "defence": "plain",
        "recipe": "recipes/digits/classifier.yaml", "commit": "abc", "hardware": "CPU, 1 threads", "seed": 0,
        "command": f"robustmetric train digits/classifier {' '.join(settings)} && robustmetric evaluate runs/run "
        "classification",
        "protocol": "classifier", "queries": seen.count, "clean": {"accuracy": seen.scores["accuracy"]},
        "weights_sha256": fingerprint_of(run / "model.safetensors"), "masking": {
            "verdict": "honest", "checks": {"restarts": "pass"}, "radius": 0.1, "images": 16,
        },
    }  # fmt: skip
    path = tmp_path / f"{row['id']}.json"
    path.write_text(json.dumps(row))
    found = verify(path, model=run, device="cpu")
    assert [(check.name, check.agrees) for check in found.checks] == [("accuracy", True)]
    assert found.checks[0].found == pytest.approx(seen.scores["accuracy"]) and found.left_out == (
        "masking (no command of the row measures it by a suite we ship)",
    )
    with pytest.raises(InputError, match="has no attack that can be run again; leave out --attack ES"):
        verify(path, model=run, device="cpu", attacks=["ES"])


def test_what_cannot_be_verified_is_said(project: Path, changed: Callable[[Change], Path], command: Command) -> None:
    path = row_of(project)
    assert "'XX' is no attack of ers_sketch224" in command("verify", path, "--attack", "XX").error
    assert "8 queries of the 896" in command("verify", path, "--queries", 8).error
    assert "expected from 16 to 896" in command("verify", path, "--queries", 900).error
    assert "verify them one by one" in command("verify", path, path, "--model", "x").error
    assert "gone.json does not exist; expected a row of the ledger" in command("verify", "gone.json").error
    assert "cannot be read as JSON" in command("verify", project / "zoo" / f"{ID}.safetensors").error
    other = changed(lambda row: row.update({"weights_sha256": "0" * 64}))
    assert f"has other weights ({json.loads(path.read_text())['weights_sha256'][:16]}) than row {ID} (0000" in (
        command("verify", other).error
    )
    (other.parents[2] / "zoo" / f"{ID}.safetensors").unlink()
    assert "does not exist; expected a copy of the row's weights there, or --model" in command("verify", other).error
    shutil.copy(path, other.with_stem("other"))
    assert "is not the name of the file" in command("verify", other.with_stem("other")).error


def test_a_certified_row_is_certified_anew(command: Command, tmp_path: Path) -> None:
    done = command("verify", TABULAR, "--queries", 50)
    assert done.code == 0 and "fitted anew, 50 of 540 points" in done.out and "all 24 agree" in done.out
    assert "not measured again: area and mean radius" in done.out
    row = json.loads(TABULAR.read_text())
    row["certified"][0]["error"][2] += 0.6
    row["empirical"][0]["error"][3] -= 2.2
    row["empirical"][1]["mean_radius"] += 0.022
    false = tmp_path / TABULAR.name
    false.write_text(json.dumps(row))
    done = command("verify", false)
    assert done.code == 1 and "540 of 540 points" in done.out and "not measured again" not in done.out
    wrong = ("1-NN exact, error at 0.4", "1-NN attacked, greedy, error at 0.6", "11-NN attacked, greedy, mean radius")
    assert f"3 of 32 differ: {', '.join(wrong)}" in done.out
    assert "leave out --model and --attack" in command("verify", false, "--attack", "ES").error


def test_pretrained_files_are_not_needed_but_what_they_say_of_pixels_is_kept() -> None:
    member = {"name": "backbone", "architecture": "resnet18", "weights": "a.pth"}
    packaged = {"name": "backbone", "architecture": "efficientnet_lite0", "weights": "package"}
    bare = {"name": "backbone", "architecture": "resnet18"}
    own = {"name": "company.build", "weights": "a.pth"}
    by_path = {"name": "robustmetric.models.backbone.encoder", "architecture": "resnet18", "weights": "a.pth"}
    assert "weights" not in without_pretrained({"model": by_path})["model"]
    found = without_pretrained({"seed": 0, "model": {"members": [member, packaged, own], "dim": 4}})
    assert found == {"seed": 0, "model": {"members": [bare, packaged, own], "dim": 4}}


@pytest.mark.data
def test_a_copy_of_the_zoo_verifies_its_row() -> None:
    if not sorted(data_root(None).glob("cub-200-2011*.zip")):
        pytest.skip("no cub-200-2011*.zip under ROBUSTMETRIC_DATA")
    name = "cub-mobilenet_v2-act-eta8-short-seed0"
    found = verify(ROOT / "results" / "cub" / f"{name}.json", queries=16, attacks=["GTM"])
    assert found.differing == [] and found.asked == 16
    with pytest.raises(InputError, match="has other weights"):
        verify(
            ROOT / "results" / "cub" / f"{name}.json", model=ROOT / "zoo" / "cub-mobilenet_v2-plain-seed0.safetensors"
        )
