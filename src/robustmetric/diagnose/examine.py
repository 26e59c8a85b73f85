"""Every masking check in turn: what each measures, and how an examination that was cut goes on.

The order is part of the examination: the checks draw from one generator, and the last is over what the others found.
Each measurement is judged by a pure function of `checks.py`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from robustmetric.diagnose import checks
from robustmetric.diagnose.binarisation import find_planted
from robustmetric.diagnose.checks import Survived
from robustmetric.diagnose.losses import by_loss
from robustmetric.diagnose.masking import HALF, Answered, Examination, Masking, attached
from robustmetric.diagnose.randomised import FixedDraw, apart
from robustmetric.diagnose.subject import Decision, Subject
from robustmetric.diagnose.thresholds import STRANGE, SWAYED
from robustmetric.diagnose.verdict import Verdict, not_run
from robustmetric.errors import InputError
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.expectation import Expectation
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.hard_label import RayS
from robustmetric.perturb.pgd import PGD, frozen, value_and_gradient
from robustmetric.types import Batch, Embed

WIDEST = 128 / 255
"""The radius at which nothing may be left but chance."""
TRIES = 20
"""Random points that a planted example must not be found by."""
RUNS = "runs"
"""Among what checks leave: the runs of the usual attack, one row each, which several of them are compared with."""

Left = Mapping[str, Bool[Tensor, "... images"]]
"""By attack, which images the model is still right about: what a check leaves for those after it."""
Check = Callable[[Examination, Left], tuple[Verdict, Left]]
"""(examination, what the checks before left) -> the verdict, and what this one leaves."""


@dataclass(frozen=True)
class Ended:
    """A check that has ended, with what the others need to go on as if nothing had been cut."""

    verdict: Verdict
    left: Left = field(default_factory=dict)
    state: Tensor | None = None
    """Of the generator, after it."""


def examine(
    subject: Subject, engine: PGD, effort: Masking | None = None, generator: torch.Generator | None = None
) -> Iterator[Verdict]:
    """Every check in turn."""
    for ended in go_on(subject, engine, effort or Masking(), generator, {}):
        yield ended.verdict


def go_on(
    subject: Subject, engine: PGD, effort: Masking, generator: torch.Generator | None, done: Mapping[str, Ended]
) -> Iterator[Ended]:
    """Every check in turn; those that are done, by name, are not run again but given back."""
    if engine.ball.radius <= 0:
        raise InputError("a ball of radius 0 holds nothing to find; expected a radius > 0, such as 8/255")
    if engine.ball.norm != "linf":
        raise InputError(f"the checks are of pixels changed one by one, not {engine.ball.norm}; expected norm: linf")
    this = Examination(attached(subject), engine, effort, generator)
    distance = apart(this.subject)
    asked: Mapping[str, Check] = OF_A_FUNCTION
    yield _ended("randomness", partial(_randomness, distance), this, {}, done)
    if distance > STRANGE:
        this, asked = _of_one_draw(this)
    left: Left = {}
    for name, check in asked.items():
        ended = _ended(name, check, this, left, done)
        left = {**left, **ended.left}
        yield ended


def _of_one_draw(this: Examination) -> tuple[Examination, Mapping[str, Check]]:
    """What is asked of a randomised model: all but RayS of the function that one draw makes of it, since the rest is
    about gradients, not about chance. Where no draw can be fixed: whether there is a gradient in any of several.
    """
    function = replace(this.subject, model=FixedDraw(this.subject.model), view="exact", features=None, exposed=None)
    if apart(function) <= SWAYED:
        return replace(this, subject=function, goal=None), {**OF_A_FUNCTION, "hard_label": _no_hard_label}
    # Attacks compared image by image would be told apart by their luck.
    asked = {name: partial(_no_draw, name) for name in OF_A_FUNCTION} | {"zero_gradients": _drawn_gradients}
    return replace(this, votes=this.effort.votes), asked


def _drawn_gradients(this: Examination, left: Left) -> tuple[Verdict, Left]:
    gradients = torch.stack([_gradients(this).abs() for _ in range(this.effort.draws)])
    runs = _usual_runs(this, this.effort.restarts)
    return checks.zero_gradients(gradients.mean(dim=0), runs.all(dim=0), this.right()), {}


def _no_draw(name: str, this: Examination, left: Left) -> tuple[Verdict, Left]:
    return not_run(name, "answers differ though torch, numpy and python draw alike: no draw can be fixed"), {}


def _ended(name: str, check: Check, this: Examination, left: Left, done: Mapping[str, Ended]) -> Ended:
    source = this.generator
    if name not in done:
        verdict, own = check(this, left)
        return Ended(verdict, own, None if source is None else source.get_state())
    ended = done[name]
    if source is not None and ended.state is not None:
        source.set_state(ended.state)
    return ended


def _randomness(distance: float, this: Examination, left: Left) -> tuple[Verdict, Left]:
    if distance <= STRANGE:
        return checks.randomness(distance, images=len(this.subject.batch)), {}
    found = _through_the_mean(replace(this, votes=this.effort.votes))
    return checks.randomness(distance, *found, images=len(this.subject.batch)), {}


def _zero_gradients(this: Examination, left: Left) -> tuple[Verdict, Left]:
    """The first check that asks who withstands the usual attack, and so the one that runs it."""
    runs = _usual_runs(this, this.effort.restarts)
    return checks.zero_gradients(_gradients(this), runs.all(dim=0), this.right()), {RUNS: runs}


def _restarts(this: Examination, left: Left) -> tuple[Verdict, Left]:
    return checks.restarts(left[RUNS]), {}


def _loss_curves(this: Examination, left: Left) -> tuple[Verdict, Left]:
    verdict = checks.loss_curves(_climbs(this), this.right(), radius=this.engine.ball.radius)
    return replace(verdict, evidence=by_loss(this)), {}


def _step_size(this: Examination, left: Left) -> tuple[Verdict, Left]:
    sizes = list(this.effort.sizes)
    found = {size: this.survived(this.subject.loss, this.usual(size=size)) for size in sizes}
    scores = [_percent(found[size]) for size in sizes]
    taken, usual = [size * this.engine.step_size for size in sizes], sizes.index(1.0)
    verdict = checks.step_size(taken, scores, usual=usual, images=len(this.subject.batch))
    return verdict, {"step sizes": _worst(found)}


def _loss_against_margin(this: Examination, left: Left) -> tuple[Verdict, Left]:
    by_loss = _by_loss(this, _white(left))
    return checks.loss_against_margin("usual", by_loss), {"losses": _worst(by_loss)}


def _radius_sweep(this: Examination, left: Left) -> tuple[Verdict, Left]:
    return checks.radius_sweep(*_radii(this), chance=this.subject.chance, images=len(this.subject.batch)), {}


def _steps(this: Examination, left: Left) -> tuple[Verdict, Left]:
    counts = list(this.effort.counts)
    right = this.recorded(this.usual(counts[-1])).is_right
    # Row k is the image after k steps; lost once is lost.
    still = right.int().cummin(dim=0).values.bool()
    scores = [_percent(still[count]) for count in counts]
    verdict = checks.steps(counts, scores, usual=this.engine.steps, images=len(this.subject.batch))
    return verdict, {"steps": still[-1]}


def _binarisation(this: Examination, left: Left) -> tuple[Verdict, Left]:
    # An embedding is made to be read; of a classifier it is the logits.
    has_features = this.subject.features is not None or len(this.subject.gallery) > 0
    return checks.binarisation(*_planted(this), has_features=has_features), {}


def _black_box(this: Examination, left: Left) -> tuple[Verdict, Left]:
    transferred = _transferred(this)
    ignorant = [name for name, source in this.subject.surrogates.items() if this.is_ignorant(source)]
    verdict = checks.black_box(_white(left), transferred, ignorant)
    return verdict, {"transfer": _worst(transferred)} if transferred else {}


def _gradient_free(this: Examination, left: Left) -> tuple[Verdict, Left]:
    engine = Square(this.engine.ball, this.effort.queries, goal=this.goal)
    found = {"Square": this.survived(this.subject.margin, engine)}
    return checks.gradient_free(_white(left), found), found


def _hard_label(this: Examination, left: Left) -> tuple[Verdict, Left]:
    engine = RayS(this.engine.ball, this.effort.queries)
    found = {"RayS": this.survived(Decision(this.subject.right), engine)}
    return checks.hard_label(_white(left), found), found


def _no_hard_label(this: Examination, left: Left) -> tuple[Verdict, Left]:
    return not_run("hard_label", "RayS lets images go one by one, and a draw is fixed for a whole batch"), {}


def _worst_case(this: Examination, left: Left) -> tuple[Verdict, Left]:
    others = {name: found for name, found in left.items() if name != RUNS}
    return checks.worst_case(left[RUNS], others, is_by_chance=this.by_chance(this.right())), {}


OF_A_FUNCTION: Mapping[str, Check] = {
    "zero_gradients": _zero_gradients,
    "restarts": _restarts,
    "loss_curves": _loss_curves,
    "step_size": _step_size,
    "loss_against_margin": _loss_against_margin,
    "radius_sweep": _radius_sweep,
    "steps": _steps,
    "binarisation": _binarisation,
    "black_box": _black_box,
    "gradient_free": _gradient_free,
    "hard_label": _hard_label,
    "worst_case": _worst_case,
}
"""The checks of a model that is a function; the last is over all that the others ran at the usual radius."""
NAMES = ("randomness", *OF_A_FUNCTION)
"""Of every check, in turn."""


def _white(left: Left) -> Survived:
    """Who withstands every run of the usual attack."""
    return left[RUNS].all(dim=0)


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


def _climbs(this: Examination) -> Float[Tensor, "starts steps images"]:
    engine = this.usual(this.effort.start_steps)
    return torch.stack([this.recorded(engine).values for _ in range(this.effort.starts)])


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


def _planted(this: Examination) -> tuple[Tensor, Tensor]:
    """A readout of features is climbed as it is: a view would be of the whole model."""
    subject = this.subject
    features = subject.model if subject.features is None else subject.features
    found = [find_planted(features, batch, this.usual(), this.generator, tries=TRIES) for batch in subject.batches()]
    return torch.cat([by for by, _ in found]), torch.cat([chance for _, chance in found])


def _transferred(this: Examination) -> dict[str, Survived]:
    subject = this.subject
    return {
        name: this.transferred(source, subject.loss, this.usual(), subject.climbed_on(source)) > HALF
        for name, source in subject.surrogates.items()
    }


def _worst(found: Mapping[Any, Survived]) -> Survived:
    """Per image, over all that was found."""
    return torch.stack(list(found.values())).all(dim=0)


def _percent(flags: Survived) -> float:
    return 100 * int(flags.sum()) / max(len(flags), 1)
