"""What people see while a job runs: a bar on a terminal, a line now and then elsewhere; Ctrl-C ends at a safe point."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

console = Console(stderr=True)
STOPPING = b"\nstopping after this step; Ctrl-C again stops at once, and what came after the last save is lost\n"
"""Said at once: a step may take a minute, and who sees nothing asks a second time."""


def say(text: str) -> None:
    """One line on standard error, as it is: not wrapped in a log, brackets not read as markup."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


class Bar:
    """A progress bar with a free text behind it; silent when `shown` is false (ranks other than the first)."""

    def __init__(self, title: str, total: int, done: int = 0, shown: bool = True) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not shown or not console.is_terminal,
            transient=True,
        )
        self._lines = shown and not console.is_terminal
        self._title, self._total, self._done = title, total, done
        self._task = self._progress.add_task(title, total=total, completed=done, note="")
        self._said = time.monotonic()
        self._note = ""

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, by: int = 1, note: str | None = None) -> None:
        """Move on; without a terminal, say so every 20 s."""
        self._done += by
        self._note = self._note if note is None else note
        self._progress.update(self._task, advance=by, note=self._note)
        if self._lines and time.monotonic() - self._said > 20:
            self._said = time.monotonic()
            say(f"{self._title}: {self._done}/{self._total} {self._note}")


@contextmanager
def told(title: str) -> Iterator[Callable[[int, int], None]]:
    """A function that is told how many parts are done and of how many: a bar from the first call on."""
    bars: list[Bar] = []
    seen = 0

    def tell(done: int, total: int) -> None:
        nonlocal seen
        if not bars:
            bars.append(Bar(title, total).__enter__())
        bars[0].advance(done - seen)
        seen = done

    try:
        yield tell
    finally:
        for bar in bars:
            bar.__exit__()


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """While something runs whose steps are not counted: a word on a terminal, gone when it is done."""
    if not console.is_terminal:
        yield
        return
    with console.status(escape(text)):
        yield


def terms(values: Mapping[str, float]) -> str:
    """Loss terms in a line: `metric 0.1234`."""
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


class Stop:
    """Whether somebody asked to stop."""

    asked = False


@contextmanager
def interruptible(shown: bool = True) -> Iterator[Stop]:
    """Ctrl-C (or SIGTERM) sets `asked`, to be looked at between steps, and says so; a second one interrupts at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        if shown:
            # Not by the console: the signal may come in the middle of what is printed there.
            os.write(2, STOPPING)

    old = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
