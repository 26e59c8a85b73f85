import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from sample_runs import EST, PLAIN, MakeRun, clean, epoch, shift

from robustmetric.report.plots import COLOURS, robustness, swatch, training, validations
from robustmetric.report.runs import Run, read_runs
from robustmetric.report.tables import summaries

VARIANT = ("ES", "32 steps, 3 restarts")


def curve(runs: list[Run]) -> str:
    return robustness(summaries(runs)[0], [run.label for run in runs], VARIANT, name="curve")


def points(svg: str, gid: str) -> list[tuple[float, float]]:
    """The corners of a drawn line, in the units of the SVG."""
    group = svg[svg.index(f'id="curve-{gid}"') :]
    path = re.search(r'\sd="([^"]*)"', group)
    assert path
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path[1])]


def test_the_curve_has_a_line_for_every_run_in_its_own_colour(make_run: MakeRun):
    svg = curve(read_runs([make_run("plain", *PLAIN), make_run("est", *EST)]))
    for place in (0, 1):
        line = svg[svg.index(f'id="curve-run-{place}"') :]
        assert COLOURS[place].lower() in line[: line.index("</g>")].lower()
    assert "R@1 against attack radius for plain, est" in svg


def test_heights_and_places_are_in_proportion_to_the_numbers(make_run: MakeRun):
    # 96.1 at 0, 30.5 at 0.05, 4.0 at 0.1, 0.2 at 0.3.
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = points(curve(read_runs([make_run("plain", *PLAIN)])), "run-0")
    scale = (y2 - y0) / (96.1 - 4.0)
    assert abs((y1 - y0) - scale * (96.1 - 30.5)) < 0.01 and abs((y3 - y0) - scale * (96.1 - 0.2)) < 0.01
    assert scale > 0  # SVG counts downwards
    assert abs((x2 - x0) - 2 * (x1 - x0)) < 0.01 and abs((x3 - x0) - 6 * (x1 - x0)) < 0.01


def test_an_attack_at_radius_zero_gives_way_to_the_clean_number(make_run: MakeRun):
    svg = curve(read_runs([make_run("a", clean(90.0), shift(85.0, 0.0), shift(10.0, 0.1))]))
    assert len(points(svg, "run-0")) == 2


def test_radii_are_labelled_in_grey_levels(make_run: MakeRun):
    svg = curve(read_runs([make_run("a", clean(90.0), shift(40.0, 4 / 255), shift(10.0, 8 / 255))]))
    assert ">4/255<" in svg and ">8/255<" in svg and ">0<" in svg


def test_chance_is_a_dashed_line_only_where_it_is_known(make_run: MakeRun):
    assert "chance 20.0" in curve(read_runs([make_run("a", clean(90.0), shift(10.0, 0.1))]))
    unknown = clean(90.0)
    del unknown.settings["chance"]
    assert "chance" not in curve(read_runs([make_run("b", unknown, shift(10.0, 0.1))]))


def test_a_plot_stands_alone_inside_a_page(make_run: MakeRun):
    svg = curve(read_runs([make_run("plain", *PLAIN)]))
    assert svg.startswith("<svg") and "http" not in svg and "<metadata" not in svg
    assert "currentColor" in svg and "#010203" not in svg
    root = ElementTree.fromstring(svg)
    ids = {element.get("id") for element in root.iter() if element.get("id")}
    assert all(name.startswith("curve-") for name in ids)
    used = {element.get("href") for element in root.iter() if element.get("href")}
    used |= {f"#{name}" for name in re.findall(r"url\(#([^)]+)\)", svg)}
    assert used and {name.removeprefix("#") for name in used} <= ids


def test_the_same_records_give_the_same_bytes(make_run: MakeRun):
    runs = read_runs([make_run("plain", *PLAIN)])
    assert curve(runs) == curve(runs)


def test_a_hostile_name_is_text_and_no_formula(make_run: MakeRun):
    svg = curve(read_runs([make_run("a", *PLAIN, name='_$x^$"><script>中')]))
    assert "<script" not in svg and "&lt;script&gt;" in svg


