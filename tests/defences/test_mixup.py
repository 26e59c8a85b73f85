"""Mix-Up: mixtures by hand, both labels by their share, and shares of a Beta distribution."""

import pytest
import torch
from small import CLASSES, DIM, encoder, paired_batch, seeded
from torch import Tensor, nn

from robustmetric.defences.mixup import Mixer, Mixture, MixUp, weighed
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.losses.mining import Hardest
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet
from robustmetric.types import Batch, Triplets

TWO = Batch(torch.tensor([[4.0], [8.0]]), torch.tensor([1, 3]), torch.arange(2))
SWAPPED = Mixture(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([0.75, 0.25]))


class Pull(MetricLoss):
    """sum_x strength * y * z: a loss whose gradient in row x is its label, times a learnt strength."""

    def __init__(self) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.ones(()))

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        triplets: Triplets | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        return self.strength * (embeddings[:, 0] * labels).sum()


def test_mixtures_by_hand() -> None:
    # 3/4 of 4 and 1/4 of 8; 1/4 of 8 and 3/4 of 4.
    assert SWAPPED.of(TWO.inputs).tolist() == [[5.0], [5.0]]


def test_every_row_has_the_gradient_of_both_labels_by_its_own_share() -> None:
    z = torch.tensor([[5.0], [5.0]], requires_grad=True)
    loss = Pull()
    value = SWAPPED.loss(loss, z, TWO.labels, None)
    value.backward()
    # Labels 1 and 3: 3/4 of 1 + 1/4 of 3 in row 0; 1/4 of 3 + 3/4 of 1 in row 1.
    assert z.grad is not None and z.grad.tolist() == [[1.5], [1.5]]
    # The mean share is a half: half of 5 * (1 + 3), twice; so too for the loss's own parameters.
    assert value.item() == 20 and loss.strength.grad is not None and loss.strength.grad.item() == 20


def test_one_share_for_all_is_the_formula_itself() -> None:
    labels, share = torch.tensor([0, 1, 2, 0]), 0.3
    loss = ProxyAnchor(3, 4)
    mixture = Mixture(torch.tensor([0, 1, 2, 3]), torch.tensor([2, 0, 3, 1]), torch.full((4,), share))
    given = torch.randn(4, 4, generator=seeded())
    results = []
    for mixed in (True, False):
        z = given.clone().requires_grad_()
        second = labels[mixture.second]
        value = mixture.loss(loss, z, labels, None) if mixed else share * loss(z, labels) + 0.7 * loss(z, second)
        results.append([value, *torch.autograd.grad(value, [z, loss.proxies])])
    torch.testing.assert_close(*results)


def test_weighing_changes_the_gradient_alone() -> None:
    z = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    weighed_z = weighed(z, torch.tensor([2.0, 0.0]))
    assert torch.equal(weighed_z, z)
    weighed_z.sum().backward()
    assert z.grad is not None and z.grad.tolist() == [[2.0, 2.0], [0.0, 0.0]]


def test_orders_are_permutations_and_shares_one_per_image_or_batch() -> None:
    inputs = torch.zeros(50, 1)
    one, other = Mixer()(inputs, seeded(3)), Mixer()(inputs, seeded(3))
    assert torch.equal(one.share, other.share) and torch.equal(one.first, other.first)
    assert one.first.sort().values.tolist() == one.second.sort().values.tolist() == list(range(50))
    assert not torch.equal(one.first, one.second)
    assert len(one.share.unique()) == 50 and len(Mixer(per_image=False)(inputs, seeded()).share.unique()) == 1


def test_shares_follow_the_beta_distribution() -> None:
    # Var Beta(a, a) = 1 / (4 (2a + 1)): 1/12 for a = 1, 1/8 for 1/2, 1/20 for 2.
    for concentration, variance in ((1.0, 1 / 12), (0.5, 1 / 8), (2.0, 1 / 20)):
        share = Mixer(concentration)(torch.zeros(20000, 1), seeded()).share
        assert share.dtype == torch.float32 and share.min() >= 0 and share.max() <= 1
        assert share.mean().item() == pytest.approx(0.5, abs=0.01)
        assert share.var().item() == pytest.approx(variance, rel=0.03)


def test_pairs_stay_together_where_asked() -> None:
    order = Mixer(in_pairs=True)(torch.zeros(20, 1), seeded()).first
    assert (order[0::2] % 2 == 0).all() and torch.equal(order[0::2] + 1, order[1::2])
    batch = paired_batch()
    assert MixUp(Triplet(Hardest()), in_pairs=True)(encoder(), batch, seeded())["mixed"].isfinite()
    with pytest.raises(InputError, match="a batch of 3 cannot be mixed in pairs"):
        Mixer(in_pairs=True)(torch.zeros(3, 1), seeded())


def test_what_is_trained_on_is_the_mixture() -> None:
    loss, model, batch = ProxyAnchor(CLASSES, DIM), encoder(), paired_batch()
    terms = MixUp(loss)(model, batch, seeded(5))
    mixture = Mixer()(batch.inputs, seeded(5))
    assert list(terms) == ["mixed"]
    first, second = (
        loss(model(mixture.of(batch.inputs)), batch.labels[order]) for order in (mixture.first, mixture.second)
    )
    share = mixture.share.mean()
    torch.testing.assert_close(terms["mixed"], share * first + (1 - share) * second)


def test_a_linear_model_is_where_the_mixed_embeddings_are() -> None:
    loss, batch = Pull(), TWO
    terms = MixUp(loss, goal="embedding")(nn.Identity(), batch, seeded())
    # 4 * 1 + 8 * 3 on the batch as it is.
    assert terms["metric"].item() == 28 and terms["mixed"].item() == pytest.approx(0, abs=1e-10)
    mixture = Mixer()(batch.inputs, seeded())
    bent = nn.Sequential(nn.ReLU(), nn.Threshold(6.0, 0.0))
    # Of 4 and 8 the bent model keeps what exceeds 6.
    expected = (bent(mixture.of(batch.inputs)) - mixture.of(bent(batch.inputs))).square().mean()
    torch.testing.assert_close(MixUp(loss, goal="embedding")(bent, batch, seeded())["mixed"], expected)


def test_what_makes_no_distribution_is_refused() -> None:
    with pytest.raises(InputError, match=r"concentration 0\.0 makes no Beta distribution"):
        MixUp(Pull(), concentration=0.0)


def test_training_on_mixtures_lowers_the_loss_of_the_images_themselves() -> None:
    model, batch = encoder(), paired_batch(4)
    defence = MixUp(ProxyAnchor(CLASSES, DIM))
    optimiser = torch.optim.Adam([*model.parameters(), *defence.parameters()], lr=5e-3)
    before = defence.loss(model(batch.inputs), batch.labels).item()
    for step in range(80):
        optimiser.zero_grad()
        defence(model, batch, seeded(step))["mixed"].backward()
        optimiser.step()
    assert defence.loss(model(batch.inputs), batch.labels).item() < 0.8 * before
