"""NVIDIA's Multi-Process Service: processes that share a GPU run on it at the same time instead of in turns."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
"""By which processes find the service, and where it writes."""
SECONDS = 20
"""That it has to begin, and to end; processes that are still there after half of them are not waited for."""


@contextmanager
def at_the_same_time() -> Iterator[str]:
    """A service for the processes begun inside, and what became of it in words; one that runs already is used."""
    control = shutil.which(CONTROL)
    if PIPES in os.environ:
        yield f"the service at {os.environ[PIPES]} is used"
    elif control is None:
        yield f"{CONTROL} is not here: processes take turns on the GPU"
    else:
        with TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
            before = os.environ.get(LOGS)
            os.environ |= {PIPES: folder, LOGS: folder}
            fault = _told(control, Path(folder), "-d")
            try:
                if fault:
                    del os.environ[PIPES]
                yield f"{CONTROL} failed ({fault}): processes take turns on the GPU" if fault else "the GPU is shared"
            finally:
                if not fault:
                    _told(control, Path(folder), said=f"quit -t {SECONDS // 2}\n")
                    del os.environ[PIPES]
                os.environ.pop(LOGS)
                os.environ |= {} if before is None else {LOGS: before}


def _told(control: str, folder: Path, *words: str, said: str = "") -> str:
    """Why the program did not do as it was told; nothing where it did."""
    # Into a file: a service that goes on would keep a pipe open, and we should wait for its end.
    with (folder / "control.txt").open("w+") as answer:
        try:
            done = subprocess.run(
                [control, *words], input=said, stdout=answer, stderr=answer, text=True, timeout=SECONDS
            )
        except OSError as error:
            return str(error)
        except subprocess.TimeoutExpired:
            return f"no answer in {SECONDS} s"
        answer.seek(0)
        return "" if not done.returncode else answer.read().strip() or f"exit code {done.returncode}"
