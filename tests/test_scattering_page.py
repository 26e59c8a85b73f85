"""The tables of docs/papers/feature_scattering.md are the rows of the ledger, figure by figure."""

import csv
import json
import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from scattering_rows import SMOOTHED as PUBLISHED

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "papers" / "feature_scattering.md").read_text()
TOO_SHORT = "Measured: CIFAR-10, ResNet-18, rate 0.1 for batches of 240: too short"
TRAINED = "Measured: CIFAR-10, ResNet-18, rate 0.4"
SWEEP = "Does smoothing buy robustness? CIFAR-10, WRN-16-2"
ROWS = {
    "plain": "plain-batch240", "Madry": "madry-eta7-batch240", "one step, hard labels": "one_step-batch240",
    "FS, smoothing 0.5": "scattering_smoothing0_5-eta1-batch240-group60",
    "FS, no smoothing": "scattering-eta1-batch240-group60",
    "FS, identity matching": "scattering_identity_smoothing0_5-eta1-batch240-group60",
    "FS, uniform matching": "scattering_uniform_smoothing0_5-eta1-batch240-group60",
    "random-targeted": "random_target-eta7-batch240",
}  # fmt: skip
LONG, LONG_MADRY = "FS, smoothing 0.5, 200 epochs", "Madry, 200 epochs"
MEASURED = (
    "plain", "Madry", "random-targeted", "FS, no smoothing", "FS, identity matching", "FS, uniform matching",
    "FS, smoothing 0.5", LONG_MADRY, LONG,
)  # fmt: skip
"""At rate 0.4, in the order of the table."""
TABLES = [*((TOO_SHORT, "scaled", name) for name in ROWS), *((TRAINED, "scaled_0.4", name) for name in MEASURED)]
TRANSFERRED = ("PGD-20", "PGD-100", "CW-20", "CW-100")
COLUMNS = {
    "FGSM": "FGSM", "PGD-20": "PGD-20", "PGD-100": "PGD-100", "CW-20": "CW-20", "CW-100": "CW-100",
    "feature match": "Feature match", "Square": "Square", "RayS": "RayS", "local search": "Local search",
    "**AutoAttack**": "AutoAttack",
}  # fmt: skip


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def part(name: str) -> str:
    """Of the section on the rows that count."""
    return section(TRAINED).partition(f"\n### {name}\n")[2].partition("\n### ")[0]


def place_of(name: str, protocol: str, seed: int = 0) -> Path:
    """The file of a row; 200 epochs at rate 0.4 are a protocol of their own."""
    if name in (LONG, LONG_MADRY):
        name, protocol = name.removesuffix(", 200 epochs"), "long_0.4"
    return ROOT / "results" / "cifar10" / f"cifar10-resnet18-{ROWS[name]}-{protocol}-seed{seed}.json"


def row(name: str, protocol: str, seed: int = 0) -> dict[str, Any]:
    return json.loads(place_of(name, protocol, seed).read_text())


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


@pytest.mark.parametrize(("place", "protocol", "name"), TABLES)
def test_white_box(place: str, protocol: str, name: str) -> None:
    head, _, *lines = cells(section(place).partition("\nHow this was measured")[0].partition("Transfer from")[0])
    expected = [other for where, _, other in TABLES if where == place]
    assert [first for first, *_ in lines] == expected and head[1:-1] == ["clean", *COLUMNS]
    (shown,) = [rest for first, *rest in lines if first == name]
    found = row(name, protocol)
    scores = found["classification"]["accuracy"]
    left = [f"{scores[attack]:.1f}" if attack in scores else "-" for attack in COLUMNS.values()]
    verdict = (found.get("masking") or {}).get("verdict", "-")
    assert [cell.strip("*") for cell in shown] == [f"{found['clean']['accuracy']:.1f}", *left, verdict]
    assert scores.get("worst case") == scores.get("AutoAttack"), "the page would have to tell of both"


def test_as_the_rebuttal_counts() -> None:
    head, _, *lines = cells(part("As the rebuttal counts"))
    assert head[1:] == list(TRANSFERRED) and [first for first, *_ in lines] == [n for n in MEASURED if n != "plain"]
    for first, *shown in lines:
        found = row(first, "scaled_0.4")["classification"]
        lowest, apart = found["lowest run"], found["max - min"]
        assert shown == [f"{lowest[attack]:.1f} ({apart[attack]:.1f})" for attack in TRANSFERRED]


