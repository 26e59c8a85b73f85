"""Masking diagnostics: is what an attack left standing robustness, or only hidden from this attack?

The four perspectives of the feature-scattering rebuttal (transfer, restarts, loss curves, gradient-free search) and the
checks that later work asks for. Each measurement here is judged by a pure function of `checks.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from robustmetric.attacks.base import Attack, Engine, Scores, Targets, run
from robustmetric.attacks.margin import WON
from robustmetric.attacks.transfer import Surrogate, transfer
from robustmetric.diagnose import checks
from robustmetric.diagnose.binarisation import find_planted
from robustmetric.diagnose.checks import Survived, Verdict
from robustmetric.diagnose.randomised import FixedDraw, apart
from robustmetric.diagnose.subject import Attached, Decision, Recorder, Subject
from robustmetric.diagnose.thresholds import STRANGE
from robustmetric.errors import InputError
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.expectation import Expectation
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.hard_label import RayS
from robustmetric.perturb.pgd import PGD, frozen, value_and_gradient
from robustmetric.types import Batch, Embed, Embeddings, Gallery, Inputs

WIDEST = 128 / 255
"""The radius at which nothing may be left but chance."""
TRIES = 20
"""Random points that a planted example must not be found by."""


@dataclass(frozen=True)
class Masking:
    """What a suite says: put the model through every check, its engine being the usual attack. `examine` does it.

    The numbers say how much each check spends; the defaults are those of the published checks.
    """

    images: int = 200
    """At most so many queries, spread evenly over all."""
    restarts: int = 5
    starts: int = 20
    start_steps: int = 100
    counts: Sequence[int] = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    """Steps after which the score is read."""
    sizes: Sequence[float] = (0.1, 0.3, 1.0, 2.0, 4.0)
    """Step sizes, in those of the engine."""
    apgd_steps: int = 100
    queries: int = 5000
    """Of the search by values, and of the one by decisions."""
    draws: int = 20
    """Of a randomised model, behind each gradient of the attack on its mean."""
    votes: int = 25
    """Of a randomised model, answers whose share that is right counts."""
    surrogates: Sequence[str] = ()
    """Run folders of other models, on which transferred perturbations are found."""
    by_vote: bool = False
    """Whether the members of an ensemble vote on the first neighbour, or search by their mean."""
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def __post_init__(self) -> None:
        numbers = (self.restarts, self.starts, self.start_steps, self.apgd_steps, self.queries, self.draws, self.votes)
        counts = list(self.counts)
        if min(self.images, *numbers) < 1 or not counts or counts != sorted(counts) or counts[0] < 1:
            raise InputError(f"{self} cannot be spent; expected numbers of 1 or more, and `counts` that rise")
        if 1.0 not in self.sizes or min(self.sizes) <= 0:
            raise InputError(f"sizes {list(self.sizes)} are expected to be above 0, with 1 (the engine's) among them")

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return {}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Tensor:
        raise InputError("masking is no attack to climb but many; expected it to be run by diagnose.masking.examine")

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {}


Answered = Float[Tensor, " images"]
HALF = 0.5


@dataclass(frozen=True)
class Examination:
    """One subject under one usual attack; `generator` is all the randomness but that of a randomised model itself."""

    subject: Subject
    engine: PGD
    effort: Masking
    generator: torch.Generator | None
    votes: int = 1
    """Answers per image that the model is judged by; more than one where it is randomised."""
    goal: float | None = WON
    """Where searches let an image go; None keeps all in the batch, whose place there decides a fixed draw."""

    def survived(self, attack: Attack, engine: Engine) -> Survived:
        """Whether the model is still right about each image after this attack: most of its answers."""
        return self.answered(attack, engine) > HALF

    def answered(self, attack: Attack, engine: Engine) -> Answered:
        """The share of right answers about each image after this attack."""
        model, gallery, how = self.subject.model, self.subject.gallery, self._how
        return self._each(lambda batch: run(attack, engine, model, batch, gallery, self.generator, **how).inputs)

    def transferred(self, source: Surrogate, attack: Attack, engine: Engine) -> Answered:
        """The same after an attack on another model."""
        model, gallery, how = self.subject.model, self.subject.gallery, self._how
        return self._each(
            lambda batch: transfer(attack, engine, source, model, batch, gallery, self.generator, **how).inputs
        )

    @property
    def _how(self) -> dict[str, Any]:
        return {"rounded": False, "view": self.subject.view, "search": self.subject.search}

    def clean(self) -> Answered:
        """The same without an attack."""
        return self._each(lambda batch: batch.inputs)

    def _each(self, attack: Callable[[Batch], Inputs]) -> Answered:
        return torch.cat([self._right(attack(batch), batch) for batch in self.subject.batches()])

    @torch.no_grad()
    def _right(self, x: Inputs, batch: Batch) -> Answered:
        subject = self.subject
        with frozen(subject.model, subject.view) as embed:
            answers = [subject.right(embed(x), batch, subject.gallery) for _ in range(self.votes)]
        return torch.stack(answers).double().mean(dim=0)

    def usual(self, steps: int | None = None, size: float = 1.0, radius: float | None = None) -> PGD:
        """The usual attack, or that with other steps; of its iterates the one with the largest value counts."""
        engine, ball = self.engine, self.engine.ball
        radius = ball.radius if radius is None else radius
        step_size = engine.step_size * size * (radius / ball.radius)
        return PGD(replace(ball, radius=radius), engine.steps if steps is None else steps, step_size, keep="best")

    def recorded(self, engine: Engine) -> Recorder:
        """The climb of the usual loss, step by step."""
        recorder = Recorder(self.subject.loss, self.subject.watched, self.subject.right)
        self.survived(recorder, engine)
        return recorder


def examine(
    subject: Subject, engine: PGD, effort: Masking | None = None, generator: torch.Generator | None = None
) -> Iterator[Verdict]:
    """Every check in turn."""
    if engine.ball.radius <= 0:
        raise InputError("a ball of radius 0 holds nothing to find; expected a radius > 0, such as 8/255")
    if engine.ball.norm != "linf":
        raise InputError(f"the checks are of pixels changed one by one, not {engine.ball.norm}; expected norm: linf")
    effort = effort or Masking()
    subject = attached(subject)
    distance = apart(subject)
    is_random = distance > STRANGE
    this = Examination(subject, engine, effort, generator)
    if is_random:
        yield checks.randomness(distance, *_through_the_mean(replace(this, votes=effort.votes)))
        # The rest is about gradients, not about chance: of the function that one draw makes of the model.
        subject = replace(subject, model=FixedDraw(subject.model), view="exact", features=None)
        this = replace(this, subject=subject, goal=None)
    else:
        yield checks.randomness(distance)
    yield from _function(this, by_decisions=not is_random)


def _function(this: Examination, *, by_decisions: bool) -> Iterator[Verdict]:
    """The checks of a model that is a function; the last is over all that the others ran at the usual radius."""
    subject, ball, queries = this.subject, this.engine.ball, this.effort.queries
    runs = _usual_runs(this, this.effort.restarts)
    white, left = runs.all(dim=0), dict[str, Survived]()
    yield checks.zero_gradients(_gradients(this), white)
    yield checks.restarts(runs)
    yield checks.loss_curves(_loss_curves(this))
    verdict, left["step sizes"] = _step_sizes(this)
    yield verdict
    by_loss = _by_loss(this, white)
    left["losses"] = _worst(by_loss)
    yield checks.loss_against_margin("usual", by_loss)
    yield checks.radius_sweep(*_radii(this), chance=subject.chance)
    verdict, left["steps"] = _steps(this)
    yield verdict
    yield checks.binarisation(*_planted(this))
    if subject.surrogates:
        transferred = _transferred(this)
        left["transfer"] = _worst(transferred)
        yield checks.black_box(white, transferred)
    left["Square"] = this.survived(subject.margin, Square(ball, queries, goal=this.goal))
    yield checks.gradient_free(white, {"Square": left["Square"]})
    if by_decisions:
        left["RayS"] = this.survived(Decision(subject.right), RayS(ball, queries))
        yield checks.hard_label(white, {"RayS": left["RayS"]})
    yield checks.worst_case(runs, left)


def attached(subject: Subject) -> Subject:
    """The subject as it is, or, where its answers have no gradient at all, with one that is zero."""
    with frozen(subject.model, subject.view) as embed, torch.enable_grad():
        has_gradient = embed(subject.batch.inputs[:1].detach().requires_grad_()).requires_grad
    return subject if has_gradient else replace(subject, model=Attached(subject.model), features=None, view="exact")


def _usual_runs(this: Examination, times: int) -> Bool[Tensor, "runs images"]:
    return torch.stack([this.survived(this.subject.loss, this.usual()) for _ in range(times)])


def _through_the_mean(this: Examination) -> tuple[Answered, Float[Tensor, "climbs images"]]:
    """Right answers after the usual attack on single draws, and after each of four climbs of the mean of several: of
    either loss, in smaller steps and in those that APGD sets, each twice as long as the usual attack."""
    subject, ball, steps = this.subject, this.engine.ball, 2 * this.engine.steps
    means = [Expectation(ball, inner, this.effort.draws) for inner in (this.usual(steps, size=0.5), APGD(ball, steps))]
    averaged = [this.answered(loss, mean) for mean in means for loss in (subject.loss, subject.margin)]
    return this.answered(subject.loss, this.usual()), torch.stack(averaged)


def _gradients(this: Examination) -> Float[Tensor, "images *shape"]:
    """Of the usual loss at the clean images."""
    subject = this.subject
    with frozen(subject.model, subject.view) as embed:
        return torch.cat([_gradient(subject, embed, batch, this.generator) for batch in subject.batches()])


def _gradient(subject: Subject, embed: Embed, batch: Batch, generator: torch.Generator | None) -> Tensor:
    with torch.no_grad():
        targets = subject.loss.choose(embed(batch.inputs), batch, subject.gallery, generator)
    return value_and_gradient(lambda x: subject.loss.value(embed(x), targets, subject.gallery), batch.inputs)[1]


def _loss_curves(this: Examination) -> Float[Tensor, "starts steps images"]:
    engine = this.usual(this.effort.start_steps)
    return torch.stack([this.recorded(engine).values for _ in range(this.effort.starts)])


def _step_sizes(this: Examination) -> tuple[Verdict, Survived]:
    sizes = list(this.effort.sizes)
    found = {size: this.survived(this.subject.loss, this.usual(size=size)) for size in sizes}
    scores = [_percent(found[size]) for size in sizes]
    verdict = checks.step_size([size * this.engine.step_size for size in sizes], scores, usual=sizes.index(1.0))
    return verdict, _worst(found)


def _by_loss(this: Examination, white: Survived) -> dict[str, Survived]:
    """By the usual attack with its restarts, the other losses, and APGD: all of them against as many restarts."""
    losses = {"margin": this.subject.margin, **this.subject.others}
    found = {"usual": white, **{name: this.survived(loss, this.usual()) for name, loss in losses.items()}}
    careful = APGD(this.engine.ball, this.effort.apgd_steps)
    for name, loss in {"usual": this.subject.loss, **this.subject.others}.items():
        found[f"{name}, APGD"] = this.survived(loss, careful)
    return found


def _radii(this: Examination) -> tuple[list[float], list[float]]:
    """Doubled up to the widest."""
    radii = [this.engine.ball.radius / 2]
    while radii[-1] < WIDEST:
        radii.append(min(2 * radii[-1], WIDEST))
    scores = [_percent(this.survived(this.subject.loss, this.usual(radius=radius))) for radius in radii]
    return radii, scores


def _steps(this: Examination) -> tuple[Verdict, Survived]:
    counts = list(this.effort.counts)
    right = this.recorded(this.usual(counts[-1])).is_right
    # Row k is the image after k steps; lost once is lost.
    still = right.int().cummin(dim=0).values.bool()
    return checks.steps(counts, [_percent(still[count]) for count in counts], usual=this.engine.steps), still[-1]


def _planted(this: Examination) -> tuple[Tensor, Tensor]:
    """A readout of features is climbed as it is: a view would be of the whole model."""
    subject = this.subject
    features = subject.model if subject.features is None else subject.features
    found = [find_planted(features, batch, this.usual(), this.generator, tries=TRIES) for batch in subject.batches()]
    return torch.cat([by for by, _ in found]), torch.cat([chance for _, chance in found])


def _transferred(this: Examination) -> dict[str, Survived]:
    loss = this.subject.loss
    sources = this.subject.surrogates.items()
    return {name: this.transferred(source, loss, this.usual()) > HALF for name, source in sources}


def _worst(found: Mapping[Any, Survived]) -> Survived:
    """Per image, over all that was found."""
    return torch.stack(list(found.values())).all(dim=0)


def _percent(flags: Survived) -> float:
    return 100 * int(flags.sum()) / max(len(flags), 1)
