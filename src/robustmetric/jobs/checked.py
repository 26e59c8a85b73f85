"""Masking checks that have ended, kept beside their records, so that one that was cut is not begun from the start."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from robustmetric.diagnose.examine import Ended
from robustmetric.diagnose.verdict import Verdict
from robustmetric.jobs.folder import beside, load_arrays, save_arrays
from robustmetric.jobs.resume import is_same
from robustmetric.records import Record

STATE = "state of the generator"
"""In a check's file, beside what it left."""


def recorded(expected: Record, ended: Ended, count: int, seconds: float) -> Record:
    """The record of a check, with how it ended in its context."""
    verdict = ended.verdict
    notes: dict[str, Any] = {"verdict": verdict.verdict, "said": verdict.said}
    notes |= {"curve": asdict(verdict.curve)} if verdict.curve is not None else {}
    context = {**expected.context, **notes, **verdict.evidence}
    return replace(
        expected, name=verdict.name, scores=verdict.numbers, count=count, seconds=seconds, context=context
    )  # fmt: skip


def keep(folder: Path, record: Record, ended: Ended) -> None:
    """What goes on after a check needs of it; on disk before the record is."""
    arrays = {name: left.cpu().numpy() for name, left in ended.left.items()}
    state = {} if ended.state is None else {STATE: ended.state.numpy()}
    save_arrays(beside(folder, record), {**arrays, **state})


def recall(
    folder: Path, expected: Record, done: Mapping[str, Record], source: torch.Generator
) -> dict[str, tuple[Record, Ended]]:
    """The checks of this work that have ended, by name: same settings, same seed, and on this kind of device."""
    found: dict[str, tuple[Record, Ended]] = {}
    for record in done.values():
        if record.name == expected.name or not is_same(replace(expected, name=record.name), record):
            continue
        ended = _read(folder, record, source)
        if ended is not None:
            found[record.name] = (record, ended)
    return found


def _read(folder: Path, record: Record, source: torch.Generator) -> Ended | None:
    """A check from its file; None where that is gone or damaged, or where another device draws otherwise."""
    arrays = load_arrays(beside(folder, record))
    if arrays is None or STATE not in arrays or arrays[STATE].shape != source.get_state().shape:
        return None
    state = torch.from_numpy(arrays.pop(STATE))
    left = {name: torch.from_numpy(array).to(source.device) for name, array in arrays.items()}
    if any(one.shape[-1] != record.count for one in left.values()):
        return None
    verdict = Verdict(record.name, record.context["verdict"], record.scores, record.context["said"])
    return Ended(verdict, left, state)
