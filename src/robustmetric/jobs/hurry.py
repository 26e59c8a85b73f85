"""What makes training faster and changes no method: memory format, compiled updates, and the settings of `--fast`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from robustmetric.jobs.workers import Hardware


def channels_last(model: nn.Module) -> None:
    """Lay out the weights of two-dimensional convolutions as a GPU likes them, in place."""
    for weight in model.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)


@contextmanager
def compiled_updates(networks: Sequence[nn.Module], compiled: bool) -> Iterator[Callable[[], None]]:
    """Compile the calls of these networks until the function given is called.

    Other shapes and modes that come later run as they are: to compile for each would take minutes.
    """

    def settle() -> None:
        if compiled:
            torch.compiler.set_stance("eager_on_recompile")

    if not compiled:
        yield settle
        return
    for network in networks:
        network.compile(dynamic=False)
    try:
        # Where torch cannot follow the model, it says so and goes on without.
        with torch._dynamo.config.patch(suppress_errors=True):
            yield settle
    finally:
        torch.compiler.set_stance("default")
        for network in networks:
            network._compiled_call_impl = None  # there is no public way back


def hurry(changes: list[str], hardware: Hardware) -> tuple[list[str], Hardware]:
    """The settings of `--fast`, under what is set by hand: bfloat16 and compiled on a GPU, folded norms on a CPU."""
    if hardware.accelerator == "cpu" or not torch.cuda.is_available():
        return ["attack_view=fast", *changes], hardware
    precision = "bf16-mixed" if hardware.precision == "32-true" else hardware.precision
    return ["attack_view=compiled", "update=compiled", *changes], replace(hardware, precision=precision)
