"""The block `clustering` of a row of the ledger: what it holds, checked."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

SUITES = {"clustering": "pgd10", "clustering_adaptive": "adaptive", "clustering_short": "adaptive_short"}
"""Where the numbers of a suite stand in a row's block `clustering`."""
SWEEP, NOISE = "clustering_sweep", "clustering_noise"
SCORES = (
    *(f"R@{k}" for k in (1, 2, 4, 8, 10, 20)),
    *(f"{name}{end}" for name in ("NMI", "AMI", "F1") for end in ("", " std")),
)
SIDES = ("query only", "gallery only")
COSINES = "cosines"
"""Under one attack, mean cosines of two clean images, of two moved ones, and of a moved one to its clean self."""
PAIRS = ("clean", "moved", "own")
SEARCH = "search"
"""Beside scores under attacks that searched in another precision than fp32, which they are scored in."""
FLAT = "percent_without_gradient_at_the_start"
"""Of an attack: images that its first step cannot move, as none can where a distance to the clean self is climbed."""
LONELY = "without_positives"
"""How many queries have no image of their class to find."""
SWEPT = ("steps", "radii", "noise")
"""Scores by a number: steps, and radii in 255ths."""
NOTES = {**dict.fromkeys(SUITES.values(), (COSINES, SEARCH)), "steps": (SEARCH,), "radii": (SEARCH,)}
"""By part of the block, what may stand beside its scores; noise searches nothing, other readings have few scores."""


def faults(block: Any) -> list[str]:
    """What is wrong with a row's block `clustering`, in words."""
    if not isinstance(block, dict) or not isinstance(block.get("reading"), str) or "clean" not in block:
        return ["clustering is no object with a reading and clean scores"]
    found = []
    for key, scores in block.items():
        if key in ("clean", *SUITES.values()):
            found += _faults(f"clustering.{key}", scores, NOTES.get(key, ()))
        elif key == "readings":
            for reading, parts in scores.items():
                for part, own in parts.items():
                    found += _faults(f"clustering.{key}.{reading}.{part}", own)
        elif key in SWEPT:
            found += [f"clustering.{key}: {at!r} is no number > 0" for at in scores if not _is_above_zero(at)]
            for at, own in scores.items():
                found += _faults(f"clustering.{key}.{at}", own, NOTES.get(key, ()))
        elif key == LONELY:
            found += (
                [] if _is_count(scores) else [f"clustering.{LONELY} {scores!r} is no number of queries; leave it out"]
            )
        elif key != "reading":
            found.append(f"clustering.{key} is not known")
    return found


def _faults(name: str, scores: Any, notes: Sequence[str] = ()) -> list[str]:
    """What is wrong with scores; `notes` are what may stand beside them."""
    if not isinstance(scores, dict) or not scores:
        return [f"{name} is empty; leave it out"]
    found = []
    for score, value in scores.items():
        if score in SIDES:
            found += _faults(f"{name}.{score}", value)
        elif score in ("attacks", "of"):
            found += _faults_of_count(name, scores) if score == "attacks" or "attacks" not in scores else []
        elif score == "by":
            found += [] if isinstance(value, dict) and value else [f"{name}.by names no attacks"]
        elif score == SEARCH and score in notes:
            found += [] if value == "bf16" else [f"{name}.{SEARCH} {value!r} is not 'bf16'; it is left out for fp32"]
        elif score == COSINES and score in notes:
            found += [] if _are_cosines(value) else [f"{name}.{COSINES} {value!r} are not {', '.join(PAIRS)}, -1 to 1"]
        elif score not in SCORES:
            found.append(f"{name}.{score} is not known")
        elif not _is_rate(value, low=-100.0 if score == "AMI" else 0.0):
            found.append(f"{name}.{score} {value!r} is no rate in percent")
    return found


def _faults_of_count(name: str, scores: Mapping[str, Any]) -> list[str]:
    """Which attacks of a suite were run, `attacks`, and `of` how many."""
    attacks, of = scores.get("attacks"), scores.get("of")
    if not isinstance(attacks, list) or not attacks or not all(isinstance(each, str) for each in attacks):
        return [f"{name}.attacks names no attacks"]
    if not isinstance(of, int) or isinstance(of, bool) or of < len(attacks):
        return [f"{name}.of {of!r} is less than its {len(attacks)} attacks"]
    return []


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_above_zero(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None and float(text) > 0


def _are_cosines(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == set(PAIRS) and all(map(_is_cosine, value.values()))


def _is_cosine(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1 <= value <= 1


def is_cut(scores: Mapping[str, Any]) -> bool:
    """Whether numbers of a suite are those of some of its attacks alone."""
    return "of" in scores and len(scores["attacks"]) < int(scores["of"])


def _is_rate(value: Any, low: float) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and low <= value <= 100