def test_transfer_to_the_short_rows() -> None:
    words = " ".join(section(TOO_SHORT).split())
    for name in ("FS, smoothing 0.5", "Madry"):
        (source,) = row(name, "scaled")["transfer"]["sources"].values()
        *most, last = [f"{source['accuracy'][attack]:.1f}" for attack in TRANSFERRED]
        assert f"{', '.join(most)} and {last} of {name.partition(',')[0]}" in words


def test_transfer_to_the_trained_rows() -> None:
    head, _, *lines = cells(part("Transfer from an undefended model"))
    assert head == ["of", *TRANSFERRED]
    assert [first for first, *_ in lines[:-1]] == [name for name in MEASURED if name != "plain"]
    for first, *rest in lines[:-1]:
        (source,) = row(first, "scaled_0.4")["transfer"]["sources"].values()
        assert rest == [f"{source['accuracy'][attack]:.1f}" for attack in TRANSFERRED]
    assert lines[-1] == ["published, of FS (WRN-28-10)", "89.0", "88.7", "88.9", "88.8"]


def left_of(name: str, seed: int = 0) -> dict[str, float]:
    """Percent right after each attack, and clean."""
    found = row(name, "scaled_0.4", seed)
    return {**found["classification"]["accuracy"], "clean": found["clean"]["accuracy"]}


def interval_of(name: str) -> str:
    low, high = row(name, "scaled_0.4")["classification"]["worst_case_interval"]
    return f"{low:.1f} to {high:.1f}"


def test_what_was_found_comes_first() -> None:
    text = section("What was found")
    head, _, *lines = cells(text.partition("\n- ")[0])
    names = {"FS, feature scattering": LONG, "Madry, PGD-7 training": LONG_MADRY}
    assert [first for first, *_ in lines] == list(names)
    for first, *rest in lines:
        left, verdict = left_of(names[first]), row(names[first], "")["masking"]["verdict"]
        shown = [f"{left[column.strip('*')]:.1f}" for column in head[1:-1]]
        assert [cell.strip("*") for cell in rest] == [*shown, verdict]
    fs, madry = left_of(LONG), left_of(LONG_MADRY)
    ahead, behind = fs["PGD-20"] - madry["PGD-20"], madry["AutoAttack"] - fs["AutoAttack"]
    assert f"By PGD-20 it is {ahead:.1f} points above Madry, by AutoAttack {behind:.1f} below." in text
    short = left_of("Madry")
    stopped = "PGD-20 {PGD-20:.1f}, CW-100 {CW-100:.1f} and AutoAttack {AutoAttack:.1f}".format(**short)
    ahead = short["AutoAttack"] - fs["AutoAttack"]
    assert f"{stopped}: above FS of 200 epochs by CW-100 already, and by {ahead:.1f} points under" in text
    assert short["CW-100"] > fs["CW-100"] and short["CW-20"] < fs["CW-20"]


def test_what_smoothing_buys_by_network() -> None:
    lines = [line.strip() for line in section("What was found").splitlines() if line.startswith("  | ")]
    shown = {first: rest for first, *rest in cells("\n".join(lines))}
    half, none = left_of("FS, smoothing 0.5"), left_of("FS, no smoothing")
    gains = [f"{half[attack] - none[attack]:+.1f}" for attack in ("PGD-100", "AutoAttack")]
    assert shown["CIFAR-10, ResNet-18, 40 epochs, one run of each"] == gains
    large, small_ = ([float(cell) for cell in swept()[key][1:3]] for key in ("0.5", "0"))
    gains = [f"{one - other:+.1f}" for one, other in zip(large, small_, strict=True)]
    assert shown["CIFAR-10, WRN-16-2, 15 epochs, one run of each"] == gains
    found = {
        (key, attack): mean(seeds_of("smoothing", attack, defence="scattering", smoothing=key))
        for key in (0, 0.5)
        for attack in ("PGD-100", "AutoAttack")
    }
    gains = [f"{found[0.5, attack] - found[0, attack]:+.1f}" for attack in ("PGD-100", "AutoAttack")]
    assert shown["digits, three seeds"] == gains and len(shown) == 4, "a line more is the head"


