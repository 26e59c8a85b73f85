"""Records: every result is one JSON line with what it takes to repeat it. No torch here, so that reports stay light."""

import functools
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from robustmetric.errors import InputError

PACKAGES = ("robustmetric", "torch", "torchvision", "timm", "lightning", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Record:
    """One measured result: what was run, on what, and the numbers that came out."""

    kind: str
    """`train` (one epoch), `validation` (clean retrieval seen while training), `clean` (no attack), or `attack`."""
    name: str
    """What was run: `clean`, `ES`, `CA+`, ..."""
    scores: dict[str, float]
    """Rates in percent, distances and cosines as they are."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Enough to run it again: the attack, its engine, the radius, the protocol."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """95 % intervals over queries, by score: by bootstrap, or exact where all are right, or all wrong."""
    count: int = 0
    """Queries (or training images) behind the numbers."""
    seconds: float = 0.0
    seed: int = 0
    context: dict[str, Any] = field(default_factory=dict)
    """Commit, package versions and hardware: see `context()`."""

    @property
    def key(self) -> str:
        """What makes two records the same work: name and settings. A finished key is not run again."""
        return f"{self.kind}:{self.name}:{json.dumps(self.settings, sort_keys=True)}:{self.seed}"


def append(path: Path, record: Record) -> None:
    """Add one line and make sure it is on disk before going on."""
    with held(path) as file:
        write(file, record)


@contextmanager
def held(path: Path) -> Iterator[BinaryIO]:
    """A file of records, made if need be, its lines whole: for as long, whoever else would add to it waits.

    So do processes on one machine, and on a network disk that has locks; elsewhere, as on Windows, nobody waits.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:  # closing it lets go of the lock
        _lock(file)
        _mend(file)
        yield file


def write(file: BinaryIO, record: Record) -> None:
    """Add one line to a file that is held, and make sure it is on disk."""
    file.write(json.dumps(asdict(record)).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def _lock(file: BinaryIO) -> None:
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


def _mend(file: BinaryIO) -> None:
    """Take away a last line that a crash cut short, so that the next record does not grow onto it."""
    file.seek(0)
    content = file.read()
    last = content.rpartition(b"\n")[2]
    if not last:
        return
    try:
        json.loads(last)
    except ValueError:
        file.truncate(len(content) - len(last))
    else:
        file.write(b"\n")


def read(path: Path) -> list[Record]:
    """All whole records of a `results.jsonl`; a last line cut short by a crash is passed over."""
    if path.parent.is_file():
        raise InputError(
            f"{path.parent} is a file; expected a run folder, such as `robustmetric unpack` makes of a row"
        )
    if not path.is_file():
        raise InputError(f"{path} does not exist; run `robustmetric evaluate` on the run first")
    lines = path.read_bytes().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
        except ValueError as error:  # no JSON, or no text at all
            if number == len(lines):
                break
            raise InputError(f"{path}, line {number}: not a JSON record") from error
        try:
            fields["intervals"] = {k: tuple(v) for k, v in fields.get("intervals", {}).items()}
            records.append(Record(**fields))
        except (AttributeError, TypeError) as error:
            raise InputError(f"{path}, line {number}: not a record of this version ({error})") from error
    return records


def latest(records: Iterable[Record]) -> list[Record]:
    """One record per key, the newest, in order of first appearance."""
    by_key: dict[str, Record] = {}
    for record in records:
        by_key[record.key] = record
    return list(by_key.values())


def validated_on(records: Iterable[Record]) -> set[str]:
    """Fingerprints of the data that a run was measured on as it trained: its recipe's own."""
    found = (record.settings.get("data_fingerprint") for record in records if record.kind == "validation")
    return {str(fingerprint) for fingerprint in found if fingerprint}


def is_bounded(settings: Mapping[str, Any]) -> bool:
    """Whether an attack kept to its radius: a local search that is not clipped does not."""
    inner = settings.get("runs")  # of an engine that runs another
    return bool(settings.get("clipped", True)) and (inner is None or is_bounded(inner))


def context(hardware: str) -> dict[str, Any]:
    """Commit, versions, Python and hardware of this process."""
    return {"commit": commit(), "versions": dict(versions()), "python": platform.python_version(), "hardware": hardware}


@functools.cache
def commit() -> str:
    """The commit the package was run from, with `+` if the tree had changes; `release <version>` outside a checkout."""
    here = Path(__file__).resolve().parent
    root = here.parents[1]
    git = ["git", "-C", str(root)]
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, text=True)
        if tracked.returncode == 0:
            sha = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
            dirty = subprocess.run([*git, "status", "--porcelain", "src", "recipes"], capture_output=True, text=True)
            return sha + ("+" if dirty.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        pass
    return f"release {dict(versions()).get('robustmetric', 'unknown')}"


@functools.cache
def versions() -> tuple[tuple[str, str], ...]:
    """Installed versions of the packages that can change a number."""
    found = []
    for package in PACKAGES:
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a small JSON file whole or not at all."""
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_text(json.dumps(value, indent=2) + "\n")
    partial.replace(path)
