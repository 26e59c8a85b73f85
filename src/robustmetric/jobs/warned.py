"""What the authors of AutoAttack warn of (Croce & Hein, ICML 2020; `flags_doc.md` of their package).

Here: images without a gradient, answers that hang on autograd, gradients taken while a model answers, and what Square
wins after gradients. Elsewhere: probabilities, a model without any gradient and too few classes for DLR are refused
(`attacks/margin.py`, `perturb/gradient.py`), and of a model that draws at random `chance.py` tells. They do not warn of
clean answers no better than chance, of embeddings that are all alike, and of encoders without a gradient; we do.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.attacks.margin import WON, is_wrong
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.transfer import Transfer
from robustmetric.attacks.vote import climbs_of
from robustmetric.diagnose.collapse import THRESHOLD, mean_cosine
from robustmetric.diagnose.masking import Masking
from robustmetric.diagnose.randomised import difference, one_draw
from robustmetric.diagnose.thresholds import FEWEST, SWAYED, is_by_chance
from robustmetric.errors import InputError
from robustmetric.jobs.arena import Arena, as_bytes
from robustmetric.jobs.ers import PerQuery
from robustmetric.jobs.progress import say
from robustmetric.jobs.surrogate import find_surrogates
from robustmetric.jobs.workers import full_precision
from robustmetric.numerics.randomness import generator
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.engine import draws_of
from robustmetric.perturb.expectation import Expectation, mean_of
from robustmetric.perturb.fab import FAB
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.pgd import PGD, frozen, value_and_gradient
from robustmetric.records import Record
from robustmetric.report.scores import show_radius
from robustmetric.report.verdict import WORST
from robustmetric.report.warned import WARNED
from robustmetric.types import Batch, Embed, Inputs

ENOUGH = 10_000
"""Embeddings, spread over all, that tell whether they are alike: a double of each of a million is not held."""
WON_BY_SQUARE = 0.2
"""Percent of the images, as in the package: more than that is told."""
BY_CHANCE = "images are named rightly without any attack, as by chance, so that what attacks leave says nothing"
FIRST = 2
"""Images that are enough to see whether a model computes gradients while it answers."""


@full_precision()
def warned_context(arena: Arena, suite: Suite, *, is_randomised: bool) -> dict[str, Any]:
    """What the context of a record must say of the model, found on the first batch; the first rank says it aloud.

    Of encoders, whether they tell images apart and have gradients to climb. Of classifiers; where they are to be
    climbed by APGD, AutoAttack's own engine, what its authors warn of too. What cannot be asked is left to the trials,
    which refuse it.
    """
    rows = slice(arena.batch_size)
    batch = as_bytes(arena.queries.batch(arena.rows[rows], arena.view, index=arena.places[rows]))
    if not arena.is_of_classes:
        return _told(arena, list(_alike(arena)) or list(_unmoved(arena, suite, batch)))
    found = [
        f"{count} {BY_CHANCE}: look for labels in another order than the logits, and for pixels that the model expects "
        "on another scale than [0, 1]"
        for count in _by_chance(arena, arena.model, batch)
    ]
    found = found or list(_with_surrogates(arena, suite, batch))
    trials = [trial for trial in suite.trials if _is_apgd(trial)]
    if trials and not is_randomised:
        found += _by_autograd(arena, batch)
    if trials:
        found += [*_dynamic(arena, batch), *_flat(arena, trials, batch)]
    return _told(arena, found)


def warned_of_square(
    arena: Arena, suite: Suite, records: Iterable[tuple[Record, PerQuery]]
) -> Iterator[tuple[Record, PerQuery]]:
    """Worst cases and what is known of each query, with a warning where Square found what gradients had not."""
    for record, per_query in records:
        yield with_square(record, suite, is_told=arena.workers.rank == 0), per_query


def with_square(record: Record, suite: Suite, *, is_told: bool) -> Record:
    """A group's worst case, with a warning where Square, last of its attacks, won what gradients had left."""
    lost: Mapping[str, int] = record.context.get("lost_first_to", {})
    searches = {trial.label for trial in suite.trials if isinstance(trial.engine, Square)}
    if record.name == WORST or len(lost) < 2 or {label for label in lost if label in searches} != {list(lost)[-1]}:
        return record
    share = 100 * lost[list(lost)[-1]] / max(record.count, 1)
    if share <= WON_BY_SQUARE:
        return record
    words = (
        f"Square, which uses no gradient, took {share:.1f} % of the images at radius "
        f"{show_radius(float(record.settings['radius']))} after the other attacks of {record.name} had left them: more "
        "may fall; run the suite masking, and Square with more queries"
    )
    if is_told:
        say(f"warning: {words}")
    return replace(record, context={**record.context, WARNED: [*record.context.get(WARNED, []), words]})


