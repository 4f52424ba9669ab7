"""The kernels of a backward pass in order. Every launch is asynchronous; nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nsa.attention.spans import span
from nsa.kernels.backward import delta_kernel, dkv_kernel, dq_kernel
from nsa.kernels.compress import spread_kernel
from nsa.kernels.config import FUSED, Tile, hopper_allowed, next_power_of_2
from nsa.kernels.hopper import (
    HopperBackward,
    Run,
    RunTurn,
    scratch,
    second_stream,
    sums_queries,
    why_no_gather,
    why_no_wgmma,
    why_no_window,
)
from nsa.kernels.hopper.rows import finish_kernel
from nsa.kernels.launch import Saved, gather_constants, options
from nsa.kernels.problem import Problem, ceil_div, strides
from nsa.kernels.selected import gather_backward_kernel
from nsa.kernels.tiles import CMP, LOCAL, SINK, WIN

__all__ = ["backward"]

Rows = tuple[Tensor, Tensor, Tensor, Tensor]
"""What the gradient of one branch reads per row: dO, the branch's log-sum-exp, gates, delta."""


def _dkv(
    mode: int, branch: int, streams: tuple[Tensor, Tensor, Tensor], rows: Rows,
    out: tuple[Tensor, Tensor], p: Problem, *, tile: Tile, keys: int, step: int, first: int = 0,
    count: int | None = None,     chunk: tuple[int, int] = (0, 1), parts: tuple[Tensor, Tensor] | None = None,
    sink: tuple[Tensor, Tensor] | None = None, tile_offsets: Tensor | None = None, summed: bool = False,
) -> None:  # fmt: skip
    """Launch :func:`dkv_kernel`. ``rows`` is (dO, lse, gates, delta); ``keys`` the number of keys, ``step`` per
    program. ``parts`` are by work tile, or ``summed`` by key."""
    q, k, v = streams
    unused = rows[1]
    part_dk, part_dv = parts if parts is not None else (unused, unused)
    sink_dk, sink_dv = sink if sink is not None else (unused, unused)
    bt = p.tokens(tile)
    grid = (ceil_div(keys, step), p.bg if count is None else count, chunk[1])
    dkv_kernel[grid](
        q, k, v, *rows, *out, part_dk, part_dv, sink_dk, sink_dv, unused if tile_offsets is None else tile_offsets,
        *strides(q), *strides(k), *strides(v), first, p.S, keys, p.bg, p.n_blocks, p.n_lists, p.max_tiles, *chunk,
        0 if sink is None else sink_dk.shape[0], p.scale, p.scale2,
        **p.common(), BT=bt, BM=tile.bm, BN=max(next_power_of_2(step), 16), STEP=step, MODE=mode, BRANCH=branch,
        PARTS=0 if parts is None else 2 if summed else 1, PREC=p.precision, **options(tile),
    )  # fmt: skip


def _float32_pair(q: Tensor, lead: tuple[int, ...], p: Problem) -> tuple[Tensor, Tensor]:
    """Partial sums of key and value gradients."""
    dk = q.new_empty(*lead, p.dims.dk, dtype=torch.float32)
    return dk, q.new_empty(*lead, p.dims.dv, dtype=torch.float32)


