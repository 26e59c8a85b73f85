"""The recipes of the published tables are what the tables say, and the tables are what they claim to be."""

import re
from pathlib import Path

import pytest

from published import ATTACKED, BY_HAND, RECIPES, Row, generated, published, rows, unmeasured
from robustmetric import recipe
from robustmetric.metrics.robustness import ers
from robustmetric.report.ledger import published as told
from robustmetric.report.names import label, steps

FILES = generated()
FASHION = ("fashion/plain", "fashion/est", "fashion/act")


def identity(row: Row) -> str:
    return f"{row.data}/{row.stem}"


def test_the_tables_have_as_many_rows_as_the_paper() -> None:
    by_data = {data: [row for row in rows() if row.data == data] for data in ("cub", "cars", "sop")}
    assert {data: len(found) for data, found in by_data.items()} == {"cub": 73, "cars": 9, "sop": 11}
    assert len({identity(row) for row in rows()}) == len(rows()), "one file a row"
    pairs = {row.kind for row in rows() if re.fullmatch(r"hm_[rmsdh]_[rmsdh]", row.kind)}
    assert len(pairs) == 25


@pytest.mark.parametrize("row", [row for row in rows() if row.scores], ids=identity)
def test_the_published_score_follows_from_its_ten_numbers(row: Row) -> None:
    assert ers({name: float(row.scores[name]) for name in ATTACKED}) == pytest.approx(
        float(row.scores["ERS"]), abs=0.11
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_generated_recipe_is_what_its_row_makes_it(path: Path) -> None:
    assert unmeasured(path.read_text()) == unmeasured(FILES[path]), "write it anew: python tests/published.py"


@pytest.mark.parametrize("stem", BY_HAND)
def test_a_recipe_written_by_hand_says_what_was_published(stem: str) -> None:
    (row,) = [row for row in rows() if row.data == "cub" and row.stem == stem]
    text = (RECIPES / "cub" / f"{stem}.yaml").read_text()
    assert published(row.scores) in text and row.source in text


@pytest.mark.parametrize("row", rows(), ids=identity)
def test_a_recipe_is_the_defence_its_name_and_row_say(row: Row) -> None:
    spec = recipe.load(RECIPES / row.data / f"{row.stem}.yaml")
    assert spec["data"]["name"] == row.data and spec["model"]["architecture"] == "resnet18"
    assert (spec["epochs"], spec["optimiser"]["rate"]) == (75, 1e-5)
    defence = spec["defence"]
    assert label(defence, row.data) == row.kind
    assert steps(defence) == (row.steps or (None if row.kind == "plain" else 8))
    if row.steps is not None:
        assert defence["attack"]["step_size"] == 1 / 255 and defence["attack"]["ball"]["radius"] == 8 / 255
        assert defence["attack"]["random_start"] is False
    if row.base not in ("plain", "est"):
        assert (defence["groups"], spec["sampler"]["batch"]) == (2, 224), "two groups of 56 pairs"
    assert spec["model"]["batch_norm"] == ("live" if row.base == "est" else "statistics")
    ours = recipe.load(RECIPES / row.data / f"mobilenet_v2-{row.stem}.yaml")
    assert ours["model"]["architecture"] == "mobilenet_v2" and ours["defence"] == defence
    assert ours["sampler"]["batch"] == 224 and (ours["epochs"], ours["optimiser"]) == (75, spec["optimiser"])
    assert ours["data"] == spec["data"]


@pytest.mark.parametrize("row", rows(), ids=identity)
def test_a_header_is_read_back_as_the_row(row: Row) -> None:
    found = told(identity(row))
    assert found is not None and found.pop("model") == "resnet18" and found.pop("source") == row.source
    assert found == ({name: float(value) for name, value in row.scores.items()} or {"collapsed": True})
    assert told(f"{row.data}/mobilenet_v2-{row.stem}") == told(identity(row)), "its sibling's"


@pytest.mark.parametrize("name", FASHION)
def test_the_rows_of_fashion_follow_from_their_ten_numbers(name: str) -> None:
    found = told(name)
    assert found is not None and found["model"] == "convnet" and found["source"].startswith("robrank")
    assert ers({name: found[name] for name in ATTACKED}) == pytest.approx(found["ERS"], abs=0.11)


@pytest.mark.parametrize(
    "name", ["cub/free_hm", "cub/mobilenet_v2-ca_tride", "fashion/hm_lga", "digits/plain", "cub/bn_inception-plain"]
)
def test_what_nobody_published_has_no_numbers(name: str) -> None:
    assert told(name) is None
