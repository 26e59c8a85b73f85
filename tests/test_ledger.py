"""The ledger: every committed row keeps to its schema, and run folders become rows without anything made up."""

import json
import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commands import Command
from robustmetric import recipe, records
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.folder import RunFolder, fingerprint
from robustmetric.jobs.ledger import fingerprint_of, read_row, write_rows
from robustmetric.jobs.origin import typed
from robustmetric.metrics.robustness import SUB_SCORES, ers
from robustmetric.models.convnet import ConvNet
from robustmetric.records import Record
from robustmetric.report.certified_schema import faults as certified_faults
from robustmetric.report.comparison import comparison
from robustmetric.report.curves import read_curve
from robustmetric.report.ledger import TEN, faults, protocol, read_rows

RESULTS = Path(__file__).parents[1] / "results"
CERTIFIED = sorted(RESULTS.glob("tabular/*.json"))
COMMITTED = sorted(path for path in RESULTS.glob("*/*.json") if path not in CERTIFIED)
ACT = {
    "CA+": 13.7, "CA-": 46.8, "QA+": 12.6, "QA-": 39.3, "TMA": 0.547, "ES:D": 0.902, "ES:R": 13.6, "LTM": 9.8,
    "GTM": 21.9, "GTT": 1.3,
}  # fmt: skip
"""Of the published row ACT[R]: ERS 31.33."""
ATTACKS = {"ES": ("ES:D", "ES:R"), **{name: (name,) for name in ACT if not name.startswith("ES")}}


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_committed_row_keeps_to_the_schema(path: Path) -> None:
    row = json.loads(path.read_text())
    assert faults(row) == []
    assert (row["id"], row["data"]) == (path.stem, path.parent.name)
    if row["recipe"].startswith("recipes/"):
        assert (RESULTS.parent / row["recipe"]).is_file()
    for scores in row.get("attacks", {}).values():
        if "ERS" in scores:
            assert scores["ERS"] == pytest.approx(ers({name: scores[name] for name in SUB_SCORES}), abs=0.01)


@pytest.mark.parametrize("path", CERTIFIED, ids=lambda path: path.stem)
def test_a_committed_certified_row_keeps_to_its_schema(path: Path) -> None:
    row = json.loads(path.read_text())
    assert certified_faults(row) == [] and row["id"] == path.stem
    assert (RESULTS.parent / row["recipe"]).is_file() and not row["commit"].endswith("+")


def test_what_lies_among_the_results_is_rows_and_how_they_were_trained() -> None:
    others = {path for path in RESULTS.rglob("*") if path.is_file() and path not in [*COMMITTED, *CERTIFIED]}
    curves = {path for path in others if path.suffix == ".csv"}
    assert [path.name for path in others - curves] == ["README.md"]
    for path in curves:
        row = json.loads(path.with_suffix(".json").read_text())
        train, *_ = typed(row["command"])
        asked = assemble.resolve(train.target, train.words)[0]["epochs"]
        done = read_curve(path)["epoch"]
        assert done == list(range(1, len(done) + 1)), path.name
        # A collapse may be seen at the end alone, and `on_collapse: continue` (F(x) in the label's place) trains on.
        assert len(done) == asked or (row["collapsed"] and len(done) < asked), path.name


def attacked(mode: str, count: int, shared: dict[str, Any], names: dict[str, tuple[str, ...]]) -> list[Record]:
    settings = {**shared, "mode": mode, "radius": 8 / 255, "steps": 32}
    return [
        Record("attack", name, {score: ACT[score] for score in scores}, settings, {}, count, 60.0)
        for name, scores in names.items()
    ]


