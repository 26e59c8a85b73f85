"""The whole examination on models whose truth is known by construction: honest, hidden, randomised."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from robustmetric.attacks.transfer import Surrogate
from robustmetric.diagnose.examine import examine
from robustmetric.diagnose.masking import Examination, Masking
from robustmetric.diagnose.subject import Subject, classifier_subject, retrieval_subject
from robustmetric.diagnose.verdict import Verdict, overall
from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Gallery

EFFORT = Masking(
    images=40, restarts=2, starts=2, start_steps=5, counts=(1, 5, 20, 40), sizes=(1.0, 2.0), apgd_steps=10, queries=60,
    draws=3,
)  # fmt: skip
ENGINE = PGD(Ball(0.1), steps=20, step_size=0.025)


class Prototypes(nn.Module):
    """Logits: minus the squared distances to one point per class. `levels`: of inputs seen so many steps; noise."""

    def __init__(self, levels: int = 0, sigma: float = 0.0, scale: float = 20.0) -> None:
        super().__init__()
        points = torch.rand(4, 16, generator=torch.Generator().manual_seed(1))
        self.points = nn.Parameter(points)
        self.levels, self.sigma, self.scale = levels, sigma, scale

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.flatten(1)
        x = (x * self.levels).round() / self.levels if self.levels else x
        x = x + self.sigma * torch.randn_like(x) if self.sigma else x
        return -self.scale * torch.cdist(x, self.points).square()


class Constant(nn.Module):
    """The first of four classes, whatever it is shown."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1).sum(dim=1, keepdim=True) * torch.tensor([1.0, 0.0, 0.0, 0.0])


def images(count: int = 40) -> Batch:
    """Near the points, some nearer than others to the next."""
    source = torch.Generator().manual_seed(2)
    labels = torch.arange(count) % 4
    points = Prototypes().points.detach()[labels]
    inputs = (points + 0.25 * torch.randn(points.shape, generator=source)).clamp(0, 1)
    return Batch(inputs.view(-1, 1, 4, 4), labels, torch.full((count,), -1))


def subject(model: nn.Module) -> Subject:
    return classifier_subject(model, images(), 4)


def by_name(one: Subject, effort: Masking = EFFORT, engine: PGD = ENGINE) -> dict[str, Verdict]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return {v.name: v for v in examine(one, engine, effort, torch.Generator().manual_seed(0))}


def test_an_honest_model_fails_no_check() -> None:
    found = by_name(subject(Prototypes()))
    assert overall(list(found.values())) != "masked"
    assert set(found) == {
        "randomness", "zero_gradients", "restarts", "loss_curves", "step_size", "loss_against_margin", "radius_sweep",
        "steps", "binarisation", "black_box", "gradient_free", "hard_label", "worst_case",
    }  # fmt: skip
    assert all(one.curve is not None for name, one in found.items() if name not in ("randomness", "black_box"))


def test_an_examination_of_three_images_judges_nothing() -> None:
    for model in (Prototypes(), Prototypes(levels=2), Prototypes(sigma=0.1)):
        found = by_name(classifier_subject(model, images(3), 4))
        assert {verdict.verdict for verdict in found.values()} <= {"unclear", "not run"}


def test_without_another_model_transfer_is_said_not_to_have_been_run_and_changes_nothing() -> None:
    found = by_name(subject(Prototypes()))
    verdict = found.pop("black_box")
    assert verdict.verdict == "not run" and not verdict.numbers and "--surrogate RUN" in verdict.said
    assert overall([*found.values(), verdict]) == overall(list(found.values()))
    assert "and transfer" not in found["worst_case"].numbers


def test_rounded_inputs_are_found_out_by_what_needs_no_gradient() -> None:
    found = by_name(subject(Prototypes(levels=8)))
    failed = {name for name, verdict in found.items() if verdict.verdict == "fail"}
    assert {"zero_gradients", "loss_curves", "gradient_free"} <= failed


def test_saturated_logits_are_found_out_by_the_margin() -> None:
    found = by_name(subject(Prototypes(scale=1e4)))
    assert found["zero_gradients"].verdict == "fail" and found["loss_against_margin"].verdict == "fail"


def test_a_randomised_model_is_said_to_be_one_and_examined_as_one_draw_of_it() -> None:
    found = by_name(subject(Prototypes(sigma=0.05)))
    assert "randomised" in found["randomness"].said and found["randomness"].numbers["apart"] > 0
    assert "mean of draws" in found["randomness"].numbers
    # One draw is an honest function, and a search by decisions, which lets images go, is not asked of it.
    assert all(found[name].verdict != "fail" for name in ("restarts", "zero_gradients", "steps"))
    assert found["hard_label"].verdict == "not run" and "RayS" in found["hard_label"].said


