"""Training points as a certificate sees them: sorted by class, in coordinates where the metric is diagonal."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.numerics.spectrum import spectrum

Matrix = Float[Tensor, "features features"]


@dataclass(frozen=True)
class Coordinates:
    """x -> w = (x - origin) V, where d_M(x, y) = (w_x - w_y)^T S (w_x - w_y) and ||w_x - w_y|| <= ||x - y||.

    Null directions of M are left out: a smallest perturbation does not use them. `matrix` None is the Euclidean metric.
    With `keep_axes` the axes stay those of the input and S is M itself, so that bounds on features can be stated.
    """

    origin: Float[Tensor, " features"]
    basis: Float[Tensor, "features dim"] | None
    scale: Float[Tensor, " dim"] | Matrix | None

    @classmethod
    def of(cls, matrix: Matrix | None, origin: Float[Tensor, " features"], keep_axes: bool = False) -> "Coordinates":
        if matrix is None:
            return cls(origin, None, None)
        values, vectors = spectrum(matrix)
        kept = values > 0
        if not bool(kept.any()):
            raise InputError("the matrix is zero up to rounding; expected a metric that tells some points apart")
        values, vectors = values[kept], vectors[:, kept]
        if keep_axes:
            return cls(origin, None, (vectors * values) @ vectors.T)
        return cls(origin, vectors, values)

    def enter(self, x: Float[Tensor, "n features"]) -> Float[Tensor, "n dim"]:
        """w of each row."""
        centred = x - self.origin
        return centred if self.basis is None else centred @ self.basis

    def leave(self, offset: Float[Tensor, "n dim"]) -> Float[Tensor, "n features"]:
        """A difference of two w as the shortest difference of inputs."""
        return offset if self.basis is None else offset @ self.basis.T

    def dual(self, w: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
        """u = S w, so that the half-space where y is no farther than x has the normal u_y - u_x."""
        if self.scale is None:
            return w
        return w * self.scale if self.scale.dim() == 1 else w @ self.scale

    def embed(self, w: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
        """Rows whose Euclidean distances are those of the metric; not with `keep_axes`."""
        return w if self.scale is None else w * self.scale.sqrt()


@dataclass(frozen=True)
class Sites:
    """Training points, sorted by class: those of class c are rows first[c] to first[c + 1]."""

    coordinates: Coordinates
    w: Float[Tensor, "sites dim"]
    labels: Int[Tensor, " sites"]
    first: tuple[int, ...]
    index: Int[Tensor, " sites"]
    """Where each row was before sorting."""

    @classmethod
    def of(
        cls, x: Float[Tensor, "sites features"], labels: Int[Tensor, " sites"], matrix: Matrix | None,
        keep_axes: bool = False,
    ) -> "Sites":  # fmt: skip
        """`labels` are 0, 1, ... without gaps."""
        labels, index = labels.sort(stable=True)
        # Near the origin the squares below keep their digits.
        coordinates = Coordinates.of(matrix, x.mean(dim=0), keep_axes)
        counts = torch.bincount(labels).tolist()
        first = tuple(sum(counts[:c]) for c in range(len(counts) + 1))
        return cls(coordinates, coordinates.enter(x[index]), labels, first, index)

    @cached_property
    def u(self) -> Float[Tensor, "sites dim"]:
        return self.coordinates.dual(self.w)

    @cached_property
    def power(self) -> Float[Tensor, " sites"]:
        """w . u: d_M(z, site) = power - 2 z . u + a term that is the same for all sites."""
        return (self.w * self.u).sum(dim=1)

    @cached_property
    def size(self) -> Float[Tensor, " sites"]:
        """||u||^2."""
        return self.u.square().sum(dim=1)

    @cached_property
    def embedding(self) -> Float[Tensor, "sites dim"]:
        """Rows whose Euclidean distances are those of the metric."""
        return self.coordinates.embed(self.w)

    @cached_property
    def rounding(self) -> float:
        """A bound on the error of a distance or radius per unit of size: products of `dim` terms, a few in a row."""
        return 4 * (self.w.shape[1] + 8) * torch.finfo(self.w.dtype).eps

    @cached_property
    def widest(self) -> tuple[float, float]:
        """The largest ||w|| and ||u||."""
        w, u = (float(torch.linalg.vector_norm(rows, dim=1).amax()) for rows in (self.w, self.u))
        return w, u

    def members(self, label: int) -> slice:
        """The rows of a class."""
        return slice(self.first[label], self.first[label + 1])

    def relative(self, z: Float[Tensor, "n dim"], rows: slice = slice(None)) -> Float[Tensor, "n some"]:
        """d_M of each z to these sites less a term of z alone: what decides who is nearer."""
        return torch.addmm(self.power[rows], z, self.u[rows].T, alpha=-2)

    def bisector(
        self, z: Float[Tensor, "n dim"], near: Int[Tensor, " n"], far: Int[Tensor, " n"]
    ) -> tuple[Float[Tensor, "n dim"], Float[Tensor, " n"]]:
        """(normal, offset): site near[n] is no farther from z[n] + delta than far[n] where normal . delta >= offset.

        offset = (d_M(z, near) - d_M(z, far)) / 2, from differences, so that it keeps its digits for close sites, less
        what rounding may have turned the normal by: of every delta that is no longer than the data are wide, none that
        satisfies the true row is lost.
        """
        normal = self.u[near] - self.u[far]
        offset = 0.5 * (normal * (self.w[near] + self.w[far] - 2 * z)).sum(dim=1)
        return normal, offset - self.rounding * self.widest[1] * (self.widest[0] + torch.linalg.vector_norm(z, dim=1))
