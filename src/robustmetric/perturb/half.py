"""The model in float16, for attacks to climb: the ten bits of TF32 in half the memory, and a narrow range.

What leaves that range on the way there or back must not pass for a weak attack: it is noticed, see `seek`.
"""

import warnings
from typing import final

import torch
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.perturb.fast import fast_view
from robustmetric.types import Embed, Embeddings, Inputs

FAR = 0.1
"""Of the outputs' usual length: ten bits put them some thousandths apart, an overflow that is hidden again far more."""
TINY = 1e-30
"""A gradient of less than this may vanish in fp32 as well."""


@final
class HalfView:
    """`model(x)` in float16, fp32 in and out; it notes on the device whether a number overflows or a gradient vanishes.

    Gradients are brought into float16's range row by row (perturb/cast.py). `embed` is the model in fp32.
    """

    def __init__(self, model: nn.Module, embed: Embed) -> None:
        self._view, self._embed, self._name = fast_view(model, dtype=torch.float16), embed, type(model).__name__
        self._is_well: Tensor | None = None

    def __call__(self, x: Inputs) -> Embeddings:
        watched: list[Tensor] = []
        if is_followed := torch.is_grad_enabled() and x.requires_grad:
            x = x.view_as(x)
            x.register_hook(lambda gradient: self._note_gradient(gradient, watched.pop()))
        z = self._run(x)
        if is_followed and z.requires_grad:
            z.register_hook(lambda gradient: watched.append(gradient))
        self._note(z.detach().isfinite().all())
        return z

    def _run(self, x: Inputs) -> Embeddings:
        try:
            return self._view(x)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # constants beyond 65504, tensors of its own in fp32
            reason = str(error).partition("\n")[0]
            raise InputError(f"{self._name} fails in float16 ({reason}); expected --search tf32 or fp32") from error

    def _note_gradient(self, of_input: Tensor, of_output: Tensor) -> None:
        """All is well where it is finite, and not zero in rows that are asked for one."""
        is_asked = of_output.flatten(1).abs().amax(dim=1) > TINY
        self._note(of_input.isfinite().all() & (of_input.flatten(1).any(dim=1) | ~is_asked).all())

    def _note(self, is_well: Tensor) -> None:
        self._is_well = is_well if self._is_well is None else self._is_well & is_well

    def has_failed(self, clean: Inputs) -> bool:
        """Whether float16 did not do for what was asked since the last call; a model that is another in it is refused.

        One host synchronisation where all is well.
        """
        same = self._is_same(clean)
        well, self._is_well = self._is_well, None
        if bool(same if well is None else same & well):
            return False
        if not bool(same):
            raise InputError(f"{self._name} overflows in float16; expected --search tf32 or fp32")
        warnings.warn("float16 overflowed, or lost a gradient, in a climb that is now made in fp32", stacklevel=2)
        return True

    @torch.no_grad()
    def _is_same(self, clean: Inputs) -> Tensor:
        """Whether float16 is near fp32 wherever that is finite: forward overflow may be hidden, as x / inf is 0."""
        exact, half = (_same_draws(embed, clean).flatten(1) for embed in (self._embed, self._run))
        untold = ~exact.isfinite()
        gap = (half - exact).masked_fill(untold, 0.0).norm(dim=1)
        usual = exact.masked_fill(untold, 0.0).norm(dim=1).square().mean().sqrt()
        return (gap <= FAR * usual).all()


def _same_draws(embed: Embed, x: Inputs) -> Embeddings:
    """As if nothing had been drawn: of a model that draws at random, the same in the next call."""
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        return embed(x)
