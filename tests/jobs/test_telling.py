"""What is said of records as they come: a line each, but one for all attacks that nothing was left for."""

from collections.abc import Sequence
from typing import Any

import pytest

from robustmetric.jobs import telling
from robustmetric.jobs.telling import Teller
from robustmetric.records import Record


def turn(name: str, right: float, standing: int, after: Sequence[str] = (), radius: float = 0.1, **more: Any) -> Record:
    settings = {"radius": radius, "mode": "fixed", "standing": standing, **more}
    return Record("attack", name, {"R@1": right}, settings, {}, 20, 1.0, 0, {"after": list(after)})


WORST = Record("worst_case", "AutoRank", {"R@1": 0.0}, {"radius": 0.1}, {}, 20)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(telling, "say", lines.append)
    return lines


def tell(*records: Record) -> None:
    teller = Teller("hm")
    for record in records:
        teller.tell(record)
    teller.finish()


def test_attacks_that_nothing_is_left_for_are_told_in_one_line(said: list[str]) -> None:
    tell(turn("ES", 10.0, 18), turn("GTM", 0.0, 2, ["ES"]), turn("Square", 0.0, 0, ["ES", "GTM"]),
         turn("RayS", 0.0, 0, ["ES", "GTM", "Square"]), WORST)  # fmt: skip
    assert said == [
        "hm  ES at 0.1: R@1 10",
        "hm  then GTM at 0.1: R@1 0 (on the 2 of 20 still right)",
        "hm  nothing is left at 0.1 for the other 2: Square, RayS",
        "hm  AutoRank at 0.1: R@1 0",
    ]


def test_one_that_is_last_and_alone_is_named_without_a_count(said: list[str]) -> None:
    tell(turn("ES", 0.0, 18), turn("RayS", 0.0, 0, ["ES"]))
    assert said == ["hm  ES at 0.1: R@1 0", "hm  nothing is left at 0.1 for RayS"]


def test_radii_and_modes_are_told_apart(said: list[str]) -> None:
    tell(*(turn("RayS", 0.0, 0, ["ES"], radius, mode=mode) for radius in (0.1, 0.2) for mode in ("fixed", "compat")))
    assert said == [
        f"hm  nothing is left at {radius}{mode} for RayS" for radius in (0.1, 0.2) for mode in ("", " (compat)")
    ]


def test_the_first_of_its_group_is_told_though_the_model_is_right_about_nothing(said: list[str]) -> None:
    tell(turn("ES", 0.0, 0))
    assert said == ["hm  ES at 0.1: R@1 0"]
