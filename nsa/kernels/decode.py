"""A decode step with a launch for each part: append, what needs no selection, scores, chosen blocks, merge.

A decode step reads few keys from a long cache, so it is bound by latency and by how many processors take part. The
work of a batch row and group is shared by ``P`` programs; each part of the step is a function of the share ``p``, and
what one share needs from the others passes through memory between two parts. There are two ways to run the parts: the
kernels below are one launch each, and :mod:`nsa.kernels.resident` runs all of them in one launch whose programs wait
for each other. The parts are in :mod:`~nsa.kernels.decode_append`, :mod:`~nsa.kernels.decode_branches`,
:mod:`~nsa.kernels.decode_select` and :mod:`~nsa.kernels.decode_partial`.

A share takes a run of the compressed tokens with the selection blocks that begin there, a run of the window's ring, and
every ``P``-th of the ``NTOP + 3`` selected blocks. It leaves one partial result per branch, branches in the order of
the gates.

Lengths are read on the device: a captured graph can be replayed step after step, and the rows of a batch may be of
different length.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nsa.kernels.decode_append import load_new, store_raw, store_row
from nsa.kernels.decode_branches import compressed_part, forced_part, window_part, window_rows
from nsa.kernels.decode_partial import SEL, load_part, merge_part, store_part
from nsa.kernels.decode_select import chosen_part, score_part
from nsa.kernels.decode_tiles import load_query, load_tile

__all__ = ["append_kernel", "chosen_kernel", "merge_kernel", "score_kernel", "split_kernel"]


@triton.jit(do_not_specialize=["N", "RW", "NC"])
def append_kernel(
    nk_raw, nv_raw, nk_sel, nv_sel, nk_win, nv_win, k_raw, v_raw, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, lengths,
    skr, svr, sks, svs, skw, svw, N, RW, NC,
    G: tl.constexpr, L: tl.constexpr, D: tl.constexpr, LP: tl.constexpr, DK: tl.constexpr, DKP: tl.constexpr,
    DV: tl.constexpr, DVP: tl.constexpr,
):  # fmt: skip
    """Store one position per batch row in all caches, complete a compressed token where one is due, and count it in
    ``lengths [B, G]``, one per program, so that none changes what another reads. A full row stays as it is. Grid (B *
    G,)."""
    bg = tl.program_id(0)
    b = (bg // G).to(tl.int64)
    g = bg % G
    t = tl.load(lengths + bg)
    if t >= N:
        return
    tl.debug_barrier()
    store_raw(load_new(nk_raw, skr, b, g, DK, DKP), k_raw, k_cmp, b, g, t, NC, G, L, D, LP, DK, DKP)
    store_raw(load_new(nv_raw, svr, b, g, DV, DVP), v_raw, v_cmp, b, g, t, NC, G, L, D, LP, DV, DVP)
    store_row(load_new(nk_sel, sks, b, g, DK, DKP), k_sel, b * N + t, g, G, DK, DKP)
    store_row(load_new(nv_sel, svs, b, g, DV, DVP), v_sel, b * N + t, g, G, DV, DVP)
    store_row(load_new(nk_win, skw, b, g, DK, DKP), k_win, b * RW + t % RW, g, G, DK, DKP)
    store_row(load_new(nv_win, svw, b, g, DV, DVP), v_win, b * RW + t % RW, g, G, DV, DVP)
    tl.store(lengths + bg, t + 1)


@triton.jit(do_not_specialize=["N", "RW", "NC", "NT"])
def split_kernel(
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, lengths, part_o, part_m, part_l, importance, tile_m,
    sqb, sqh, N, RW, NC, NT, scale2,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, L: tl.constexpr, D: tl.constexpr,
    LS: tl.constexpr, LSP: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, TILES: tl.constexpr, WN: tl.constexpr,
    BW: tl.constexpr, DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Everything that does not wait for the selection. Grid (B * G * P,), as for the kernels that follow."""
    bg = tl.program_id(0) // P
    p = tl.program_id(0) % P
    b = (bg // G).to(tl.int64)
    g = bg % G
    t = tl.load(lengths + bg) - 1
    q0, q1 = load_query(q, b, g, sqb, sqh, HPG, HP, DK0, DK1)
    compressed_part(
        q0, q1, k_cmp, v_cmp, importance, tile_m, part_o, part_m, part_l, b, g, bg, p, t, NC, NT, scale2,
        G, HPG, HP, P, L, D, LS, MP, BN, TILES, DK0, DK1, DV, PREC,
    )  # fmt: skip
    row, ok = window_rows(b, g, p, t, 0, RW, G, WN, BW)
    k0, k1, vv = load_tile(k_win, v_win, row, ok, DK0, DK1, DV)
    window_part(
        q0, q1, k0, k1, vv, k_win, v_win, part_o, part_m, part_l, b, g, bg, p, t, RW, scale2,
        G, HP, P, WN, BW, DK0, DK1, DV, PREC,
    )  # fmt: skip
    acc, m, total = forced_part(
        q0, q1, k_sel, v_sel, b, g, p, t, N, scale2, G, HP, P, LS, LSP, DK0, DK1, DV, PREC
    )  # fmt: skip
    store_part(part_o, part_m, part_l, bg, SEL, p, acc, m, total, P, HP, DV)


@triton.jit(do_not_specialize=["NT"])
def score_kernel(
    lengths, part_m, part_l, importance, tile_m, candidates, NT,
    HPG: tl.constexpr, HP: tl.constexpr, HR: tl.constexpr, P: tl.constexpr, LS: tl.constexpr, BJ: tl.constexpr,
    SB: tl.constexpr, RUNS: tl.constexpr, NTOPP: tl.constexpr,
):  # fmt: skip
    """:func:`score_part` as a launch."""
    bg = tl.program_id(0) // P
    t = tl.load(lengths + bg) - 1
    score_part(
        part_m, part_l, importance, tile_m, candidates, bg, tl.program_id(0) % P, t, NT,
        HPG, HP, HR, P, LS, BJ, SB, RUNS, NTOPP,
    )  # fmt: skip


@triton.jit(do_not_specialize=["N"])
def chosen_kernel(
    q, k_sel, v_sel, candidates, part_o, part_m, part_l, top, sqb, sqh, N, scale2,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, RUNS: tl.constexpr, NTOP: tl.constexpr,
    NTOPP: tl.constexpr, SLOTS: tl.constexpr, AT_ONCE: tl.constexpr, LS: tl.constexpr, LSP: tl.constexpr,
    DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """:func:`chosen_part` as a launch, on top of the share's forced blocks."""
    bg = tl.program_id(0) // P
    p = tl.program_id(0) % P
    b = (bg // G).to(tl.int64)
    g = bg % G
    q0, q1 = load_query(q, b, g, sqb, sqh, HPG, HP, DK0, DK1)
    acc, m, total = load_part(part_o, part_m, part_l, bg, SEL, p, P, HP, DV)
    acc, m, total = chosen_part(
        acc, m, total, q0, q1, k_sel, v_sel, candidates, top, b, g, bg, p, N, scale2,
        G, P, RUNS, NTOP, NTOPP, SLOTS, AT_ONCE, LS, LSP, DK0, DK1, DV, PREC,
    )  # fmt: skip
    # A share's own partial result: every thread has read its values before any is replaced.
    tl.debug_barrier()
    store_part(part_o, part_m, part_l, bg, SEL, p, acc, m, total, P, HP, DV)


@triton.jit
def merge_kernel(
    gates, part_o, part_m, part_l, o,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, MERGED: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """:func:`merge_part` as a launch."""
    bg = tl.program_id(0) // P
    p = tl.program_id(0) % P
    merge_part(gates, part_o, part_m, part_l, o, (bg // G).to(tl.int64), bg % G, bg, p, G, HPG, HP, P, MERGED, DV)
