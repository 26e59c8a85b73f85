"""Verify of the block `masking`: every check again, on the same images, word by word."""

from collections.abc import Collection, Iterator

from robustmetric.jobs.agreement import Check, judged
from robustmetric.jobs.diagnose import run_masking
from robustmetric.jobs.verify_model import Again, Part, seed_of, suite_at
from robustmetric.report.masking_flag import NOT_RUN, VERDICTS, WORDS, masking_block

BLOCK = "masking"
ENOUGH = 100
"""Images, where not all is the same: checks pass below 5 points and fail from 10 on, which a few images must not be."""
TRANSFERRED = ("black_box", "worst_case", "verdict")
"""What hangs on another model, where one was attacked: its weights are not at hand."""
DRAWN_AFTER = ("gradient_free", "hard_label")
"""What begins from other random numbers without that attack, which draws some too."""


def names(again: Again) -> list[str]:
    """The suite, where the row has its verdicts."""
    return [BLOCK] if BLOCK in again.row and again.by(BLOCK) else []


def masking(again: Again, chosen: Collection[str]) -> Part:
    """The verdicts on a row's model: which images they are of follows from its commands."""
    if BLOCK not in again.row:
        return Part()
    if not names(again):
        return Part(left_out=[f"{BLOCK} (no command of the row measures it by a suite we ship)"])
    if not again.is_whole:
        return Part(left_out=[f"{BLOCK} (of a sample it would be about other images: leave out --queries)"])
    if BLOCK not in chosen:
        return Part(left_out=[BLOCK])
    if not _is_same(again) and again.row[BLOCK]["images"] < ENOUGH:
        return Part(left_out=[f"{BLOCK} (of fewer than {ENOUGH} images: needs the row's own weights and hardware)"])
    source = again.by(BLOCK)[-1].options.get("surrogate")
    checks = list(_checks(again, source))
    done = {check.name for check in checks}
    asked = [name for name, word in again.row[BLOCK]["checks"].items() if word != NOT_RUN]
    missing = [name for name in (*asked, "verdict") if _title(name) not in done]
    return Part(checks, [f"{_title(name)} ({_why(name, source)})" for name in missing])


def _checks(again: Again, source: str | None) -> Iterator[Check]:
    block, command = again.row[BLOCK], again.by(BLOCK)[-1]
    arena, suite = again.arena(command), suite_at(BLOCK, block["radius"])
    found = masking_block(run_masking(arena, suite, seed_of(command), {}))
    assert found is not None  # every trial of the suite ends in a verdict
    count, is_same = found["images"], _is_same(again)
    yield Check(_title("images"), float(block["images"]), float(count), (float(count), float(count)), count)
    for name, word in block["checks"].items():
        both = {word, found["checks"].get(name, NOT_RUN)}
        if NOT_RUN not in both and (source is None or name not in TRANSFERRED):
            alike = is_same and (source is None or name not in DRAWN_AFTER)
            yield judged(_title(name), word, found["checks"][name], WORDS, count, is_same=alike)
    if source is None:
        yield judged(_title("verdict"), block["verdict"], found["verdict"], VERDICTS, count, is_same=is_same)


def _why(name: str, source: str | None) -> str:
    if source is not None and name in TRANSFERRED:
        return f"an attack climbed on {source}"
    return "the suite we ship does not make it"


def _is_same(again: Again) -> bool:
    return again.is_on_like_hardware and not again.model.is_copy


def _title(name: str) -> str:
    return f"{BLOCK}, {name}"
