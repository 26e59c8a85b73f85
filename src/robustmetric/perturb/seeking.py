"""Seek in fewer bits, judge in fp32: what an engine climbs may be rounded, what it is credited with may not.

TF32 has the range of fp32, sums in fp32, and ten bits of each factor: gradients do not vanish in it as they may in
bfloat16, and on a GPU that has it convolutions are several times as fast. Float16 has the same ten bits in half the
memory and a narrow range, which gradients are brought into (perturb/cast.py). Bfloat16 is what training attacks climb
in; it is offered where embeddings are compared, and not to attacks on a classifier that may be sure of itself.
"""

from typing import Literal

import torch
from torch import nn

from robustmetric.errors import InputError
from robustmetric.numerics.precision import products
from robustmetric.perturb.active import Rowwise
from robustmetric.perturb.engine import Engine, draws_of, goal_of
from robustmetric.perturb.expectation import mean_of
from robustmetric.perturb.fast import fast_view, folded_view
from robustmetric.perturb.gradient import evaluate
from robustmetric.perturb.half import HalfView
from robustmetric.types import Embed, Inputs

Search = Literal["fp32", "tf32", "fp16", "bf16"]
"""What engines climb in; scores are of fp32 either way."""


def quick_view(model: nn.Module, embed: Embed, search: Search) -> Embed | None:
    """The model to climb on where it is another than the one that scores, `embed`; None: the same."""
    if search == "fp32":
        return None
    if search in ("bf16", "fp16"):
        try:
            return fast_view(model) if search == "bf16" else HalfView(model, embed)
        except torch.OutOfMemoryError:
            raise
        except (TypeError, RuntimeError, AttributeError) as error:  # whatever a model makes of being copied
            raise InputError(f"{type(model).__name__} cannot be copied ({error}); expected --search fp32") from error
    # The units that multiply in TF32 want channels last; a model that cannot be copied is climbed on as it is.
    return folded_view(model, channels_last=True) or embed


def seek(
    engine: Engine,
    exact: Rowwise,
    quick: Rowwise | None,
    clean: Inputs,
    generator: torch.Generator | None,
    tf32: bool = True,
    half: HalfView | None = None,
) -> Inputs:
    """The engine's inputs, found by the `quick` value, its products in TF32 if so asked, where there is one.

    An engine that stops at its goal stops just beyond it: rows that have won by the quick value and not by the exact
    one are sought again by the exact one. Of a model that draws at random both are means, as the engine climbs them.
    Where the quick value is of `half`, and a number was not finite or a gradient lost, all rows are sought again so.
    """
    if quick is None:
        return engine(exact, clean, generator)
    goal, draws = goal_of(engine), draws_of(engine)
    with products(tf32=tf32):
        found = engine(quick, clean, generator)
        claimed = None if goal is None else evaluate(mean_of(quick, draws), found) >= goal
    if half is not None and half.has_failed(clean):
        return engine(exact, clean, generator)
    if goal is None or claimed is None:
        return found
    # One host synchronisation per climb.
    rows = (claimed & ~(evaluate(mean_of(exact, draws), found) >= goal)).nonzero()[:, 0]
    if not len(rows):
        return found
    places = exact.inputs_of(rows, len(claimed))
    return found.index_copy(0, places, engine(exact.some(rows), clean[places], generator))
