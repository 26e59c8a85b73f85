"""Climbs of several losses side by side, on models small enough to know where each must lead."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from robustmetric.diagnose.examine import examine
from robustmetric.diagnose.losses import FEATURE_TARGET, by_loss
from robustmetric.diagnose.masking import Examination, Masking
from robustmetric.diagnose.subject import Subject, classifier_subject, retrieval_subject
from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Gallery

ENGINE = PGD(Ball(0.2), steps=5, step_size=0.05)
EFFORT = Masking(
    images=12, restarts=1, starts=2, start_steps=16, loss_starts=3, counts=(1, 2), sizes=(1.0,), apgd_steps=2, queries=5
)


class Scaled(nn.Module):
    """Three pixels in, three logits out: with a large `scale` a softmax is 0 or 1 to the last bit of float32."""

    classes = 3

    def __init__(self, scale: float, sigma: float = 0.0) -> None:
        super().__init__()
        self.scale, self.sigma = scale, sigma

    def features(self, inputs: Tensor) -> Tensor:
        x = inputs.flatten(1)
        return x + self.sigma * torch.randn_like(x) if self.sigma else x

    def logits(self, features: Tensor) -> Tensor:
        return self.scale * features

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits(self.features(inputs))


def images(count: int = 12) -> Batch:
    """The label's pixel is 0.38 above the next, and the last is below both wherever a climb of 0.2 begins."""
    labels = torch.arange(count) % 3
    inputs = torch.tensor([0.8, 0.42, 0.0])[(torch.arange(3) - labels[:, None]) % 3]
    return Batch(inputs.view(-1, 1, 1, 3), labels, torch.full((count,), -1))


def classifier(scale: float = 10.0, sigma: float = 0.0) -> Subject:
    model = Scaled(scale, sigma)
    return classifier_subject(model, images(), 3, features=model.features)


def lines(
    subject: Subject, effort: Masking = EFFORT, engine: PGD = ENGINE, seed: int = 0
) -> dict[str, dict[str, list[float]]]:
    this = Examination(subject, engine, effort, torch.Generator().manual_seed(seed))
    found: dict[str, dict[str, list[float]]] = by_loss(this)["losses"]["lines"]
    return found


def test_where_cross_entropy_is_saturated_it_stalls_and_the_margin_goes_on() -> None:
    found = lines(classifier(scale=1e4))
    assert list(found) == ["cross entropy", "margin", "DLR", FEATURE_TARGET]
    assert all(len(line["climbed"]) == len(line["right"]) == 17 for line in found.values())
    # 10^4 (0.42 - 0.8) is far below the -104 at which exp is 0 in float32: no value, no gradient, nothing lost.
    flat = found["cross entropy"]
    assert flat["climbed"] == [0.0] * 17 and flat["right"] == [100.0] * 17
    # The margin rises until pixels are 0.2 up and 0.2 down: 10^4 (0.62 - 0.6) = 200, where every image is lost.
    assert found["margin"]["climbed"][-1] == pytest.approx(200, rel=1e-3)
    assert found["margin"]["right"][0] == 100 and found["margin"]["right"][-1] == 0
    assert found["DLR"]["right"][-1] == 0


def test_each_curve_is_of_what_was_climbed_and_rises() -> None:
    for line in lines(classifier()).values():
        assert line["climbed"] == sorted(line["climbed"]) and line["climbed"][0] < line["climbed"][-1]
        assert line["right"] == sorted(line["right"], reverse=True), "lost once is lost"


def test_cross_entropy_of_lost_images_is_drawn_as_it_is() -> None:
    # Every climb ends at logits 10 (0.6, 0.62, 0.2), and has no 10^4 more for having won.
    end = lines(classifier())["cross entropy"]
    expected = float(torch.tensor([6.0, 6.2, 2.0]).logsumexp(0)) - 6.0
    assert end["right"][-1] == 0 and end["climbed"][-1] == pytest.approx(expected, abs=1e-5)


def test_a_feature_target_is_reached_where_the_ball_holds_it() -> None:
    # In a ball of the whole cube features, which are the pixels, turn to those of another class: cos - 1 is all but 0.
    engine = PGD(Ball(1.0), steps=5, step_size=0.02)
    line = lines(classifier(), replace(EFFORT, start_steps=100), engine)[FEATURE_TARGET]
    assert -1 < line["climbed"][0] < -0.2 and -0.01 < line["climbed"][-1] <= 0
    assert line["right"][-1] == 0