def _is_apgd(trial: Trial) -> bool:
    """Whether APGD climbs the model itself, or the mean of its draws."""
    engine = trial.engine.engine if isinstance(trial.engine, Expectation) else trial.engine
    return isinstance(engine, APGD) and not isinstance(trial.attack, Transfer)


def _told(arena: Arena, found: Sequence[str]) -> dict[str, Any]:
    """Warnings said aloud by the first rank, as the context of a record has them."""
    for words in found if arena.workers.rank == 0 else []:
        say(f"warning: {words}")
    return {WARNED: list(found)} if found else {}


def _by_chance(arena: Arena, model: nn.Module, batch: Batch) -> Iterator[str]:
    """How many clean images are named rightly, where that is no more than two standard deviations above chance."""
    with frozen(model, arena.seen) as network, one_draw(arena.workers.device, 0), torch.no_grad():
        logits = network(batch.inputs)
    count, right = len(logits), int((~is_wrong(logits, batch.labels)).sum())
    if count >= FEWEST and is_by_chance(right, count, 1 / logits.shape[1]):
        yield f"{right} of the first {count}"


def _with_surrogates(arena: Arena, suite: Suite, batch: Batch) -> Iterator[str]:
    """Other models on which attacks climb and that know nothing of these images."""
    try:
        surrogates = find_surrogates(suite, arena)
    except InputError:
        return  # the trial says why
    for name, surrogate in surrogates.items():
        for count in _by_chance(arena, surrogate.model, batch):
            yield f"the surrogate {name}: {count} {BY_CHANCE}; expected a model that was trained on the same classes"


