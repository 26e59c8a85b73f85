"""Pictures of embeddings, clean and attacked, in two dimensions that fit the clean ones (t-SNE: extra; else PCA)."""

import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy import ndarray

from robustmetric.errors import InputError
from robustmetric.report.clustering import BOTH, HEADLINE, newest
from robustmetric.report.plots import INK, MARKERS, colour, to_svg
from robustmetric.report.runs import Run
from robustmetric.report.scores import show_radius

ARRAYS = ("clean", "moved", "classes", "suite", "attack", "radius")
PERPLEXITY = 30.0


@dataclass(frozen=True)
class Sample:
    """Embeddings of some images before and after an attack, as `evaluate` keeps them, and their classes by name."""

    suite: str
    attack: str
    radius: float
    clean: Float[ndarray, "n dim"]
    moved: Float[ndarray, "n dim"]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Portrait:
    """A run's picture: clean at the left, attacked at the right, on the same axes."""

    style: int
    run: str
    caption: str
    plot: Markup


def portraits(runs: Sequence[Run]) -> list[Portrait]:
    """A picture for each run and suite that kept embeddings."""
    found: list[Portrait] = []
    for style, run in enumerate(runs):
        for sample in samples(run):
            caption, plot = _portrait(sample, run.label, f"portrait-{len(found)}")
            found.append(Portrait(style, run.label, f"Suite {sample.suite}: {caption}", plot))
    return found


def panorama(runs: Sequence[Run]) -> Figure:
    """One picture of all runs that kept embeddings, a line each: of its first suite, clean at the left."""
    kept = {run.label: several[0] for run in runs if (several := samples(run))}
    if not kept:
        raise InputError(
            f"no embeddings in {', '.join(str(run.path) for run in runs)}; expected a run evaluated by a suite about "
            "clustering: robustmetric evaluate RUN clustering"
        )
    figure = Figure(figsize=(9.0, 4.2 * len(kept)), layout="constrained")
    lines = figure.subplots(len(kept), 2, squeeze=False, sharex="row", sharey="row")
    for panels, (label, sample) in zip(lines, kept.items(), strict=True):
        method = _draw(panels, sample)
        panels[0].set_ylabel(label, color=INK, fontsize=12, parse_math=False)
        panels[1].set_title(
            f"{sample.attack} at {show_radius(sample.radius)}", color=INK, fontsize=12, parse_math=False
        )
    figure.suptitle(
        f"{method} of the clean embeddings, into which the attacked ones are placed", color=INK, fontsize=12
    )
    return figure


def samples(run: Run) -> list[Sample]:
    """Of each suite that kept embeddings, those of the attack that did the clusters most harm, at the least radius."""
    by_suite: dict[str, list[Sample]] = {}
    for path in sorted((run.path / "embeddings").glob("*.npz")):
        sample = read_sample(path)
        by_suite.setdefault(sample.suite, []).append(sample)
    return [min(several, key=lambda one: (one.radius, _f1(run, one))) for several in by_suite.values()]


def read_sample(path: Path) -> Sample:
    """The sample in a file; a damaged one is named."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            clean, moved, classes, suite, attack, radius = (arrays[name] for name in ARRAYS)
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} holds no embeddings that can be read; delete it and evaluate again") from error
    if clean.shape != moved.shape or clean.ndim != 2 or len(classes) != len(clean):
        raise InputError(
            f"{path} holds {len(classes)} classes for embeddings of shapes {clean.shape} and {moved.shape}; "
            "expected one class per row and one shape: delete it and evaluate again"
        )
    numbers = clean.astype(np.float64), moved.astype(np.float64)
    return Sample(str(suite), str(attack), float(radius), *numbers, tuple(map(str, classes)))


def project(
    clean: Float[ndarray, "n dim"], moved: Float[ndarray, "m dim"]
) -> tuple[Float[ndarray, "n 2"], Float[ndarray, "m 2"], str]:
    """Both in two dimensions that the clean ones alone decide, and the method: "t-SNE" if it is installed, or "PCA"."""
    if find_spec("openTSNE") is None or len(clean) < 4:
        return *pca(clean, moved), "PCA"
    return *tsne(clean, moved), "t-SNE"


def pca(
    clean: Float[ndarray, "n dim"], moved: Float[ndarray, "m dim"]
) -> tuple[Float[ndarray, "n 2"], Float[ndarray, "m 2"]]:
    """Along the two directions in which the clean embeddings spread most; missing ones are 0."""
    middle = clean.mean(axis=0)
    _, _, directions = np.linalg.svd(clean - middle, full_matrices=False)
    # The sign of a direction is arbitrary: its largest entry is made positive, so that a picture can be made again.
    signs = np.sign(np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1))
    axes = np.zeros((2, clean.shape[1]))
    axes[: min(2, len(directions))] = (directions * signs)[:2]
    return (clean - middle) @ axes.T, (moved - middle) @ axes.T


def tsne(
    clean: Float[ndarray, "n dim"], moved: Float[ndarray, "m dim"]
) -> tuple[Float[ndarray, "n 2"], Float[ndarray, "m 2"]]:
    """t-SNE of the clean embeddings (openTSNE, seed 0); the moved ones are placed into it without moving the others."""
    from openTSNE import TSNE

    fit = TSNE(perplexity=min(PERPLEXITY, (len(clean) - 1) / 3), random_state=0, n_jobs=1).fit(clean)
    return np.asarray(fit, dtype=np.float64), np.asarray(fit.transform(moved), dtype=np.float64)


def _portrait(sample: Sample, label: str, name: str) -> tuple[str, Markup]:
    figure = Figure(figsize=(9.0, 4.4), layout="constrained")
    figure.patch.set_alpha(0)
    method = _draw(figure.subplots(1, 2, sharex=True, sharey=True), sample)
    at = show_radius(sample.radius)
    caption = (
        f"{len(sample.classes)} images of {len(set(sample.classes))} classes, clean and moved by {sample.attack} at "
        f"{at}; {method} of the clean embeddings, into which the moved ones are placed; same axes, a colour and mark "
        "for each class."
    )
    return caption, to_svg(figure, name, f"{method} of {label}'s embeddings, clean and under {sample.attack} at {at}")


def _draw(panels: Iterable[Axes], sample: Sample) -> str:
    """The points of a sample, clean in the first panel and moved in the second; how they were projected."""
    clean, moved, method = project(sample.clean, sample.moved)
    classes = np.array(sample.classes)
    for axes, points, title in zip(panels, (clean, moved), ("clean", sample.attack), strict=True):
        for number, kind in enumerate(dict.fromkeys(sample.classes)):
            own = points[classes == kind]
            marker = MARKERS[number % len(MARKERS)]
            axes.scatter(own[:, 0], own[:, 1], s=12, color=colour(number), marker=marker, alpha=0.75, linewidths=0)
        axes.set_title(title, color=INK, fontsize=12, parse_math=False)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.patch.set_alpha(0)
        for spine in axes.spines.values():
            spine.set_color(INK)
            spine.set_alpha(0.3)
    return method


def _f1(run: Run, sample: Sample) -> float:
    """F1 in percent under this attack, by the headline reading; the newest; infinite where no record has it."""
    for record in reversed(newest(run)):
        settings = record.settings
        names = tuple(settings.get(key) for key in ("suite", "trial", "sides"))
        same = names == (sample.suite, sample.attack, BOTH) and np.isclose(float(settings["radius"]), sample.radius)
        if same and settings["reading"] in HEADLINE and "F1" in record.scores:
            return record.scores["F1"]
    return np.inf
