from dataclasses import replace
from pathlib import Path

from sample_runs import ES, EST, PLAIN, MakeRun, candidate, clean, shift

from robustmetric.records import Record
from robustmetric.report.runs import read_runs
from robustmetric.report.tables import summaries
from robustmetric.report.verdict import HARDEN, R1, advice, verdict


def said(*paths: Path) -> list[str]:
    runs = read_runs(list(paths))
    return verdict(summaries(runs)[0], runs)


def test_the_middle_radius_comes_first_with_plain_before_the_others(make_run: MakeRun):
    sentences = said(make_run("est", *EST), make_run("plain", *PLAIN))
    assert sentences[0] == (
        "At radius 0.1, on 896 queries, the R@1 of plain falls from 96.1 to 4.0; est keeps 61.3 of its 94.3."
    )
    assert sentences[1] == "At the largest radius, 0.3, R@1 is 0.2 (plain), 19.9 (est); chance is 20.0."
    assert "at radius 0.1 brings it to rank percentile 2.5 (plain), 24.5 (est)" in sentences[2]


def test_overlapping_intervals_are_said_aloud(make_run: MakeRun):
    # Intervals are the value +- 2: 4 to 8 against 7 to 11.
    one, other = make_run("plain", clean(90.0), shift(6.0, 0.1)), make_run("est", clean(90.0), shift(9.0, 0.1))
    assert said(one, other)[0].endswith("The intervals of plain and est overlap: no clear difference.")


def test_intervals_apart_need_no_caution(make_run: MakeRun):
    one, other = make_run("plain", clean(90.0), shift(6.0, 0.1)), make_run("est", clean(90.0), shift(10.5, 0.1))
    assert "overlap" not in said(one, other)[0]


def test_one_run_speaks_for_itself(make_run: MakeRun):
    assert said(make_run("mine", clean(90.0), shift(6.0, 8 / 255))) == [
        "At radius 8/255, on 896 queries, the R@1 of mine falls from 90.0 to 6.0."
    ]


def test_the_strongest_attack_at_the_radius_speaks_for_each_run(make_run: MakeRun):
    plain = make_run("plain", clean(90.0), shift(30.0, 0.1), candidate("GTM", 10.0), candidate("LTM", 20.0))
    est = make_run("est", clean(80.0), shift(50.0, 0.1), candidate("GTM", 60.0))
    assert said(plain) == [
        "At radius 0.1, under the strongest of ES, LTM and GTM, on 896 queries, the R@1 of plain falls from 90.0 to "
        "10.0."
    ]
    # LTM does not count, for est has not met it.
    assert said(plain, est)[0].startswith(
        "At radius 0.1, under the stronger of ES and GTM, on 896 queries, the R@1 of plain falls from 90.0 to 10.0; "
        "est keeps 50.0 of its 80.0."
    )


def test_an_attack_that_one_run_has_not_met_speaks_for_none(make_run: MakeRun):
    plain = make_run("plain", clean(90.0), shift(30.0, 0.1), candidate("GTM", 10.0))
    assert said(plain, make_run("est", clean(80.0), shift(50.0, 0.1)))[0] == (
        "At radius 0.1, under ES, on 896 queries, the R@1 of plain falls from 90.0 to 30.0; est keeps 50.0 of its 80.0."
    )


def test_a_model_that_does_not_fall_is_said_to_stay(make_run: MakeRun):
    assert "mine stays at R@1 90.0 (clean 90.0)" in said(make_run("mine", clean(90.0), shift(90.0, 0.1)))[0]


def test_a_missing_clean_number_is_said(make_run: MakeRun):
    assert "mine has R@1 6.0 (clean R@1 not measured)" in said(make_run("mine", shift(6.0, 0.1)))[0]


def test_without_attacks_nothing_is_claimed(make_run: MakeRun):
    assert said(make_run("mine", clean(90.0))) == [
        "No embedding-shift attack was measured here, so nothing is said about robustness. "
        "Clean R@1, on 896 queries: mine 90.0."
    ]
    assert "nothing is said" in said(make_run("other", candidate("CA+", 3.0)))[0]


