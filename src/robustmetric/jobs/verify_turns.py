"""Verify of the blocks `classification` and `auto_rank`: what attacks leave, some of which take turns."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from robustmetric.attacks.suite import Suite
from robustmetric.jobs.agreement import Check, Interval, around, compared, rate, spread_of_runs
from robustmetric.jobs.classifier_ledger import BLOCKS, LOCAL
from robustmetric.jobs.evaluate import run_suite
from robustmetric.jobs.origin import Typed
from robustmetric.jobs.verify_model import Again, Part, seed_of, suite_at
from robustmetric.jobs.worst_case import LOWEST, SPREAD, WORST
from robustmetric.records import Record

RANK = "AutoRank"
Numbers = Mapping[tuple[str, str], float]
"""By attack (or group of them) and score, as a row has them."""


@dataclass(frozen=True)
class Turns:
    """One suite of a row, and the numbers of the row that are by it."""

    command: Typed
    suite: Suite
    recorded: Numbers
    queries: int

    def reduced(self, chosen: Collection[str]) -> Suite:
        """The suite with what the chosen numbers take: of those that take turns also the ones before them."""
        if WORST in chosen:
            return self.suite
        on_all = {trial.label for trial in self.suite.trials if trial.on_all}
        labels = set(chosen)
        for name, group in self.suite.survivors.items():
            turns = [place for place, label in enumerate(group) if label in chosen and label not in on_all]
            labels |= set(group if name in chosen else group[: max(turns, default=-1) + 1])
        survivors = {name: [one for one in group if one in labels] for name, group in self.suite.survivors.items()}
        return replace(
            self.suite,
            trials=[trial for trial in self.suite.trials if trial.label in labels],
            survivors={name: group for name, group in survivors.items() if group},
        )


def names(again: Again) -> list[str]:
    """The attacks and groups of them that can be run again."""
    return [name for turns in _turns(again) for name in dict.fromkeys(name for name, _ in turns.recorded)]


def attacks(again: Again, chosen: Collection[str]) -> Part:
    """The chosen attacks, groups and worst case, and those that had to be run for them."""
    checks, left_out = list[Check](), list[str]()
    for turns in _turns(again):
        wanted = {name for name, _ in turns.recorded} & set(chosen)
        own = list(_measured(again, turns, wanted)) if wanted else []
        done = {check.name for check in own}
        checks += own
        left_out += [title for title in (_title(*key) for key in turns.recorded) if title not in done]
    return Part(checks, left_out or _unknown(again, bool(checks)))


def _unknown(again: Again, is_measured: bool) -> list[str]:
    blocks = [key for key in ("classification", "auto_rank") if key in again.row]
    return [] if is_measured else [f"{key} (no command of the row measures it by a suite we ship)" for key in blocks]


def _turns(again: Again) -> list[Turns]:
    """By suite; a number that two suites have is that of `classification`, as in the ledger."""
    row, found = again.row, list[Turns]()
    block, taken = row.get("classification", {}), set[tuple[str, str]]()
    tables = {(name, score): value for score in BLOCKS for name, value in block.get(score, {}).items()}
    commands = again.by("classification", "autoattack") if tables else []
    for command in sorted(commands, key=lambda one: one.words[0] != "classification"):
        turns = _of(command, block["radius"], tables, row["queries"])
        found.append(replace(turns, recorded={key: v for key, v in turns.recorded.items() if key not in taken}))
        taken |= set(turns.recorded)
    aside = {(name, "accuracy"): value for name, value in block.get(LOCAL, {}).items()}
    for command in again.by(LOCAL) if aside else []:
        found.append(_of(command, block["radius"], aside, block[f"{LOCAL}_queries"]))
    if "auto_rank" in row:
        ranked = {(RANK, "R@1"): row["auto_rank"]["R@1"]}
        found += [_of(one, row["auto_rank"]["radius"], ranked, again.attacked) for one in again.by("auto_rank")]
    return found


def _of(command: Typed, radius: float, numbers: Numbers, queries: int) -> Turns:
    suite = suite_at(command.words[0], radius)
    made = {*(trial.label for trial in suite.trials), *suite.survivors, *([WORST] if suite.survivors else [])}
    return Turns(command, suite, {key: value for key, value in numbers.items() if key[0] in made}, queries)


def _measured(again: Again, turns: Turns, wanted: Collection[str]) -> Iterator[Check]:
    """Every number of a suite so reduced; those of groups that are not whole are no numbers of the row."""
    suite, arena = turns.reduced(wanted), again.arena(turns.command, turns.queries)
    is_same = again.is_same(arena, turns.queries)
    whole = {trial.label for trial in suite.trials}
    whole |= {name for name, group in suite.survivors.items() if list(group) == list(turns.suite.survivors[name])}
    whole |= {WORST} if len(suite.trials) == len(turns.suite.trials) else set()
    for record, _ in run_suite(arena, suite, seed_of(turns.command), {}):
        for score, found in record.scores.items():
            recorded = turns.recorded.get((record.name, score))
            if recorded is not None and record.name in whole:
                interval = around(score, found, again.rerouted) if is_same else _interval(record, score)
                yield compared(score, recorded, found, record.count, interval, _title(record.name, score))


def _interval(record: Record, score: str) -> Interval:
    """Each query is right or wrong; of repeated runs the record's context has the means."""
    if score not in (LOWEST, SPREAD):
        return rate(record.scores[score], record.count)
    lowest, apart = spread_of_runs(record.context["runs"], record.count)
    return lowest if score == LOWEST else apart


def _title(name: str, score: str) -> str:
    return f"{name}, {score}" if score in (LOWEST, SPREAD) else name