def run(
    path: Path, name: str = "cub/mobilenet_v2-act", count: int = 5924, changes: dict[str, Any] | None = None
) -> Path:
    """A run folder as `train` and `evaluate` leave it, with made-up numbers and no weights."""
    path.mkdir(parents=True)
    spec = {**recipe.load(recipe.locate(name)), **(changes or {})}
    recipe.save(spec, path / "recipe.yaml")
    facts = {
        "name": path.name, "data": "cub", "defence": "act", "model": "mobilenet_v2", "commit": "abc1234",
        "hardware": "1 x GPU", "recipe_file": f"recipes/{name}.yaml", "command": f"robustmetric train {name} --fast",
        "collapsed": False,
    }  # fmt: skip
    records.write_json(path / "run.json", facts)
    shared = {"suite": "ers224", "queries": count, "gallery": 5924, "weights": "ab" * 8, "batch": 112}
    epochs = [Record("train", "epoch", {"triplet": 0.1}, {"epoch": i}, {}, 11728, 50.0) for i in range(2)]
    clean = Record("clean", "clean", {"R@1": 31.123456, "R@8": 60.0, "NMI": 45.0}, shared, {}, count, 10.0)
    fixed = attacked("fixed", count, shared, ATTACKS)
    total = Record("ers", "ERS", {"ERS": 31.3, **ACT}, {**fixed[0].settings}, {"ERS": (30.0, 32.5)}, count)
    compat = attacked("compat", count, shared, {name: ATTACKS[name] for name in ("ES", "GTM")})
    for record in (*epochs, clean, *fixed, total, *compat):
        records.append(path / "results.jsonl", record)
    return path


def test_a_run_becomes_a_row_with_what_was_measured_and_no_more(tmp_path: Path) -> None:
    row = read_row(run(tmp_path / "cub-mobilenet_v2-act-seed0"))
    assert faults(row) == []
    assert row["id"] == "cub-mobilenet_v2-act-eta8-seed0" and row["protocol"] == "full"
    assert row["clean"] == {"R@1": 31.1235, "NMI": 45.0}, "seven scores have a place, R@8 has none"
    assert row["attacks"]["fixed"] == {**ACT, "ERS": pytest.approx(31.33, abs=0.01), "ERS_interval": [30.0, 32.5]}
    assert row["attacks"]["compat"] == {"ES:D": 0.902, "ES:R": 13.6, "GTM": 21.9}, "no ERS of three numbers"
    assert row["wall_seconds"] == {"train": 100.0, "evaluate": 670.0}
    assert row["images_per_second"] == 234.6 and row["queries"] == 5924
    assert row["cost_fe"] == 1 + 2 * 8 + 4.5
    assert row["published"]["ERS"] == 31.3 and row["published"]["model"] == "resnet18"
    assert row["command"].endswith("&& robustmetric evaluate runs/cub-mobilenet_v2-act-seed0 ers224 --batch 112")
    absent = {"clustering", "classification", "certified", "masking", "weights_sha256"}
    assert not absent & set(row)


def test_protocols_are_told_apart_and_others_refused(tmp_path: Path) -> None:
    rate = {"optimiser": {"name": "adam", "rate": 3e-5}}
    short = read_row(run(tmp_path / "short", count=1000, changes={"epochs": 15, "seed": 2, **rate}))
    assert short["id"] == "cub-mobilenet_v2-act-eta8-short-seed2" and "--queries 1000" in short["command"]
    with pytest.raises(InputError, match="15 epochs at rate 3e-05 with 999 queries are no protocol of cub"):
        read_row(run(tmp_path / "odd", count=999, changes={"epochs": 15, **rate}))
    assert protocol("cub", 4, 5e-5, 500, False) == "sketch"
    assert protocol("cub", 19, 1e-5, 5924, True, replays=4) == "full"
    assert protocol("fashion", 8, 1e-3, 10000, True) == "full"
    with pytest.raises(InputError, match=r"no protocol of my_data; expected one of .*; `report` and `compare` set"):
        protocol("my_data", 8, 1e-3, 10000, True)


