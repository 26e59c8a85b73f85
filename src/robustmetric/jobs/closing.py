"""What an evaluation says before and after in plain words: how long it will take, and how many searches it fooled."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from robustmetric.attacks.suite import Trial
from robustmetric.jobs.progress import say
from robustmetric.jobs.worst_case import LEFT_OUT
from robustmetric.records import Record, is_bounded
from robustmetric.report.scores import show_radius
from robustmetric.report.verdict import WORST

ANSWERS = ("R@1", "accuracy", "ES:R", "GTM", "LTM")
"""Scores of an attack that are the share of queries still answered rightly, in percent."""
WORTH_SAYING = 60
"""Seconds that nobody has to be warned of."""


def passes(trial: Trial) -> int:
    """Forward passes of one image that a trial may take; a step is one forward and one backward pass."""
    given = trial.settings()
    each = int(given.get("questions_per_image") or 2 * given.get("steps", 1) * given.get("restarts", 1))
    return trial.repeats * max(each, 1)


def estimator(ahead: Sequence[tuple[Trial, int]], in_turn: bool = False) -> Callable[[float, int], None]:
    """A function that is told the first batch's seconds and size, and says how long all trials may take.

    `ahead` has each trial with the queries it may attack. At most, for modes may share a climb and queries that are
    lost leave early; of attacks in turn by far, since what one has taken the next ones leave out.
    """

    def tell(seconds: float, size: int) -> None:
        first, most = ahead[0]
        total = seconds / size / passes(first) * sum(queries * passes(trial) for trial, queries in ahead)
        if total > WORTH_SAYING:
            count = f"{len(ahead)} attacks" if len(ahead) > 1 else "1 attack"
            less = ", much less where they succeed" if in_turn else ""
            say(f"up to about {in_words(total)} for {count} on {most} queries{less}; each is kept as it finishes")

    return tell


def in_words(seconds: float) -> str:
    """`3 min`, `2.5 h`."""
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.2g} h"


def of_suite(found: Sequence[Record], suite: str, settings: Mapping[str, Any], seed: int) -> list[Record]:
    """The records of a suite and a seed that have all of these settings."""
    of_this = [one for one in found if one.settings.get("suite") == suite and one.seed == seed]
    return [one for one in of_this if all(one.settings.get(key) == value for key, value in settings.items())]


def closing(found: Sequence[Record], suite: str, settings: Mapping[str, Any], seed: int) -> str:
    """A sentence on the strongest attack at the middle radius; "" where no score counts right answers.

    The radius is the protocol's choice: the largest may leave nothing of an image, and the smallest flatters.
    """
    of_this = of_suite(found, suite, settings, seed)
    clean = next((one for one in of_this if one.kind == "clean"), None)
    left = {
        (float(one.settings["radius"]), one.name): min(one.scores[key] for key in ANSWERS if key in one.scores)
        for one in of_this
        if one.kind in ("attack", "worst_case") and one.settings.get("mode") != "compat" and {*ANSWERS} & {*one.scores}
        if is_bounded(one.settings)
    }
    if clean is None or not left or not {"R@1", "accuracy"} & {*clean.scores}:
        return ""
    radii = sorted({radius for radius, _ in left})
    middle = radii[len(radii) // 2]
    there = {name: value for (radius, name), value in left.items() if radius == middle}
    # The worst case over all attacks, query by query, where the suite takes it: no single one is stronger.
    name = WORST if WORST in there else min(there, key=there.__getitem__)
    score = "R@1" if "R@1" in clean.scores else "accuracy"
    before, after = (round(share * clean.count / 100) for share in (clean.scores[score], there[name]))
    what, is_right = ("searches", "find the right class first") if score == "R@1" else ("images", "are named rightly")
    worst = next((one for one in of_this if one.name == WORST and one.settings["radius"] == middle), None)
    but = f" but {', '.join(worst.settings[LEFT_OUT])}" if worst is not None and LEFT_OUT in worst.settings else ""
    under = f"the worst of all attacks{but} for each" if name == WORST else f"the strongest attack ({name})"
    return f"of {clean.count} {what} {before} {is_right}, and {after} under {under} at radius {show_radius(middle)}"
