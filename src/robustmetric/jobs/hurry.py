"""What makes training faster and changes no method: memory format, compiled updates, and the settings of `--fast`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from robustmetric.jobs.workers import Hardware


def channels_last(model: nn.Module) -> None:
    """Lay out the weights of two-dimensional convolutions as a GPU and bfloat16 like them, in place."""
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
    """The settings of `--fast`, under what is set by hand: bfloat16 where there are instructions for its products, and
    compiled on a GPU, with folded norms on a CPU.
    """
    on_gpu = hardware.accelerator != "cpu" and torch.cuda.is_available()
    if hardware.precision == "32-true" and (on_gpu or multiplies_bfloat16()):
        hardware = replace(hardware, precision="bf16-mixed")
    views = ["attack_view=compiled", "update=compiled"] if on_gpu else ["attack_view=fast"]
    return [*views, *changes], hardware


def multiplies_bfloat16() -> bool:
    """Whether this CPU has tiles for products of bfloat16 (AMX); measured: without them fp32 is faster."""
    # Earlier versions of torch do not tell.
    told: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(told.get("amx_bf16"))
