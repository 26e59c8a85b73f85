"""The worst case: which queries are still answered rightly after several attacks, and the records that say so."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from robustmetric.attacks.base import Attack
from robustmetric.attacks.feature_match import Exposed, Featured, FeatureMatch, shows_features
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.transfer import Transfer
from robustmetric.attacks.vote import climbs_of
from robustmetric.errors import InputError
from robustmetric.jobs.answer import SOME, answering, check_features
from robustmetric.jobs.arena import Arena, as_bytes, embed
from robustmetric.jobs.ers import PerQuery
from robustmetric.jobs.folder import digest
from robustmetric.jobs.over_queries import intervals
from robustmetric.jobs.progress import say
from robustmetric.models.classifier import Classifies
from robustmetric.numerics.randomness import generator, repeatable
from robustmetric.perturb.pgd import frozen
from robustmetric.records import Record, is_bounded
from robustmetric.report.turns import AFTER, STANDING
from robustmetric.report.warned import WARNED
from robustmetric.types import Batch, Gallery

KIND, WORST = "worst_case", "worst case"
LOWEST, SPREAD = "lowest run", "max - min"
"""Of a trial that is repeated: the smallest mean of a run, and by how much the largest is above it."""
LEFT_OUT = "left_out"
"""In the settings of a worst case: the attacks of its suite that it is without."""
GENERAL = ("commit", "versions", "python", "hardware", WARNED)
"""What the context of a worst case has of its trials'."""
KEPT = ("suite", "data", "norm", "radius", "bounds", "mode", "rounded", "randomised")
"""What a worst case has in common with the trials it is of."""


@runtime_checkable
class OnClasses(Protocol):
    """An attack on a classifier's logits."""

    def for_classes(self, classes: int) -> Attack: ...


def fitted(suite: Suite, arena: Arena) -> Suite:
    """The suite for the arena's model. What would fail or mislead later is refused here, before anything runs.

    That is: attacks on rankings for a classifier, and the reverse; turns or repeats of an attack that does not say who
    is answered rightly; and turns in bfloat16. Features that the model does not show, or images of one class that have
    no others to match, leave the attack on them out, which is said; they are refused where nothing else would be run.
    """
    if suite.survivors and arena.fast:
        raise InputError(
            f"suite {suite.name!r} states a worst case, and bfloat16 changes close answers; run it without --fast"
        )
    suite = _without_features(suite, arena)
    if isinstance(arena.model, Featured) and any(isinstance(trial.attack, FeatureMatch) for trial in suite.trials):
        check_features(arena.model, _first(arena, SOME).inputs)
    trials = [replace(trial, attack=_fitted(trial.attack, arena, trial, suite.name)) for trial in suite.trials]
    turns = {label for labels in suite.survivors.values() for label in labels}
    for trial in trials:
        asks = {"survivors": trial.label in turns, "repeats": trial.repeats > 1}
        if any(asks.values()) or isinstance(trial.attack, FeatureMatch):
            names = _score_names(trial.attack, arena)
            if arena.right not in names:
                raise InputError(
                    f"trial {trial.label!r} gives {', '.join(sorted(names))} and not {arena.right!r}, the score that "
                    f"{' and '.join(key for key in asks if asks[key])} go by; leave it out of there, or wrap its "
                    "attack in misretrieve"
                )
    return replace(suite, trials=trials)


def _without_features(suite: Suite, arena: Arena) -> Suite:
    """The suite without the attacks that match features, where there are none or none of another class."""
    matching = [trial.label for trial in suite.trials if isinstance(trial.attack, FeatureMatch)]
    rest = [trial for trial in suite.trials if trial.label not in matching]
    turns = {label for labels in suite.survivors.values() for label in labels}
    # A group that lacks one of its attacks would stand under a name that is not its own.
    is_needed = not rest or turns & set(matching)
    if not matching or is_needed or not arena.is_of_classes or not (why := _unmatched(arena)):
        return suite
    if arena.workers.rank == 0:
        say(f"left out: {', '.join(matching)}, as {why}")
    return replace(suite, trials=rest, left_out=[*suite.left_out, *dict.fromkeys(matching)])


