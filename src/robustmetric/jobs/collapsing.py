"""What a training does about a collapse: says so, ends early unless told not to, and marks the run."""

import json

from robustmetric import records
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.progress import say
from robustmetric.jobs.state import Saver, State


class Collapsed(Exception):
    """The model collapsed, and training is not to go on; says by what evidence."""


def mind(saver: Saver, state: State, evidence: str | None) -> None:
    """Say that the model collapsed, if it did, and end the training unless the recipe says otherwise."""
    if evidence is None:
        return
    stops = saver.plan.on_collapse == "stop"
    then = "stopped; --resume --keep-going trains on" if stops else "training goes on"
    if saver.fabric.global_rank == 0:
        where = f"epoch {state.epoch + 1}, step {state.step}" if state.step else f"the end of epoch {state.epoch}"
        say(f"{saver.folder.path.name}: the model has collapsed by {where}: {evidence}; {then}")
    if stops:
        raise Collapsed(evidence)


def mark(folder: RunFolder, told: str | None, seen: str | None) -> None:
    """Write into the run's summary whether its model is a collapsed one: by what was `told`, or is only `seen` now."""
    evidence = told or seen
    if evidence is not None and told is None:
        say(f"{folder.path.name}: the model has collapsed: {evidence}; reports flag it, and its scores do not count")
    summary = json.loads(folder.summary.read_text())
    marks = {"collapsed": evidence is not None, "collapse": evidence}
    records.write_json(folder.summary, {**summary, **marks})
