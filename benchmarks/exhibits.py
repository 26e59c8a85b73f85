"""The exhibits on digits, by half."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from masking_zoo import (
    Averaged,
    Changed,
    Exhibit,
    Noisy,
    Reversed,
    Step,
    Transformed,
    Votes,
    Winners,
    Zoo,
    adversary,
    classifier,
    closed,
    encoder,
    floors,
    frequencies,
    levels,
    opened,
    randomly,
    shattered,
)
from robustmetric.defences.destinations import Gradual
from robustmetric.defences.eat import EnsembleAdversarial
from robustmetric.defences.hardness import HardnessManipulation
from robustmetric.defences.madry import Madry
from robustmetric.defences.naive_ensemble import NaiveEnsemble
from robustmetric.defences.plain import Plain
from robustmetric.defences.structure import Structure
from robustmetric.losses.cross_entropy import CrossEntropy
from robustmetric.losses.mining import SemiHard, SoftHard
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet
from robustmetric.models.ensemble import Ensemble

Half = Literal["tuning", "test"]
Make = Callable[[], Exhibit]


def exhibits(zoo: Zoo, half: Half, only: Sequence[str] | None = None) -> Iterator[Exhibit]:
    """One half of the zoo. The ways to hide a gradient in one are, with few exceptions, not those of the other."""
    return named((_tuning if half == "tuning" else _test)(zoo), only)


def named(makes: Mapping[str, Make], only: Sequence[str] | None = None) -> Iterator[Exhibit]:
    """Each exhibit as it is made, or `only` some of them."""
    for name, make in makes.items():
        if only is None or name in only:
            yield replace(make(), name=name)


def _tuning(zoo: Zoo) -> dict[str, Make]:
    def plain() -> nn.Module:
        return zoo.classifier("plain")

    def found() -> nn.Module:
        return zoo.encoder("plain")

    def naive() -> nn.Module:
        return zoo.encoder("naive", _three, NaiveEnsemble([Plain(Triplet(SemiHard())) for _ in range(3)]))

    def noisy() -> nn.Module:
        return zoo.classifier("noisy", lambda: Transformed(classifier(), randomly(0.3)))

    return {
        "plain": lambda: as_it_is(plain()),
        "madry": lambda: as_it_is(zoo.classifier("madry", defence=_madry())),
        "logits / 10": lambda: as_it_is(Changed(plain(), lambda z: z / 10)),
        "logits / 2": lambda: as_it_is(Changed(plain(), lambda z: z / 2)),
        "plain, retrieval": lambda: as_it_is(found(), is_classifier=False),
        "embedding x 10, retrieval": lambda: as_it_is(Changed(found(), lambda z: 10 * z), is_classifier=False),
        "ensemble by mean, retrieval": lambda: as_it_is(naive(), is_classifier=False),
        "quantised to 5 levels": lambda: behind(plain(), levels(4)),
        "shattered": lambda: behind(plain(), shattered),
        "temperature 1/1000": lambda: _saturated(plain()),
        "noise 0.3": lambda: randomised(noisy()),
        "hard steps": lambda: activated(zoo.classifier("step", lambda: classifier(Step))),
        "reversed gradient": lambda: behind(plain(), Reversed.apply),
        "quantised to 5 levels, retrieval": lambda: behind(found(), levels(4), is_classifier=False),
        "hashed embedding, retrieval": lambda: _hashed(found()),
    }


def _test(zoo: Zoo) -> dict[str, Make]:
    def plain(seed: int = 0) -> nn.Module:
        return zoo.classifier("plain", seed=seed)

    def found() -> nn.Module:
        return zoo.encoder("plain")

    def smoothed() -> nn.Module:
        return zoo.classifier("madry smoothed", defence=_madry(CrossEntropy(0.3)), seed=1)

    def strong() -> nn.Module:
        return zoo.encoder("madry", defence=Madry(Triplet(SemiHard()), adversary(8), clean_share=0.5))

    def hardness() -> nn.Module:
        defence = HardnessManipulation(SoftHard(), Gradual(), adversary(8), structure=Structure())
        return zoo.encoder("hm", defence=defence)

    def together() -> nn.Module:
        defence = EnsembleAdversarial([ProxyAnchor(5, 32) for _ in range(3)], adversary(8))
        return zoo.encoder("eat", _three, defence, pairs=False)

    def one_step() -> nn.Module:
        return zoo.classifier("one step", defence=Madry(CrossEntropy(0.5), adversary(1, size=1.25)), seed=1)

    def moved() -> nn.Module:
        return zoo.classifier("moved", lambda: Transformed(classifier(), randomly(0.2, shifts=1)), seed=1)

    def vote() -> Exhibit:
        three = [plain(seed) for seed in range(3)]
        return Exhibit("", Votes(three), True, (Votes(three, soft=True),))

    return {
        "madry, smoothing 0.3": lambda: as_it_is(smoothed()),
        "tanh": lambda: as_it_is(zoo.classifier("tanh", lambda: classifier(nn.Tanh), seed=2)),
        "madry, logits / 3": lambda: as_it_is(Changed(smoothed(), lambda z: z / 3)),
        "smoothing 0.5": lambda: as_it_is(zoo.classifier("soft", defence=Plain(CrossEntropy(0.5)), seed=3)),
        "madry, retrieval": lambda: as_it_is(strong(), is_classifier=False),
        "hm, retrieval": lambda: as_it_is(hardness(), is_classifier=False),
        "eat by mean, retrieval": lambda: as_it_is(together(), is_classifier=False),
        "bit depth 1": lambda: behind(plain(), floors(1)),
        "cosine coefficients rounded": lambda: behind(plain(), frequencies(0.5)),
        "vote of three": vote,
        "k winners": lambda: activated(zoo.classifier("winners", lambda: classifier(Winners, 32), seed=1)),
        "one step, smoothing 0.5": lambda: as_it_is(one_step()),
        "noisy gradient": lambda: behind(plain(), Noisy.apply),
        "madry, temperature 1/1000": lambda: _saturated(smoothed()),
        "noise 0.2 and shifts": lambda: randomised(moved()),
        "shattered, retrieval": lambda: behind(found(), shattered, is_classifier=False),
        "noisy gradient, retrieval": lambda: behind(found(), Noisy.apply, is_classifier=False),
        "cosine coefficients rounded, retrieval": lambda: behind(strong(), frequencies(0.5), is_classifier=False),
    }


def _madry(loss: CrossEntropy | None = None) -> Madry:
    return Madry(loss or CrossEntropy(), adversary())


def _three() -> Ensemble:
    return Ensemble([encoder() for _ in range(3)])


def as_it_is(model: nn.Module, *, is_classifier: bool = True) -> Exhibit:
    """A model that hides nothing, or nothing that an attacker could do without."""
    return Exhibit("", model, is_classifier)


def behind(base: nn.Module, transform: Callable[[Tensor], Tensor], *, is_classifier: bool = True) -> Exhibit:
    """A model behind a transform of its inputs."""
    straight = Transformed(base, transform, straight=True)
    return Exhibit("", Transformed(base, transform), is_classifier, (straight, base))


def _saturated(base: nn.Module) -> Exhibit:
    return Exhibit("", Changed(base, lambda z: 1000 * z), True, (base,))


def _hashed(base: nn.Module) -> Exhibit:
    return Exhibit("", Changed(base, torch.sign), False, (Changed(base, torch.sign, straight=True), base))


def randomised(model: nn.Module, *, is_classifier: bool = True) -> Exhibit:
    """A model that draws anew at every call."""
    return Exhibit("", model, is_classifier, (Averaged(model),))


def activated(model: nn.Module) -> Exhibit:
    """A model with layers that hide their gradients."""
    return Exhibit("", closed(model), True, (opened(model),))
