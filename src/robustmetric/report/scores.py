"""What each score means and which way is better for the model: the one place that says so."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from robustmetric.records import is_bounded

DASH = "–"  # noqa: RUF001  # an en dash, as tables print a missing value
UNBOUNDED = "without a bound"
"""Said instead of a radius where an attack kept to none."""
MULTIPLY = "×"  # noqa: RUF001  # the sign, not the letter


@dataclass(frozen=True)
class Score:
    """How to read one score: its better direction from the model's side, decimals, and one line of explanation."""

    better: Literal["higher", "lower", "unknown"]
    meaning: str
    decimals: int = 1
    words: str = ""
    """A longer name, for a header with room."""
    is_share: bool = False
    """Whether it is the share of queries that are right: 100 for each of them, and 0 for the others."""

    @property
    def arrow(self) -> str:
        """The better direction as a sign for a table header."""
        return {"higher": "↑", "lower": "↓", "unknown": ""}[self.better]


UNKNOWN = Score("unknown", "no description is kept for this score")

SCORES: dict[str, Score] = {
    **{
        f"R@{k}": Score("higher", f"percent of queries with an item of their own class in the top {k}", is_share=True)
        for k in (1, 2, 4, 8, 10, 20)
    },
    "accuracy": Score(
        "higher",
        "percent of images that the classifier names rightly; of repeated attacks, each image's worst",
        is_share=True,
    ),
    "lowest run": Score("higher", "accuracy in the lowest of several runs of one attack, as papers report it"),
    "max - min": Score("lower", "by how much runs of one attack from other random starts differ, in points"),
    "mAP": Score("higher", "mean average precision over the whole ranking, in percent"),
    "mAP@R": Score("higher", "mean average precision cut at R, the number of relevant items of the query, in percent"),
    "mAP@10": Score("higher", "mean average precision cut at rank 10, in percent"),
    "NMI": Score(
        "higher", "agreement of k-means clusters with the classes (normalised mutual information), in percent"
    ),
    "AMI": Score("higher", "agreement of k-means clusters with the classes, corrected for chance, in percent"),
    "F1": Score("higher", "pairs put in one cluster against pairs of one class (pairwise F1), in percent"),
    "probe": Score(
        "higher", "accuracy of a linear classifier on the embeddings, fitted on every other image, in percent"
    ),
    "ES:R": Score(
        "higher",
        "R@1 after the attacker moved the query's embedding as far as it could, in percent",
        words="R@1 under attack",
        is_share=True,
    ),
    "ES:D": Score(
        "lower", "how far the attacker moved the embedding; 0 = not at all, 2 = to the opposite side", decimals=3
    ),
    "CA+": Score(
        "higher", "percentile rank the attacker can reach for a chosen image; 50 = no effect, 0 = fully fooled"
    ),
    "CA-": Score(
        "lower", "percentile rank to which the attacker can push a top image; about 1 = no effect, 100 = fully fooled"
    ),
    "QA+": Score("higher", "percentile rank a changed query gives a chosen image; 50 = no effect, 0 = fully fooled"),
    "QA-": Score("lower", "percentile rank a changed query gives a top image; about 1 = no effect, 100 = fully fooled"),
    "TMA": Score(
        "lower", "cosine similarity the attacker can reach with a random target; 1 = fully fooled", decimals=3
    ),
    "LTM": Score(
        "higher", "R@1 after an attack that pulls other classes nearer than the query's own, in percent", is_share=True
    ),
    "GTM": Score("higher", "R@1 after an attack towards the nearest item of another class, in percent", is_share=True),
    "GTT": Score("higher", "percent of queries whose first result stays in the top 4 under attack", is_share=True),
    "SPQA+": Score("higher", "as QA+, of an attacker who also keeps the top of the list as it was"),
    "SPQA-": Score("lower", "as QA-, of an attacker who also keeps the top of the list as it was"),
    "FOA": Score(
        "lower", "percent of queries for which the attacker swaps two near items; 0 = none, 100 = fully fooled"
    ),
    "FOA:tau": Score(
        "lower", "rank correlation of near items with the attacker's order; 0 = no effect, 1 = fully fooled", decimals=3
    ),
    "SPFOA": Score("lower", "as FOA, of an attacker who also keeps the top of the list as it was"),
    "SPFOA:tau": Score("lower", "as FOA:tau, of an attacker who also keeps the top of the list as it was", decimals=3),
    **{
        f"{name}:G": Score("higher", f"percentile rank {name} leaves to the items it keeps near; 0 = not to be noticed")
        for name in ("SPQA+", "SPQA-", "SPFOA")
    },
    "ERS": Score("higher", "mean of ten sub-scores (100 = robust); read it beside R@1, for it rewards collapse"),
}


def describe(name: str) -> Score:
    """How to read the score of that name."""
    return SCORES.get(name, UNKNOWN)


def show(name: str, value: float | None) -> str:
    """The value as a reader sees it: the score's own decimals, a dash where there is none."""
    return DASH if value is None else f"{value:.{describe(name).decimals}f}"


def show_interval(name: str, interval: tuple[float, float] | None) -> str:
    """The 95 % interval, empty where none was measured."""
    return f"{show(name, interval[0])} to {show(name, interval[1])}" if interval else ""


def show_radius(radius: float, among: tuple[float, ...] = ()) -> str:
    """`8/255` for a whole number of grey levels, else a decimal; `among` are the radii it stands beside.

    0.2 is 51/255 too: beside 0.1 and 0.3 it stays 0.2, beside 17/255 and 34/255 it becomes 51/255.
    """
    if radius == 0:
        return "0"
    beside = [r for r in (*among, radius) if r > 0]
    in_levels = all(_whole(r) for r in beside) and not all(_short(r) for r in beside)
    if _whole(radius) and (in_levels or not _short(radius)):
        return f"{round(radius * 255)}/255"
    return f"{radius:.4g}"


def title(name: str, settings: Mapping[str, Any]) -> str:
    """A measurement as progress and results name it: `ES at 8/255`, `Local search without a bound`, or `clean`."""
    if not is_bounded(settings):
        return name if UNBOUNDED in name else f"{name} {UNBOUNDED}"
    return f"{name} at {show_radius(float(settings['radius']))}" if "radius" in settings else name


def _whole(radius: float) -> bool:
    # 0.03137 is how papers round 8/255, which is 1e-3 of a level off.
    return math.isclose(radius * 255, round(radius * 255), abs_tol=2e-3) and round(radius * 255) > 0


def _short(radius: float) -> bool:
    return math.isclose(radius, round(radius, 2), abs_tol=1e-9)
