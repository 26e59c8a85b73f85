import pytest
from sample_runs import EST, PLAIN, MakeRun, candidate, clean, epoch, shift

from robustmetric.records import Record
from robustmetric.report.runs import read_runs
from robustmetric.report.scores import DASH
from robustmetric.report.tables import Column, Summary, full, summaries, to_text

CLEAN = Column("R@1")
STRENGTH = "32 steps, 3 restarts"


def at(radius: float) -> Column:
    return Column("ES:R", "ES", STRENGTH, radius)


def test_one_row_per_run_with_every_headline_number(make_run: MakeRun):
    (table,) = summaries(read_runs([make_run("plain", *PLAIN), make_run("est", *EST)]))
    assert list(table.rows) == ["plain", "est"]
    ca = [Column(name, name, STRENGTH, 0.1) for name in ("CA+", "CA-")]
    assert table.columns == (CLEAN, at(0.05), at(0.1), at(0.3), *ca)
    assert [cell.value for cell in map(table.rows["est"].get, table.columns) if cell] == [
        94.3,
        80.6,
        61.3,
        19.9,
        24.5,
        11.5,
    ]
    assert table.rows["plain"][at(0.1)].interval == (2.0, 6.0)
    assert table.chance == 20.0
    assert str(table.protocol) == "digits, suite demo, mode fixed, linf"


@pytest.mark.parametrize(
    "change",
    [
        {"suite": "other"},
        {"mode": "compat"},
        {"norm": "l2"},
        {"data": "fashion"},
        {"search": "tf32"},
        {"search": "fp16"},
    ],
)
def test_numbers_of_another_protocol_get_a_table_of_their_own(make_run: MakeRun, change: dict[str, str]):
    tables = summaries(read_runs([make_run("plain", *PLAIN), make_run("est", clean(94.3), shift(61.3, 0.1, **change))]))
    assert len(tables) == 2
    for table in tables:
        values = [cells[at(0.1)].value for cells in table.rows.values() if at(0.1) in cells]
        assert len(values) == 1


def test_attacks_of_another_strength_are_another_column(make_run: MakeRun):
    (table,) = summaries(
        read_runs([make_run("a", shift(50.0, 0.1)), make_run("b", shift(70.0, 0.1, steps=1, restarts=1))])
    )
    assert [c.engine for c in table.columns] == ["1 step, 1 restart", STRENGTH]
    assert [table.quantity(c) for c in table.columns] == ["ES:R (1 step, 1 restart)", f"ES:R ({STRENGTH})"]
    assert table.best(table.columns[0]) is None


def test_the_runs_of_a_repeated_attack_are_part_of_its_strength(make_run: MakeRun):
    repeated = make_run("a", shift(50.0, 0.1, steps=20, restarts=1, repeats=5))
    assert full(read_runs([repeated]))[0].engine == "20 steps, 1 restart, 5 runs"
    assert "repeats" not in full(read_runs([repeated]))[0].settings
    (table,) = summaries(read_runs([repeated, make_run("b", shift(60.0, 0.1, steps=20, restarts=1))]))
    assert [table.quantity(c) for c in table.columns] == [
        "ES:R (20 steps, 1 restart)",
        "ES:R (20 steps, 1 restart, 5 runs)",
    ]


def test_two_attacks_that_report_one_score_are_two_columns(make_run: MakeRun):
    def joint(name: str, value: float) -> Record:
        return Record("attack", name, {"R@1": value}, {"suite": "demo", "radius": 0.1})

    (table,) = summaries(read_runs([make_run("a", joint("PGD", 10.0), joint("adaptive", 5.0))]))
    assert [table.quantity(c) for c in table.columns] == ["PGD R@1", "adaptive R@1"]


def test_one_radius_written_two_ways_is_one_column(make_run: MakeRun):
    (table,) = summaries(read_runs([make_run("a", shift(5.0, 8 / 255)), make_run("b", shift(6.0, 8 * (1 / 255)))]))
    assert len(table.columns) == 1
    assert table.radius(table.columns[0]) == "8/255"


