"""CROWN (Zhang et al., NeurIPS 2018): linear bounds of a ReLU network, carried backward, and the radius they prove."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from robustmetric.certify.affine import AFFINE, Dense, chain, of_magnitudes, pull
from robustmetric.errors import InputError, nearest
from robustmetric.numerics.distances import chunks
from robustmetric.types import Batch, Inputs, Labels, Progress

Norm = Literal["l2", "linf"]
Backend = Literal["own", "auto_lirpa"]
DENSE = 2**20
"""Layers of up to so many coefficients (8 MiB) are held as one matrix."""
BUDGET = 2**24
"""Coefficients of linear bounds held at one time (128 MiB in float64)."""
SLACK = 1e-10
"""Every bound is loosened by this share of all numbers it was added up from, in magnitude: room for float64's rounding
in sums of 400,000 numbers."""
START, CEILING = 2.0**-6, 2.0**20
"""The first radius that is tried, and the last."""


@dataclass(frozen=True)
class Crown:
    """The largest radius, found by halving, at which linear bounds prove that no input of the ball changes class.

    Bounds are those of the weights as real numbers, computed in float64. `auto_lirpa` asks that package for them, which
    knows more layers and must be installed.
    """

    norm: Norm = "l2"
    steps: int = 20
    batch: int = 32
    """Inputs that are bounded at a time."""
    backend: Backend = "own"

    def __post_init__(self) -> None:
        for name, value, choices in (("norm", self.norm, Norm), ("backend", self.backend, Backend)):
            if value not in get_args(choices):
                raise InputError(f"{name} {value!r} is not known{nearest(value, get_args(choices))}")
        if self.steps < 1 or self.batch < 1:
            raise InputError(f"steps={self.steps}, batch={self.batch}; expected at least 1 of each")

    @torch.no_grad()
    def certify(
        self, model: nn.Module, inputs: Inputs, labels: Labels, *, progress: Progress | None = None
    ) -> Float[Tensor, " batch"]:
        """The radius proved for each input, in float64; 0 where the class is not its label. `model` gives logits."""
        inputs = inputs.double()
        if not bool(inputs.isfinite().all()):
            raise InputError("the inputs hold NaN or infinity; expected finite numbers: check the data")
        margins = (_own if self.backend == "own" else _auto_lirpa)(model, inputs, self.norm)
        radii = inputs.new_zeros(len(inputs))
        for part in chunks(len(inputs), self.batch):
            proves = partial(_proves, margins, inputs[part], labels[part])
            radii[part] = largest_proved(proves, len(radii[part]), self.steps, inputs.device)
            if progress is not None:
                progress(part.stop, len(inputs))
        return radii

    def radius(self, model: nn.Module, queries: Batch, references: Batch | None = None) -> Float[Tensor, " batch"]:
        """`certify` of the queries for their labels."""
        return self.certify(model, queries.inputs, queries.labels)


Proves = Callable[[Int[Tensor, " some"], Float[Tensor, " some"]], Bool[Tensor, " some"]]
"""Whether the label of these rows is proved within these radii."""


def largest_proved(proves: Proves, count: int, steps: int, device: torch.device) -> Float[Tensor, " count"]:
    """Per row a radius that `proves` accepted, by doubling and then halving; 0 where even radius 0 is not accepted.

    Proofs need not be monotone: what is returned was itself proved.
    """
    low = torch.zeros(count, dtype=torch.float64, device=device)
    high = torch.full_like(low, START)
    right = torch.arange(count, device=device)
    right = right[proves(right, low)]
    growing = right
    while len(growing):
        growing = growing[proves(growing, high[growing])]
        low[growing] = high[growing]
        high[growing] *= 2
        growing = growing[high[growing] <= CEILING]
    for _ in range(steps):
        middle = (low[right] + high[right]) / 2
        proved = proves(right, middle)
        low[right] = torch.where(proved, middle, low[right])
        high[right] = torch.where(proved, high[right], middle)
    return low


@torch.no_grad()
def output_bounds(
    model: nn.Module, inputs: Inputs, radius: Float[Tensor, " batch"], norm: Norm = "l2"
) -> tuple[Float[Tensor, "batch outputs"], Float[Tensor, "batch outputs"]]:
    """Between which every output lies, whatever input within `radius` is given; in float64."""
    network = Network.of(model, inputs)
    known = network.survey(_Around(inputs.double(), radius.double(), norm))
    low, high = network.box(len(network.layers), known)
    return low.flatten(1), high.flatten(1)


@dataclass(frozen=True)
class _Around:
    """The balls around these inputs."""

    centre: Float[Tensor, "batch *shape"]
    radius: Float[Tensor, " batch"]
    norm: Norm

    def least(self, rows: Tensor, constant: Tensor, size: Tensor) -> Float[Tensor, "batch rows"]:
        """The least value of each linear function <rows, x> + constant over the ball, a little less for rounding.

        `rows` is (batch or 1, rows, *shape): x moves against a row by at most the radius times its dual norm. `size` is
        the magnitude of what rows and constant were added up from.
        """
        reach = self.radius[:, None] * rows.flatten(2).norm(dim=2, p=2 if self.norm == "l2" else 1)
        value = _products(rows, self.centre) + constant
        size = size + _products(rows.abs(), self.centre.abs()) + reach
        return value - reach - SLACK * (1 + size)


Box = tuple[Float[Tensor, "batch ..."], Float[Tensor, "batch ..."]]
"""Lower and upper bounds of what goes into a layer of ReLUs."""


@dataclass(frozen=True)
class _Known:
    """What holds of the numbers at the places reached so far, whatever input of the ball is given."""

    ball: _Around
    boxes: dict[int, Box] = field(default_factory=dict)
    """Bounds of what goes into each ReLU, by place."""
    sizes: list[Tensor] = field(default_factory=list)
    """Above the magnitudes that each number at a place is added up from, and so above its own; by place."""


@dataclass(frozen=True)
class Network:
    """Layers one after the other, in float64 and eval mode; places between them count from 0, the input."""

    layers: Sequence[nn.Module]
    magnitudes: Sequence[nn.Module]
    """The same layers for magnitudes."""
    shapes: Sequence[torch.Size]
    """What is at each place: one more than there are layers."""

    @staticmethod
    def of(model: nn.Module, inputs: Inputs) -> "Network":
        """The same network for inputs like these."""
        layers = chain(copy.deepcopy(model).double().eval().requires_grad_(False))
        magnitudes = [of_magnitudes(layer) for layer in layers]
        x = torch.zeros_like(inputs[:1]).double()
        shapes = [inputs.shape[1:]]
        for i, layer in enumerate(layers):
            x = layer(x)
            shapes.append(x.shape[1:])
            is_dense = type(layer) is nn.Linear or x.numel() * shapes[i].numel() <= DENSE
            if is_dense and type(layer) in AFFINE:
                layers[i] = Dense(layer, shapes[i], x.device)
        return Network(layers, magnitudes, shapes)

    def survey(self, ball: _Around) -> _Known:
        """What holds at all places, from the first to the last."""
        known = _Known(ball)
        known.sizes.append(ball.centre.abs() + ball.radius.view(-1, *[1] * (ball.centre.dim() - 1)))
        for place, layer in enumerate(self.layers):
            if type(layer) is nn.ReLU:
                low, high = known.boxes[place] = self.box(place, known)
                # A line and its height at 0 are no larger than the longer side of the interval.
                known.sizes.append(torch.where(high > 0, torch.maximum(-low, high), 0.0))
            else:
                known.sizes.append(self.magnitudes[place](known.sizes[place]))
        return known

    def box(self, place: int, known: _Known) -> Box:
        """Bounds of the numbers at a place, each by linear bounds through all layers before it."""
        ball = known.ball
        shape = self.shapes[place]
        each = torch.eye(shape.numel(), dtype=torch.float64, device=ball.centre.device)
        widest = max(size.numel() for size in self.shapes[: place + 1])
        low, high = [], []
        for part in chunks(len(each), BUDGET // (widest * max(len(ball.radius), 1))):
            rows = each[part].view(1, -1, *shape)
            low.append(self.lower(rows, place, known))
            high.append(-self.lower(-rows, place, known))
        return torch.cat(low, dim=1).view(-1, *shape), torch.cat(high, dim=1).view(-1, *shape)

    def lower(self, rows: Tensor, place: int, known: _Known) -> Float[Tensor, "batch rows"]:
        """Below <row, what is at the place> on the whole ball, per row; `rows` is (batch or 1, rows, *shape)."""
        constant = size = rows.new_zeros(1, 1)
        for i in range(place - 1, -1, -1):
            layer = self.layers[i]
            # Rounding in this step changes <rows, what is at place i + 1> by a share of this.
            size = size + _products(rows.abs(), known.sizes[i + 1])
            rows, offset = (
                _relax(rows, *known.boxes[i]) if type(layer) is nn.ReLU else pull(layer, rows, self.shapes[i])
            )
            constant = constant + offset
        return known.ball.least(rows, constant, size)


def _products(rows: Tensor, x: Tensor) -> Float[Tensor, "batch rows"]:
    """<row, x> for the rows of each x, or for the same rows of all; `rows` is (batch or 1, rows, *shape)."""
    flat, x = rows.flatten(2), x.flatten(1)
    # Rows that are the same for all are not copied for each.
    return x @ flat[0].T if len(flat) == 1 else (flat @ x[:, :, None])[:, :, 0]


def _relax(rows: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """<row, ReLU(z)> >= <rows, z> + constant for low <= z <= high.

    ReLU lies below the chord, of slope u / (u - l), and above a line through 0 of slope 1 where u > -l and else 0, the
    tighter of the two over the interval. Positive coefficients take the line below, negative ones the chord.
    """
    low, high = low[:, None], high[:, None]
    unstable = (low < 0) & (high > 0)
    chord = torch.where(unstable, high / (high - low).where(unstable, torch.ones_like(low)), (low >= 0).to(low.dtype))
    line = torch.where(unstable, (high > -low).to(low.dtype), chord)
    intercept = torch.where(unstable, -chord * low, torch.zeros_like(low))
    positive, negative = rows.clamp_min(0), rows.clamp_max(0)
    return positive * line + negative * chord, (negative * intercept).flatten(2).sum(dim=2)


Margins = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(inputs, labels, radii) to lower bounds of logit[label] - logit[c] on the balls, infinite for c = label."""