def test_what_is_said_of_training_as_long_as_the_paper() -> None:
    words = " ".join(part("Trained as long as the paper").split())
    fs, madry = left_of(LONG), left_of(LONG_MADRY)
    above = ("FGSM", "PGD-20", "PGD-100", "CW-20", "CW-100")
    below = {"RayS": "RayS", "Feature match": "feature matching", "AutoAttack": "and AutoAttack"}
    assert ", ".join(f"{attack} ({fs[attack]:.1f} and {madry[attack]:.1f})" for attack in above) + "; but" in words
    assert all(fs[attack] > madry[attack] for attack in above) and all(fs[attack] < madry[attack] for attack in below)
    for attack, said in below.items():
        assert f"{said} ({fs[attack]:.1f} and {madry[attack]:.1f})" in words
    error = math.sqrt(sum(one["AutoAttack"] * (100 - one["AutoAttack"]) / 1000 for one in (fs, madry)))
    assert (
        f"Under AutoAttack it is {madry['AutoAttack'] - fs['AutoAttack']:.1f} points below** (95 % intervals "
        f"{interval_of(LONG)} and {interval_of(LONG_MADRY)}; the difference has a standard error of {error:.1f} points"
    ) in words
    gaps = [f"{left['PGD-20'] - left['AutoAttack']:.1f}" for left in (fs, madry)]
    assert "PGD-20 flatters FS by {} points and Madry by {}".format(*gaps) in words
    assert f"({fs['RayS']:.1f} left for {fs['PGD-100']:.1f})" in words and fs["RayS"] < fs["PGD-100"]
    leads = [fs[attack] - madry[attack] for attack in ("PGD-100", "CW-100")]
    ours, theirs = (row(name, "")["classification"]["lowest run"] for name in (LONG, LONG_MADRY))
    lowest = [ours[attack] - theirs[attack] for attack in ("PGD-100", "CW-100")]
    assert "Ours is {:.1f} and {:.1f} by the lowest of five runs".format(*lowest) in words
    assert "({:.1f} and {:.1f} by each image's worst of them)".format(*leads) in words
    assert f"Madry of 40 epochs has {left_of('Madry')['AutoAttack']:.1f}" in words


def test_what_length_does() -> None:
    text = part("What length does")
    head, _, *lines = cells(text)
    names = {"FS": ("FS, smoothing 0.5", LONG), "Madry": ("Madry", LONG_MADRY)}
    assert [first for first, *_ in lines] == list(names)
    for first, *rest in lines:
        short, long = map(left_of, names[first])
        assert rest == [f"{long[attack] - short[attack]:+.1f}" for attack in head[1:]]
    with place_of(LONG_MADRY, "").with_suffix(".csv").open() as file:
        loss = {line["epoch"]: float(line["adversarial"]) for line in csv.DictReader(file)}
    assert f"falls from {loss['60']:.2f} at epoch 60 to {loss['200']:.2f} at epoch 200" in text


def test_what_is_said_of_forty_epochs() -> None:
    words = " ".join(part("After 40 epochs").split())
    fs, madry, identity, none = map(
        left_of, ("FS, smoothing 0.5", "Madry", "FS, identity matching", "FS, no smoothing")
    )
    attacks = [name for name in fs if name != "clean" and name in madry]
    assert {name for name in attacks if fs[name] > madry[name]} == {"Local search"}
    gaps = [f"{left['PGD-20'] - left['AutoAttack']:.1f}" for left in (fs, madry)]
    assert "PGD-20 is {} points above AutoAttack (Madry: {})".format(*gaps) in words
    bought = [fs[attack] - none[attack] for attack in ("AutoAttack", "PGD-100")]
    assert "credits smoothing with {:.1f} points and PGD-100 with {:.1f}".format(*bought) in words
    seeds = [left_of("FS, smoothing 0.5", seed) for seed in range(4)]
    ends = [one["AutoAttack"] for one in seeds]
    assert (
        f"{identity['AutoAttack']:.1f} is below all four seeds of transport ({min(ends):.1f} to {max(ends):.1f}), by "
        f"less than one number's interval ({interval_of('FS, identity matching')})"
    ) in words and identity["AutoAttack"] < min(ends)
    head, _, *lines = cells(part("After 40 epochs"))
    for seed, (first, *shown, verdict) in enumerate(lines):
        found = row("FS, smoothing 0.5", "scaled_0.4", seed)
        assert first == str(seed) and verdict == found.get("masking", {}).get("verdict", "-")
        assert [cell.strip("*") for cell in shown] == [f"{seeds[seed][one.strip('*')]:.1f}" for one in head[1:-1]]
    assert len(lines) == 4
    unclear = row("FS, smoothing 0.5", "scaled_0.4", seed=3)["masking"]["checks"]
    assert {name for name, word in unclear.items() if word != "pass"} == {"loss_against_margin", "worst_case"}
    plain = [left_of("plain", seed) for seed in (1, 2)]
    assert "{:.1f} and {:.1f} clean".format(*(one["clean"] for one in plain)) in words
    assert all(one["AutoAttack"] == 0 for one in plain)