def _unmatched(arena: Arena) -> str:
    """Why features cannot be matched; "" where they can."""
    if len(arena.queries.labels.unique()) < 2:
        return "the images are of one class; features are matched with those of another"
    inputs = _first(arena, 1).inputs
    with answering(arena.model, inputs):
        is_shown = shows_features(arena.model, inputs)
    if is_shown:
        return ""
    shown = "a module with features(x) and logits(features) has it run"
    return f"{type(arena.model).__name__} does not show its features; {shown}"


def _first(arena: Arena, count: int) -> Batch:
    """So many queries, as the model sees them."""
    return as_bytes(arena.queries.batch(arena.rows[:count], arena.view, index=arena.places[:count]))


@torch.no_grad()
def _score_names(attack: Attack, arena: Arena) -> set[str]:
    """The scores that an attack gives, found on one query that is not moved."""
    attack = attack.attack if isinstance(attack, Transfer) else attack
    one = _first(arena, 1)
    device, matched = arena.workers.device, isinstance(attack, FeatureMatch)
    with repeatable(device, 0), frozen(Exposed(arena.model) if matched else arena.model, arena.seen) as embed:
        z = embed(one.inputs)
        # Features are matched with those of all images, which are not at hand yet, and do not decide the names.
        first = climbs_of(attack)[0]
        targets = {} if matched else first.choose(z, one, arena.gallery, generator(device, 0))
        return set(first.score(z, targets, one, arena.gallery))


def _fitted(attack: Attack, arena: Arena, trial: Trial, suite: str) -> Attack:
    if isinstance(attack, Transfer):
        return replace(attack, attack=_fitted(attack.attack, arena, trial, suite))
    if isinstance(attack, OnClasses) != arena.is_of_classes:
        if arena.is_of_classes:
            raise InputError(
                f"the model is a classifier, and {trial.label!r} attacks rankings; use a suite such as classification "
                "or autoattack"
            )
        raise InputError(
            f"{trial.label!r} attacks classifiers, and the model is taken for an encoder; if it gives logits, set "
            "model.classes = K, their number; if not, use a suite such as ers224 or auto_rank"
        )
    if isinstance(attack, OnClasses) and isinstance(arena.model, Classifies):
        try:
            return attack.for_classes(arena.model.classes)
        except InputError as error:
            changed = f"base: {suite}, attacks: {{{trial.label}: {{attack: {{loss: margin}}}}}}"
            raise InputError(f"trial {trial.label!r}: {error}, as a suite of your own does: {{{changed}}}") from error
    return attack


def dressed(arena: Arena, attack: Attack) -> Arena:
    """The arena as an attack must see it: to match features, it is shown them, of the model and of all test images."""
    if not isinstance(attack, FeatureMatch):
        return arena
    model = Exposed(arena.model)
    items = embed(model, arena.queries, arena.view, arena.workers, arena.batch_size, seen=arena.seen)
    return replace(arena, model=model, gallery=Gallery(items, arena.queries.labels.to(items.device)))


def repeated(trial: Trial, runs: Sequence[tuple[Record, PerQuery]], score: str) -> tuple[Record, PerQuery]:
    """Runs of one trial as one record: each query's worst, the lowest run (as papers report it), and max - min."""
    if any(score not in values for _, values in runs):
        raise InputError(
            f"trial {trial.label!r} is repeated but gives no {score!r} to take the worst of; drop `repeats`"
        )
    worst = torch.stack([values[score] for _, values in runs]).amin(dim=0)
    means = [record.scores[score] for record, _ in runs]
    record = replace(
        runs[0][0],
        scores={score: float(worst.mean()), LOWEST: min(means), SPREAD: max(means) - min(means)},
        settings={**runs[0][0].settings, "repeats": trial.repeats},
        intervals=intervals({score: worst}),
        seconds=sum(record.seconds for record, _ in runs),
        context={**runs[0][0].context, "runs": means},
    )
    return record, {score: worst}


