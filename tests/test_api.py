"""Two functions for people with their own loop."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import robustmetric
from robustmetric.errors import InputError
from robustmetric.models.encoder import Encoder


class Means(nn.Module):
    """Four quadrants' brightness, not of unit length."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(7.0))

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)


def images_and_labels() -> tuple[Tensor, Tensor]:
    """Four classes of 32 images, each with one bright quadrant."""
    generator = torch.Generator().manual_seed(0)
    images = 0.2 * torch.rand(128, 1, 8, 8, generator=generator)
    labels = torch.arange(128) % 4
    for i, label in enumerate(labels.tolist()):
        row, column = divmod(label, 2)
        images[i, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 0.6
    return images, labels


def test_a_good_encoder_is_perfect_until_it_is_attacked() -> None:
    images, labels = images_and_labels()
    records = robustmetric.evaluate(Means(), images, labels, suite="demo")
    assert records[0].name == "clean" and records[0].scores["R@1"] == 100.0
    # 31 of the 127 other images are of the same class.
    assert records[0].settings["chance"] == pytest.approx(100 * 31 / 127)
    shifts = [record.scores["ES:R"] for record in records if record.name == "ES"]
    assert len(shifts) == 5 and shifts[-1] < 50 < shifts[0]
    assert all(record.settings["suite"] == "demo" and record.count == 128 for record in records)


def test_labels_may_be_any_whole_numbers_in_a_list() -> None:
    images, labels = images_and_labels()
    names = [(-5, 7, 1000, 3)[label] for label in labels.tolist()]
    (clean, *_) = robustmetric.evaluate(Means(), images, names, suite="demo", radius=0.1, queries=8)
    assert clean.scores["R@1"] == 100.0 and clean.count == 8


def test_the_encoder_is_left_as_it_was() -> None:
    images, labels = images_and_labels()
    encoder = Means().train()
    robustmetric.evaluate(encoder, images, labels, suite="demo", radius=0.1)
    assert encoder.training and encoder.scale.requires_grad and encoder.scale.grad is None


def test_an_attack_stays_in_the_ball_on_bytes_and_depends_on_its_seed_alone() -> None:
    images, labels = images_and_labels()
    moved = robustmetric.attack(Means(), images, labels, "ES", suite="demo", radius=0.1)
    assert moved.shape == images.shape
    # The images themselves are first rounded to bytes: half a level more.
    assert float((moved - images).abs().max()) <= 0.1 + 0.5 / 255 + 1e-5
    assert float((moved - images).abs().max()) > 0.05
    assert torch.allclose(moved * 255, (moved * 255).round(), atol=1e-3)
    assert torch.equal(moved, robustmetric.attack(Means(), images, labels, "ES", suite="demo", radius=0.1))
    other = robustmetric.attack(Means(), images, labels, "ES", suite="demo", radius=0.1, seed=1)
    assert not torch.equal(moved, other)


def test_radius_0_gives_the_images_back() -> None:
    images, labels = images_and_labels()
    still = robustmetric.attack(Means(), images, labels, "ES", suite="demo", radius=0.0)
    assert torch.allclose(still, (images * 255).round() / 255, atol=1e-6)


@pytest.mark.parametrize("function", [robustmetric.evaluate, robustmetric.attack])
def test_bad_input_is_one_clear_line(function) -> None:  # type: ignore[no-untyped-def]  # two signatures
    images, labels = images_and_labels()
    for bad, message in [
        ((images, [0, 1, 2]), "128 images and 3 labels"),
        ((images[:1], labels[:1]), "one image has no other to search; expected at least 2"),
        ((images[:0], labels[:0]), "no images were given; expected at least one"),
        ((images * float("nan"), labels), "NaN or infinity"),
        ((images * 255, labels), r"the images span \[.*\]; expected \[0, 1\]"),
        ((images - 1, labels), "normalise inside the encoder"),
    ]:
        with pytest.raises(InputError, match=message):
            function(Means(), *bad, suite="demo", radius=0.1)
    with pytest.raises(InputError, match=r"radius -0\.1 is not a distance"):
        function(Means(), images, labels, suite="demo", radius=-0.1)
    with pytest.raises(InputError, match="no suite we ship; did you mean 'demo'"):
        function(Means(), images, labels, suite="dmeo")
    with pytest.raises(InputError, match="a batch of 0 images"):
        function(Means(), images, labels, suite="demo", radius=0.1, batch_size=0)


@pytest.mark.parametrize("suite", ["demo", "masking"])
def test_labels_by_which_no_search_can_be_right_or_wrong_are_refused(suite: str) -> None:
    images, labels = images_and_labels()
    for bad, message in ((labels * 0, "images of one class only"), (torch.arange(128), "one image of each class")):
        with pytest.raises(InputError, match=f"the labels are of {message}"):
            robustmetric.evaluate(Means(), images, bad, suite, 0.1)


def test_an_unknown_attack_of_a_suite_is_named() -> None:
    with pytest.raises(InputError, match="'EX' is not an attack of suite 'demo'"):
        robustmetric.attack(Means(), *images_and_labels(), "EX", suite="demo")


def test_an_encoder_that_gives_nan_is_named_with_the_image() -> None:
    broken = Means()
    with torch.no_grad():
        broken.scale.fill_(float("nan"))
    with pytest.raises(InputError, match="embedding of image 0 holds NaN"):
        robustmetric.evaluate(broken, *images_and_labels(), suite="demo")


def test_an_attack_at_several_radii_needs_one() -> None:
    with pytest.raises(InputError, match=r"suite 'demo' runs 'ES' at radii 0\.05, 0\.1, .*; choose one with radius="):
        robustmetric.attack(Means(), *images_and_labels(), "ES", suite="demo")


def test_flat_features_are_attacked_unrounded() -> None:
    features = torch.rand(12, 5, generator=torch.Generator().manual_seed(0))
    moved = robustmetric.attack(nn.Linear(5, 4), features, torch.arange(12) % 3, "ES", suite="demo", radius=0.1)
    # 0.1 is 25.5/255: bytes would stop at 25/255 = 0.098.
    assert float((moved - features).abs().max()) == pytest.approx(0.1, abs=1e-6)


def test_an_attack_runs_in_full_precision() -> None:
    seen = []

    class Asks(Means):
        def forward(self, images: Tensor) -> Tensor:
            seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
            return super().forward(images)

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        robustmetric.attack(Asks(), *images_and_labels(), "ES", suite="demo", radius=0.1)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {("highest", False)}


def test_a_model_of_ours_is_taken_as_it_is() -> None:
    from robustmetric.jobs.own import unit
    from robustmetric.models.ensemble import Ensemble
    from robustmetric.models.mahalanobis import Mahalanobis

    for ours in (Encoder(Means()), Ensemble([Encoder(Means(), dim=4)]), Mahalanobis(4)):
        assert unit(ours) is ours
    assert torch.allclose(unit(Means())(torch.rand(3, 1, 8, 8)).norm(dim=1), torch.ones(3))


def test_every_name_of_the_package_is_there() -> None:
    assert {"fold", "robust_error", "robust_curve", "area_under_error"} <= set(robustmetric.__all__)
    for name in robustmetric.__all__:
        assert getattr(robustmetric, name).__name__ == name


def classifier(seed: int, classes: int = 4) -> nn.Sequential:
    """Logits that are the brightness of each quadrant, and a little noise of its own."""
    torch.manual_seed(seed)
    noise = nn.Linear(4, classes, bias=False)
    noise.weight.data = torch.eye(classes, 4) + 0.1 * torch.rand(classes, 4)
    module = nn.Sequential(Means(), noise)
    module.classes = classes
    return module


def test_a_classifier_may_be_asked_about_a_single_image() -> None:
    one = [part[:1] for part in images_and_labels()]
    clean, *moved = robustmetric.evaluate(classifier(0), *one, suite="autoattack", radius=0.4)
    assert clean.scores["accuracy"] == 100 and moved[-1].scores["accuracy"] == 0
    assert robustmetric.attack(classifier(0), *one, "Square", "autoattack", 0.1).shape == one[0].shape
    with pytest.raises(InputError, match="no images were given"):
        robustmetric.evaluate(classifier(0), one[0][:0], one[1][:0], suite="autoattack")


def test_images_of_one_class_have_no_features_of_another_to_match(capsys: pytest.CaptureFixture[str]) -> None:
    class Bare(nn.Module):
        classes = 4

        def __init__(self) -> None:
            super().__init__()
            self.features, self.logits = Means(), classifier(0)[1]

        def forward(self, images: Tensor) -> Tensor:
            return self.logits(self.features(images))

    images, labels = images_and_labels()
    found = robustmetric.evaluate(Bare(), images[labels == 0][:2], labels[labels == 0][:2], "classification", 0.4)
    assert "left out: Feature match, as the images are of one class" in capsys.readouterr().err
    assert found[-1].name == "worst case" and found[-1].settings["left_out"] == ["Feature match"]


def test_the_names_of_classes_do_not_say_how_many_logits_there_are() -> None:
    named = classifier(0)
    named.classes = ["a", "b", "c", "d"]
    with pytest.raises(InputError, match=r"Sequential.classes is a list; expected a whole number"):
        robustmetric.evaluate(named, *images_and_labels(), suite="autoattack")


class Answers(nn.Module):
    """A classifier, and what is made of its logits."""

    classes = 4

    def __init__(self, made: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.model, self.made = classifier(1), made

    def forward(self, images: Tensor) -> object:
        return self.made(self.model(images))


@pytest.mark.parametrize("suite", ["transfer", "masking"])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda z: z * float("nan"), "the model's logits hold NaN"),
        (lambda z: z.softmax(dim=1), "the model returns probabilities"),
        (lambda z: (z, z), "Answers returned a tuple"),
        (lambda z: z @ torch.zeros(3, 4), "the model failed on inputs of shape"),
    ],
)
def test_a_surrogate_that_nothing_can_be_climbed_on_is_refused(
    suite: str, made: Callable[[Tensor], object], said: str
) -> None:
    with pytest.raises(InputError, match=f"the surrogate 'Answers' cannot be climbed on: {said}"):
        robustmetric.evaluate(classifier(0), *images_and_labels(), suite, 0.1, surrogate=Answers(made))


