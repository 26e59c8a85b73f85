"""The recipes of feature scattering and its rebuttal (arXiv 1907.10764) on CIFAR-10, made from one list.

`python tests/scattering_rows.py` writes the files; lines that begin with `# measured:` are kept.
"""

from dataclasses import dataclass
from pathlib import Path

from published import PROTOCOLS as RETRIEVAL
from published import RECIPES, unmeasured

PAPER = "Zhang & Wang, NeurIPS 2019"
USUAL = "ResNet-18"
ROOT = """data: {name: cifar10}
model:
  name: classifier
  trunk: {name: small_resnet, depth: 18}
  classes: 10
  mean: [0.5, 0.5, 0.5]
  std: [0.5, 0.5, 0.5]
defence: {name: plain, loss: {name: cross_entropy}}
sampler: {name: shuffled, batch: 60, drop_last: false}
optimiser: {name: sgd, rate: 0.1, weight_decay: 2e-4, schedule: {name: milestones, at: [0.3, 0.45]}}
epochs: 40
augment: {name: random_crop, size: 32, padding: 4}
suite: classification
"""
LARGE = "model: {trunk: {name: wide_resnet, depth: 28, width: 10}}\nepochs: 200\n"
PROTOCOLS = (
    "# protocols: scaled as it is; full as fs_wrn28-*; short model.trunk.name=wide_resnet "
    "model.trunk.depth=16 model.trunk.width=2 epochs=15 (queries: 1000; all; 1000)"
)
HARD, HALF = "{name: cross_entropy}", "{name: cross_entropy, smoothing: 0.5}"
BALL = "{name: ball, radius: 8/255}"
ONCE = f"{{name: pgd, ball: {BALL}, steps: 1, step_size: 8/255}}"
SEVEN = f"{{name: pgd, ball: {BALL}, steps: 7, step_size: 2/255}}"
NOWHERE = f"{{name: pgd, ball: {BALL}, steps: 0, step_size: 0}}"
COLUMNS = ("clean", "FGSM", "PGD-20", "PGD-100", "CW-20", "CW-100")


@dataclass(frozen=True)
class Row:
    """One row: its defence, what it costs in forwards per image, and what is known of it for WRN-28-10."""

    title: str
    defence: str
    cost: int
    rebuttal: str = ""
    """From the authors' rebuttal."""
    recalled: str = ""
    """The white-box table and the ablation, from memory: never checked against the paper."""
    later: str = ""
    """What others measured on the published model."""
    extra: str = ""
    paper: str = PAPER
    """Whose method it is."""
    unpublished: str = "none checked"


def scattering(settings: str = "", loss: str = HALF) -> str:
    return f"{{name: scattering, loss: {loss}, attack: {ONCE}{settings}}}"


def madry(smoothing: float = 0.0) -> str:
    """The ascent has hard labels, whatever the descent has."""
    if not smoothing:
        return f"{{name: madry, loss: {HARD}, attack: {SEVEN}}}"
    return f"{{name: madry, loss: {smoothed(smoothing)}, climbed: {HARD}, attack: {SEVEN}}}"


def smoothed(smoothing: float) -> str:
    return f"{{name: cross_entropy, smoothing: {smoothing:g}}}" if smoothing else HARD


