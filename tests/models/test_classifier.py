"""Classifiers: a head on any trunk; small networks with their sizes worked by hand; and what they refuse."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.models.classifier import Classifier, Classifies, cnn, mlp
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.wide_resnet import WideResNet
from robustmetric.perturb.fast import FastView


def test_mlp_has_the_parameters_of_its_definition() -> None:
    model = mlp(64, 10, widths=(20, 30))
    assert sum(p.numel() for p in model.parameters()) == (64 * 20 + 20) + (20 * 30 + 30) + (30 * 10 + 10)
    assert model(torch.rand(3, 1, 8, 8)).shape == (3, 10)
    assert mlp(4, 2, widths=())(torch.rand(5, 4)).shape == (5, 2)


def test_cnn_has_the_parameters_of_its_definition() -> None:
    model = cnn(3, 8, 5, widths=(4, 6), hidden=7)
    flat = 6 * 2 * 2
    expected = (3 * 16 * 4 + 4) + (4 * 16 * 6 + 6) + (flat * 7 + 7) + (7 * 5 + 5)
    assert sum(p.numel() for p in model.parameters()) == expected
    assert model(torch.rand(2, 3, 8, 8)).shape == (2, 5)


def test_logits_are_not_clipped() -> None:
    torch.manual_seed(0)
    assert (mlp(8, 6)(torch.randn(9, 8)) < 0).any() and (cnn(1, 8, 6)(torch.randn(9, 1, 8, 8)) < 0).any()


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="expected a multiple of 4"):
        cnn(1, 10, 3)
    with pytest.raises(InputError, match="2 classes or more"):
        mlp(4, 1)
    with pytest.raises(InputError, match="at least 1"):
        mlp(4, 3, widths=(0,))


def test_a_classifier_is_a_linear_head_on_the_features_of_a_standardised_image() -> None:
    torch.manual_seed(0)
    model = Classifier(nn.Flatten(), 3, mean=[0.5], std=[0.25], shape=[1, 2, 2])
    x = torch.rand(5, 1, 2, 2)
    torch.testing.assert_close(model.features(x), ((x - 0.5) / 0.25).flatten(1))
    expected = model.features(x) @ model.head.weight.T
    torch.testing.assert_close(model(x), expected)  # the bias begins as 0
    torch.testing.assert_close(model.logits(model.features(x)), model(x))
    assert (model.classes, model.dim, model.head.in_features) == (3, 3, 4)
    assert isinstance(model, Classifies) and not isinstance(model.encoder, Classifies)


def test_any_trunk_that_says_its_size_will_do() -> None:
    assert Classifier(ConvNet(side=8, kernel=3, hidden=16, dim=6), 10)(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert Classifier(WideResNet(10, 1), 4)(torch.rand(2, 3, 16, 16)).shape == (2, 4)
    with pytest.raises(InputError, match="embedding size of Flatten is not known"):
        Classifier(nn.Flatten(), 3)


def test_an_encoder_keeps_its_pixel_statistics_and_loses_its_unit_length() -> None:
    trunk = Encoder(ConvNet(side=8, kernel=3, hidden=16, dim=6), mean=[0.2], std=[0.4], batch_norm="whole")
    model = Classifier(trunk, 10)
    x = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(functional.normalize(model.features(x), dim=1), trunk(x))
    assert (model.features(x).norm(dim=1) - 1).abs().min() > 1e-3 and model.encoder.batch_norm == "whole"
    assert trunk.normalise, "what was given is left as it was"
    with pytest.raises(InputError, match="pixel statistics of its own"):
        Classifier(trunk, 10, mean=[0.5], std=[0.5])


def test_logits_are_of_full_precision_under_autocast_and_in_the_fast_view() -> None:
    torch.manual_seed(0)
    model = Classifier(WideResNet(10, 1), 10, mean=[0.5] * 3, std=[0.5] * 3)
    x = torch.rand(4, 3, 16, 16)
    model(x)  # so that running statistics are no longer 0 and 1
    model.eval()
    with torch.autocast("cpu", torch.bfloat16):
        features = model.features(x)
        assert model(x).dtype == torch.float32
        torch.testing.assert_close(model(x), model.head(features.float()).float(), atol=2e-2, rtol=0)
    torch.testing.assert_close(model.logits(features), functional.linear(features, model.head.weight, model.head.bias))
    view = FastView(model)
    # Behind a convolution stands the second norm of each of the three blocks.
    assert view.folded == 3
    torch.testing.assert_close(view(x), model(x), atol=1e-5, rtol=1e-4)


def test_a_classifier_needs_two_classes() -> None:
    with pytest.raises(InputError, match="2 classes or more"):
        Classifier(ConvNet(), 1)
