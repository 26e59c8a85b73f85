"""How exactly a GPU multiplies fp32 numbers: as they stand, or in TF32, with ten bits of each and sums in fp32."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def products(*, tf32: bool) -> Iterator[None]:
    """Convolutions and matrix products of fp32 numbers with TF32, or without; as before on exit."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        cudnn = torch.backends.cudnn
        # `flags` would otherwise switch cuDNN itself off, and forget the other settings.
        kept = {"enabled": cudnn.enabled, "benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
        with cudnn.flags(**kept, allow_tf32=tf32):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
