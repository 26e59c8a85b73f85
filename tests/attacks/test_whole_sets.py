"""Whole sets of real images moved against models of the zoo: a search is emptied, though not by every attack."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.joint import WholeSet, embed_all, move_all
from robustmetric.attacks.vote import NeighbourMargin
from robustmetric.data.base import data_root
from robustmetric.data.cars import Cars
from robustmetric.data.cub import Cub
from robustmetric.data.protocols import Transform
from robustmetric.data.transforms import AspectCentreCrop, CentreCrop
from robustmetric.jobs.feed import Feed
from robustmetric.models.backbone import encoder
from robustmetric.models.checkpoint import load_weights, read_state
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, frozen

ROOT = Path(__file__).parents[2]
CLASSES, EACH = 20, 12
"""Of the 98 or 100 test classes, and of 60 to 80 images: chance is 5 %, and a search among fewer is the easier one."""
ENGINE = PGD(Ball(8 / 255), steps=10, step_size=2 / 255)
LONGER = PGD(Ball(8 / 255), steps=50, step_size=1 / 255)


def left(name: str, dim: int, source: Cub | Cars, view: Transform, longer: PGD | None = None) -> dict[str, float]:
    """R@1 that PGD-10 at 8/255 leaves a model of the zoo, and the mean cosine of an image to its clean self.

    Also what the shift of a `longer` climb leaves.
    """
    file = ROOT / "zoo" / f"{name}.safetensors"
    model = encoder("mobilenet_v2", dim=dim).eval()
    load_weights(model, read_state(file), str(file))
    feed = Feed(source.load().queries, torch.device("cpu"))
    rows = [torch.nonzero(feed.labels == label).flatten()[:EACH] for label in feed.labels.unique()[:CLASSES]]
    batch = feed.batch(torch.cat(rows), view)

    def moved(whole: WholeSet, engine: PGD = ENGINE) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return move_all(whole, engine, model, batch, generator, chunk=32).embeddings

    def recall(queries: Tensor, gallery: Tensor) -> float:
        nearest = torch.cdist(queries, gallery).fill_diagonal_(torch.inf).argmin(dim=1)
        return 100 * float((batch.labels[nearest] == batch.labels).float().mean())

    with frozen(model) as embed, torch.no_grad():
        still = embed_all(embed, batch.inputs, 32)
    shifted = moved(WholeSet(EmbeddingShift()))
    together = moved(WholeSet(NeighbourMargin(), bank="moving"))
    found = {
        "clean": recall(still, still),
        "A1, queries only": recall(shifted, still),
        "A1, both sides": recall(shifted, shifted),
        "margin, together": recall(together, together),
        "cosine": float((shifted * still).sum(1).mean()),
    }
    if longer is not None:
        further = moved(WholeSet(EmbeddingShift()), longer)
        found |= {"longer, queries only": recall(further, still), "longer, both sides": recall(further, further)}
    print(name, {key: round(value, 2) for key, value in found.items()})
    return found


@pytest.mark.data
@pytest.mark.slow
def test_r1_of_a_plain_model_falls_below_15() -> None:
    """Shifted one by one, embeddings of birds go to their opposites and find one another there."""
    if not sorted(data_root(None).glob("cub-200-2011*.zip")):
        pytest.skip("no cub-200-2011*.zip under ROBUSTMETRIC_DATA")
    found = left("cub-mobilenet_v2-plain-seed0", 512, Cub(), CentreCrop(224))
    assert found["clean"] > 50
    assert found["A1, queries only"] < 15 and found["margin, together"] < 15
    assert 15 < found["A1, both sides"] < found["clean"] - 10
    assert found["cosine"] < 0


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "clean", "kept", "longer"), [("at-r8", 40, 20, None), ("at_growing0_4-r8", 50, 30, LONGER)]
)
def test_adversarial_training_withstands_the_shift_and_not_the_margin(
    name: str, clean: float, kept: float, longer: PGD | None
) -> None:
    """AT on cars keeps most of its R@1 where each image moves by itself, and none where all move together."""
    if not sorted(data_root(None).glob("cars196*.zip")):
        pytest.skip("no cars196*.zip under ROBUSTMETRIC_DATA")
    found = left(f"cars-mobilenet_v2-{name}-seed0", 128, Cars(), AspectCentreCrop(224), longer)
    assert found["clean"] > clean
    assert found["A1, queries only"] > kept and found["A1, both sides"] > kept and found["cosine"] > 0.8
    assert found["margin, together"] < 5
    if longer is not None:  # ten steps are not the end of it
        assert 25 < found["longer, queries only"] < found["A1, queries only"]
        assert 20 < found["longer, both sides"] < found["A1, both sides"]
