"""Masking checks as pure functions: what attacks measured in, a named verdict with its numbers and its curve out.

Carlini et al. 2019, "On evaluating adversarial robustness"; Athalye et al., ICML 2018. A check that fails shows that an
attack was too weak, so that what it left standing is no robustness. That all pass proves nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from robustmetric.diagnose import thresholds
from robustmetric.diagnose.thresholds import Word
from robustmetric.diagnose.verdict import INFINITE, Curve, Verdict, finite, not_run
from robustmetric.errors import InputError

ALONE = "a single one has nothing to be compared with"
Survived = Bool[Tensor, " images"]
"""Whether the model is still right about each image."""


def black_box(white: Survived, transferred: Mapping[str, Survived], ignorant: Collection[str] = ()) -> Verdict:
    """Images that withstand the white-box attack must not fall to perturbations found on another model.

    Where they do not, and every other model is `ignorant`, right no more often than by chance, there was nothing to
    transfer: the check could then not be made.
    """
    if not transferred:
        return not_run("black_box", "no other model was named to transfer from (--surrogate RUN)")
    verdict = _not_beaten("black_box", "perturbations found on another model", white, transferred)
    if verdict.verdict != "pass" or set(transferred) > set(ignorant):
        return verdict
    why = f"nothing to find on {', '.join(transferred)}: right about clean images no more often than by chance"
    return replace(not_run("black_box", why), numbers=verdict.numbers)


def gradient_free(white: Survived, searched: Mapping[str, Survived]) -> Verdict:
    """Images that withstand gradients must not fall to a search by values alone."""
    return _not_beaten("gradient_free", "a search that uses no gradients", white, searched)


def hard_label(white: Survived, searched: Mapping[str, Survived]) -> Verdict:
    """Images that withstand gradients must not fall to a search that sees decisions alone."""
    return _not_beaten("hard_label", "a search that sees decisions alone", white, searched)


def restarts(runs: Bool[Tensor, "runs images"]) -> Verdict:
    """One climb must speak for all: the worst case per image over the restarts stays near the mean run."""
    if len(runs) < 2:
        return not_run("restarts", ALONE)
    scores = [_percent(run) for run in runs]
    worst = _percent(runs.all(dim=0))
    numbers = {
        "lowest": min(scores),
        "max-min": max(scores) - min(scores),
        "worst case per image": worst,
        "gap": _percent(runs) - worst,
    }
    said = (
        f"{len(runs)} restarts: lowest {numbers['lowest']:.1f}, max-min {numbers['max-min']:.1f}, per image {worst:.1f}"
    )
    drawn = {"single runs": (_count(scores), scores), "per image": ([1.0, float(len(runs))], [worst, worst])}
    word = _enough(thresholds.RESTARTS.judge(numbers["gap"]), runs.shape[1])
    return Verdict("restarts", word, numbers, said, Curve("run", "right, percent", drawn))


def loss_curves(values: Float[Tensor, "starts steps images"], right: Survived, *, radius: float) -> Verdict:
    """Climbs from random starts must rise, level off and end together; `values` has every start's margin at every step.

    Of images that are `right` without an attack: a loss with a ceiling has nothing to gain where the model is wrong.
    The spread is, per image, max - min of the ends over the mean gain of a climb; its median over images is judged.
    Where climbs gain nothing the spread is infinite; in a ball so small that rounding does that, nothing is said. Nor
    is it of images that climbs take to infinity, which are no numbers apart.
    """
    if len(values) < 2:
        return not_run("loss_curves", ALONE)
    if not right.any():
        return Verdict("loss_curves", "unclear", {}, "the model is right about no image without an attack")
    values = values[:, :, right]
    ends = values[:, -1]
    gains = (ends - values[:, 0]).mean(dim=0)
    least = gains.clamp_min(1e-12)
    spread = ((ends.amax(dim=0) - ends.amin(dim=0)) / least).where(gains > 0, torch.inf)
    late = (ends - values[:, int(0.75 * (values.shape[1] - 1))]).mean(dim=0) / least
    typical, gain = float(spread.nanmedian()), float(gains.nanmedian())
    numbers = finite(
        {"spread": typical, "gain": gain, "percent gained in the last quarter": 100 * float(late.nanmedian())}
    )
    # Of images that can be drawn: one NaN would be that of every mean.
    means = values[:, :, values.isfinite().all(dim=1).all(dim=0)].mean(dim=2)
    drawn = {f"start {i + 1}": (_count(line, first=0), line.tolist()) for i, line in enumerate(means)}
    curve = Curve("step", "mean margin", drawn) if means.isfinite().all() else None
    said = f"{len(values)} random starts end {typical:.2g} of a climb's gain apart"
    if typical >= INFINITE:
        flat = f"{_percent(spread >= INFINITE):.1f} percent of the images it is right about"
        said = f"climbs from {len(values)} random starts gain nothing on {flat}"
    word = _enough(thresholds.SPREAD.judge(typical), int((~spread.isnan()).sum()))
    if word == "fail" and thresholds.is_rounding(gain, float(ends.abs().nanmedian()), radius):
        word, said = "unclear", f"{said}; at radius {radius:.3g} that is below what float32 can tell"
    return Verdict("loss_curves", word, numbers, said, curve)


def radius_sweep(radii: Sequence[float], scores: Sequence[float], chance: float, *, images: int) -> Verdict:
    """As the radius grows the score must fall, and end no better than chance."""
    _paired(radii, scores)
    left = scores[-1] - chance
    rise = max(max(0.0, later - early) for i, early in enumerate(scores) for later in scores[i:])
    numbers = {"at the largest radius": scores[-1], "chance": chance, "largest rise": rise}
    said = f"{scores[-1]:.1f} percent right at radius {radii[-1]:.3g}; chance is {chance:.1f}"
    word = _enough(_worse(thresholds.CHANCE.judge(left), thresholds.RISE.judge(rise)), images)
    lines = {"under attack": (list(radii), list(scores)), "chance": ([0.0, radii[-1]], [chance, chance])}
    return Verdict("radius_sweep", word, numbers, said, Curve("radius", "right, percent", lines))


def steps(counts: Sequence[int], scores: Sequence[float], usual: int, *, images: int) -> Verdict:
    """More steps must stop helping: after a tenth of the most, and no fewer than the usual ones, little more is won.

    `scores` count an image as lost when any step so far fooled the model.
    """
    _paired(counts, scores)
    if len(counts) < 2:
        return not_run("steps", ALONE)
    tenth = max((i for i, count in enumerate(counts) if count <= max(counts[-1] / 10, usual)), default=0)
    if counts[tenth] == counts[-1]:
        return not_run("steps", f"none of {', '.join(map(str, counts))} is more than the usual {usual} steps")
    late = scores[tenth] - scores[-1]
    numbers = {f"after {counts[tenth]}": scores[tenth], f"after {counts[-1]}": scores[-1], "late": late}
    said = f"{scores[tenth]:.1f} percent right after {counts[tenth]} steps, {scores[-1]:.1f} after {counts[-1]}"
    lines = {"under attack": ([float(count) for count in counts], list(scores))}
    curve = Curve("steps", "right, percent", lines, is_logarithmic=True)
    return Verdict("steps", _enough(thresholds.LATE.judge(late), images), numbers, said, curve)


def zero_gradients(gradients: Float[Tensor, "images *shape"], stands: Survived, right: Survived) -> Verdict:
    """Images that withstand the usual attack must have a gradient to climb; one with a NaN in it leads nowhere, and
    counts as none. Where there is none and the image falls all the same, nothing is hidden that counts: unclear.

    Images that are wrong without an attack, not `right`, need no gradient: a loss with a ceiling has none there.
    """
    count, own = len(gradients), gradients[right].flatten(1)
    broken = own.isnan().any(dim=1)
    flat = own.nan_to_num(nan=0.0, posinf=INFINITE, neginf=-INFINITE)
    lengths = flat.abs().amax(dim=1).masked_fill(broken, 0.0)
    lost = lengths == 0
    share, hidden, unread = (100 * int(rows.sum()) / max(count, 1) for rows in (lost, lost & stands[right], broken))
    numbers = {
        "images without gradient": share,
        "of them standing": hidden,
        "images with NaN": unread,
        "pixels without gradient": _percent((flat == 0).flatten()),
        "median of the largest entries": float(lengths.median()) if len(lengths) else 0.0,
    }
    ranked = lengths.sort().values.tolist()
    curve = Curve("images, in order", "largest entry of the gradient", {"images": (_count(lengths), ranked)})
    at_least: Word = "unclear" if share >= thresholds.FLAT.unclear else "pass"
    word = _enough(_worse(thresholds.FLAT.judge(hidden), at_least), len(own))
    said = f"{share:.1f} percent of the images are right and have no gradient, {hidden:.1f} withstand the attack so"
    said += f", {unread:.1f} a gradient that holds NaN" if broken.any() else ""
    return Verdict("zero_gradients", word, numbers, said, curve)


def loss_against_margin(usual: str, by_loss: Mapping[str, Survived]) -> Verdict:
    """The usual loss must be as good to climb as the others: all of them together win little more per image."""
    worst = torch.stack(list(by_loss.values())).all(dim=0)
    scores = {name: _percent(survived) for name, survived in by_loss.items()}
    gap = scores[usual] - _percent(worst)
    said = f"{scores[usual]:.1f} percent right under {usual}, {_percent(worst):.1f} under the worst of all losses"
    word = _enough(thresholds.LOSSES.judge(gap), len(worst))
    curve = _bars({**scores, "all": _percent(worst)})
    return Verdict("loss_against_margin", word, {**scores, "all": _percent(worst), "gap": gap}, said, curve)


def step_size(sizes: Sequence[float], scores: Sequence[float], usual: int, *, images: int) -> Verdict:
    """The attack must not hang on its step size; `usual` is the place of the one used elsewhere."""
    _paired(sizes, scores)
    if len(set(sizes)) < 2:
        return not_run("step_size", ALONE)
    gap = scores[usual] - min(scores)
    best = sizes[scores.index(min(scores))]
    numbers = {"usual": scores[usual], "best": min(scores), "best size": best, "gap": gap}
    said = f"{scores[usual]:.1f} percent right at the usual step size, {min(scores):.1f} at {best:.3g}"
    curve = Curve("step size", "right, percent", {"under attack": (list(sizes), list(scores))}, is_logarithmic=True)
    return Verdict("step_size", _enough(thresholds.STEP_SIZES.judge(gap), images), numbers, said, curve)


def binarisation(found: Survived, by_chance: Survived, *, has_features: bool) -> Verdict:
    """An attack must find adversarial examples that are known to exist (Zimmermann et al., NeurIPS 2022).

    `by_chance`: whether as many random points found them. Too few planted ones say nothing, nor do ones that chance
    finds, unless the attack is worse than chance. Of a classifier without features only logits can be read, often too
    few to hide anything in: the test could then not be made.
    """
    if len(found) == 0:
        return Verdict("binarisation", "unclear", {"planted": 0.0}, "no adversarial example could be planted")
    numbers = {"planted": float(len(found)), "found": _percent(found), "found by chance": _percent(by_chance)}
    said = f"{numbers['found']:.1f} percent of {len(found)} planted adversarial examples found"
    word = _enough(thresholds.PLANTED.judge(100 - numbers["found"]), len(found))
    if numbers["found by chance"] >= thresholds.EASY and numbers["found"] >= numbers["found by chance"]:
        word, said = "unclear", f"{said}, but random points find {numbers['found by chance']:.1f} percent"
        if not has_features:
            word, said = "not run", f"not run: no features to plant in but logits; {said}"
    curve = _bars({"attack": numbers["found"], "random points": numbers["found by chance"]})
    return Verdict("binarisation", word, numbers, said, curve)


def randomness(
    apart: float,
    single: Float[Tensor, " images"] | None = None,
    averaged: Float[Tensor, "climbs images"] | None = None,
    *,
    images: int,
) -> Verdict:
    """A model that answers one input in several ways must be attacked through the mean of its answers.

    `apart`: the largest difference of two answers, relative; then the share of right answers about each image after an
    attack on single draws, and after several on the mean of draws, of which the best counts as a whole. Not the worst
    per image: answers are drawn again to score each attack, and where a model tosses coins more attempts win more,
    whatever they climb.
    """
    if apart <= thresholds.STRANGE:
        said = "the model answers the same input in the same way"
        return Verdict("randomness", _enough("pass", images), {"apart": apart}, said)
    if single is None or averaged is None:
        return Verdict("randomness", "unclear", {"apart": apart}, "the model is randomised; its mean was not attacked")
    scores = {"single draws": 100 * float(single.mean()), "mean of draws": 100 * float(averaged.mean(dim=1).min())}
    gap = scores["single draws"] - scores["mean of draws"]
    said = (
        f"the model is randomised: {scores['single draws']:.1f} percent of the answers right under an attack on single "
        f"draws, {scores['mean of draws']:.1f} under the best of {len(averaged)} on their mean"
    )
    # A randomised model is never simply passed: the other checks are of one draw of its answers.
    word = _worse("unclear", _enough(thresholds.AVERAGED.judge(gap), len(single)))
    return Verdict("randomness", word, {"apart": apart, **scores, "gap": gap}, said, _bars(scores))


def worst_case(
    runs: Bool[Tensor, "runs images"], others: Mapping[str, Survived], *, is_by_chance: bool = False
) -> Verdict:
    """One run of the usual attack must say what all attacks together do: per image, the worst of all that was run.

    Each of several attacks may win a little more than the usual one, none of them enough to tell, and each elsewhere.
    Of a model that is right `is_by_chance` alone, without any attack, nothing is said: it has nothing to lose.
    """
    left, usual = runs.all(dim=0), _percent(runs)
    after = {"restarts": _percent(left)}
    for name, survived in others.items():
        left = left & survived
        after[f"and {name}"] = _percent(left)
    gap = usual - _percent(left)
    said = f"{usual:.1f} percent right under one run of the usual attack, {_percent(left):.1f} under the worst of all"
    word = _enough(thresholds.WORST.judge(gap), len(left))
    if is_by_chance:
        word, said = _worse("unclear", word), f"{said}; without an attack it is right no more often than by chance"
    numbers = {"one run": usual, **after, "gap": gap}
    return Verdict("worst_case", word, numbers, said, _bars({"one run": usual, **after}))


def _not_beaten(name: str, by: str, white: Survived, others: Mapping[str, Survived]) -> Verdict:
    together = torch.stack(list(others.values())).all(dim=0)
    beaten = _percent(white & ~together)
    numbers = {"white-box": _percent(white), **{key: _percent(value) for key, value in others.items()}}
    said = f"{beaten:.1f} percent of the images withstand the white-box attack and fall to {by}"
    word = _enough(thresholds.BEATEN.judge(beaten), len(white))
    return Verdict(name, word, {**numbers, "beaten": beaten}, said, _bars(numbers))


def _enough(word: Word, images: int) -> Word:
    """Of a handful of images nothing is said."""
    return word if images >= thresholds.FEWEST else "unclear"


def _worse(first: Word, second: Word) -> Word:
    order: tuple[Word, ...] = ("pass", "unclear", "fail")
    return max(first, second, key=order.index)


def _percent(flags: Bool[Tensor, "*n"]) -> float:
    # Counted, not averaged: 10 points are reached by ten of a hundred, whatever float32 makes of 0.9 - 0.8.
    return 100 * int(flags.sum()) / max(flags.numel(), 1)


def _count(values: Tensor | Sequence[float], first: int = 1) -> list[float]:
    return [float(i + first) for i in range(len(values))]


def _bars(scores: Mapping[str, float]) -> Curve:
    """Scores side by side: each a line of one point, its name the legend."""
    return Curve("", "percent", {name: ([float(i)], [score]) for i, (name, score) in enumerate(scores.items())})


def _paired(across: Sequence[Any], up: Sequence[float]) -> None:
    if not across or len(across) != len(up):
        raise InputError(f"{len(up)} scores for {len(across)} settings; expected as many, and at least one")