def test_a_loss_that_the_subject_has_not_is_not_climbed() -> None:
    bare = classifier_subject(Scaled(10.0), images(), 3)
    assert FEATURE_TARGET not in lines(bare), "no features to aim at"
    two = Batch(images(6).inputs[::3], images(6).labels[::3], torch.full((2,), -1))
    one_class = replace(classifier(), batch=two)
    assert FEATURE_TARGET not in lines(one_class), "none of another class to aim at"
    pair = Batch(images().inputs[..., :2], images().labels % 2, images().index)
    assert list(lines(classifier_subject(Scaled(10.0), pair, 2))) == ["cross entropy", "margin"]


def test_an_encoder_has_the_losses_of_retrieval() -> None:
    batch = Batch(images().inputs, images().labels, torch.arange(12))
    model = Scaled(1.0)
    one = retrieval_subject(model, batch, Gallery(model(batch.inputs), batch.labels), chance=27.0)
    found = lines(one, engine=PGD(Ball(0.4), steps=5, step_size=0.1))
    assert list(found) == ["margin of neighbours", "soft vote", "ES"]
    assert found["margin of neighbours"]["right"][-1] < found["margin of neighbours"]["right"][0]


def test_curves_hang_on_the_seed_alone_and_not_on_what_was_drawn_before() -> None:
    source = torch.Generator().manual_seed(4)
    this = Examination(classifier(), ENGINE, EFFORT, source)
    first = by_loss(this)
    torch.rand(7, generator=source)
    before = source.get_state()
    assert by_loss(this) == first and torch.equal(source.get_state(), before)
    again = torch.Generator().manual_seed(0)
    again.set_state(before)
    assert by_loss(replace(this, generator=again)) == first, "as where an examination goes on"
    assert first["losses"]["lines"] != lines(classifier(), seed=5)


def test_a_loss_that_cannot_be_drawn_of_an_image_is_drawn_of_the_others() -> None:
    class Broken(Scaled):
        """Answers NaN, where a gradient is asked for, to the first `count` images, which lie in one batch."""

        count = 3

        def forward(self, inputs: Tensor) -> Tensor:
            rows = torch.arange(len(inputs)) < self.count
            return super().forward(inputs).masked_fill(rows[:, None] & inputs.requires_grad, torch.nan)

    def drawn(count: int) -> dict[str, object]:
        model = Broken(10.0)
        model.count = count
        one = classifier_subject(model, images(), 3)
        return by_loss(Examination(one, ENGINE, EFFORT, torch.Generator().manual_seed(0)))

    json.dumps(drawn(3), allow_nan=False)
    found, whole = drawn(3)["losses"]["lines"], drawn(0)["losses"]["lines"]  # type: ignore[index]  # plain values
    assert found.keys() == whole.keys()
    # The labels come in turn, so that nine images are as twelve.
    assert found["margin"]["climbed"][0] == pytest.approx(whole["margin"]["climbed"][0], abs=0.5)
    assert drawn(12) == {}


@pytest.mark.parametrize("sigma", [0.0, 0.01])
@pytest.mark.parametrize("is_seeded", [True, False])
def test_no_check_is_another_for_it(sigma: float, is_seeded: bool) -> None:
    def run(effort: Masking) -> Iterator[object]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            source = torch.Generator().manual_seed(2) if is_seeded else None
            for verdict in examine(classifier(10.0, sigma), ENGINE, effort, source):
                if verdict.name == "loss_curves":
                    names = {"cross entropy", "margin", "DLR"} | (set() if sigma else {FEATURE_TARGET})
                    assert not effort.loss_starts or set(verdict.evidence["losses"]["lines"]) == names
                    assert effort.loss_starts or not verdict.evidence
                yield replace(verdict, evidence={}), verdict.curve

    assert list(run(EFFORT)) == list(run(replace(EFFORT, loss_starts=0)))


def test_the_setting_is_told_where_it_is_not_the_usual() -> None:
    # Finished work is known again by these words, which older records have too.
    assert repr(Masking()) == (
        "Masking(images=200, restarts=5, starts=20, start_steps=100, counts=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),"
        " sizes=(0.1, 0.3, 1.0, 2.0, 4.0), apgd_steps=100, queries=5000, draws=20, votes=25, surrogates=(), "
        "by_vote=False)"
    )
    assert "start_steps=100, loss_starts=0, counts=" in repr(Masking(loss_starts=0))
    with pytest.raises(InputError, match="loss_starts -1"):
        Masking(loss_starts=-1)
