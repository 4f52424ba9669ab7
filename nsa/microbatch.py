"""One micro-batch of a training step, launched by Python or replayed from a CUDA graph; the work is the same."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from nsa.attention.stats import AttentionStats, collect_stats
from nsa.graphs import MicroBatchGraph
from nsa.model import LanguageModel
from nsa.sharded import accumulating

__all__ = ["Graphs", "MicroBatch", "MicroBatches", "make_graphs"]


@dataclass(frozen=True)
class MicroBatch:
    """What a micro-batch left: its share of the step's loss, a 0-d tensor on the device, and statistics if taken."""

    loss: Tensor
    stats: AttentionStats | None = None


@dataclass(frozen=True)
class Graphs:
    """A micro-batch as a CUDA graph, and one that takes statistics, where a run ever takes them."""

    plain: MicroBatchGraph[MicroBatch]
    with_stats: MicroBatchGraph[MicroBatch] | None


def make_graphs(
    *, batch_size: int, seq_len: int, device: torch.device, stats: bool, fresh: Sequence[Tensor] = ()
) -> Graphs:
    """Graphs that are still to be captured; ``fresh`` as for :class:`nsa.graphs.MicroBatchGraph`."""
    make = partial(MicroBatchGraph[MicroBatch], batch_size=batch_size, seq_len=seq_len, device=device, fresh=fresh)
    plain = make()
    return Graphs(plain, make(shares_memory_with=plain) if stats else None)


@dataclass(frozen=True)
class MicroBatches:
    """Forward and backward passes of a run. `model` is what is called, `bare_model` holds the layers."""

    model: nn.Module
    bare_model: LanguageModel
    device: torch.device
    autocast: bool
    accum: int
    graphs: Graphs | None = None

    def run(self, tokens_BT: Tensor, *, collects: bool, reduces: bool, by_python: bool) -> MicroBatch:
        """Add up one micro-batch's gradients, averaged over the ranks where it `reduces`.

        Args:
            tokens_BT: ``[batch_size, seq_len + 1]`` int64.
            collects: take gate and selection statistics.
            by_python: run the layers from Python and not from a graph, because the audit or a trace observes them.
        """
        graph = None if by_python else self._graph(collects=collects)
        if graph is None:
            done = self._launch(tokens_BT, collects=collects, reduces=reduces)
        else:
            done = graph.replay(tokens_BT)
        return MicroBatch(done.loss, done.stats.on_host() if done.stats else None)

    @property
    def awaits_capture(self) -> bool:
        """Whether there are to be graphs and none is there yet."""
        return self.graphs is not None and not self.graphs.plain.ready

    @property
    def keeps_gradients(self) -> bool:
        """Whether graphs add to gradients whose addresses they have, so that these are zeroed and never replaced."""
        return self.graphs is not None and self.accum > 1

    def capture(self) -> None:
        """Record the graphs. Leaves gradients behind that are no step's."""
        assert self.graphs is not None, "asked for only where graphs are awaited"
        for graph, collects in ((self.graphs.plain, False), (self.graphs.with_stats, True)):
            if graph is not None:
                graph.capture(partial(self._launch, collects=collects, reduces=True))

    def _graph(self, *, collects: bool) -> MicroBatchGraph[MicroBatch] | None:
        if self.graphs is None:
            return None
        graph = self.graphs.with_stats if collects else self.graphs.plain
        return graph if graph is not None and graph.ready else None

    def _launch(self, tokens_BT: Tensor, *, collects: bool, reduces: bool) -> MicroBatch:
        with contextlib.ExitStack() as stack:
            stats = stack.enter_context(collect_stats(self.bare_model)) if collects else None
            if not reduces:
                stack.enter_context(accumulating(self.model))
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
                loss = self.model(tokens_BT[:, :-1], tokens_BT[:, 1:]) / self.accum
            if stats is not None:
                stats.stop()  # a recomputation is no sample
            loss.backward()
        return MicroBatch(loss.detach(), stats)
