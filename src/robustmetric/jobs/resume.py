"""Which work of a suite has been done: a finished record is known again by its settings."""

from collections.abc import Mapping

from robustmetric.records import Record

UNUSUAL = ("repeats", "rounded", "standing", "standing_rows", "surrogate_weights", "randomised", "search",
           "rescaled")  # fmt: skip
"""Settings that are written only where they are not the usual: without one, a record is of other work than with it."""


def find(expected: Record, done: Mapping[str, Record]) -> Record | None:
    """The newest record of this work, if it has been done."""
    return next((record for record in reversed(list(done.values())) if is_same(expected, record)), None)


def is_same(expected: Record, found: Record) -> bool:
    """Whether a record is of this work: same name and seed, every setting as asked, none of the unusual unasked."""
    keys = {*expected.settings, *UNUSUAL}
    return (expected.kind, expected.name, expected.seed) == (found.kind, found.name, found.seed) and all(
        found.settings.get(key) == expected.settings.get(key) for key in keys
    )
