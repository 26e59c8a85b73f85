import pytest

from robustmetric.report.scores import DASH, SCORES, describe, show, show_interval, show_radius, title
from robustmetric.report.tables import HEADLINE


def test_every_score_has_a_direction_and_a_one_line_meaning():
    for score in SCORES.values():
        assert score.better in ("higher", "lower")
        assert score.meaning and "\n" not in score.meaning


def test_directions_are_the_models_side_not_the_attackers():
    assert [describe(name).better for name in ("R@1", "ES:R", "CA+", "CA-", "ES:D")] == [
        "higher",
        "higher",
        "higher",
        "lower",
        "lower",
    ]
    assert (describe("CA+").arrow, describe("CA-").arrow) == ("↑", "↓")


def test_the_summary_knows_its_scores():
    assert set(HEADLINE) <= set(SCORES)


def test_an_unknown_score_is_shown_without_a_direction():
    assert describe("my score").arrow == ""
    assert show("my score", 3.14159) == "3.1"


def test_a_missing_value_is_a_dash_and_zero_is_a_zero():
    assert show("R@1", None) == DASH
    assert show("R@1", 0.0) == "0.0"


def test_values_and_intervals_take_the_scores_own_decimals():
    assert show("ES:D", 1.23456) == "1.235"
    assert show_interval("R@1", (1.04, 2.06)) == "1.0 to 2.1"
    assert show_interval("R@1", None) == ""


@pytest.mark.parametrize(
    ("radius", "among", "label"),
    [
        (0.0, (), "0"),
        (8 / 255, (), "8/255"),
        (0.03137, (), "8/255"),  # as papers round it
        (0.1, (), "0.1"),  # 25.5 levels
        (0.2, (0.1, 0.3), "0.2"),  # 51/255, but its neighbours are decimals
        (0.2, (17 / 255, 34 / 255), "51/255"),
        (8 / 255, (0.1, 0.2), "8/255"),
        (0.123456, (), "0.1235"),
    ],
)
def test_radii_are_written_in_grey_levels_where_they_are_whole(radius: float, among: tuple[float, ...], label: str):
    assert show_radius(radius, among) == label


def test_a_title_has_the_radius_that_an_attack_kept_to() -> None:
    assert title("ES", {"radius": 8 / 255}) == title("ES", {"radius": 8 / 255, "clipped": True}) == "ES at 8/255"
    assert title("clean", {}) == "clean"
    free = {"radius": 8 / 255, "clipped": False}
    assert title("Local search", free) == "Local search without a bound"
    assert title("Local search", {"radius": 8 / 255, "runs": free}) == "Local search without a bound"
    assert title("Local search, without a bound", free) == "Local search, without a bound", "said once"
