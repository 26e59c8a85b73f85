"""What a run says of its making, and what a training tells its defence."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from robustmetric import recipe, records
from robustmetric.defences.plain import Plain
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.folder import RunFolder, summarise
from robustmetric.jobs.origin import Typed, differing, origin, typed
from robustmetric.jobs.train import fit
from robustmetric.jobs.workers import Hardware
from robustmetric.losses.triplet import Triplet
from robustmetric.types import Batch


def test_a_shipped_recipe_goes_by_its_short_name() -> None:
    where = str(recipe.shelf() / "cub" / "act.yaml")
    said = origin(where, ["seed=1", "data.file=a b", "--precision", "bf16-mixed"])
    assert said["recipe_file"] == "recipes/cub/act.yaml"
    assert said["command"] == "robustmetric train cub/act seed=1 'data.file=a b' --precision bf16-mixed"


def test_a_recipe_of_ones_own_keeps_its_path(tmp_path: Path) -> None:
    said = origin("mine/own.yaml", [], "certify")
    assert said == {"recipe_file": "mine/own.yaml", "command": "robustmetric certify mine/own.yaml"}


def test_only_hardware_that_differs_is_named() -> None:
    assert differing(Hardware()) == []
    assert differing(Hardware(devices="2", strategy="ddp")) == ["--devices", "2", "--strategy", "ddp"]


def test_a_run_folder_says_how_it_was_made(trained: Path) -> None:
    facts = json.loads((trained / "run.json").read_text())
    assert (facts["recipe_file"], facts["command"]) == (
        "recipes/digits/plain.yaml",
        "robustmetric train digits/plain epochs=1",
    )


def test_what_was_typed_is_read_back() -> None:
    said = origin(str(recipe.shelf() / "cub" / "act.yaml"), ["seed=1", "data.file=a b", "--precision", "bf16-mixed"])
    train, test = typed(f"{said['command']} && robustmetric evaluate runs/act ers224 --queries 1000 --fast")
    assert train == Typed("train", "cub/act", ["seed=1", "data.file=a b"], {"precision": "bf16-mixed"})
    assert test == Typed("evaluate", "runs/act", ["ers224"], {"queries": "1000", "fast": ""})
    (fast,) = typed("robustmetric train cub/act --fast seed=1")
    assert (fast.words, fast.options) == (["seed=1"], {"fast": ""}), "a flag takes no override for its value"
    with pytest.raises(InputError, match="cannot be read; expected `robustmetric JOB TARGET"):
        typed("make demo")


class Listening(Plain):
    """Plain training that keeps what it is told of the progress."""

    def __init__(self) -> None:
        super().__init__(Triplet())
        self.told: list[float] = []

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        self.told.append(self.progress)
        return super().forward(model, batch, generator)


def test_a_defence_is_told_how_far_the_training_is(tmp_path: Path) -> None:
    spec, where = assemble.resolve("digits/plain", ["epochs=2"])
    plan, dataset = assemble.load_plan(spec, where)
    defence, folder, context = Listening(), RunFolder(tmp_path / "run"), records.context("a CPU")
    folder.begin(spec, summarise(spec, "run", context))
    fit(Hardware(accelerator="cpu").fabric(), replace(plan, defence=defence), dataset, folder, context)
    steps = plan.sampler.steps(dataset.train.labels)
    assert defence.told == pytest.approx([step / (2 * steps) for step in range(2 * steps)])
