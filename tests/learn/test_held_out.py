"""Rows kept aside while ARML learns."""

import numpy as np
import pytest
import torch

from robustmetric.errors import InputError
from robustmetric.learn import ARML
from robustmetric.learn.held_out import HeldOut, aside


def test_a_share_of_each_class_is_kept_aside_and_two_stay() -> None:
    labels = torch.tensor([0] * 20 + [1] * 10 + [2] * 3 + [3] * 2)
    kept = aside(labels, 0.5, torch.Generator().manual_seed(0))
    assert [int(kept[labels == c].sum()) for c in range(4)] == [10, 5, 1, 0]
    again = aside(labels, 0.5, torch.Generator().manual_seed(0))
    other = aside(labels, 0.5, torch.Generator().manual_seed(1))
    assert torch.equal(kept, again) and not torch.equal(kept, other)
    with pytest.raises(InputError, match="keeps none of any class aside"):
        aside(labels, 0.01, torch.Generator())


def test_the_mean_radius_by_hand() -> None:
    """Learned from 0 (a) and 4 (b): 1 (a) may move by 1, 3.5 (b) by 1.5, and 3 (a) is wrong already: 2.5 / 3."""
    x = torch.tensor([[0.0], [4.0], [1.0], [3.5], [3.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1, 0])
    held = HeldOut(x, labels, torch.tensor([False, False, True, True, True]), patience=1)
    assert held.mean_radius(torch.eye(1, dtype=torch.float64)) == pytest.approx(2.5 / 3)


def test_it_is_over_when_looks_bring_nothing_and_the_best_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldOut(
        torch.zeros((4, 1)), torch.tensor([0, 0, 1, 1]), torch.tensor([True, False, True, False]), patience=2
    )
    values = iter([1.0, 3.0, 2.0, 3.0])
    monkeypatch.setattr(held, "mean_radius", lambda factor: next(values))
    looks = [held.is_over(torch.full((1, 1), float(i))) for i in range(4)]
    assert looks == [False, False, False, True] and held.best is not None and held.best.item() == 1


def noisy(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """One feature tells three classes apart, 30 do not: few rows, much to memorise."""
    random = np.random.RandomState(seed)
    y = np.arange(90) % 3
    return np.concatenate(
        [y[:, None] + 0.3 * random.standard_normal((90, 1)), random.standard_normal((90, 30))], axis=1
    ), y


def test_learning_stops_early_and_keeps_the_best_metric() -> None:
    x, y = noisy()
    learner = ARML(max_iter=1000, decay=False, validation=0.3, patience=3, random_state=0).fit(x, y)
    curve = learner.validation_curve_
    assert learner.n_iter_ == 10 * len(curve) < 1000 and len(curve) == int(np.argmax(curve)) + 1 + 3
    rows, labels = torch.from_numpy(x - x.mean(axis=0)), torch.from_numpy(y)
    kept = aside(labels, 0.3, torch.Generator().manual_seed(int(np.random.RandomState(0).randint(2**31 - 1))))
    found = HeldOut(rows, labels, kept, 1).mean_radius(torch.from_numpy(learner.components_))
    assert found == pytest.approx(max(curve), rel=1e-3)


def test_few_iterations_have_one_look() -> None:
    assert len(ARML(max_iter=3, validation=0.2, random_state=0).fit(*noisy()).validation_curve_) == 1


@pytest.mark.parametrize(("settings", "message"), [({"validation": 1.0}, "no share"), ({"patience": 0}, "patience")])
def test_shares_and_patience_are_checked(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ARML(**settings).fit(*noisy())
