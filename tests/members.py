"""Builds any member of the catalogue small, from its signature, so that the contracts need no code per member.

What a signature does not say is looked up, in this order: `ARGUMENTS` by member, `BY_NAME` by parameter, `BY_TYPE` by
annotation, and a `Literal` stands for each of its choices. A member that cannot be built fails and says what to add.
"""

import importlib
import inspect
import itertools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from torch import nn

from robustmetric.attacks.base import Attack, Engine
from robustmetric.attacks.candidate import Candidate
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.vote import NeighbourMargin
from robustmetric.catalogue import CATALOGUE
from robustmetric.defences.destinations import Destination, Gradual, Mined
from robustmetric.defences.eat import EnsembleAdversarial
from robustmetric.defences.plain import Plain
from robustmetric.defences.structure import Structure
from robustmetric.losses.base import MetricLoss
from robustmetric.losses.cross_entropy import CrossEntropy
from robustmetric.losses.mining import Hardest, Miner, Random, SemiHard
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.ensemble import Ensemble
from robustmetric.models.input_transforms import BitDepth, Jpeg
from robustmetric.numerics.transport import IPOT, UniformMatching
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD

CLASSES = 5
DIM = 8


def convnet(dim: int = DIM) -> ConvNet:
    """For 1 x 8 x 8 digits."""
    return ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=dim)


def engine(radius: float = 0.1, steps: int = 3, **settings: Any) -> PGD:
    return PGD(Ball(radius), steps=steps, step_size=radius / 2, **settings)


def member_losses() -> list[ProxyAnchor]:
    """One for each member of the ensemble that the contracts train."""
    return [ProxyAnchor(CLASSES, DIM, seed=seed) for seed in range(2)]


ALTERNATIVES = [("a", "a~", "p~"), ("p", "p~", "a"), ("a", "a~", "n~"), ("a", "p", "n"), ("a", "p", "n~")]
"""To the structure term's (a, a~, p)."""

BOTH_MODES: list[dict[str, Callable[[], Any]]] = [{}, {"mode": lambda: "compat"}]


def metric_file() -> str:
    """A metric of the plane, saved."""
    path = Path(tempfile.mkdtemp()) / "metric.npy"
    np.save(path, [[2.0, 1.0], [1.0, 2.0]])
    return str(path)


