"""CROWN where numbers cancel: what float64 loses is never counted as room for a perturbation."""

from fractions import Fraction

import pytest
import torch
from torch import nn

from robustmetric.certify.affine import of_magnitudes
from robustmetric.certify.crown import Crown


@pytest.mark.parametrize("cells", [3, 7, 59])
def test_biases_that_cancel_prove_no_more_than_is_true(cells: int) -> None:
    # Logits cells * ReLU(x + b) - 1e12 and 0, where cells * b is 1e12 up to rounding: they cross at 1e12 / cells - b.
    bias = 1e12 / cells
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    for layer, weight, offset in ((model[0], [[1.0]], [bias]), (model[2], [[float(cells)], [0.0]], [-1e12, 0.0])):
        layer.weight.data, layer.bias.data = (torch.tensor(part, dtype=torch.float64) for part in (weight, offset))
    exact = Fraction(1e-3) - (Fraction(10**12) / cells - Fraction(bias))
    x = torch.tensor([[1e-3]], dtype=torch.float64)
    assert Crown(steps=40).certify(model, x, torch.tensor([0])).item() <= max(exact, 0)


@pytest.mark.parametrize("dense", [2**20, 0])
@pytest.mark.parametrize("convolves", [False, True])
def test_a_large_bias_of_all_logits_takes_no_digits_of_the_weights(
    dense: int, convolves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robustmetric.certify.crown.DENSE", dense)
    torch.manual_seed(0)
    radii = []
    for _ in range(20):
        layer = (nn.Conv2d(2, 2, 1) if convolves else nn.Linear(2, 2)).double()
        layer.bias.data.fill_(1e8)
        weight, x = layer.weight.detach().view(2, 2), torch.randn(2, dtype=torch.float64)
        slope = weight[0] - weight[1]
        margin = float(slope @ x)
        model, inputs = nn.Sequential(layer, nn.Flatten()), x.view(1, 2, 1, 1) if convolves else x[None]
        radii.append(Crown(steps=50).certify(model, inputs, torch.tensor([0 if margin > 0 else 1])).item())
        assert radii[-1] <= abs(margin) / float(slope.norm())
    assert max(radii) > 0.1


def test_what_layers_add_up_in_magnitude_by_hand() -> None:
    linear = nn.Linear(2, 1).double()
    linear.weight.data = torch.tensor([[3.0, -4.0]], dtype=torch.float64)
    linear.bias.data.fill_(-10)
    # 3 * 1 + 4 * 2 + 10 = 21, whatever the signs.
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    assert of_magnitudes(linear)(x).item() == 21 and linear.bias.item() == -10
    convolution = nn.Conv2d(1, 1, (1, 2)).double()
    convolution.weight.data, convolution.bias.data = linear.weight.view(1, 1, 1, 2), linear.bias
    assert of_magnitudes(convolution)(x.view(1, 1, 1, 2)).item() == 21
    for mean in (5.0, -5.0):
        norm = nn.BatchNorm1d(2, eps=0.0).double().eval()
        norm.load_state_dict({
            "weight": torch.tensor([3.0, -3.0]), "bias": torch.tensor([-7.0, 7.0]),
            "running_mean": torch.full((2,), mean), "running_var": torch.full((2,), 4.0),
            "num_batches_tracked": torch.tensor(1),
        })  # fmt: skip
        # 3 * (1 + 5) / 2 + 7 = 16, and 3 * (2 + 5) / 2 + 7 = 17.5.
        assert of_magnitudes(norm)(x).tolist() == [[16.0, 17.5]]
    assert of_magnitudes(nn.AvgPool2d(2))(torch.full((1, 1, 2, 2), 3.0)).item() == 3
