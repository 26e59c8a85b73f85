"""Commands that are interrupted when the process that began them is gone, however it went (on Linux; elsewhere not)."""

import signal
import sys
from collections.abc import Sequence

# PR_SET_PDEATHSIG is 1; it stays with a process through exec. Set by the command itself, since a function that runs
# between fork and exec may wait for ever where there are threads.
BEFORE = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, int(sys.argv[1])); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)


def bound(words: Sequence[str]) -> list[str]:
    """The command line that runs Python with these words until they end, or the thread that began them does."""
    if sys.platform != "linux":
        return [sys.executable, *words]
    return [sys.executable, "-c", BEFORE, str(int(signal.SIGINT)), *words]
