"""Make the rows of a plan, several side by side on one GPU: train each, evaluate it, write its row of the ledger.

A plan has a row a line, `folder; as of train; as of evaluate; as of evaluate`:

    act-short; cub/mobilenet_v2-act epochs=15 optimiser.rate=3e-5 --fast; ers224 --batch 112 --queries 1000

What is finished is not run again and what was begun goes on, so a plan is called until it is done. Example:

    python benchmarks/rows.py benchmarks/plans/cub-full.txt --width 2 --seconds 3000 --ledger results/cub
"""

import argparse
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from robustmetric.errors import InputError
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.sweep import is_finished

GRACE = 20
"""Seconds that a process has to end by itself when the time is up."""


@dataclass(frozen=True)
class Row:
    """One line of a plan."""

    name: str
    train: list[str]
    suites: list[list[str]]


def read_plan(path: Path) -> list[Row]:
    """The rows of a plan; empty lines and those that begin with # are left out."""
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, *parts = [part.strip() for part in line.split(";")]
        if not name or not parts or not all(parts) or len(name.split()) != 1:
            raise InputError(f"{path}, line {number}: {line!r} is no row; expected 'folder; RECIPE ...; SUITE ...'")
        train, *suites = map(shlex.split, parts)
        rows.append(Row(name, train, suites))
    repeated = {row.name for row in rows if [other.name for other in rows].count(row.name) > 1}
    if repeated:
        raise InputError(f"{path}: {', '.join(sorted(repeated))} stands twice; expected a folder for each row")
    return rows


def commands(row: Row, home: Path, ledger: Path | None) -> Iterator[list[str]]:
    """What is left to do for a row, in turn; each is asked for when the one before has ended well."""
    folder = RunFolder(home / row.name)
    if not is_finished(folder):
        begun = ["--resume"] if folder.recipe.is_file() else []
        yield ["train", *row.train, "--out", str(folder.path), *begun]
    for suite in row.suites:
        yield ["evaluate", str(folder.path), *suite]
    if ledger is not None and row.suites:
        yield ["ledger", str(folder.path), "--out", str(ledger)]


class Pool:
    """Processes that share a machine until the time is up."""

    def __init__(self, home: Path, ledger: Path | None, until: float) -> None:
        self.home, self.ledger, self.until = home, ledger, until
        self.start, self.lock = time.monotonic(), Lock()
        home.mkdir(parents=True, exist_ok=True)

    def make(self, row: Row) -> bool:
        """All commands of a row; whether it came to its end."""
        for command in commands(row, self.home, self.ledger):
            if time.monotonic() >= self.until:
                self.say(f"{row.name}: no time is left for {command[0]}")
                return False
            begun, code = time.monotonic(), self.call(row, command)
            self.say(f"{row.name}: {' '.join(command[:3])}: {time.monotonic() - begun:.0f} s, exit code {code}")
            if code != 0:
                return False
        return True

    def call(self, row: Row, command: Sequence[str]) -> int:
        """The exit code of one command, whose output goes to `<folder>.log`; it is interrupted when the time is up."""
        with (self.home / f"{row.name}.log").open("a") as log:
            log.write(f"$ robustmetric {shlex.join(command)}\n")
            log.flush()
            words = [sys.executable, "-m", "robustmetric", *command]
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            try:
                return process.wait(max(0.0, self.until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            try:
                return process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()

    def say(self, text: str) -> None:
        """A line with the seconds since the start."""
        with self.lock:
            print(f"{time.monotonic() - self.start:6.0f}  {text}", flush=True)


def main() -> int:
    """Exit code 0 where every row is made, 1 where some are left, 2 for a plan that is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--width", type=int, default=2, help="rows at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to stop; call again to go on")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where the run folders and their logs go")
    parser.add_argument("--ledger", type=Path, help="also write each row here: results/cub")
    asked = parser.parse_args()
    try:
        rows = read_plan(asked.plan)
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    pool = Pool(asked.out, asked.ledger, time.monotonic() + asked.seconds)
    with ThreadPoolExecutor(asked.width) as threads:
        made = list(threads.map(pool.make, rows))
    pool.say(f"{sum(made)} of {len(rows)} rows made")
    return 0 if all(made) else 1


if __name__ == "__main__":
    sys.exit(main())