class Waves(nn.Module):
    """An encoder with a rugged neighbourhood: sines of random sums of pixels, mixed at random."""

    def __init__(self) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(3)
        self.sums = 0.5 * torch.randn(16, 48, generator=source)
        self.mixed = torch.randn(48, 8, generator=source)

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.normalize(torch.sin((inputs.flatten(1) - 0.5) @ self.sums) @ self.mixed, dim=1)


def test_a_rugged_encoder_is_found_out_by_all_attacks_together_and_by_none_alone() -> None:
    batch, model = images(60), Waves()
    batch = Batch(batch.inputs, batch.labels, torch.arange(60))
    one = retrieval_subject(model, batch, Gallery(model(batch.inputs), batch.labels), chance=100 * 14 / 59)
    effort = replace(EFFORT, restarts=3, sizes=(0.3, 1.0, 2.0, 4.0), queries=100)
    found = by_name(one, effort, PGD(Ball(0.07), steps=5, step_size=0.07 / 4))
    assert found["worst_case"].verdict == "fail"
    alone = ("restarts", "step_size", "loss_against_margin", "steps", "gradient_free", "hard_label")
    assert all(found[name].verdict != "fail" for name in alone)
    numbers = found["worst_case"].numbers
    falling = ["one run", "restarts", "and step sizes", "and losses", "and steps", "and Square", "and RayS"]
    left = [numbers[name] for name in falling]
    assert left == sorted(left, reverse=True) and numbers["gap"] == left[0] - left[-1]
    # None is left out: all together leave no more than each.
    each = {"step_size": "best", "loss_against_margin": "all", "steps": "after 40", "hard_label": "RayS"}
    assert all(left[-1] <= found[name].numbers[number] for name, number in each.items())


def test_a_transfer_counts_in_the_worst_case() -> None:
    hidden = subject(Prototypes(levels=8))
    lent = replace(hidden, surrogates={"open": Surrogate(Prototypes(), hidden.gallery)})
    numbers = by_name(lent)["worst_case"].numbers
    assert numbers["and transfer"] < numbers["and steps"]


def test_a_randomised_model_is_climbed_by_what_sets_its_own_steps() -> None:
    # Four steps of a twentieth of the radius lead nowhere on single draws, nor do eight half as long on their mean;
    # those of APGD cross the ball.
    short = PGD(Ball(0.1), steps=4, step_size=0.005)
    verdict = by_name(subject(Prototypes(sigma=0.02)), engine=short)["randomness"]
    assert verdict.verdict == "fail" and verdict.numbers["gap"] >= 10


