"""Recipes: reading, merging, building, and errors that name file, key and the nearest valid word."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustmetric import recipe
from robustmetric.errors import InputError

NAMES = {"ball": "robustmetric.perturb.ball.Ball", "pgd": "robustmetric.perturb.pgd.PGD"}
plain = st.recursive(
    st.integers() | st.booleans() | st.text("abcdef", max_size=5),
    lambda inner: st.dictionaries(st.text("abcxyz", min_size=1, max_size=3), inner, max_size=3),
)
specs = st.dictionaries(st.text("abcxyz", min_size=1, max_size=3), plain, max_size=4)


def test_a_radius_may_be_written_as_a_fraction() -> None:
    assert recipe.parse("{radius: 8/255, steps: 8, name: 3/x}") == {"radius": 8 / 255, "steps": 8, "name": "3/x"}
    assert recipe.parse("-1.5/3") == -0.5
    assert recipe.parse("[1/4, [2/4]]") == [0.25, [0.5]]


def test_numbers_with_exponents_are_numbers() -> None:
    assert recipe.parse("1e-5") == 1e-5
    assert recipe.parse("2.5E3") == 2500.0
    assert recipe.parse("-1e2") == -100.0
    assert recipe.parse("e2") == "e2"


@given(st.integers(-999, 999), st.integers(1, 999))
def test_a_fraction_is_what_arithmetic_says(above: int, below: int) -> None:
    assert recipe.parse(f"{above}/{below}") == float(Fraction(above, below))


def test_a_division_by_zero_is_refused() -> None:
    with pytest.raises(InputError, match="'1/0' divides by zero"):
        recipe.parse("1/0")


@given(specs, specs)
def test_merging_keeps_what_is_not_changed_and_alters_neither_side(
    base: dict[str, Any], changes: dict[str, Any]
) -> None:
    before = repr(base), repr(changes)
    merged = recipe.merge(base, changes)
    assert set(merged) == {*base, *changes}
    assert recipe.merge(merged, changes) == merged
    assert recipe.merge(base, {}) == base
    assert (repr(base), repr(changes)) == before


def test_a_change_of_name_replaces_the_object_and_other_changes_go_into_it() -> None:
    base = {"loss": {"name": "triplet", "margin": 0.2}, "epochs": 3}
    assert recipe.merge(base, {"loss": {"name": "other"}})["loss"] == {"name": "other"}
    assert recipe.merge(base, {"loss": {"margin": 1}})["loss"] == {"name": "triplet", "margin": 1}
    assert recipe.merge(base, {"loss": 3})["loss"] == 3


def test_a_recipe_lies_over_its_base_and_that_over_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("x: 1\ny: 1\nz: {name: n, u: 1, v: 1}")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yaml").write_text("base: ../a.yaml\ny: 2\nz: {v: 2}")
    (tmp_path / "c.yaml").write_text("base: sub/b.yaml\nz: {u: 3}")
    assert recipe.load(tmp_path / "c.yaml") == {"x": 1, "y": 2, "z": {"name": "n", "u": 3, "v": 2}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1", r"r\.yaml: not valid YAML at line 1"),
        (b"- 1\n- 2", r"r\.yaml: expected a mapping of settings, found list"),
        (b"", r"r\.yaml: expected a mapping of settings, found NoneType"),
        (b"\xff\xfe\x00", r"r\.yaml: is not a text file"),
        (b"base: r.yaml", r"r\.yaml: its base leads back to itself"),
        (b"base: gone.yaml", r"r\.yaml: base: 'gone\.yaml' is no file and no recipe we ship"),
        (b"base: digits/plian", r"r\.yaml: base: .*did you mean 'digits/plain'\?"),
        (b"a: 1/0", r"r\.yaml: '1/0' divides by zero"),
    ],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        recipe.load(path)


def test_a_recipe_anywhere_may_lie_over_one_we_ship(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: digits/plain\nepochs: 3")
    found = recipe.load(tmp_path / "mine.yaml")
    assert found == {**recipe.load(recipe.locate("digits/plain")), "epochs": 3}
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "plain").write_text("seed: 7")
    assert recipe.load(tmp_path / "mine.yaml") == {"seed": 7, "epochs": 3}, "one's own file comes first"


def test_nested_objects_are_built_inside_out() -> None:
    spec = {"name": "pgd", "ball": {"name": "ball", "radius": 0.1}, "steps": 2, "step_size": 0.05}
    pgd = recipe.build(spec, NAMES, "here")
    assert (pgd.ball.radius, pgd.steps) == (0.1, 2)
    several = recipe.build({"list": [spec, 1], "text": "$n"}, NAMES, "here", {"n": 5})
    assert several["list"][0] == pgd and several["list"][1] == 1 and several["text"] == 5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "bal", "radius": 1}, "here: 'bal' is not a known name; did you mean 'ball'?"),
        ({"name": 3}, "here: 3 is not a known name"),
        ({"name": "ball", "raduis": 1}, "here: 'raduis' is not a setting of Ball; did you mean 'radius'?"),
        ({"name": "ball"}, "here: Ball needs 'radius'"),
        ({"name": "ball", "radius": -1.0}, "here: radius -1.0 is not a distance"),
        ({"name": "ball", "radius": "wide"}, "here: radius 'wide' is a word; expected a number"),
        (
            {"name": "pgd", "ball": {"radius": 0.3}, "steps": 1, "step_size": 0.1},
            "here: ball does not say what it is; write {name: ..., radius: ...}",
        ),
        ({"name": "no_such_file.Thing"}, "here: cannot import 'no_such_file.Thing'"),
        ({"name": "math.nothing"}, "here: cannot import 'math.nothing'"),
        ({"name": ".x"}, "here: cannot import '.x'"),
        ({"name": "math.pi"}, "here: 'math.pi' is a float; expected a class or a function"),
        ({"inner": [{"name": "ball", "radius": "$wide"}]}, r"here.inner\[0\].radius: '\$wide' is not known here"),
    ],
)
def test_what_cannot_be_built_is_named_with_its_place(spec: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        recipe.build(spec, NAMES, "here", {"classes": 3})


def test_a_constructor_that_takes_anything_is_asked_nothing() -> None:
    def anything(**settings: int) -> dict[str, int]:
        return settings

    recipe.check(anything, {"whatever": 1}, "here")
    with pytest.raises(InputError, match="'colour' is not a setting of needs_two"):
        recipe.check(needs_two, {"colour": 1}, "here")
    with pytest.raises(InputError, match="needs_two needs 'second'"):
        recipe.check(partial(needs_two, 1), {}, "here")


def needs_two(first: int, second: int, *others: int) -> None: ...


def test_a_whole_number_where_a_float_is_declared_becomes_one() -> None:
    def scale(rate: float, clip: float | None = None, steps: int = 1, either: int | float = 0) -> list[object]:
        return [rate, clip, steps, either]

    found = recipe.call(scale, {"rate": 1, "clip": 10, "steps": 3, "either": 2}, "here")
    assert found == [1, 10, 3, 2] and [type(value) for value in found] == [float, float, int, int]


def test_a_refusal_of_many_lines_is_told_in_one() -> None:
    def refuse() -> None:
        raise RuntimeError("first\n  second")

    with pytest.raises(InputError, match="here: refuse refused its settings: first second"):
        recipe.call(refuse, {}, "here")


@pytest.mark.parametrize("word", ["1234e56789012345", "1e5", "12", "0x1f", "a1e5", "1_2"])
def test_a_word_that_looks_like_a_number_is_read_back_as_a_word(word: str, tmp_path: Path) -> None:
    recipe.save({"word": word, "number": 1e-5}, tmp_path / "r.yaml")
    assert recipe.load(tmp_path / "r.yaml") == {"word": word, "number": 1e-5}


def test_a_saved_recipe_reads_back(tmp_path: Path) -> None:
    spec = {"z": 1, "a": {"name": "n", "radius": 8 / 255, "tiny": 1e-7}}
    recipe.save(spec, tmp_path / "r.yaml")
    assert recipe.load(tmp_path / "r.yaml") == spec
    assert list(recipe.load(tmp_path / "r.yaml")) == ["z", "a"]


@pytest.mark.parametrize("name", ["digits/plain", "digits/plain.yaml", "recipes/digits/plain.yaml"])
def test_a_shipped_recipe_is_found_by_short_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert recipe.locate(name) == recipe.shelf() / "digits" / "plain.yaml"


@pytest.mark.parametrize("name", ["digits/plian", "", ".", "..", "x.yaml"])
def test_an_unknown_recipe_gets_the_nearest_names_and_where_the_list_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"is no file and no recipe we ship.*; see `robustmetric list`"):
        recipe.locate(name)


def test_a_file_of_ones_own_comes_first(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("seed: 1")
    assert recipe.locate(str(own)) == own


def test_suites_and_recipes_are_listed_apart() -> None:
    assert "demo" in recipe.listing("suites")
    assert "digits/plain" in recipe.listing()
    assert not any(name.startswith("suites") for name in recipe.listing())


def test_an_unknown_suite_is_called_a_suite() -> None:
    with pytest.raises(InputError, match="'dmo' is no file and no suite we ship; did you mean 'demo'"):
        recipe.locate("dmo", "suites")


def test_find_gives_the_thing_itself() -> None:
    found: Callable[..., Any] = recipe.find("ball", NAMES, "here")
    assert found.__name__ == "Ball"


def test_an_unknown_name_among_many_gets_the_closest_eight() -> None:
    many = {f"thing{i}": "x.Y" for i in range(40)} | NAMES
    with pytest.raises(
        InputError, match=r"'thin1' is not a known name; did you mean 'thing1'\?.*; see `robustmetric list`"
    ) as caught:
        recipe.find("thin1", many, "here")
    assert str(caught.value).count(",") == 7
    with pytest.raises(InputError, match=r"'zzz' is not a known name; see `robustmetric list`"):
        recipe.find("zzz", many, "here")


def test_a_recipe_half_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    recipe.save({"seed": 1}, path)
    assert [p.name for p in tmp_path.iterdir()] == ["r.yaml"]
    # Every write to this device fails for want of space.
    (tmp_path / "r.yaml.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        recipe.save({"seed": 2}, path)
    assert recipe.load(path) == {"seed": 1}