def test_an_override_that_makes_another_row_takes_the_published_numbers_away(tmp_path: Path) -> None:
    defence = recipe.load(recipe.locate("cub/act"))["defence"]
    row = read_row(run(tmp_path / "run", changes={"defence": {**defence, "source": {"name": "softhard"}}}))
    assert row["defence"] == "act_s" and "published" not in row
    assert "published" not in read_row(run(tmp_path / "part", changes={"data": {"name": "cub", "validation": 0.2}}))
    assert "published" in read_row(run(tmp_path / "moved", changes={"data": {"name": "cub", "root": "elsewhere"}}))


def test_an_evaluation_of_other_data_is_no_part_of_a_row(tmp_path: Path) -> None:
    path = run(tmp_path / "cub-mobilenet_v2-act-seed0")
    expected, own = read_row(path), records.read(path / "results.jsonl")
    (path / "results.jsonl").unlink()
    shown = Record("validation", "clean", {"R@1": 31.0}, {"epoch": 75, "data_fingerprint": "own"}, {}, 5924)
    other = [
        replace(one, count=9000, settings={**one.settings, "queries": 9000, "data_fingerprint": "other"})
        for one in own
        if one.kind != "train"
    ]
    named = [
        one if one.kind == "train" else replace(one, settings={**one.settings, "data_fingerprint": "own"})
        for one in own
    ]
    for record in (shown, *named, *other):
        records.append(path / "results.jsonl", record)
    assert read_row(path) == expected
    (path / "results.jsonl").unlink()
    for record in (shown, *other):
        records.append(path / "results.jsonl", record)
    with pytest.raises(InputError, match=r"no evaluation of its weights by an ers, .* on its own data"):
        read_row(path)


def test_beside_a_row_lies_how_it_was_trained(tmp_path: Path) -> None:
    path, out = run(tmp_path / "run"), tmp_path / "cub"
    records.append(path / "results.jsonl", records.Record("train", "epoch", {"triplet": 0.125}, {"epoch": 1}))
    (written,) = write_rows([path], out)
    assert written.with_suffix(".csv").read_text() == "epoch,triplet\n0,0.1\n1,0.125\n", "0 is of `run`"
    assert [path.name for path in sorted(out.iterdir())] == [f"{written.stem}.csv", f"{written.stem}.json"]


def test_numbers_of_other_weights_or_in_bfloat16_are_left_out(tmp_path: Path) -> None:
    path = run(tmp_path / "run")
    (clean,) = [r for r in records.read(path / "results.jsonl") if r.kind == "clean"]
    fast = replace(clean, scores={"R@1": 99.0}, settings={**clean.settings, "precision": "bf16"})
    demo = replace(clean, scores={"R@1": 98.0}, settings={**clean.settings, "suite": "demo"})
    for record in (fast, demo):
        records.append(path / "results.jsonl", record)
    assert read_row(path)["clean"]["R@1"] == 31.1235
    RunFolder(path).save_weights(ConvNet(side=8, hidden=8, dim=4))
    with pytest.raises(InputError, match="no evaluation of its weights"):
        read_row(path)


@pytest.mark.parametrize("search", ["tf32", "fp16"])
def test_the_ten_numbers_of_attacks_that_searched_in_less_than_fp32_make_no_row(search: str, tmp_path: Path) -> None:
    path = run(tmp_path / "run")
    found = records.read(path / "results.jsonl")
    (path / "results.jsonl").unlink()
    for record in found:
        sought = {} if record.kind == "train" else {"search": search}
        records.append(path / "results.jsonl", replace(record, settings={**record.settings, **sought}))
    with pytest.raises(InputError, match=r"no evaluation of its weights by an ers, .* in fp32"):
        read_row(path)


def test_numbers_at_another_radius_are_left_out(tmp_path: Path) -> None:
    path = run(tmp_path / "run")
    found = records.read(path / "results.jsonl")
    (path / "results.jsonl").unlink()
    for record in found:
        weaker = {"radius": 4 / 255} if record.settings.get("mode") == "fixed" else {}
        records.append(path / "results.jsonl", replace(record, settings={**record.settings, **weaker}))
    assert set(read_row(path)["attacks"]) == {"compat"}


