"""How tests speak to the command line: in this process, where a user's process is not the point."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PARTS = Path(__file__).parent / "jobs"
"""The folder of `own_parts.py`, which stands for a user's own file."""


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on standard error of a command that failed on its input."""
        lines = self.err.splitlines()
        assert self.code == 2, self
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: "), self.err
        assert "Traceback" not in self.err
        return lines[0]


Command = Callable[..., Result]


def environment(**changes: str) -> dict[str, str]:
    """The environment of a process of its own: one thread, our own parts importable, no data folder."""
    kept = {key: value for key, value in os.environ.items() if key != "ROBUSTMETRIC_DATA"}
    path = os.pathsep.join(filter(None, [str(PARTS), os.environ.get("PYTHONPATH")]))
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COLUMNS": "120", **changes}


def start(folder: Path, *words: object) -> subprocess.Popen[str]:
    """The command in a process of its own, working in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "robustmetric", *map(str, words)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = 120) -> Result:
    """Wait for the process; it is ended when it takes longer."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    return Result(process.returncode, out, err)
