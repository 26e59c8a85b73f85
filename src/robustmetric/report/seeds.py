"""One number of several seeds: their mean and, where there are two or more, their standard deviation."""

import statistics
from collections.abc import Iterable

from robustmetric.report.scores import DASH


def mean(values: Iterable[float | None]) -> float | None:
    """None where one of them has no number, or there are none."""
    known = list(values)
    numbers = [value for value in known if value is not None]
    return statistics.fmean(numbers) if numbers and len(numbers) == len(known) else None


def over_seeds(values: Iterable[float | None], decimals: int = 1) -> str:
    """As tables print it, `25.6 ± 1.0`; a dash where one has no number."""
    known = list(values)
    middle = mean(known)
    if middle is None:
        return DASH
    numbers = [value for value in known if value is not None]
    spread = f" ± {statistics.stdev(numbers):.{decimals}f}" if len(numbers) > 1 else ""
    return f"{middle:.{decimals}f}{spread}"
