"""For people with their own loop: evaluate or attack any torch module on tensors."""

from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from robustmetric import records
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.transfer import Source, source_name
from robustmetric.data.base import Dataset, Split
from robustmetric.data.transforms import Identity
from robustmetric.errors import InputError, nearest
from robustmetric.jobs import unpack
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.at_hand import target_at_hand
from robustmetric.jobs.attacked import attack_batch
from robustmetric.jobs.closing import of_suite
from robustmetric.jobs.clustering import run_any_suite
from robustmetric.jobs.own import unit, unsearchable
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.surrogate import find_surrogate, named_surrogate, refuse_itself
from robustmetric.jobs.target import record_suite
from robustmetric.jobs.workers import Workers, describe, full_precision
from robustmetric.jobs.worst_case import dressed, fitted
from robustmetric.models.classifier import Classifies
from robustmetric.numerics.kmeans import Backend
from robustmetric.numerics.randomness import generator
from robustmetric.report.scores import show_radius

Images = Float[Tensor, "batch *shape"] | NDArray[Any] | Sequence[Tensor]


@runtime_checkable
class Column(Protocol):
    """A column of a data frame, of whatever library: what NumPy can read."""

    def __len__(self) -> int: ...

    def __array__(self) -> NDArray[Any]: ...


Labels = Int[Tensor, " batch"] | NDArray[Any] | Sequence[int] | Column


def load(path: str | Path) -> nn.Module:
    """The encoder (or classifier) of a run folder, or of a row of the ledger whose weights lie in `zoo/`.

    It takes images in [0, 1] of the size it was trained for, and has the weights of the run, or their copy in half
    precision, in fp32 and in evaluation mode: `robustmetric.load("results/cub/ID.json")`.
    """
    if not isinstance(path, str | Path):
        raise InputError(
            f"{path!r} is a {type(path).__name__}; expected the path of a run folder or of results/.../ID.json"
        )
    return unpack.load(Path(path))


def evaluate(
    encoder: nn.Module,
    images: Images,
    labels: Labels,
    suite: str = "ers224",
    radius: float | None = None,
    *,
    queries: int | None = None,
    seed: int = 0,
    batch_size: int = 128,
    fast: bool = False,
    kmeans: Backend = "torch",
    surrogate: nn.Module | str | Path | None = None,
    out: str | Path | None = None,
) -> list[records.Record]:
    """Clean retrieval and every attack of a suite on images in [0, 1]; each image searches all the others.

    A module with `classes` is a classifier: its outputs are logits, labels their places, and nothing is searched.
    The encoder runs where its parameters are; its embeddings are scaled to unit length, or, where it is a model of
    ours, left as they are. `fast` sees it in bfloat16 on a GPU: for a quick look, as scores change a little. `kmeans`
    says who clusters where the suite is on clustering. `surrogate` is what a suite such as `transfer` climbs on: a run
    folder, or another module, which is put on the encoder's device. `out` is a folder in which each record is written
    as it comes, for `robustmetric report` and `compare`; the same call goes on where one was cut, another model or
    other images are refused, and given back is all that it holds of the suite, the seed and these queries:

        evaluate(encoder, images, labels, suite="ers224", out="runs/mine")
    """
    _check_encoder(encoder)
    _check_settings(suite, radius, seed=seed, batch_size=batch_size, queries=queries)
    chosen = load_suite(suite, radius, surrogate=named_surrogate(surrogate))
    refuse_itself(chosen, unit(encoder))
    images, labels = _checked(images, labels, searched=not isinstance(encoder, Classifies))
    sizes = labels.unique(return_counts=True)[1].tolist()
    if not isinstance(encoder, Classifies) and (why := unsearchable(sizes, has_gallery=False)):
        raise InputError(f"the labels are of {why}")
    device, dataset = _device(encoder, images), _dataset(images, labels, encoder)
    target = None if out is None else target_at_hand(encoder, dataset, out, device)
    arena = Arena.prepare(
        unit(encoder), dataset, Identity(), Workers(device),
        limit=queries, seed=seed, batch_size=batch_size, fast=fast,
    )  # fmt: skip
    context = records.context(describe(device))
    if target is None:
        return [record for record, _ in run_any_suite(arena, chosen, seed, context, kmeans=kmeans)]
    record_suite(target, chosen, arena, seed, context, target.folder.finished(), kmeans)
    return of_suite(list(target.folder.finished().values()), chosen.name, arena.settings(), seed)


@full_precision()
def attack(
    encoder: nn.Module,
    images: Images,
    labels: Labels,
    name: str = "ES",
    suite: str = "ers224",
    radius: float | None = None,
    *,
    seed: int = 0,
    batch_size: int = 128,
    surrogate: nn.Module | str | Path | None = None,
) -> Float[Tensor, "batch *shape"]:
    """The images as one attack of a suite perturbs them, 8-bit, in the ball around the originals rounded to bytes.

    Flat features, and images of a suite with `rounded: false`, are not rounded. An attack that the suite runs at
    several radii needs a `radius`; one that is transferred, a `surrogate`, as in `evaluate`.
    """
    _check_encoder(encoder)
    _check_settings(suite, radius, seed=seed, batch_size=batch_size)
    trial = _trial(name, suite, radius, named_surrogate(surrogate))
    refuse_itself(Suite(suite, [trial]), unit(encoder))
    images, labels = _checked(images, labels, searched=not isinstance(encoder, Classifies))
    dataset = _dataset(images, labels, encoder)
    arena = Arena.prepare(unit(encoder), dataset, Identity(), Workers(_device(encoder, images)), batch_size=batch_size)
    trial = fitted(Suite(suite, [trial]), arena).trials[0]
    seen, source = dressed(arena, trial.attack), find_surrogate(trial, arena)
    perturbed = [
        attack_batch(seen, trial, batch, generator(arena.workers.device, seed, first, 3), source).inputs
        for first, _, batch in arena.batches()
    ]
    return torch.cat(perturbed).to(images.device)


