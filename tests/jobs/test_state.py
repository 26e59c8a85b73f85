"""What a training remembers of an epoch: the terms of its loss, and other figures beside them."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.jobs.state import Meter, Saver, State
from robustmetric.jobs.workers import Hardware


class NeverSaved:
    def last_good(self) -> str:
        return "nothing was saved"


SAVER = cast(Saver, NeverSaved())


def numbers(**by_name: float) -> dict[str, Tensor]:
    return {name: torch.tensor(value) for name, value in by_name.items()}


def meter() -> Meter:
    return Meter(State(), Hardware(accelerator="cpu").fabric())


def test_terms_and_figures_are_summed_and_told_apart() -> None:
    watch = meter()
    for step, (loss, before) in enumerate([(0.5, -0.75), (0.25, -0.25)]):
        watch.state.step = step + 1
        watch.add(numbers(triplet=loss, structure=1.0), 8, numbers(before=before))
    assert watch.read(SAVER, force=True) == {"triplet": 0.375, "structure": 1, "before": -0.5}
    assert watch.state.terms == ["triplet", "structure"]
    assert watch.state.images == 16


def test_a_defence_without_figures_has_its_terms_alone() -> None:
    watch = meter()
    watch.state.step = 1
    watch.add(numbers(metric=0.5), 8)
    watch.add(numbers(metric=0.25), 8, {})
    assert watch.read(SAVER, force=True) == {"metric": 0.75} and watch.state.terms == ["metric"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_no_number_stops_nothing_but_a_term_does(value: float) -> None:
    watch: Any = meter()
    watch.state.step = 1
    watch.add(numbers(metric=0.5), 8, numbers(before=value))
    watch.read(SAVER, force=True)
    watch.add(numbers(metric=value), 8, numbers(before=0.0))
    with pytest.raises(InputError, match="the loss became NaN or infinite at epoch 1, step 1; nothing was saved"):
        watch.read(SAVER, force=True)
