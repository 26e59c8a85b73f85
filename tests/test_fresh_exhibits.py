"""The detector's third group: its layers and losses by hand, and that every exhibit is made and answers."""

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from robustmetric.data.base import Split
from robustmetric.types import Batch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`fresh_zoo.py`, imported as its neighbours import it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield importlib.import_module("fresh_zoo")


@pytest.fixture
def clothes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handwritten digits, each pixel 3 x 3 and a rim of two, in the files and at the size of Fashion-MNIST."""
    bunch = load_digits()
    images = np.kron(bunch.images * 15, np.ones((1, 3, 3))).astype(np.uint8)
    images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    for part, rows in (("train", slice(0, 300)), ("t10k", slice(300, 420))):
        _idx(tmp_path / f"{part}-images-idx3-ubyte", images[rows])
        _idx(tmp_path / f"{part}-labels-idx1-ubyte", bunch.target[rows].astype(np.uint8))
    monkeypatch.setenv("ROBUSTMETRIC_DATA", str(tmp_path))


def _idx(path: Path, values: np.ndarray) -> None:
    path.write_bytes(struct.pack(f">i{values.ndim}i", 0x0800 + values.ndim, *values.shape) + values.tobytes())


def _slope(answer: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(answer.sum(), x)[0]


def _points() -> Split:
    """Two of class 0 on the first axis, one of class 1 on the second: their own embeddings, in bytes."""
    inputs = torch.tensor([[255, 0], [255, 0], [0, 255]], dtype=torch.uint8)
    return Split(inputs, torch.tensor([0, 0, 1]), ("a", "b", "c"), torch.ones(3, 2).long(), ("first", "second"))


def test_every_exhibit_is_made_and_answers(zoo: ModuleType, clothes: None) -> None:
    small, exhibits = zoo.fresh_zoo(epochs=1, seed=0), importlib.import_module("exhibits")
    subject_of = importlib.import_module("masking_truth").subject_of
    group = list(importlib.import_module("fresh_exhibits").fresh(small))
    assert len(group) >= 18 and len({exhibit.name for exhibit in group}) == len(group)
    for exhibit in group:
        subject = subject_of(exhibit, small, 12)
        shape = (12, subject.gallery.embeddings.shape[1])
        for model in (exhibit.model, *exhibit.open):
            answer = model(subject.batch.inputs)
            assert answer.shape == shape and bool(answer.isfinite().all()), exhibit.name
    names = {exhibit.name for exhibit in group}
    old = importlib.import_module("masking_zoo").Zoo(0)
    assert not names & {name for half in ("_tuning", "_test") for name in getattr(exhibits, half)(old)}


def test_the_group_is_judged_and_written_to_a_file_of_its_own(zoo: ModuleType, clothes: None, tmp_path: Path) -> None:
    few = ["--half", "fresh", "--effort", "small", "--epochs", "2", "--images", "20", "--results", str(tmp_path)]
    code = importlib.import_module("detector").main([*few, "--only", "linear"])
    (row,) = json.loads((tmp_path / "detector_fresh_small-cpu.json").read_text())["exhibits"]
    assert (row["name"], row["half"]) == ("linear", "fresh") and row["PGD-20"] >= row["adaptive"]
    assert (row["truth"] == "masked") == (row["PGD-20"] - row["adaptive"] >= 10)
    assert code == (0 if row["is_right"] else 1) and not (tmp_path / "detector_small-cpu.json").exists()


def test_without_data_one_line_says_what_is_missing(zoo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROBUSTMETRIC_DATA", raising=False)
    with pytest.raises(SystemExit, match=r"^no data folder given; .*ROBUSTMETRIC_DATA$"):
        importlib.import_module("detector").main(["--half", "fresh"])


def test_images_are_halved_by_the_mean_of_four(zoo: ModuleType) -> None:
    four = torch.tensor([[[[0, 10], [20, 31]]]], dtype=torch.uint8)
    assert zoo.halved(four).tolist() == [[[[15]]]]  # 61 / 4 = 15.25


def test_clothes_to_search_are_of_classes_not_trained_on(zoo: ModuleType, clothes: None) -> None:
    images = zoo.shown("fresh")
    assert images.closed.train.shape == (1, 14, 14) and images.closed.queries.classes == 10
    assert not set(images.unseen.train.class_names) & set(images.unseen.queries.class_names)


def test_a_median_keeps_its_gradient_unless_blind(zoo: ModuleType) -> None:
    x = torch.arange(9.0).view(1, 1, 3, 3).requires_grad_()
    # Around the middle: 0 to 8, of which 4. At the corner, its pixel counts four times: 0 0 0 0 1 1 3 3 4.
    assert zoo.median(x)[0, 0, 1, 1] == 4 and zoo.median(x)[0, 0, 0, 0] == 1
    assert _slope(zoo.median(x)[0, 0, 1, 1], x).flatten().tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert torch.equal(zoo.blind_median(x), zoo.median(x)) and not zoo.blind_median(x).requires_grad


def test_a_sawtooth_stays_near_and_falls_everywhere(zoo: ModuleType) -> None:
    x = torch.tensor([0.0, 0.013, 0.5]).requires_grad_()
    # 0.013 / 0.02 = 0.65, rounded 1: 2 * 0.02 - 0.013.
    torch.testing.assert_close(zoo.sawtooth(x), torch.tensor([0.0, 0.027, 0.5]))
    assert _slope(zoo.sawtooth(x), x).tolist() == [-1, -1, -1]
    many = torch.linspace(0, 1, 1001)
    assert float((zoo.sawtooth(many) - many).abs().max()) <= 0.02 + 1e-6


def test_what_is_drawn_has_its_share(zoo: ModuleType) -> None:
    x = torch.full((100_000,), 0.25)
    assert set(zoo.dithered(x).tolist()) == {0.0, 1.0} and float(zoo.dithered(x).mean()) == pytest.approx(
        0.25, abs=0.01
    )
    assert float((zoo.dropped(x) == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float((zoo.some_coordinates(x) == 0).float().mean()) == pytest.approx(0.1, abs=0.01)


def test_a_thermometer_counts_thresholds_and_hides_its_slope(zoo: ModuleType) -> None:
    x, code = torch.full((1, 1, 1, 1), 0.6).requires_grad_(), zoo.Thermometer(4)
    # Thresholds 1/8, 3/8, 5/8, 7/8.
    assert code(x).flatten().tolist() == [1, 1, 0, 0] and float(_slope(code(x), x)) == 0
    code.straight = True
    assert code(x).flatten().tolist() == [1, 1, 0, 0] and float(_slope(code(x), x)) > 0


def test_sure_answers_are_flat_and_keep_their_order(zoo: ModuleType) -> None:
    z = torch.tensor([[5.0, 0.0, -1.0]]).requires_grad_()
    # log softmax: about -0.01, -5.01, -6.01, beyond both ends.
    torch.testing.assert_close(zoo.clipped(z), torch.tensor([[-0.2, -2.0, -2.0]]))
    torch.testing.assert_close(zoo.twice_softmax(z), torch.tensor([[10.0, 0.0, 0.0]]))
    assert not _slope(zoo.clipped(z)[:, 0], z).any() and not _slope(zoo.twice_softmax(z)[:, 0], z).any()


def test_prototypes_are_class_means(zoo: ModuleType) -> None:
    model = zoo.Prototypes(nn.Identity(), _points())
    # From (1, 0): 0 to the mean of class 0, sqrt(2) to (0, 1).
    torch.testing.assert_close(model(torch.tensor([[1.0, 0.0]])), torch.tensor([[0.0, -20.0]]))


def test_neighbours_are_counted_or_summed(zoo: ModuleType) -> None:
    split = _points().subset([0, 1, 2, 2, 2])
    x = torch.tensor([[1.0, 0.0]])
    assert zoo.Neighbours(nn.Identity(), split)(x).tolist() == [[2, 3]]  # all five
    # Cosines 1, 1 and three times 0: log(2), log(3 e^-20 + 1e-12).
    soft = zoo.Neighbours(nn.Identity(), split, soft=True)(x)
    torch.testing.assert_close(soft, torch.tensor([[np.log(2), np.log(3 * np.exp(-20) + 1e-12)]], dtype=torch.float32))


def test_half_of_the_gradient_is_seen(zoo: ModuleType) -> None:
    x = torch.ones(1, 2).requires_grad_()
    model = zoo.HalfSeen(nn.Identity(), nn.Identity())
    assert model(x).tolist() == [[1, 1]] and _slope(model(x), x).tolist() == [[0.5, 0.5]]


def test_hinge_by_hand(zoo: ModuleType) -> None:
    # max(0, 1 - 2 + 1.5) + max(0, 1 - 2 + 0) = 0.5, over three classes.
    assert float(zoo.Hinge()(torch.tensor([[2.0, 1.5, 0.0]]), torch.tensor([0]))) == pytest.approx(0.5 / 3)


def test_a_flat_loss_adds_each_images_squared_slope(zoo: ModuleType) -> None:
    # Logits (x, 0) at x = 0: cross entropy log 2, slope -1/2 for either image.
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[1.0], [0.0]])
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 0]), torch.arange(2))
    terms = {name: term.detach() for name, term in zoo.FlatLoss(weight=3.0)(model, batch).items()}
    assert float(terms["metric"]) == pytest.approx(np.log(2)) and float(terms["slope"]) == pytest.approx(3 / 4)


def test_a_distilled_model_learns_its_teachers_probabilities(zoo: ModuleType) -> None:
    batch = Batch(torch.tensor([[0.0, np.log(3)]]).float(), torch.tensor([0]), torch.arange(1))
    defence = zoo.Distilled(nn.Identity())
    # The teacher says 1/4, 3/4; a student that says the same has its entropy left.
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert float(defence(nn.Identity(), batch)["metric"]) == pytest.approx(entropy)
    assert float(defence(nn.Linear(2, 2), batch)["metric"].detach()) > entropy
    assert not list(zoo.Distilled(lambda x: x).parameters())


def _tried(names: ModuleType, effort: object, is_random: bool) -> list[object]:
    """The engines that the truth climbs a linear classifier with, in order."""
    masking = importlib.import_module("robustmetric.diagnose.masking")
    subject = importlib.import_module("robustmetric.diagnose.subject")
    batch = Batch(torch.rand(12, 1, 2, 2), torch.arange(12) % 4, torch.full((12,), -1))
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4))
    engines: list[object] = []

    class Noted(masking.Examination):
        def answered(self, attack: object, engine: object) -> Tensor:
            engines.append(engine)
            return super().answered(attack, engine)

    draw = torch.Generator().manual_seed(0)
    this = Noted(subject.classifier_subject(model, batch, 4), names.usual_attack(0.1), effort, draw)
    left = torch.stack(list(names._on_the_model(this, is_random)))
    assert left.shape == (len(engines), 12) and bool(((left == 0) | (left == 1)).all())
    return engines


def test_the_truth_tries_all_that_the_checks_do_and_spends_more(zoo: ModuleType) -> None:
    truth, effort = importlib.import_module("masking_truth"), importlib.import_module("detector").SMALL
    engines = _tried(truth, effort, is_random=False)
    kinds = [type(engine).__name__ for engine in engines]
    # Four restarts and two step sizes; 80 small steps and APGD on the usual loss, the margin and DLR; two searches.
    assert kinds == 6 * ["PGD"] + 3 * ["PGD", "APGD"] + ["Square", "RayS"]
    assert [engine.steps for engine in engines[:8]] == [20] * 6 + [80, 20]  # type: ignore[attr-defined]
    assert [engine.queries for engine in engines[-2:]] == [120, 120]  # type: ignore[attr-defined]
    random = [type(engine).__name__ for engine in _tried(truth, effort, is_random=True)]
    assert random == 6 * ["PGD"] + 3 * ["PGD", "APGD", "Expectation", "Expectation"] + ["Square"]


def test_a_groups_images_are_its_own_and_its_trainings_go_beyond_its_radius(zoo: ModuleType, clothes: None) -> None:
    group = zoo.fresh_zoo(1, 0, "again")
    assert group.images.closed.name == "mnist" and group.images.unseen.name == "mnist, unseen"
    assert zoo.trained_against(group).ball.radius == pytest.approx(0.15)
