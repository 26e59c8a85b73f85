"""Devices that are there, and those that are not."""

from typing import Any

import pytest
import torch

from robustmetric.errors import InputError
from robustmetric.numerics.devices import device_of


def test_a_device_by_its_name_or_itself() -> None:
    assert device_of("cpu") == torch.device("cpu") == device_of(torch.device("cpu"))


@pytest.mark.parametrize("name", ["cuda:99", "abacus"])
def test_a_device_that_is_not_there_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(InputError, match=f"device '{name}' cannot be used .*try 'cpu'") as refused:
        device_of(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [None, 1.5, ["cpu"]])
def test_what_names_no_device_is_refused(name: Any) -> None:
    with pytest.raises(InputError, match="is no device; expected a name such as 'cpu'"):
        device_of(name)
