"""The fixture that writes a run folder."""

import json
from pathlib import Path
from typing import Any

import pytest
from sample_runs import MakeRun

from robustmetric.records import Record, append


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(folder: str, *records: Record, **changes: Any) -> Path:
        path = tmp_path / folder
        path.mkdir(parents=True)
        for record in records:
            append(path / "results.jsonl", record)
        known = {
            "name": folder,
            "data": "digits",
            "defence": folder,
            "model": "convnet",
            "seed": 0,
            "commit": "abc1234",
        }
        (path / "run.json").write_text(json.dumps({**known, "hardware": "2 CPU cores", "recipe": {}, **changes}))
        (path / "recipe.yaml").write_text(f"defence:\n  name: {folder}\n")
        return path

    return make
