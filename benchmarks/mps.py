"""NVIDIA's Multi-Process Service: processes that share a GPU run on it at the same time instead of in turns."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

CONTROL = "nvidia-cuda-mps-control"
PLACES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
"""By which processes find the service."""
SECONDS = 20
"""That it has to begin, and to end."""


@contextmanager
def at_the_same_time() -> Iterator[str]:
    """A service for the processes begun inside, and what became of it in words; one that runs already is used."""
    if PLACES[0] in os.environ:
        yield f"the service at {os.environ[PLACES[0]]} is used"
        return
    control = shutil.which(CONTROL)
    if control is None:
        yield f"{CONTROL} is not here: processes take turns on the GPU"
        return
    with TemporaryDirectory(prefix="mps-") as folder:
        os.environ |= dict.fromkeys(PLACES, folder)
        try:
            begun = subprocess.run([control, "-d"], capture_output=True, text=True, timeout=SECONDS)
            if begun.returncode:
                for place in PLACES:
                    del os.environ[place]
                yield f"{CONTROL} failed ({begun.stderr.strip() or begun.returncode}): processes take turns on the GPU"
            else:
                yield "processes share the GPU at the same time"
        finally:
            if PLACES[0] in os.environ:
                subprocess.run([control], input="quit\n", capture_output=True, text=True, timeout=SECONDS)
                for place in PLACES:
                    del os.environ[place]