def test_of_which_commits_the_rows_are() -> None:
    found = {name: row(name, "scaled_0.4")["commit"][:7] for name in MEASURED}
    assert {name for name, commit in found.items() if commit == "1720ffa"} == {"plain", "Madry", "FS, smoothing 0.5"}
    assert {name for name, commit in found.items() if commit == "372d15a"} == {LONG_MADRY}
    assert set(found.values()) == {"1720ffa", "372d15a", "fd1e307"}
    seeds = [row("FS, smoothing 0.5", "scaled_0.4", seed)["commit"][:7] for seed in range(1, 4)]
    assert seeds == ["fd1e307", "372d15a", "372d15a"]


def test_transfer_from_a_sibling() -> None:
    text = section("Transfer from a sibling: CIFAR-10, ResNet-18")
    head, _, *lines, published = cells(text)
    lost = []
    for (first, *rest), (seed, other) in zip(lines, ((2, 3), (3, 2)), strict=True):
        found, left = row("FS, smoothing 0.5", "scaled_0.4", seed), left_of("FS, smoothing 0.5", seed)
        ((source, moved),) = found["transfer"]["sources"].items()
        weights = row("FS, smoothing 0.5", "scaled_0.4", other)["weights_sha256"]
        assert first == f"seed {seed}, found on seed {other}" and f"seed{other}" in source
        assert weights.startswith(moved["weights"])
        transferred = [moved["accuracy"][attack] for attack in head[2:-1]]
        assert rest == [f"{one:.1f}" for one in (left["clean"], *transferred, left["PGD-100"])]
        lost.append((left["clean"] - moved["accuracy"]["PGD-100"], left["clean"] - left["PGD-100"]))
    assert "({:.1f} of {:.1f} points, and {:.1f} of {:.1f}; one run".format(*lost[0], *lost[1]) in text
    assert all(0.64 < one / most < 0.7 for one, most in lost)
    assert published[2:] == ["81.6", "81.0", "80.3", "79.8", "68.4"]


def test_the_short_table_of_what_is_measured() -> None:
    lines = cells((ROOT / "docs" / "measured.md").read_text().partition("\n## Classifiers\n")[2].partition("\n## ")[0])[
        2:
    ]
    names = {
        "Madry, 40 epochs": "Madry", "FS, 40 epochs": "FS, smoothing 0.5", LONG_MADRY: LONG_MADRY,
        "FS, 200 epochs": LONG,
    }  # fmt: skip
    assert [first for first, *_ in lines] == list(names)
    for first, clean, *left, verdict, _, _, _ in lines:
        found = row(names[first], "scaled_0.4")
        scores = [found["classification"]["accuracy"][attack] for attack in ("PGD-100", "CW-100", "AutoAttack")]
        assert [clean, *left] == [
            f"{found['clean']['accuracy']:.1f}",
            *(f"{one:.1f}" for one in scores[:2]),
            f"**{scores[2]:.1f}**",
        ]
        assert verdict == found["masking"]["verdict"]


