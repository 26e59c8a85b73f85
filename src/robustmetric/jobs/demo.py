"""The whole story in a few minutes: a plain model falls, a hardened one holds, and a page shows it."""

import time
from pathlib import Path

import torch

from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.progress import console, say
from robustmetric.jobs.target import evaluate
from robustmetric.jobs.train import train
from robustmetric.report.page import write_page
from robustmetric.report.runs import read_runs
from robustmetric.report.tables import summaries, to_text

RECIPES = ("digits/plain", "digits/hm")
SUITE = "demo"


def demo(out: Path) -> Path:
    """Train both digit recipes, attack both, print the table, write the page. Finished parts are not run again."""
    # Images of 64 pixels gain nothing from a second thread, and lose much when the machine is busy.
    torch.set_num_threads(1)
    began = time.monotonic()
    folders = []
    for name in RECIPES:
        folder = RunFolder(out / Path(name).name)
        if not folder.weights.is_file():
            say(f"training {name} on scikit-learn's digits 0-4")
            train(name, out=folder.path, resume=folder.recipe.is_file())
        folders.append(folder.path)
    for path in folders:
        say(f"attacking {path.name}: retrieval of the unseen digits 5-9")
        evaluate(str(path), SUITE)
    page = write_page(folders, out)
    print(to_text(summaries(read_runs(folders)), width=console.width))
    print(f"\n{time.monotonic() - began:.0f} s. The page: {page}")
    return page