def test_a_model_that_tosses_coins_does_not_fail_by_being_asked_again() -> None:
    class Tossed(Prototypes):
        """Noise on the logits, which no climb of a mean sees through: the attacks are alike, their scores are not."""

        def forward(self, inputs: Tensor) -> Tensor:
            z = super().forward(inputs)
            return z + 40 * torch.randn_like(z)

    tossed = subject(Tossed())
    assert by_name(tossed)["randomness"].verdict == "unclear"
    this = Examination(tossed, ENGINE, EFFORT, torch.Generator().manual_seed(0), votes=EFFORT.votes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        runs = torch.stack([this.survived(tossed.loss, this.usual()) for _ in range(4)]).float()
    # The same attack four times: per image the worst is far below each, by chance alone.
    assert runs.mean() - runs.amin(dim=0).mean() > 0.1


def test_a_model_without_any_gradient_is_examined_as_one_whose_gradient_is_zero() -> None:
    class Counts(Prototypes):
        """Votes: one for the nearest point."""

        def forward(self, inputs: Tensor) -> Tensor:
            return nn.functional.one_hot(super().forward(inputs).argmax(dim=1), 4).float() * 3

    found = by_name(subject(Counts()))
    assert found["zero_gradients"].numbers["images without gradient"] == 100
    assert overall(list(found.values())) == "masked"


def test_a_transfer_that_beats_gradients_is_found_out() -> None:
    honest = subject(Prototypes())
    hidden = replace(subject(Prototypes(levels=8)), surrogates={"open": Surrogate(Prototypes(), honest.gallery)})
    assert by_name(hidden)["black_box"].verdict == "fail"
    same = replace(honest, surrogates={"itself": Surrogate(Prototypes(), honest.gallery)})
    assert by_name(same)["black_box"].verdict == "pass"
    constant = replace(honest, surrogates={"constant": Surrogate(Constant(), honest.gallery)})
    assert by_name(constant)["black_box"].verdict == "not run"


def test_an_encoder_is_examined_by_what_it_finds() -> None:
    batch = images()
    batch = Batch(batch.inputs, batch.labels, torch.arange(len(batch)))

    class Flat(nn.Module):
        def __init__(self, levels: int) -> None:
            super().__init__()
            self.levels = levels

        def forward(self, inputs: Tensor) -> Tensor:
            x = inputs.flatten(1)
            x = (x * self.levels).round() / self.levels if self.levels else x
            return nn.functional.normalize(x - 0.5, dim=1)

    words = []
    for levels in (0, 8):
        model = Flat(levels)
        gallery = Gallery(model(batch.inputs), batch.labels)
        found = by_name(retrieval_subject(model, batch, gallery, chance=100 * 9 / 39))
        words.append((found["zero_gradients"].verdict, overall(list(found.values()))))
    assert words[0][0] == "pass" and words[0][1] != "masked"
    assert words[1] == ("fail", "masked")


def test_the_same_seed_gives_the_same_verdicts() -> None:
    few = replace(subject(Prototypes()), batch=images(12))
    assert by_name(few) == by_name(few)


def test_images_are_attacked_some_at_a_time() -> None:
    one = replace(subject(Prototypes()), together=16)
    assert [len(batch) for batch in one.batches()] == [16, 16, 8]
    this = Examination(one, ENGINE, EFFORT, torch.Generator().manual_seed(0))
    recorder = this.recorded(this.usual(steps=2))
    assert recorder.values.shape == recorder.is_right.shape == (3, 40)
    assert this.survived(one.loss, this.usual()).shape == (40,)


class Rough(nn.Module):
    """Linear logits; an image whose first pixel is bright is seen rounded, and has no gradient that leads anywhere."""

    def forward(self, inputs: Tensor) -> Tensor:
        x, points = inputs.flatten(1), Prototypes().points.detach().to(inputs.dtype)
        seen = torch.where(x[:, :1] > 0.8, (x * 8).round() / 8, x)
        return 20 * (2 * seen @ points.T - points.square().sum(dim=1))


@pytest.mark.filterwarnings("ignore:float16 overflowed, or lost a gradient")
def test_a_climb_that_float16_fails_is_followed_as_it_is_made_again() -> None:
    # Some batches of four have such an image and are climbed twice, others have none.
    bright = images().inputs.flatten(1)[:, 0].view(-1, 4).max(dim=1).values > 0.8
    assert bright.any() and not bright.all()
    exact, half = (replace(subject(Rough()), together=4, search=search) for search in ("fp32", "fp16"))
    followed = []
    for one in (exact, half):
        this = Examination(one, ENGINE, EFFORT, None)
        climb = this.recorded(replace(this.usual(steps=5), random_start=False))
        followed.append(climb.values)
    assert followed[0].shape == followed[1].shape == (6, 40)
    again = bright.repeat_interleave(4)
    assert torch.equal(followed[0][:, again], followed[1][:, again]), "made again in fp32, from the first step on"


def test_the_usual_attack_changes_in_what_is_asked_alone() -> None:
    this = Examination(subject(Prototypes()), ENGINE, EFFORT, None)
    assert this.usual() == replace(ENGINE, keep="best")
    # The step grows with the radius: 0.025 * 2 * 0.4 / 0.1.
    assert this.usual(steps=7, size=2.0, radius=0.4) == PGD(Ball(0.4), 7, 0.025 * 2 * (0.4 / 0.1), keep="best")


def test_most_answers_decide_where_a_model_is_randomised() -> None:
    class Coin(nn.Module):
        """Wrong at the first of every three calls."""

        calls = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            return nn.functional.one_hot(images().labels + int(self.calls % 3 == 1), 5).float()

    this = Examination(subject(Coin()), ENGINE, EFFORT, None, votes=3)
    assert this.clean().tolist() == pytest.approx([2 / 3] * len(this.clean())) and this.right().all()
    assert not Examination(subject(Coin()), ENGINE, EFFORT, None, votes=1).right().any()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"restarts": 0}, "1 or more"),
        ({"counts": (5, 1)}, "rise"),
        ({"counts": ()}, "rise"),
        ({"surrogates": "runs/plain"}, r"expected a list: \[runs/plain\]"),
        ({"sizes": (0.5,)}, "1 .the engine's. among them"),
    ],
)
def test_effort_that_cannot_be_spent_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Masking(**settings)  # type: ignore[arg-type]  # parametrised


def test_a_ball_without_room_is_refused() -> None:
    with pytest.raises(InputError, match="radius"):
        next(examine(subject(Prototypes()), PGD(Ball(0.0), 1, 0.1), EFFORT))


def test_a_ball_that_half_the_checks_do_not_know_is_refused_before_the_first() -> None:
    with pytest.raises(InputError, match="not l2; expected norm: linf"):
        next(examine(subject(Prototypes()), PGD(Ball(0.5, "l2"), 1, 0.1), EFFORT))