def test_what_is_said_of_the_flags() -> None:
    words = " ".join(section(TRAINED).split())
    for name in ("Madry", "FS, smoothing 0.5", LONG_MADRY):
        checks = row(name, "scaled_0.4")["masking"]["checks"]
        assert set(checks.values()) == {"pass"} and len(checks) == 13
    checks = row(LONG, "scaled_0.4")["masking"]["checks"]
    failed, unclear = ([name for name, said in checks.items() if said == word] for word in ("fail", "unclear"))
    assert failed == ["loss_against_margin", "worst_case"]
    assert all(f"`{name}` fails" in words for name in failed)
    assert unclear == ["step_size", "gradient_free", "hard_label"]
    assert "`step_size`, `gradient_free` and `hard_label` are unclear" in words
    assert {checks[name] for name in ("black_box", "restarts", "loss_curves")} == {"pass"}


def test_the_verdicts_on_the_page_of_masking() -> None:
    text = (ROOT / "docs" / "masking.md").read_text().partition("\n### On ResNet-18, CIFAR-10\n")[2]
    lines = cells(text.partition("\n### ")[0])[2:]
    short = "FS, smoothing 0.5"
    names = {
        "plain": ("plain", 0), "Madry": ("Madry", 0), "FS, 40 epochs": (short, 0), "FS, 40 epochs, seed 2": (short, 2),
        "FS, 40 epochs, seed 3": (short, 3), LONG_MADRY: (LONG_MADRY, 0), "FS, 200 epochs": (LONG, 0),
    }  # fmt: skip
    assert [first for first, *_ in lines] == list(names)
    for first, *rest in lines:
        name, seed = names[first]
        found = row(name, "scaled_0.4", seed)
        left, block = found["classification"]["accuracy"], found["masking"]
        truth = "masked" if left["PGD-20"] - left["worst case"] >= 10 else "honest"
        failed = ", ".join(f"`{name}`" for name, word in block["checks"].items() if word == "fail") or "-"
        assert rest == [f"{left['PGD-20']:.1f}", f"{left['worst case']:.1f}", truth, block["verdict"], failed]
        assert block["images"] == 200 and block["search"] == "fp16"


def test_what_the_diagonal_of_the_plan_holds() -> None:
    with place_of(LONG, "").with_suffix(".csv").open() as file:
        epochs = {line["epoch"]: line for line in csv.DictReader(file)}
    words = " ".join(section(TRAINED).split())
    held = [100 * float(epochs[epoch]["own"]) for epoch in ("60", "90", "200")]
    assert "falls from {:.0f} % at epoch 60 and {:.0f} % at epoch 90 to {:.0f} % at the end".format(*held) in words
    least = -(0.5 * math.log(0.5) + 0.5 * math.log(0.5 / 9))
    assert f"the loss to {float(epochs['200']['scattered']):.2f}, of {least:.2f} that such labels allow" in words


SMOOTHED = tuple(f"{tenth / 10:g}" for tenth in range(9))


def swept() -> dict[str, list[str]]:
    lines = cells(section(SWEEP).partition("\n### ")[0])[2:]
    return {first: [cell.strip("*") for cell in rest] for first, *rest in lines}


@pytest.mark.parametrize("smoothing", SMOOTHED)
def test_smoothing(smoothing: str) -> None:
    assert tuple(swept()) == SMOOTHED
    label = "" if smoothing == "0" else f"_smoothing{smoothing.replace('.', '_')}"
    found: list[str] = []
    for kind, more in (("scattering", "eta1-batch240-group60"), ("madry", "eta7-batch240")):
        path = ROOT / "results" / "cifar10" / f"cifar10-wide_resnet16_2-{kind}{label}-{more}-short_0.4-seed0.json"
        found += [*small(path), PUBLISHED[kind].split()[SMOOTHED.index(smoothing)]]
    assert swept()[smoothing] == found


def small(path: Path) -> list[str]:
    """Clean, PGD-100 and AutoAttack of a row."""
    one = json.loads(path.read_text())
    left = one["classification"]["accuracy"]
    return [f"{number:.1f}" for number in (one["clean"]["accuracy"], left["PGD-100"], left["AutoAttack"])]