def _alike(arena: Arena) -> Iterator[str]:
    """Whether images cannot be told apart, of which an attack that moves nothing would speak well."""
    z = arena.gallery.embeddings
    z = z[:: max(1, len(z) // ENOUGH)]
    cosine = float(mean_cosine(z))
    if cosine > THRESHOLD or bool((z == z[:1]).all()):
        seen = "are equal" if math.isnan(cosine) else f"have a mean cosine of {cosine:.4f}"
        yield (
            f"the embeddings of all images {seen}: the model hardly tells them apart, and that an attack moves "
            "little says nothing; look at its weights, and at its pixels, which come in [0, 1]"
        )


def _unmoved(arena: Arena, suite: Suite, batch: Batch) -> Iterator[str]:
    """Images whose embedding has no gradient, or one that holds NaN: what climbs it leaves them as they are."""
    climbed = [trial.label for trial in suite.trials if _is_climbed(trial)]
    if not climbed:
        return
    with frozen(arena.model, arena.seen) as embed, one_draw(arena.workers.device, 0):
        with torch.no_grad():
            z = embed(batch.inputs)
        # Not the attacks' own values, some of which are level where they begin: embedding shift at the image itself.
        direction = torch.randn(z.shape, generator=torch.Generator().manual_seed(0)).to(z)
        try:
            _, gradient = value_and_gradient(lambda x: (embed(x) * direction).sum(dim=1), batch.inputs)
        except InputError:
            return  # the trial says why
    rows = gradient.flatten(1)
    count = int((~rows.any(dim=1) | rows.isnan().any(dim=1)).sum())
    if count:
        yield (
            f"{count} of the first {len(rows)} images have no gradient that {climbed[0]} could follow, so that it and "
            "its like cannot move them, and that they stand says nothing: look for rounding or saturation in the "
            "model, let gradients pass there (straight through), and run the suite masking"
        )


def _is_climbed(trial: Trial) -> bool:
    """Whether gradients of the model itself are followed; masking looks for itself where there are none."""
    engine = trial.engine.engine if isinstance(trial.engine, Expectation) else trial.engine
    return isinstance(engine, PGD | APGD | FAB) and not isinstance(trial.attack, Transfer | Masking)


def _by_autograd(arena: Arena, batch: Batch) -> Iterator[str]:
    """Whether the model answers otherwise where a gradient is asked for."""
    device, x = arena.workers.device, batch.inputs
    with frozen(arena.model) as network:
        with one_draw(device, 0), torch.no_grad():
            scored = network(x)
        try:
            with one_draw(device, 0), torch.enable_grad():
                climbed = network(x.detach().clone().requires_grad_()).detach()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return  # told by the first attack that asks for a gradient
    apart = difference(scored, climbed)
    if apart > SWAYED:
        yield (
            f"the model answers otherwise where a gradient is asked for (logits differ by {100 * apart:.2g} % of the "
            "largest): attacks climb another function than is scored; have it answer alike with and without autograd"
        )


def _dynamic(arena: Arena, batch: Batch) -> Iterator[str]:
    """Whether the model computes gradients of its own while it answers."""
    codes, calls = {torch.autograd.grad.__code__, torch.autograd.backward.__code__}, list[str]()

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in codes:
            calls.append(frame.f_code.co_name)

    before = sys.getprofile()
    with frozen(arena.model) as network, one_draw(arena.workers.device, 0), torch.no_grad():
        sys.setprofile(look)
        try:
            network(batch.inputs[:FIRST])
        finally:
            sys.setprofile(before)
    if calls:
        yield (
            "the model computes gradients while it answers, as a defence that optimises at test time does: AutoAttack "
            "may overrate it; attack that optimisation too (an adaptive attack), and run the suite masking"
        )


def _flat(arena: Arena, trials: list[Trial], batch: Batch) -> Iterator[str]:
    """Images that the model is right about and that have no gradient, or no number to climb, where APGD begins."""
    with frozen(arena.model, arena.seen) as embed, one_draw(arena.workers.device, 0):
        with torch.no_grad():
            clean = embed(batch.inputs)
        right = ~is_wrong(clean, batch.labels)
        for trial in trials:
            try:
                height, gradient = _beginning(arena, trial, embed, clean, batch)
            except InputError:
                continue  # the trial says why
            rows = gradient.flatten(1)
            lost = right & ~height.isfinite()
            if lost.any():
                yield (
                    f"{int(lost.sum())} of the first {int(right.sum())} images that are named rightly have NaN or "
                    f"infinity for an answer where {trial.label} begins, and count as fooled, so that what is left "
                    "says little; look for roots, logarithms and quotients that clean images alone are fit for"
                )
            # What the first point wins already need not be moved: lifted, a loss below 0 has no slope there.
            flat = (~rows.any(dim=1) | rows.isnan().any(dim=1)) & right & ~lost & ~(height >= WON)
            if flat.any():
                yield (
                    f"{int(flat.sum())} of the first {int(right.sum())} images that are named rightly have no gradient "
                    f"where {trial.label} begins, and it cannot move them: look for rounding or saturation in the "
                    "model, let gradients pass there (straight through), and run the suite masking"
                )


def _beginning(
    arena: Arena, trial: Trial, embed: Embed, clean: Tensor, batch: Batch
) -> tuple[Float[Tensor, " batch"], Inputs]:
    """What a trial climbs first and its gradient, at a random point of its ball, as APGD begins at one."""
    randomness, ball = generator(arena.workers.device, 0), trial.engine.ball
    attack = climbs_of(trial.attack)[0]
    targets = attack.choose(clean, batch, arena.gallery, randomness)
    value = mean_of(lambda x: attack.value(embed(x), targets, arena.gallery), draws_of(trial.engine))
    return value_and_gradient(value, ball.random_point(batch.inputs, randomness))
