"""Warnings beside the numbers of a run: what its records were told of the model when they were made."""

import re
from collections.abc import Sequence

from robustmetric.report.masking_flag import KIND as MASKING
from robustmetric.report.runs import Run

WARNED = "warnings"
"""In the context of a record: sentences on the model, each with what to do."""
COUNTED = re.compile(r"\d+ of the first \d+|[\d.e+-]+ % of the (images|largest)")
"""What a warning measured on the queries: two that differ in it alone are one, of fewer queries and of more."""
RANDOMISED = "the model draws at random, two answers to one image differ: attacks that climb single draws overrate it"


def warned(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """A run's label and a warning on its newest weights, each once, in the order they were given."""
    return [(run.label, words) for run in runs for words in _of(run)]


def _of(run: Run) -> list[str]:
    records = run.of_kind("clean", "attack", "worst_case", "clustering", MASKING)
    own = [record for record in records if record.settings.get("weights") == records[-1].settings.get("weights")]
    drawn = [RANDOMISED] if any(record.settings.get("randomised") for record in own) else []
    told: dict[tuple[str, str], tuple[int, str]] = {}
    for record in own:
        queries = int(record.settings.get("queries", record.count))
        for words in record.context.get(WARNED, []):
            key = (str(record.settings.get("data_fingerprint")), COUNTED.sub("", words))
            if key not in told or told[key][0] <= queries:
                told[key] = (queries, words)
    return list(dict.fromkeys([*drawn, *(words for _, words in told.values())]))