def test_what_smoothing_is_credited_with() -> None:
    shown = {key: [float(cell) for cell in rest] for key, rest in swept().items()}
    weak, strong = shown["0.5"][1] - shown["0"][1], shown["0.5"][2] - shown["0"][2]
    words = " ".join(section(SWEEP).split())
    assert f"credits smoothing 0.5 of FS with {weak:.1f} points, AutoAttack with {strong:.1f}" in words
    gaps, theirs = ({key: one[at] - one[at + 1] for key, one in shown.items()} for at in (1, 5))
    smooth = [gap for key, gap in gaps.items() if key != "0"]
    assert f"is {gaps['0']:.1f} with hard labels and {min(smooth):.1f} to {max(smooth):.1f} with smoothed" in words
    flat = [shown[key][2] for key in SMOOTHED[1:-1]]
    assert f"is flat from 0.1 to 0.7 ({min(flat):.1f} to {max(flat):.1f})" in words
    early, left = [theirs[key] for key in SMOOTHED[1:-1]], [shown[key][6] for key in SMOOTHED]
    assert (
        f"by {theirs['0']:.1f} points with hard labels and by {min(early):.1f} to {max(early):.1f} up to 0.7" in words
    )
    low, high = min(left[1:7]), max(left[1:7])
    assert f"leaves {left[0]:.1f} at 0, {low:.1f} to {high:.1f} up to 0.6 and {left[7]:.1f} at 0.7" in words
    assert f"(FS {shown['0'][2] - shown['0.8'][2]:.1f} points by AutoAttack against no smoothing)" in words
    error = math.sqrt(sum(shown[key][2] * (100 - shown[key][2]) / 1000 for key in ("0", "0.5")))
    assert f"{strong:.1f} points at smoothing 0.5, {strong / error:.1f} standard errors" in words
    ours = [left for values in shown.values() for left in (*values[:3], *values[4:7])]
    errors = [math.sqrt(left * (100 - left) / 1000) for left in ours]
    assert f"of these numbers is {min(errors):.1f} to {max(errors):.1f} points" in words


@pytest.mark.parametrize(
    ("place", "stem"),
    [(0, "eta1{}-short"), (1, "eta1-batch240{}-short_0.4")],
    ids=["batches", "groups"],
)
def test_how_many_images_are_matched(place: int, stem: str) -> None:
    first, _, second = section(SWEEP).partition("\n### Batch size")[2].partition("A batch is also")
    head, _, *lines = cells((first, second)[place])
    usual = ("60", "240")[place]
    columns = []
    for size in head[1:]:
        part = "" if size == usual else f"-{('batch', 'group')[place]}{size}"
        columns.append(
            small(
                ROOT / f"results/cifar10/cifar10-wide_resnet16_2-scattering_smoothing0_5-{stem.format(part)}-seed0.json"
            )
        )
    assert [[cell.strip("*") for cell in rest] for _, *rest in lines] == [
        list(line) for line in zip(*columns, strict=True)
    ]


