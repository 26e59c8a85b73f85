"""What a training step costs, in forward passes of one model on one image, by defence."""

from collections.abc import Mapping
from typing import Any

UPDATE, STEP, LOOK = 3.0, 2.0, 1.0
"""Forward passes that an image costs: forward and full backward; forward and input gradient; forward alone."""
TRIPLET, PAIR = 1.5, 1.0
"""Images of all triplets, of their positives and negatives, per image of the batch: one triplet for two images."""
CHOICELESS = ("cross_entropy", "proxy_anchor")
"""Losses that mine nothing: climbing them needs no look at clean embeddings."""
ENSEMBLES = ("adp", "naive_ensemble", "eat")


def cost(defence: Mapping[str, Any]) -> float | None:
    """Forward passes per training image and update, at most (rows at their goal leave early); None if not known."""
    kind, attack = defence["name"], defence.get("attack") or {}
    climb = STEP * attack.get("steps", 0) * attack.get("restarts", 1)
    if kind in ("plain", "mixup"):
        return UPDATE
    if kind in ENSEMBLES:
        return _of_ensemble(defence, climb)
    if kind == "one_student":
        inner = cost(defence["trained_by"])
        return None if inner is None else inner + UPDATE
    if kind in ("est", "ses", "madry", "iat", "trades"):
        again = kind in ("ses", "iat", "trades") or (kind == "madry" and 0 < defence.get("clean_share", 0) < 1)
        # An embedding that is only a target needs no backward pass.
        target = LOOK if kind == "madry" and defence.get("goal") == "embedding" and not again else 0.0
        return (LOOK if kind != "madry" or _looks(defence) else 0.0) + climb + UPDATE * (2 if again else 1) + target
    if kind == "one_step":
        return (LOOK if _looks(defence) else 0.0) + STEP + UPDATE
    if kind in ("scattering", "random_target"):
        return (LOOK if kind == "scattering" else 0) + climb + UPDATE
    if kind in ("act", "rest") or (kind == "minmax" and defence.get("clean_anchor")):
        return LOOK + climb * PAIR + UPDATE * TRIPLET
    if kind in ("hm", "minmax"):
        goal = defence.get("destination") or {}
        still = goal.get("name") == "mined" and goal.get("miner") == defence.get("source")
        term = defence.get("structure") or {}
        wanted = [part for part in term.get("triplet", ("a", "a~", "p")) if "~" not in part] if term else []
        return LOOK + (0 if still else climb * TRIPLET) + UPDATE * (TRIPLET + len(set(wanted)) / 2)
    if kind == "ca_tride":
        # Pairs on one batch, anchors, half as many, on the next.
        return LOOK + climb * (PAIR + PAIR / 2) / 2 + UPDATE * TRIPLET
    if kind == "free_hm":
        return LOOK / defence.get("replays", 4) + UPDATE * TRIPLET
    return None


def _looks(defence: Mapping[str, Any]) -> bool:
    """Whether adversarial training looks at clean embeddings first, to mine triplets or to lead away from them."""
    loss = (defence.get("loss") or {}).get("name", "triplet")
    return loss not in CHOICELESS or defence.get("objective", "label") != "label"


def _of_ensemble(defence: Mapping[str, Any], climb: float) -> float | None:
    """Of all members together, for an image of the batch, whoever trains on it."""
    if defence["name"] == "naive_ensemble":
        each = [cost(inner) for inner in defence["defences"]]
        return None if None in each else sum(one for one in each if one is not None)
    members = len(defence["losses"])
    if defence["name"] == "adp":
        return UPDATE * members
    trained = members - 1 if defence.get("divided", True) else members
    climbs = 1 if defence.get("shared", True) else trained
    passes = 2 if 0 < defence.get("clean_share", 0.5) < 1 else 1
    return members * (LOOK + climb * climbs) + UPDATE * trained * passes