ROWS = {
    "plain": Row(
        "Ordinary training of a classifier", "", 3, recalled="95.6 36.9 0.0 0.0 0.0 0.0",
    ),
    "madry": Row(
        "Adversarial training by PGD-7 (Madry et al. 2018), hard labels", madry(), 17, "PGD-100 44.8",
        "85.7 54.9 44.9 44.8 45.7 45.4", "clean 87.14, AutoAttack 44.04 (WRN-34-10, its own authors' model)",
    ),
    "scattering": Row(
        "Feature scattering, FS", scattering(), 6, "PGD-100 68.4; local search 89.9",
        "90.0 78.4 70.5 68.6 62.4 60.6",
        "clean 89.98, AutoAttack 36.64; FeatureAttack 36.94 (100 targets); RayS 44.5",
    ),
    "random_target": Row(
        "Random-targeted adversarial training, 7 steps", f"{{name: random_target, loss: {HARD}, attack: {SEVEN}}}", 17,
        "PGD-100 49.9, CW-100 48.5, lowest of 5 runs (steps not stated)",
    ),
    "random_target-t1": Row(
        "Random-targeted adversarial training, one step", f"{{name: random_target, loss: {HARD}, attack: {ONCE}}}", 5,
        "PGD-100 49.9, CW-100 48.5, lowest of 5 runs (steps not stated)",
    ),
    "identity": Row(
        "Feature scattering, each image from itself alone", scattering(", matching: {name: identity_matching}"), 6,
        recalled="87.4 66.3 57.5 56.0 52.4 50.6",
    ),
    "uniform": Row(
        "Feature scattering, each image from all alike", scattering(", matching: {name: uniform_matching}"), 6,
        recalled="90.0 71.0 57.1 54.7 53.2 51.4",
    ),
    "ipot": Row("Feature scattering, matched by IPOT", scattering(", matching: {name: ipot}"), 6),
    "detached": Row("Feature scattering, no gradient through the plan", scattering(", detached: true"), 6),
    "features": Row("Feature scattering of penultimate features", scattering(", space: features"), 6),
    "supervised": Row(
        "Supervised one-step training: the ascent of hard labels in FS's place",
        f"{{name: one_step, loss: {HALF}, climbed: {HARD}, ball: {BALL}}}", 5,
        recalled="86.9 64.4 56.0 54.5 51.2 50.3",
    ),
    "one_step": Row(
        "One-step training from the clean image, hard labels, for label leaking",
        f"{{name: one_step, loss: {HARD}, ball: {BALL}, random_start: false}}", 5,
        paper="Goodfellow et al., ICLR 2015", unpublished="none (Kurakin et al., ICLR 2017, show it on ImageNet)",
    ),
    "noise": Row(
        "Uniform noise in the place of an attack", f"{{name: madry, loss: {HALF}, attack: {NOWHERE}}}", 3,
        recalled="95.3 20.7 0.0 0.0 0.0 0.0",
    ),
}  # fmt: skip
BATCHES = {40: "58.7", 50: "62.7", 70: "68.2", 80: "68.4"}
"""PGD-100 of FS by batch size; 60 is the row itself."""
SMOOTHED = {
    "madry": "44.8 46.4 46.7 46.1 46.2 46.1 45.6 46.8 47.4",
    "scattering": "35.3 56.2 59.2 61.8 58.9 68.4 70.1 71.2 69.7",
}
"""PGD-100 at smoothing 0, 0.1, ... 0.8."""
LARGE_ROWS = ("plain", "madry", "scattering", "random_target", "identity", "uniform", "supervised", "noise")
"""Also written for WRN-28-10, as the paper has them."""
TRANSFORMS = {
    "bit_depth": ("Bit depth 3 (Guo et al. 2018)", "{name: bit_depth}"),
    "jpeg": ("JPEG at quality 75 (Guo et al. 2018)", "{name: jpeg}"),
    "resize_and_pad": (
        "Random resizing and padding (Xie et al. 2018)", "{name: resize_and_pad, smallest: 32, largest: 36}"
    ),
    "barrage": ("A barrage of random transforms (after Raff et al. 2019)", "{name: barrage}"),
}  # fmt: skip


def swept() -> dict[str, Row]:
    """The rows of the rebuttal's two sweeps; those at their usual value are rows already."""
    base = ROWS["scattering"]
    found = {
        f"scattering-b{batch}": Row(
            f"Feature scattering, batches of {batch}", base.defence, 6, f"PGD-100 {score}",
            extra=f"sampler: {{batch: {batch}}}\n",
        )
        for batch, score in BATCHES.items()
    }  # fmt: skip
    for kind, scores in SMOOTHED.items():
        for tenth, score in enumerate(scores.split()):
            if tenth != (0 if kind == "madry" else 5):
                title = f"{ROWS[kind].title.split(',')[0]}, label smoothing {tenth / 10:g}"
                defence = madry(tenth / 10) if kind == "madry" else scattering(loss=smoothed(tenth / 10))
                found[f"{kind}-s{tenth}"] = Row(title, defence, ROWS[kind].cost, f"PGD-100 {score}")
    return found


