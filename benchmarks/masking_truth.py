"""The truth about an exhibit: what PGD-20 leaves of it, beside what the best adaptive attack leaves."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from masking_zoo import Exhibit, Zoo
from robustmetric.attacks.base import Engine
from robustmetric.attacks.feature_match import Featured
from robustmetric.attacks.transfer import Surrogate
from robustmetric.data.base import Split
from robustmetric.diagnose.masking import Answered, Examination, Masking, attached
from robustmetric.diagnose.randomised import apart
from robustmetric.diagnose.subject import Decision, Subject, classifier_subject, retrieval_subject
from robustmetric.diagnose.thresholds import STRANGE
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.expectation import Expectation
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.hard_label import RayS
from robustmetric.perturb.pgd import PGD, frozen
from robustmetric.types import Batch, Gallery

MASKED = 10.0
"""Points from PGD-20 to the best adaptive attack from which a model is masked."""
MORE = 2
"""Times what a check spends on an attack: who knows the model better must not also try less."""


@dataclass(frozen=True)
class Truth:
    """Percent right: clean, under PGD-20, and under the adaptive attacks, per image the worst."""

    clean: float
    usual: float
    adaptive: float

    @property
    def is_masked(self) -> bool:
        return round(self.usual - self.adaptive, 6) >= MASKED


def usual_attack(radius: float) -> PGD:
    """PGD-20, its step a quarter of the radius, as 2/255 is of 8/255."""
    return PGD(Ball(radius), 20, radius / 4)


def subject_of(exhibit: Exhibit, zoo: Zoo, images: int) -> Subject:
    """The exhibit on so many test images, spread evenly."""
    split = _shown(exhibit, zoo)
    rows = torch.arange(images) * len(split) // images
    inputs = split.inputs.float() / 255
    if exhibit.is_classifier:
        batch = Batch(inputs[rows], split.labels[rows], torch.full_like(rows, -1))
        features = exhibit.model.features if isinstance(exhibit.model, Featured) else None
        return classifier_subject(exhibit.model, batch, 10, features=features)
    batch = Batch(inputs[rows], split.labels[rows], rows)
    return retrieval_subject(exhibit.model, batch, _gallery(exhibit.model, inputs, split.labels), chance=20.0)


def truth(exhibit: Exhibit, zoo: Zoo, subject: Subject, effort: Masking, seed: int) -> Truth:
    """PGD-20 on the model, and per image the worst of what an adaptive attacker has: every attack of the checks at
    `MORE` times their expense, and APGD on whatever is open of the model."""
    subject = attached(subject)
    is_random = apart(subject) > STRANGE
    draw = torch.Generator().manual_seed(seed)
    votes = effort.votes if is_random else 1
    this = Examination(subject, usual_attack(zoo.images.radius), effort, draw, votes=votes)
    usual = this.answered(subject.loss, this.usual())
    every = torch.stack([usual, *_on_the_model(this, is_random), *_on_what_is_open(this, exhibit, zoo)])
    # Asked again, a randomised model answers otherwise: the best attack as a whole, not the worst answer per image.
    adaptive = every.mean(dim=1).min() if is_random else every.amin(dim=0).mean()
    return Truth(_percent(this.clean()), _percent(usual), 100 * float(adaptive))


def _on_the_model(this: Examination, is_random: bool) -> Iterator[Answered]:
    """Restarts and step sizes of the usual attack; every loss in many small steps and by APGD, of a randomised model
    also in the mean of draws; searches by values and by decisions."""
    subject, effort, ball = this.subject, this.effort, this.engine.ball
    for _ in range(MORE * effort.restarts):
        yield this.answered(subject.loss, this.usual())
    for size in effort.sizes:
        yield this.answered(subject.loss, this.usual(size=size))
    climbs: list[Engine] = [this.usual(MORE * effort.counts[-1], size=0.4), APGD(ball, MORE * effort.apgd_steps)]
    if is_random:
        steps = 2 * MORE * this.engine.steps
        climbs += [Expectation(ball, inner, effort.draws) for inner in (this.usual(steps, size=0.5), APGD(ball, steps))]
    for loss in (subject.loss, subject.margin, *subject.others.values()):
        for climb in climbs:
            yield this.answered(loss, climb)
    yield this.answered(subject.margin, Square(ball, MORE * effort.queries))
    if not is_random:
        yield this.answered(Decision(subject.right), RayS(ball, MORE * effort.queries))


def _on_what_is_open(this: Examination, exhibit: Exhibit, zoo: Zoo) -> Iterator[Answered]:
    subject, split = this.subject, _shown(exhibit, zoo)
    climb = APGD(this.engine.ball, MORE * this.effort.apgd_steps)
    for other in exhibit.open:
        gallery = subject.gallery
        if not exhibit.is_classifier:
            gallery = _gallery(other, split.inputs.float() / 255, split.labels)
        for loss in (subject.loss, subject.margin):
            yield this.transferred(Surrogate(other, gallery), loss, climb)


def _shown(exhibit: Exhibit, zoo: Zoo) -> Split:
    return zoo.images.closed.queries if exhibit.is_classifier else zoo.images.unseen.queries


def _gallery(model: nn.Module, inputs: Tensor, labels: Tensor) -> Gallery:
    with frozen(model) as embed, torch.no_grad():
        return Gallery(embed(inputs), labels)


def _percent(shares: Tensor) -> float:
    return 100 * float(shares.mean())
