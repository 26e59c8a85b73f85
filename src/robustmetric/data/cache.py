"""The image cache: each image is decoded and squashed to size x size once, then memory-mapped as bytes ever after."""

import hashlib
import logging
import os
import shutil
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Int, UInt8
from PIL import ExifTags, Image
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from robustmetric.data.files import Tree
from robustmetric.errors import InputError

LAYOUT = "2"
"""Part of every key: a change of layout, decoding or resizing makes old files unknown."""
PATIENCE = 3.0
"""Seconds of decoding before a progress bar appears."""
DAMAGE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    Image.DecompressionBombError,
)
"""What Pillow and zipfile raise on a file that is not the image it claims to be."""
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What sets an image upright, by its orientation (EXIF 2.32, tag 274); 1 is upright."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pixels:
    """The images that could be read; `is_readable` says which of those asked for they are."""

    images: UInt8[Tensor, "readable 3 size size"]
    sizes: Int[Tensor, "readable 2"]
    is_readable: Bool[Tensor, " asked"]


@dataclass(frozen=True)
class Cache:
    """A folder of decoded images."""

    folder: Path
    size: int
    skip_unreadable: bool = False
    upright: bool = False
    """Whether images are turned as their camera noted."""

    def load(self, tree: Tree, names: Sequence[str], label: str) -> Pixels:
        """The images of these names, decoded now or before; an unreadable one is an error unless they are skipped."""
        stem = f"{label}-{self.size}px-{self._key(tree, names)}"
        found = self._open(stem, len(names))
        if found is None:
            self._build(tree, names, stem)
            found = self._open(stem, len(names))
        if found is None:
            raise InputError(
                f"{self.folder / stem}.npy was written but cannot be read back; check the disk or set cache:"
            )
        images, sizes = found
        is_readable = sizes[:, 0] > 0
        if not is_readable.all() and not self.skip_unreadable:
            raise InputError(_unreadable(names[int(is_readable.argmin())]))
        # Readable images lie first: a slice is still a view of the file.
        count = int(is_readable.sum())
        return Pixels(
            images=torch.from_numpy(images[:count]),
            sizes=torch.from_numpy(sizes[is_readable]).long(),
            is_readable=torch.from_numpy(is_readable),
        )

    def _key(self, tree: Tree, names: Sequence[str]) -> str:
        turned = ":upright" if self.upright else ""
        digest = hashlib.sha256(f"{LAYOUT}{turned}:{self.size}:{tree.home.resolve()}".encode())
        for name in names:
            digest.update(f"\n{name}\t{tree.stamp(name)}".encode())
        return digest.hexdigest()[:16]

    def _open(self, stem: str, count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]] | None:
        """The memory map and the sizes, or None where there is none that is whole."""
        try:
            # Copy-on-write, because torch wants writable memory: nothing written to it reaches the file.
            images = np.load(self.folder / f"{stem}.npy", mmap_mode="c", allow_pickle=False)
            sizes = np.load(self.folder / f"{stem}.sizes.npy", allow_pickle=False)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError) as error:
            log.warning("%s is damaged (%s): decoding again", self.folder / f"{stem}.npy", error)
            return None
        shape = (count, 3, self.size, self.size)
        if images.shape != shape or images.dtype != np.uint8 or sizes.shape != (count, 2):
            log.warning("%s has another shape than expected: decoding again", self.folder / f"{stem}.npy")
            return None
        return images, sizes

    def _build(self, tree: Tree, names: Sequence[str], stem: str) -> None:
        """Decode all images into a .part file and rename it when it is whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        needed = len(names) * 3 * self.size**2
        free = shutil.disk_usage(self.folder).free
        # A memory map on a full disk dies by a signal, not by an exception; so ask first.
        if needed > free:
            raise InputError(
                f"decoded images need {needed / 2**30:.1f} GiB in {self.folder}, {free / 2**30:.1f} are free; "
                "set cache: to another folder"
            )
        # The process id keeps ranks that build the same cache out of each other's file; the last rename wins.
        partial = self.folder / f"{stem}.{os.getpid()}.part"
        sizes = np.zeros((len(names), 2), np.int32)
        try:
            images = np.lib.format.open_memmap(
                partial, mode="w+", dtype=np.uint8, shape=(len(names), 3, self.size, self.size)
            )
            self._decode_all(tree, names, images, sizes)
            _close_gaps(images, sizes)
            images.flush()
            del images
            _write_sizes(self.folder / f"{stem}.sizes.npy", sizes)
            partial.replace(self.folder / f"{stem}.npy")
        finally:
            partial.unlink(missing_ok=True)

    def _decode_all(
        self, tree: Tree, names: Sequence[str], images: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int32]
    ) -> None:
        def decode_one(row: int) -> None:
            try:
                images[row], sizes[row] = decode(tree.read(names[row]), self.size, upright=self.upright)
            except DAMAGE as error:
                if not self.skip_unreadable:
                    is_huge = isinstance(error, Image.DecompressionBombError)
                    raise InputError(_unreadable(names[row], is_huge)) from error

        # Pillow lets go of the interpreter lock while it decodes and resizes.
        pool = ThreadPoolExecutor(os.cpu_count() or 1)
        try:
            with _progress(len(names)) as advance:
                for _ in pool.map(decode_one, range(len(names))):
                    advance()
        finally:
            pool.shutdown(cancel_futures=True)


def decode(content: bytes, size: int, *, upright: bool = False) -> tuple[npt.NDArray[np.uint8], tuple[int, int]]:
    """An image file squashed to (3, size, size) bytes (bilinear, antialiased), and its own (height, width)."""
    image, _ = opaque(content, upright=upright)
    width, height = image.size
    if (width, height) != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1), (height, width)


def opaque(content: bytes, *, upright: bool = False) -> tuple[Image.Image, bool]:
    """An image file in RGB, at its own size; and whether it was turned, which `upright` asks for, as its camera noted.

    Not by `ImageOps.exif_transpose`: it writes the other notes anew, and raises what it likes where they are damaged.
    """
    with Image.open(BytesIO(content)) as image:
        image.load()  # which turns a TIFF, and takes its note away
        turn = TURNS.get(_orientation(image)) if upright else None
        coloured = _coloured(image)
    return (coloured, False) if turn is None else (coloured.transpose(turn), True)


def _orientation(image: Image.Image) -> int:
    """As the camera noted it; 1, which is upright, where it cannot be read: the pixels are there all the same."""
    try:
        noted = image.getexif().get(ExifTags.Base.Orientation, 1)
    except DAMAGE:
        return 1
    return noted if isinstance(noted, int) else 1


def _coloured(image: Image.Image) -> Image.Image:
    if image.mode[0] in "IF":
        return _in_bytes(image).convert("RGB")
    # Pillow warns of palettes with transparency unless the alpha is made explicit first.
    return (image.convert("RGBA") if image.mode in ("P", "PA") else image).convert("RGB")


def _in_bytes(image: Image.Image) -> Image.Image:
    """16-bit grey by its high byte, as Pillow reads 16-bit colour; `convert` would cut it at 255 and leave it white."""
    if not image.mode.startswith("I;16") and image.format not in ("PNG", "PPM"):
        raise ValueError(f"grey values of no known range (mode {image.mode}); expected 8 or 16 bits")
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def cache_folder(given: str | None, home: Path) -> Path:
    """The folder given, else `.cache` beside the data where that can be written, else the user's own cache."""
    if given is not None:
        folder = Path(given).expanduser()
        if not _is_writable(folder):
            raise InputError(f"the cache folder {folder} cannot be written; set cache: to one that can")
        return folder
    beside = home / ".cache"
    return beside if _is_writable(beside) else Path.home() / ".cache" / "robustmetric"


