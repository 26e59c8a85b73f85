"""CUDA graphs: a network's forward and input gradient for one shape, recorded once and replayed without launch gaps."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WARM_UP = 3
"""Runs before recording: libraries choose their kernels in the first ones."""


class Recorder:
    """Replays of a network's forward pass and input gradient, one recording per shape.

    Recordings share memory, so a later replay may overwrite what an earlier one left for its backward pass: such a
    backward pass first replays its own forward pass again. Weights are read at replay: change them in place.
    """

    def __init__(self) -> None:
        self.recordings: dict[torch.Size, Recording] = {}
        self.pool: Any = None
        self.tried = False
        """Whether anything was recorded, or failed to be."""
        self.last: object = None
        """The replay whose values are in memory now."""

    def __call__(self, network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """`network(x)`; the network must be the same each time a shape comes."""
        if x.shape not in self.recordings:
            self.tried = True
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            self.recordings[x.shape] = Recording(network, x, self.pool)
            self.last = None
        return _Replay.apply(x, self, self.recordings[x.shape])


class Recording:
    """The two graphs of one shape, and the tensors they read and write."""

    def __init__(self, network: Callable[[Tensor], Tensor], example: Tensor, pool: Any) -> None:
        self.x = example.detach().clone().requires_grad_()
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Recording wants a stream of its own; what was launched before must be done on it first.
        side = torch.cuda.Stream(example.device)
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
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        if ctx.recorder.last is not ctx:
            (x,) = ctx.saved_tensors
            ctx.recording.run(x)
            ctx.recorder.last = ctx
        ctx.recording.dz.copy_(gradients[0])
        ctx.recording.backward.replay()
        return ctx.recording.dx.clone(), None, None
