"""Rows of the ledger about clustering: what files call a defence and a model, by all that differs from the usual."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from robustmetric.report.names import digits

NAMES = {"madry": "at", "naive_ensemble": "naive"}
"""Defences that the paper calls by another name."""
USUAL_LOSS = "proxy_anchor"
_MIXED = {"concentration": 1.0, "per_image": True, "in_pairs": False}
USUAL: dict[str, dict[str, Any]] = {
    "adp": {"entropy_weight": 2.0, "diversity_weight": 0.5, "sharpness": 16.0},
    "eat": {"clean_share": 0.5, "objective": "shift", "seed": 0, "growing": 0.0},
    "iat": {**_MIXED, "objective": "shift", "summed": False, "separate": False, "growing": 0.0},
    "madry": {"clean_share": 0.0, "objective": "shift", "climbed": None, "growing": 0.0},
    "mixup": _MIXED,
    "trades": {"weight": 6.0, "objective": "shift", "as_proxies": False, "growing": 0.0},
    "proxy_anchor": {"margin": 0.1, "scale": 32.0},
    "pgd": {"steps": 10, "random_start": True, "restarts": 1, "keep": "last"},
    "ball": {"norm": "linf", "bounds": [0.0, 1.0]},
}
"""What a name leaves out: the defaults, but for AT, which climbs the shift in this paper. Of what is not here, a name
tells every setting that a recipe writes."""
OF_DEFENCES = ("name", "loss", "losses", "defences", "goal", "shared", "divided", "by_class", "small_classes")
"""Settings with words of their own, and one that says what is refused rather than what is done."""
OF_LOSSES = ("name", "classes", "dim", "seed")
OF_ATTACKS = ("name", "radius", "step_size")
MEMBERS, STEPS_TO_EDGE = 3, 4
"""Of the usual ensemble, and of the usual training attack, whose steps are a quarter of the radius."""
SIZES = {"bn_inception": 512}
USUAL_SIZE, USUAL_BACKBONE = 128, "mobilenet_v2"
"""Of an embedding; `SIZES` are those of other architectures."""


def kind(defence: Mapping[str, Any], is_long: bool = False) -> str:
    """A defence as the files of this paper name it, `at`, `eat`, `no_split`, with what differs from the usual."""
    return "_".join([*_parts(defence), *(["long"] if is_long else [])])


def _parts(defence: Mapping[str, Any], place: int = 0) -> list[str]:
    """The words of a name, each once; `place` is that of a member's own defence in an ensemble."""
    name = str(defence["name"])
    if name == "one_student":
        first, *others = _parts(defence["trained_by"])
        model = backbone(defence["ensemble"]) if "ensemble" in defence else USUAL_BACKBONE
        taught = [name, *([first] if first != "eat" else []), *others, *_of_losses([defence["loss"]])]
        return _once([*taught, *([model] if model != USUAL_BACKBONE else [])])
    inner = ["_".join(_parts(part, place)) for place, part in enumerate(defence.get("defences") or [])]
    # Of members all alike once, and nothing of the usual AT.
    alike = inner[:1] if len(set(inner)) == 1 else inner
    parts = [_head(defence), *(["_".join(alike)] if inner and alike != ["at"] else [])]
    if defence.get("goal", "label") != "label" or defence.get("shared") is False:
        parts.append("literal")
    losses = defence.get("losses") or ([defence["loss"]] if defence.get("loss") else [])
    parts += _of_losses(losses, place)
    members = len(inner or defence.get("losses") or range(MEMBERS))
    parts += [f"n{members}"] if members != MEMBERS else []
    # Left out, the objective of AT is the label.
    parts += _differing({"objective": "label", **defence} if name == "madry" else defence, OF_DEFENCES)
    return _once([*parts, *(_step_size(defence) if not inner else [])])


def _head(defence: Mapping[str, Any]) -> str:
    name = str(defence["name"])
    if defence.get("by_class"):
        return "by_class"
    return "no_split" if name == "eat" and not defence.get("divided", True) else NAMES.get(name, name)


