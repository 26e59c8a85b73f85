"""Smoothed encoder: the mean of another's unit embeddings under Gaussian noise on the input."""

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from robustmetric.errors import InputError
from robustmetric.models.encoder import Sized
from robustmetric.numerics.randomness import Purpose, generator, noise
from robustmetric.types import Embeddings, Inputs


class Smoothed(nn.Module):
    """g(x) = mean of f(x + sigma * noise) over `samples` draws, the same ones at every call and for every row.

    An estimate of the expectation, which moves by at most `lipschitz` per unit of l2 distance whatever f is, as long as
    f's embeddings are no longer than 1 (docs/papers/certified_retrieval.md). Its embeddings are shorter than f's: the
    less f holds still under noise, the shorter. At most `batch` noisy inputs are embedded at a time, with gradient too.
    """

    def __init__(self, encoder: nn.Module, sigma: float, samples: int = 100, seed: int = 0, batch: int = 1024) -> None:
        super().__init__()
        check_noise(sigma, samples, batch)
        self.encoder = encoder
        self.sigma, self.samples, self.seed, self.batch = sigma, samples, seed, batch

    @property
    def dim(self) -> int:
        """Length of an embedding, in numbers: that of the encoder's."""
        if not isinstance(self.encoder, Sized):
            raise InputError(
                f"{type(self.encoder).__name__} does not say its `dim`; wrap it: Encoder(module, shape=...)"
            )
        return self.encoder.dim

    @property
    def lipschitz(self) -> float:
        """sqrt(2 / pi) / sigma: no smoothed encoder of unit embeddings moves faster."""
        return math.sqrt(2 / math.pi) / self.sigma

    def forward(self, inputs: Inputs) -> Embeddings:
        return torch.cat([self._mean(rows) for rows in inputs.split(self.batch)])

    def _mean(self, rows: Tensor) -> Tensor:
        """The mean embeddings of rows few enough for one batch."""
        source = generator(rows.device, self.seed, purpose=Purpose.SMOOTHED_ENCODER)
        parts = noise(rows.shape[1:], self.samples, self.batch // max(len(rows), 1), source, rows.dtype)
        # With gradient, a part's activations are computed again on the way back instead of being kept.
        total = sum(checkpoint(self._total, rows, part, use_reentrant=False) for part in parts)
        return torch.as_tensor(total) / self.samples

    def _total(self, rows: Tensor, part: Tensor) -> Tensor:
        """The sum of each row's embeddings over these draws."""
        noisy = (rows[:, None] + self.sigma * part).flatten(0, 1)
        return self.encoder(noisy).unflatten(0, (len(rows), len(part))).sum(dim=1)


def check_noise(sigma: float, samples: int, batch: int) -> None:
    """Refuse noise that is none, and counts that draw nothing."""
    if not (sigma > 0 and math.isfinite(sigma)):
        raise InputError(f"sigma {sigma} is no deviation of noise; expected a finite number > 0, such as 0.25")
    if samples < 1 or batch < 1:
        raise InputError(f"samples={samples}, batch={batch}; expected at least 1 of each")
