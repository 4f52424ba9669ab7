"""Forward and backward of a micro-batch as a CUDA graph.

At a few thousand tokens a step launches about two thousand kernels, and the host cannot launch them as fast as the GPU
runs them. Captured once and replayed, they cost one call. The tokens are copied into the tensor that was captured.
Gradients are made anew by each replay, in memory of the graph's own; or, where several micro-batches make a step, added
to the existing ones, whose addresses are captured too: they are zeroed and never replaced.

Gate statistics are taken on the device, so a micro-batch that takes them is a second graph. What has to see the layers
from Python, the audit and the first traced step, runs as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["MicroBatchGraph", "why_no_graph"]

Result = TypeVar("Result")


def why_no_graph(*, on_cuda: bool, shared: bool, attention: str, prefill: str) -> str | None:
    """None if a micro-batch can be captured, else the reason in words.

    Args:
        shared: whether processes share the model, whose reductions run between the parts of a backward pass.
        attention, prefill: as they will run; only the fused kernels and dense attention never wait for the host.
    """
    if not on_cuda:
        return "no CUDA device"
    if shared:
        return "gradients are reduced within the backward pass"
    if attention == "nsa" and prefill != "triton":
        return f"prefill={prefill} waits for the host"
    return None


class MicroBatchGraph(Generic[Result]):
    """One micro-batch of ``[batch_size, seq_len + 1]`` int64 tokens, captured from ``work`` and replayed.

    ``work(tokens)`` runs forward and backward, adds to the gradients that exist, and returns what holds its results.
    ``fresh`` are the parameters whose gradients a replay replaces; it adds to those of others.
    ``shares_memory_with`` is a graph captured before, whose memory pool this one uses: they never run at the same time.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        seq_len: int,
        device: torch.device,
        shares_memory_with: MicroBatchGraph[Any] | None = None,
        fresh: Sequence[Tensor] = (),
    ) -> None:
        self._fresh, self._gradients = tuple(fresh), list[Tensor | None]()
        self._shape, self._device, self._pool_owner = (batch_size, seq_len + 1), device, shares_memory_with
        self._tokens: Tensor | None = None
        self._result: Result | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def ready(self) -> bool:
        """Whether there is something to replay."""
        return self._graph is not None

    def capture(self, work: Callable[[Tensor], Result]) -> None:
        """Run ``work`` twice, for what it prepares once, then record it. Leaves the gradients in need of zeroing, or of
        removal where they are fresh."""
        tokens = torch.zeros(self._shape, dtype=torch.int64, device=self._device)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):
                work(tokens)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        other = self._pool_owner._graph if self._pool_owner else None
        for weight in self._fresh:
            weight.grad = None  # what is recorded makes its own
        # The loader's thread pins memory meanwhile; a mode other than thread_local would fail the capture for it.
        with torch.cuda.graph(graph, pool=other.pool() if other else None, capture_error_mode="thread_local"):
            self._result = work(tokens)
        self._gradients = [weight.grad for weight in self._fresh]
        self._tokens, self._graph = tokens, graph

    def replay(self, tokens_BT: Tensor) -> Result:
        """Run the captured work on these tokens, from host or device.

        The result's tensors are overwritten by the next call, of this graph or of one that shares its memory.
        """
        assert self._graph is not None, "captured before it is replayed"
        assert self._tokens is not None
        assert self._result is not None
        self._tokens.copy_(tokens_BT, non_blocking=True)
        self._graph.replay()
        for weight, gradient in zip(self._fresh, self._gradients, strict=True):
            weight.grad = gradient
        return self._result
