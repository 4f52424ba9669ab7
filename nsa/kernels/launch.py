"""The kernels of a forward pass in order. Every launch is asynchronous; nothing here waits for the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.attention.spans import span
from nsa.kernels.compress import compress_kernel
from nsa.kernels.config import FUSED, Tile, hopper_allowed, next_power_of_2
from nsa.kernels.forward import combine_kernel, compressed_kernel
from nsa.kernels.hopper import combine as hopper_combine
from nsa.kernels.hopper import forward as hopper_forward
from nsa.kernels.index import offsets_kernel, scatter_kernel, tile_map_kernel
from nsa.kernels.problem import Problem, ceil_div, strides
from nsa.kernels.select import select_kernel
from nsa.kernels.selected import gather_kernel

__all__ = ["Index", "Saved", "compress", "forward", "gather_constants", "options"]


@dataclass(frozen=True)
class Index:
    """Which queries chose which block. ``P`` pairs (token * n_top + slot) per (batch, group), in ``J`` lists: one for
    each span of tokens and block, by span."""

    top: Tensor
    """``[B*G, S, n_top]`` int32 scored blocks, best first, -1 for none."""
    pairs: Tensor
    """``[B*G, P]`` int32 by list."""
    offsets: Tensor
    """``[B*G, J + 1]`` int32: where each list's pairs start."""
    tile_offsets: Tensor
    """``[B*G, J + 1]`` int32: where each list's work tiles start."""
    tile_block: Tensor
    """``[B*G, max_tiles]`` int32: list of each work tile, -1 for none."""


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


def options(tile: Tile) -> dict[str, int]:
    """Launch options of a tile."""
    usual = {"num_warps": tile.warps, "num_stages": tile.stages, **FUSED}
    return usual | {"maxnreg": tile.regs} if tile.regs else usual


def compress(x: Tensor, p: Problem) -> Tensor:
    """Mean over compression blocks: ``[B, S, G, dim]`` to ``[B, n_cmp, G, dim]``, followed by rows of zeros."""
    B, _, G, dim = x.shape
    n, beyond = B * p.n_cmp * G * dim, hopper_forward.ROWS_BEYOND
    room = x.new_empty(n + beyond * G * dim)
    if p.n_cmp:
        grid = (ceil_div(p.n_cmp + beyond, 16), p.bg)
        with span("nsa.compress"):
            compress_kernel[grid](
                x, room, *strides(x), p.n_cmp, G=G, L=p.l, D=p.d, DIM=dim, DIMP=next_power_of_2(dim), BC=16,
                BEYOND=beyond, **FUSED
            )  # fmt: skip
    return room[:n].view(B, p.n_cmp, G, dim)


def _compressed(q: Tensor, kc: Tensor, vc: Tensor, p: Problem, *, by_wgmma: bool) -> tuple[Tensor, Tensor]:
    if by_wgmma:
        return hopper_forward.compressed(q, kc, vc, p)
    o = q.new_empty(p.B, p.S, p.H, p.dims.dv)
    lse = q.new_empty(p.B, p.S, p.H, dtype=torch.float32)
    if not p.n_cmp:
        return o.zero_(), lse.zero_()
    tile = p.tiles.compressed
    bt = p.tokens(tile)
    compressed_kernel[(ceil_div(p.S, bt), p.bg)](
        q, kc, vc, o, lse, *strides(q), *strides(kc), *strides(vc), p.S, p.scale2,
        **p.common(), BT=bt, BM=tile.bm, BN=tile.bn, PREC=p.precision, **options(tile),
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
        CHUNK=min(blocks, 256), BK=min(bt, _CHOOSING), GROUPED=grouped, PREC=p.precision, **options(tile),
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


def gather_constants(p: Problem, tile: Tile) -> dict[str, int | str]:
    """Compile-time constants of the kernels that gather."""
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
    streams: tuple[Tensor, ...], o_cmp: Tensor, gates: Tensor, index: Index, p: Problem, *, save: bool,
    by_wgmma: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
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
    gathers = by_wgmma and hopper_forward.why_no_attend(q, k_sel, v_sel, p) is None
    by_wgmma = by_wgmma and hopper_combine.why_no_combine(streams, p) is None
    lists = (index.pairs, index.offsets, index.tile_offsets, index.tile_block)
    for first, count in slabs:
        if gathers:
            with span("nsa.sel"):
                hopper_forward.attend(streams[:3], lists, (part_o, part_lse), p, first=first, count=count)
        elif p.n_top:
            with span("nsa.sel"):
                gather_kernel[(p.max_tiles, count)](
                    q, k_sel, v_sel, *lists, part_o, part_lse,
                    *strides(q), *strides(k_sel), *strides(v_sel), first, p.S, p.n_blocks, p.n_lists, p.n_pairs,
                    p.max_tiles, p.scale2, **gather_constants(p, tile), **options(tile),
                )  # fmt: skip
        # The window's kernel also reads the forced blocks and merges all branches by their gates.
        with span("nsa.win"):
            if by_wgmma:
                out = (o, o_sel, o_win, lse_sel, lse_win)
                hopper_combine.combine(
                    streams, o_cmp, gates, (part_o, part_lse), out, p, first=first, count=count, save=save
                )  # fmt: skip
                continue
            combine_kernel[(ceil_div(p.S, bt), count)](
                *streams, o_cmp, gates, part_o, part_lse, o, o_sel, o_win, lse_sel, lse_win,
                *(n for x in streams for n in strides(x)), first, p.S, p.n_pairs, p.scale2, **p.common(), NTOP=p.n_top,
                NTOPP=next_power_of_2(p.n_top), BT=bt, BM=combine.bm, BN=combine.bn, SAVE=save, PREC=p.precision,
                **options(combine),
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
    by_wgmma = hopper_allowed() and hopper_forward.why_no_choose(q, kc, vc, p) is None
    if by_wgmma:
        o_cmp, lse_cmp, *chosen = hopper_forward.compressed_and_chosen(q, kc, vc, p)
        with span("nsa.sel.ranges_v2"):
            index = _index(*chosen, p)
    else:
        by_wgmma = hopper_allowed() and hopper_forward.why_no_forward(q, kc, vc, p) is None
        with span("nsa.cmp"):
            o_cmp, lse_cmp = _compressed(q, kc, vc, p, by_wgmma=by_wgmma)
        with span("nsa.sel.ranges_v2"):
            index = _index(*_select(q, kc, lse_cmp, p), p) if p.n_top else _empty_index(q, p)
    streams = (q, k_sel, v_sel, k_win, v_win)
    o, o_sel, o_win, lse_sel, lse_win = _selected_and_window(
        streams, o_cmp, gates, index, p, save=save, by_wgmma=by_wgmma
    )  # fmt: skip
    return o, Saved(o_cmp, o_sel, o_win, lse_cmp, lse_sel, lse_win, index)
