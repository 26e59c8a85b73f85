"""Attacks that take turns: each meets only what those before it left right, so that its number is of all of them."""

from collections.abc import Iterable
from typing import Any

from robustmetric.records import Record

STANDING = "standing"
"""In the settings of a trial that takes its turn: how many queries were left to it."""
AFTER = "after"
"""In the context of its record: the trials before it, none for the first. Older records do not say."""
CAPTION = "then: in turn, on what the attacks before it left; its number is of all of them up to there."


def after_others(found: Iterable[Record]) -> set[str]:
    """The keys of those whose attack met only what others had left.

    Where a record does not name them, as older ones, it was left fewer queries than the first of its evaluation.
    """
    turns = [record for record in found if STANDING in record.settings]
    most: dict[tuple[Any, ...], int] = {}
    for record in turns:
        most[_evaluation(record)] = max(record.settings[STANDING], most.get(_evaluation(record), 0))
    fewer = {record.key for record in turns if record.settings[STANDING] < most[_evaluation(record)]}
    return {record.key for record in turns if record.context.get(AFTER, record.key in fewer)}


def then(name: str, is_after: bool) -> str:
    """An attack as tables name it: `then FAB-T` where it came after others."""
    return f"then {name}" if is_after else name


def _evaluation(record: Record) -> tuple[Any, ...]:
    """What turns share: the same model was asked about the same queries."""
    shared = ("suite", "weights", "data_fingerprint", "precision", "search")
    return record.seed, record.count, *map(record.settings.get, shared)
