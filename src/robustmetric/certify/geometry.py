"""Training points as a certificate sees them: sorted by class, in coordinates where the metric is diagonal."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.numerics.spectrum import factor, repaired

Matrix = Float[Tensor, "features features"]


@dataclass(frozen=True)
class Coordinates:
    """x -> w = x - origin, and u = M w, where d_M(x, y) = (w_x - w_y) . (u_x - u_y); M None is the Euclidean metric.

    Where M has null directions, w and u are those in an orthonormal basis of its range: a smallest perturbation uses no
    others. One number more is the length of what the basis leaves out, 0 in u: the metric does not see it, but it has a
    share in rounding errors, and with it ||w|| = ||x - origin||. With `keep_axes` all axes stay, so that bounds on
    features can be stated.
    """

    origin: Float[Tensor, " features"]
    matrix: Matrix | None = None
    basis: Float[Tensor, "features rank"] | None = None

    @classmethod
    def of(cls, matrix: Matrix | None, origin: Float[Tensor, " features"], keep_axes: bool = False) -> "Coordinates":
        if matrix is None:
            return cls(origin)
        matrix = repaired(matrix)
        root = factor(matrix)
        if root.shape[1] == 0:
            raise InputError("the matrix is zero up to rounding; expected a metric that tells some points apart")
        is_full = keep_axes or root.shape[1] + 1 >= len(root)
        return cls(origin, matrix, None if is_full else torch.linalg.qr(root).Q)

    def enter(self, x: Float[Tensor, "n features"]) -> Float[Tensor, "n dim"]:
        """w of each row."""
        centred = x - self.origin
        if self.basis is None:
            return centred
        inside = centred @ self.basis
        rest = torch.linalg.vector_norm(centred - inside @ self.basis.T, dim=1, keepdim=True)
        return torch.cat([inside, rest], dim=1)

    def leave(self, offset: Float[Tensor, "n dim"]) -> Float[Tensor, "n features"]:
        """A difference of two w as the shortest difference of inputs."""
        return offset if self.basis is None else offset[:, :-1] @ self.basis.T

    def seen(self, offset: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
        """The part of a difference of two w that the metric sees."""
        return offset if self.basis is None else torch.nn.functional.pad(offset[:, :-1], (0, 1))

    def dual(self, x: Float[Tensor, "n features"]) -> tuple[Float[Tensor, "n dim"], float]:
        """u of each row, from the matrix itself, and a bound on what the basis leaves out of it.

        The half-space where y is no farther than x has the normal u_y - u_x.
        """
        centred = x - self.origin
        u = centred if self.matrix is None else centred @ self.matrix
        if self.basis is None:
            return u, 0.0
        inside = u @ self.basis
        left_out = torch.linalg.vector_norm(u - inside @ self.basis.T, dim=1).amax()
        return torch.nn.functional.pad(inside, (0, 1)), float(left_out)

    def magnitude(self, x: Float[Tensor, "n features"]) -> Float[Tensor, " n"]:
        """|| |M| |w| ||, what rounding errors of u are in proportion to: at least ||u||."""
        size = (x - self.origin).abs()
        return torch.linalg.vector_norm(size if self.matrix is None else size @ self.matrix.abs(), dim=1)

    @property
    def products(self) -> int:
        """Sums of as many terms as there are features that stand between x and a product of w and u."""
        return 1 + (self.matrix is not None) + (self.basis is not None)


@dataclass(frozen=True)
class Sites:
    """Training points, sorted by class: those of class c are rows first[c] to first[c + 1]."""

    coordinates: Coordinates
    w: Float[Tensor, "sites dim"]
    u: Float[Tensor, "sites dim"]
    widest: tuple[float, float]
    """At least the largest ||w|| and ||u||: what the errors of both are in proportion to."""
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
        w, (u, left_out) = coordinates.enter(x[index]), coordinates.dual(x[index])
        size = float(torch.linalg.vector_norm(w, dim=1).amax())
        widest = size, float(coordinates.magnitude(x).amax()) + left_out / rounding(coordinates)
        return cls(coordinates, w, u, widest, labels, first, index)

    @cached_property
    def power(self) -> Float[Tensor, " sites"]:
        """w . u: d_M(z, site) = power - 2 z . u + a term that is the same for all sites."""
        return (self.w * self.u).sum(dim=1)

    @cached_property
    def size(self) -> Float[Tensor, " sites"]:
        """||u||^2."""
        return self.u.square().sum(dim=1)

    @cached_property
    def rounding(self) -> float:
        """A bound on the error of a distance or radius per unit of size."""
        return rounding(self.coordinates)

    def members(self, label: int) -> slice:
        """The rows of a class."""
        return slice(self.first[label], self.first[label + 1])

    def relative(self, z: Float[Tensor, "n dim"], rows: slice = slice(None)) -> Float[Tensor, "n some"]:
        """d_M of each z to these sites less a term of z alone: what decides who is nearer."""
        return torch.addmm(self.power[rows], z, self.u[rows].T, alpha=-2)

    def error(self, size: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """A bound on the error of (w + w' - 2 z) . (u - u') / 2 for any two sites, ||z|| at most `size`."""
        return self.rounding * self.widest[1] * (self.widest[0] + size)

    def bisector(
        self,
        z: Float[Tensor, "n dim"],
        near: Int[Tensor, " n"],
        far: Int[Tensor, " n"],
        error: Float[Tensor, " n"] | None = None,
    ) -> tuple[Float[Tensor, "n dim"], Float[Tensor, " n"]]:
        """(normal, offset): site near[n] is no farther from z[n] + delta than far[n] where normal . delta >= offset.

        offset = (d_M(z, near) - d_M(z, far)) / 2, from differences, so that it keeps its digits for close sites, less
        what rounding may have turned the normal by: of every delta that is no longer than the data are wide (or than
        `error` was found for), none that satisfies the true row is lost.
        """
        normal = self.u[near] - self.u[far]
        offset = 0.5 * (normal * (self.w[near] + self.w[far] - 2 * z)).sum(dim=1)
        return normal, offset - (self.error(torch.linalg.vector_norm(z, dim=1)) if error is None else error)


def rounding(coordinates: Coordinates) -> float:
    """A bound on the error of a distance or radius per unit of size: sums of as many terms as there are features."""
    origin = coordinates.origin
    return 4 * (coordinates.products * len(origin) + 8) * torch.finfo(origin.dtype).eps