def test_a_radius_most_runs_share_is_preferred(make_run: MakeRun):
    one = make_run("plain", clean(90.0), shift(50.0, 0.02), shift(40.0, 0.03), shift(6.0, 0.1))
    sentences = said(one, make_run("est", clean(90.0), shift(70.0, 0.1)))
    assert sentences[0] == (
        "At radius 0.1, on 896 queries, the R@1 of plain falls from 90.0 to 6.0; est keeps 70.0 of its 90.0."
    )


def test_many_runs_are_cut_to_the_first_and_the_three_best(make_run: MakeRun):
    others = [make_run(f"d{i}", clean(90.0), shift(20.0 + 10 * i, 0.1)) for i in range(5)]
    (sentence,) = said(*others, make_run("plain", clean(95.0), shift(6.0, 0.1)))
    kept = "d4 keeps 60.0 of its 90.0; d3 keeps 50.0 of its 90.0; d2 keeps 40.0 of its 90.0; 2 more in the table."
    assert sentence == f"At radius 0.1, on 896 queries, the R@1 of plain falls from 95.0 to 6.0; {kept}"


def test_an_attack_at_radius_zero_only_says_nothing_about_falling(make_run: MakeRun):
    assert said(make_run("mine", clean(90.0), shift(90.0, 0.0))) == []


def test_intervals_that_were_not_measured_raise_no_caution(make_run: MakeRun):
    bare = Record("attack", "ES", {"ES:R": 7.0}, {**ES, "radius": 0.1})
    assert "overlap" not in said(make_run("plain", clean(90.0), shift(6.0, 0.1)), make_run("est", clean(90.0), bare))[0]


def on(count: int, *records: Record) -> list[Record]:
    """The records as an evaluation with `--queries COUNT` leaves them."""
    return [replace(r, count=count, settings={**r.settings, "queries": count}) for r in records]


def test_the_headline_is_of_the_most_queries_and_says_of_how_many(make_run: MakeRun):
    few, most, some = (
        on(10, clean(100.0, chance=30.0), shift(90.0, 0.1)),
        on(540, clean(91.0), shift(12.0, 0.1)),
        on(100, clean(95.0), shift(40.0, 0.1)),
    )
    expected = "At radius 0.1, on 540 queries, the R@1 of mine falls from 91.0 to 12.0."
    assert said(make_run("mine", *few, *most, *some)) == [expected]
    assert said(make_run("again/mine", *most, *few, name="mine")) == [expected]
    runs = read_runs([make_run("third", *few, *most)])
    assert summaries(runs)[0].chance == 20.0


def test_weights_trained_anew_stand_before_more_queries_on_the_old(make_run: MakeRun):
    old = on(540, clean(91.0, weights="a"), shift(12.0, 0.1, weights="a"))
    new = on(10, clean(100.0, weights="b"), shift(90.0, 0.1, weights="b"))
    assert said(make_run("mine", *old, *new)) == [
        "At radius 0.1, on 10 queries, the R@1 of mine falls from 100.0 to 90.0."
    ]


def test_numbers_on_different_queries_each_say_on_how_many(make_run: MakeRun):
    one = make_run("plain", *on(540, clean(91.0)), *on(10, shift(6.0, 0.1), shift(5.0, 0.2)))
    other = make_run("est", *on(540, clean(90.0), shift(70.0, 0.1), shift(60.0, 0.2)))
    assert said(one, other) == [
        "At radius 0.2 the R@1 of plain falls from 91.0 on 540 queries to 5.0 on 10 queries; "
        "est keeps 60.0 on 540 queries of its 90.0 on 540 queries.",
        "At the largest radius, 0.2, R@1 is 5.0 on 10 queries (plain), 60.0 on 540 queries (est); chance is 20.0.",
    ]


def test_numbers_that_do_not_say_their_queries_are_told_without(make_run: MakeRun):
    assert said(make_run("mine", *on(0, clean(90.0), shift(6.0, 0.1)))) == [
        "At radius 0.1 the R@1 of mine falls from 90.0 to 6.0."
    ]


def test_a_page_without_a_hardened_run_says_what_r1_is_and_what_hardens(make_run: MakeRun):
    plain, est = make_run("plain", clean(90.0), shift(6.0, 0.1)), make_run("est", clean(90.0), shift(70.0, 0.1))
    assert advice(read_runs([plain])) == [R1, HARDEN]
    assert advice(read_runs([plain, est])) == [R1]
    assert advice(read_runs([make_run("clean only", clean(90.0))])) == []