def test_a_surrogate_may_be_a_module_of_ones_own() -> None:
    images, labels = images_and_labels()
    target, other = classifier(0), classifier(1)
    clean, *moved = robustmetric.evaluate(target, images, labels, suite="transfer", radius=0.4, surrogate=other)
    assert clean.scores["accuracy"] == 100 and moved[0].name == "PGD-20 from Sequential"
    assert all(r.scores["accuracy"] < 50 and r.settings["surrogate_module"] == "Sequential" for r in moved)
    assert {r.settings["surrogate_weights"] for r in moved}.isdisjoint({clean.settings["weights"]})
    found = robustmetric.attack(target, images, labels, "PGD-20", "transfer", 0.4, surrogate=other)
    assert (target(found).argmax(dim=1) == labels).float().mean() < 0.5


def test_an_encoder_has_a_surrogate_too() -> None:
    images, labels = images_and_labels()
    found = robustmetric.evaluate(
        Means(), images, labels, suite="transfer28", radius=0.3, queries=8, surrogate=nn.Flatten()
    )
    assert found[-1].name == "ERS from Flatten"


def test_a_surrogate_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    given = (*images_and_labels(), "transfer", 0.1)
    with pytest.raises(InputError, match=r"every attack asks for a surrogate.*in Python: surrogate=MODULE"):
        robustmetric.evaluate(classifier(0), *given)
    with pytest.raises(InputError, match=r"'Sequential' is no classifier of the target's 4 classes.*classes = 4"):
        robustmetric.evaluate(classifier(0), *given, surrogate=classifier(0, classes=5))
    with pytest.raises(InputError, match="is not a run folder"):
        robustmetric.evaluate(classifier(0), *given, surrogate=tmp_path)
    with pytest.raises(InputError, match="no attack asks for a surrogate; leave 'Sequential' out"):
        robustmetric.evaluate(classifier(0), *given[:2], "autoattack", surrogate=classifier(1))
