"""Training classifiers: validated by accuracy, resumed to the same weights, refused on classes that do not fit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robustmetric import records
from robustmetric.errors import InputError
from robustmetric.jobs.hurry import hurry
from robustmetric.jobs.train import train
from robustmetric.jobs.workers import Hardware

CPU = Hardware(accelerator="cpu")


def validations(folder: Path) -> list[records.Record]:
    return [record for record in records.read(folder / "results.jsonl") if record.kind == "validation"]


def test_a_classifier_is_validated_by_the_accuracy_of_its_logits(tmp_path: Path) -> None:
    folder = train("digits/classifier", ["epochs=6", "validate_every=3"], tmp_path / "run", hardware=CPU)
    first, last = validations(folder)
    assert (first.settings["epoch"], last.settings["epoch"]) == (3, 6) and last.count == 540
    assert 80 < first.scores["accuracy"] < last.scores["accuracy"] <= 100
    # Neither a search nor a collapse: logits have no unit length.
    assert not {"R@1", "mean_cosine"} & set(last.scores)
    low, high = last.intervals["accuracy"]
    assert low <= last.scores["accuracy"] <= high
    assert '"collapsed": false' in (folder / "run.json").read_text()


@pytest.mark.parametrize("row", ["classifier_madry", "classifier_scattering", "classifier_random_target"])
def test_a_defended_classifier_resumes_to_the_same_weights(row: str, tmp_path: Path) -> None:
    quick = ["sampler.batch=200", "checkpoint_seconds=0", "defence.attack.steps=1"]
    whole = train(f"digits/{row}", ["epochs=3", *quick], tmp_path / "whole", hardware=CPU)
    part = train(f"digits/{row}", ["epochs=2", *quick], tmp_path / "part", hardware=CPU)
    train(f"digits/{row}", ["epochs=3", *quick], part, resume=True, hardware=CPU)
    assert (whole / "model.safetensors").read_bytes() == (part / "model.safetensors").read_bytes()
    assert validations(part)[-1].scores == validations(whole)[-1].scores


def test_the_plan_s_figures_are_in_every_epoch_s_record(tmp_path: Path) -> None:
    changes, hardware = hurry(["epochs=1", "sampler.batch=100"], CPU)
    folder = train("digits/classifier_scattering", changes, tmp_path / "run", hardware=hardware)
    (epoch,) = [record for record in records.read(folder / "results.jsonl") if record.name == "epoch"]
    assert 0 < epoch.scores["own"] <= epoch.scores["own_class"] <= 1 + 1e-6 and "scattered" in epoch.scores


def test_a_training_in_bfloat16_on_a_cpu_learns_what_one_in_float32_does(tmp_path: Path) -> None:
    seen = []
    for precision in ("32-true", "bf16-mixed"):
        changes = ["epochs=4", "attack_view=fast", "defence.attack.steps=2"]
        hardware = replace(CPU, precision=precision)
        folder = train("digits/classifier_madry", changes, tmp_path / precision, hardware=hardware)
        seen.append(validations(folder)[-1].scores["accuracy"])
    assert min(seen) > 85 and abs(seen[0] - seen[1]) < 3


def test_a_transport_of_nan_stops_the_training_in_one_line(tmp_path: Path) -> None:
    changes = ["epochs=1", "sampler.batch=200", "defence.matching.name=own_parts.Lost"]
    with pytest.raises(InputError, match=r"^the loss became NaN or infinite at epoch 1, step 1; .*$"):
        train("digits/classifier_scattering", changes, tmp_path / "run", hardware=CPU)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.classes=7", "a classifier of 7 classes cannot learn the 10 of digits; set model.classes=10"),
        ("data.closed=false model.classes=5", "digits is tested on classes that it is not trained on"),
    ],
)
def test_classes_that_do_not_fit_are_refused_before_anything_is_written(
    change: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        train("digits/classifier", change.split(), tmp_path / "run", hardware=CPU)
    assert not (tmp_path / "run").exists()


DEFENCES = {
    "noise": "{name: noise, loss: {name: cross_entropy}, sigma: 0.1}",
    "one_step": "{name: one_step, loss: {name: cross_entropy}, ball: {name: ball, radius: 0.1}}",
    "mixup": "{name: mixup, loss: {name: cross_entropy}}",
    "trades": "{name: trades, loss: {name: cross_entropy}, attack: ATTACK, weight: 0.1}",
    "iat": "{name: iat, loss: {name: cross_entropy}, attack: ATTACK, objective: label}",
}
"""Defences of metric models that train a classifier as they are: their loss sees logits in place of embeddings."""


@pytest.mark.parametrize("name", DEFENCES)
def test_other_defences_train_a_classifier_as_they_are(name: str, tmp_path: Path) -> None:
    attack = "{name: pgd, ball: {name: ball, radius: 0.05}, steps: 2, step_size: 0.03}"
    defence = DEFENCES[name].replace("ATTACK", attack)
    own = tmp_path / "own.yaml"
    own.write_text(f"base: {Path(__file__).parents[2] / 'recipes/digits/classifier.yaml'}\ndefence: {defence}\n")
    folder = train(str(own), ["epochs=4"], tmp_path / "run", hardware=CPU)
    assert validations(folder)[-1].scores["accuracy"] > 70
    assert torch.load(folder / "state.pt", weights_only=True)["epoch"] == 4
