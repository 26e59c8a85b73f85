"""Fetching ahead: in order, no further than asked, over when its reader is; and the time that is waited for it."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from commands import Command
from robustmetric import recipe, records
from robustmetric.jobs import loading
from robustmetric.jobs.loading import AHEAD, Pinned, Raw, Wait, ahead
from robustmetric.jobs.train import train


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loading")]


def slow_square(number: int) -> int:
    time.sleep(0.01)
    return number * number


def epochs(run: Path) -> list[records.Record]:
    return [record for record in records.read(run / "results.jsonl") if record.kind == "train"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
def test_items_come_in_order_and_the_thread_ends_with_the_last(count: int) -> None:
    assert list(ahead(slow_square, range(count))) == [number * number for number in range(count)]
    assert not threads()


def test_the_next_items_are_fetched_while_one_is_used_and_no_more() -> None:
    begun: list[int] = []
    reached = threading.Event()

    def note(number: int) -> int:
        begun.append(number)
        if number == AHEAD:
            reached.set()
        return number

    stream = ahead(note, range(10))
    assert next(stream) == 0
    assert reached.wait(5), "fetched without being asked for"
    time.sleep(0.02)
    assert begun == list(range(AHEAD + 1))
    stream.close()
    assert not threads()


def test_an_error_is_raised_as_it_is_after_what_came_before_it() -> None:
    problem = OSError("the disk went away")

    def fetch(number: int) -> int:
        if number == 2:
            raise problem
        return number

    seen = []
    with pytest.raises(OSError, match="the disk went away") as caught:
        for number in ahead(fetch, range(10)):
            seen.append(number)
    assert caught.value is problem and seen == [0, 1]
    assert not threads()


def test_a_loop_left_early_ends_the_thread_and_fetches_nothing_more() -> None:
    begun: list[int] = []

    def note(number: int) -> int:
        begun.append(number)
        return slow_square(number)

    stream = ahead(note, range(100))
    for _ in Wait().on(stream):
        break
    assert not threads() and len(begun) <= AHEAD + 1
    assert list(stream) == [], "closed, though it is still at hand"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_the_loop_ends_the_thread_though_the_traceback_is_kept(error: type[BaseException]) -> None:
    def steps() -> Iterator[int]:
        for number in Wait().on(ahead(slow_square, range(100))):
            yield number
            if number == 4:
                raise error

    with pytest.raises(error) as kept:
        for _ in steps():
            assert threads()
    assert kept.tb is not None and not threads()


@pytest.mark.parametrize(("step", "is_waited_for"), [(0.0, True), (0.05, False)])
def test_the_share_waited_is_that_of_the_data(step: float, is_waited_for: bool) -> None:
    wait = Wait()
    for _ in wait.on(ahead(slow_square, range(15))):
        time.sleep(step)
    # Fetching takes 15 x 10 ms; beside steps of 50 ms only the first fetch is seen: 10 of 760 ms. A busy machine makes
    # both sides slower, so the line between them is in the middle.
    assert (wait.share > 0.5) is is_waited_for


def test_waiting_without_a_thread_is_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(loading, "time", SimpleNamespace(monotonic=lambda: now))

    def after(seconds: float) -> None:
        nonlocal now
        now += seconds

    wait = Wait()
    for _ in wait.on(after(0.01) for _ in range(5)):
        after(0.03)
    # 5 x 10 ms waited, 5 x 30 ms worked: 50 / 200 = 1/4.
    assert wait.seconds == pytest.approx(0.05) and wait.share == pytest.approx(0.25)


def test_an_epoch_records_the_share_it_waited(trained: Path) -> None:
    (epoch,) = epochs(trained)
    assert 0 < epoch.scores["data_wait"] < 1
    assert not threads()


def test_after_a_resume_the_share_is_that_of_the_rest_of_the_epoch(tmp_path: Path) -> None:
    run = train("digits/plain", ["epochs=1"], tmp_path / "run")
    state = torch.load(run / "state.pt", weights_only=True)
    torch.save({**state, "epoch": 0, "step": 3, "seconds": 1e6, "data_wait": 0.99}, run / "state.pt")
    train("digits/plain", ["epochs=1"], run, resume=True)
    # The million seconds before the resume would make it 0.000...; the old share alone 0.99.
    assert 1e-6 < epochs(run)[-1].scores["data_wait"] < 0.9


def test_a_slow_defence_does_not_wait_for_data_and_a_failing_one_leaves_no_thread(
    tmp_path: Path, command: Command
) -> None:
    base = f"base: {recipe.shelf() / 'digits' / 'plain.yaml'}\nepochs: 1\n"
    inner = "{name: plain, loss: {name: triplet, miner: {name: semihard}}}"
    slow, broken = tmp_path / "slow.yaml", tmp_path / "broken.yaml"
    slow.write_text(f"{base}defence: {{name: own_parts.Signalled, at: -1, pause: 0.03, inner: {inner}}}\n")
    broken.write_text(f"{base}defence: {{name: own_parts.Broken, at: 4}}\ncheckpoint_seconds: 0\n")
    assert command("train", slow, "--out", "slow").code == 0
    assert epochs(tmp_path / "slow")[0].scores["data_wait"] < 0.2
    assert "NaN or infinite" in command("train", broken, "--out", "broken").error
    assert not threads()


@pytest.mark.gpu
def test_a_pinned_buffer_is_reused_only_when_its_copy_is_over() -> None:
    source = (torch.arange(200) % 256).byte()[:, None].repeat(1, 100_000)
    rows = [torch.arange(4 * step, 4 * step + 4) for step in range(50)]
    fetch = Pinned(source, torch.device("cuda"), largest=4)
    with torch.cuda.stream(fetch.stream):
        torch.cuda._sleep(200_000_000)  # cycles: about a tenth of a second in which no copy begins
    found = [raw.settled() for raw in ahead(fetch, rows)]
    for raw, expected in zip(found, rows, strict=True):
        assert torch.equal(raw.rows.cpu(), expected)
        assert raw.inputs is not None and torch.equal(raw.inputs.cpu(), source[expected])


@pytest.mark.gpu
def test_memory_is_not_reused_while_a_late_reader_needs_it() -> None:
    source = (torch.arange(200) % 256).byte()[:, None].repeat(1, 100_000)
    rows = [torch.arange(4 * step, 4 * step + 4) for step in range(50)]
    sums = []
    torch.cuda._sleep(200_000_000)  # the readers below run long after their batches were let go of
    for raw in ahead(Pinned(source, torch.device("cuda"), largest=4), rows):
        inputs = raw.settled().inputs
        assert inputs is not None
        sums.append(inputs[:, 0].long().sum() + inputs[:, -1].long().sum())
        del raw, inputs
    assert [int(value) for value in sums] == [2 * int(source[some, 0].long().sum()) for some in rows]


def test_a_batch_without_a_copy_is_settled_as_it_is() -> None:
    raw = Raw(torch.arange(2), torch.zeros(2, 3))
    assert raw.settled() is raw
