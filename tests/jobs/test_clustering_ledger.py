"""Rows of the ledger about clustering: from run folders, with nothing made up, beside what is published."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clustering_runs import READINGS, run, scores, trial
from robustmetric import recipe, records
from robustmetric.errors import InputError
from robustmetric.jobs.ledger import read_row, write_rows
from robustmetric.records import Record
from robustmetric.report.clustering_rows import published, table
from robustmetric.report.comparison import comparison
from robustmetric.report.ledger import faults, read_rows
from robustmetric.report.masking_flag import MARK


def test_a_run_becomes_a_row_by_its_vote(tmp_path: Path) -> None:
    row = read_row(run(tmp_path / "cars-eat_eat-seed0"))
    assert faults(row) == []
    assert row["id"] == "cars-mobilenet_v2-eat-r8-seed0"
    assert (row["protocol"], row["model"], row["defence"]) == ("full", "mobilenet_v2", "eat")
    block, vote = row["clustering"], READINGS.index("V1, C1")
    assert block["reading"] == "V1, C1"
    assert row["clean"] == {"R@1": 60.0, "R@2": 61.0, "NMI": 70.0, "AMI": 60.0, "F1": 15.0}
    assert block["clean"]["R@1"] == 55 + vote and block["pgd10"]["R@1"] == 23 + vote
    assert block["pgd10"]["query only"] == scores(24.0 + vote, whole=False) and "by" not in block["pgd10"]
    assert block["adaptive"]["R@1"] == 4 + vote and block["adaptive"]["by"]["F1"] == "joint margin"
    assert "adaptive_short" not in block, "that suite was not run"
    assert list(block["readings"]) == [name for name in READINGS if name != "V1, C1"]
    assert block["readings"]["member 2"]["adaptive"] == {"R@1": 5.0, "NMI": 15.0, "F1": 1.25}
    ten = {"R@1": 20.0, "F1": 5.0, "query only": {"R@1": 21.0}}
    assert block["steps"] == {"1": {"R@1": 29.0, "F1": 7.25, "query only": {"R@1": 30.0}}, "10": ten}
    assert block["radii"] == {"8": ten, "16": {"R@1": 12.0, "F1": 3.0, "query only": {"R@1": 13.0}}}


def test_a_row_says_how_near_one_attack_brought_the_images(tmp_path: Path) -> None:
    path = run(tmp_path / "cars-eat_eat-seed0")
    noted = {"cosines": {"clean": 0.5, "moved": 0.98765, "own": -0.1}}
    found = [replace(r, context={**r.context, **noted}) for r in records.read(path / "results.jsonl")]
    (path / "results.jsonl").unlink()
    for record in found:
        records.append(path / "results.jsonl", record)
    row = read_row(path)
    assert faults(row) == []
    assert row["clustering"]["pgd10"]["cosines"] == {"clean": 0.5, "moved": 0.9877, "own": -0.1}
    assert "cosines" not in row["clustering"]["adaptive"], "of several attacks"
    assert "cosines" not in row["clustering"]["readings"]["mean"]["pgd10"]


def test_a_row_says_how_many_queries_cannot_hit(tmp_path: Path) -> None:
    path = run(tmp_path / "cars-eat_eat-seed0")
    assert "without_positives" not in read_row(path)["clustering"]
    found = [replace(r, settings={**r.settings, "without_positives": 7}) for r in records.read(path / "results.jsonl")]
    (path / "results.jsonl").unlink()
    for record in found:
        records.append(path / "results.jsonl", record)
    row = read_row(path)
    assert faults(row) == [] and row["clustering"]["without_positives"] == 7


def test_a_row_says_that_its_attacks_searched_in_bfloat16(tmp_path: Path) -> None:
    path = run(tmp_path / "cars-eat_eat-seed0")
    found = list(records.read(path / "results.jsonl"))
    (path / "results.jsonl").unlink()
    for record in found:
        if record.settings.get("suite") in ("clustering_adaptive", "clustering_sweep"):
            record = replace(record, settings={**record.settings, "search": "bf16"})
        records.append(path / "results.jsonl", record)
    row = read_row(path)
    assert faults(row) == []
    block = row["clustering"]
    assert block["adaptive"]["search"] == "bf16" and "search" not in block["pgd10"]
    assert block["steps"]["10"] == {"R@1": 20.0, "F1": 5.0, "search": "bf16", "query only": {"R@1": 21.0}}
    assert row["command"].count("--search bf16") == 2 and "clustering &&" in row["command"]
    assert table("cars", [row]).count("(sought in bf16, 2 of 17 attacks)") == 1 + len(READINGS)
    block["adaptive"]["search"] = "fp32"
    assert faults(row) == ["clustering.adaptive.search 'fp32' is not 'bf16'; it is left out for fp32"]


def with_search(found: list[Record], suite: str) -> list[Record]:
    """The records of a suite once more, with other numbers, as attacks that searched in bfloat16 leave them."""
    own = [record for record in found if record.settings.get("suite") == suite]
    return [
        replace(r, scores=dict.fromkeys(r.scores, 1.0), settings={**r.settings, "search": "bf16"}, seconds=5000.0)
        for r in own
    ]


@pytest.mark.parametrize("suite", ["clustering", "clustering_adaptive", "clustering_sweep"])
@pytest.mark.parametrize("first", ["fp32", "bf16"])
def test_measured_both_ways_fp32_counts_whichever_came_first(first: str, suite: str, tmp_path: Path) -> None:
    path = run(tmp_path / "cars-eat_eat-seed0")
    expected = read_row(path)
    found = list(records.read(path / "results.jsonl"))
    quick = with_search(found, suite)
    (path / "results.jsonl").unlink()
    for record in [*found, *quick] if first == "fp32" else [*quick, *found]:
        records.append(path / "results.jsonl", record)
    row = read_row(path)
    assert row["clustering"] == expected["clustering"]
    assert set(row["command"].split(" && ")) == set(expected["command"].split(" && "))
    assert row["wall_seconds"] == expected["wall_seconds"]


def test_a_search_that_was_cut_gives_way_to_one_that_was_not(tmp_path: Path) -> None:
    path = run(tmp_path / "cars-eat_eat-seed0")
    found = list(records.read(path / "results.jsonl"))
    quick = with_search(found, "clustering_sweep")
    (path / "results.jsonl").unlink()
    # One label at two radii are two attacks: of fp32 the first of them alone was run.
    kept = [r for r in found if r.settings.get("suite") != "clustering_sweep" or r.settings.get("radius") != 16 / 255]
    for record in [*kept, *quick]:
        records.append(path / "results.jsonl", record)
    row = read_row(path)
    assert {point["search"] for part in ("steps", "radii") for point in row["clustering"][part].values()} == {"bf16"}
    assert set(row["clustering"]["radii"]) == {"8", "16"} and "clustering_sweep --search bf16" in row["command"]


def test_a_table_says_how_many_seeds_met_a_suite(tmp_path: Path) -> None:
    first, second = read_row(run(tmp_path / "a")), read_row(run(tmp_path / "b", changes={"seed": 1}))
    del second["clustering"]["adaptive"]
    for reading in second["clustering"]["readings"].values():
        del reading["adaptive"]
    first["clustering"]["pgd10"]["search"] = "bf16"
    text = table("cars", [first, second])
    assert text.count("(1 of 2 seeds, 2 of 17 attacks)") == 1 + len(READINGS)
    assert text.count("(sought in bf16: 1 of 2 seeds)") == 1 + len(READINGS)
    (line,) = [one for one in text.splitlines() if one.startswith("| `eat-r8` | 51.2")]
    assert "19.0 / 2.2 / 9.0 / 10.0" in line, "of the seed that met it"


def test_noise_is_told_by_its_radius(tmp_path: Path) -> None:
    path = run(tmp_path / "cars-eat_at-seed0", "cars/eat_at", alone=True)
    shared = {"queries": 8131, "gallery": 8131, "weights": "ab" * 8, "batch": 128, "data": "cars", "precision": "fp32"}
    clean = {
        **shared,
        "search": "bf16",
        "suite": "clustering_noise",
        "trial": "clean",
        "sides": "neither side",
        "reading": "alone",
    }
    records.append(path / "results.jsonl", Record("clustering", "clean, alone", scores(55.0), clean, {}, 8131, 10.0))
    for radius, recall in ((8, 50.0), (16, 30.0)):
        # Noise searches nothing, so that it does not matter what it was asked to search in.
        asked = {"steps": 0, "radius": radius / 255, "search": "bf16"}
        for record in trial("clustering_noise", "noise", recall, "alone", shared, **asked):
            records.append(path / "results.jsonl", record)
    row = read_row(path)
    assert faults(row) == []
    assert row["clustering"]["noise"] == {
        "8": {"R@1": 50.0, "F1": 12.5, "query only": {"R@1": 51.0}},
        "16": {"R@1": 30.0, "F1": 7.5, "query only": {"R@1": 31.0}},
    }
    assert "noise" not in read_row(run(tmp_path / "cars-eat_eat-seed0"))["clustering"]


def test_what_else_a_row_says(tmp_path: Path) -> None:
    row = read_row(run(tmp_path / "cars-eat_eat-seed0"))
    assert row["published"]["pgd10"]["R@1"] == 22.8 and row["published"]["clean"]["R@1"] == 54.68
    assert row["published"]["source"] == "arXiv 2501.01025, Table 1"
    assert row["cost_fe"] == 75 and row["queries"] == 8131 and "attacks" not in row
    # Three clean, and six trials of 60 s each: sides and readings of one share it.
    assert row["wall_seconds"] == {"train": 100.0, "evaluate": 3 * 10.0 + 6 * 60.0}
    assert row["command"] == (
        "robustmetric train cars/eat_eat --fast && robustmetric evaluate runs/cars-eat_eat-seed0 clustering"
        " && robustmetric evaluate runs/cars-eat_eat-seed0 clustering_adaptive"
        " && robustmetric evaluate runs/cars-eat_eat-seed0 clustering_sweep"
    )


def test_an_ensemble_that_was_attacked_on_fewer_queries_keeps_its_protocol(tmp_path: Path) -> None:
    path = run(tmp_path / "cars-eat_eat-seed0")
    shared = {"suite": "ers224", "queries": 1000, "gallery": 8131, "weights": "ab" * 8, "batch": 112}
    shifted = {**shared, "mode": "fixed", "radius": 8 / 255}
    records.append(path / "results.jsonl", Record("clean", "clean", {"R@1": 1.0}, shared, {}, 1000, 1.0))
    records.append(path / "results.jsonl", Record("attack", "ES", {"ES:R": 9.0}, shifted, {}, 1000, 5.0))
    row = read_row(path)
    assert faults(row) == [] and row["id"] == "cars-mobilenet_v2-eat-r8-seed0"
    assert (row["queries"], row["clean"]["R@1"]) == (8131, 60.0)
    assert row["attacks"] == {"fixed": {"ES:R": 9.0}} and row["attacked_queries"] == 1000
    assert "ers224 --queries 1000 --batch 112" in row["command"] and "clustering --" not in row["command"]


def test_single_models_and_other_radii_have_rows_of_their_own(tmp_path: Path) -> None:
    names = {
        "cars/eat_at": "at-r8",
        "cars/eat_at-r16": "at-r16",
        "cars/eat_plain": "plain_proxy_anchor",  # `plain` is the row of triplets
        "cars/eat_at_long": "at_long-r8",
    }
    for name, title in names.items():
        row = read_row(run(tmp_path / title, name, alone=True))
        assert row["id"] == f"cars-mobilenet_v2-{title}-seed0" and row["clustering"]["reading"] == "alone"
        assert "readings" not in row["clustering"] and row["protocol"] == "full"
    short = read_row(run(tmp_path / "short", "cars/eat_at", {"epochs": 12, "seed": 3}, alone=True))
    assert short["id"] == "cars-mobilenet_v2-at-r8-short-seed3" and short["protocol"] == "short"
    path = run(tmp_path / "faiss", "cars/eat_at", alone=True)
    for record in records.read(path / "results.jsonl"):
        if record.kind == "clustering":
            record.settings.update(reading_rules={"backend": "faiss"}, surrogate_weights="cd" * 8)
            records.append(tmp_path / "faiss.jsonl", record)
    (tmp_path / "faiss.jsonl").replace(path / "results.jsonl")
    assert "clustering_adaptive --surrogate RUN --kmeans faiss &&" in read_row(path)["command"]
    with pytest.raises(InputError, match=r"13 epochs at rate 0\.0001 with 8131 queries are no protocol of cars"):
        read_row(run(tmp_path / "odd", "cars/eat_at", {"epochs": 13}, alone=True))


def test_another_precision_or_k_means_is_no_part_of_a_row(tmp_path: Path) -> None:
    path = run(tmp_path / "run", "cars/eat_at", alone=True)
    expected = read_row(path)
    for change in ({"precision": "bf16"}, {"reading_rules": {"backend": "faiss"}}):
        for record in records.latest(records.read(path / "results.jsonl"))[:40]:
            if record.settings.get("suite") == "clustering":
                worse = {score: value / 2 for score, value in record.scores.items()}
                records.append(
                    path / "results.jsonl", replace(record, scores=worse, settings={**record.settings, **change})
                )
    assert read_row(path) == expected


def test_a_changed_defence_takes_the_published_numbers_away(tmp_path: Path) -> None:
    defence = {**recipe.load(recipe.locate("cars/eat_eat"))["defence"], "clean_share": 0.25}
    row = read_row(run(tmp_path / "run", changes={"defence": defence}))
    assert row["defence"] == "eat_clean_share0_25" and "published" not in row


def test_other_data_takes_the_published_numbers_away(tmp_path: Path) -> None:
    other = read_row(run(tmp_path / "run", changes={"data": {"name": "cars", "validation": 0.2}}))
    assert "published" not in other
    elsewhere = read_row(run(tmp_path / "moved", changes={"data": {"name": "cars", "root": "elsewhere"}}))
    assert elsewhere["published"]["source"] == "arXiv 2501.01025, Table 1"


def test_a_digit_that_cannot_be_read_is_left_out() -> None:
    found = published("cars/eat_plain")
    assert found is not None
    assert found["pgd10"] == {"NMI": 27.1, "R@1": 5.52, "R@2": 8.89, "R@4": 14.22, "R@8": 23.09}
    assert published("cub/eat_eat")["release"] == "CUB-200-2010"  # type: ignore[index]  # it is published
    assert published("cub/eat_bn_inception-eat") is None and published("cub/eat_adp") is None


def test_the_table_has_ours_beside_the_published_by_protocol(tmp_path: Path) -> None:
    paths = [
        run(tmp_path / "a"),
        run(tmp_path / "b", changes={"seed": 1}),
        run(tmp_path / "c", "cars/eat_at", alone=True),
    ]
    write_rows(paths, tmp_path / "cars")
    assert len(read_rows(tmp_path / "cars")) == 3
    full, missing = (
        comparison(tmp_path / "cars")
        .split("### cars, clustering, mobilenet_v2, protocol full")[1]
        .split("clustering, not measured")
    )
    full, _ = full.split("Every reading of the ensembles")
    (eat,) = [line for line in full.splitlines() if line.startswith("| `eat-r8`")]
    cells = [cell.strip() for cell in eat.strip("|").split("|")]
    # NMI / F1 / R@1 / R@2 / R@4 / R@8, the mean over two seeds that agree; these have no R@4.
    assert cells[1:3] == ["51.2 / 14.9 / 54.7 / 65.2 / 74.7 / 83.1", "36.1 / 5.8 / 22.8 / 31.5 / 42.5 / 54.2"]
    assert cells[3] == "70.0 ± 0.0 / 15.0 ± 0.0 / 60.0 ± 0.0 / 61.0 ± 0.0 / – / 68.0 ± 0.0"  # noqa: RUF001  # as shown
    assert cells[5] == "29.0 ± 0.0 / 30.0 ± 0.0", "R@1 with queries moved, and with the gallery"
    assert cells[6] == "–" and cells[8] == "2"  # noqa: RUF001  # the dash of tables
    assert "| `eat-r16` |" in missing and "| `eat-r8` |" not in missing


def test_the_table_has_every_reading_of_an_ensemble(tmp_path: Path) -> None:
    write_rows([run(tmp_path / "a"), run(tmp_path / "c", "cars/eat_at", alone=True)], tmp_path / "cars")
    text = comparison(tmp_path / "cars").split("Every reading of the ensembles:")[1].split("###")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()[2:]]
    assert [line[1] for line in lines] == ["V1, C1", *(name for name in READINGS if name != "V1, C1")]
    assert {line[0] for line in lines} == {"`eat-r8`"}, "a single model has one reading, which is in the first table"
    (second,) = [line for line in lines if line[1] == "V2, C2"]
    # NMI / F1 / R@1: of R@1 clean 61, under A1 29, under the strongest 10; NMI is 10 above it, F1 a quarter of it.
    nothing = "–"  # noqa: RUF001  # the dash of tables
    assert second[2:] == ["71.0 / 15.2 / 61.0", "39.0 / 7.2 / 29.0", nothing, "20.0 / 2.5 / 10.0 (2 of 17 attacks)"]


def test_models_have_tables_of_their_own(tmp_path: Path) -> None:
    ours = read_row(run(tmp_path / "a"))
    other = {**deepcopy(ours), "model": "bn_inception", "id": "cars-bn_inception-eat-r8-seed0"}
    other["clustering"]["clean"]["R@1"] = 90.0
    del other["published"]
    first, second, missing = table("cars", [ours, other]).split("### cars, clustering, ")[1:]
    assert first.startswith("mobilenet_v2, protocol full\n") and second.startswith("bn_inception, protocol full\n")
    first, second = (part.split("Every reading of the ensembles")[0] for part in (first, second))
    assert "/ 60.0 /" in first and "/ 90.0 /" in second and first.strip().endswith("| 1 |")
    assert missing.startswith("not measured (mobilenet_v2)\n") and "`eat-r8`" not in missing
    assert "| `eat-r8` |" in table("cars", [other]).split("### ")[2], "that of the other model is not ours"


def test_a_masked_row_is_flagged_behind_its_name(tmp_path: Path) -> None:
    ours = read_row(run(tmp_path / "a"))
    block = {"verdict": "masked", "checks": {"gradient_free": "fail", "steps": "pass"}}
    text = table("cars", [ours, {**ours, "seed": 1, "masking": block}])
    assert f"| `eat-r8` {MARK} masked (gradient_free" in text
    assert MARK not in table("cars", [ours])


def test_a_collapsed_row_says_so_behind_its_name(tmp_path: Path) -> None:
    ours = read_row(run(tmp_path / "a"))
    assert "collapsed" not in table("cars", [ours])
    fallen = {**ours, "collapsed": True}
    assert "| `eat-r8` (collapsed) |" in table("cars", [fallen])
    assert "| `eat-r8` (1 of 2 collapsed) |" in table("cars", [ours, {**fallen, "seed": 1}])


def test_clusters_that_agree_less_than_by_chance_make_a_row(tmp_path: Path) -> None:
    path = run(tmp_path / "cars-eat_at_literal-seed0", "cars/eat_at_literal", alone=True)
    for record in records.read(path / "results.jsonl"):
        if "AMI" in record.scores:
            # Corrected for chance, AMI of a model that has fallen together is as often below 0 as above.
            records.append(tmp_path / "fallen.jsonl", replace(record, scores={**record.scores, "AMI": -0.1}))
        else:
            records.append(tmp_path / "fallen.jsonl", record)
    (tmp_path / "fallen.jsonl").replace(path / "results.jsonl")
    row = read_row(path)
    assert row["id"] == "cars-mobilenet_v2-at_literal-r8-seed0" and row["clean"]["AMI"] == -0.1
    row["clean"]["AMI"] = -101.0
    assert faults(row) == ["clean.AMI -101.0 is not from -100 to 100"]


def test_in_shop_has_the_scores_that_are_published_of_it() -> None:
    text = table("inshop", [])
    assert "defence (NMI / F1 / R@1 / R@10 / R@20)" in text and "R@8" not in text
    assert "| `eat-r8` | 86.8 / 14.4 / 58.7 / 79.6 / 84.3 | 85.3 / 10.0 / 43.2 / 66.2 / 72.6 |" in text


NEAR = {"clean": 0.1, "moved": 0.9, "own": 0.2}


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (("reading",), None, "no object with a reading"),
        (("pgd10", "R@1"), 101.0, "clustering.pgd10.R@1 101.0 is no rate"),
        (("pgd10", "ERS"), 3.0, "clustering.pgd10.ERS is not known"),
        (("adaptive", "by"), {}, "clustering.adaptive.by names no attacks"),
        (("adaptive", "attacks"), [], "clustering.adaptive.attacks names no attacks"),
        (("adaptive", "attacks"), [3], "clustering.adaptive.attacks names no attacks"),
        (("adaptive", "of"), 1, "clustering.adaptive.of 1 is less than its 2 attacks"),
        (("pgd10", "of"), 3, "clustering.pgd10.attacks names no attacks"),
        (("adaptive", "query only", "R@1"), -1.0, "clustering.adaptive.query only.R@1 -1.0 is no rate"),
        (("readings", "mean", "clean", "NMI"), True, "clustering.readings.mean.clean.NMI True is no rate"),
        (("steps", "1", "F1"), float("nan"), "clustering.steps.1.F1 nan is no rate"),
        (("pgd20",), {"R@1": 3.0}, "clustering.pgd20 is not known"),
        (("pgd10", "cosines"), {"moved": 0.5}, "clustering.pgd10.cosines {'moved': 0.5} are not clean, moved, own"),
        (("pgd10", "cosines"), {"clean": 0.1, "moved": 1.5, "own": 0.2}, "-1 to 1"),
        (("pgd10", "cosines"), {"clean": 0.1, "moved": None, "own": True}, "-1 to 1"),
        (("clean", "cosines"), NEAR, "clustering.clean.cosines is not known"),
        (("pgd10", "query only", "cosines"), NEAR, "clustering.pgd10.query only.cosines is not known"),
        (("readings", "mean", "pgd10", "cosines"), NEAR, "clustering.readings.mean.pgd10.cosines is not known"),
        (("steps", "1", "cosines"), NEAR, "clustering.steps.1.cosines is not known"),
        (("clean", "search"), "bf16", "clustering.clean.search is not known"),
        (("adaptive", "query only", "search"), "bf16", "clustering.adaptive.query only.search is not known"),
        (("readings", "mean", "pgd10", "search"), "bf16", "clustering.readings.mean.pgd10.search is not known"),
        (("radii", "8", "search"), "fp32", "clustering.radii.8.search 'fp32' is not 'bf16'"),
        (("noise",), {"8": {"R@1": 3.0, "search": "bf16"}}, "clustering.noise.8.search is not known"),
        (("steps", "ten"), {"R@1": 3.0}, "clustering.steps: 'ten' is no number > 0"),
        (("radii", "0"), {"R@1": 3.0}, "clustering.radii: '0' is no number > 0"),
        (("clean",), {}, "clustering.clean is empty"),
        (("without_positives",), 0, "clustering.without_positives 0 is no number of queries; leave it out"),
    ],
)
def test_a_fault_of_the_block_is_named(where: tuple[str, ...], value: Any, words: str, tmp_path: Path) -> None:
    row = deepcopy(read_row(run(tmp_path / "run")))
    node = row["clustering"]
    for key in where[:-1]:
        node = node[key]
    node[where[-1]] = value
    assert words in "; ".join(faults(row))
