"""Collapse: what counts as one, by hand, and what a training does about it."""

import json
import math
from pathlib import Path

import pytest
import torch

from commands import Command
from robustmetric import records
from robustmetric.diagnose.collapse import CHECKS, EVERY, THRESHOLD, Watch, evidence, mean_cosine
from robustmetric.models.encoder import Encoder
from robustmetric.records import Record

COLLAPSING = ("digits/madry", "defence.clean_share=0", "defence.attack.steps=4")


def validation(recall: float, low: float, cosine: float | None = None, chance: float = 20.0) -> Record:
    scores = {"R@1": recall} | ({} if cosine is None else {"mean_cosine": cosine})
    return Record("validation", "clean", scores, {"chance": chance}, {"R@1": (low, recall + 1)})


def test_the_mean_cosine_leaves_out_each_row_with_itself() -> None:
    # Pairs: (1,0)(0,1) 0, (1,0)(-1,0) -1, (0,1)(-1,0) 0; their mean is -1/3.
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert float(mean_cosine(z)) == pytest.approx(-1 / 3, abs=1e-6)
    assert float(mean_cosine(torch.tensor([[0.6, 0.8]]).repeat(50, 1))) == pytest.approx(1)


def test_the_mean_cosine_is_that_of_all_pairs() -> None:
    z = torch.nn.functional.normalize(torch.randn(40, 7, generator=torch.Generator().manual_seed(0)) + 0.5, dim=1)
    pairs = (z @ z.T)[~torch.eye(40, dtype=torch.bool)]
    assert float(mean_cosine(z)) == pytest.approx(float(pairs.mean()), abs=1e-6)


def test_embeddings_that_are_not_of_unit_length_have_no_verdict() -> None:
    assert math.isnan(mean_cosine(torch.full((5, 3), 2.0)))
    assert math.isnan(mean_cosine(torch.zeros(5, 3)))
    assert math.isnan(mean_cosine(torch.tensor([[1.0, 0.0]]))), "one row has no pair"


def test_a_validation_shows_a_collapse_by_cosine_or_by_chance() -> None:
    assert evidence(validation(98.0, 97.0, cosine=0.5)) is None
    assert evidence(validation(98.0, 97.0)) is None
    assert evidence(validation(98.0, 97.0, cosine=0.9999)) == "mean pairwise cosine 0.9999"
    assert evidence(validation(20.5, 19.5, cosine=0.1)) == "R@1 20.5 at chance (20.0)"
    assert evidence(validation(22.0, 20.5, cosine=0.1)) is None
    # Four of four: by chance, at 50, once in 16 times, and yet no collapse.
    assert evidence(validation(100.0, 39.8, cosine=0.1, chance=50.0)) is None
    # Classes of one image each: nothing can be found, which says nothing of the model.
    assert evidence(validation(0.0, 0.0, cosine=0.1, chance=0.0)) is None


class Spread(torch.nn.Module):
    """Two-dimensional embeddings, `width` apart at most."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return torch.stack([torch.ones(len(x)), self.width * x[:, 0]], dim=1)


@pytest.mark.parametrize(("widths", "collapsed"), [([0.01] * CHECKS, True), ([0.01] * (CHECKS - 1) + [3.0], False)])
def test_a_watch_needs_several_checks_in_a_row(widths: list[float], collapsed: bool) -> None:
    trunk = Spread(0.0)
    model, watch, inputs = Encoder(trunk, dim=2), Watch(), torch.linspace(-1, 1, 9)[:, None]
    for i, width in enumerate(widths):
        trunk.width = width
        due = [watch.look(model, inputs, "exact") for _ in range(EVERY)]
        assert due == [False] * (EVERY - 1) + [i == CHECKS - 1]
    assert trunk.passes == CHECKS, "one forward pass a check"
    assert (watch.judge() is not None) == collapsed
    assert not watch.look(model, inputs, "exact"), "the next verdict needs new checks"


def test_a_training_that_collapses_says_so_is_marked_and_stops(tmp_path: Path, command: Command) -> None:
    done = command("train", *COLLAPSING, "--out", "run")
    assert done.code == 0
    (said,) = [line for line in done.err.splitlines() if "collapsed" in line]
    assert said.startswith("run: the model has collapsed by epoch 5, step ") and "--keep-going" in said
    summary = json.loads((tmp_path / "run" / "run.json").read_text())
    assert summary["collapsed"] is True and "cosine" in summary["collapse"]
    found = records.read(tmp_path / "run" / "results.jsonl")
    assert [r.settings["epoch"] for r in found if r.kind == "train"] == [1, 2, 3, 4, 5], "of 30"
    assert found[-1].kind == "validation" and found[-1].scores["mean_cosine"] > THRESHOLD
    assert (tmp_path / "run" / "model.safetensors").is_file(), "it can still be evaluated"

    more = command("train", *COLLAPSING, "epochs=6", "--out", "run", "--resume", "--keep-going")
    assert more.code == 0, more.err
    epochs = [r.settings["epoch"] for r in records.read(tmp_path / "run" / "results.jsonl") if r.kind == "train"]
    assert epochs[-2:] == [5, 6] and json.loads((tmp_path / "run" / "run.json").read_text())["collapsed"] is True


def test_a_training_may_go_on_after_a_collapse(tmp_path: Path, command: Command) -> None:
    done = command("train", *COLLAPSING, "epochs=6", "on_collapse=continue", "--out", "run")
    assert "training goes on" in done.err
    found = [r for r in records.read(tmp_path / "run" / "results.jsonl") if r.kind == "train"]
    assert len(found) == 6
    assert json.loads((tmp_path / "run" / "run.json").read_text())["collapsed"] is True


def test_a_collapse_that_only_the_last_look_finds_is_said_too(tmp_path: Path, command: Command) -> None:
    """Four epochs are 68 steps, and the watch judges after 80."""
    done = command("train", *COLLAPSING, "epochs=4", "--out", "run")
    (said,) = [line for line in done.err.splitlines() if "collapsed" in line]
    assert said.startswith("run: the model has collapsed: mean pairwise cosine ")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["collapsed"] is True


def test_hardness_driven_to_zero_collapses_as_published(tmp_path: Path, command: Command) -> None:
    zero = ("defence.destination.name=fixed", "defence.destination.value=0", "defence.structure=null")
    command("train", "digits/hm", *zero, "epochs=6", "--out", "zero")
    assert json.loads((tmp_path / "zero" / "run.json").read_text())["collapsed"] is True


def test_a_training_that_does_not_collapse_is_marked_so(trained: Path) -> None:
    summary = json.loads((trained / "run.json").read_text())
    assert summary["collapsed"] is False and summary["collapse"] is None
    (record,) = [r for r in records.read(trained / "results.jsonl") if r.kind == "validation"]
    assert record.scores["mean_cosine"] < 0.99


def test_another_word_for_what_to_do_is_refused(command: Command) -> None:
    assert "did you mean 'stop'" in command("train", "digits/plain", "on_collapse=stopp").error