def header(row: Row, stem: str, architecture: str, epochs: str) -> str:
    """What the row is, how to run it, what it costs and what is known of it."""
    lines = [
        f"# {row.title}: CIFAR-10, {architecture} ({row.paper}).",
        f"# command: robustmetric train cifar10/{stem} --fast",
        f"# published: {row.rebuttal} (authors' rebuttal, WRN-28-10)"
        if row.rebuttal
        else f"# published: {row.unpublished}",
    ]
    if row.recalled:
        scores = ", ".join(f"{name} {value}" for name, value in zip(COLUMNS, row.recalled.split(), strict=True))
        lines.append(f"# recalled, not checked against the paper: {scores}")
    if row.later:
        lines.append(f"# measured by others: {row.later}")
    lines.append(f"# cost: {row.cost} forwards per image; {epochs}")
    if architecture == USUAL:
        lines.append(PROTOCOLS)
    return "\n".join([*lines, "# measured: no"]) + "\n"


def recipe(stem: str, row: Row) -> str:
    """The text of one file on ResNet-18."""
    epochs = "40 epochs, the paper 200, the schedule in proportion"
    text = header(row, f"fs_{stem}", USUAL, epochs)
    if stem == "plain":
        return text + ROOT
    return text + f"base: fs_plain.yaml\ndefence: {row.defence}\n" + row.extra


def large(stem: str) -> str:
    """The same row on the paper's network, for the paper's epochs."""
    text = header(ROWS[stem], f"fs_wrn28-{stem}", "WRN-28-10", "200 epochs")
    return text + f"base: fs_{stem}.yaml\n" + LARGE


def transformed(stem: str) -> str:
    """Ordinary training behind an input transform."""
    title, transform = TRANSFORMS[stem]
    row = Row(f"{title} before a classifier, trained through it", "", 3)
    inner = "trunk: {name: small_resnet, depth: 18}, classes: 10, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]"
    lines = header(row, f"transform_{stem}", USUAL, "40 epochs").replace(f" ({PAPER})", "").splitlines()
    kept = "\n".join(line for line in lines if not line.startswith("# protocols"))
    model = f"model: {{name: transformed, model: {{name: classifier, {inner}}}, transforms: [{transform}]}}"
    return f"{kept}\nbase: fs_plain.yaml\n{model}\n"


METRIC = (
    "# Feature scattering (Zhang & Wang 2019) of a metric model, FS[R]: embeddings in the place of logits, one step,\n"
    "# on CUB-200-2011, MobileNetV2 from a local file under ROBUSTMETRIC_DATA.\n"
    "# command: robustmetric train cub/mobilenet_v2-scattering --fast\n"
    "# published: none\n"
    f"{RETRIEVAL}"
    "# measured: no\n"
    "base: mobilenet_v2-plain.yaml\n"
    "defence:\n"
    "  name: scattering\n"
    "  loss: {name: triplet}\n"
    f"  attack: {ONCE}\n"
)


def files() -> dict[Path, str]:
    """Every file with its text."""
    made = {f"cifar10/fs_{stem}": recipe(stem, row) for stem, row in {**ROWS, **swept()}.items()}
    made |= {f"cifar10/fs_wrn28-{stem}": large(stem) for stem in LARGE_ROWS}
    made |= {f"cifar10/transform_{stem}": transformed(stem) for stem in TRANSFORMS}
    made["cub/mobilenet_v2-scattering"] = METRIC
    return {RECIPES / f"{name}.yaml": text for name, text in made.items()}


if __name__ == "__main__":
    for path, text in files().items():
        if not path.is_file() or unmeasured(path.read_text()) != unmeasured(text):
            path.write_text(text)
            print(path)
