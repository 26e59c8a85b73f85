"""Curves of clustering under attack: R@1 and F1 against the attack's steps and against its radius, a line per run."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from robustmetric.records import Record
from robustmetric.report.clustering import BOTH, CLEAN, STRONGEST, Group
from robustmetric.report.plots import INK, Plot, Series, by_factors, draw, new_axes, to_svg
from robustmetric.report.runs import Run
from robustmetric.report.scores import show_radius

SCORES = ("R@1", "F1")
FEWEST = 3
"""Points, clean apart, that make a curve."""

Key = tuple[Any, ...]


def sweeps(group: Group, runs: Sequence[Run], name: str) -> list[Plot]:
    """One plot for each score, and for each attack of which there are enough steps, or radii."""
    made: list[Plot] = []
    for axis, of, across in (("steps", _but_steps, "steps of the attack"), ("radius", _but_radius, "radius")):
        for shared in _shared(group, of):
            for score in SCORES:
                lines = [
                    line
                    for place in group.records
                    if (line := _line(group.headline(place), place, axis, score, of, shared)) is not None
                ]
                if lines:
                    plot = _plot(lines, axis, score, across, _chance(group, score), f"{name}-{len(made)}", runs)
                    title = f"{score} against {axis}"
                    made.append(Plot(title, _caption(axis, shared), tuple(line.style for line in lines), plot))
    return made


def _but_steps(record: Record) -> Key:
    """What must agree along a curve of steps."""
    settings = record.settings
    return settings["attack"], round(float(settings["radius"]), 9), round(float(settings["step_size"]), 9)


def _but_radius(record: Record) -> Key:
    """What must agree along a curve of radii: the steps, and their size as a share of the radius."""
    settings = record.settings
    return settings["attack"], settings["steps"], round(float(settings["step_size"]) / float(settings["radius"]), 6)


def _shared(group: Group, of: Callable[[Record], Key]) -> list[Key]:
    return list(dict.fromkeys(of(r) for place in group.records for r in group.headline(place) if _is_step(r)))


def _is_step(record: Record) -> bool:
    """Whether it is a climb in steps, of both sides, and no summary of several."""
    settings = record.settings
    whole = settings["sides"] == BOTH and settings["trial"] != STRONGEST
    return whole and {"steps", "step_size", "radius"} <= set(settings) and float(settings["radius"]) > 0


def _line(
    records: Sequence[Record], style: int, axis: str, score: str, of: Callable[[Record], Key], shared: Key
) -> Series | None:
    """A run's points, the clean one at 0; None where there are too few."""
    found = {float(r.settings[axis]): r for r in records if _is_step(r) and of(r) == shared and score in r.scores}
    clean = next((r for r in reversed(records) if r.settings["sides"] == CLEAN and score in r.scores), None)
    if len(found) < FEWEST:
        return None
    points = sorted(([(0.0, clean)] if clean is not None else []) + list(found.items()), key=lambda point: point[0])
    bands = [r.intervals.get(score, _spread(r, score)) for _, r in points]
    return Series(
        style=style,
        x=tuple(x for x, _ in points),
        y=tuple(r.scores[score] for _, r in points),
        low=tuple(float(low) for low, _ in bands),
        high=tuple(float(high) for _, high in bands),
    )


def _spread(record: Record, score: str) -> tuple[float, float]:
    """One standard deviation over k-means seeds either way, where the record has it."""
    middle, deviation = record.scores[score], record.scores.get(f"{score} std", math.nan)
    return middle - deviation, middle + deviation


def _plot(
    lines: Sequence[Series],
    axis: str,
    score: str,
    across: str,
    chance: float | None,
    name: str,
    runs: Sequence[Run],
) -> Markup:
    figure, axes = new_axes(across, f"{score} in percent")
    for line in lines:
        draw(axes, line)
    ticks = sorted({x for line in lines for x in line.x})
    if axis == "steps":
        by_factors(axes, ticks)
    else:
        kept = [x for i, x in enumerate(ticks) if not i or x - ticks[i - 1] >= ticks[-1] / 20]
        axes.set_xticks(kept, [show_radius(x, tuple(ticks)) for x in kept], rotation=45)
    if chance is not None:
        axes.axhline(chance, color=INK, linestyle="--", linewidth=1)
    axes.set_ylim(bottom=0)
    return to_svg(figure, name, f"{score} against {axis} for {', '.join(runs[line.style].label for line in lines)}")


def _chance(group: Group, score: str) -> float | None:
    stated = {r.context["chance"] for found in group.records.values() for r in found if "chance" in r.context}
    return float(stated.pop()) if score == "R@1" and len(stated) == 1 else None


def _caption(axis: str, shared: Key) -> str:
    attack, second, third = shared
    inner = re.search(r"attack=(\w+)", attack)
    title = inner[1] if inner else attack
    if axis == "steps":
        return f"{title} at {show_radius(second)}, steps of {show_radius(third)}."
    return f"{title}, {second} steps of {third:g} of the radius."
