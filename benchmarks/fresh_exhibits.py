"""A group of exhibits that nothing was tuned on: other images, other models, other ways to hide a gradient."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from exhibits import Make, activated, as_it_is, behind, named, randomised
from fresh_zoo import (
    SIDE,
    Distilled,
    FlatLoss,
    HalfSeen,
    Hinge,
    Neighbours,
    Prototypes,
    Thermometer,
    blind_median,
    clipped,
    dithered,
    dropped,
    embedder,
    median,
    network,
    sawtooth,
    some_coordinates,
    trained_against,
    twice_softmax,
)
from masking_zoo import Averaged, Changed, Exhibit, Transformed, Votes, Zoo
from robustmetric.defences.base import Defence
from robustmetric.defences.madry import Madry
from robustmetric.defences.plain import Plain
from robustmetric.defences.trades import Trades
from robustmetric.losses.cross_entropy import CrossEntropy
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.models.classifier import Classifier, cnn
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder

HOT = 50
"""The temperature of defensive distillation."""


def fresh(zoo: Zoo, only: Sequence[str] | None = None) -> Iterator[Exhibit]:
    """The group, its classifiers first."""
    return named({**_upright(zoo), **_hiding(zoo), **_searching(zoo)}, only)


def _upright(zoo: Zoo) -> dict[str, Make]:
    """Classifiers that nothing is put before or behind."""

    def trained(name: str, defence: Defence, make: Callable[[], nn.Module] = network) -> Exhibit:
        return as_it_is(zoo.classifier(name, make, defence))

    madry = Madry(CrossEntropy(), trained_against(zoo))
    return {
        "strides": lambda: trained("strides", Plain(CrossEntropy()), _strides),
        "linear": lambda: trained("linear", Plain(CrossEntropy()), _linear),
        "hinge loss": lambda: trained("hinge", Plain(Hinge())),
        "prototypes": lambda: as_it_is(Prototypes(_embedding(zoo), zoo.images.closed.train)),
        "gradient penalty": lambda: trained("flat", FlatLoss()),
        "trades": lambda: trained("trades", Trades(CrossEntropy(), trained_against(zoo), weight=0.5)),
        "softplus, madry": lambda: trained("softplus", madry, partial(network, nn.Softplus)),
        "madry, logits / 1000": lambda: as_it_is(Changed(zoo.classifier("madry", network, madry), lambda z: z / 1000)),
    }


def _hiding(zoo: Zoo) -> dict[str, Make]:
    """Classifiers that hide their gradients, or draw."""

    def plain() -> nn.Module:
        return zoo.classifier("plain", network)

    def changed(transform: Callable[[Tensor], Tensor]) -> Exhibit:
        return Exhibit("", Changed(plain(), transform), True, (Changed(plain(), transform, straight=True), plain()))

    def half_seen() -> Exhibit:
        both = [plain(), zoo.classifier("strides", _strides)]
        return Exhibit("", HalfSeen(*both), True, (Votes(both, soft=True), both[1]))

    return {
        "pixels dropped": lambda: randomised(zoo.classifier("dropped", lambda: Transformed(network(), dropped))),
        "dithered": lambda: _dithered(zoo),
        "distilled at 50": lambda: _distilled(zoo),
        "softmax twice": lambda: changed(twice_softmax),
        "log probabilities clipped": lambda: changed(clipped),
        "logits rounded": lambda: changed(torch.round),
        "thermometer code": lambda: activated(zoo.classifier("thermometer", _thermometer)),
        "median without gradient": lambda: _median(zoo),
        "sawtooth": lambda: behind(plain(), sawtooth),
        "one branch without gradient": half_seen,
        "vote of five neighbours": lambda: _neighbours(zoo),
    }


def _searching(zoo: Zoo) -> dict[str, Make]:
    """Encoders, of either kind."""

    def proxies() -> nn.Module:
        return zoo.encoder("proxy", embedder, Plain(ProxyAnchor(5, 32)), pairs=False)

    def strong() -> nn.Module:
        defence = Madry(ProxyAnchor(5, 32), trained_against(zoo), clean_share=0.5)
        return zoo.encoder("proxy madry", embedder, defence, pairs=False)

    def steep(slope: float) -> nn.Module:
        return Changed(proxies(), lambda z: torch.tanh(slope * z))

    return {
        "pixels, retrieval": lambda: as_it_is(Encoder(nn.Flatten()), is_classifier=False),
        "proxies, retrieval": lambda: as_it_is(proxies(), is_classifier=False),
        "proxies and madry, retrieval": lambda: as_it_is(strong(), is_classifier=False),
        "some coordinates, retrieval": lambda: randomised(Changed(proxies(), some_coordinates), is_classifier=False),
        "steep tanh, retrieval": lambda: Exhibit("", steep(100), False, (steep(5), proxies())),
        "median without gradient, retrieval": lambda: behind(strong(), blind_median, is_classifier=False),
    }


# Exhibits that take more than a line.


def _distilled(zoo: Zoo) -> Exhibit:
    """Trained hot, asked cold; open are the logits as they were trained."""
    teacher = zoo.classifier("teacher", _hot)
    student = zoo.classifier("student", _hot, Distilled(lambda x: teacher(x)))
    assert isinstance(student, Changed)
    return Exhibit("", student.base, True, (student,))


def _dithered(zoo: Zoo) -> Exhibit:
    """The mean of a dithered image is the image: open are straight draws of it, and the network without them."""
    model = zoo.classifier("dithered", lambda: Transformed(network(), dithered))
    assert isinstance(model, Transformed)
    return Exhibit("", model, True, (Averaged(Transformed(model.base, dithered, straight=True)), model.base))


def _median(zoo: Zoo) -> Exhibit:
    """Open are a straight gradient and the median's own."""
    model = zoo.classifier("median", lambda: Transformed(network(), blind_median))
    assert isinstance(model, Transformed)
    straight = Transformed(model.base, blind_median, straight=True)
    return Exhibit("", model, True, (straight, Transformed(model.base, median)))


def _neighbours(zoo: Zoo) -> Exhibit:
    embed, known = _embedding(zoo), zoo.images.closed.train
    return Exhibit("", Neighbours(embed, known), True, (Neighbours(embed, known, soft=True),))


def _embedding(zoo: Zoo) -> nn.Module:
    return zoo.classifier("embedding", embedder, Plain(ProxyAnchor(10, 32)))


def _hot() -> nn.Module:
    return Changed(network(), lambda z: z / HOT)


def _strides() -> nn.Module:
    return cnn(1, SIDE, 10, widths=(12,), hidden=64)


def _linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 10))


def _thermometer() -> nn.Module:
    code = Thermometer()
    trunk = ConvNet(channels=code.count, side=SIDE, kernel=3, widths=(8, 16), hidden=128, dim=64)
    return Classifier(nn.Sequential(code, trunk, nn.ReLU()), 10, shape=(1, SIDE, SIDE))
