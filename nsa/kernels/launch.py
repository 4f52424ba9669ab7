"""The kernels in order: forward, then backward. Every launch is asynchronous; nothing here waits for the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.attention.spans import span
from nsa.kernels.backward import delta_kernel, dkv_kernel, dq_kernel
from nsa.kernels.compress import compress_kernel, spread_kernel
from nsa.kernels.config import FUSED, Tile, next_power_of_2
from nsa.kernels.forward import combine_kernel, compressed_kernel
from nsa.kernels.hopper import HopperBackward, sums_queries, why_no_gather, why_no_wgmma
from nsa.kernels.index import offsets_kernel, scatter_kernel, tile_map_kernel
from nsa.kernels.problem import Problem, ceil_div, strides
from nsa.kernels.select import select_kernel
from nsa.kernels.selected import gather_backward_kernel, gather_kernel
from nsa.kernels.tiles import CMP, LOCAL, SINK, WIN

__all__ = ["Index", "Saved", "backward", "forward"]


@dataclass(frozen=True)
class Index:
    """Which queries chose which block. ``P`` pairs (token * n_top + slot) and ``J`` blocks per (batch, group)."""

    top: Tensor
    """``[B*G, S, n_top]`` int32 scored blocks, best first, -1 for none."""
    pairs: Tensor
    """``[B*G, P]`` int32 grouped by block."""
    offsets: Tensor
    """``[B*G, J + 1]`` int32: where each block's pairs start."""
    tile_offsets: Tensor
    """``[B*G, J + 1]`` int32: where each block's work tiles start."""
    tile_block: Tensor
    """``[B*G, max_tiles]`` int32: block of each work tile, -1 for none."""


@dataclass(frozen=True)
class Saved:
    """What the backward pass needs beside the inputs."""

    o_cmp: Tensor
    o_sel: Tensor
    o_win: Tensor
    lse_cmp: Tensor
    lse_sel: Tensor
    lse_win: Tensor
    index: Index


_CHOOSING = 16
"""Tokens for which the best blocks are chosen at a time: their keys stay in registers."""

Rows = tuple[Tensor, Tensor, Tensor, Tensor]
"""What the gradient of one branch reads per row: dO, the branch's log-sum-exp, gates, delta."""


def _options(tile: Tile) -> dict[str, int]:
    options = {"num_warps": tile.warps, "num_stages": tile.stages, **FUSED}
    return options | {"maxnreg": tile.regs} if tile.regs else options


def compress(x: Tensor, p: Problem) -> Tensor:
    """Mean over compression blocks: ``[B, S, G, dim]`` to ``[B, n_cmp, G, dim]``."""
    B, _, G, dim = x.shape
    out = x.new_empty(B, p.n_cmp, G, dim)
    if p.n_cmp:
        grid = (ceil_div(p.n_cmp, 16), p.bg)
        with span("nsa.compress"):
            compress_kernel[grid](
                x, out, *strides(x), p.n_cmp, G=G, L=p.l, D=p.d, DIM=dim, DIMP=next_power_of_2(dim), BC=16, **FUSED
            )  # fmt: skip
    return out


def _compressed(q: Tensor, kc: Tensor, vc: Tensor, p: Problem) -> tuple[Tensor, Tensor]:
    o = q.new_empty(p.B, p.S, p.H, p.dims.dv)
    lse = q.new_empty(p.B, p.S, p.H, dtype=torch.float32)
    if not p.n_cmp:
        return o.zero_(), lse.zero_()
    tile = p.tiles.compressed
    bt = p.tokens(tile)
    compressed_kernel[(ceil_div(p.S, bt), p.bg)](
        q, kc, vc, o, lse, *strides(q), *strides(kc), *strides(vc), p.S, p.scale2,
        **p.common(), BT=bt, BM=tile.bm, BN=tile.bn, PREC=p.precision, **_options(tile),
    )  # fmt: skip
    return o, lse


