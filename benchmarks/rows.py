"""Make the rows of a plan, several side by side on one GPU: train each, evaluate it, write its row of the ledger.

A plan has a row a line, `folder; as of train; as of evaluate; as of evaluate`:

    cub-est-short; cub/mobilenet_v2-est epochs=15 optimiser.rate=3e-5 --fast; ers224 --batch 112 --queries 1000

`--surrogate` names a row further up, whose model is waited for. A folder that stands again further down goes on with
more suites there, after the rows between. What is finished is not run again and what was begun
goes on, so a plan is called until it is done; Ctrl-C stops it like the end of its time. A row that finds no room in the
memory of the GPU waits for another to end, and from then on fewer run side by side. `--mps` lets them use the GPU at
the same time, by NVIDIA's Multi-Process Service, where they would take turns. Example:

    python benchmarks/rows.py benchmarks/plans/cub-full.txt --width 4 --mps --seconds 3000 --ledger results/cub
"""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Condition, Event, Lock
from typing import TextIO

from bound import bound
from mps import at_the_same_time
from planned import SURROGATE, USUAL_PRECISION, Row, choose, read_plan, sources
from robustmetric.errors import InputError
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.ledger import write_rows
from robustmetric.jobs.origin import typed
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.sweep import is_finished

GRACE = 20
"""Seconds that a process has to end by itself when the time is up, and that the row of a finished run still has."""
LOOK = 0.2
"""Seconds between two looks at a process and the time."""
BY_OPTIONS = ("attack_view", "update", "on_collapse")
"""Settings that options of `train` change too."""
NO_MEMORY = "CUDA out of memory"
DONE = "evaluated.txt"
"""In a run folder: the evaluations that have ended well, a command a line."""


def commands(row: Row, home: Path, ledger: Path | None) -> Iterator[list[str]]:
    """What is left to do for a row, in turn; each is asked for when the one before has ended well."""
    folder = RunFolder(home / row.name)
    if is_finished(folder):
        _check_settings(row, folder)
    else:
        begun = ["--resume"] if folder.recipe.is_file() else []
        yield ["train", *row.train, "--out", str(folder.path), *begun]
    done = folder.path / DONE
    for suite in row.suites:
        placed = [str(home / word) if before == SURROGATE else word for before, word in pairwise(["", *suite])]
        command = ["evaluate", str(folder.path), *placed]
        # `evaluate` would find nothing to do, but only after loading the model and the data.
        if not done.is_file() or shlex.join(command) not in done.read_text().splitlines():
            yield command
            with done.open("a") as file:
                file.write(f"{shlex.join(command)}\n")
    if ledger is not None and row.suites:
        yield ["ledger", str(folder.path), "--out", str(ledger)]


def _going_on(command: Sequence[str]) -> list[str]:
    """The same command once more, where it may have left something behind; `evaluate` goes on by itself."""
    begun = command[0] == "train" and RunFolder(Path(command[command.index("--out") + 1])).recipe.is_file()
    return [*(word for word in command if word != "--resume"), *(["--resume"] if begun else [])]


def _write_down(run: Path, ledger: Path, log: TextIO) -> int:
    """The row of a run, as `robustmetric ledger` writes it; here, since another process would import torch for it."""
    try:
        log.write("".join(f"{path}\n" for path in write_rows([run], ledger)))
    except InputError as error:
        log.write(f"{error}\n")
        return 2
    return 0


def _check_settings(row: Row, folder: RunFolder) -> None:
    """Refuse a finished training of another line, whose numbers would pass for those of this one."""
    old, new = folder.read_recipe(), row.resolve()
    said = {word.partition("=")[0] for word in row.train}
    compared = [key for key in {**old, **new} if key not in BY_OPTIONS or key in said]
    changed = [key for key in compared if old.get(key) != new.get(key)]
    (train, *_) = typed(json.loads(folder.summary.read_text())["command"])
    if row.precision not in (None, train.options.get("precision", USUAL_PRECISION)):
        changed.append("precision")
    if changed:
        raise InputError(
            f"{folder.path} was made with other settings for {', '.join(map(repr, changed))}; expected those of the "
            "plan: give the row another name, or remove the folder"
        )


@dataclass(eq=False)
class Place:
    """That of one command on the machine, and whether another was ever beside it."""

    is_shared: bool = False


