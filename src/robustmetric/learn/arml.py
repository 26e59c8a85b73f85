"""ARML (L. Wang et al., NeurIPS 2020): the Mahalanobis metric whose nearest-neighbour classifier is hardest to fool."""

from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.learn.base import (
    DTYPES,
    Init,
    MetricLearner,
    Seed,
    centred,
    device_of,
    generator_of,
    rank_of,
    start,
)
from robustmetric.learn.held_out import HeldOut, aside
from robustmetric.learn.margin import LOSSES, loss_of, margins_with_pullback, value_and_slope
from robustmetric.learn.neighbours import Candidates, Classes, binding, draw
from robustmetric.numerics.majority import majority_ranks
from robustmetric.numerics.numbers import is_number
from robustmetric.numerics.settings import (
    check_choice,
    check_counts,
    check_distances,
    check_optional_counts,
    check_positive,
)

WINDOW = 10
"""Iterations, at least, whose mean losses `tol` compares: single ones are noisy."""

ROOM = 1e-3
"""How far below the largest root the rows' scale stays: gradients grow with it, and Adam squares them."""


class ARML(MetricLearner):
    """Minimise the mean over training rows of loss(margin of a triplet of near neighbours), by Adam on G.

    `sampling="random"` takes one of the `n_neighbors` nearest on either side at random (Eq. 12); `"kth"` the pair among
    them that Theorem 1 names for a K-NN of `n_votes` votes (Eq. 11). Neighbours are searched anew, in the metric as it
    is then, every `refresh` iterations. `radius` is what the hinge asks for, in the units of the rows.

    One iteration is one pass over the rows, in one step unless `batch_size` is set. With `decay` the rate falls
    linearly to 0: in 100 to 200 iterations from 1e-2 it gets where the released constant 1e-3 is after 1000. With `tol`
    above 0 learning stops when the mean loss of max(refresh, 10) iterations improves on that of as many before by less
    than this share of it.

    The objective does not see errors on new rows. `validation` keeps that share of each class aside; every
    max(refresh, 10) iterations the mean radius proved of these rows is looked at (`validation_curve_`), learning stops
    when `patience` looks brought nothing, and the best metric seen is the one kept.
    """

    n_iter_: int
    loss_curve_: list[float]
    validation_curve_: list[float]

    def __init__(
        self,
        n_components: int | None = None,
        *,
        init: Init = "identity",
        n_neighbors: int = 10,
        refresh: int = 10,
        loss: Literal["neg", "hinge", "logistic", "exp"] = "neg",
        radius: float = 1.0,
        sampling: Literal["random", "kth"] = "random",
        n_votes: int = 1,
        lr: float = 1e-2,
        decay: bool = True,
        max_iter: int = 200,
        batch_size: int | None = None,
        tol: float = 0.0,
        validation: float = 0.0,
        patience: int = 5,
        random_state: Seed = None,
        device: str = "cpu",
        dtype: Literal["float32", "float64"] = "float32",
        verbose: bool = False,
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.n_neighbors = n_neighbors
        self.refresh = refresh
        self.loss = loss
        self.radius = radius
        self.sampling = sampling
        self.n_votes = n_votes
        self.lr = lr
        self.decay = decay
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.tol = tol
        self.validation = validation
        self.patience = patience
        self.random_state = random_state
        self.device = device
        self.dtype = dtype
        self.verbose = verbose

    @classmethod
    def released(cls, **settings: Any) -> "ARML":
        """The authors' settings: 1000 full-batch steps of Adam at 1e-3, the 10 neighbours searched at every step."""
        return cls(**{"n_neighbors": 10, "refresh": 1, "lr": 1e-3, "decay": False, "max_iter": 1000, **settings})

    def _learn(self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> Float[np.ndarray, "rank dim"]:
        # The k-th smallest over negatives and the l-th largest over positives have to exist.
        positives, negatives = majority_ranks(self.n_votes) if self.sampling == "kth" else (1, 1)
        device = device_of(self.device)
        factor = start(self.init, rank_of(self.n_components, x.shape[1]), x, self.random_state)
        rows, scale = centred(x)
        if scale > torch.finfo(DTYPES[self.dtype]).max ** 0.5 * ROOM:
            raise InputError(
                f"the rows are {scale:.3g} long, too large for squares in {self.dtype}; expected rows of moderate "
                "size: scale them first, as by MaxAbsScaler, or set dtype='float64'"
            )
        rows, labels = rows.to(device, DTYPES[self.dtype]), labels.to(device)
        held = None
        if self.validation:
            kept = aside(labels, self.validation, generator_of(self.random_state, device))
            held = HeldOut(rows, labels, kept, self.patience)
            rows, labels = rows[~kept], labels[~kept]
        classes = Classes(labels, positives, negatives)
        classes.warn(self.n_neighbors)
        factor = self._descend(factor.to(rows), rows, scale, classes, held)
        if held is not None:
            self.validation_curve_ = [scale * radius for radius in held.curve]
        length = factor.norm() / len(factor) ** 0.5
        if not torch.isfinite(length) or length == 0:
            raise InputError(f"the metric became {length} at lr = {self.lr}; expected a smaller rate, such as 1e-2")
        # The margin sees no scale; as long as the identity, G gives distances like those of the rows.
        return (factor / length).double().cpu().numpy()

    def _descend(
        self, factor: Tensor, x: Tensor, scale: float, classes: Classes, held: HeldOut | None
    ) -> Float[Tensor, "rank dim"]:
        generator = generator_of(self.random_state, x.device)
        optimiser = torch.optim.Adam([factor], lr=self.lr)
        loss = loss_of(self.loss, self.radius)
        curve: list[Tensor] = []
        for iteration in range(self.max_iter):
            if iteration % self.refresh == 0:
                candidates = classes.candidates(x @ factor.T, self.n_neighbors)
            if self.decay:
                optimiser.param_groups[0]["lr"] = self.lr * (1 - iteration / self.max_iter)
            curve.append(torch.zeros((), device=x.device))
            for rows in self._batches(len(candidates), generator, x.device):
                triplets = self._triplets(candidates, rows, x, factor, generator)
                m, pullback = margins_with_pullback(factor, x, *triplets)
                value, slope = value_and_slope(loss, scale * m)
                factor.grad = pullback(scale * slope)
                optimiser.step()
                curve[-1] += value * len(m) / len(candidates)
            self._tell(iteration + 1, self.max_iter)
            is_due = len(curve) % max(self.refresh, WINDOW) == 0
            if self._is_done(curve) or (held is not None and is_due and held.is_over(factor)):
                break
        self.n_iter_ = len(curve)
        self.loss_curve_ = torch.stack(curve).tolist()
        if held is not None and not held.curve:  # too few iterations for a look
            held.is_over(factor)
        return factor if held is None or held.best is None else held.best

    def _batches(self, count: int, generator: torch.Generator, device: torch.device) -> list[Any]:
        """The anchors of each step: all of them, or batches of a random order."""
        if self.batch_size is None or self.batch_size >= count:
            return [slice(None)]
        return list(torch.randperm(count, generator=generator, device=device).split(self.batch_size))

    def _triplets(
        self, candidates: Candidates, rows: Any, x: Tensor, factor: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self.sampling == "random":
            return draw(candidates, rows, generator)
        return binding(candidates, rows, x, factor, majority_ranks(self.n_votes))

    def _is_done(self, curve: list[Tensor]) -> bool:
        """Once per window, so that a GPU is not asked for the loss at every step."""
        window = max(self.refresh, WINDOW)
        if len(curve) % window or (not self.verbose and self.tol <= 0):
            return False
        now = float(torch.stack(curve[-window:]).mean())
        if self.verbose:
            print(f"ARML: iteration {len(curve)}, mean loss {now:.6g}")
        if self.tol <= 0 or len(curve) < 2 * window:
            return False
        before = float(torch.stack(curve[-2 * window : -window]).mean())
        return before - now < self.tol * abs(before)

    def _check(self) -> None:
        check_choice("sampling", self.sampling, ("random", "kth"))
        check_choice("loss", self.loss, LOSSES)
        check_choice("dtype", self.dtype, tuple(DTYPES))
        check_optional_counts(n_components=self.n_components, batch_size=self.batch_size)
        check_counts(n_neighbors=self.n_neighbors, refresh=self.refresh, n_votes=self.n_votes)
        check_counts(max_iter=self.max_iter, patience=self.patience)
        check_positive(lr=self.lr, radius=self.radius)
        check_distances(tol=self.tol)
        if not is_number(self.validation, 0) or not self.validation < 1:
            raise InputError(f"validation={self.validation!r} is no share of the rows; expected one from 0 to below 1")
        needed = max(majority_ranks(self.n_votes))
        if self.sampling == "kth" and self.n_neighbors < needed:
            raise InputError(
                f"n_neighbors = {self.n_neighbors} for {self.n_votes} votes; expected at least {needed} candidates"
            )
