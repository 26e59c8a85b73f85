"""What people see, and Ctrl-C at a safe point."""

import io
import os
import signal
import threading
import time

import pytest
from rich.console import Console

from robustmetric.jobs import progress
from robustmetric.jobs.progress import Bar, interruptible, say, terms, waiting


def test_loss_terms_fit_a_line() -> None:
    assert terms({"metric": 0.12345678, "structure": 12.0}) == "metric 0.1235  structure 12"


def test_a_line_is_not_wrapped_and_brackets_stay(capsys: pytest.CaptureFixture[str]) -> None:
    say("word " * 60 + "[bold]")
    assert capsys.readouterr().err == "word " * 60 + "[bold]\n"


def test_without_a_terminal_a_line_comes_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    with Bar("training", 10) as bar:
        bar.advance(note="metric 0.5")
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(time, "monotonic", lambda: now + 30)
        bar.advance(2)
    assert capsys.readouterr().err == "training: 3/10 metric 0.5\n"


def test_a_word_while_waiting_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal in (True, False):
        shown = Console(file=io.StringIO(), force_terminal=is_terminal)
        monkeypatch.setattr(progress, "console", shown)
        with waiting("looking at [my] table.csv"):
            pass
        assert isinstance(shown.file, io.StringIO)
        assert ("looking at [my] table.csv" in shown.file.getvalue()) is is_terminal


def test_other_ranks_are_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    with Bar("training", 10, shown=False) as bar:
        monkeypatch.setattr(time, "monotonic", lambda: now + 30)
        bar.advance()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_and_a_second_one_interrupts(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interruptible() as stop:
        assert not stop.asked
        os.kill(os.getpid(), number)
        assert stop.asked
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("shown", [True, False])
def test_who_asks_to_stop_is_told_at_once_that_the_step_ends_first(
    shown: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """A step of a large model on a CPU takes a minute; other ranks are silent."""
    with interruptible(shown):
        os.kill(os.getpid(), signal.SIGINT)
        assert ("stopping after this step; Ctrl-C again stops at once" in capfd.readouterr().err) is shown


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with interruptible() as stop:
            seen.append((stop.asked, signal.getsignal(signal.SIGINT) == before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]


def test_a_bar_is_told_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[str, int, int]] = []

    class Spy(progress.Bar):
        def advance(self, by: int = 1, note: str | None = None) -> None:
            moved.append((self._title, by, self._total))

    monkeypatch.setattr(progress, "Bar", Spy)
    with progress.told("fit") as tell:
        tell(2, 10)
        tell(5, 10)
    assert moved == [("fit", 2, 10), ("fit", 3, 10)]
    with progress.told("nothing"):
        pass
    assert len(moved) == 2
