"""The structure term by hand, its gradients (Eq. 17-19 of the supplement), and its alternatives."""

import math

import pytest
import torch
from small import seeded
from torch import Tensor, nn

from robustmetric.defences.structure import NAMES, Structure
from robustmetric.errors import InputError
from robustmetric.losses.triplet import triplet_values


def points(**by_name: float) -> dict[str, Tensor]:
    """Embeddings on a line, one triplet; a tilde is written as an underscore."""
    return {name.replace("_", "~"): torch.tensor([[place]]) for name, place in by_name.items()}


def unit(count: int, seed: int) -> Tensor:
    rows = torch.randn(count, 8, generator=seeded(seed), dtype=torch.float64)
    return nn.functional.normalize(rows, dim=1)


def test_ics_by_hand() -> None:
    # d(a, a~) = 3, d(a, p) = 1: 0.5 * (3 - 1).
    assert Structure()(points(a=0.0, a_=3.0, p=1.0)).item() == 1
    # The perturbed anchor is nearer than the positive: nothing to mend, unless a margin is asked for.
    assert Structure()(points(a=0.0, a_=0.5, p=1.0)).item() == 0
    assert Structure(margin=0.75)(points(a=0.0, a_=0.5, p=1.0)).item() == 0.125


def test_it_is_the_mean_over_triplets_zeros_included() -> None:
    z = {"a": torch.zeros(2, 1), "a~": torch.tensor([[3.0], [0.5]]), "p": torch.ones(2, 1)}
    assert Structure(weight=1.0)(z).item() == 1


@pytest.mark.parametrize(
    ("triplet", "margin", "value"),
    [
        # a = 0, a~ = 3, p = 1, p~ = 2, n = 5, n~ = 4.
        (("a", "a~", "p"), 0.0, 3 - 1),
        (("a", "a~", "p~"), 0.0, 3 - 2),
        (("p", "p~", "a"), 0.5, 1 - 1 + 0.5),
        (("a", "a~", "n~"), 2.0, 3 - 4 + 2),
        (("a", "p", "n"), 4.5, 1 - 5 + 4.5),
        (("a", "p", "n~"), 4.0, 1 - 4 + 4),
        (("a~", "p~", "n~"), 1.0, 1 - 1 + 1),
    ],
)
def test_alternatives_by_hand(triplet: tuple[str, ...], margin: float, value: float) -> None:
    z = points(a=0.0, a_=3.0, p=1.0, p_=2.0, n=5.0, n_=4.0)
    assert Structure(weight=1.0, margin=margin, triplet=triplet)(z).item() == value
    assert Structure(weight=0.25, margin=margin, triplet=list(triplet))(z).item() == value / 4


def test_it_says_which_clean_images_it_needs() -> None:
    assert Structure().clean == ("a", "p")
    assert Structure(triplet=("p", "p~", "a")).clean == ("a", "p")
    assert Structure(triplet=("a", "p", "n~")).clean == ("a", "p")
    assert Structure(triplet=("a~", "p~", "n~")).clean == ()


def test_it_is_zero_without_a_perturbation_and_without_weight() -> None:
    a, p = unit(20, 1), unit(20, 2)
    assert Structure()({"a": a, "a~": a, "p": p}).item() == 0
    assert Structure(weight=0.0)({"a": a, "a~": unit(20, 3), "p": p}).item() == 0


def test_gradients_of_the_triplet_loss_are_unit_differences_where_the_hinge_is_active() -> None:
    a, p, n = (unit(50, seed).requires_grad_() for seed in (1, 2, 3))
    values = triplet_values(a, p, n, margin=0.2)
    found = torch.autograd.grad(values.sum(), (a, p, n))
    active = (values > 0).double()[:, None]
    assert 0 < active.mean() < 1

    def direction(x: Tensor, y: Tensor) -> Tensor:
        return (x - y) / (x - y).norm(dim=1, keepdim=True)

    expected = (direction(a, p) - direction(a, n), direction(p, a), direction(a, n))
    for gradient, formula in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, active * formula)


def test_gradients_reach_anchor_perturbed_anchor_and_positive_and_are_finite_where_points_coincide() -> None:
    z = {name: unit(6, seed).requires_grad_() for seed, name in enumerate(("a", "a~", "p"))}
    for gradient in torch.autograd.grad(Structure(margin=2.0)(z), list(z.values())):
        assert gradient.isfinite().all() and gradient.abs().sum() > 0
    same = unit(6, 0).requires_grad_()
    (gradient,) = torch.autograd.grad(Structure(margin=0.2)({"a": same, "a~": same, "p": same}), same)
    assert gradient.isfinite().all()


def ics(*names: str) -> Structure:
    return Structure(weight=1.0, triplet=names)


def test_the_term_with_the_perturbed_positive_is_no_larger_where_that_lies_farther_from_the_anchor() -> None:
    # Supplement B.4 III (1): "p~ is always further away", hence L_T(a, a~, p~) <= L_ICS. Eq. 18 moves p straight away
    # from a, on the sphere too, whatever the length of the step.
    a, p, n = unit(200, 1), unit(200, 2).requires_grad_(), unit(200, 3)
    (away,) = torch.autograd.grad(triplet_values(a, p, n, margin=4.0).sum(), p)
    for step in (1e-3, 0.1, 1.0, 10.0):
        z = {"a": a, "a~": unit(200, 4), "p": p, "p~": nn.functional.normalize(p + step * away, dim=1)}
        assert ((z["p~"] - a).norm(dim=1) >= (p - a).norm(dim=1)).all()
        assert ics("a", "a~", "p~")(z) < ics("a", "a~", "p")(z)


def test_the_term_with_the_perturbed_positive_is_larger_where_that_lies_nearer() -> None:
    # A step in pixels need not follow Eq. 18: "always" holds for the embeddings' own gradient only.
    z = points(a=0.0, a_=3.0, p=2.0, p_=1.0)
    assert ics("a", "a~", "p~")(z).item() == 2 > ics("a", "a~", "p")(z).item() == 1


@pytest.mark.parametrize("triplet", [("a", "a~"), ("a", "a~", "p", "n"), ()])
def test_what_is_no_triplet_is_refused(triplet: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=f"has {len(triplet)} parts; expected three of"):
        Structure(triplet=triplet)


def test_a_part_that_is_none_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match=r"'a2' is no part of a triplet; did you mean 'a'\?"):
        Structure(triplet=("a", "a2", "p"))
    assert set(NAMES) == {"a", "p", "n", "a~", "p~", "n~"}


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_weight_and_margin_are_finite_and_not_negative(value: float) -> None:
    for settings in ({"weight": value}, {"margin": value}):
        with pytest.raises(InputError, match="expected numbers >= 0"):
            Structure(**settings)
