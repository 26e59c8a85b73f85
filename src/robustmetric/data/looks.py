"""Images looked at one by one and not kept: a digest of the pixels, the size, whether there is colour."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from robustmetric.data.base import Split
from robustmetric.data.cache import DAMAGE, opaque
from robustmetric.data.census import Sample
from robustmetric.data.files import Tree

AT_A_TIME = 1024
"""Files that wait for a thread; of a million, each waiting one would take a kilobyte."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is remembered of an image; equal digests mean equal pixels."""

    digest: bytes
    height: int
    width: int
    is_grey: bool
    is_turned: bool = False
    """Whether it is not stored as it is seen: turned as its camera noted."""


def look(content: bytes, *, upright: bool = False) -> Look:
    """An image file, decoded at its own size; raises one of `DAMAGE` where that cannot be."""
    image, is_turned = opaque(content, upright=upright)
    pixels = np.asarray(image)
    height, width, _ = pixels.shape
    is_grey = bool((pixels[..., :1] == pixels[..., 1:]).all())
    return Look(digest_of(pixels), height, width, is_grey, is_turned)


def looks(tree: Tree, names: Sequence[str], *, upright: bool = False) -> Iterator[Look | None]:
    """A look at each file, in order; None: it cannot be read as an image."""

    def one(name: str) -> Look | None:
        try:
            return look(tree.read(name), upright=upright)
        except DAMAGE:
            return None

    # Pillow and hashlib let go of the interpreter lock; as many images are in memory as there are threads.
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        for first in range(0, len(names), AT_A_TIME):
            yield from pool.map(one, names[first : first + AT_A_TIME])
    finally:
        pool.shutdown(cancel_futures=True)


def looks_of(split: Split) -> Iterator[Look]:
    """A look at each image of a split that is in memory."""
    is_grey = split.shape[0] == 1
    for pixels, (height, width) in zip(split.inputs.numpy(), split.sizes.tolist(), strict=True):
        yield Look(digest_of(pixels), height, width, is_grey)


def samples_of(part: str, split: Split, digests: Iterable[bytes]) -> list[Sample]:
    """The images or rows of a split, with the digest of each."""
    classes = (split.class_names[place] for place in split.labels.tolist())
    return [Sample(part, *one) for one in zip(split.names, classes, digests, strict=True)]


def digest_of(values: npt.NDArray[Any]) -> bytes:
    """Of an array: its shape and values, where -0.0 is 0.0."""
    signless = values + 0.0 if values.dtype.kind == "f" else values
    digest = blake2b(str(values.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(signless).data)
    return digest.digest()
