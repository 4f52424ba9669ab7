"""Gate health and selection statistics over all attention layers, and nothing at all when nobody asks.

While a :func:`collect_stats` context is open, each layer adds its sums to accumulators that stay on the device; reading
them costs one transfer, in :meth:`AttentionStats.summary`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nsa.attention.dispatch import fallback_counters, reset_fallback_counters

__all__ = ["AttentionStats", "COLLAPSE_THRESHOLD", "collect_stats", "fallback_counters", "reset_fallback_counters"]

COLLAPSE_THRESHOLD = 0.95
"""A head has collapsed at a position when one branch holds at least this share of its gates."""

_N_SUMS = 9  # entropy, collapsed, three shares, gate rows, blocks, selection rows, selection rows at the maximum


class AttentionStats:
    """Statistics of one :func:`collect_stats` context.

    "Row" means one head at one position for the gates, and one group at one position for the selection.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._extremes: dict[str, Tensor] = {}
        self._stopped = False

    def stop(self) -> None:
        """Take no further pass into account. The layers go on as if recorded, which a backward pass that recomputes
        them (gradient checkpointing) relies on; its passes are repetitions and must not count."""
        self._stopped = True

    @torch.no_grad()
    def record(self, layer: str, gates_BSH3: Tensor, blocks_BSGn: Tensor) -> None:
        """Add one forward pass of one layer; no transfer, no synchronization."""
        if self._stopped:
            return
        gates = gates_BSH3.detach().double()
        share = gates / gates.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        entropy = torch.special.entr(share).sum(-1) / math.log(3)
        largest = share.amax(-1)
        k = (blocks_BSGn >= 0).sum(-1).double()
        at_max = (k == blocks_BSGn.shape[-1]).sum().double()
        rows, sel_rows = (gates.new_full((), n) for n in (entropy.numel(), k.numel()))
        collapsed = (largest >= COLLAPSE_THRESHOLD).sum().double()
        shares = share.sum((0, 1, 2)).unbind()
        sums = torch.stack([entropy.sum(), collapsed, *shares, rows, k.sum(), sel_rows, at_max])
        extremes = torch.stack([-entropy.amin(), largest.amax(), k.amax()])
        seen = layer in self._sums
        self._sums[layer] = self._sums[layer] + sums if seen else sums
        self._extremes[layer] = torch.maximum(self._extremes[layer], extremes) if seen else extremes

    def copy(self) -> AttentionStats:
        """The same figures in tensors of their own, for those of a CUDA graph are overwritten when it is replayed."""
        other = AttentionStats()
        if names := list(self._sums):
            other._sums = dict(zip(names, torch.stack([self._sums[name] for name in names]), strict=True))
            other._extremes = dict(zip(names, torch.stack([self._extremes[name] for name in names]), strict=True))
        return other

    def summary(self) -> dict[str, float | list[float]]:
        """Everything recorded so far, over all layers; an empty dict if nothing was.

        Keys and units:
            ``gate_entropy_mean``, ``gate_entropy_min``: entropy of the normalized gates in units of ln 3, 0 to 1.
            ``gate_max_gate``: the largest share that one branch held anywhere, 1/3 to 1.
            ``gate_collapse_frac``: fraction of rows with a share of at least :data:`COLLAPSE_THRESHOLD`.
            ``gate_branch_shares``: mean share of the compressed, selected and window branch.
            ``sel_k_mean``, ``sel_k_max``: blocks selected per row. ``sel_rows``: rows seen.
            ``sel_pct_at_max``: percentage of rows that selected ``n_sel`` blocks.
        """
        if not self._sums:
            return {}
        sums = torch.stack(list(self._sums.values())).sum(0)
        extremes = torch.stack(list(self._extremes.values())).amax(0)
        return _named(torch.cat([sums, extremes]).tolist())

    def per_layer(self) -> dict[str, dict[str, float | list[float]]]:
        """:meth:`summary` of every layer by its name in the model."""
        names = list(self._sums)
        rows = [torch.cat([self._sums[name], self._extremes[name]]) for name in names]
        table = torch.stack(rows).tolist() if rows else []
        return {name: _named(row) for name, row in zip(names, table, strict=True)}


def _named(values: list[float]) -> dict[str, float | list[float]]:
    entropy, collapsed, cmp, sel, win, rows, k, sel_rows, at_max = values[:_N_SUMS]
    negative_entropy_min, max_gate, k_max = values[_N_SUMS:]
    return {
        "gate_entropy_mean": entropy / rows,
        "gate_entropy_min": -negative_entropy_min,
        "gate_max_gate": max_gate,
        "gate_collapse_frac": collapsed / rows,
        "gate_branch_shares": [cmp / rows, sel / rows, win / rows],
        "sel_k_mean": k / sel_rows,
        "sel_k_max": k_max,
        "sel_rows": sel_rows,
        "sel_pct_at_max": 100.0 * at_max / sel_rows,
    }


@contextlib.contextmanager
def collect_stats(model: nn.Module) -> Iterator[AttentionStats]:
    """Record every pass of every :class:`~nsa.attention.NSAAttention` in ``model`` while the context is open."""
    from nsa.attention.module import NSAAttention  # the module imports this file for its recorder's type

    stats = AttentionStats()
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, NSAAttention)]
    before = [layer.recorder for _, layer in layers]
    for name, layer in layers:
        layer.recorder = _Recorder(stats, name)
    try:
        yield stats
    finally:
        for (_, layer), old in zip(layers, before, strict=True):
            layer.recorder = old


class _Recorder:
    """Binds one layer's name to the statistics it reports to."""

    def __init__(self, stats: AttentionStats, layer: str) -> None:
        self._stats, self._layer = stats, layer

    def __call__(self, gates_BSH3: Tensor, blocks_BSGn: Tensor) -> None:
        self._stats.record(self._layer, gates_BSH3, blocks_BSGn)