def _proves(margins: Margins, x: Tensor, y: Tensor, rows: Tensor, radius: Tensor) -> Bool[Tensor, " some"]:
    return (margins(x[rows], y[rows], radius) > 0).all(dim=1)


def _own(model: nn.Module, inputs: Tensor, norm: Norm) -> Margins:
    network = Network.of(model, inputs)

    def margins(x: Tensor, labels: Tensor, radius: Tensor) -> Tensor:
        rows = _differences(labels, network.shapes[-1])
        bounds = network.lower(rows, len(network.layers), network.survey(_Around(x, radius, norm)))
        return bounds.scatter(1, labels[:, None], torch.inf)

    return margins


def _auto_lirpa(model: nn.Module, inputs: Tensor, norm: Norm) -> Margins:
    """The same of auto_LiRPA (Xu et al. 2020), an input at a time, since its radius is one number."""
    try:
        from auto_LiRPA import BoundedModule, BoundedTensor
        from auto_LiRPA.perturbations import PerturbationLpNorm
    except ImportError as error:
        raise InputError("auto_LiRPA is not installed; install it from its repository, or set backend: own") from error
    network = copy.deepcopy(model).double().eval()
    logits = network(inputs[:1]).shape[1:]
    bounded = BoundedModule(network, torch.zeros_like(inputs[:1]))

    def one(x: Tensor, label: Tensor, radius: float) -> Tensor:
        ball = PerturbationLpNorm(norm=2.0 if norm == "l2" else float("inf"), eps=radius)
        rows = _differences(label, logits)
        bounds, _ = bounded.compute_bounds(x=(BoundedTensor(x, ball),), C=rows, method="CROWN")
        return bounds.scatter(1, label[:, None], torch.inf)

    def margins(x: Tensor, labels: Tensor, radius: Tensor) -> Tensor:
        each = zip(x.split(1), labels.split(1), radius.tolist(), strict=True)
        # split gives one empty part of nothing
        return torch.cat([one(*row) for row in each]) if len(x) else x.new_zeros(0, *logits)

    return margins


def _differences(labels: Tensor, logits: torch.Size) -> Float[Tensor, "batch classes classes"]:
    """Rows e_label - e_c, for every class c."""
    if len(logits) != 1 or logits[0] < 2:
        raise InputError(f"the model's outputs are of shape {tuple(logits)} per input; expected one logit per class")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < logits[0]:
        raise InputError(
            f"labels from {int(labels.min())} to {int(labels.max())}; expected 0 to {logits[0] - 1}, the model's logits"
        )
    each = torch.eye(logits[0], dtype=torch.float64, device=labels.device)
    return each[labels][:, None] - each