def _select(q: Tensor, kc: Tensor, lse: Tensor, p: Problem) -> tuple[Tensor, Tensor]:
    top = q.new_empty(p.bg, p.S, p.n_top, dtype=torch.int32)
    counts = q.new_zeros(p.bg, p.n_lists, dtype=torch.int32)
    tile = p.tiles.select
    heads = next_power_of_2(p.hpg)
    bt = max(tile.bm // heads, 4)
    folded = next_power_of_2(p.l_sel // p.d)
    bn = max(tile.bn, folded)
    strip = (ceil_div(p.n_blocks, bn // folded) + 1) * (bn // folded)
    n_tiles = ceil_div(p.S, bt)
    n_items = n_tiles * p.bg
    programs = min(n_items, tile.resident * p.n_processors)
    strips = q.new_empty(programs, 2, strip, bt, dtype=torch.float32)
    blocks, slots, group = next_power_of_2(p.n_blocks), next_power_of_2(p.n_top), 8
    grouped = blocks >= 2 * slots * group
    maxima = q.new_empty(programs if grouped else 0, blocks // group, bt, dtype=torch.int64)
    select_kernel[(programs,)](
        q, kc, lse, strips, maxima, top, counts, *strides(q), *strides(kc), p.S, p.n_cmp, p.n_blocks, strip, n_items,
        n_tiles, p.span, p.n_lists, p.scale2, H=p.H, G=p.G, HPG=p.hpg, HP=heads, BT=bt, L=p.l, D=p.d, LS=p.l_sel,
        NTOP=p.n_top, DK0=p.dims.dk0, DK1=p.dims.dk1, BN=bn, MP=folded, NBP=blocks, NTOPP=slots, GS=group,
        CHUNK=min(blocks, 256), BK=min(bt, _CHOOSING), GROUPED=grouped, PREC=p.precision, **_options(tile),
    )  # fmt: skip
    return top, counts


def _index(top: Tensor, counts: Tensor, p: Problem) -> Index:
    J, P = p.n_lists, p.n_pairs
    offsets, tile_offsets = (counts.new_empty(p.bg, J + 1) for _ in range(2))
    cursor = torch.empty_like(counts)
    tile_block = counts.new_empty(p.bg, p.max_tiles)
    offsets_kernel[(p.bg,)](
        counts, offsets, cursor, tile_offsets, J, TT=p.tiles.pairs_per_tile, CHUNK=min(next_power_of_2(J), 1024),
        **FUSED,
    )  # fmt: skip
    tile_map_kernel[(ceil_div(p.max_tiles, 256), p.bg)](
        tile_offsets, tile_block, J, p.max_tiles, STEPS=(J + 1).bit_length(), CHUNK=256, **FUSED
    )
    if p.deterministic:
        # A stable sort keeps pairs in order of position, so that sums over a block's queries never change order. There
        # is one span.
        keys = torch.where(top < 0, J, top).view(p.bg, P)
        pairs = torch.sort(keys, dim=1, stable=True).indices.to(torch.int32)
    else:
        pairs = counts.new_empty(p.bg, P)
        scatter_kernel[(ceil_div(P, 1024), p.bg)](
            top, cursor, pairs, P, p.n_blocks, J, p.span * p.n_top, CHUNK=1024, **FUSED
        )
    return Index(top, pairs, offsets, tile_offsets, tile_block)


def _empty_index(q: Tensor, p: Problem) -> Index:
    # Distinct tensors: an operator must not return one twice.
    return Index(q.new_empty(p.bg, p.S, 0, dtype=torch.int32), *(q.new_empty(0, dtype=torch.int32) for _ in range(4)))


def _gather_constants(p: Problem, tile: Tile) -> dict[str, int | str]:
    return {
        "G": p.G,
        "HPG": p.hpg,
        "NTOP": p.n_top,
        "LS": p.l_sel,
        "LSP": p.block_rows,
        "TT": p.tiles.pairs_per_tile,
        "BE": p.tokens(tile),
        "DK0": p.dims.dk0,
        "DK1": p.dims.dk1,
        "DV": p.dims.dv,
        "BM": tile.bm,
        "PREC": p.precision,
    }


def _selected_and_window(
    streams: tuple[Tensor, ...], o_cmp: Tensor, gates: Tensor, index: Index, p: Problem, *, save: bool
) -> tuple[Tensor, ...]:
    """``o, o_sel, o_win, lse_sel, lse_win``; the last four are empty unless ``save``."""
    q, k_sel, v_sel = streams[:3]
    dv = p.dims.dv
    o = q.new_empty(p.B, p.S, p.H, dv)
    shape = (p.B, p.S, p.H) if save else (0, 0, 0)
    o_sel, o_win = (q.new_empty(*shape, dv) for _ in range(2))
    lse_sel, lse_win = (q.new_empty(shape, dtype=torch.float32) for _ in range(2))
    slabs = p.slabs(dv)
    most = slabs[0][1]
    part_o = q.new_empty(most, p.n_pairs, p.hpg, dv)
    part_lse = q.new_empty(most, p.n_pairs, p.hpg, dtype=torch.float32)
    tile, combine = p.tiles.gather, p.tiles.combine
    bt = p.tokens(combine)
    for first, count in slabs:
        if p.n_top:
            with span("nsa.sel"):
                gather_kernel[(p.max_tiles, count)](
                    q, k_sel, v_sel, index.pairs, index.offsets, index.tile_offsets, index.tile_block, part_o, part_lse,
                    *strides(q), *strides(k_sel), *strides(v_sel), first, p.S, p.n_blocks, p.n_lists, p.n_pairs,
                    p.max_tiles, p.scale2, **_gather_constants(p, tile), **_options(tile),
                )  # fmt: skip
        # The window's kernel also reads the forced blocks and merges all branches by their gates.
        with span("nsa.win"):
            combine_kernel[(ceil_div(p.S, bt), count)](
                *streams, o_cmp, gates, part_o, part_lse, o, o_sel, o_win, lse_sel, lse_win,
                *(n for x in streams for n in strides(x)), first, p.S, p.n_pairs, p.scale2, **p.common(), NTOP=p.n_top,
                NTOPP=next_power_of_2(p.n_top), BT=bt, BM=combine.bm, BN=combine.bn, SAVE=save, PREC=p.precision,
                **_options(combine),
            )  # fmt: skip
    return o, o_sel, o_win, lse_sel, lse_win


def forward(
    q: Tensor, kc: Tensor, vc: Tensor, k_sel: Tensor, v_sel: Tensor, k_win: Tensor, v_win: Tensor, gates: Tensor,
    p: Problem, *, save: bool = True,
) -> tuple[Tensor, Saved]:  # fmt: skip
    """Output ``[B, S, H, dv]`` and what the backward pass needs. ``kc, vc`` are compressed; ``gates`` is
    contiguous.

    Without ``save`` the branch results of selection and window are empty: only the output and the selection count.
    """
    with span("nsa.cmp"):
        o_cmp, lse_cmp = _compressed(q, kc, vc, p)
    with span("nsa.sel.ranges_v2"):
        index = _index(*_select(q, kc, lse_cmp, p), p) if p.n_top else _empty_index(q, p)
    streams = (q, k_sel, v_sel, k_win, v_win)
    o, o_sel, o_win, lse_sel, lse_win = _selected_and_window(streams, o_cmp, gates, index, p, save=save)
    return o, Saved(o_cmp, o_sel, o_win, lse_cmp, lse_sel, lse_win, index)


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
        PARTS=0 if parts is None else 2 if summed else 1, PREC=p.precision, **_options(tile),
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


def backward(
    do: Tensor, q: Tensor, kc: Tensor, vc: Tensor, k_sel: Tensor, v_sel: Tensor, k_win: Tensor, v_win: Tensor,
    gates: Tensor, saved: Saved, p: Problem, *, per_token: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of q, the six streams and the gates (float32); the compressed streams' per token if ``per_token``."""
    s, index = saved, saved.index
    delta = torch.empty(p.B, p.S, p.H, 3, dtype=torch.float32, device=q.device)
    n_rows = p.B * p.S * p.H
    with span("nsa.gate.backward"):
        delta_kernel[(ceil_div(n_rows, 32),)](
            do, s.o_cmp, s.o_sel, s.o_win, delta, n_rows, DV=p.dims.dv, BM=32, **FUSED
        )
    by_wgmma = why_no_wgmma(q, kc, vc, do, p) is None
    gathers = by_wgmma and why_no_gather(k_sel, v_sel, p) is None
    sums_all = gathers and sums_queries(p)
    slabs = [(0, p.bg)] if sums_all else p.slabs(p.dims.dk)
    most = slabs[0][1]
    fused = HopperBackward(q, do, gates, delta, p, most=most) if by_wgmma else None
    compressed = None
    with span("nsa.cmp.backward"):
        if fused is None:
            dk_cmp, dv_cmp = _compressed_dkv(q, kc, vc, (do, s.lse_cmp, gates, delta), p, per_token=per_token)
        else:
            compressed = fused.compressed(kc, vc, s.lse_cmp)
    dk_win, dv_win, dk_sel, dv_sel = (x.new_empty(p.B, p.S, p.G, x.shape[-1]) for x in (k_win, v_win, k_sel, v_sel))
    with span("nsa.win.backward"):
        _dkv(
            WIN.value, 2, (q, k_win, v_win), (do, s.lse_win, gates, delta), (dk_win, dv_win), p, tile=p.tiles.dkv_win,
            keys=p.S, step=p.tiles.dkv_win.bn,
        )  # fmt: skip
    sel_rows = (do, s.lse_sel, gates, delta)
    dq = q.new_empty(p.B, p.S, p.H, p.dims.dk)
    keys = (q, kc, vc, k_sel, v_sel, k_win, v_win)
    part_dq = None if sums_all else q.new_empty(most, p.n_pairs, p.hpg, p.dims.dk)
    gather = parts = None
    with span("nsa.sel.backward"):
        sink = _sink_dkv(q, k_sel, v_sel, sel_rows, p)
        if fused is not None and gathers:
            lists = (index.pairs, index.offsets, index.tile_offsets, index.tile_block)
            gather = fused.gather(k_sel, v_sel, s.lse_sel, lists, part_dq)
        elif p.n_top:
            parts = _float32_pair(q, (most, p.max_tiles, p.l_sel), p)
    tile = p.tiles.gather_backward
    for first, count in slabs:
        if fused is not None and compressed is not None:
            with span("nsa.cmp.backward"):
                fused.begin(count)
                found = compressed(first, count)
        with span("nsa.sel.backward"):
            if gather is not None:
                parts = gather(first, count)
            elif parts is not None:
                gather_backward_kernel[(p.max_tiles, count)](
                    q, k_sel, v_sel, do, s.lse_sel, gates, delta, index.pairs, index.offsets, index.tile_offsets,
                    index.tile_block, part_dq, *parts, *strides(q), *strides(k_sel), *strides(v_sel), first, p.S,
                    p.n_blocks, p.n_lists, p.n_pairs, p.max_tiles, p.scale2, H=p.H, **_gather_constants(p, tile),
                    **_options(tile),
                )  # fmt: skip
            _dkv(
                LOCAL.value, 1, (q, k_sel, v_sel), sel_rows, (dk_sel, dv_sel), p, tile=p.tiles.dkv_sel, keys=p.S,
                step=p.l_sel, first=first, count=count, parts=parts, summed=gathers, sink=sink,
                tile_offsets=index.tile_offsets,
            )  # fmt: skip
        with span("nsa.query.backward"):  # one kernel for all branches
            sums = None if fused is None else fused.dq
            _dq(dq, do, keys, gates, delta, part_dq, sums, saved, p, first=first, count=count)
    if compressed is not None:
        with span("nsa.cmp.backward"):
            dk_cmp, dv_cmp = _spread(found, (kc, vc), (p.S, 1), 1, p, per_token=per_token)
    return dq, dk_cmp, dv_cmp, dk_sel, dv_sel, dk_win, dv_win, delta


def _dq(
    dq: Tensor, do: Tensor, streams: tuple[Tensor, ...], gates: Tensor, delta: Tensor, part_dq: Tensor | None,
    sums: Tensor | None, saved: Saved, p: Problem, *, first: int, count: int,
) -> None:  # fmt: skip
    """Launch :func:`dq_kernel`. ``sums`` hold the compressed branch's part, and the scored blocks' if there is no
    ``part_dq``."""
    q, *keys = streams
    tile = p.tiles.dq if sums is None else p.tiles.dq_rest
    bt = p.tokens(tile)
    dq_kernel[(ceil_div(p.S, bt), count)](
        q, *keys, do, saved.lse_cmp, saved.lse_sel, saved.lse_win, gates, delta, delta if part_dq is None else part_dq,
        delta if sums is None else sums, dq, *strides(q), *(n for x in keys for n in strides(x)), first, p.S, p.n_pairs,
        p.scale, p.scale2, **p.common(), NTOP=0 if part_dq is None else p.n_top, BT=bt, BM=tile.bm, BN=tile.bn,
        HAS_CMP=p.n_cmp > 0 and sums is None, SUMS=sums is not None, PREC=p.precision, **_options(tile),
    )  # fmt: skip
