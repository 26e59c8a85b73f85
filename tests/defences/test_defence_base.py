"""A defence refuses parts of the wrong kind when it is built."""

import inspect

import pytest
import torch
from small import LINE, figures, pgd

from robustmetric.defences.base import Defence
from robustmetric.defences.est import EmbeddingShiftedTriplet
from robustmetric.defences.iat import InterpolatedAdversarial
from robustmetric.defences.madry import Madry
from robustmetric.defences.plain import Plain
from robustmetric.defences.trades import Trades
from robustmetric.errors import InputError
from robustmetric.losses.triplet import Triplet
from robustmetric.types import Triplets


def build(kind: type[Defence], **parts: object) -> None:
    """Unwrapped: the type checker that runs in tests only would refuse the value first."""
    inspect.unwrap(kind.__init__)(kind.__new__(kind), **parts)


@pytest.mark.parametrize("kind", [Plain, Madry, EmbeddingShiftedTriplet, Trades, InterpolatedAdversarial])
def test_a_loss_that_is_none_is_refused(kind: type[Defence]) -> None:
    attack = {} if kind is Plain else {"attack": pgd(0.1)}
    with pytest.raises(InputError, match=r"loss 'triplet' is a word; write \{name: triplet\}"):
        build(kind, loss="triplet", **attack)
    with pytest.raises(InputError, match="loss: PGD is not of the kind MetricLoss"):
        build(kind, loss=pgd(0.1), **attack)
    build(kind, loss=Triplet(), **attack)


@pytest.mark.parametrize("kind", [Madry, EmbeddingShiftedTriplet, Trades, InterpolatedAdversarial])
def test_an_attack_that_does_not_climb_is_refused(kind: type[Defence]) -> None:
    with pytest.raises(InputError, match=r"attack 'pgd' is a word; write \{name: pgd\}"):
        build(kind, loss=Triplet(), attack="pgd")
    with pytest.raises(InputError, match="attack: Triplet is not of the kind Engine"):
        build(kind, loss=Triplet(), attack=Triplet())


def test_the_hardness_of_triplets_is_noted_before_and_after() -> None:
    defence, z = Plain(Triplet()), LINE.inputs.clone().requires_grad_()
    defence.note_triplets(None, z, z)
    assert defence.measures == {}
    triplets = Triplets(torch.tensor([0, 2]), torch.tensor([1, 3]), torch.tensor([2, 1]))
    defence.note_triplets(triplets, z, 2 * z)
    assert figures(defence) == {"before": -1.75, "after": -3.5}
    assert not any(figure.requires_grad for figure in defence.measures.values())


def test_a_defence_outside_a_training_is_at_full_strength() -> None:
    assert Plain(Triplet()).progress == 1
