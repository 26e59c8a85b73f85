"""Files by name, wherever they lie: a plain folder, or zips read in place (several may make up one set)."""

import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path

from robustmetric.errors import InputError

IMAGES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})


class Tree(ABC):
    """A set of files, read by name. Names use forward slashes."""

    home: Path
    """The folder that holds it, where a cache may go."""
    names: tuple[str, ...]
    """Every file, hidden ones left out: sorted in a folder, in stored order in a zip."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of one file."""

    @abstractmethod
    def stamp(self, name: str) -> str:
        """Changes when the file does."""

    def images(self) -> list[str]:
        """The names that look like images."""
        # Not by pathlib, whose objects take longer to make than a directory of 60,000 images to read.
        return [name for name in self.names if os.path.splitext(name)[1].lower() in IMAGES]

    def find(self, tail: str) -> str | None:
        """The file called `tail`, or ending in `/tail` below some top folder; the one nearest the top."""
        found = [name for name in self.names if name == tail or name.endswith("/" + tail)]
        return min(found, key=len, default=None)

    def lines(self, name: str) -> list[str]:
        """The lines of a text file that are not blank."""
        try:
            text = self.read(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{name}: not a UTF-8 text file") from error
        return [line.strip() for line in text.splitlines() if line.strip()]


class FolderTree(Tree):
    """The files under a folder; links to folders are followed, once."""

    def __init__(self, path: Path) -> None:
        self.home = path
        seen: set[str] = set()
        names: list[str] = []
        for where, folders, files in os.walk(path, followlinks=True):
            real = os.path.realpath(where)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
            prefix = Path(where).relative_to(path)
            names.extend((prefix / file).as_posix() for file in files if not file.startswith("."))
        self.names = tuple(sorted(names))

    def read(self, name: str) -> bytes:
        return (self.home / name).read_bytes()

    def stamp(self, name: str) -> str:
        status = (self.home / name).stat()
        return f"{status.st_size}:{status.st_mtime_ns}"


class ZipTree(Tree):
    """The files of one or more zips; a name in two of them is read from the first."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.home = paths[0].parent
        self._archives: dict[str, tuple[zipfile.ZipFile, str]] = {}
        for path in paths:
            try:
                archive = zipfile.ZipFile(path)
            except (OSError, zipfile.BadZipFile) as error:
                raise InputError(f"{path} cannot be read as a zip ({error}); fetch it again") from error
            of_zip = f"{path.resolve()}:{path.stat().st_mtime_ns}"
            for entry in archive.infolist():
                if not entry.is_dir() and not _is_hidden(entry.filename):
                    stamp = f"{of_zip}:{entry.CRC}:{entry.file_size}"
                    self._archives.setdefault(entry.filename, (archive, stamp))
        self.names = tuple(self._archives)

    def read(self, name: str) -> bytes:
        return self._archives[name][0].read(name)

    def stamp(self, name: str) -> str:
        return self._archives[name][1]


def open_tree(paths: Iterable[Path]) -> Tree:
    """A folder, or one or more zips, as one tree."""
    places = list(paths)
    if len(places) == 1 and places[0].is_dir():
        return FolderTree(places[0])
    for place in places:
        if place.suffix.lower() != ".zip" and not zipfile.is_zipfile(place):
            raise InputError(f"{place} is neither a folder nor a zip; name the folder of the images, or a zip of it")
    return ZipTree(places)


def find_tree(root: Path, folders: Sequence[str], zips: Sequence[str], markers: Sequence[str], expected: str) -> Tree:
    """The data at `root`: a zip, or a folder (or sub-folder) that holds one of `markers` or zips by these patterns."""
    if root.is_file():
        return open_tree([root])
    if not root.is_dir():
        raise InputError(f"{root} does not exist; {expected}")
    named = [root / folder for folder in folders if (root / folder).is_dir()]
    # Unpacking often leaves one folder of the same name inside another.
    inner = [child for place in named for child in sorted(place.iterdir()) if child.is_dir()]
    for place in (*named, root, *inner):
        if any((place / marker).exists() for marker in markers):
            return open_tree([place])
        archives = sorted({path for pattern in zips for path in place.glob(pattern)})
        if archives:
            return open_tree(archives)
    raise InputError(f"{root} does not hold this data; {expected}")


def _is_hidden(name: str) -> bool:
    return any((part.startswith(".") and part != ".") or part == "__MACOSX" for part in name.split("/"))
