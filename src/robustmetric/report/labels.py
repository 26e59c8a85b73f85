"""Numbers beside the points of a plot, each where it covers neither a point nor another number, or not at all."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robustmetric.report.plots import INK

Point = tuple[float, float]
SIZE = 9.0
"""Of the letters, in points of 1/72 inch as all lengths here."""
WIDTH = 0.65 * SIZE
"""Of a digit, at most."""
POINT = 3.5
"""Half of a point's marker, and a little."""
AWAY = 5.0
"""From the middle of a point to its number."""


def label(figure: Figure, axes: Axes, points: Sequence[tuple[Point, str]]) -> None:
    """Write the names of points beside them, the first ones first; the axes have their limits already."""
    # Where points come to lie is settled when everything is drawn.
    figure.draw_without_rendering()
    inch = 72 / figure.dpi
    shown = [(float(x) * inch, float(y) * inch) for x, y in map(axes.transData.transform, (at for at, _ in points))]
    corners = beside(shown, [len(name) * WIDTH for _, name in points], bottom=float(axes.bbox.y0) * inch)
    for (x, y), (point, name), corner in zip(shown, points, corners, strict=True):
        if corner is not None:
            offset = (corner[0] - x, corner[1] - y)
            axes.annotate(name, point, xytext=offset, textcoords="offset points", fontsize=SIZE, color=INK)


def beside(points: Sequence[Point], widths: Sequence[float], bottom: float) -> list[Point | None]:
    """The lower left corner of each point's label above `bottom`; None where it has no room, or no width."""
    taken = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in points]
    corners: list[Point | None] = []
    for (x, y), width in zip(points, widths, strict=True):
        ways = [
            (x + AWAY, y + 4),
            (x - AWAY - width, y + 4),
            (x + AWAY, y - 4 - SIZE),
            (x - AWAY - width, y - 4 - SIZE),
        ]
        free = (way for way in ways if way[1] >= bottom and not any(_meet(_box(way, width), one) for one in taken))
        corner = next(free, None) if width else None
        corners.append(corner)
        if corner is not None:
            taken.append(_box(corner, width))
    return corners


Box = tuple[float, float, float, float]
"""Left, lower, right and upper end."""


def _box(corner: Point, width: float) -> Box:
    return (*corner, corner[0] + width, corner[1] + SIZE)


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