def _trial(name: str, suite: str, radius: float | None, surrogate: Source | None) -> Trial:
    """The one trial of that label, with or without its surrogate's name, or an error that says which there are."""
    trials = load_suite(suite, radius, surrogate=surrogate).trials
    labels = {name} if surrogate is None else {name, f"{name} from {source_name(surrogate)}"}
    found = [trial for trial in trials if trial.label in labels]
    if not found:
        raise InputError(f"{name!r} is not an attack of suite {suite!r}{nearest(name, {t.label for t in trials})}")
    if len(found) > 1:
        radii = tuple(trial.engine.ball.radius for trial in found)
        shown = ", ".join(show_radius(r, among=radii) for r in radii)
        raise InputError(f"suite {suite!r} runs {name!r} at radii {shown}; choose one with radius=")
    return found[0]


def _check_settings(suite: Any, radius: Any, **whole: Any) -> None:
    """Refuse what is of another type; what its value may be is said by those who use it."""
    if not isinstance(suite, str):
        raise InputError(f"suite {suite!r} is a {type(suite).__name__}; expected a name, such as 'ers224', or a file's")
    if radius is not None and (isinstance(radius, bool) or not isinstance(radius, Real)):
        raise InputError(f"radius {radius!r} is a {type(radius).__name__}; expected a number >= 0, such as 8 / 255")
    for name, value in whole.items():
        if not isinstance(value, int) and not (name == "queries" and value is None):
            raise InputError(f"{name} {value!r} is a {type(value).__name__}; expected a whole number")


def _checked(images: Any, labels: Any, *, searched: bool) -> tuple[Tensor, Tensor]:
    """Images and labels as tensors, or an error that says what is wrong with them; a search needs two or more."""
    images, labels = _tensor(images, "images"), _tensor(labels, "labels")
    if images.is_meta or labels.is_meta:
        raise InputError("the images or labels are on the device 'meta', which holds no values; expected numbers")
    if labels.is_floating_point() or labels.dim() != 1:
        raise InputError(
            f"labels of shape {tuple(labels.shape)} and type {labels.dtype} are no classes; expected one integer each"
        )
    labels = labels.long()
    if images.dim() < 2 or images.is_complex():
        raise InputError(
            f"images of shape {tuple(images.shape)} and type {images.dtype} are none; expected numbers in [0, 1] of "
            "shape (batch, channels, height, width), or (batch, features)"
        )
    if images.dtype == torch.uint8:
        raise InputError("the images are bytes (uint8); expected numbers in [0, 1]: give images.float() / 255")
    if len(images) != len(labels):
        raise InputError(f"{len(images)} images and {len(labels)} labels were given; expected one label per image")
    if not len(images):
        raise InputError("no images were given; expected at least one")
    if searched and len(images) < 2:
        raise InputError("one image has no other to search; expected at least 2")
    low, high = images.aminmax()
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise InputError("the images hold NaN or infinity; expected numbers in [0, 1]")
    if low < 0 or high > 1:
        raise InputError(
            f"the images span [{low:.3g}, {high:.3g}]; expected [0, 1]: normalise inside the encoder instead"
        )
    return images, labels


def _tensor(values: Any, name: str) -> Tensor:
    """A tensor of what was given: a tensor, an array, a list of either or of numbers, a column of a data frame."""
    try:
        if isinstance(values, Column) and not isinstance(values, Tensor):
            values = np.asarray(values)
        if isinstance(values, list | tuple) and values and isinstance(values[0], Tensor):
            return torch.stack(list(values))
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        expected = "integers, one per image" if name == "labels" else "a tensor (batch, channels, height, width)"
        raise InputError(f"the {name} are no numbers of one shape ({reason}); expected {expected}") from error


def _check_encoder(encoder: Any) -> None:
    if not isinstance(encoder, nn.Module):
        raise InputError(
            f"the encoder is a {type(encoder).__name__}; expected a torch.nn.Module: put the function into a forward()"
        )


def _dataset(images: Tensor, labels: Tensor, encoder: nn.Module) -> Dataset:
    classes, numbers = labels.cpu().unique(return_inverse=True)
    if isinstance(encoder, Classifies):
        # A label is the place of its logit, also where some classes are absent.
        classes, numbers = torch.arange(encoder.classes), labels.cpu()
    height_width = torch.tensor(images.shape[-2:] if images.dim() == 4 else (1, images.shape[-1]))
    split = Split(
        inputs=images.float(),
        labels=numbers,
        names=tuple(f"image {i}" for i in range(len(images))),
        sizes=height_width.expand(len(images), 2),
        class_names=tuple(str(int(c)) for c in classes),
    )
    return Dataset("tensors", train=split, queries=split)


def _device(encoder: nn.Module, images: Tensor) -> torch.device:
    return next((parameter.device for parameter in encoder.parameters()), images.device)
