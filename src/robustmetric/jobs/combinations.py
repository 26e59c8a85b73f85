"""What a sweep runs: `key=a,b,c key2=x,y` as the product of the values, each combination with a name of its own."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from robustmetric.errors import InputError

OPENING, CLOSING = "[{(", "]})"


@dataclass(frozen=True)
class Combination:
    """One run of a sweep."""

    name: str
    """By what varies: `steps4-seed1`."""
    values: Mapping[str, str]
    """Of the settings that vary."""
    overrides: list[str]
    """Of all that were given."""


def combinations(assignments: Sequence[str]) -> list[Combination]:
    """Every combination of the values, the last setting varying fastest."""
    options = {key: values for key, values in map(parse, assignments)}
    if len(options) < len(assignments):
        twice = Counter(parse(one)[0] for one in assignments).most_common(1)[0][0]
        raise InputError(f"{twice!r} is given twice; expected all of its values in one word, {twice}=a,b,c")
    varied = [key for key, values in options.items() if len(values) > 1]
    if not varied:
        raise InputError("nothing varies; expected a setting with values between commas, as in seed=0,1,2")
    found = []
    for chosen in itertools.product(*options.values()):
        every = dict(zip(options, chosen, strict=True))
        values = {key: every[key] for key in varied}
        overrides = [f"{key}={value}" for key, value in every.items()]
        found.append(Combination(title(values), values, overrides))
    name, times = Counter(run.name for run in found).most_common(1)[0]
    if times > 1:
        raise InputError(f"{times} runs would be called {name!r}; expected values that differ in letters or digits")
    return found


def parse(assignment: str) -> tuple[str, list[str]]:
    """`seed=0,1` as the setting and its values."""
    key, equals, text = assignment.partition("=")
    values = list(split(text))
    if not equals or not key or not all(values):
        raise InputError(f"{assignment!r} is no setting with values; expected key=a,b,c, as in seed=0,1,2")
    return key, values


def split(text: str) -> Iterator[str]:
    """The parts between commas that stand in no brackets: `[1,2],3` is `[1,2]` and `3`."""
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in OPENING) - (letter in CLOSING)
        if letter == "," and depth == 0:
            yield text[begin:place].strip()
            begin = place + 1
    yield text[begin:].strip()


def title(values: Mapping[str, str]) -> str:
    """What varies, as a folder is named: `steps4-seed1`; whole keys where two end alike."""
    ends = Counter(key.rpartition(".")[2] for key in values)
    short = {key: end if ends[end := key.rpartition(".")[2]] == 1 else key for key in values}
    return "-".join(
        f"{short[key]}{re.sub(r'[^A-Za-z0-9.+-]+', '_', value).strip('_')}" for key, value in values.items()
    )