def test_clean_numbers_stand_beside_every_mode_of_their_suite(make_run: MakeRun):
    tables = summaries(read_runs([make_run("a", clean(90.0), shift(5.0, 0.1), shift(6.0, 0.1, mode="compat"))]))
    assert [table.protocol.mode for table in tables] == ["fixed", "compat"]
    assert all(table.rows["a"][CLEAN].value == 90.0 for table in tables)


def test_a_run_without_a_number_has_no_cell_rather_than_zero(make_run: MakeRun):
    runs = [make_run("plain", *PLAIN), make_run("half", clean(80.0)), make_run("young", epoch(0, triplet=0.5))]
    (table,) = summaries(read_runs(runs))
    assert set(table.rows["half"]) == {CLEAN}
    assert table.rows["young"] == {}


def test_chance_is_left_out_where_records_disagree(make_run: MakeRun):
    (table,) = summaries(read_runs([make_run("a", clean(90.0)), make_run("b", clean(90.0, chance=10.0))]))
    assert table.chance is None


def test_best_follows_the_direction_of_the_score(make_run: MakeRun):
    (table,) = summaries(read_runs([make_run("plain", *PLAIN), make_run("est", *EST)]))
    best = {column.score: table.best(column) for column in table.columns}
    assert best == {"R@1": "plain", "ES:R": "est", "CA+": "est", "CA-": "est"}


def test_a_tie_or_a_single_number_has_no_best(make_run: MakeRun):
    (table,) = summaries(read_runs([make_run("a", clean(90.0), shift(5.0, 0.1)), make_run("b", clean(90.0))]))
    assert table.best(CLEAN) is None
    assert table.best(at(0.1)) is None


def test_the_full_table_has_every_score_and_setting(make_run: MakeRun):
    lines = full(
        read_runs([make_run("plain", epoch(0, triplet=0.5), clean(96.1), shift(4.0, 8 / 255, step_size=0.01))])
    )
    assert [line.score for line in lines] == ["R@1", "mAP", "ES:D", "ES:R"]
    assert [line.value for line in lines] == ["96.1", "71.2", "1.234", "4.0"]
    last = lines[-1]
    assert (last.radius, last.interval, last.engine, last.settings) == (
        "8/255",
        "2.0 to 6.0",
        STRENGTH,
        "step_size 0.01",
    )


def text(tables: list[Summary]) -> str:
    return to_text(tables, width=80)


def test_the_terminal_table_shows_values_intervals_and_dashes(make_run: MakeRun):
    printed = text(summaries(read_runs([make_run("plain", *PLAIN), make_run("half", clean(80.0))])))
    assert all(number in printed for number in ("96.1", "30.5", "4.0", "0.2", "2.5", "60.5", f"2{DASH}6"))
    (half,) = [line for line in printed.splitlines() if "half" in line]
    assert half.count(DASH) == 5 and "80.0" in half
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_terminal_rounds_intervals_outwards(make_run: MakeRun):
    printed = text(summaries(read_runs([make_run("plain", clean(50.25))])))  # 49.25 to 51.25
    assert f"49{DASH}52" in printed


def test_markup_in_a_name_is_printed_as_it_is(make_run: MakeRun):
    assert "[red]x[/red]" in text(summaries(read_runs([make_run("a", clean(90.0), name="[red]x[/red]")])))


def test_a_number_that_is_not_finite_is_shown_and_breaks_nothing(make_run: MakeRun):
    bad = Record(
        "clean", "clean", {"R@1": float("nan")}, {"suite": "demo", "data": "digits"}, {"R@1": (float("nan"),) * 2}
    )
    assert "nan" in text(summaries(read_runs([make_run("a", bad, candidate("CA+", 3.0))])))


def test_an_attack_without_a_bound_stands_at_no_radius(make_run: MakeRun):
    # As records of an older suite have it, whose name is another.
    free = shift(3.0, 0.1, clipped=False)
    run = make_run("a", clean(90.0), shift(50.0, 0.1), free)
    (table,) = summaries(read_runs([run]))
    (column,) = [c for c in table.columns if "bound" in c.attack]
    assert (column.attack, column.radius, table.radius(column)) == ("ES without a bound", None, "")
    assert table.rows["a"][column].value == 3.0 and table.rows["a"][at(0.1)].value == 50.0
    assert {line.radius for line in full(read_runs([run])) if line.name == "ES"} == {"0.1", "without a bound"}
