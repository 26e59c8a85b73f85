"""A suite's file to its trials: every setting counts, or the file is at fault at a named place."""

import shutil
from pathlib import Path

import pytest

from commands import Command
from robustmetric import records
from robustmetric.attacks.rank_only import RankOnly
from robustmetric.attacks.transfer import Transfer
from robustmetric.errors import InputError
from robustmetric.jobs.suites import labels_of, load_suite
from robustmetric.report.runs import read_runs
from robustmetric.report.tables import summaries

SUITE = "engine: {name: pgd, ball: {name: ball, radius: 0.1}, steps: 1, step_size: 0.1}\n"


def test_a_suite_scales_the_step_with_each_radius(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        SUITE + "attacks:\n  ES: {attack: {name: embedding_shift}, radii: [0.1, 0.05], engine: {steps: 4}}\n"
    )
    suite = load_suite(str(path))
    assert suite.name == "s"
    found = [(t.engine.ball.radius, t.engine.step_size, t.engine.steps) for t in suite.trials]
    assert found == [(0.1, pytest.approx(0.1), 4), (0.05, pytest.approx(0.05), 4)]
    moved = load_suite(str(path), 0.2)
    assert [(t.engine.ball.radius, t.engine.step_size) for t in moved.trials] == [(0.2, pytest.approx(0.2))]


@pytest.mark.parametrize("base", ["autoattack", "suites/autoattack", "autoattack.yaml"])
def test_a_suite_anywhere_may_lie_over_one_we_ship(base: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"base: {base}\nattacks: {{APGD-T: {{attack: {{loss: margin}}}}}}\n")
    found, shipped = load_suite(str(path)), load_suite("autoattack")
    assert [trial.label for trial in found.trials] == [trial.label for trial in shipped.trials]
    changed = [a.label for a, b in zip(found.trials, shipped.trials, strict=True) if a.attack != b.attack]
    assert changed == ["APGD-T"] and found.survivors == shipped.survivors


