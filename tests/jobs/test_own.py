"""A model and images of one's own, seen as the model is used to: squashed, or by their shorter side."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from commands import Command
from robustmetric import records
from robustmetric.data.transforms import AspectCentreCrop, CentreCrop
from robustmetric.jobs.target import find_target
from robustmetric.records import Record

OWN = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(7), torch.nn.Flatten())
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twice as wide as high: the ends tell the classes apart, the middle pairs an image with one of the other class."""
    for label, ends in (("white", 255), ("black", 0)):
        folder = tmp_path / "photos" / label
        folder.mkdir(parents=True)
        for middle in (100, 130):
            pixels = np.full((60, 120, 3), middle, np.uint8)
            pixels[:, :30] = pixels[:, 90:] = ends
            # White above it, to another depth: embeddings have unit length, and one shade alone is like another.
            pixels[: middle // 5, 30:90] = 255
            Image.fromarray(pixels).save(folder / f"{middle}.png")
    return tmp_path / "photos"


@pytest.fixture
def own(tmp_path: Path) -> str:
    name = f"seen_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    return f"{name}.build"


def clean(path: Path) -> list[Record]:
    return [record for record in records.read(path / "results.jsonl") if record.kind == "clean"]


def test_the_view_decides_what_a_model_of_ones_own_sees(
    own: str, photos: Path, suite: Path, command: Command, tmp_path: Path
) -> None:
    words = ("evaluate", own, suite, "--data", photos, "-o", "mine")
    assert command(*words).code == 0
    # Squashed, the ends are seen and every search is right; by the shorter side they are cut off, and all are wrong.
    assert clean(tmp_path / "mine")[0].scores["R@1"] == 100
    assert clean(tmp_path / "mine")[0].settings["view"] == repr(CentreCrop(224))
    found = command(*words, "--view", "aspect_centre_crop")
    assert found.code == 0 and "nothing to do" not in found.err
    _, other = clean(tmp_path / "mine")
    assert other.scores["R@1"] == 0 and other.settings["view"] == repr(AspectCentreCrop())
    assert "nothing to do" in command(*words, "--view", "aspect_centre_crop").err


def test_a_certificate_is_of_the_same_view(own: str, photos: Path, command: Command, tmp_path: Path) -> None:
    words = ("certify", own, "--data", photos, "--samples", 300, "--sigma", 0.01, "-o")
    for folder, view in (("squashed", "centre_crop"), ("cut", "aspect_centre_crop")):
        done = command(*words, folder, "--view", view)
        assert done.code == 0, done.err
    found = [records.read(tmp_path / folder / "results.jsonl")[-1] for folder in ("squashed", "cut")]
    assert [record.scores["R@1@0"] for record in found] == [100, 0]


def test_a_view_has_settings_of_its_own(photos: Path) -> None:
    view = "{name: aspect_centre_crop, size: 64, resize: 80}"
    target = find_target("torch.nn.Flatten", data=str(photos), out=None, view=view)
    assert target.view == AspectCentreCrop(64, 80)
    # As torchvision has it: 60 x 120 becomes 80 x 160, whose middle 64 columns are the middle 48 of 120, all grey.
    queries = target.dataset.queries
    seen = target.view(queries.inputs, queries.sizes, None)
    assert seen.shape == (4, 3, 64, 64)
    assert torch.equal(seen[:, :, 60].unique().mul(255).round(), torch.tensor([100.0, 130.0]))
    assert target.spec["view"] == {"name": "aspect_centre_crop", "size": 64, "resize": 80}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["torch.nn.Flatten", "--view", "aspect_center_crop"],
            "did you mean 'aspect_centre_crop'? (aspect_centre_crop, ",
        ),
        (["torch.nn.Flatten", "--view", "random_crop"], "--view 'random_crop' is not known"),
        (["torch.nn.Flatten", "--view", "{name: identity, size: 3}"], "'size' is not a setting of Identity"),
        (["cub/act", "--view", "identity"], "'cub/act' has a recipe, which says what it sees"),
    ],
)
def test_a_view_that_means_nothing_is_refused_before_data_are_read(
    words: list[str], said: str, command: Command
) -> None:
    assert said in command("evaluate", *words, "--data", "cub").error


NETWORKS = """
import torch
from torch import nn
from robustmetric import Encoder
def bare():
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 4))
def wrapped():
    return Encoder(bare())
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = bare()
    def forward(self, x):
        return nn.functional.normalize(self.network(x), dim=1)
"""


@pytest.mark.parametrize(("name", "is_told"), [("bare", True), ("wrapped", False), ("Scaled", False)])
def test_training_a_bare_network_says_that_its_evaluation_is_of_other_lengths(
    name: str, is_told: bool, photos: Path, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "networks.py").write_text(NETWORKS)
    (tmp_path / "mine.yaml").write_text(
        f"{{model: {{name: networks.{name}}}, data: {{name: folder, root: {photos}, test_share: 1.0}}, "
        "defence: {name: plain, loss: {name: triplet}}, sampler: {name: balanced, batch: 4, per_class: 2}, "
        "optimiser: {name: adam, rate: 1e-4}, epochs: 1, view: {name: centre_crop}}"
    )
    for part in ("train", "test"):
        shutil.copytree(photos, tmp_path / "parts" / part)
    done = command("train", "mine.yaml", f"data.root={tmp_path / 'parts'}", "-o", "run")
    assert done.code == 0, done.err
    told = [line for line in done.err.splitlines() if line.startswith("warning: ")]
    words = "warning: the embeddings of networks.bare are not of unit length and are trained as they are, while"
    assert [line.startswith(words) for line in told] == [True] * is_told
