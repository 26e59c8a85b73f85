"""Retrieval by the vote of noisy copies: by hand, with no more errors than alpha allows, and by label or by item."""

import math
from statistics import NormalDist

import pytest
import torch
from known_encoders import AXES, POLES, Circle, Constant, Scaled, Side, batch, certifier, on_circle

from robustmetric.types import Gallery

PHI = NormalDist()


def test_vote_by_hand() -> None:
    found = certifier(search="vote").certify(Constant(), batch(torch.zeros(1, 3)), AXES)
    # 1,000 of 1,000 copies retrieve the first item: p >= 0.001^(1/1000) = 0.993116, and Phi^-1(0.993116) = 2.463.
    assert found.radius.item() == pytest.approx(0.5 * PHI.inv_cdf(0.001**0.001), abs=1e-9)
    assert found.radius.item() == pytest.approx(0.5 * 2.463, abs=2e-3)


def test_of_1000_radii_of_votes_at_most_6_exceed_the_exact_one() -> None:
    x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(4)) * 0.4
    found = certifier(search="vote", samples=400).certify(Side(), batch(x), POLES)
    exact = x[:, 0].abs().double()
    assert (found.radius > exact).sum() <= 6
    clear = (exact > 0.4) & (exact < 0.6)
    assert (found.radius / exact)[clear].mean() > 0.7 and (found.neighbour == (x[:, 0] < 0))[clear].all()
    assert found.abstained[exact < 0.01].all()


def test_votes_for_items_of_a_label_are_added_up() -> None:
    # Two items of label 4 share 60 % of the circle evenly; the third, of label 7, has the rest.
    gallery = Gallery(on_circle(torch.tensor([-0.6, 0.6, math.pi])), torch.tensor([4, 4, 7]))
    queries = batch(torch.zeros(1, 1), torch.tensor([4]))
    by_label = certifier(search="vote").certify(Circle(1.0), queries, gallery)
    by_item = certifier(search="vote", goal="neighbour").certify(Circle(1.0), queries, gallery)
    assert by_label.label.item() == 4 and by_label.radius.item() > 0.5
    assert by_item.abstained.item()


def test_votes_leave_the_query_itself_out_and_need_no_unit_length() -> None:
    gallery = Gallery(torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1, 0]))
    queries = batch(torch.zeros(2, 1), index=torch.tensor([0, -1]))
    found = certifier(search="vote").certify(Scaled(), queries, gallery)
    assert found.neighbour.tolist() == [1, 0] and found.label.tolist() == [1, 0]