def test_the_fingerprint_of_a_file_is_that_of_its_model(trained: Path) -> None:
    folder = RunFolder(trained)
    model = assemble.load_model(folder.read_recipe(), str(trained))
    folder.load_weights(model)
    assert fingerprint_of(folder.weights) == fingerprint(model)


def test_a_collapsed_training_becomes_a_row_that_says_so(tmp_path: Path, command: Command) -> None:
    suite = tmp_path / "ers_small.yaml"
    suite.write_text(
        "engine: {name: pgd, ball: {name: ball, radius: 0.1}, steps: 1, step_size: 0.1}\n"
        "attacks:\n  ES: {attack: {name: embedding_shift}}\n  GTM: {attack: {name: top1_misranking}}\n"
    )
    assert command("train", "digits/madry", "defence.clean_share=0", "defence.attack.steps=4", "-o", "run").code == 0
    assert command("evaluate", "run", suite).code == 0
    done = command("ledger", "run", "-o", "results/digits")
    assert done.code == 0, done.err
    (row,) = read_rows(tmp_path / "results" / "digits")
    assert row["id"] == "digits-convnet-madry_m-eta4-seed0" and row["collapsed"] is True
    assert row["mean_cosine"] > 0.9995, "what the verdict was made of"
    assert set(row["attacks"]["fixed"]) == {"ES:D", "ES:R", "GTM"} and len(row["weights_sha256"]) == 64
    assert row["recipe"] == "recipes/digits/madry.yaml" and row["clean"]["R@1"] > 90, "R@1 alone would not tell"
    table = command("ledger", "--table", "results/digits").out
    assert "| `madry_m` | 4 | – | – |" in table and "(collapsed)" in table  # noqa: RUF001  # the dash of tables


