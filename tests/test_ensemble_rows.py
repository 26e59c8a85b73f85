"""The recipes of the ensemble paper are those of its tables, and the tables are read as the paper counts them."""

from pathlib import Path

import pytest

from ensemble_rows import ABLATED, PUBLISHED, ROWS, ROWS_AT_BOTH, SCORES, TABLE, files
from published import RECIPES, unmeasured
from robustmetric import recipe
from robustmetric.recipe import Spec

FILES = files()


def spec(data: str, stem: str) -> dict[str, Spec]:
    return recipe.load(RECIPES / data / f"{stem}.yaml")


def attacks(part: Spec) -> list[dict[str, Spec]]:
    """Every attack in a defence."""
    if isinstance(part, list):
        return [found for item in part for found in attacks(item)]
    if not isinstance(part, dict):
        return []
    return [part] if part.get("name") == "pgd" else [found for item in part.values() for found in attacks(item)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_is_what_its_row_makes_it(path: Path) -> None:
    assert unmeasured(path.read_text()) == unmeasured(FILES[path]), "write it anew: python tests/ensemble_rows.py"


def test_there_are_no_other_files_of_this_paper() -> None:
    assert set(FILES) == set(RECIPES.glob("*/eat_*.yaml"))
    assert sum("bn_inception" in path.stem for path in FILES) == len(TABLE)


def test_every_published_row_has_all_its_numbers() -> None:
    for (data, kind), (table, *rows) in PUBLISHED.items():
        names = ABLATED if table == "3" else SCORES[data]
        assert [len(row.split()) for row in rows] == [len(names)] * 2 and kind in ROWS[data]


def test_the_split_gains_on_average_what_the_paper_says() -> None:
    with_split = dict(zip(SCORES["cub"], map(float, PUBLISHED["cub", "eat"][2].split()), strict=True))
    without = map(float, PUBLISHED["cub", "no_split"][2].split())
    gains = [100 * (with_split[name] / score - 1) for name, score in zip(ABLATED, without, strict=True)]
    # "9.13 %": 5.23 of NMI, 14.42 of F1, 11.93 of R@1, 4.95 of R@8.
    assert sum(gains) / 4 == pytest.approx(9.13, abs=0.01)


@pytest.mark.parametrize("data", ROWS)
def test_attacks_take_ten_steps_of_a_quarter_of_the_radius_of_their_file(data: str) -> None:
    for stem in [path.stem for path in FILES if path.parent.name == data]:
        for attack in attacks(spec(data, stem)["defence"]):
            radius = (16 if stem.endswith("-r16") else 8) / 255
            assert attack["ball"]["radius"] == pytest.approx(radius) and attack["step_size"] == pytest.approx(
                radius / 4
            )
            assert attack["steps"] == 10 and "random_start" not in attack
    assert len([kind for kind in ROWS[data] if kind in ROWS_AT_BOTH]) == len(
        list((RECIPES / data).glob("eat_*-r16.yaml"))
    )


def test_ensembles_have_three_members_of_their_own_each_with_its_proxies() -> None:
    for path in FILES:
        settings = recipe.load(path)
        parts = settings["defence"].get("losses") or settings["defence"].get("defences")
        model = settings["model"]
        if settings["defence"]["name"] == "one_student":
            model, parts = settings["defence"]["ensemble"], settings["defence"]["trained_by"]["losses"]
            assert model["members"] == [settings["model"]] * 3, "the student is as its teachers are"
        if model["name"] != "ensemble":
            assert parts is None
            continue
        assert len(model["members"]) == len(parts) == 3
        losses = [part.get("loss", part) for part in parts]
        assert len({loss.get("seed", 0) for loss in losses}) == 3
        assert all(loss["dim"] == member["dim"] for loss, member in zip(losses, model["members"], strict=True))


@pytest.mark.parametrize("data", ["cub", "cars"])
def test_the_one_student_has_the_adversaries_of_eat(data: str) -> None:
    student, ensemble = spec(data, "eat_one_student"), spec(data, "eat_eat")
    assert student["defence"]["trained_by"] == ensemble["defence"] and student["sampler"] == ensemble["sampler"]
    assert student["defence"]["ensemble"] == ensemble["model"] and student["model"] == spec(data, "eat_at")["model"]


@pytest.mark.parametrize("data", ROWS)
def test_a_divided_member_sees_as_many_images_as_a_model_alone(data: str) -> None:
    # Two parts of three: 2/3 of 168 are 112.
    alone, divided = spec(data, "eat_at")["sampler"], spec(data, "eat_eat")["sampler"]
    assert 2 * divided["batch"] == 3 * alone["batch"]
    # Of each class 2 of 3 images; by class, both images of 2 classes of 3.
    assert 2 * divided["per_class"] == 3 * alone.get("per_class", 2)
    if "by_class" in ROWS[data]:
        assert spec(data, "eat_by_class")["sampler"] == {**alone, "batch": divided["batch"]}


def test_all_of_them_are_evaluated_by_clustering() -> None:
    assert {recipe.load(path)["suite"] for path in FILES} == {"clustering"}