@dataclass
class WorstCase:
    """What is known of every query while a suite is run."""

    suite: Suite
    score: str
    clean: PerQuery
    """What is known of the queries without an attack."""
    _seen: list[tuple[Trial, Record, Bool[Tensor, " queries"]]] = field(default_factory=list)

    def standing(self, trial: Trial) -> Bool[Tensor, " queries"] | None:
        """The queries that a trial has still to attack; None: all, as it takes no turns."""
        group = self._group(trial)
        return None if group is None else self._left(trial, group)

    def turn(self, trial: Trial) -> dict[str, Any]:
        """What the context of a trial's record says of its turn: who was before it."""
        group = self._group(trial)
        return {} if group is None else {AFTER: [before.label for before, _, _ in self._of(trial, group)]}

    def note(self, trial: Trial, record: Record, values: PerQuery) -> None:
        """Take note of a trial's outcome; one that gives no answers, or leaves its ball, is no part of a worst case."""
        if self.score in values and is_bounded(trial.settings()):
            self._seen.append((trial, record, values[self.score] > 0))

    def records(self) -> Iterator[tuple[Record, PerQuery]]:
        """What is left by each group and by all trials, for each ball: the record, and 100 or 0 for each query."""
        if not self.suite.survivors:
            return
        places = {_place(trial): trial for trial, _, _ in self._seen}
        for one in places.values():
            for name, labels in self.suite.survivors.items():
                if {trial.label for trial, _, _ in self._of(one, labels)} == set(labels):
                    yield self._record(name, one, labels)
            yield self._record(WORST, one, [trial.label for trial in self.suite.trials])

    def _of(self, place: Trial, labels: Sequence[str]) -> list[tuple[Trial, Record, Bool[Tensor, " queries"]]]:
        return [found for found in self._seen if _place(found[0]) == _place(place) and found[0].label in labels]

    def _group(self, trial: Trial) -> Sequence[str] | None:
        """Those that a trial takes turns with; None where it takes none."""
        groups = [] if trial.on_all else self.suite.survivors.values()
        return next((labels for labels in groups if trial.label in labels), None)

    @property
    def _right(self) -> Bool[Tensor, " queries"]:
        return self.clean[self.score] > 0

    def _left(self, place: Trial, labels: Sequence[str]) -> Bool[Tensor, " queries"]:
        left = self._right
        for _, _, right in self._of(place, labels):
            left = left & right
        return left

    def _record(self, name: str, place: Trial, labels: Sequence[str]) -> tuple[Record, PerQuery]:
        parts = self._of(place, labels)
        right = 100 * self._left(place, labels).float()
        first = parts[0][1]
        keys = "\n".join(record.key for _, record, _ in parts)
        described = (
            "queries",
            "images",
            "gallery",
            "view",
            "batch",
            "precision",
            "search",
            "weights",
            "data_fingerprint",
        )
        record = replace(
            first,
            kind=KIND,
            name=name,
            scores={self.score: float(right.mean())},
            settings={
                **{key: first.settings[key] for key in (*KEPT, *described) if key in first.settings},
                "trials": [trial.label for trial, _, _ in parts],
                **({LEFT_OUT: list(self.suite.left_out)} if name == WORST and self.suite.left_out else {}),
                "measured": hashlib.sha256(keys.encode()).hexdigest()[:16],
            },
            intervals=intervals({self.score: right}),
            seconds=sum(record.seconds for _, record, _ in parts),
            context={**_general(first.context), "lost_first_to": self._lost(parts)},
        )
        return record, {self.score: right}

    def _lost(self, parts: Sequence[tuple[Trial, Record, Bool[Tensor, " queries"]]]) -> dict[str, int]:
        """By trial, how many queries were right until then."""
        left, lost = self._right, {}
        for trial, _, right in parts:
            lost[trial.label] = int((left & ~right).sum())
            left = left & right
        return lost


def standing_settings(standing: Bool[Tensor, " queries"] | None) -> dict[str, Any]:
    """What a record must say of the queries that its trial attacked: how many, and which."""
    if standing is None:
        return {}
    return {STANDING: int(standing.sum()), "standing_rows": digest(standing.numpy())}


def _place(trial: Trial) -> tuple[str, float, str]:
    """What outcomes must share to be compared per query."""
    return trial.engine.ball.norm, round(trial.engine.ball.radius, 9), trial.mode


def _general(context: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in context.items() if key in GENERAL}
