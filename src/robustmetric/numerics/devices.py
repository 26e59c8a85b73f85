"""A device by its name."""

from typing import Any

import torch

from robustmetric.errors import InputError


def device_of(name: str | torch.device | Any) -> torch.device:
    """The device of that name, if it is there."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except TypeError as error:
        raise InputError(f"device {name!r} is no device; expected a name such as 'cpu' or 'cuda:0'") from error
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {str(name)!r} cannot be used ({str(error).splitlines()[0]}); try 'cpu'") from error
    return device
