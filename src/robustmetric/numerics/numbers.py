"""What counts as a number among settings, whoever typed them."""

import math
from numbers import Integral, Real

LARGEST_SEED = 2**32 - 1
"""What numpy, and so scikit-learn, takes at most."""


def is_number(value: object, least: float | int = -math.inf, most: float | int = math.inf) -> bool:
    """Whether it is a finite number from `least` to `most`; True and False are none."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return math.isfinite(value) and least <= float(value) <= most


def is_whole(value: object, least: float | int = 1, most: float | int = math.inf) -> bool:
    """Whether it is a whole number from `least` to `most`; 2.0 is none, as no count is written so."""
    return isinstance(value, Integral) and is_number(value, least, most)