ARGUMENTS: dict[str, list[dict[str, Callable[[], Any]]]] = {
    "convnet": [{"side": lambda: 8, "kernel": lambda: 3, "hidden": lambda: 16, "dim": lambda: DIM}],
    "backbone": [{"dim": lambda: DIM}],
    "bn_inception": [{"dim": lambda: DIM}],
    "ensemble": [{"members": lambda: [Encoder(convnet()), Encoder(convnet())]}],
    "mahalanobis": [{"dim": lambda: 64}],
    "given": [{"file": metric_file}],
    "pytorch_metric_learning": [{"loss": lambda: "MultiSimilarityLoss"}, {"loss": lambda: "ContrastiveLoss"}],
    "random_crop": [{"size": lambda: 8}],
    "centre_crop": [{"size": lambda: 8}],
    "random_resized_crop": [{"size": lambda: 8}],
    "aspect_centre_crop": [{"size": lambda: 8, "resize": lambda: 10}],
    "nes": [{"samples": lambda: 10}],
    "square": [{"ball": lambda: Ball(0.1), "queries": lambda: 20}],
    "apgd": [{"steps": lambda: 5}, {"steps": lambda: 5, "restarts": lambda: 2, "goal": lambda: 2.0}],
    # Of the contract's inputs some have a sum just below this.
    "fab": [{"steps": lambda: 10, "goal": lambda: 1.5}],
    "rays": [{"ball": lambda: Ball(0.1), "queries": lambda: 60, "goal": lambda: 1.5}],
    "local_search": [{"rounds": lambda: 3}, {"rounds": lambda: 3, "clipped": lambda: False}],
    "expectation": [{"engine": lambda: PGD(Ball(0.2), steps=3, step_size=0.1), "draws": lambda: 2}],
    "transfer": [{"surrogate": lambda: "runs/other"}],
    "pairs": [{"batch": lambda: 8}],
    "balanced": [{"batch": lambda: 8}],
    **dict.fromkeys(("candidate", "query", "embedding_shift", "targeted_mismatch"), BOTH_MODES),
    **dict.fromkeys(("learn_to_misrank", "top1_misranking", "top1_translocation"), BOTH_MODES),
    # Of two neighbours among 200 items the smallest radius already swaps any pair: these come from anywhere.
    "order": [{"pool": lambda: 0.9}, {"pool": lambda: 0.9, "mode": lambda: "compat"}, {"items": lambda: 5}],
    # The published strictness is for thousands of items: of 200, one place lost costs so much that nothing else counts.
    # In mode compat the balance is that of the batch, so a row's value is not its own.
    "spqa": [{"strictness": lambda: 100.0}],
    "spfoa": [{"strictness": lambda: 100.0}, {"strictness": lambda: 100.0, "items": lambda: 5}],
    "pair_shift": [{}, {"members": lambda: 2}],
    "soft_vote": [{}, {"members": lambda: 2}],
    "soft_kmeans": [{}, {"members": lambda: 2}, {"temperature": lambda: 1.0, "iterations": lambda: 0}],
    # A query that is fooled from the start has nothing to climb: with this confidence none is.
    "neighbour_margin": [{"confidence": lambda: 2.0}, {"confidence": lambda: 2.0, "members": lambda: 2}],
    "centroid": [{"target": lambda target=t: target} for t in ("derangement", "random", "nearest")]
    + [{"away": lambda: False}],
    "feature_match": [{"classes": lambda: CLASSES, "targets": lambda: 3}],
    "misclassify_towards": [{"targets": lambda: 2}, {"targets": lambda: 2, "rank": lambda: 2}],
    "misretrieve": [{"attack": EmbeddingShift}, {"attack": lambda: NeighbourMargin(confidence=2.0)}],
    "fixed": [{"value": lambda: -0.1}, {"value": lambda: 2.0}],
    "gradual": [{}, {"power": lambda: 2.0}, {"power": lambda: 0.5}, {"cap": lambda: 2.2}],
    "ics": [{}, *({"triplet": lambda names=names: names} for names in ALTERNATIVES)],
    "hm": [{}, {"structure": Structure}],
    "minmax": [{}, {"clean_anchor": lambda: True}],
    "noise": [{"sigma": lambda: 0.1}],
    "scattering": [
        {},
        {"matching": IPOT, "cost": lambda: "squared", "detached": lambda: True},
        {"matching": UniformMatching, "group": lambda: 8},
    ],
    "random_target": [{"loss": CrossEntropy}, {"loss": lambda: CrossEntropy(0.5)}],
    "one_step": [{}, {"random_start": lambda: False}],
    "cross_entropy": [{}, {"smoothing": lambda: 0.5}],
    "sinkhorn": [{}, {"iterations": lambda: 5, "stop": lambda: "never"}, {"stable": lambda: True}],
    "small_resnet": [{}],
    "wide_resnet": [{"depth": lambda: 10, "width": lambda: 1}],
    # Those that draw at random are no function of their input.
    "transformed": [{"model": lambda: Encoder(convnet()), "transforms": lambda: [BitDepth(), Jpeg()]}],
    "resize_and_pad": [
        {"smallest": lambda: 6, "largest": lambda: 8},
        {"smallest": lambda: 8, "largest": lambda: 10},
    ],
    "mixup": [{"in_pairs": lambda: True}],
    "iat": [{"in_pairs": lambda: True}],
    # Undivided: which part of a training set a batch is from, only a training set can tell.
    "eat": [
        {"losses": member_losses, "divided": lambda: False, "shared": lambda shared=s: shared} for s in (True, False)
    ],
    "one_student": [
        {
            "loss": lambda: ProxyAnchor(CLASSES, DIM),
            "ensemble": lambda: Ensemble([Encoder(convnet()), Encoder(convnet())]),
            "trained_by": lambda: EnsembleAdversarial(member_losses(), engine(), divided=False),
        }
    ],
    "adp": [{"losses": member_losses}],
    "naive_ensemble": [{"defences": lambda: [Plain(loss) for loss in member_losses()]}],
    "smoothed": [{"encoder": lambda: Encoder(convnet()), "sigma": lambda: 0.1, "samples": lambda: 4}],
    "smoothing": [{"sigma": lambda: 0.1}],
    "smoothed_retrieval": [{"sigma": lambda: 0.1}],
}
"""By member: sets of arguments to build it with, where its own defaults are large or its signature does not say."""

