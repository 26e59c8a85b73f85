"""What training steps of the ensemble paper cost: as counted in its recipes, and by hand."""

import re

import pytest

from robustmetric import recipe
from robustmetric.catalogue import CATALOGUE
from robustmetric.jobs.cost import CHOICELESS, cost
from robustmetric.losses.base import MetricLoss


@pytest.mark.parametrize(
    "stem", ["plain", "at", "mixup", "iat", "trades", "eat", "no_split", "by_class", "naive", "adp", "one_student"]
)
def test_costs_of_the_ensemble_paper_are_those_counted_in_its_recipes(stem: str) -> None:
    text = recipe.locate(f"cub/eat_{stem}").read_text()
    (counted,) = re.findall(r"# cost: (\d+) forwards per image", text)
    assert cost(recipe.load(recipe.locate(f"cub/eat_{stem}"))["defence"]) == int(counted)


def test_costs_of_literal_variants() -> None:
    at, eat = (recipe.load(recipe.locate(f"cub/eat_{stem}"))["defence"] for stem in ("at_literal", "eat"))
    assert cost(at) == 1 + 20 + 3 + 1, "the clean embedding once more, as a target"
    # Three look and climb, to the letter twice each image; two train, clean and perturbed.
    assert cost({**eat, "shared": False}) == 3 * (1 + 20 * 2) + 2 * 3 * 2
    assert cost({"name": "one_student", "trained_by": {**eat, "clean_share": 0.0}}) == 3 * (1 + 20) + 2 * 3 + 3
    assert cost({"name": "naive_ensemble", "defences": [{"name": "my_lab.Mine"}]}) is None


def test_losses_whose_climb_needs_no_look_are_those_that_mine_nothing() -> None:
    made = {name: recipe.find(name, CATALOGUE["losses"], "a test") for name in CATALOGUE["losses"]}
    losses = {name: made[name] for name in made if isinstance(made[name], type) and issubclass(made[name], MetricLoss)}
    assert {name for name, kind in losses.items() if kind.mine is MetricLoss.mine} == set(CHOICELESS)
