"""Masking checks of a handful of images: none of them judges."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from robustmetric.diagnose import checks
from robustmetric.diagnose.examine import OF_A_FUNCTION
from robustmetric.diagnose.verdict import Verdict


def every(images: int) -> Tensor:
    return torch.ones(images, dtype=torch.bool)


def curves(first: list[float], second: list[float], images: int) -> Verdict:
    """Of two starts, on every image alike."""
    values = torch.tensor([first, second])[:, :, None].expand(2, 2, images)
    return checks.loss_curves(values, every(images), radius=0.1)


def half(images: int) -> Tensor:
    """Whether an image is of the first half."""
    return torch.arange(images) < images // 2


# By check and number of images: one that passes, one that fails.
JUDGED: dict[str, tuple[Callable[[int], Verdict], Callable[[int], Verdict]]] = {
    "black_box": (
        lambda n: checks.black_box(half(n), {"a": half(n)}),
        lambda n: checks.black_box(half(n), {"a": ~half(n)}),
    ),
    "gradient_free": (
        lambda n: checks.gradient_free(half(n), {"a": half(n)}),
        lambda n: checks.gradient_free(half(n), {"a": ~half(n)}),
    ),
    "hard_label": (
        lambda n: checks.hard_label(half(n), {"a": half(n)}),
        lambda n: checks.hard_label(half(n), {"a": ~half(n)}),
    ),
    "restarts": (
        lambda n: checks.restarts(torch.stack([half(n), half(n)])),
        lambda n: checks.restarts(torch.stack([half(n), ~half(n)])),
    ),
    "loss_curves": (
        lambda n: curves([0.0, 1.0], [0.0, 1.0], n),
        lambda n: curves([0.0, 0.0], [1.0, 1.0], n),
    ),
    "radius_sweep": (
        lambda n: checks.radius_sweep([0.1, 0.5], [60.0, 10.0], chance=10.0, images=n),
        lambda n: checks.radius_sweep([0.1, 0.5], [60.0, 60.0], chance=10.0, images=n),
    ),
    "steps": (
        lambda n: checks.steps([1, 10, 100], [60.0, 50.0, 50.0], usual=10, images=n),
        lambda n: checks.steps([1, 10, 100], [60.0, 50.0, 10.0], usual=10, images=n),
    ),
    "zero_gradients": (
        lambda n: checks.zero_gradients(torch.ones(n, 1, 2, 2), half(n), every(n)),
        lambda n: checks.zero_gradients(torch.zeros(n, 1, 2, 2), half(n), every(n)),
    ),
    "loss_against_margin": (
        lambda n: checks.loss_against_margin("usual", {"usual": half(n), "margin": half(n)}),
        lambda n: checks.loss_against_margin("usual", {"usual": half(n), "margin": ~half(n)}),
    ),
    "step_size": (
        lambda n: checks.step_size([0.1, 0.2], [60.0, 60.0], usual=0, images=n),
        lambda n: checks.step_size([0.1, 0.2], [60.0, 10.0], usual=0, images=n),
    ),
    "binarisation": (
        lambda n: checks.binarisation(half(2 * n)[:n], ~half(2 * n)[:n], has_features=True),
        lambda n: checks.binarisation(~half(2 * n)[:n], ~half(2 * n)[:n], has_features=True),
    ),
    "randomness": (
        lambda n: checks.randomness(0.0, images=n),
        lambda n: checks.randomness(0.3, half(n).double(), torch.zeros(1, n).double(), images=n),
    ),
    "worst_case": (
        lambda n: checks.worst_case(half(n)[None], {}),
        lambda n: checks.worst_case(half(n)[None], {"a": ~half(n)}),
    ),
}


def test_every_check_of_an_examination_is_among_those_judged_here() -> None:
    assert set(JUDGED) == {"randomness", *OF_A_FUNCTION}


@pytest.mark.parametrize("name", JUDGED)
def test_below_ten_images_nothing_is_judged(name: str) -> None:
    passing, failing = JUDGED[name]
    for few in (3, 9):
        assert passing(few).verdict == failing(few).verdict == "unclear"
    assert (passing(10).verdict, failing(10).verdict) == ("pass", "fail")
    assert passing(10).name == name
