"""LMNN's objective by hand and by loops, its gradient by differences, and its descent."""

import numpy as np
import pytest
import torch
from torch import Tensor

from robustmetric.learn import LMNN
from robustmetric.learn.lmnn import Targets, impostors, objective
from robustmetric.learn.neighbours import Classes


def sorted_rows(seed: int = 0, n: int = 24, dim: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator, dtype=torch.float64), (torch.arange(n) // 8).long()


def looped(factor: Tensor, x: Tensor, labels: Tensor, targets: Targets, pull: float) -> float:
    """The definition, term by term."""
    z = x @ factor.T
    total = 0.0
    for i in range(len(x)):
        for j in targets.index[i][targets.is_there[i]]:
            near = (z[i] - z[j]).square().sum()
            total += pull * near.item()
            others = [
                (1 + near - (z[i] - z[row]).square().sum()).clamp_min(0)
                for row in torch.nonzero(labels != labels[i]).flatten()
            ]
            total += (1 - pull) * float(sum(others))
    return total


def test_objective_by_hand() -> None:
    # Class 0 at 0 and 1, class 1 at 2.5 and 10. d: 0-1 1, 2.5-10 56.25. Pull: 2 + 112.5 = 114.5.
    # Hinges 1 + d(i, j) - d(i, l): i = 0 none (6.25 > 2); i = 1: 2 - 2.25 < 0 none.
    # i = 2.5: 57.25 - 6.25, 57.25 - 2.25; i = 10: 57.25 - 100 none, 57.25 - 81 none. Push: 51 + 55 = 106.
    x = torch.tensor([[0.0], [1.0], [2.5], [10.0]], dtype=torch.float64)
    targets = Targets.of(x, Classes(torch.tensor([0, 0, 1, 1])), 1)
    value, gradient = objective(torch.eye(1, dtype=torch.float64), x, targets, [2, 2], pull=0.3)
    assert value == pytest.approx(0.3 * 114.5 + 0.7 * 106)
    # By M: .3 * 114.5 + .7 * (2 * 56.25 - 6.25 - 2.25); by G twice that.
    assert gradient.item() == pytest.approx(2 * (0.3 * 114.5 + 0.7 * 104))


@pytest.mark.parametrize("k", [1, 3])
def test_objective_equals_loops_and_its_gradient_differences(k: int) -> None:
    x, labels = sorted_rows()
    factor = torch.randn(2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    targets = Targets.of(x, Classes(labels), k)
    value, gradient = objective(factor, x, targets, [8, 8, 8], pull=0.4)
    assert value == pytest.approx(looped(factor, x, labels, targets, 0.4))
    step = 1e-6
    for entry in ((0, 0), (1, 2)):
        bumped = [factor.clone(), factor.clone()]
        bumped[0][entry] += step
        bumped[1][entry] -= step
        high, low = (objective(each, x, targets, [8, 8, 8], pull=0.4)[0] for each in bumped)
        assert gradient[entry].item() == pytest.approx((high - low) / (2 * step), rel=1e-5)


def test_impostors_are_found_once_whichever_radius_holds_them() -> None:
    # Rows 0, 1 | 3 | 7 with squared radii 10, 0, 0, 17: 0-3 by the first (9), 3-7 by the last (16); 1-3 (4) by neither.
    z = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    found = list(impostors(z, torch.tensor([10.0, 0.0, 0.0, 17.0]), [2, 1, 1]))
    pairs = {(int(i), int(j)): float(d) for block in found for i, j, d in zip(*block, strict=True)}
    assert pairs == {(0, 2): 9.0, (2, 3): 16.0}


def test_blocks_of_impostors_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = sorted_rows()
    targets = Targets.of(x, Classes(labels), 2)
    whole, gradient = objective(torch.eye(3, dtype=torch.float64), x, targets, [8, 8, 8], pull=0.5)
    monkeypatch.setattr("robustmetric.numerics.distances.BLOCK", 40)
    value, again = objective(torch.eye(3, dtype=torch.float64), x, targets, [8, 8, 8], pull=0.5)
    assert value == pytest.approx(whole)
    torch.testing.assert_close(again, gradient)


def test_the_objective_never_rises() -> None:
    x, labels = sorted_rows()
    learner = LMNN(max_iter=80).fit(x.numpy(), labels.numpy())
    assert (np.diff(learner.loss_curve_) <= 0).all()
    assert learner.loss_curve_[-1] < learner.loss_curve_[0]


def test_it_agrees_with_metric_learn() -> None:
    # metric-learn 0.7.0, LMNN(init="identity", max_iter=100), which makes 98 steps; ours counts the start too.
    rng = np.random.RandomState(0)
    x = np.concatenate([rng.normal(size=(20, 2)) @ rng.normal(size=(2, 2)) + shift for shift in (0, 1, 2.0)])
    matrix = LMNN(max_iter=99).fit(x, np.repeat([0, 1, 2], 20)).get_mahalanobis_matrix()
    np.testing.assert_allclose(matrix, METRIC_LEARN, rtol=1e-10)


METRIC_LEARN = [[0.9727901773043742, -0.019935132369744115], [-0.019935132369744115, 0.9807381822292539]]


def test_descent_stops_when_it_gains_nothing() -> None:
    x, labels = sorted_rows()
    assert LMNN(max_iter=500, min_iter=5, tol=1e9).fit(x.numpy(), labels.numpy()).n_iter_ == 6


def test_small_classes_have_fewer_targets() -> None:
    x, _ = sorted_rows(n=14)
    y = np.repeat([0, 1, 2], [11, 2, 1])
    with pytest.warns(UserWarning, match="2 of 3 classes have at most 3 rows"):
        LMNN(max_iter=3).fit(x.numpy(), y)
    targets = Targets.of(x, Classes(torch.from_numpy(y)), 3)
    assert targets.is_there.sum(dim=1).tolist() == [3] * 11 + [1, 1, 0]
