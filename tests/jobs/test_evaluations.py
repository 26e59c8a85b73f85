"""From the records of a run to its row: every suite with its own queries, batch and source, at the published radius."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robustmetric import recipe, records
from robustmetric.errors import InputError
from robustmetric.jobs.cost import cost
from robustmetric.jobs.evaluations import commands, gather
from robustmetric.jobs.ledger import read_row, write_rows
from robustmetric.records import Record
from robustmetric.report.classification import classification_tables, name_of
from robustmetric.report.ledger import faults

SHARED = {"images": 10000, "weights": "ab" * 8, "batch": 128, "data_fingerprint": "cd" * 8}
BALL = {"norm": "linf", "radius": 8 / 255}


def clean(suite: str, count: int = 1000, **settings: Any) -> Record:
    return Record(
        "clean", "clean", {"accuracy": 90.0}, {**SHARED, "suite": suite, "queries": count, **settings}, {}, count, 1.0
    )


def attacked(suite: str, name: str, value: float, count: int = 1000, kind: str = "attack", **settings: Any) -> Record:
    described = {**SHARED, **BALL, "suite": suite, "queries": count, **settings}
    return Record(kind, name, {"accuracy": value}, described, {"accuracy": (value - 1, value + 1)}, count, 10.0)


def verdict(word: str, radius: float = 8 / 255, images: int = 200, **more: Any) -> Record:
    settings = {**SHARED, "norm": "linf", "radius": radius, "suite": "masking", "queries": 10000, **more}
    notes = {"verdict": word, "checks": {"steps": "fail" if word == "masked" else "pass"}}
    return Record("masking", "verdict", {}, settings, {}, images, 100.0, 0, notes)


USUAL = (
    clean("classification"),
    attacked("classification", "PGD-20", 60.0),
    attacked("classification", "worst case", 36.0, kind="worst_case"),
)


def run(path: Path, *found: Record, name: str = "cifar10/fs_scattering") -> Path:
    """A run folder of a classifier with made-up numbers and no weights."""
    path.mkdir(parents=True)
    recipe.save(recipe.load(recipe.locate(name)), path / "recipe.yaml")
    facts = {
        "name": path.name, "data": "cifar10", "model": "small_resnet", "commit": "abc1234", "hardware": "1 x GPU",
        "recipe_file": f"recipes/{name}.yaml", "command": f"robustmetric train {name}",
    }  # fmt: skip
    records.write_json(path / "run.json", facts)
    for record in found or USUAL:
        records.append(path / "results.jsonl", record)
    return path


def test_rows_of_all_recipes_have_names_of_their_own_in_their_table(tmp_path: Path) -> None:
    names = [name for name in recipe.listing() if name.startswith("cifar10/") and name != "cifar10/plain"]
    rows = []
    for name in names:
        count = 10000 if recipe.load(recipe.locate(name))["epochs"] == 200 else 1000
        found = (clean("classification", count), attacked("classification", "PGD-20", 60.0, count))
        rows.append(read_row(run(tmp_path / name, *found, name=name)))
    lines = [
        (table.partition("\n")[0], line.partition(" | ")[0])
        for table in classification_tables("cifar10", rows)
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    assert len(lines) == len(set(lines)) == len(names) > 40
    by_recipe = {row["recipe"].removeprefix("recipes/cifar10/fs_").removesuffix(".yaml"): row for row in rows}
    assert name_of(by_recipe["noise"]) == "noise_smoothing0_5"
    assert name_of(by_recipe["madry-s5"]) == "madry_smoothing0_5-eta7"
    assert name_of(by_recipe["random_target-t1"]) == "random_target-eta1"
    assert name_of(by_recipe["scattering-b40"]) == "scattering_smoothing0_5-eta1-batch40"
    papers = {stem: by_recipe[stem].get("paper") for stem in ("noise", "madry", "one_step", "random_target")}
    assert papers == {
        "noise": "Zhang & Wang 2019", "madry": "Madry et al. 2018", "one_step": "Goodfellow et al. 2015",
        "random_target": "Kurakin et al. 2017",
    }  # fmt: skip


def test_what_was_told_of_the_data_is_in_the_row(tmp_path: Path) -> None:
    told = replace(USUAL[0], context={"data_note": "a JPEG copy"})
    row = read_row(run(tmp_path / "run", told, *USUAL[1:]))
    assert row["data_note"] == "a JPEG copy" and faults(row) == []
    assert faults({**row, "data_note": 3}) == ["data_note 3 is no text"]
    assert "data_note" not in read_row(run(tmp_path / "other", *USUAL))


def test_costs_are_those_counted_in_the_recipes() -> None:
    for name in recipe.listing():
        counted = re.findall(r"# cost: (\d+) forwards per image", recipe.locate(name).read_text())
        if name.startswith("cifar10/fs_") and counted:
            assert cost(recipe.load(recipe.locate(name))["defence"]) == int(counted[0]), name


def test_local_search_on_fewer_images_is_in_the_row_with_their_number(tmp_path: Path) -> None:
    few = (clean("local_search", 200), attacked("local_search", "Local search, clipped", 88.5, 200))
    fewer = (clean("local_search", 50), attacked("local_search", "Local search, clipped", 1.0, 50))
    row = read_row(run(tmp_path / "run", *few, *fewer, *USUAL))
    assert faults(row) == [] and row["queries"] == 1000
    block = row["classification"]
    assert block["local_search"] == {"Local search, clipped": 88.5} and block["local_search_queries"] == 200
    assert block["accuracy"] == {"PGD-20": 60.0, "worst case": 36.0}
    (table,) = classification_tables("cifar10", [row])
    assert "| 88.5 (200) |" in table and "local_search --queries 200" in row["command"]
    other = [replace(r, settings={**r.settings, "weights": "ef" * 8}) for r in few]
    assert "local_search" not in read_row(run(tmp_path / "other", *other, *USUAL))["classification"]


def test_local_search_alone_makes_no_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no evaluation of its weights by an ers, classification"):
        read_row(run(tmp_path / "run", clean("local_search"), attacked("local_search", "Local search, clipped", 88.5)))


def transferred(source: str, count: int = 1000, weights: str = "01" * 8, radius: float = 8 / 255) -> list[Record]:
    values = {"PGD-20": 80.0, "PGD-100": 79.0, "CW-20": 81.0, "CW-100": 80.5}
    return [
        attacked("transfer", f"{name} from {source}", value, count, surrogate_weights=weights, radius=radius)
        for name, value in values.items()
    ]


def test_transfer_has_a_block_by_source_and_a_table(tmp_path: Path) -> None:
    older = [replace(r, scores={"accuracy": 1.0}) for r in transferred("plain-seed0", 1000, "99" * 8)]
    other = [replace(r, scores={"accuracy": 2.0}) for r in transferred("plain-seed0", radius=4 / 255)]
    fewer = [replace(r, scores={"accuracy": 3.0}) for r in transferred("plain-seed0", 100)]
    found = [*USUAL, clean("transfer"), *older, *other, *transferred("plain-seed0"), *fewer]
    row = read_row(run(tmp_path / "fs-seed0", *found, *transferred("fs-seed1", 500)))
    assert faults(row) == []
    values = {"PGD-20": 80.0, "PGD-100": 79.0, "CW-20": 81.0, "CW-100": 80.5}
    assert row["transfer"] == {
        "norm": "linf", "radius": 0.031373, "sources": {
            "plain-seed0": {"weights": "01" * 8, "queries": 1000, "accuracy": values},
            "fs-seed1": {"weights": "01" * 8, "queries": 500, "accuracy": values},
        },
    }  # fmt: skip
    assert set(row["classification"]["accuracy"]) == {"PGD-20", "worst case"}
    _, table = classification_tables("cifar10", [row])
    assert table.splitlines() == [
        "### cifar10, classifiers, protocol scaled, resnet18, 8/255, transfer",
        "",
        "| defence | seed | source | PGD-20 | PGD-100 | CW-20 | CW-100 | images |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
        "| `scattering_smoothing0_5-eta1` | 0 | `plain-seed0` | 80.0 | 79.0 | 81.0 | 80.5 | 1000 |",
        "| `scattering_smoothing0_5-eta1` | 0 | `fs-seed1` | 80.0 | 79.0 | 81.0 | 80.5 | 500 |",
    ]
    both = [
        "robustmetric evaluate runs/fs-seed0 transfer --queries 1000 --surrogate runs/plain-seed0",
        "robustmetric evaluate runs/fs-seed0 transfer --queries 500 --surrogate runs/fs-seed1",
    ]
    assert row["command"].split(" && ")[-2:] == both


def test_transfers_sought_in_fp32_and_in_tf32_are_not_mixed(tmp_path: Path) -> None:
    quick = [
        replace(r, scores={"accuracy": 1.0}, settings={**r.settings, "search": "tf32"}) for r in transferred("plain")
    ]
    for place, found in enumerate(([*quick, *transferred("plain")], [*transferred("plain"), *quick])):
        block = read_row(run(tmp_path / f"both{place}", *USUAL, *found))["transfer"]
        assert "search" not in block and block["sources"]["plain"]["accuracy"]["PGD-20"] == 80.0
    # Of fp32 there is one attack of four.
    block = read_row(run(tmp_path / "few", *USUAL, *transferred("plain")[:1], *quick))["transfer"]
    assert block["search"] == "tf32" and set(block["sources"]["plain"]["accuracy"].values()) == {1.0}


def test_a_block_of_sources_that_were_sought_differently_names_every_precision(tmp_path: Path) -> None:
    found = [
        replace(r, settings={**r.settings, "search": search})
        for source, search in (("plain", "tf32"), ("other", "fp16"))
        for r in transferred(source)
    ]
    row = read_row(run(tmp_path / "two", *USUAL, *found))
    assert faults(row) == [] and row["transfer"]["search"] == "fp16 and tf32"
    told = "transfer.search 'fp32' is not 'tf32' or 'fp16'; it is left out for fp32"
    assert faults({**row, "transfer": {**row["transfer"], "search": "fp32"}}) == [told]


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"sources": {}}, "transfer has no norm and radius"),
        ({**BALL, "sources": {}}, "transfer has no sources"),
        ({**BALL, "sources": {"a": {"accuracy": {"PGD-20": 1.0}}}}, "is not {weights, queries, accuracy}"),
        ({**BALL, "sources": {"a": {"weights": "x", "queries": 9, "accuracy": {"PGD-20": 101}}}}, "not from 0 to 100"),
        ({**BALL, "sources": {"a": {"weights": "x", "queries": 9, "accuracy": {}}}}, "not from 0 to 100"),
        ({**BALL, "sources": {"a": {"weights": "x", "queries": 0, "accuracy": {"PGD-20": 1}}}}, "0 is no count > 0"),
    ],
)
def test_a_block_of_transfer_that_is_none_says_why(block: Any, words: str, tmp_path: Path) -> None:
    row = read_row(run(tmp_path / "run"))
    (fault,) = faults({**row, "transfer": block})
    assert words in fault
    (fault,) = faults({**row, "classification": {**row["classification"], "local_search": {"clipped": 80.0}}})
    assert "stand together" in fault


def test_the_masking_verdict_is_that_at_the_published_radius_and_its_suite_was_typed(tmp_path: Path) -> None:
    row = read_row(run(tmp_path / "run", *USUAL, verdict("honest"), verdict("masked", 16 / 255)))
    assert row["masking"] == {"verdict": "honest", "checks": {"steps": "pass"}, "radius": 0.031373, "images": 200}
    assert row["command"].endswith(" && robustmetric evaluate runs/run masking") and faults(row) == []
    assert row["wall_seconds"]["evaluate"] == 1 + 10 + 100, "the worst case is of attacks that were counted"
    assert "masking" not in read_row(run(tmp_path / "other", *USUAL, verdict("masked", 16 / 255)))


def test_a_rerun_on_few_images_or_at_less_effort_leaves_a_row_masked(tmp_path: Path) -> None:
    found = [verdict("masked"), verdict("honest", images=5, queries=5), verdict("honest", attack="less")]
    block = read_row(run(tmp_path / "run", *USUAL, *found))["masking"]
    assert (block["verdict"], block["images"]) == ("masked", 200)


def test_without_a_published_radius_the_verdict_is_that_at_the_radius_of_the_attacks() -> None:
    attacks = [clean("classification"), attacked("classification", "PGD-20", 60.0, radius=0.1)]
    masked, tiny = verdict("masked", 0.1), verdict("honest", 0.001, images=300)
    assert gather([*attacks, masked, tiny], "ab" * 32, None).masked == masked
    assert gather([*attacks, tiny], "ab" * 32, None).masked == tiny, "its radius is in the block"


def test_a_command_keeps_the_radius_of_a_suite_that_climbs_on_another_run() -> None:
    asked = "robustmetric evaluate runs/run transfer --radius 0.1 --queries 100 --surrogate runs/plain"
    moved = transferred("plain", 100, radius=0.1)
    assert commands({"name": "run"}, clean("transfer", 100), moved) == asked
    assert "--radius" not in commands({"name": "run"}, clean("transfer", 100), transferred("plain", 100))


def test_a_command_tells_the_radius_of_a_suite_whose_file_is_elsewhere() -> None:
    asked = "robustmetric evaluate runs/run mine --radius 0.1"
    assert commands({"name": "run"}, clean("mine", 10000), [verdict("honest", 0.1, suite="mine")]) == asked
    several = [verdict("honest", radius, suite="mine") for radius in (0.1, 0.2)]
    assert commands({"name": "run"}, clean("mine", 10000), several) == "robustmetric evaluate runs/run mine"


def test_the_command_names_the_run_that_masking_climbed_on_where_the_command_line_did(tmp_path: Path) -> None:
    named = verdict("honest", trial="masking from plain-seed0", surrogate_weights=["ffff"])
    row = read_row(run(tmp_path / "run", *USUAL, named))
    assert row["command"].endswith(" && robustmetric evaluate runs/run masking --surrogate runs/plain-seed0")
    # A suite's own file may name them too.
    row = read_row(run(tmp_path / "other", *USUAL, verdict("honest", trial="masking", surrogate_weights=["ffff"])))
    assert row["command"].endswith(" && robustmetric evaluate runs/other masking")


def test_every_suite_has_its_own_batch_and_queries_in_the_command(tmp_path: Path) -> None:
    usual = [replace(r, settings={**r.settings, "batch": 500}) for r in USUAL]
    auto = attacked("autoattack", "AutoAttack", 37.0, kind="worst_case", batch=250)
    few = [clean("local_search", 200), attacked("local_search", "Local search, clipped", 88.5, 200)]
    row = read_row(run(tmp_path / "run", *usual, clean("autoattack", batch=250), auto, *few))
    assert row["command"].split(" && ")[1:] == [
        "robustmetric evaluate runs/run classification --queries 1000 --batch 500",
        "robustmetric evaluate runs/run autoattack --queries 1000 --batch 250",
        "robustmetric evaluate runs/run local_search --queries 200",
    ]


def test_a_row_of_other_weights_is_not_written_over(tmp_path: Path) -> None:
    path, out = run(tmp_path / "run"), tmp_path / "out"
    (file,) = write_rows([path], out)
    assert write_rows([path], out) == [file], "the same weights: the row is brought up to date"
    other = json.dumps({**json.loads(file.read_text()), "weights_sha256": "ef" * 32})
    file.write_text(other)
    with pytest.raises(InputError, match=r"row of other weights \(efefefefefefefef\) .*another seed .* or remove the"):
        write_rows([path], out)
    assert file.read_text() == other
    file.write_text("{")
    with pytest.raises(InputError, match="line 1: not valid JSON; remove the file"):
        write_rows([path], out)


@pytest.mark.parametrize("search", ["tf32", "fp16"])
def test_a_row_says_what_its_attacks_searched_in_and_stands_in_a_table_of_its_own(search: str, tmp_path: Path) -> None:
    quick = [replace(record, settings={**record.settings, "search": search}) for record in USUAL]
    row = read_row(run(tmp_path / "quick", *quick))
    assert faults(row) == [] and row["classification"]["search"] == search
    assert row["command"].endswith(f"classification --queries 1000 --search {search}")
    told = "classification.search 'bf16' is not 'tf32' or 'fp16'; it is left out for fp32"
    assert faults({**row, "classification": {**row["classification"], "search": "bf16"}}) == [told]
    exact = read_row(run(tmp_path / "exact"))
    assert "search" not in exact["classification"] and "--search" not in exact["command"]
    titles = [table.partition("\n")[0] for table in classification_tables("cifar10", [row, exact])]
    assert {title.partition("8/255")[2] for title in titles} == {f", sought in {search}", ""}
    # Measured both ways, fp32 counts, whichever came first.
    for place, found in enumerate(((*quick, *USUAL), (*USUAL, *quick))):
        both = read_row(run(tmp_path / f"both{place}", *found))
        assert "search" not in both["classification"] and "--search" not in both["command"]