def _of_losses(losses: Iterable[Mapping[str, Any]], first: int = 0) -> list[str]:
    """The losses' names, unless all have the usual one, and their settings; the usual seed is the member's place."""
    names, words = [], []
    for place, loss in enumerate(losses, first):
        names.append(str(loss["name"]))
        seed = loss.get("seed", 0 if names[-1] == USUAL_LOSS else place)
        words += [*_differing(loss, OF_LOSSES), *([f"seed{seed}"] if seed != place else [])]
    return [*(_once(names) if set(names) != {USUAL_LOSS} else []), *(f"loss_{word}" for word in _once(words))]


def _differing(spec: Mapping[str, Any], told: Collection[str]) -> list[str]:
    """A word for each setting that is not the usual one, at any depth, but for those that are told elsewhere."""
    usual, parts = USUAL.get(str(spec.get("name")), {}), []
    for key in sorted(spec.keys() - {*told}):
        value = spec[key]
        if isinstance(value, dict) and "name" in value:
            parts += [str(value["name"])] if value["name"] not in ("pgd", "ball") else []
            parts += _differing(value, OF_ATTACKS)
        elif key not in usual or value != usual[key]:
            parts.append(_word(key, value))
    return parts


def _word(key: str, value: Any) -> str:
    """`summed`, `no_random_start`, `weight1`, `label`, `keep_best`."""
    if value is None or isinstance(value, bool):
        return key if value else f"no_{key}"
    if isinstance(value, int | float):
        return f"{key}{digits(value)}"
    values = value if isinstance(value, list) else [value]
    words = [digits(each) if isinstance(each, int | float) else str(each) for each in values]
    return "_".join([*([key] if key != "objective" else []), *words])


def _step_size(defence: Mapping[str, Any]) -> list[str]:
    """That of the training attack, in 255ths, where it is not the usual part of the radius."""
    size, radius = _inside(defence, "step_size"), radius_of(defence)
    if size is None or radius is None or math.isclose(STEPS_TO_EDGE * size, radius, rel_tol=1e-3):
        return []
    return [f"step_size{digits(255 * size)}"]


def _once(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))


def radius_of(defence: Any) -> float | None:
    """Of the training attack, wherever in the defence it stands; None where there is none."""
    return _inside(defence, "radius")


def _inside(spec: Any, key: str) -> float | None:
    """The first number under this key, at any depth."""
    if isinstance(spec, dict) and key in spec:
        return float(spec[key])
    parts = list(spec.values()) if isinstance(spec, dict) else spec if isinstance(spec, list) else []
    return next((number for part in parts if (number := _inside(part, key)) is not None), None)


def backbone(model: Mapping[str, Any]) -> str:
    """The architecture, of an ensemble that of its members, with the embedding's size and the norms if unusual."""
    inner = (model.get("members") or [None])[0] or model.get("trunk")
    if "architecture" not in model and isinstance(inner, dict):
        return backbone(inner)
    name = str(model.get("architecture") or model["name"])
    size, usual = model.get("dim", SIZES.get(name, USUAL_SIZE)), SIZES.get(name, USUAL_SIZE)
    norms = "_auxiliary" if model.get("batch_norm") == "auxiliary" else ""
    return (name if size == usual else f"{name}_dim{size}") + norms


def named(kind: str, radius: float | None) -> str:
    """A way of training in a table: `eat-r8`."""
    return kind if radius is None else f"{kind}-r{255 * radius:g}"


def in_id(kind: str, defence: Mapping[str, Any]) -> str:
    """The same in an id: without a radius the usual loss is told too, since triplets have a `plain` of their own."""
    radius = radius_of(defence)
    return f"{kind}_{USUAL_LOSS}" if radius is None and USUAL_LOSS in _names(defence) else named(kind, radius)


def _names(defence: Mapping[str, Any]) -> list[str]:
    """The names of its metric losses."""
    parts = (defence, *(defence.get("defences") or []))
    return [str(loss["name"]) for part in parts for loss in (part.get("losses") or [part.get("loss")]) if loss]
