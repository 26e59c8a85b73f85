"""Small image trees in the official layouts."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Paint = Callable[..., Path]


@pytest.fixture
def paint() -> Paint:
    """Write an image of one colour, told apart by `shade`; its folder is made."""

    def write(path: Path, shade: int = 100, size: tuple[int, int] = (12, 8)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        width, height = size
        Image.fromarray(np.full((height, width, 3), shade, np.uint8)).save(path)
        return path

    return write


@pytest.fixture(autouse=True)
def no_data_variable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's own data folder plays no part, save in tests marked `data`."""
    if "data" not in {mark.name for mark in request.node.iter_markers()}:
        monkeypatch.delenv("ROBUSTMETRIC_DATA", raising=False)
    logging.getLogger("robustmetric").setLevel(logging.WARNING)
    yield
