"""Warnings beside the numbers of a run: what its records were told of the model when they were made."""

from collections.abc import Sequence

from robustmetric.report.runs import Run

WARNED = "warnings"
"""In the context of a record: sentences on the model, each with what to do."""
RANDOMISED = "the model draws at random, two answers to one image differ: attacks that climb single draws overrate it"


def warned(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """A run's label and a warning on its newest weights, each once, in the order they were given."""
    return [(run.label, words) for run in runs for words in _of(run)]


def _of(run: Run) -> list[str]:
    records = run.of_kind("clean", "attack", "worst_case", "clustering")
    own = [record for record in records if record.settings.get("weights") == records[-1].settings.get("weights")]
    drawn = [RANDOMISED] if any(record.settings.get("randomised") for record in own) else []
    return list(dict.fromkeys([*drawn, *(words for record in own for words in record.context.get(WARNED, []))]))