def _spread(
    parts: tuple[Tensor, Tensor], like: tuple[Tensor, Tensor], chunk: tuple[int, int], keys: int, p: Problem, *,
    per_token: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sums of partial sums by ``chunk``, written by tiles of ``keys``, in the type of ``like``."""
    n_out = p.S if per_token else p.n_cmp
    result = []
    for partial, x in zip(parts, like, strict=True):
        dim = partial.shape[-1]
        out = x.new_empty(p.B, n_out, p.G, dim)
        spread_kernel[(ceil_div(n_out, 16), p.bg)](
            partial, out, p.S, p.n_cmp, p.bg, *chunk, G=p.G, L=p.l, D=p.d, BNC=keys, PER_TOKEN=per_token, DIM=dim,
            DIMP=next_power_of_2(dim), BS=16, **FUSED,
        )  # fmt: skip
        result.append(out)
    return result[0], result[1]


def _compressed_dkv(
    q: Tensor, kc: Tensor, vc: Tensor, rows: Rows, p: Problem, *, per_token: bool
) -> tuple[Tensor, Tensor]:
    if not p.n_cmp:
        n_out = p.S if per_token else 0
        return kc.new_zeros(p.B, n_out, p.G, p.dims.dk), vc.new_zeros(p.B, n_out, p.G, p.dims.dv)
    tile = p.tiles.dkv_cmp
    chunk = p.query_chunk(16, p.tokens(tile))
    part = _float32_pair(q, (chunk[1], p.bg, p.n_cmp), p)
    _dkv(CMP.value, 0, (q, kc, vc), rows, part, p, tile=tile, keys=p.n_cmp, step=tile.bn, chunk=chunk)
    return _spread(part, (kc, vc), chunk, tile.bn, p, per_token=per_token)


def _sink_dkv(q: Tensor, k_sel: Tensor, v_sel: Tensor, rows: Rows, p: Problem) -> tuple[Tensor, Tensor] | None:
    """Partial gradients of block 0 from all queries beyond the second block."""
    if 2 * p.l_sel >= p.S:
        return None
    tile = p.tiles.dkv_sel
    chunk = p.query_chunk(ceil_div(2 * p.n_processors, p.bg), p.tokens(tile))
    sink = _float32_pair(q, (chunk[1], p.bg, p.l_sel), p)
    _dkv(SINK.value, 1, (q, k_sel, v_sel), rows, sink, p, tile=tile, keys=p.l_sel, step=p.l_sel, chunk=chunk)
    return sink


class _Parts:
    """What the compressed branch and the scored blocks give to all gradients, some (batch, group) pairs at a time.

    By Hopper's own kernels where those can run: they add to ``query_sums``, and the scored blocks leave sums by key
    (``summed``); window and forced blocks may join them (``window``). Otherwise by Triton's, and the compressed
    branch's keys and values are done at once.
    """

    def __init__(
        self, do: Tensor, streams: tuple[Tensor, ...], gates: Tensor, delta: Tensor, saved: Saved, p: Problem, *,
        per_token: bool,
    ) -> None:  # fmt: skip
        self.p, self.do, self.streams, self.gates, self.delta, self.saved = p, do, streams, gates, delta, saved
        q, kc, vc, k_sel, v_sel = streams[:5]
        by_wgmma = hopper_allowed() and why_no_wgmma(q, kc, vc, do, p) is None
        # Before there is room for partial results of the queries: its own are gone then.
        self._keys = None if by_wgmma else _compressed_dkv(
            q, kc, vc, (do, saved.lse_cmp, gates, delta), p, per_token=per_token
        )  # fmt: skip
        self.summed = by_wgmma and why_no_gather(k_sel, v_sel, p) is None
        sums_all = self.summed and sums_queries(p)
        rest = streams[5:] + streams[3:5]
        self.window = by_wgmma and why_no_window(rest, p) is None
        extra = scratch(p, gathers=self.summed, window=self.window) if by_wgmma else 0
        self.slabs = [(0, p.bg)] if sums_all else p.slabs(p.dims.dk, extra)
        most = self.slabs[0][1]
        # Where window and forced blocks join them, nothing else reads partial results of the queries.
        in_turns = self.window and self.summed and not sums_all
        self.turns, beside = p.turns(most) if in_turns else ([(0, p.S)], 1)
        shape = (most, (self.turns[0][1] - self.turns[0][0]) * p.n_top, p.hpg, p.dims.dk)
        # Where there is room for two turns, one is gathered while the other is finished.
        self._places: tuple[Tensor | None, ...] = (None,) if sums_all else q.new_empty(beside, *shape).unbind()
        self.part_dq = self._places[0]
        self.fused = None
        if by_wgmma:
            lse = (saved.lse_cmp, saved.lse_sel, saved.lse_win)
            self.fused = HopperBackward(
                q, do, gates, delta, lse, p, most=most, gathers=self.summed, window=self.window
            )  # fmt: skip
        self._compressed: Run | None = None
        self._gathers: list[RunTurn] = []
        self._window: Callable[[int, int], None] | None = None
        self._beside = second_stream(q.device) if self.window else None
        self._found: tuple[Tensor, Tensor] | None = None
        self._tile_parts: tuple[Tensor, Tensor] | None = None
        if self.fused is not None:
            self._compressed = self.fused.compressed(kc, vc)
        if self.fused is not None and self.summed:
            i = saved.index
            lists = (i.pairs, i.offsets, i.tile_offsets, i.tile_block)
            self._gathers = [self.fused.gather(k_sel, v_sel, lists, part) for part in self._places]
        elif p.n_top:
            self._tile_parts = _float32_pair(q, (most, p.max_tiles, p.l_sel), p)
        if self.fused is not None and self.window:
            self._window = self.fused.window(rest)

    @property
    def query_sums(self) -> Tensor | None:
        return None if self.fused is None else self.fused.dq

    def compressed(self, first: int, count: int) -> None:
        """Run the compressed branch of some pairs, if that is done by pairs."""
        if self.fused is not None and self._compressed is not None:
            self.fused.begin()
            if self._beside is not None:
                self._beside.wait_stream(torch.cuda.current_stream(self.do.device))
            self._found = self._compressed(first, count)

    def scored(
        self, first: int, count: int, turn: tuple[int, int] | None = None, at: int = 0
    ) -> tuple[Tensor, Tensor] | None:
        """Run the scored blocks of some pairs, for all tokens or one of the turns, whose partial results go to one of
        two places; returns their sums for keys and values, by key or by work tile."""
        if self._gathers:
            return self._gathers[at](first, count, turn or (0, self.p.S))
        if self._tile_parts is None:
            return None
        p, i, tile = self.p, self.saved.index, self.p.tiles.gather_backward
        q, k_sel, v_sel = self.streams[0], self.streams[3], self.streams[4]
        gather_backward_kernel[(p.max_tiles, count)](
            q, k_sel, v_sel, self.do, self.saved.lse_sel, self.gates, self.delta, i.pairs, i.offsets, i.tile_offsets,
            i.tile_block, self.part_dq, *self._tile_parts, *strides(q), *strides(k_sel), *strides(v_sel), first, p.S,
            p.n_blocks, p.n_lists, p.n_pairs, p.max_tiles, p.scale2, H=p.H, **gather_constants(p, tile),
            **options(tile),
        )  # fmt: skip
        return self._tile_parts

    def scored_and_window(self, out: tuple[Tensor, ...], first: int, count: int) -> None:
        """Run scored blocks, window and forced blocks of some pairs, after :meth:`compressed`, and finish their
        gradients: of q, and of keys and values of the selected branch and of the window.

        The window runs on the second stream beside the compressed branch; then, where there is room for two turns,
        every other one does, beside the one before it. No turn is finished before both branches are done.
        """
        assert self.fused is not None
        assert self._window is not None
        p, (dq, *keys) = self.p, out
        main = None if self._beside is None else torch.cuda.current_stream(self.do.device)
        streams = (main, self._beside)
        dense = None if main is None else main.record_event()
        with torch.cuda.stream(self._beside), span("nsa.win.backward"):  # forced blocks as well
            self._window(first, count)
        others = (None if self._beside is None else self._beside.record_event(), dense)
        for i, turn in enumerate(self.turns):
            at = i % len(self._places)
            stream = streams[at]
            with torch.cuda.stream(stream):
                with span("nsa.sel.backward"):
                    self.scored(first, count, turn, at)
                if stream is not None and i < 2:
                    stream.wait_event(others[at])
                with span("nsa.query.backward"):
                    _finish(
                        self.fused.dq, dq, p, first=first, count=count, scale=p.scale, heads=p.hpg, tokens=turn,
                        slots=self._places[at],
                    )  # fmt: skip
        if main is not None and len(self._places) > 1:
            main.wait_stream(self._beside)
        parts = None if self._gathers else self._tile_parts
        with span("nsa.win.backward"):
            for i, sums in enumerate((*self.fused.selected, *self.fused.in_window)):
                _finish(
                    sums, keys[i], p, first=first, count=count, scale=1.0 if i % 2 else p.scale,
                    parts=parts[i] if parts is not None and i < 2 else None, tile_offsets=self.saved.index.tile_offsets,
                )  # fmt: skip

    def compressed_keys(self, *, per_token: bool) -> tuple[Tensor, Tensor]:
        """Gradients of the compressed keys and values, after all pairs."""
        if self._keys is not None:
            return self._keys
        assert self._found is not None
        kc, vc = self.streams[1:3]
        return _spread(self._found, (kc, vc), (self.p.S, 1), 1, self.p, per_token=per_token)


def _finish(
    sums: Tensor, out: Tensor, p: Problem, *, first: int, count: int, scale: float = 1.0, heads: int = 1,
    parts: Tensor | None = None, tile_offsets: Tensor | None = None, slots: Tensor | None = None,
    tokens: tuple[int, int] | None = None,
) -> None:  # fmt: skip
    """Launch :func:`finish_kernel`: gradients of ``count`` pairs' queries, all ``heads`` of a group, or keys from their
    sums ``[count, S, heads, dim]`` and, if there are some, ``parts`` by work tile or queries' ``slots``; for all tokens
    or ``tokens``, ``(first, end)``."""
    given, dim = parts if slots is None else slots, out.shape[-1]
    columns = dim & -dim
    t0, end = tokens or (0, p.S)
    finish_kernel[(ceil_div((end - t0) * heads, p.l_sel), count, dim // columns)](
        sums, sums if given is None else given, sums if tile_offsets is None else tile_offsets, out, first, p.S, t0,
        end, 0 if slots is None else slots.shape[1], p.n_blocks, p.n_lists, p.max_tiles, scale, H=p.G * heads, G=p.G,
        HPG=heads, DIM=dim, STEP=p.l_sel, ROWS=p.block_rows, PARTS=parts is not None,
        NTOP=0 if slots is None else p.n_top, COLUMNS=columns, **FUSED,
    )  # fmt: skip


def _delta(do: Tensor, streams: tuple[Tensor, ...], saved: Saved, p: Problem) -> Tensor:
    delta = torch.empty(p.B, p.S, p.H, 3, dtype=torch.float32, device=do.device)
    rows = max(32, next_power_of_2(p.hpg))
    tokens = rows // p.hpg
    delta_kernel[(ceil_div(p.S, tokens), p.bg)](
        *streams, do, saved.o_cmp, saved.o_sel, saved.o_win, saved.lse_cmp, saved.lse_sel, saved.lse_win, delta,
        *(n for x in streams for n in strides(x)), p.S, p.scale2, **p.common(), BT=tokens, BM=rows, PREC=p.precision,
        num_warps=2, **FUSED,
    )  # fmt: skip
    return delta


def backward(
    do: Tensor, q: Tensor, kc: Tensor, vc: Tensor, k_sel: Tensor, v_sel: Tensor, k_win: Tensor, v_win: Tensor,
    gates: Tensor, saved: Saved, p: Problem, *, per_token: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of q, the six streams and the gates (float32); the compressed streams' per token if ``per_token``."""
    streams = (q, kc, vc, k_sel, v_sel, k_win, v_win)
    with span("nsa.gate.backward"):
        delta = _delta(do, streams, saved, p)
    dk_win, dv_win, dk_sel, dv_sel = (x.new_empty(p.B, p.S, p.G, x.shape[-1]) for x in (k_win, v_win, k_sel, v_sel))
    dq, rows = q.new_empty(p.B, p.S, p.H, p.dims.dk), (do, saved.lse_sel, gates, delta)
    with span("nsa.cmp.backward"):
        parts = _Parts(do, streams, gates, delta, saved, p, per_token=per_token)
    sink = None
    if not parts.window:
        with span("nsa.win.backward"):
            _dkv(
                WIN.value, 2, (q, k_win, v_win), (do, saved.lse_win, gates, delta), (dk_win, dv_win), p,
                tile=p.tiles.dkv_win, keys=p.S, step=p.tiles.dkv_win.bn,
            )  # fmt: skip
        with span("nsa.sel.backward"):
            sink = _sink_dkv(q, k_sel, v_sel, rows, p)
    for first, count in parts.slabs:
        with span("nsa.cmp.backward"):
            parts.compressed(first, count)
        if parts.window:
            parts.scored_and_window((dq, dk_sel, dv_sel, dk_win, dv_win), first, count)
            continue
        with span("nsa.sel.backward"):
            _dkv(
                LOCAL.value, 1, (q, k_sel, v_sel), rows, (dk_sel, dv_sel), p, tile=p.tiles.dkv_sel, keys=p.S,
                step=p.l_sel, first=first, count=count, parts=parts.scored(first, count), summed=parts.summed,
                sink=sink, tile_offsets=saved.index.tile_offsets,
            )  # fmt: skip
        with span("nsa.query.backward"):  # one kernel for all branches
            _dq(dq, parts, first=first, count=count)
    with span("nsa.cmp.backward"):
        dk_cmp, dv_cmp = parts.compressed_keys(per_token=per_token)
    return dq, dk_cmp, dv_cmp, dk_sel, dv_sel, dk_win, dv_win, delta


def _dq(dq: Tensor, parts: _Parts, *, first: int, count: int) -> None:
    """Launch :func:`dq_kernel`: what the parts left, and the rest."""
    p, saved, sums, part_dq, delta = parts.p, parts.saved, parts.query_sums, parts.part_dq, parts.delta
    q, *keys = parts.streams
    tile = p.tiles.dq if sums is None else p.tiles.dq_rest
    bt = p.tokens(tile)
    dq_kernel[(ceil_div(p.S, bt), count)](
        q, *keys, parts.do, saved.lse_cmp, saved.lse_sel, saved.lse_win, parts.gates, delta,
        delta if part_dq is None else part_dq, delta if sums is None else sums, dq, *strides(q),
        *(n for x in keys for n in strides(x)), first, p.S, p.n_pairs, p.scale, p.scale2, **p.common(),
        NTOP=0 if part_dq is None else p.n_top, BT=bt, BM=tile.bm, BN=tile.bn, HAS_CMP=p.n_cmp > 0 and sums is None,
        SUMS=sums is not None, PREC=p.precision, **options(tile),
    )  # fmt: skip
