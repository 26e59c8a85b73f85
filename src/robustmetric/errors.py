"""The one exception that means "the input is wrong": shown as a single line, exit code 2."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Says what was given, what was expected, and what to do."""


def nearest(word: object, choices: Iterable[str]) -> str:
    """The tail of an error about an unknown word: "; did you mean 'hm'? (act, hm)", or "; expected act, hm"."""
    names = sorted(set(choices))
    listed = ", ".join(names)
    close = get_close_matches(str(word), names, n=1)
    return f"; did you mean {close[0]!r}? ({listed})" if close else f"; expected {listed}"
