"""What a sweep runs: values between commas, brackets respected, one name for each combination."""

import pytest

from robustmetric.errors import InputError
from robustmetric.jobs.combinations import combinations, parse, split, title


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("0,1,2", ["0", "1", "2"]),
        ("4", ["4"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("{name: ball, radius: 8/255},null", ["{name: ball, radius: 8/255}", "null"]),
        ("[[1,2],3], 4", ["[[1,2],3]", "4"]),
    ],
)
def test_commas_in_brackets_part_nothing(text: str, parts: list[str]) -> None:
    assert list(split(text)) == parts


@pytest.mark.parametrize("word", ["seed", "=1,2", "seed=", "seed=1,,2"])
def test_what_is_no_setting_with_values_is_refused(word: str) -> None:
    with pytest.raises(InputError, match="is no setting with values; expected key=a,b,c"):
        parse(word)


def test_the_product_of_all_values_each_with_a_name_of_its_own() -> None:
    found = combinations(["seed=0,1", "epochs=3", "defence.attack.steps=2,4"])
    assert [one.name for one in found] == ["seed0-steps2", "seed0-steps4", "seed1-steps2", "seed1-steps4"]
    assert found[1].values == {"seed": "0", "defence.attack.steps": "4"}, "what does not vary names nothing"
    assert found[1].overrides == ["seed=0", "epochs=3", "defence.attack.steps=4"]


def test_names_are_fit_for_folders_and_tell_keys_apart_that_end_alike() -> None:
    assert title({"defence.attack.ball.radius": "8/255"}) == "radius8_255"
    assert title({"model.trunk.widths": "[64, 64]"}) == "widths64_64"
    assert title({"defence.name": "est", "model.name": "x"}) == "defence.nameest-model.namex"


def test_settings_given_twice_and_runs_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="'seed' is given twice"):
        combinations(["seed=0,1", "seed=2"])
    with pytest.raises(InputError, match="2 runs would be called 'seed1'"):
        combinations(["seed=1,1"])
    with pytest.raises(InputError, match="nothing varies"):
        combinations(["seed=1"])