def _close_gaps(images: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int32]) -> None:
    """Move the readable images to the front, in order."""
    for target, row in enumerate(np.flatnonzero(sizes[:, 0])):
        if target != row:
            images[target] = images[row]


def _write_sizes(path: Path, sizes: npt.NDArray[np.int32]) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    with partial.open("wb") as file:
        np.save(file, sizes)
    partial.replace(path)


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _unreadable(name: str, is_huge: bool = False) -> str:
    why = "has more pixels than Pillow decodes" if is_huge else "cannot be read as an image"
    return (
        f"{name} {why}; replace it, or leave such files out with --skip-unreadable "
        "(in a recipe, data: {skip_unreadable: true}); `robustmetric data check` names them all"
    )


class _Bar:
    """Counts, and shows a bar on a terminal once the work has taken longer than `PATIENCE`."""

    def __init__(self, total: int) -> None:
        self.progress = Progress(console=Console(stderr=True), transient=True)
        self.task = self.progress.add_task("decoding images", total=total)
        self.started = time.monotonic()

    def __call__(self) -> None:
        self.progress.advance(self.task)
        if not self.progress.live.is_started and time.monotonic() - self.started > PATIENCE:
            self.progress.start()


@contextmanager
def _progress(total: int) -> Iterator[_Bar]:
    bar = _Bar(total)
    try:
        yield bar
    finally:
        # Stopping a bar that never started prints an empty line.
        if bar.progress.live.is_started:
            bar.progress.stop()
