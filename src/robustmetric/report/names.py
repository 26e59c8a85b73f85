"""What rows of the ledger call a defence, from the settings that its tables vary."""

from collections.abc import Mapping
from typing import Any

LETTERS = {"random": "r", "semihard": "m", "softhard": "s", "distance_weighted": "d", "hardest": "h"}
GOALS = {0.0: "zero", -0.1: "half_margin", -0.2: "margin"}
POWERS = {1.0: "lga", 2.0: "g2", 0.5: "g_half"}


def label(defence: Mapping[str, Any], data: str = "") -> str:
    """A defence as files name it: `act_s` is ACT[S], `hm_r_m_ics` HM[R,M]&ICS, `hm_lga` HM[S,g_LGA]."""
    name = str(defence.get("name", "")).rpartition(".")[2]
    loss = defence.get("loss") or {}
    miner = (defence.get("source") or loss.get("miner") or {"name": "random"})["name"]
    letter = LETTERS.get(miner, miner)
    if "destination" in defence:
        goal = defence["destination"]
        own = goal["name"] != "mined"
        source = [] if own and letter == "s" else [letter]
        parts = [name, *source, _goal(goal), *_structure(defence, 0.05 if data == "sop" else 0.5)]
        return "_".join([*parts, *([f"offset{digits(defence['offset'])}"] if defence.get("offset") else [])])
    parts = ["noise" if is_noise(defence) else name]
    parts = [f"gaussian{digits(defence['sigma'])}"] if name == "noise" else parts
    if loss.get("name") == "cross_entropy":
        parts += _scattering(defence)
        parts += [f"smoothing{digits(loss['smoothing'])}"] if loss.get("smoothing") else []
    elif loss.get("name", "triplet") != "triplet":
        parts.append(str(loss.get("loss") or loss["name"]).lower())
    # Random is the usual source of all but CA-TRIDE, whose public code has semi-hard ones.
    elif letter != ("m" if name == "ca_tride" else "r"):
        parts.append(letter)
    parts += ["partial"] if defence.get("clean_anchor") else []
    parts += [f"growing{digits(defence['growing'])}"] if defence.get("growing") else []
    parts += [str(defence["nudge"])] if defence.get("nudge", "random") != "random" else []
    parts += [f"plain{digits(defence['plain_share'])}"] if defence.get("plain_share") else []
    return "_".join(parts)


def is_noise(defence: Mapping[str, Any]) -> bool:
    """Whether its attack takes no step: a random start alone is noise in the place of an attack."""
    return defence.get("name") == "madry" and steps(defence) == 0


def _scattering(defence: Mapping[str, Any]) -> list[str]:
    """What tells one feature scattering from another; the usual one is matched by Sinkhorn, in logits, by cosine."""
    matching = str((defence.get("matching") or {}).get("name", "sinkhorn")).removesuffix("_matching")
    parts = [matching] if matching != "sinkhorn" else []
    parts += [
        str(defence[key])
        for key, usual in (("cost", "cosine"), ("space", "logits"))
        if defence.get(key, usual) != usual
    ]
    return parts + (["detached"] if defence.get("detached") else [])


def _goal(goal: Mapping[str, Any]) -> str:
    kind = goal["name"]
    if kind == "mined":
        return LETTERS.get(goal["miner"]["name"], goal["miner"]["name"])
    if kind == "fixed":
        return GOALS.get(float(goal["value"]), f"fixed{digits(goal['value'])}")
    if kind == "gradual":
        power = float(goal.get("power", 1))
        return POWERS.get(power, f"g{digits(power)}") + (f"_u{digits(goal['cap'])}" if goal.get("cap") else "")
    if kind == "boosted":
        miner, boost = goal["miner"]["name"], float(goal.get("boost", 0.1))
        parts = ["gb", *([LETTERS.get(miner, miner)] if miner != "semihard" else [])]
        return "_".join([*parts, *([f"xi{digits(boost)}"] if boost != 0.1 else [])])
    if kind == "between":
        ends = [LETTERS.get(goal[end]["name"], goal[end]["name"]) for end in ("start", "end")]
        return "_".join(["between", *ends, digits(goal.get("share", 0.5))])
    return str(kind)


def _structure(defence: Mapping[str, Any], usual: float) -> list[str]:
    term = defence.get("structure")
    if not term:
        return []
    weight, margin = float(term.get("weight", 0.5)), float(term.get("margin", 0))
    triplet = list(term.get("triplet", ("a", "a~", "p")))
    parts = ["ics"] if triplet == ["a", "a~", "p"] else ["ics", *(part.replace("~", "t") for part in triplet)]
    parts += [f"weight{digits(weight)}"] if weight != usual else []
    return parts + ([f"margin{digits(margin)}"] if margin else [])


def digits(number: float | int) -> str:
    """2.2 as `2_2`, 1.0 as `1`: no dots in file names."""
    return f"{float(number):g}".replace(".", "_").replace("-", "m")


def steps(defence: Mapping[str, Any]) -> int | None:
    """Steps of the training attack (eta); None where there is none."""
    attack = defence.get("attack")
    return int(attack["steps"]) if isinstance(attack, dict) and "steps" in attack else None
