"""How well a linear classifier tells the classes apart from their embeddings: what an encoder is worth to others."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from robustmetric.errors import InputError


@torch.no_grad()
def linear_probe(embeddings: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], ridge: float = 1e-3) -> float:
    """Accuracy, in [0, 1], on every second image of each class of a classifier fitted on the others.

    Ridge regression on the class indicators, in double precision, so that the same rows give the same number. `ridge`
    is relative to the variance of the embeddings: their scale plays no part. A class with one image is fitted only.
    """
    if not 0 <= ridge < torch.inf:
        raise InputError(f"ridge {ridge} is no weight; expected a finite number >= 0, such as 1e-3")
    if not embeddings.isfinite().all():
        raise InputError("some embeddings are NaN or infinite; expected finite ones: check the model")
    fitted = _first_half(labels)
    if fitted.all():
        raise InputError(
            f"{len(labels)} images with no two of one class cannot be tested; expected classes of 2 or more"
        )
    _, classes = labels.unique(return_inverse=True)
    z, targets = embeddings.double(), one_hot(classes).double()
    centre, prior = z[fitted].mean(dim=0), targets[fitted].mean(dim=0)
    z = z - centre
    weights = _ridge(z[fitted], targets[fitted] - prior, ridge)
    guessed = (z[~fitted] @ weights + prior).argmax(dim=1)
    return float((guessed == classes[~fitted]).double().mean())


def _first_half(labels: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """The 1st, 3rd, 5th, ... image of each class, in the order given."""
    order = labels.argsort(stable=True)
    _, sizes = labels[order].unique_consecutive(return_counts=True)
    starts = (sizes.cumsum(dim=0) - sizes).repeat_interleave(sizes)
    place = torch.arange(len(labels), device=labels.device) - starts
    return torch.empty_like(labels, dtype=torch.bool).scatter_(0, order, place % 2 == 0)


def _ridge(x: Float[Tensor, "n dim"], y: Float[Tensor, "n classes"], ridge: float) -> Float[Tensor, "dim classes"]:
    """argmin ||x w - y||^2 + ridge * v ||w||^2, v the mean over dimensions of ||column||^2; 0 where x is constant.

    With more dimensions than rows, by the system of the rows: (x'x + r)^-1 x' = x' (xx' + r)^-1.
    """
    by_rows = x.shape[1] > len(x)
    gram = x @ x.T if by_rows else x.T @ x
    size = gram.diagonal().sum() / x.shape[1]
    # An encoder that has collapsed has nothing to fit; a dimension less than others is no reason to fail either.
    damped = gram + (ridge * size).clamp_min(1e-12 * size + torch.finfo(gram.dtype).tiny) * torch.eye(
        len(gram), dtype=gram.dtype, device=gram.device
    )
    return x.T @ torch.linalg.solve(damped, y) if by_rows else torch.linalg.solve(damped, x.T @ y)
