"""Masking diagnostics: is what an attack left standing robustness, or only hidden from this attack?

The four perspectives of the feature-scattering rebuttal (transfer, restarts, loss curves, gradient-free search) and the
checks that later work asks for. Here is what a suite says of them and how one attack on the subject is run and read;
the checks themselves are in `examine.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.attacks.base import Attack, Engine, Scores, Targets, run
from robustmetric.attacks.margin import WON
from robustmetric.attacks.transfer import Source, Surrogate, transfer
from robustmetric.diagnose.checks import Survived
from robustmetric.diagnose.randomised import one_draw
from robustmetric.diagnose.subject import Attached, Recorder, Subject
from robustmetric.diagnose.thresholds import is_by_chance
from robustmetric.errors import InputError
from robustmetric.perturb.gradient import has_gradient
from robustmetric.perturb.pgd import PGD, frozen
from robustmetric.types import Batch, Embeddings, Gallery, Inputs


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
    loss_starts: int = field(default=4, repr=False)
    """Of climbs of each loss by itself, as many steps long, drawn beside those of the check; 0: none."""
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
    surrogates: Sequence[Source] = ()
    """Other models, on which transferred perturbations are found; without any `black_box` is not run."""
    by_vote: bool = False
    """Whether the members of an ensemble vote on the first neighbour, or search by their mean."""
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def __post_init__(self) -> None:
        if isinstance(self.surrogates, str):
            raise InputError(f"surrogates {self.surrogates!r} is one word; expected a list: [{self.surrogates}]")
        numbers = (self.restarts, self.starts, self.start_steps, self.apgd_steps, self.queries, self.draws, self.votes)
        counts = list(self.counts)
        if min(self.images, *numbers) < 1 or not counts or counts != sorted(counts) or counts[0] < 1:
            raise InputError(f"{self} cannot be spent; expected numbers of 1 or more, and `counts` that rise")
        if self.loss_starts < 0:
            raise InputError(f"loss_starts {self.loss_starts} cannot be spent; expected 0 (no such curves) or more")
        if 1.0 not in self.sizes or min(self.sizes) <= 0:
            raise InputError(f"sizes {list(self.sizes)} are expected to be above 0, with 1 (the engine's) among them")

    def __repr__(self) -> str:
        # Finished work is known again by it: what was added later is told only where it is not the usual.
        told = [one for one in fields(self) if one.repr or vars(self)[one.name] != one.default]
        return f"Masking({', '.join(f'{one.name}={vars(self)[one.name]!r}' for one in told)})"

    def effort(self) -> dict[str, int]:
        """What the checks may spend at most: a verdict that cost less takes back none that cost more."""
        names = ("restarts", "starts", "start_steps", "apgd_steps", "queries", "draws", "votes")
        return {name: int(vars(self)[name]) for name in names} | {"steps": int(list(self.counts)[-1])}

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return {}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Tensor:
        raise InputError("masking is no attack to climb but many; expected it to be run by diagnose.examine")

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

    def transferred(self, source: Surrogate, attack: Attack, engine: Engine, climbed: Attack | None = None) -> Answered:
        """The same after an attack on another model; `climbed` is what it is there, if not the same."""
        model, gallery, how = self.subject.model, self.subject.gallery, {**self._how, "climbed": climbed}
        return self._each(
            lambda batch: transfer(attack, engine, source, model, batch, gallery, self.generator, **how).inputs
        )

    @torch.no_grad()
    def is_ignorant(self, source: Surrogate) -> bool:
        """Whether another model is right about the clean images no more often than by chance."""
        subject = self.subject
        with frozen(source.model, subject.view) as embed, one_draw(subject.batch.inputs.device, 0):
            right = [subject.alone(embed(batch.inputs), batch, source.gallery) for batch in subject.batches()]
        return self.by_chance(torch.cat(right))

    def by_chance(self, right: Survived) -> bool:
        """Whether that is no more than a model gets right that knows nothing."""
        return is_by_chance(int(right.sum()), len(right), self.subject.chance / 100)

    @property
    def _how(self) -> dict[str, Any]:
        return {"rounded": False, "view": self.subject.view, "search": self.subject.search}

    def clean(self) -> Answered:
        """The same without an attack."""
        return self._each(lambda batch: batch.inputs)

    def right(self) -> Survived:
        """Whether the model is right about each image without an attack: most of its answers."""
        return self.clean() > HALF

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

    def recorded(self, engine: PGD) -> Recorder:
        """The climb of the usual loss, step by step."""
        recorder = Recorder(self.subject.loss, self.subject.watched, self.subject.right, count=engine.steps + 1)
        self.survived(recorder, engine)
        return recorder


def attached(subject: Subject) -> Subject:
    """The subject as it is, or, where its answers have no gradient at all, with one that is zero."""
    with frozen(subject.model, subject.view) as embed:
        if has_gradient(embed, subject.batch.inputs):
            return subject
    return replace(subject, model=Attached(subject.model), features=None, exposed=None, view="exact")
