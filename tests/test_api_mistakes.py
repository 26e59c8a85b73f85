"""What a notebook gives by mistake is told in one line; what is meant plainly is taken."""

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import robustmetric
from commands import environment
from robustmetric.errors import InputError

IMAGES = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = [place % 3 for place in range(12)]
# In a process of its own: here every call is checked against its types first, a notebook's is not.
MISTAKES = """
import torch, robustmetric
from torch import nn
class Pair(nn.Module):
    def forward(self, images):
        return images.flatten(1), 1
x, y, flat = torch.rand(12, 3, 8, 8), [i % 3 for i in range(12)], nn.Flatten()
for encoder, images, labels, radius in (
    (flat, (x * 255).byte(), y, 0.1), (flat, x, ["a", "b", "c"] * 4, 0.1), (flat, x, torch.rand(12), 0.1),
    (lambda images: images.flatten(1), x, y, 0.1), (Pair(), x, y, 0.1), (flat, x, y, 8),
):
    try:
        robustmetric.evaluate(encoder, images, labels, suite="demo", radius=radius)
    except robustmetric.InputError as error:
        print(error)
"""
SAID = [
    "give images.float() / 255",
    "the labels are no numbers of one shape",
    "expected one integer each",
    "the encoder is a function; expected a torch.nn.Module",
    "Pair returned a tuple; expected a tensor",
    "did you mean 8/255?",
]


WORDS = """
import torch, robustmetric
from torch import nn
class Flat(nn.Module):
    def forward(self, images):
        return images.flatten(1).mean(1)
class Small(nn.Module):
    def __init__(self, dtype=torch.float32, inputs=192):
        super().__init__()
        self.layer = nn.Linear(inputs, 4, dtype=dtype)
    def forward(self, images):
        return self.layer(images.flatten(1))
x, y, flat = torch.rand(12, 3, 8, 8), [i % 3 for i in range(12)], nn.Flatten()
for call in (
    lambda: robustmetric.load(None),
    lambda: robustmetric.evaluate(flat, None, None, suite="dmo"),
    lambda: robustmetric.attack(flat, None, None, "EX", suite="demo"),
    lambda: robustmetric.evaluate(flat, x, y, suite=None),
    lambda: robustmetric.evaluate(flat, x, y, suite="demo", radius="8/255"),
    lambda: robustmetric.evaluate(flat, x, y, suite="demo", queries=2.5),
    lambda: robustmetric.attack(flat, x, y, suite="demo", radius=0.1, seed="a"),
    lambda: robustmetric.evaluate(flat, x[:, 0, 0, 0], y, suite="demo"),
    lambda: robustmetric.evaluate(flat, x.to(torch.complex64), y, suite="demo"),
    lambda: robustmetric.evaluate(Flat(), x, y, suite="demo"),
    lambda: robustmetric.evaluate(Small(inputs=10), x, y, suite="demo"),
    lambda: robustmetric.evaluate(Small(torch.float64), x, y, suite="demo"),
    lambda: robustmetric.evaluate(flat, x, y, suite="transfer28", surrogate=3),
):
    try:
        call()
    except robustmetric.InputError as error:
        print(error)
"""
SAID_OF_WORDS = [
    "None is a NoneType; expected the path of a run folder",
    "'dmo' is no file and no suite we ship; did you mean 'demo'?",
    "'EX' is not an attack of suite 'demo'",
    "suite None is a NoneType; expected a name",
    "radius '8/255' is a str; expected a number >= 0",
    "queries 2.5 is a float; expected a whole number",
    "seed 'a' is a str; expected a whole number",
    "images of shape (12,) and type torch.float32 are none",
    "type torch.complex64 are none",
    "Flat returned a tensor of shape (12,) for 12 inputs; expected one embedding per input",
    "the model failed on inputs of shape (12, 3, 8, 8), torch.float32: ",
    "its weights are torch.float64",
    "the surrogate is a int; expected a torch.nn.Module or the path of a run folder",
]


@pytest.mark.parametrize("images", [IMAGES.numpy(), list(IMAGES)])
def test_arrays_and_lists_of_images_are_taken(images: object) -> None:
    found, expected = (
        robustmetric.evaluate(nn.Flatten(), given, labels, suite="demo", radius=0.1)[0].scores
        for given, labels in ((images, np.array(LABELS)), (IMAGES, LABELS))
    )
    assert found == expected


@pytest.mark.parametrize(("mistakes", "said"), [(MISTAKES, SAID), (WORDS, SAID_OF_WORDS)])
def test_each_mistake_is_one_line_that_says_what_was_expected(mistakes: str, said: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", mistakes],
        capture_output=True,
        text=True,
        env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(said), done.stderr
    assert all(words in line for words, line in zip(said, lines, strict=True)), lines


class Column:
    """What a column of a data frame of any library is to NumPy."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values)


def test_labels_may_be_a_column_of_a_data_frame() -> None:
    plain, column = (
        robustmetric.attack(nn.Flatten(), IMAGES, labels, "ES", radius=0.1) for labels in (LABELS, Column(LABELS))
    )
    assert torch.equal(plain, column)


def ordinary() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.BatchNorm1d(4))


def valueless() -> nn.Module:
    with torch.device("meta"):
        return ordinary()


def unfollowed() -> nn.Module:
    with torch.inference_mode():
        return ordinary()


def shapeless() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(4))


class Classifier(nn.Module):
    classes = 3

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)[:, :3]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (valueless, r"has no values, only a shape"),
        (unfollowed, r"was made under torch.inference_mode"),
        (shapeless, r"has no shape yet \(a lazy layer\)"),
    ],
)
@pytest.mark.parametrize("suite", ["demo", "masking", "auto_rank"])
def test_weights_on_which_nothing_can_be_measured_are_refused(
    build: Callable[[], nn.Module], said: str, suite: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=rf"1.weight of the model {said}"):
        robustmetric.evaluate(build(), IMAGES, LABELS, suite, 0.1)
    with pytest.raises(InputError, match=said):
        robustmetric.evaluate(build(), IMAGES, LABELS, suite, 0.1, out=tmp_path / "out")
    with pytest.raises(InputError, match=said):
        robustmetric.evaluate(Classifier(build()), IMAGES, LABELS, "autoattack", 0.1)
    with pytest.raises(InputError, match=said):
        robustmetric.evaluate(ordinary(), IMAGES, LABELS, "transfer224", 0.1, surrogate=build())
    with pytest.raises(InputError, match=said):
        robustmetric.attack(build(), IMAGES, LABELS)


@pytest.mark.parametrize("moved", ["images", "labels"])
def test_images_without_values_are_refused(moved: str) -> None:
    given = {"images": IMAGES, "labels": torch.tensor(LABELS)}
    given[moved] = given[moved].to("meta")
    with pytest.raises(InputError, match="on the device 'meta', which holds no values"):
        robustmetric.evaluate(ordinary(), **given, suite="demo", radius=0.1)


def test_what_the_refusal_of_weights_advises_is_taken() -> None:
    copied = copy.deepcopy(unfollowed())
    filled = valueless().to_empty(device="cpu")
    filled.load_state_dict(ordinary().state_dict())
    for encoder in (copied, filled):
        assert robustmetric.evaluate(encoder, IMAGES, LABELS, "ers_sketch224", 0.1, queries=2)[0].name == "clean"
