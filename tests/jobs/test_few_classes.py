"""AutoAttack on classifiers of two and three classes: targeted DLR needs four, and what to do instead is said."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from robustmetric.attacks.margin import MisclassifyTowards
from robustmetric.data.base import Dataset, keep_classes
from robustmetric.data.digits import Digits
from robustmetric.data.transforms import Identity
from robustmetric.errors import InputError
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.evaluate import run_suite
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.workers import Workers
from robustmetric.jobs.worst_case import fitted
from robustmetric.recipe import parse

PROPOSED = re.compile(r"as a suite of your own does: (\{.*\})$")


class _Means(nn.Module):
    """Logits of an image: minus its squared distances to the class means, scaled."""

    def __init__(self, images: Tensor, labels: Tensor, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.register_buffer("means", torch.stack([images[labels == c].mean(dim=0).flatten() for c in range(classes)]))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(x.flatten(1), self.means).square()


def arena_of(classes: int) -> Arena:
    whole = Digits(closed=True).load()
    train, test = (keep_classes(split, torch.arange(classes)) for split in (whole.train, whole.queries))
    model = _Means(train.inputs.float() / 255, train.labels, classes)
    return Arena.prepare(model, Dataset("few", train, test), Identity(), Workers(torch.device("cpu")), limit=24)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_suite_that_the_refusal_proposes_runs(classes: int, tmp_path: Path) -> None:
    arena = arena_of(classes)
    with pytest.raises(InputError, match=r"trial 'APGD-T': targeted dlr compares the logits of 4 classes") as refused:
        fitted(load_suite("autoattack"), arena)
    (text,) = PROPOSED.findall(str(refused.value))
    assert parse(text) == {"base": "autoattack", "attacks": {"APGD-T": {"attack": {"loss": "margin"}}}}
    path = tmp_path / "own.yaml"
    path.write_text(f"{text}\n")
    suite = load_suite(str(path), radius=0.5)
    attack = next(t.attack for t in fitted(suite, arena).trials if t.label == "APGD-T")
    assert isinstance(attack, MisclassifyTowards) and attack.targets == classes - 1
    scores = {record.name: record.scores["accuracy"] for record, _ in run_suite(arena, suite, 0, {})}
    # Steps of half the range turn a digit into another by these means.
    assert scores["clean"] > 90 and scores["AutoAttack"] == 0


def test_four_classes_are_enough() -> None:
    assert len(fitted(load_suite("autoattack"), arena_of(4)).trials) == 4
