"""Two runs on the same queries: every score of both, their difference, and its interval over queries, pair by pair."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from robustmetric import records
from robustmetric.errors import InputError
from robustmetric.jobs.ers import PerQuery, Store, batch_weights
from robustmetric.jobs.over_queries import interval_of_gain
from robustmetric.metrics.robustness import SUB_SCORES, ers_per_query
from robustmetric.records import Record
from robustmetric.report.masking_flag import flag
from robustmetric.report.scores import describe, show_radius, title
from robustmetric.report.turns import STANDING, after_others, then

OWN = ("weights", STANDING, "standing_rows", "measured")
"""Settings in which two runs may differ: all others say what was asked of them."""
ANSWERS = ("R@1", "accuracy")
"""Scores that many attacks have; the others are named after theirs."""
ALIKE = "+0 to +0: both score alike on each of these queries, which says nothing of any other."
"""Under a table with such a line: queries that do not differ resample to no difference."""


@dataclass(frozen=True)
class Difference:
    """One score of two runs. The interval resamples queries, each with both of its values: it is that of one test set
    and two trained models, not of other seeds."""

    name: str
    mode: str
    """Empty where there is no attack."""
    radius: float | None
    first: float
    second: float
    interval: tuple[float, float]
    """Of second minus first, 95 %."""
    count: int
    score: str
    """What was measured, without the attack that `name` may begin with."""
    is_after: bool = False
    """Whether the attack met only what others had left, of either run: its number is of all of them."""

    @property
    def title(self) -> str:
        """The score as a table names it: `ES:R at 8/255 (compat)`."""
        at = "" if self.radius is None else f" at {show_radius(self.radius)}"
        return f"{then(self.name, self.is_after)}{at}{' (compat)' if self.mode == 'compat' else ''}"

    @property
    def verdict(self) -> str:
        """For the second run: `better` or `worse`; `not clear`; empty where neither way is better."""
        if not self.is_clear:
            return "not clear"
        sign = {"higher": 1, "lower": -1, "unknown": 0}[describe(self.score).better]
        gain = sign * self.interval[0]
        return "better" if gain > 0 else "worse" if gain < 0 else ""

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return not self.interval[0] <= 0 <= self.interval[1]

    @property
    def is_alike(self) -> bool:
        """Whether the interval is that of no difference on any query, which bounds nothing."""
        return self.interval == (0, 0)


def compare(first: Path, second: Path) -> list[Difference]:
    """Every score that both runs have of the same queries under the same settings."""
    ours, theirs = _evaluated(first), _evaluated(second)
    pairs = [(a, b) for a in ours for b in theirs if _is_alike(a, b)]
    if not pairs:
        raise InputError(
            f"{first} and {second} have no measurement in common; evaluate both with the same suite, data, --queries, "
            "--seed and --batch"
        )
    later = after_others(ours) | after_others(theirs)
    found = [
        replace(difference, is_after=a.key in later or b.key in later)
        for a, b in pairs
        for difference in _differences(a, _per_query(first, a, ours), b, _per_query(second, b, theirs))
    ]
    if not found:
        raise InputError(
            f"{first} and {second} lack scores per query, their folders `queries`; evaluate both again, elsewhere (-o)"
        )
    return found


def masked(*folders: Path) -> dict[Path, str]:
    """The runs whose compared weights are masked: which checks fail."""
    found: dict[Path, str] = {}
    for folder in folders:
        weights = _evaluated(folder)[-1].settings.get("weights")
        words = flag(records.latest(records.read(folder / "results.jsonl")), weights)
        found |= {folder: words} if words else {}
    return found


def _evaluated(folder: Path) -> list[Record]:
    """The newest records of each work, without those of training."""
    newest = records.latest(records.read(folder / "results.jsonl"))
    found = [record for record in newest if record.kind in ("clean", "attack", "ers", "worst_case")]
    # A run that was trained further and evaluated again has records of older weights too.
    return [record for record in found if record.settings.get("weights") == found[-1].settings.get("weights")]


def _is_alike(a: Record, b: Record) -> bool:
    one, other = ({k: v for k, v in record.settings.items() if k not in OWN} for record in (a, b))
    # What an attack leaves in its turn is no measure of what another leaves of every query.
    are_alike_in_turns = (STANDING in a.settings) == (STANDING in b.settings)
    same = (a.kind, a.name, a.seed, a.count, one) == (b.kind, b.name, b.seed, b.count, other)
    return same and are_alike_in_turns


def _per_query(folder: Path, record: Record, measured: list[Record]) -> PerQuery:
    """What is known of each query; for ERS, from the ten scores of its mode."""
    store = Store(folder / "queries")
    if record.kind != "ers":
        return store.of(record) or {}
    ten: dict[str, Tensor] = {}
    for other in measured:
        if other.kind == "attack" and other.settings.get("attack") in record.settings["attacks"]:
            same = {key for key in record.settings if key != "attacks"}
            if all(other.settings.get(key) == record.settings[key] for key in same):
                ten |= store.of(other) or {}
    return {"ERS": ers_per_query(ten)} if set(SUB_SCORES) <= set(ten) else {}


def _differences(a: Record, of_a: PerQuery, b: Record, of_b: PerQuery) -> Iterator[Difference]:
    mode = str(a.settings.get("mode", ""))
    weights = batch_weights(a.count, int(a.settings["batch"])) if mode == "compat" else None
    for name in of_a:
        if name in of_b:
            interval = interval_of_gain(name, of_a[name], of_b[name], weights)
            radius, attack = a.settings.get("radius"), a.name
            if not records.is_bounded(a.settings):
                radius, attack = None, title(a.name, a.settings)
            shown = f"{attack} {name}" if name in ANSWERS and a.kind != "clean" else name
            yield Difference(shown, mode, radius, a.scores[name], b.scores[name], interval, a.count, name)
