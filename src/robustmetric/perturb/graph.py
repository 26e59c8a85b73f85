"""CUDA graphs: a network's forward and input gradient for one shape, recorded once and replayed without launch gaps."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

WARM_UP = 3
"""Runs before recording: libraries choose their kernels in the first ones."""


class Recorder:
    """Replays of a network's forward pass and input gradient, one recording per shape and precision of fp32 products.

    Recordings share memory, so a later replay may overwrite what an earlier one left for its backward pass: such a
    backward pass first replays its own forward pass again. Weights are read at replay: change them in place.
    """

    def __init__(self) -> None:
        self.recordings: dict[tuple[object, ...], Recording] = {}
        self.pool: Any = None
        self.stream: torch.cuda.Stream | None = None
        """One for all: memory freed on a stream is reused on that stream alone."""
        self.tried = False
        """Whether anything was recorded, or failed to be."""
        self.last: object = None
        """The replay whose values are in memory now."""

    def __call__(self, network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """`network(x)`; the network must be the same each time a shape comes."""
        # TF32 is a matter of the kernels recorded, not of the replay.
        key = x.shape, torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
        if key not in self.recordings:
            self.tried = True
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            self.stream = self.stream or torch.cuda.Stream(x.device)
            self.recordings[key] = Recording(network, x, self.pool, self.stream)
            self.last = None
        return _Replay.apply(x, self, self.recordings[key])


class Recording:
    """The two graphs of one shape, and the tensors they read and write."""

    def __init__(
        self, network: Callable[[Tensor], Tensor], example: Tensor, pool: Any, side: torch.cuda.Stream
    ) -> None:
        self.x = example.detach().clone().requires_grad_()
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Recording wants a stream of its own; what was launched before must be done on it first.
        side.wait_stream(torch.cuda.current_stream(example.device))
        with torch.cuda.stream(side), torch.enable_grad():
            for _ in range(WARM_UP):
                z = network(self.x)
                self.dz = torch.zeros_like(z)
                torch.autograd.grad(z, self.x, self.dz)
            del z
            with torch.cuda.graph(self.forward, pool=pool, stream=side, capture_error_mode="thread_local"):
                self.z = network(self.x)
            with torch.cuda.graph(self.backward, pool=pool, stream=side, capture_error_mode="thread_local"):
                (self.dx,) = torch.autograd.grad(self.z, self.x, self.dz)
            self.z = self.z.detach()
        torch.cuda.current_stream(example.device).wait_stream(side)

    def run(self, x: Tensor) -> Tensor:
        """The network at x; the result is overwritten by the next replay."""
        self.x.data.copy_(x)
        self.forward.replay()
        return self.z


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, recorder: Recorder, recording: Recording) -> Tensor:
        ctx.recorder, ctx.recording = recorder, recording
        ctx.save_for_backward(x)
        recorder.last = ctx
        return recording.run(x).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        if ctx.recorder.last is not ctx:
            ctx.recording.run(x)
        ctx.recording.dz.copy_(gradients[0])
        ctx.recording.backward.replay()
        # The backward pass reuses the memory of the values it has read.
        ctx.recorder.last = None
        return ctx.recording.dx.clone(), None, None
