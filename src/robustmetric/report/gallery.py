"""The gallery: what the attack did to single queries, as inline images with words beside the colours."""

import base64
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray
from PIL import Image

from robustmetric.errors import InputError
from robustmetric.report.scores import MULTIPLY, show_radius

ARRAYS = ("query", "perturbed", "before", "after", "query_label", "before_label", "after_label", "class_names")
GREY = 128
SMALLEST = 96  # pixels: below this an image is enlarged by whole pixels
LARGEST = {"query": 192, "neighbour": 112}  # pixels: keeps a page of photographs to a few MB


@dataclass(frozen=True)
class Picture:
    """One image of the gallery: a data address, its class, and whether that is the query's class."""

    source: str
    caption: str
    same: bool | None = None
    """None for the query itself and the difference."""


@dataclass(frozen=True)
class Example:
    """One query: itself, perturbed, the difference, and its first results before and after."""

    trio: tuple[Picture, Picture, Picture]
    before: tuple[Picture, ...]
    after: tuple[Picture, ...]
    summary: str


@dataclass(frozen=True)
class Gallery:
    """The examples of one attack on one run."""

    attack: str
    radius: str
    strength: float
    """The radius as a number, 0 where it is not stated."""
    factor: int
    """How many times the difference is magnified."""
    examples: tuple[Example, ...]
    total: int
    """Examples in the file, of which the first are shown."""
    pixelated: bool
    """Whether the images were enlarged, so that a browser should not smooth them."""


def read_gallery(path: Path, limit: int = 4) -> Gallery:
    """The first examples of an `examples/<attack>.npz`."""
    arrays = _read(path)
    shown = {key: arrays[key][:limit] for key in ARRAYS if key != "class_names"}
    names = [str(name) for name in arrays["class_names"]]
    factor = magnification(shown["query"], shown["perturbed"])
    radius = show_radius(float(arrays["radius"])) if "radius" in arrays else ""
    return Gallery(
        attack=str(arrays["attack"]) if "attack" in arrays else path.stem,
        radius=radius,
        strength=float(arrays["radius"]) if "radius" in arrays else 0.0,
        factor=factor,
        examples=tuple(_example(shown, row, names, factor) for row in range(len(shown["query"]))),
        total=len(arrays["query"]),
        pixelated=max(arrays["query"].shape[2:]) < SMALLEST,
    )


def magnification(query: UInt8[ndarray, "n c h w"], perturbed: UInt8[ndarray, "n c h w"]) -> int:
    """The largest whole factor at which no difference, centred on grey, leaves the range of a byte."""
    largest = int(np.abs(perturbed.astype(int) - query).max(initial=0))
    return max(1, (GREY - 1) // largest) if largest else 1


def difference(
    query: UInt8[ndarray, "c h w"], perturbed: UInt8[ndarray, "c h w"], factor: int
) -> UInt8[ndarray, "c h w"]:
    """The perturbation times `factor`, centred on grey."""
    return np.clip(GREY + factor * (perturbed.astype(int) - query), 0, 255).astype(np.uint8)


def data_address(image: UInt8[ndarray, "c h w"], largest: int) -> str:
    """The image as an inline PNG: enlarged by whole pixels when small, reduced when larger than `largest`."""
    picture = Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
    side = max(picture.size)
    if side < SMALLEST:
        times = SMALLEST // side
        picture = picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
    elif side > largest:
        picture.thumbnail((largest, largest), Image.Resampling.BOX)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _read(path: Path) -> Mapping[str, ndarray]:
    """The arrays, checked to fit one another; nothing in the file is executed."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not a whole .npz of examples ({error}); evaluate again or delete it") from error
    missing = [key for key in ARRAYS if key not in arrays]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}; evaluate again or delete it")
    n, *shape = arrays["query"].shape
    if len(shape) != 3 or shape[0] not in (1, 3) or 0 in shape:
        raise InputError(f"{path}: query has shape {(n, *shape)}; expected (n, 1 or 3, height, width)")
    tops = arrays["before_label"].shape[1:]
    expected = {"query": shape, "perturbed": shape, "before": [*tops, *shape], "after": [*tops, *shape]}
    expected |= {"query_label": [], "before_label": list(tops), "after_label": list(tops)}
    for key, wanted in expected.items():
        if list(arrays[key].shape) != [n, *wanted]:
            raise InputError(f"{path}: {key} has shape {arrays[key].shape}; expected {(n, *wanted)} to fit query")
        if not key.endswith("label") and arrays[key].dtype != np.uint8:
            raise InputError(f"{path}: {key} holds {arrays[key].dtype}; expected uint8 images")
    return arrays


def _example(arrays: Mapping[str, ndarray], row: int, names: list[str], factor: int) -> Example:
    query, perturbed, label = arrays["query"][row], arrays["perturbed"][row], int(arrays["query_label"][row])
    largest = LARGEST["query"]
    magnified = data_address(difference(query, perturbed, factor), largest)
    return Example(
        trio=(
            Picture(data_address(query, largest), f"query: {_name(label, names)}"),
            Picture(data_address(perturbed, largest), "perturbed"),
            Picture(magnified, f"difference {MULTIPLY} {factor}"),
        ),
        before=_results(arrays["before"][row], arrays["before_label"][row], label, names),
        after=_results(arrays["after"][row], arrays["after_label"][row], label, names),
        summary=_words(arrays["before_label"][row], arrays["after_label"][row], label),
    )


def _results(
    images: UInt8[ndarray, "top c h w"], labels: Int[ndarray, " top"], query_label: int, names: list[str]
) -> tuple[Picture, ...]:
    pairs: Any = zip(images, labels.tolist(), strict=True)
    return tuple(
        Picture(data_address(image, LARGEST["neighbour"]), _name(label, names), label == query_label)
        for image, label in pairs
    )


def _words(before: Int[ndarray, " top"], after: Int[ndarray, " top"], label: int) -> str:
    """The picture in one sentence, for readers who do not see it."""
    right = [int((labels == label).sum()) for labels in (before, after)]
    return f"{right[0]} of the first {len(before)} results were of the query's class before, {right[1]} after."


def _name(label: int, names: list[str]) -> str:
    return names[label] if 0 <= label < len(names) else f"class {label}"
