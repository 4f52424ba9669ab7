"""The attention layer of the model: projections, rotation, gates, and the choice between prefill and decode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from nsa.attention.arguments import check_options
from nsa.attention.cache import NSACache
from nsa.attention.decode import decode_step
from nsa.attention.dispatch import load_kernels
from nsa.attention.functional import AttentionSettings, attend
from nsa.attention.gate import Gate, GateKind, UnsetLinear
from nsa.attention.geometry import Geometry
from nsa.attention.phi import Phi, build_phi
from nsa.attention.ranges import RangesVersion
from nsa.attention.rope import RopeTable, apply_rope, prefix_table, rope_table
from nsa.attention.varlen import sequence_positions

__all__ = ["NSAAttention", "Prefill"]

Prefill = Literal["sequential", "batched", "triton", "auto"]


class NSAAttention(nn.Module):
    """Native Sparse Attention over ``[B, S, dim]`` (arXiv 2502.11089).

    Queries and the three pairs of keys and values come from one product, ``qkv_proj``, whose rows are in the order
    q, k_cmp, k_sel, k_win, v_cmp, v_sel, v_win: one large product instead of seven small ones. Queries and all keys
    are rotated, keys before compression.

    Args:
        dim: width of input and output.
        n_heads: H query heads; a multiple of ``n_kv_groups``.
        n_kv_groups: G.
        d_k: channels per key, even; d_v: channels per value.
        l, d, l_sel, n_sel, w: see :class:`~nsa.attention.geometry.Geometry`.
        phi: compression function.
        gate: activation of the gates; gate_hidden: width of the gate's MLP (``dim // 8``, at least 16, if None).
        rope_base: base of the rotation's wavelengths.
        prefill: implementation of :meth:`forward`.
        sel_ranges: implementation of merged ranges, for ``sequential`` and ``batched`` prefill. ``triton`` attends by
            blocks and makes no ranges; :meth:`decode` makes them by ``v2``.
        query_chunk: queries per chunk of the batched path; None chooses by memory.
        std, out_std: deviation of the first weights, and of those of the output projection (``std`` if None).
        generator: their source; torch's own if None.

    Raises:
        ValueError: sizes do not fit together; the message names the argument.
    """

    recorder: Callable[[Tensor, Tensor], None] | None

    def __init__(
        self,
        *,
        dim: int,
        n_heads: int,
        n_kv_groups: int,
        d_k: int,
        d_v: int,
        l: int = 32,  # noqa: E741 - the paper's symbol
        d: int = 16,
        l_sel: int = 64,
        n_sel: int = 16,
        w: int = 512,
        phi: Phi = "avg",
        gate: GateKind = "sigmoid",
        gate_hidden: int | None = None,
        rope_base: float = 10_000.0,
        prefill: Prefill = "auto",
        sel_ranges: RangesVersion = "v2",
        query_chunk: int | None = None,
        std: float = 0.02,
        out_std: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(dim=dim, n_heads=n_heads, n_kv_groups=n_kv_groups, d_k=d_k, d_v=d_v)
        if prefill not in ("sequential", "batched", "triton", "auto"):
            raise ValueError(f"prefill={prefill!r}: must be sequential, batched, triton or auto")
        check_options(query_chunk=query_chunk, sel_ranges=sel_ranges)
        self.geometry = Geometry(l=l, d=d, l_sel=l_sel, n_sel=n_sel, w=w)
        self.n_heads, self.n_kv_groups, self.d_k, self.d_v = n_heads, n_kv_groups, d_k, d_v
        self.rope_base, self.prefill, self.sel_ranges, self.query_chunk = rope_base, prefill, sel_ranges, query_chunk
        self._widths = [n_heads * d_k, *[n_kv_groups * d_k] * 3, *[n_kv_groups * d_v] * 3]
        self.qkv_proj = UnsetLinear(dim, sum(self._widths), bias=False)
        self.out_proj = UnsetLinear(n_heads * d_v, dim, bias=False)
        self.gate = Gate(dim=dim, n_heads=n_heads, hidden=gate_hidden, kind=gate, generator=generator)
        self.phi_k = build_phi(phi, n_kv_groups=n_kv_groups, dim=d_k, l=l, d=d, generator=generator)
        self.phi_v = build_phi(phi, n_kv_groups=n_kv_groups, dim=d_v, l=l, d=d, generator=generator)
        # The functional path averages by itself, fused where it can be; other functions are passed to it.
        self._compress = None if phi == "avg" else self._apply_phi
        self.recorder = None
        if prefill == "triton" or (prefill == "auto" and torch.cuda.is_available()):
            load_kernels()
        self.reset_parameters(std, out_std, generator)

    def reset_parameters(
        self, std: float = 0.02, out_std: float | None = None, generator: torch.Generator | None = None
    ) -> None:
        """Normal weights of deviation ``std``; the output projection takes ``out_std`` if it is given."""
        nn.init.normal_(self.qkv_proj.weight, std=std, generator=generator)
        nn.init.normal_(self.out_proj.weight, std=std if out_std is None else out_std, generator=generator)
        self.gate.reset_parameters(std, generator)
        for phi in (self.phi_k, self.phi_v):
            phi.reset_parameters(std, generator)  # type: ignore[operator]

    def forward(self, x_BSD: Tensor, *, cu_seqlens: Tensor | None = None, table: RopeTable | None = None) -> Tensor:
        """Attend causally over the sequence.

        Args:
            x_BSD: ``[B, S, dim]``.
            cu_seqlens: ``[n + 1]`` offsets of n sequences packed along S (B must be 1). They do not see each other, and
                positions start from 0 in each.
            table: cosines and sines of the S positions (:func:`~nsa.attention.rope.rope_table`); made here if None.

        Returns:
            ``[B, S, dim]``.
        """
        if table is None:
            table = self._table(x_BSD, cu_seqlens)
        gates = self.gate(x_BSD)
        return self._attend(self._project(x_BSD, table), gates, cu_seqlens)

    def init_cache(self, batch: int, max_len: int, *, device: torch.device | str, dtype: torch.dtype) -> NSACache:
        """An empty cache for ``batch`` rows of up to ``max_len`` positions."""
        return NSACache(
            geometry=self.geometry,
            batch=batch,
            max_len=max_len,
            n_kv_groups=self.n_kv_groups,
            d_k=self.d_k,
            d_v=self.d_v,
            device=device,
            dtype=dtype,
        )

    @torch.no_grad()
    def fill(self, x_BSD: Tensor, cache: NSACache) -> Tensor:
        """Run a prompt ``[B, S, dim]`` through prefill and put it into an empty cache; returns ``[B, S, dim]``."""
        if cache.length:
            raise ValueError(f"cache: holds {cache.length} positions, must be empty; use decode to append to it")
        streams = self._project(x_BSD, self._table(x_BSD, None))
        cache.append(streams[1:], self._apply_phi)
        return self._attend(streams, self.gate(x_BSD), None)

    @torch.no_grad()
    def decode(self, x_B1D: Tensor, cache: NSACache) -> Tensor:
        """Append one position to the cache and attend from it: ``[B, 1, dim]`` to ``[B, 1, dim]``."""
        if x_B1D.shape[1] != 1:
            raise ValueError(f"x_B1D: {x_B1D.shape[1]} positions, decode takes one; use fill for a prompt")
        position = torch.tensor([cache.length], device=x_B1D.device)
        q, *streams = self._project(x_B1D, rope_table(position, dim=self.d_k, base=self.rope_base))
        gates = self.gate(x_B1D)
        # Precision is decided in the step, not by an autocast region around the model.
        with torch.autocast(device_type=x_B1D.device.type, enabled=False):
            o, blocks = decode_step(
                q,
                tuple(streams),
                gates,
                cache,
                impl=self.prefill,
                compress=self._apply_phi,
                averages=self._compress is None,
                scale=self.d_k**-0.5,
            )
        if self.recorder is not None:
            self.recorder(gates, blocks)
        out: Tensor = self.out_proj(o.flatten(2))
        return out

    def _table(self, x_BSD: Tensor, cu_seqlens: Tensor | None) -> RopeTable:
        S = x_BSD.shape[1]
        if cu_seqlens is not None:
            return rope_table(sequence_positions(cu_seqlens, S), dim=self.d_k, base=self.rope_base)
        return prefix_table(S, dim=self.d_k, base=self.rope_base, device=x_BSD.device)

    def _project(self, x_BSD: Tensor, table: RopeTable) -> tuple[Tensor, ...]:
        """``(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)``, rotated, ``[B, S, heads or groups, .]``."""
        q, *keys_values = self.qkv_proj(x_BSD).split(self._widths, dim=-1)
        q = apply_rope(q.unflatten(-1, (self.n_heads, self.d_k)), table)
        k_cmp, k_sel, k_win = (
            apply_rope(k.unflatten(-1, (self.n_kv_groups, self.d_k)), table) for k in keys_values[:3]
        )
        v_cmp, v_sel, v_win = (v.unflatten(-1, (self.n_kv_groups, self.d_v)) for v in keys_values[3:])
        return q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win

    def _apply_phi(self, k_BSGK: Tensor, v_BSGV: Tensor) -> tuple[Tensor, Tensor]:
        return self.phi_k(k_BSGK), self.phi_v(v_BSGV)

    def _attend(self, streams: tuple[Tensor, ...], gates: Tensor, cu_seqlens: Tensor | None) -> Tensor:
        settings = AttentionSettings(
            self.geometry,
            compress=self._compress,
            impl=self.prefill,
            query_chunk=self.query_chunk,
            sel_ranges=self.sel_ranges,
        )
        record = self.recorder
        o, aux = attend(streams, gates, settings, return_aux=record is not None, cu_seqlens=cu_seqlens)
        if record is not None and aux is not None:
            record(gates, aux.blocks)
        out: Tensor = self.out_proj(o.flatten(2))
        return out

    def extra_repr(self) -> str:
        """Sizes shown by ``print(model)``."""
        geo = self.geometry
        return (
            f"heads={self.n_heads}, groups={self.n_kv_groups}, d_k={self.d_k}, d_v={self.d_v}, l={geo.l}, d={geo.d}, "
            f"l_sel={geo.l_sel}, n_sel={geo.n_sel}, w={geo.w}, prefill={self.prefill}"
        )


def _check_sizes(*, dim: int, n_heads: int, n_kv_groups: int, d_k: int, d_v: int) -> None:
    sizes = {"dim": dim, "n_heads": n_heads, "n_kv_groups": n_kv_groups, "d_k": d_k, "d_v": d_v}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    if n_heads % n_kv_groups:
        raise ValueError(f"n_heads={n_heads}: must be a multiple of n_kv_groups={n_kv_groups}")
    if d_k % 2:
        raise ValueError(f"d_k={d_k}: must be even, since rotation pairs channels")
