"""The README's promises: its commands exist, its recipes are shipped, its Python runs as printed."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import robustmetric
from commands import Command
from robustmetric import recipe
from robustmetric.cli import app
from robustmetric.data.digits import Digits, DigitsTable
from robustmetric.errors import InputError
from robustmetric.records import read
from robustmetric.report.comparison import comparison

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/adding.md",
    "docs/own-images.md",
    "docs/measured.md",
    "docs/threat-model.md",
    "docs/architecture.md",
)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
    inline = [
        words for page in PAGES for words in re.findall(r"`(robustmetric [a-z]+ [^`]*)`", (ROOT / page).read_text())
    ]
    return [line.split("#")[0].strip() for line in [*lines, *inline] if "robustmetric " in line]


def test_the_readme_has_commands_to_check():
    assert len(commands()) >= 8


@pytest.mark.parametrize("command", commands())
def test_every_command_and_recipe_named_in_the_docs_exists(command: str):
    words = shlex.split(command)
    words = words[words.index("robustmetric") + 1 :]
    known = {entry.name or entry.callback.__name__ for entry in app.registered_commands}
    nested = {
        (group.name, entry.callback.__name__)
        for group in app.registered_groups
        for entry in group.typer_instance.registered_commands
    }
    assert words[0] in known or tuple(words[:2]) in nested
    if (words[0] == "train" and not words[1].endswith(".yaml")) or (
        words[0] == "certify" and not words[1].startswith("runs/")
    ):
        assert recipe.locate(words[1]).is_file()
    if words[0] == "evaluate" and len(words) > 2 and not words[2].startswith("-") and words[2].islower():
        assert recipe.locate(words[2], "suites").is_file()


@pytest.mark.parametrize("target", ["demo", "test", "check", "test-data", "mutation"])
def test_make_targets_named_in_the_readme_exist(target: str):
    assert f"make {target}" in (ROOT / "README.md").read_text()
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def test_the_python_of_the_readme_runs_as_printed(capsys):
    digits = Digits().load().queries
    images, labels = digits.inputs[:120].float() / 255, digits.labels[:120]
    torch.manual_seed(0)
    names = {"encoder": nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), "images": images, "labels": labels}
    snippet, _, _ = blocks("README.md", "python")
    exec(snippet, names)
    assert names["records"][0].name == "clean"
    assert {"CA+", "CA-", "QA+", "QA-", "TMA", "ES", "LTM", "GTM", "GTT"} <= {r.name for r in names["records"]}
    assert names["fooled"].shape == images.shape
    assert float((names["fooled"] - images).abs().max()) <= 8 / 255 + 1e-6
    assert "ES:R" in capsys.readouterr().out


def test_the_classifier_of_the_readme_is_attacked_as_one():
    images = Digits().load().queries.inputs.float() / 255
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    # Images that it names by a hair, so that the first attack ends it and the slow ones have nothing to do.
    first, second = module(images).detach().topk(2).values.T
    images = images[(first - second).argsort()[:8]]
    names = {"classifier": module, "images": images, "labels": module(images).argmax(dim=1)}
    names["robustmetric"] = robustmetric
    _, snippet, _ = blocks("README.md", "python")
    with pytest.raises(InputError, match=r"if it gives logits, set model\.classes = K"):
        exec(snippet.partition("\n")[2], names)
    exec(snippet, names)
    found = {record.name: record.scores for record in names["records"]}
    assert (found["clean"]["accuracy"], found["worst case"]["accuracy"]) == (100, 0)


def test_the_proof_of_the_readme_runs_as_printed():
    digits = DigitsTable().load()
    (x, y), (x_test, y_test) = ((part.inputs.numpy(), part.labels.numpy()) for part in (digits.train, digits.queries))
    names = {"x": x, "y": y, "x_test": x_test[:50], "y_test": y_test[:50]}
    _, _, snippet = blocks("README.md", "python")
    exec(snippet, names)
    assert names["radii"].shape == (50,) and 0.5 < names["radii"].mean() < 0.75


def test_the_defence_of_the_guide_trains_as_printed(tmp_path: Path, command: Command):
    """Its two files, and its first command but for the number of epochs."""
    (code,), (settings,) = blocks("docs/adding.md", "python"), blocks("docs/adding.md", "yaml")
    for text in (code, settings):
        name, _, body = text.removeprefix("# ").partition("\n")
        (tmp_path / name).write_text(body)
    line = next(line for line in commands() if line.startswith("robustmetric train mine.yaml"))
    done = command(*shlex.split(line)[1:], "epochs=2")
    assert done.code == 0, done.err
    found = read(tmp_path / "runs" / "mine" / "results.jsonl")
    before, after = (r.scores["triplet"] for r in found if r.kind == "train")
    assert after < before


def test_the_classifier_of_the_guide_is_attacked_as_printed(tmp_path: Path, command: Command):
    """Its two files and its first two commands, on few images."""
    code, settings = blocks("docs/own-images.md", "python")[-1], blocks("docs/own-images.md", "yaml")[0]
    (tmp_path / "my_net.py").write_text(code)
    (tmp_path / "my_digits.yaml").write_text(settings)
    (tmp_path / "short.yaml").write_text(
        "base: classification\nattacks: {Feature match: {attack: {targets: 2}}, Local search: null, RayS: null}\n"
    )
    for number, line in enumerate(line for line in commands() if "evaluate my_digits.yaml" in line):
        words = shlex.split(line.replace(" classification ", " short.yaml ").replace("--queries 100", "--queries 4"))
        done = command(*words[1:], "-o", f"out{number}")
        assert done.code == 0 and "left out" not in done.err, done.err
    white, moved = (
        {r.name: r.scores.get("accuracy") for r in read(tmp_path / f"out{i}" / "results.jsonl")} for i in (0, 1)
    )
    assert white["clean"] == 100 and white["Feature match"] < 100 and "PGD-20 from my_net.sibling" in moved


def test_the_measured_table_is_that_of_the_ledger():
    """Every row of ours in docs/measured.md, as `robustmetric ledger --table` gives it."""
    lines = (ROOT / "docs" / "measured.md").read_text().splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| .*ours|\| .*`", line)
    ]
    measured = [row for row in rows if len(row) == 8 and row[1].startswith("`")]
    assert len(measured) >= 5
    tables = comparison(ROOT / "results" / "cub") + "\n" + comparison(ROOT / "results" / "fashion")
    for _, defence, theirs, ours, *scores in measured:
        name = defence.split(",")[0]
        ours_r1 = ours.split(", ")[1]
        line = next(line for line in tables.splitlines() if line.startswith(f"| {name} |") and f"| {ours_r1} |" in line)
        assert [cell.strip() for cell in line.strip("|").split("|")][-4:] == scores
        published = [cell.strip() for cell in line.strip("|").split("|")][2:4]
        assert theirs == "none" or theirs.split(", ")[1:] == published


def row(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / f"{path}-seed0.json").read_text())
    return found


def claims() -> list[str]:
    """The rows of the README's table of what holds up, in its order."""
    lines = (ROOT / "README.md").read_text().partition("| published | ours |\n|---|---|\n")[2].partition("\n\n")[0]
    return lines.splitlines()


