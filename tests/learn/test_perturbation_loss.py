"""The perturbation loss by hand, and what its penalty is for."""

import numpy as np
import pytest
import torch

from robustmetric.errors import InputError
from robustmetric.learn import PerturbationLoss
from robustmetric.learn.perturbation_loss import penalised


def test_the_loss_by_hand() -> None:
    # On a line, z = 0, p = 1, n = 1.5 (e = 1.25) and z = 0, p = 2, n = 1 (negative margin: e = 0); tau = 2.5.
    # Hinges: 1 + 1 - 2.25 < 0 -> 0; 1 + 4 - 1 = 4. Penalties: 1 - (1.25 / 2.5)^2 = 0.75; 1.
    x = torch.tensor([[0.0], [1.0], [1.5], [2.0]])
    triplets = (torch.tensor([0, 0]), torch.tensor([1, 3]), torch.tensor([2, 1]))
    value = penalised(torch.eye(1), x, triplets, weight=2.0, tau=2.5)
    assert value.item() == pytest.approx((0 + 4) / 2 + 2 * (0.75 + 1) / 2)
    # Beyond tau nothing more is asked for.
    assert penalised(torch.eye(1), x, tuple(index[:1] for index in triplets), weight=2.0, tau=1.0).item() == 0.0


def test_tau_is_the_quantile_of_the_first_margins_in_the_units_of_the_rows() -> None:
    # 0, 1 | 4, 6: margins at the nearest neighbours 2.5, 1, 0.5, 3.5; their median 1.75.
    x, y = np.array([[0.0], [1.0], [4.0], [6.0]]), [0, 0, 1, 1]
    settings = {"quantile": 0.5, "n_neighbors": 1, "max_iter": 2}
    assert PerturbationLoss(**settings).fit(x, y).tau_ == pytest.approx(1.75, rel=1e-5)
    assert PerturbationLoss(**settings).fit(100 * x + 5, y).tau_ == pytest.approx(175, rel=1e-5)


def test_the_penalty_makes_margins_larger() -> None:
    rng = np.random.RandomState(0)
    y = np.arange(120) % 3
    x = np.concatenate([np.eye(3)[y] + 0.3 * rng.standard_normal((120, 3)), rng.standard_normal((120, 5))], axis=1)
    from robustmetric.certify.knn import RobustKNN

    radii = {
        weight: RobustKNN(PerturbationLoss(weight=weight, random_state=0).fit(x[:90], y[:90]))
        .fit(x[:90], y[:90])
        .certify(x[90:], y[90:])
        .mean()
        for weight in (0.0, 10.0)
    }
    assert radii[10.0] > 1.1 * radii[0.0]


def test_the_loss_falls() -> None:
    rng = np.random.RandomState(0)
    x, y = rng.standard_normal((80, 4)) + np.arange(80)[:, None] % 2, np.arange(80) % 2
    learner = PerturbationLoss(max_iter=60, random_state=0).fit(x, y)
    assert learner.n_iter_ == len(learner.loss_curve_) == 60
    assert np.mean(learner.loss_curve_[-10:]) < np.mean(learner.loss_curve_[:10])


def test_wrong_settings_are_refused() -> None:
    x, y = np.random.RandomState(0).standard_normal((40, 2)), np.arange(40) % 2
    with pytest.raises(InputError, match=r"quantile = 2\.0; expected a number from 0 to 1"):
        PerturbationLoss(quantile=2.0).fit(x, y)
    with pytest.raises(InputError, match=r"lr = 0\.0"):
        PerturbationLoss(lr=0.0).fit(x, y)