def test_two_runs_of_one_row_and_runs_without_numbers_are_refused(tmp_path: Path, command: Command) -> None:
    first = run(tmp_path / "one")
    shutil.copytree(first, tmp_path / "two")
    with pytest.raises(InputError, match="2 runs make 1 rows"):
        write_rows([first, tmp_path / "two"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "is not a run folder" in command("ledger", tmp_path, "-o", "out").error
    assert "expected run folders and -o" in command("ledger").error
    assert "expected run folders and -o" in command("ledger", first).error


def test_what_was_measured_of_a_model_that_no_recipe_trained_is_no_row_and_no_weights(
    command: Command, suite: Path, tmp_path: Path
) -> None:
    done = command("evaluate", "torch.nn.Flatten", suite, "--data", "digits", "--queries", 5, "-o", "mine")
    assert done.code == 0, done.err
    error = command("ledger", "mine", "-o", "rows").error
    assert "mine was not trained by a recipe (its recipe.yaml has no 'defence')" in error and "`compare` set" in error
    assert not (tmp_path / "rows").exists()
    error = command("export", "mine", "--onnx", "mine.onnx").error
    assert "mine has no model.safetensors; it holds what was measured of a model, not the model" in error


GOOD: dict[str, Any] = {
    "id": "cub-mobilenet_v2-act-eta8-seed0", "data": "cub", "model": "mobilenet_v2", "defence": "act",
    "recipe": "recipes/cub/act.yaml", "command": "robustmetric train cub/act", "commit": "abc", "seed": 0,
    "hardware": "1 x GPU", "queries": 5924, "protocol": "full", "clean": {"R@1": 31.0},
    "attacks": {"fixed": {**ACT, "ERS": 31.3, "ERS_interval": [30.0, 32.0]}},
}  # fmt: skip


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good row with one thing changed; None takes it away."""
    row = deepcopy(GOOD)
    *parents, last = path.split("/")
    node = row
    for parent in parents:
        node = node[parent]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return row


def test_a_good_row_has_no_faults() -> None:
    assert faults(GOOD) == []


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("commit", None, "commit is missing"),
        ("commit", "", "commit '' is no text"),
        ("note", "x", "note is not known"),
        ("seed", True, "seed True is no count"),
        ("protocol", "long", "protocol 'long' is none of full, full_3e-5, short, sketch"),
        ("protocol", "short", "5924 queries are not those of protocol short"),
        ("id", "act-seed0", "is not <data>-<model>"),
        ("clean", {}, "clean is empty"),
        ("clean/R@1", 101, "clean.R@1 101 is not from 0 to 100"),
        ("clean/R@1", float("nan"), "clean.R@1 nan is not from"),
        ("clean/R@8", 50, "clean.R@8 is not known"),
        ("attacks/fixed/TMA", 54.7, "attacks.fixed.TMA 54.7 is not from -1 to 1"),
        ("attacks/fixed/GTT", None, "ERS stands with its ten numbers or not at all"),
        ("attacks/fixed/ERS", None, "ERS stands with its ten numbers or not at all"),
        ("attacks/fixed/ERS_interval", [32.0, 30.0], "ERS_interval"),
        ("attacks/exact", {"ES:R": 3.0}, "attacks.exact is no mode"),
        ("attacks/compat", dict.fromkeys(("ES:R", "GTM"), 0), "filled with zeros"),
        ("masking", {}, "masking is empty"),
        ("cost_fe", 0, "cost_fe 0 is no number > 0"),
        ("collapsed", "no", "collapsed is neither"),
        ("mean_cosine", 1.5, "mean_cosine 1.5 is not from -1 to 1"),
        ("weights_sha256", "abc", "64 hex digits"),
    ],
)
def test_a_fault_is_named(path: str, value: Any, words: str) -> None:
    assert words in "; ".join(faults(changed(path, value)))


def test_a_row_is_refused_where_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps(GOOD))
    with pytest.raises(InputError, match=r"other\.json: id 'cub-mobilenet_v2-act-eta8-seed0' is not the name"):
        read_rows(tmp_path)
    (tmp_path / "other.json").write_text("{")
    with pytest.raises(InputError, match="line 1: not valid JSON"):
        read_rows(tmp_path)


def test_the_table_keeps_published_and_ours_apart(tmp_path: Path) -> None:
    folder = tmp_path / "cub"
    folder.mkdir()
    for seed, recall in ((0, 30.0), (1, 32.0)):
        row = {**GOOD, "seed": seed, "id": f"cub-mobilenet_v2-act-eta8-seed{seed}", "clean": {"R@1": recall}}
        (folder / f"{row['id']}.json").write_text(json.dumps(row))
    text = comparison(folder)
    text, clustering = text.split("### cub, clustering, not measured")
    head, lines = text.split("### cub, not measured")
    assert "published (ResNet-18): R@1 | ERS | ours (MobileNetV2): R@1 | ERS compat | ERS fixed" in head
    (act,) = [line for line in head.splitlines() if line.startswith("| `act`")]
    # Mean 31 of 30 and 32, standard deviation the square root of 2; no compat numbers.
    assert [cell.strip() for cell in act.strip("|").split("|")] == [
        "`act`", "8", "30.6", "31.3", "31.0 ± 1.4", "–", "31.3 ± 0.0", "13.6 ± 0.0", "2",  # noqa: RUF001
    ]  # fmt: skip
    assert "| `act` | 8 |" not in lines and "| `hm_r_s` | 8 | collapsed |" in lines
    unmeasured = [line for line in lines.splitlines() if line.startswith("| `")]
    assert len(unmeasured) == 72 and all("| not measured |" in line for line in unmeasured)
    assert "| published (CUB-200-2010): clean | PGD-10 | ours: clean |" in clustering, "ours are of the release of 2011"
    clean, attacked = "56.9 / 19.3 / 52.8 / 62.3 / 71.3 / 80.5", "38.0 / 4.8 / 24.0 / 30.4 / 37.6 / 47.5"
    assert f"| `eat-r8` | {clean} | {attacked} | not measured |" in clustering


def test_the_ten_numbers_are_those_of_the_score() -> None:
    assert tuple(SUB_SCORES) == TEN
