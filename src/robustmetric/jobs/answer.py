"""A model of one's own and the inputs it is given: where it fails on them, what was given is said in one line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from robustmetric.attacks.feature_match import Exposed, Featured
from robustmetric.diagnose.randomised import difference
from robustmetric.diagnose.thresholds import SWAYED
from robustmetric.errors import InputError
from robustmetric.jobs.workers import full_precision
from robustmetric.perturb.pgd import frozen

ALIKE = 0.02
"""Relative difference up to which two ways of computing the same logits may round apart, in bfloat16 too."""
SOME = 8
"""Images on which the parts of a classifier are compared with the whole."""


def check_weights(model: nn.Module) -> None:
    """Refuse weights that hold no numbers, or that autograd does not allow near: nothing could be measured on them."""
    for name, weights in chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(weights):
            raise InputError(
                f"{name} of the model has no shape yet (a lazy layer); expected weights: call the model once on a "
                "batch of images"
            )
        if weights.is_meta:
            raise InputError(
                f"{name} of the model has no values, only a shape (its device is 'meta'); expected weights: "
                "model.to_empty(device='cpu') and then load_state_dict give it some"
            )
        if weights.is_inference():
            raise InputError(
                f"{name} of the model was made under torch.inference_mode(), which keeps gradients away from it; "
                "expected weights that are made or loaded outside of it, or copy.deepcopy(model) outside of it"
            )


@contextmanager
def answering(model: nn.Module, inputs: Tensor) -> Iterator[None]:
    """Around a model's first pass: inputs of a wrong size, or weights of another type, are a mistake, not a fault."""
    try:
        yield
    except (InputError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        others = sorted({str(p.dtype) for p in model.parameters() if p.is_floating_point()} - {str(inputs.dtype)})
        hint = f" (its weights are {', '.join(others)}: give model.float())" if others else ""
        raise InputError(
            f"the model failed on inputs of shape {tuple(inputs.shape)}, {inputs.dtype}: "
            f"{' '.join(str(error).split())}{hint}; expected one that takes such a batch "
            "(`robustmetric evaluate --view` gives another size)"
        ) from error


def check_answer(model: nn.Module, shape: Sequence[int]) -> None:
    """Try a model on two blank inputs before anything is trained on it."""
    check_weights(model)
    device = next(model.parameters(), torch.empty(0)).device
    inputs = torch.zeros(2, *shape, device=device)
    with torch.random.fork_rng(devices=[]), frozen(model) as network, torch.no_grad(), answering(model, inputs):
        of_each(model, network(inputs), inputs)


def of_each(model: nn.Module, given: object, inputs: Tensor) -> Tensor:
    """The embeddings of some inputs; refused where there is not one of each: they would be taken for others'."""
    if not isinstance(given, Tensor):
        raise InputError(
            f"{type(model).__name__} returned a {type(given).__name__}; expected a tensor with one embedding per input"
        )
    if len(given) != len(inputs):
        raise InputError(
            f"the model returned embeddings of shape {tuple(given.shape)} for {len(inputs)} inputs; expected one "
            "embedding per input, (batch, dim), whatever the others are"
        )
    if given.dim() != 2:
        raise InputError(
            f"{type(model).__name__} returned a tensor of shape {tuple(given.shape)} for {len(inputs)} inputs; "
            "expected one embedding per input, (batch, dim): pool it, or flatten it as robustmetric.Encoder does"
        )
    return given


def checked_logits(model: nn.Module, inputs: Tensor, classes: int) -> Float[Tensor, "batch classes"]:
    """What a classifier says of some images before any is attacked: as many logits as it has classes, for each."""
    with frozen(model) as network, torch.no_grad(), answering(model, inputs):
        given: object = network(inputs)
    if isinstance(given, Tensor) and tuple(given.shape) == (len(inputs), classes):
        return given
    found = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
    raise InputError(
        f"{type(model).__name__} returned {found} for {len(inputs)} inputs; expected a tensor of its logits, "
        f"({len(inputs)}, {classes}), as it says that it tells {classes} classes apart"
    )


@full_precision()
@torch.no_grad()
def check_features(model: Featured, inputs: Tensor) -> None:
    """Refuse a classifier whose two parts are not the whole: what is found on them would be scored as if on it.

    They may differ by what no answer hangs on: a shift (log_softmax) and a scale (a temperature) of an image's logits;
    of two classes, where an image's own scale would leave a sign alone, of all images' logits.
    """
    if not isinstance(model, nn.Module):
        return
    inputs = inputs[:SOME]
    with frozen(model) as network, answering(model, inputs):
        whole, again = _levelled(network(inputs)), _levelled(network(inputs))
        parts = _levelled(Exposed(model)(inputs)[:, : model.classes])
    # Of one that draws at random several answers are right.
    apart = difference(whole, parts) if difference(whole, again) <= SWAYED else 0.0
    if not apart <= ALIKE:
        raise InputError(
            f"logits(features(x)) of {type(model).__name__} differs from its answer to x by {apart:.2g} of the largest "
            "logit; expected the same logits: features(x) is what its last layer is given, after any activation"
        )


def _levelled(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch classes"]:
    """Each row around 0 with 1 as its largest entry; rows of two classes with 1 as the largest of all."""
    around = logits - logits.mean(dim=1, keepdim=True)
    largest = around.abs().amax(dim=1, keepdim=True)
    return around / (largest.amax() if logits.shape[1] == 2 else largest).clamp_min(1e-12)
