"""The recipes of feature scattering are those of the rebuttal's tables, and say what is known of them, from where."""

from pathlib import Path

import pytest

from published import RECIPES, unmeasured
from robustmetric import recipe
from robustmetric.jobs.suites import load_suite
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.recipe import Spec
from robustmetric.report.ledger import PROTOCOLS
from scattering_rows import BATCHES, COLUMNS, LARGE_ROWS, ROWS, SMOOTHED, files

FILES = files()


def spec(stem: str) -> dict[str, Spec]:
    return recipe.load(RECIPES / "cifar10" / f"{stem}.yaml")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_is_what_its_row_makes_it(path: Path) -> None:
    assert unmeasured(path.read_text()) == unmeasured(FILES[path]), "write it anew: python tests/scattering_rows.py"


def test_there_are_no_other_files_of_this_paper() -> None:
    found = {path for pattern in ("fs_*", "transform_*") for path in (RECIPES / "cifar10").glob(f"{pattern}.yaml")}
    assert found | {RECIPES / "cub" / "mobilenet_v2-scattering.yaml"} == set(FILES)


def test_the_sweeps_are_complete() -> None:
    assert sorted([*BATCHES, 60]) == [40, 50, 60, 70, 80]
    for kind, usual in (("madry", 0), ("scattering", 5)):
        assert len(SMOOTHED[kind].split()) == 9
        # The row itself is in the sweep, at its own place and with its own number.
        assert f"PGD-100 {SMOOTHED[kind].split()[usual]}" in ROWS[kind].rebuttal
        for tenth in range(9):
            loss = spec(f"fs_{kind}" if tenth == usual else f"fs_{kind}-s{tenth}")["defence"]["loss"]
            assert loss.get("smoothing", 0) == pytest.approx(tenth / 10)
    for batch in BATCHES:
        assert spec(f"fs_scattering-b{batch}")["sampler"]["batch"] == batch


def test_every_row_is_trained_alike_but_for_its_defence() -> None:
    base = spec("fs_plain")
    # 0.1 until epoch 60 of 200, then 0.01 until 90: shares of 0.3 and 0.45.
    assert [share * 200 for share in base["optimiser"]["schedule"]["at"]] == [60, 90]
    assert base["sampler"] == {"name": "shuffled", "batch": 60, "drop_last": False}
    for stem in ROWS:
        settings = spec(f"fs_{stem}")
        assert {**settings, "defence": 0} == {**base, "defence": 0}, stem
    for stem in LARGE_ROWS:
        large = spec(f"fs_wrn28-{stem}")
        assert large["model"]["trunk"] == {"name": "wide_resnet", "depth": 28, "width": 10} and large["epochs"] == 200
        assert large["defence"] == spec(f"fs_{stem}")["defence"]


def test_epochs_and_rates_are_those_of_the_protocols() -> None:
    for path in FILES:
        settings = recipe.load(path)
        known = [(p.epochs, p.rate) for p in PROTOCOLS[path.parent.name].values()]
        assert (settings["epochs"], settings["optimiser"]["rate"]) in known, path.stem


def test_attacks_are_of_8_255_with_one_step_of_the_radius_or_seven_of_a_quarter() -> None:
    for stem in ROWS:
        defence = spec(f"fs_{stem}")["defence"]
        if "attack" not in defence:
            assert defence["name"] == "plain" or defence["ball"]["radius"] == 8 / 255
            continue
        attack = defence["attack"]
        steps = (attack["steps"], pytest.approx(attack["step_size"] * 255))
        assert attack["ball"]["radius"] == 8 / 255 and steps in [(1, 8), (7, 2), (0, 0)]
        assert "random_start" not in attack, "which is on by default"


def test_madry_climbs_hard_labels_whatever_it_is_trained_on() -> None:
    for tenth in range(1, 9):
        assert spec(f"fs_madry-s{tenth}")["defence"]["climbed"] == {"name": "cross_entropy"}
    assert spec("fs_supervised")["defence"]["climbed"] == {"name": "cross_entropy"}


def test_the_row_for_label_leaking_is_of_a_clean_start_and_hard_labels_and_the_suite_can_see_it() -> None:
    defence = spec("fs_one_step")["defence"]
    assert defence["random_start"] is False and defence["loss"] == {"name": "cross_entropy"}
    (seen,) = [trial for trial in load_suite("classification").trials if trial.label == "Clean-start FGSM"]
    own = PGD(Ball(8 / 255), steps=1, step_size=8 / 255, random_start=False)
    assert seen.engine == own, "it is under its own attack that its accuracy is above clean"
    assert not ROWS["one_step"].recalled and not ROWS["one_step"].rebuttal


def test_numbers_from_memory_are_never_called_published() -> None:
    for path in FILES:
        lines = [line for line in path.read_text().splitlines() if line.startswith("# published")]
        assert len(lines) == 1 and ("rebuttal" in lines[0] or "none" in lines[0])
    for row in ROWS.values():
        assert not row.recalled or len(row.recalled.split()) == len(COLUMNS)
