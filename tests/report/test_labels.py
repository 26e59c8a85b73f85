"""Numbers beside points: never over a point or another number, and left out where there is no room."""

from itertools import combinations

from matplotlib.axes import Axes

from robustmetric.report.labels import label
from robustmetric.report.plots import new_axes


def drawn(*points: tuple[float, float], names: list[str] | None = None) -> Axes:
    figure, axes = new_axes("across", "up")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    for x, y in points:
        axes.plot([x], [y], marker="o", markersize=6)
    label(figure, axes, list(zip(points, names or [str(place) for place in range(1, len(points) + 1)], strict=True)))
    return axes


def written(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_a_number_stands_right_above_its_point_where_there_is_room() -> None:
    axes = drawn((50.0, 50.0), (20.0, 80.0))
    assert written(axes) == ["1", "2"]
    for text, corner in zip(axes.texts, axes.transData.transform([(50.0, 50.0), (20.0, 80.0)]), strict=True):
        box = text.get_window_extent()
        assert box.x0 > corner[0] and box.y0 > corner[1]


def test_a_point_without_a_name_has_no_number_and_keeps_others_off_it() -> None:
    # The second lies where the number of the first would be.
    axes = drawn((50.0, 50.0), (52.0, 53.0), names=["1", ""])
    assert written(axes) == ["1"]
    assert axes.texts[0].get_window_extent().x1 < axes.transData.transform((50.0, 50.0))[0]


def test_numbers_cover_neither_points_nor_each_other() -> None:
    points = [(40.0 + 3 * (i % 5), 2.5 * (i // 5)) for i in range(25)]
    axes = drawn(*points)
    assert 3 < len(axes.texts) < 25, "some have no room"
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert not any(box.contains(*point) for box in boxes for point in axes.transData.transform(points))
    assert all(box.y0 >= axes.bbox.y0 - 1 for box in boxes), "none among the ticks"


def test_of_two_in_one_place_the_first_has_its_number() -> None:
    near = [(50.0 + dx, 50.0 + dy) for dx in (-2, 2) for dy in (-3, 3)]
    axes = drawn((50.0, 50.0), *near, names=["1", "", "", "", ""])
    assert written(axes) == []
    assert written(drawn((50.0, 50.0), (50.0, 50.0), (50.0, 50.0), (50.0, 50.0), (50.0, 50.0))) == ["1", "2", "3", "4"]
    assert written(drawn()) == []