class Pool:
    """Processes that share a machine until the time is up."""

    def __init__(self, home: Path, ledger: Path | None, until: float) -> None:
        self.home, self.ledger, self.until = home, ledger, until
        self.start, self.lock = time.monotonic(), Lock()
        self.trained: dict[str, Event] = {}
        self.turns: dict[str, Lock] = {}
        self.room, self.inside, self.places = Condition(), list[Place](), 1
        home.mkdir(parents=True, exist_ok=True)

    def run(self, rows: Sequence[Row], width: int, others: Sequence[Row] = ()) -> list[bool]:
        """All rows, `width` at a time and in their order; which of them came to their end. Nobody waits for others."""
        for other in others:
            self._told(other.name).set()
        self.places = width
        with ThreadPoolExecutor(width) as threads:
            return list(threads.map(self.make, rows))

    def make(self, row: Row) -> bool:
        """All commands of a row; whether it came to its end."""
        try:
            with self.turns.setdefault(row.name, Lock()):  # one line of a folder after the other
                return self._make(row)
        except (InputError, OSError) as error:
            self.say(f"{row.name}: {error}")
            return False
        finally:
            self._told(row.name).set()  # also where it failed: nobody waits for it any longer

    def _make(self, row: Row) -> bool:
        for command in commands(row, self.home, self.ledger):
            if not self._step(row, command):
                if command[0] == "evaluate" and self.ledger is not None:
                    # What the suites before it, and its own first attacks, have measured is a row already.
                    self._step(row, ["ledger", command[1], "--out", str(self.ledger)])
                return False
        return True

    def _step(self, row: Row, command: Sequence[str]) -> bool:
        """One command of a row; whether it ended well."""
        if command[0] != "train":
            self._told(row.name).set()
        for source in map(Path, sources(command)):
            if not self._has(source):
                self.say(f"{row.name}: {source.name}, to climb on, is not trained")
                return False
        with self._place() as place:
            if self._is_over_for(command):
                self.say(f"{row.name}: no time is left for {command[0]}")
                return False
            begun, code = time.monotonic(), self.call(row, command)
            why = self._last_words(row) if code else ""
            self.say(f"{row.name}: {' '.join(command[:3])}: {time.monotonic() - begun:.0f} s, exit code {code}{why}")
            if NO_MEMORY not in why or not self._closes_up(place):
                return code == 0
        return self._step(row, _going_on(command))

    @contextmanager
    def _place(self) -> Iterator[Place]:
        """One of the places side by side, waited for where memory has left fewer than there are rows."""
        place = Place()
        with self.room:
            while len(self.inside) >= self.places and not self._is_over:
                self.room.wait(LOOK)
            self.inside.append(place)
            for each in self.inside:
                each.is_shared |= len(self.inside) > 1
        try:
            yield place
        finally:
            with self.room:
                self.inside.remove(place)
                self.room.notify_all()

    def _closes_up(self, place: Place) -> bool:
        """Go on with fewer side by side than were too many; False where all memory was one's own and did not do."""
        with self.room:
            if place.is_shared:
                were, self.places = len(self.inside), max(1, min(self.places, len(self.inside)) - 1)
                self.say(f"the memory is full with {were}: {self.places} at a time from here on")
            return place.is_shared

    def call(self, row: Row, command: Sequence[str]) -> int:
        """The exit code of one command, whose output goes to `<folder>.log`; it is interrupted when the time is up."""
        with self._log(row).open("a") as log:
            log.write(f"$ robustmetric {shlex.join(command)}\n")
            log.flush()
            if command[0] == "ledger":
                return _write_down(Path(command[1]), Path(command[-1]), log)
            words = bound(["-m", "robustmetric", *command])
            # In a session of its own: Ctrl-C reaches it once, through us. A second one would not let it save its state.
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            while process.poll() is None and not self._is_over_for(command):
                time.sleep(LOOK)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                return process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()

    def stop(self, *_: object) -> None:
        """The time is up."""
        self.until = float("-inf")

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self.until

    def _is_over_for(self, command: Sequence[str]) -> bool:
        """Writing a row takes seconds, and without it a run that was paid for is in no table."""
        return time.monotonic() >= self.until + (GRACE if command[0] == "ledger" else 0)

    def _told(self, name: str) -> Event:
        """Set when the training of a row has come to an end, good or bad."""
        return self.trained.setdefault(name, Event())

    def _has(self, folder: Path) -> bool:
        """Whether another row's model is there, once that is known."""
        while not self._told(folder.name).wait(LOOK) and not self._is_over:
            pass
        return is_finished(RunFolder(folder))

    def _log(self, row: Row) -> Path:
        return self.home / f"{row.name}.log"

    def _last_words(self, row: Row) -> str:
        """Why a command failed: the last line it wrote that is more than a frame, behind a colon."""
        said = self._log(row).read_text(errors="replace").rpartition("$ robustmetric ")[2].splitlines()[1:]
        return next((f": {line.strip(' │')}" for line in reversed(said) if any(map(str.isalnum, line))), "")

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
    parser.add_argument(
        "--only", nargs="+", metavar="FOLDER", help="these rows of the plan, in its order; default: all"
    )
    parser.add_argument("--mps", action="store_true", help="rows at a time share the GPU by NVIDIA's service")
    parser.add_argument("--ledger", type=Path, help="also write each row here: results/cub")
    asked = parser.parse_args()
    if asked.width < 1:
        parser.error(f"--width {asked.width} is no number of rows; expected 1 or more")
    if not asked.seconds >= 0:
        parser.error(f"--seconds {asked.seconds} is no time; expected 0 or more")
    try:
        rows, others = choose(read_plan(asked.plan), asked.only)
        for row in rows:
            row.resolve()
            for suite in row.suites:
                load_suite(suite[0], surrogate=next(iter(sources(suite)), None))
    except (InputError, OSError, UnicodeDecodeError) as error:
        print(error, file=sys.stderr)
        return 2
    pool = Pool(asked.out, asked.ledger, time.monotonic() + asked.seconds)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pool.stop)
    with at_the_same_time() if asked.mps else nullcontext() as shared:
        if shared:
            pool.say(shared)
        made = pool.run(rows, asked.width, others)
    pool.say(f"{sum(made)} of {len(rows)} rows made")
    return 0 if all(made) else 1


if __name__ == "__main__":
    sys.exit(main())