def test_numbers_that_are_not_finite_are_left_out(make_run: MakeRun):
    svg = curve(read_runs([make_run("a", clean(90.0), shift(float("nan"), 0.05), shift(10.0, 0.1))]))
    assert len(points(svg, "run-0")) == 2


def test_training_draws_the_sum_of_terms_for_the_runs_that_have_it(make_run: MakeRun):
    young = make_run(
        "young", epoch(0, triplet=0.6, structure=0.4), epoch(1, triplet=0.3, structure=0.2), epoch(2, triplet=0.25)
    )
    svg = training(read_runs([make_run("old", clean(90.0)), young]), name="curve")
    assert svg is not None and 'id="curve-run-0"' not in svg
    (_, y0), (_, y1), (_, y2) = points(svg, "run-1")  # sums 1.0, 0.5, 0.25
    assert abs((y1 - y0) - 2 * (y2 - y1)) < 0.01


def test_training_draws_the_terms_of_the_loss_and_no_other_figure(make_run: MakeRun):
    measured = [epoch(i, triplet=0.1 * 2**-i, structure=0.1 * 2**-i, before=-0.9 * i, passes=7.0) for i in range(3)]
    for record in measured:
        record.settings["terms"] = ["triplet", "structure"]
    svg = training(read_runs([make_run("hm", *measured)]), name="curve")
    assert svg is not None
    (_, y0), (_, y1), (_, y2) = points(svg, "run-0")  # sums 0.2, 0.1, 0.05
    assert y1 > y0 and abs((y1 - y0) - 2 * (y2 - y1)) < 0.01


def test_records_that_do_not_name_their_terms_leave_out_the_time_waited(make_run: MakeRun):
    old = [epoch(i, metric=2.0**-i, data_wait=0.5 * i) for i in range(3)]
    (_, y0), (_, y1), (_, y2) = points(training(read_runs([make_run("old", *old)]), name="curve") or "", "run-0")
    assert y1 > y0 and abs((y1 - y0) - 2 * (y2 - y1)) < 0.01


def test_what_was_measured_more_than_once_while_training_is_drawn_by_epoch(make_run: MakeRun):
    watched = [replace(clean(value, epoch=i), kind="validation") for i, value in ((2, 20.0), (1, 40.0), (3, 0.0))]
    fallen = [replace(r, scores={"R@1": 9.0, "mean_cosine": 0.5 + r.settings["epoch"] / 10}) for r in watched[:2]]
    old = make_run("old", replace(clean(90.0, epoch=9), kind="validation"))
    runs = read_runs([old, make_run("young", *watched), make_run("fallen", *fallen)])
    recall, cosine = validations(runs, name="curve")
    assert recall.styles == (1, 2) and cosine.styles == (2,)
    assert "clean R@1 by epoch for young, fallen" in recall.plot and 'id="curve-0-run-0"' not in recall.plot
    (x1, y1), (x2, y2), (x3, y3) = points(recall.plot, "0-run-1")
    assert x1 < x2 < x3 and x2 - x1 == pytest.approx(x3 - x2, rel=1e-3)  # by epoch, not as they were written
    assert y3 - y2 == pytest.approx(y2 - y1, rel=1e-3) and y3 > y1  # 40, 20, 0: downwards, where SVG counts up
    (_, first), (_, second) = points(cosine.plot, "1-run-2")
    assert second < first
    assert validations(runs[:1], name="curve") == []


def test_no_training_records_give_no_plot(make_run: MakeRun):
    assert training(read_runs([make_run("old", clean(90.0))]), name="curve") is None


def test_runs_differ_by_marker_as_well_as_colour():
    assert len({str(swatch(place)) for place in range(28)}) == 28
    shapes = [re.sub(r"#\w+", "", str(swatch(place))) for place in range(4)]
    assert len(set(shapes)) == 4
