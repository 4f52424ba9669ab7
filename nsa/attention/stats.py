"""Gate health and selection statistics over all attention layers; without cost while no context is open.

While a :func:`collect_stats` context is open, each layer adds up its passes in tensors that stay on the device; reading
them costs one transfer, in :meth:`AttentionStats.summary`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

__all__ = ["COLLAPSE_THRESHOLD", "AttentionStats", "LayerRecorder", "collect_stats"]

COLLAPSE_THRESHOLD = 0.95
"""A head has collapsed at a position when one branch holds at least this share of its gates."""

_N_SUMS = 9  # entropy, collapsed, three shares, gate rows, blocks, selection rows, selection rows at the maximum
_N_EXTREMES = 3  # of the negative entropy, of the largest share, of the blocks: the largest each
_GATE_ROWS = 5


class LayerRecorder:
    """What one layer hands its gates and its selection to. "Row" means one head at one position for the gates, and
    one group at one position for the selection.

    torch.compile recompiles a layer for every guard that fails, such as on a name or on a dict's keys, and after eight
    variants (`recompile_limit`) runs it uncompiled from then on. So the recorders of all layers are alike, without
    names, and they add in place.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.sums = torch.zeros(_N_SUMS, dtype=torch.float64, device=device)
        self.extremes = torch.full((_N_EXTREMES,), -math.inf, dtype=torch.float64, device=device)

    @torch.no_grad()
    def __call__(self, gates_BSH3: Tensor, blocks_BSGn: Tensor) -> None:
        """Add one forward pass; no transfer, no synchronization."""
        gates = gates_BSH3.detach().double()
        share = gates / gates.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        entropy = torch.special.entr(share).sum(-1) / math.log(3)
        largest = share.amax(-1)
        k = (blocks_BSGn >= 0).sum(-1).double()
        at_max = (k == blocks_BSGn.shape[-1]).sum().double()
        rows, sel_rows = (gates.new_full((), n) for n in (entropy.numel(), k.numel()))
        collapsed = (largest >= COLLAPSE_THRESHOLD).sum().double()
        shares = share.sum((0, 1, 2)).unbind()
        self.sums.add_(torch.stack([entropy.sum(), collapsed, *shares, rows, k.sum(), sel_rows, at_max]))
        extremes = torch.stack([-entropy.amin(), largest.amax(), k.amax()])
        self.extremes.copy_(torch.maximum(self.extremes, extremes))


class AttentionStats:
    """Statistics of the layers whose recorders these are, by the layers' names in the model."""

    def __init__(self, recorders: Mapping[str, LayerRecorder]) -> None:
        self._recorders = dict(recorders)
        self._table: Tensor | None = None

    def stop(self) -> None:
        """Ignore further passes. The recorders stay in place, since a backward pass that recomputes the layers
        (gradient checkpointing) must run the same code; its passes are repetitions and must not count."""
        self._table = self.table()

    def table(self) -> Tensor:
        """``[layers, 12]`` float64: sums and extremes until now, on the device; a layer without a pass has no rows."""
        if self._table is not None:
            return self._table
        rows = [torch.cat((recorder.sums, recorder.extremes)) for recorder in self._recorders.values()]
        return torch.stack(rows) if rows else torch.empty(0, _N_SUMS + _N_EXTREMES)

    def on_host(self) -> AttentionStats:
        """The present values, on their way to the host's memory: an event that is recorded behind this says when they
        are there. To read them from the device later would wait for all that was launched by then, and a CUDA graph's
        next replay overwrites them."""
        table = self.table()
        other = AttentionStats(self._recorders)
        other._table = torch.empty(table.shape, dtype=table.dtype, pin_memory=table.is_cuda)
        other._table.copy_(table, non_blocking=True)
        return other

    def summary(self) -> dict[str, float | list[float]]:
        """All recorded values, over all layers; an empty dict if there are none.

        Keys and units:
            ``gate_entropy_mean``, ``gate_entropy_min``: entropy of the normalized gates in units of ln 3, 0 to 1.
            ``gate_max_gate``: the largest share that one branch held anywhere, 1/3 to 1.
            ``gate_collapse_frac``: fraction of rows with a share of at least :data:`COLLAPSE_THRESHOLD`.
            ``gate_branch_shares``: mean share of the compressed, selected and window branch.
            ``sel_k_mean``, ``sel_k_max``: blocks selected per row. ``sel_rows``: rows seen.
            ``sel_pct_at_max``: percentage of rows that selected ``n_sel`` blocks.
        """
        recorded = list(self._by_layer().values())
        if not recorded:
            return {}
        columns = list(zip(*recorded, strict=True))
        return _named([*map(math.fsum, columns[:_N_SUMS]), *map(max, columns[_N_SUMS:])])

    def per_layer(self) -> dict[str, dict[str, float | list[float]]]:
        """:meth:`summary` of every layer by its name in the model."""
        return {name: _named(row) for name, row in self._by_layer().items()}

    def _by_layer(self) -> dict[str, list[float]]:
        """The table's rows of the layers that had a pass, in one transfer."""
        rows = zip(self._recorders, self.table().tolist(), strict=True)
        return {name: row for name, row in rows if row[_GATE_ROWS]}


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

    layers = {name: m for name, m in model.named_modules() if isinstance(m, NSAAttention)}
    recorders = {name: LayerRecorder(next(layer.parameters()).device) for name, layer in layers.items()}
    before = {name: layer.recorder for name, layer in layers.items()}
    for name, layer in layers.items():
        layer.recorder = recorders[name]
    try:
        yield AttentionStats(recorders)
    finally:
        for name, layer in layers.items():
            layer.recorder = before[name]
