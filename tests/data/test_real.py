"""The loaders on real data: needs ROBUSTMETRIC_DATA."""

from pathlib import Path

import pytest
import torch

from robustmetric.data.base import data_root
from robustmetric.data.cifar import Cifar10
from robustmetric.data.cub import Cub
from robustmetric.data.tabular import Tabular

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


def present(pattern: str) -> Path:
    found = sorted(data_root(None).glob(pattern))
    if not found:
        pytest.skip(f"no {pattern} under ROBUSTMETRIC_DATA")
    return found[0]


def test_cub_has_its_published_counts(cache: str) -> None:
    present("cub-200-2011*.zip")
    dataset = Cub(cache=cache, size=64).load()
    assert (dataset.train.n, dataset.queries.n) == (5864, 5924)
    assert dataset.train.classes == dataset.queries.classes == 100
    assert dataset.train.class_names[0] == "001.Black_footed_Albatross"
    assert dataset.queries.class_names[-1] == "200.Common_Yellowthroat"
    assert "Black_Footed_Albatross_0046_18" in dataset.train.names[0]  # image 1 of images.txt
    assert torch.equal(dataset.queries.labels, dataset.queries.labels.sort().values)
    assert dataset.unmatched == 0 and dataset.skipped == ()


def test_cifar_has_its_published_counts(cache: str) -> None:
    present("cifar10*")
    dataset = Cifar10(cache=cache).load()
    assert (dataset.train.n, dataset.queries.n) == (50_000, 10_000)
    assert torch.bincount(dataset.train.labels).tolist() == [5000] * 10
    assert torch.bincount(dataset.queries.labels).tolist() == [1000] * 10
    means = dataset.train.inputs.float().mean((0, 2, 3)) / 255
    assert torch.allclose(means, torch.tensor([0.4914, 0.4822, 0.4465]), atol=0.003)


@pytest.mark.parametrize(
    ("name", "train", "test", "features", "classes"),
    [
        ("usps", 7291, 2007, 256, 10),
        ("pendigits", 7494, 3498, 16, 10),
        ("satimage", 4435, 2000, 36, 6),
        ("letter", 16000, 4000, 16, 26),
    ],
)
def test_tables_have_their_published_sizes(name: str, train: int, test: int, features: int, classes: int) -> None:
    present(f"tabular/{name}.npz")
    dataset = Tabular(f"tabular/{name}.npz").load()
    assert (dataset.train.n, dataset.queries.n, dataset.train.classes) == (train, test, classes)
    assert dataset.train.shape == (features,)


def test_an_unsplit_table_is_cut() -> None:
    present("tabular/splice_libsvm_form.npz")
    dataset = Tabular("tabular/splice_libsvm_form.npz", test_share=2175 / 3175).load()
    assert (dataset.train.n, dataset.queries.n, dataset.train.classes) == (1000, 2175, 3)