def test_null_drops_an_attack_of_the_base(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("{base: classification, attacks: {Feature match: null}}")
    found, shipped = load_suite(str(path)), load_suite("classification")
    assert [t.label for t in found.trials] == [t.label for t in shipped.trials if t.label != "Feature match"]
    assert found.survivors == shipped.survivors and found.left_out == ["Feature match"] and not shipped.left_out
    (tmp_path / "again.yaml").write_text(
        "{base: s.yaml, attacks: {Feature match: {attack: {name: feature_match}, engine: {name: apgd}}}}"
    )
    assert not load_suite(str(tmp_path / "again.yaml"), 0.1).left_out


def test_a_group_that_loses_an_attack_loses_its_name(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("{base: autoattack, attacks: {Square: null}}")
    with pytest.raises(
        InputError, match=r"'AutoAttack' is not itself without 'Square'.*`survivors: {AutoAttack: null}`"
    ):
        load_suite(str(path))
    path.write_text(
        "{base: autoattack, attacks: {Square: null}, survivors: {AutoAttack: null, white box: [APGD-CE, FAB-T]}}"
    )
    assert list(load_suite(str(path)).survivors) == ["white box"]


def test_one_line_says_that_all_is_dropped_or_that_there_is_nothing_to_drop(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("{base: classification, attacks: {Feature mach: null}}")
    with pytest.raises(InputError, match=r"attacks\.Feature mach: .* null drops; did you mean 'Feature match'"):
        load_suite(str(path))
    dropped = ", ".join(f"{label}: null" for label in labels_of("demo"))
    path.write_text(f"{{base: demo, attacks: {{{dropped}}}}}")
    with pytest.raises(InputError, match="every attack is dropped"):
        load_suite(str(path))


def test_a_base_that_is_no_suite_is_named_among_suites(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("base: autoatack\n")
    with pytest.raises(InputError, match=r"s\.yaml: base: 'autoatack' is no file and no suite we ship.*'autoattack'"):
        load_suite(str(tmp_path / "s.yaml"))


def test_a_suite_runs_in_the_modes_of_its_file_or_in_those_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SUITE + "modes: [fixed, compat]\nattacks:\n  ES: {attack: {name: embedding_shift}}\n")
    assert [t.mode for t in load_suite(str(path)).runs()] == ["fixed", "compat"]
    assert [t.mode for t in load_suite(str(path), modes=["compat"]).runs()] == ["compat"]
    assert [t.mode for t in load_suite(str(path), 0.2).runs()] == ["fixed", "compat"]
    assert [t.mode for t in load_suite(str(path)).trials] == ["fixed"], "one trial, whatever the modes"
    assert load_suite("ers224").modes == load_suite("ers28").modes == ("fixed", "compat")
    assert load_suite("demo").modes == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SUITE, "a suite needs 'attacks'"),
        ("attacks: {ES: {attack: {name: embedding_shift}}}", "a suite needs 'engine'"),
        (SUITE + "modes: compat\nattacks: {ES: {attack: {name: embedding_shift}}}", "modes 'compat' are not a list"),
        (SUITE + "modes: [fixed, fixed]\nattacks: {ES: {attack: {name: embedding_shift}}}", "list of different modes"),
        (SUITE + "modes: [compact]\nattacks: {ES: {attack: {name: embedding_shift}}}", "did you mean 'compat'"),
        (
            SUITE + "modes: [compat]\nattacks: {ES: {attack: {name: own_parts.Boom}}}",
            "s.yaml: trial 'ES'.*has no mode 'compat'",
        ),
        (SUITE + "atacks: {}", "'atacks' is not a setting of a suite; did you mean 'attacks'"),
        (SUITE + "attacks: {ES: {name: embedding_shift}}", "'name' is not known"),
        (SUITE + "attacks: {ES: embedding_shift}", "attacks.ES: expected a mapping with 'attack'"),
        (SUITE + "attacks: {ES: {radii: [0.1]}}", "the recipe has no 'attack'"),
        (SUITE + "attacks: {ES: {attack: {name: ball, radius: 0.1}}}", "is not an attack with an engine"),
        (SUITE + "attacks: {ES: {attack: {name: embedding_shift}, radii: 0.1}}", "radii 0.1 are not a list"),
        (SUITE + "attacks: {ES: {attack: {name: embedding_shift}, radii: [far]}}", "are not a list of numbers"),
        (
            SUITE + "attacks: {ES: {attack: {name: embedding_shift}, radii: [-0.1]}}",
            "ES: radius -0.1 is not a distance",
        ),
        (SUITE + "attacks: {ES: {attack: {name: embedding_shfit}}}", "did you mean 'embedding_shift'"),
    ],
)
def test_a_suite_at_fault_says_where(tmp_path: Path, command: Command, text: str, message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_suite(str(path))


def test_a_negative_radius_is_refused_for_a_whole_suite() -> None:
    with pytest.raises(InputError, match=r"radius -1\.0 is not a distance"):
        load_suite("demo", -1.0)


@pytest.mark.parametrize("side", ["28", "224"])
def test_transfer_is_the_white_box_suite_climbed_on_another_run(side: str) -> None:
    with pytest.raises(InputError, match=r"every attack asks for a surrogate; name a run folder with --surrogate RUN"):
        load_suite(f"transfer{side}")
    moved, white = load_suite(f"transfer{side}", surrogate="runs/other"), load_suite(f"ers{side}")
    assert [trial.label for trial in moved.trials] == [f"{trial.label} from other" for trial in white.trials]
    assert [trial.engine for trial in moved.trials] == [trial.engine for trial in white.trials]
    assert [trial.attack for trial in moved.trials] == [Transfer(trial.attack, "runs/other") for trial in white.trials]
    assert [trial.mode for trial in moved.runs()] == ["fixed"] * 9 and all(trial.rounded for trial in moved.trials)


@pytest.mark.parametrize("side", ["28", "224"])
def test_ranks_alone_are_climbed_by_both_engines(side: str) -> None:
    trials = {trial.label: trial for trial in load_suite(f"blackbox{side}").trials}
    blind = {
        engine: {
            label.partition(" (")[0]: trial.attack
            for label, trial in trials.items()
            if label.endswith(f"({engine}, ranks)")
        }
        for engine in ("NES", "Square")
    }
    assert blind["NES"] == blind["Square"] and list(blind["NES"]) == ["CA+", "CA-", "QA+", "QA-", "LTM"]
    assert all(isinstance(attack, RankOnly) for attack in blind["NES"].values())
    assert trials["LTM (NES, ranks)"].engine == trials["LTM (NES)"].engine


def test_each_source_of_transfer_has_its_own_ten_numbers_and_ers(
    trained: Path, sibling: Path, tmp_path: Path, command: Command
) -> None:
    for source in ("plain", "sibling"):
        surrogate = shutil.copytree(trained, tmp_path / source)
        words = ("evaluate", sibling, "transfer28", "--queries", 6, "--radius", 0.1, "-o", tmp_path / "out")
        assert command(*words, "--surrogate", surrogate).code == 0
    found = {record.name: record for record in records.read(tmp_path / "out" / "results.jsonl")}
    for source in ("plain", "sibling"):
        total = found[f"ERS from {source}"]
        assert len(total.settings["attacks"]) == 9 and "ERS" in total.intervals
        assert total.scores["CA+"] == found[f"CA+ from {source}"].scores["CA+"]
    # The same weights under another name: the same images.
    assert found["ERS from plain"].scores == found["ERS from sibling"].scores
    (table,) = summaries(read_runs([tmp_path / "out"]))
    named = [table.quantity(column) for column in table.columns]
    assert {"ERS from plain", "ERS from sibling", "CA+ from plain", "ES from plain ES:R"} <= set(named)