def test_what_the_words_say_of_the_short_rows() -> None:
    words = " ".join(section(TOO_SHORT).split())
    madry, scattered = (row(name, "scaled") for name in ("Madry", "FS, smoothing 0.5"))
    ours, theirs = (found["classification"]["accuracy"] for found in (scattered, madry))
    assert {attack for attack in ours if ours[attack] > theirs[attack]} == {"Local search"}
    assert all(3 < left["PGD-20"] - left["AutoAttack"] < 4.2 for left in (ours, theirs))
    assert set(madry["masking"]["checks"].values()) == {"pass"} and len(madry["masking"]["checks"]) == 13
    unclear = [name for name, said in scattered["masking"]["checks"].items() if said != "pass"]
    assert unclear == ["loss_against_margin", "worst_case"] and f"unclear (`{unclear[0]}` and `{unclear[1]}`" in words
    assert row("plain", "scaled")["masking"]["checks"]["black_box"] == "not run"
    one = row("one step, hard labels", "scaled")
    own = one["classification"]["accuracy"]["Clean-start FGSM"]
    assert f"its own attack leaves {own:.1f} of {one['clean']['accuracy']:.1f}" in words
    assert "12 epochs, 2,508 steps" in words and 12 * -(-50_000 // 240) == 2508


def test_transfer_from_a_sibling_of_a_smaller_network() -> None:
    text = section("Transfer from a sibling: digits, three seeds").partition("\n### One pair on CIFAR-10, WRN-16-2\n")[
        2
    ]
    found = json.loads((ROOT / "benchmarks" / "results" / "sibling-cifar10-cpu.json").read_text())
    _, _, sibling, white, published = cells(text)
    moved = [f"{found['transfer'][attack]:.1f}" for attack in TRANSFERRED]
    assert sibling == ["found on the sibling", f"{found['clean']:.1f}", *moved]
    own = found["white-box"]["PGD-100"]
    assert white[1:] == [f"{found['clean']:.1f}", "-", f"{own:.1f}", "-", "-"]
    assert published[2:] == ["81.6", "81.0", "80.3", "79.8"]
    assert f"APGD-CE and APGD-T alone were run, which leave {found['white-box']['then APGD-T']:.1f}" in text
    lost = found["clean"] - found["transfer"]["PGD-100"], found["clean"] - own
    assert f"({lost[0]:.1f} of {lost[1]:.1f} points)" in text and 0.7 < lost[0] / lost[1] < 0.8
    assert found["context"]["commit"].startswith("57284dc") and "commit 57284dc" in text


DIGITS = ("scattering", "FS"), ("madry", "Madry")


def seeds_of(name: str, attack: str, **what: object) -> list[float]:
    """One number of each seed, of a benchmark on digits."""
    found = json.loads((ROOT / "benchmarks" / "results" / f"{name}-cpu.json").read_text())["rows"]
    return [one[attack] for one in found if all(one[key] == value for key, value in what.items())]


def mean_and_deviation(values: list[float]) -> str:
    return f"{mean(values):.1f} ± {stdev(values):.1f}"


def test_smoothing_on_digits() -> None:
    text = section("Does smoothing buy robustness? Digits, three seeds")
    expected, left = [], {}
    for defence, shown in DIGITS:
        for smoothing in (0, 0.5, 0.8):
            of = {"defence": defence, "smoothing": smoothing}
            clean, weak, strong = (seeds_of("smoothing", name, **of) for name in ("clean", "PGD-100", "AutoAttack"))
            assert len(weak) == 3
            gaps = [one - other for one, other in zip(weak, strong, strict=True)]
            numbers = [mean_and_deviation(values) for values in (clean, weak, strong, gaps)]
            numbers[2] = f"**{numbers[2]}**"
            expected.append([shown, f"{smoothing:g}", *numbers])
            left[shown, smoothing] = mean(weak), mean(strong)
    assert cells(text)[2:] == expected
    gained = [left[shown, 0.8][at] - left[shown, 0][at] for shown in ("FS", "Madry") for at in (0, 1)]
    words = " ".join(text.split())
    assert (
        "At 0.8 PGD-100 credits FS with {:.1f} points and AutoAttack with {:.1f}; it credits Madry with {:.1f} and "
        "AutoAttack with {:.1f}".format(*gained)
    ) in words
    found = json.loads((ROOT / "benchmarks" / "results" / "smoothing-cpu.json").read_text())["rows"]
    furthest = max(one["APGD-T"] - one["AutoAttack"] for one in found)
    assert f"leaves what AutoAttack leaves within {furthest:.1f}" in words
    assert {one["commit"][:7] for one in found} == {"0f3d3e1"} and "commit 0f3d3e1" in words


def test_siblings_on_digits() -> None:
    text = section("Transfer from a sibling: digits, three seeds").partition("\n### ")[0]
    head, _, *lines = cells(text)
    expected = []
    for defence, shown in DIGITS:
        for source in ("undefended", "sibling"):
            moved = [seeds_of("siblings", attack, defence=defence, found_on=source) for attack in head[2:]]
            assert {len(one) for one in moved} == {3}
            expected.append([shown, source, *map(mean_and_deviation, moved)])
    assert lines[:-2] == expected


def test_local_search_with_and_without_a_bound() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "copies-local_search-cpu.json").read_text())
    ((name, one),) = found["rows"].items()
    images = found["settings"]["queries"]
    scores = (one["clean"], *(one["left"][f"Local search, {kind}"] for kind in ("clipped", "without a bound")))
    clean, clipped, unbounded = (round(images * score["accuracy"] / 100) for score in scores)
    words = " ".join(part("Local search, clipped or not").split())
    assert (
        f"of {images} images on FS, WRN-16-2, of which {clean} are right, {clipped} are left clipped and {unbounded} "
        "without a bound"
    ) in words
    assert name in words and f"commit {one['commit'][:7]}" in words
