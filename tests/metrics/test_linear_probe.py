"""The linear probe by hand, and against scikit-learn."""

import math

import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.metrics.linear_probe import linear_probe


def clouds(classes: int = 5, each: int = 20, dim: int = 8, noise: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat(each)
    centres = torch.randn(classes, dim, generator=generator)
    return centres[labels] + noise * torch.randn(len(labels), dim, generator=generator), labels


def test_every_second_image_of_a_class_is_tested_in_the_order_given() -> None:
    labels = torch.tensor([7, 3, 3, 7])
    # Fitted on the first of each: 7 at 0, 3 at 1.
    assert linear_probe(torch.tensor([[0.0], [1.0], [0.9], [0.2]]), labels) == 1
    assert linear_probe(torch.tensor([[0.0], [1.0], [0.2], [0.9]]), labels) == 0
    assert linear_probe(torch.tensor([[0.0], [1.0], [0.9], [0.9]]), labels) == 0.5


def test_a_class_with_one_image_is_fitted_only() -> None:
    # 5 is at 0.5; without it, 0.6 would be nearer to 1 alone. Tested are 0.1 and 0.9.
    z = torch.tensor([[0.0], [0.1], [0.5], [1.0], [0.9]])
    assert linear_probe(z, torch.tensor([0, 0, 5, 1, 1])) == 1
    # Three images: the first and the third are fitted.
    assert linear_probe(z, torch.tensor([0, 0, 0, 1, 1])) == 1


@pytest.mark.parametrize(("noise", "dim"), [(0.3, 8), (1.0, 8), (2.0, 8), (4.0, 300)])
@pytest.mark.parametrize("ridge", [1e-3, 1.0])
def test_it_equals_ridge_regression_of_scikit_learn(noise: float, dim: int, ridge: float) -> None:
    z, labels = clouds(noise=noise, dim=dim)
    # Classes come round in turn, so the 1st, 3rd, ... of each are every other round.
    fitted = torch.arange(len(z)) // 5 % 2 == 0
    x = z.double()
    centred = x[fitted] - x[fitted].mean(dim=0)
    strength = ridge * centred.square().sum(dim=0).mean().item()
    model = Ridge(alpha=strength).fit(x[fitted].numpy(), torch.eye(5)[labels[fitted]].numpy())
    guessed = torch.from_numpy(model.predict(x[~fitted].numpy())).argmax(dim=1)
    accuracy = (guessed == labels[~fitted]).double().mean().item()
    assert linear_probe(z, labels, ridge=ridge) == pytest.approx(accuracy)
    assert accuracy < 1 or noise < 1


def test_neither_scale_nor_place_nor_names_of_classes_matter() -> None:
    z, labels = clouds(noise=1.5)
    score = linear_probe(z, labels)
    assert 0.2 < score < 1
    assert linear_probe(1000 * z, labels) == linear_probe(z + 7, labels) == linear_probe(z, 90 - 11 * labels) == score


def test_it_gives_the_same_number_each_time() -> None:
    z, labels = clouds(noise=2.0)
    assert len({linear_probe(z, labels) for _ in range(3)}) == 1


def test_labels_without_meaning_score_as_chance() -> None:
    z, labels = clouds(classes=4, each=200)
    shuffled = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    assert linear_probe(z, shuffled) == pytest.approx(0.25, abs=0.08)


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_a_collapsed_encoder_and_more_dimensions_than_images_give_numbers(ridge: float) -> None:
    labels = torch.arange(4).repeat(6)
    assert linear_probe(torch.ones(24, 8), labels, ridge=ridge) == 0.25
    assert linear_probe(torch.eye(4).repeat(6, 16), labels, ridge=ridge) == 1


def test_an_embedding_as_long_as_an_image_takes_no_table_of_its_dimensions() -> None:
    # 150,528 x 150,528 numbers would be 169 GiB.
    labels = torch.arange(4).repeat(3)
    assert linear_probe(torch.eye(4).repeat(3, 3 * 224 * 224 // 4), labels) == 1


def test_what_cannot_be_probed_is_refused() -> None:
    z, labels = clouds()
    with pytest.raises(InputError, match="5 images with no two of one class cannot be tested"):
        linear_probe(z[:5], labels[:5])
    with pytest.raises(InputError, match="0 images"):
        linear_probe(z[:0], labels[:0])
    with pytest.raises(InputError, match="NaN or infinite"):
        linear_probe(z.index_fill(0, torch.tensor([3]), math.nan), labels)
    for ridge in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match=r"ridge .* is no weight"):
            linear_probe(z, labels, ridge=ridge)