def test_what_holds_up_is_what_the_ledger_has():
    hardness, ensembles, scattering, smoothing, proofs = claims()
    hm, act = (row(f"cub/cub-mobilenet_v2-{title}-eta8-full_3e-5") for title in ("hm_lga_ics", "act"))
    for scores in (
        [found["published"] for found in (hm, act)],
        [{**f["clean"], **f["attacks"]["compat"]} for f in (hm, act)],
    ):
        numbers = [found[score] for score in ("R@1", "ERS") for found in scores]
        assert "R@1 {:.1f} and {:.1f}, ERS {:.1f} and {:.1f}".format(*numbers) in hardness
    worst = json.loads((ROOT / "benchmarks" / "results" / "copies-auto_rank-cpu.json").read_text())
    left = [worst["rows"][found["id"]] for found in (hm, act)]
    numbers = [one[part]["R@1"] for one in left for part in ("AutoRank", "clean")]
    assert "**The worst case leaves {:.1f} of {:.1f} and {:.1f} of {:.1f}**".format(*numbers) in hardness
    queries, page = worst["settings"]["queries"], " ".join((ROOT / "docs" / "measured.md").read_text().split())
    assert f"({queries} queries): R@1 of HM and ACT at 8/255" in hardness
    assert (
        "of {} queries `auto_rank` leaves R@1 {:.1f} where HM has {:.1f} and {:.1f} where ACT has {:.1f}".format(
            queries, *numbers
        )
        in page
    )
    assert all(
        worst["rows"][f"cub-mobilenet_v2-{name}-eta8-short-seed0"]["AutoRank"]["R@1"] == 0
        for name in ("act", "hm_lga_ics")
    )
    read, grown = (row(f"cars/cars-mobilenet_v2-{title}-r8") for title in ("eat", "eat_clean_share0_growing0_4"))
    attacked, clean = (read["published"][part]["R@1"] for part in ("pgd10", "clean"))
    assert f"keeps {attacked:.1f} of an R@1 of {clean:.1f}" in ensembles
    both = [(found["clustering"]["pgd10"]["R@1"], found["clustering"]["clean"]["R@1"]) for found in (read, grown)]
    assert "{:.1f} of {:.1f} as we read the paper, {:.1f} of {:.1f} by".format(*both[0], *both[1]) in ensembles
    left = [found["clustering"]["adaptive_short"] for found in (read, grown)]
    assert max(part.get("query only", part)["R@1"] for part in left) <= 2.05 and "at most 2.0 of either" in ensembles
    titles = ("scattering_smoothing0_5-eta1-batch240-group60", "madry-eta7-batch240")
    fs, madry, *short = (
        row(f"cifar10/cifar10-resnet18-{title}-{length}_0.4") for length in ("long", "scaled") for title in titles
    )
    left = [[found["classification"]["accuracy"][name] for found in (fs, madry)] for name in ("PGD-20", "CW-100")]
    worst = [found["classification"]["accuracy"]["AutoAttack"] for found in (fs, madry, *short)]
    assert (
        "PGD-20 leaves {:.1f} % of feature scattering and {:.1f} % of PGD training, CW-100 {:.1f} and {:.1f}, "
        "**AutoAttack {:.1f} and {:.1f}**; `masking` flags the first and passes the second. After 40 epochs AutoAttack "
        "leaves {:.1f} and {:.1f} (ResNet-18)".format(*left[0], *left[1], *worst)
    ) in scattering
    assert [found["protocol"] for found in (fs, madry)] == ["long_0.4"] * 2
    assert [found["masking"]["verdict"] for found in (fs, madry, *short)] == ["masked", *["honest"] * 3]
    page = " ".join((ROOT / "docs" / "papers" / "feature_scattering.md").read_text().split())
    assert (
        "credits FS with 19.4 points and AutoAttack with 12.5; it credits Madry with 8.5 and AutoAttack with 1.5"
        in page
    )
    assert "smoothing with 19.4 points and AutoAttack with 12.5; on PGD training with 8.5 and 1.5" in smoothing
    errors = [row(f"tabular/mnist-{title}")["certified"][0] for title in ("euclidean", "arml")]
    at_one = [found["error"][found["radii"].index(1.0)] for found in errors]
    assert "{} % under Euclidean 1-NN and {} % under ARML, exactly".format(*at_one) in proofs


def test_how_well_the_detector_does_is_what_was_measured():
    counted = {}
    for effort in ("_suite", ""):
        files = [ROOT / "benchmarks" / "results" / f"detector_{name}{effort}-cpu.json" for name in ("fresh", "again")]
        tables = [table for file in files for table in json.loads(file.read_text())["confusion"].values()]
        counted[effort] = [
            {word: sum(table[truth][word] for table in tables) for word in ("honest", "unclear", "masked")}
            for truth in ("honest", "masked")
        ]
    page = (ROOT / "README.md").read_text()
    honest, masked = counted["_suite"]
    assert (sum(honest.values()), sum(masked.values()), honest["masked"]) == (25, 25, 0)
    found = f"found {masked['masked']} of the 25 masked ones and flagged none of the 25 honest ones"
    assert f"{found} ({honest['unclear']}" in page
    honest, masked = counted[""]
    assert honest["masked"] == 0
    again = f"found {masked['masked']} of {sum(masked.values())} and flagged none of {sum(honest.values())}."
    assert again in page