BY_NAME: dict[str, list[Callable[[], Any]]] = {
    "classes": [lambda: CLASSES],
    "dim": [lambda: DIM],
    "batch": [lambda: 8],
    "radius": [lambda: 0.1],
    "steps": [lambda: 3],
    "step_size": [lambda: 0.05],
    "rate": [lambda: 1e-3],
    "at": [lambda: (0.5, 0.75)],
    "root": [lambda: "no/such/folder"],
    "file": [lambda: "no/such/file.csv"],
}
"""By parameter: values that fit whatever takes a parameter of this name."""

BY_TYPE: dict[object, list[Callable[[], Any]]] = {
    MetricLoss: [lambda: Triplet(Hardest()), lambda: ProxyAnchor(CLASSES, DIM)],
    Attack: [EmbeddingShift, lambda: Candidate("up")],
    Engine: [engine],
    PGD: [engine],
    Miner: [Random, Hardest],
    Destination: [Gradual, lambda: Mined(SemiHard())],
    Ball: [lambda: Ball(0.1), lambda: Ball(0.5, norm="l2")],
    nn.Module: [convnet],
}
"""By annotation: parts that fit whatever takes a part of this type."""

Arguments = Mapping[str, Callable[[], Any]]


def constructor(kind: str, name: str) -> Callable[..., Any]:
    """What the catalogue's dotted path leads to."""
    module, _, attribute = CATALOGUE[kind][name].rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def variants(kind: str, name: str) -> list[Arguments]:
    """The sets of arguments to build a member with."""
    sets: list[Arguments] = []
    for given in ARGUMENTS.get(name, [{}]):
        required = {
            parameter.name: _choices(kind, name, parameter)
            for parameter in inspect.signature(constructor(kind, name)).parameters.values()
            if parameter.name not in given and _is_required(parameter)
        }
        sets += [
            {**given, **dict(zip(required, chosen, strict=True))} for chosen in itertools.product(*required.values())
        ]
    return sets


def build(kind: str, name: str, arguments: Arguments, **replaced: Any) -> Any:
    """A new member; the same one each time, as its weights are drawn from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return constructor(kind, name)(**{**{key: make() for key, make in arguments.items()}, **replaced})


def built(kind: str, name: str) -> list[Any]:
    """A member in each of its variants."""
    return [build(kind, name, arguments) for arguments in variants(kind, name)]


def promised(table: Mapping[str, Any], kind: str, name: str, what: str) -> Any:
    """What a member's row says; a member without one fails."""
    if name not in table:
        pytest.fail(f"{name!r} is new among {kind}: add it to {what} in tests/test_contracts.py")
    return table[name]


def _is_required(parameter: inspect.Parameter) -> bool:
    listed = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and not listed


def _choices(kind: str, name: str, parameter: inspect.Parameter) -> list[Callable[[], Any]]:
    if parameter.name in BY_NAME:
        return BY_NAME[parameter.name]
    if parameter.annotation in BY_TYPE:
        return BY_TYPE[parameter.annotation]
    if get_origin(parameter.annotation) is Literal:
        return [lambda choice=choice: choice for choice in get_args(parameter.annotation)]
    pytest.fail(
        f"{name!r} of {kind} needs {parameter.name}: {parameter.annotation}, and the contracts do not know one; add "
        f"{name!r} to ARGUMENTS (or the parameter to BY_NAME, or its type to BY_TYPE) in tests/members.py"
    )
