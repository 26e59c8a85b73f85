"""Overrides: dotted keys reach inside mappings and lists, and what cannot be is told in one line."""

import pytest

from robustmetric import recipe
from robustmetric.errors import InputError
from robustmetric.overrides import override


def test_overrides_reach_inside_and_leave_the_original_alone() -> None:
    spec = {"defence": {"attack": {"steps": 8}}, "seed": 0}
    changed = override(spec, ["defence.attack.steps=4", "seed=1", "defence.loss.margin=1/4"])
    assert changed == {"defence": {"attack": {"steps": 4}, "loss": {"margin": 0.25}}, "seed": 1}
    assert spec == {"defence": {"attack": {"steps": 8}}, "seed": 0}


def test_an_override_of_a_name_starts_a_new_object() -> None:
    spec = {"model": {"trunk": {"name": "convnet", "side": 8}, "unit": True}, "loss": {"miner": {"name": "semihard"}}}
    changed = override(spec, ["model.trunk.name=mahalanobis", "model.trunk.dim=3", "loss.miner.name=random"])
    assert changed["model"] == {"trunk": {"name": "mahalanobis", "dim": 3}, "unit": True}
    assert changed["loss"] == {"miner": {"name": "random"}}
    assert spec["model"]["trunk"] == {"name": "convnet", "side": 8}
    assert override(spec, ["model.trunk.name=convnet"]) == spec
    assert override({}, ["schedule.share=1", "schedule.name=cosine"])["schedule"] == {
        "share": 1,
        "name": "cosine",
    }


def test_a_whole_number_is_a_place_in_a_list() -> None:
    member = {"name": "encoder", "trunk": {"name": "convnet", "dim": 4}}
    # One object in three places, as an anchor of YAML makes it: only the one that is named changes.
    spec = {"model": {"members": [member, member, member]}, "at": [0.5, 0.75], "grid": [[1, 2], [3, 4]]}
    changed = override(spec, ["model.members.1.trunk.dim=8", "at.0=1/4", "grid.1.0=9", "model.members.2.name=other"])
    wider = {"name": "encoder", "trunk": {"name": "convnet", "dim": 8}}
    assert changed["model"]["members"] == [member, wider, {"name": "other"}]
    assert changed["at"] == [0.25, 0.75] and changed["grid"] == [[1, 2], [9, 4]]
    assert spec == {"model": {"members": [member] * 3}, "at": [0.5, 0.75], "grid": [[1, 2], [3, 4]]}
    assert member == {"name": "encoder", "trunk": {"name": "convnet", "dim": 4}}


def test_a_member_of_a_recipe_we_ship_can_be_changed() -> None:
    spec = recipe.load(recipe.locate("cub/eat_eat"))
    changed = override(spec, ["defence.losses.0.scale=16", "model.members.2.dim=64"])
    assert [loss.get("scale") for loss in changed["defence"]["losses"]] == [16, None, None]
    assert [member["dim"] for member in changed["model"]["members"]] == [128, 128, 64]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("seed", "'seed' is not an override; expected key=value"),
        ("=3", "'=3' is not an override"),
        ("seed.deep=3", "'seed' is a plain value, it has no setting 'deep'"),
        ("at.2=3", "'at.2=3': '2' is no place in a list of 2; expected a number from 0 to 1"),
        ("at.-1=3", "'-1' is no place in a list of 2; expected a number from 0 to 1"),
        ("at.first=3", "'first' is no place in a list of 2; expected a number from 0 to 1"),
        ("at.name=3", "'name' is no place in a list of 2; expected a number from 0 to 1"),
        ("at.0.deep=3", "'0' is a plain value, it has no setting 'deep'"),
        ("none.0=3", "'0' is no place in a list of 0; expected no number, for it is empty"),
        ("seed=[1", r"'seed=\[1': not valid YAML"),
        ("seed=1/0", "'seed=1/0': '1/0' divides by zero"),
    ],
)
def test_an_override_that_cannot_be_is_quoted(assignment: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        override({"seed": 0, "at": [1, 2], "none": []}, [assignment])
