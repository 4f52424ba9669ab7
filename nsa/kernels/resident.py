"""A whole decode step in one launch.

The ``P`` programs of a batch row and group do what :mod:`nsa.kernels.decode` describes and wait for each other three
times: for the sums of the compressed branch, for the best blocks of each share, and for the partial results. They wait
by a counter in memory, so all of them must be on the GPU at the same time: the launch is a cooperative one, and the
grid no larger than what fits. Groups do not wait for each other.

Each share stores the part of the new position that it reads itself, so nothing waits for the new position.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nsa.kernels.decode_append import load_new, store_raw, store_row
from nsa.kernels.decode_branches import compressed_part, forced_part, window_part, window_rows
from nsa.kernels.decode_partial import SEL, merge_part, store_part
from nsa.kernels.decode_select import chosen_part, score_part
from nsa.kernels.decode_tiles import load_query, load_tile

__all__ = ["step_kernel"]


@triton.jit
def _arrive(counter):
    """Tell the others that everything this program stored so far is there."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def _await(counter, target):
    """Wait until the counter has reached ``target``; what was stored before the arrivals is then visible."""
    # The difference, for the counter may run over.
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") - target < 0:
        pass
    tl.debug_barrier()


@triton.jit(do_not_specialize=["N", "RW", "NC", "NT"])
def step_kernel(
    nk_raw, nv_raw, nk_sel, nv_sel, nk_win, nv_win, k_raw, v_raw, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win,
    q, gates, lengths, arrivals, part_o, part_m, part_l, importance, tile_m, candidates, top, o,
    skr, svr, sks, svs, skw, svw, sqb, sqh, N, RW, NC, NT, scale2,
    G: tl.constexpr, HPG: tl.constexpr, HP: tl.constexpr, HR: tl.constexpr, P: tl.constexpr, MERGED: tl.constexpr,
    L: tl.constexpr, D: tl.constexpr,
    LP: tl.constexpr, LS: tl.constexpr, LSP: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, TILES: tl.constexpr,
    WN: tl.constexpr, BW: tl.constexpr, SB: tl.constexpr, RUNS: tl.constexpr, NTOP: tl.constexpr, NTOPP: tl.constexpr,
    SLOTS: tl.constexpr, AT_ONCE: tl.constexpr, SPREAD: tl.constexpr, DK: tl.constexpr, DKP: tl.constexpr,
    DK0: tl.constexpr, DK1: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Append one position per batch row and attend from it. Grid (B * G * P,), all of it resident.

    ``lengths [B, G]`` are those before the step and are counted up; a full row is not appended to. ``arrivals [B, G,
    SPREAD]`` int32, only the first of each ``SPREAD`` used, is a multiple of ``P`` (a power of two) between steps.
    """
    bg = tl.program_id(0) // P
    p = tl.program_id(0) % P
    b = (bg // G).to(tl.int64)
    g = bg % G
    counter = arrivals + bg * SPREAD
    held = tl.load(lengths + bg)
    # Up to P - 1 may have arrived already, but none has passed without this program.
    start = tl.load(counter, volatile=True)
    start -= start & (P - 1)
    t = tl.minimum(held, N - 1)
    # Loaded before anything is waited for, though most shares store none of it.
    kr, vr = load_new(nk_raw, skr, b, g, DK, DKP), load_new(nv_raw, svr, b, g, DV, DVP)
    ks, vs = load_new(nk_sel, sks, b, g, DK, DKP), load_new(nv_sel, svs, b, g, DV, DVP)
    kw, vw = load_new(nk_win, skw, b, g, DK, DKP), load_new(nv_win, svw, b, g, DV, DVP)
    q0, q1 = load_query(q, b, g, sqb, sqh, HPG, HP, DK0, DK1)
    if held < N:
        # Compressed tokens are read by the share whose tile they are in.
        if p == tl.minimum(tl.maximum(t + 1 - L, 0) // D // (TILES * (BN // MP) * (LS // D)), P - 1):
            store_raw(kr, k_raw, k_cmp, b, g, t, NC, G, L, D, LP, DK, DKP)
            store_raw(vr, v_raw, v_cmp, b, g, t, NC, G, L, D, LP, DV, DVP)
        if p == (t % RW) // WN:
            store_row(kw, k_win, b * RW + t % RW, g, G, DK, DKP)
            store_row(vw, v_win, b * RW + t % RW, g, G, DV, DVP)
        # The newest block is the second of the forced ones, unless it is block 0.
        if p == tl.minimum(t // LS, 1) % P:
            store_row(ks, k_sel, b * N + t, g, G, DK, DKP)
            store_row(vs, v_sel, b * N + t, g, G, DV, DVP)
    tl.debug_barrier()
    compressed_part(
        q0, q1, k_cmp, v_cmp, importance, tile_m, part_o, part_m, part_l, b, g, bg, p, t, NC, NT, scale2,
        G, HPG, HP, P, L, D, LS, MP, BN, TILES, DK0, DK1, DV, PREC,
    )  # fmt: skip
    row, ok = window_rows(b, g, p, t, 0, RW, G, WN, BW)
    k0, k1, vv = load_tile(k_win, v_win, row, ok, DK0, DK1, DV)
    _arrive(counter)
    window_part(
        q0, q1, k0, k1, vv, k_win, v_win, part_o, part_m, part_l, b, g, bg, p, t, RW, scale2,
        G, HP, P, WN, BW, DK0, DK1, DV, PREC,
    )  # fmt: skip
    _await(counter, start + P)
    if p == 0:
        tl.store(lengths + bg, t + 1)
    if NTOP > 0:
        score_part(
            part_m, part_l, importance, tile_m, candidates, bg, p, t, NT,
            HPG, HP, HR, P, LS, BN // MP, SB, RUNS, NTOPP,
        )  # fmt: skip
        _arrive(counter)
    acc, m, total = forced_part(
        q0, q1, k_sel, v_sel, b, g, p, t, N, scale2, G, HP, P, LS, LSP, DK0, DK1, DV, PREC
    )  # fmt: skip
    if NTOP > 0:
        _await(counter, start + 2 * P)
        acc, m, total = chosen_part(
            acc, m, total, q0, q1, k_sel, v_sel, candidates, top, b, g, bg, p, N, scale2,
            G, P, RUNS, NTOP, NTOPP, SLOTS, AT_ONCE, LS, LSP, DK0, DK1, DV, PREC,
        )  # fmt: skip
    store_part(part_o, part_m, part_l, bg, SEL, p, acc, m, total, P, HP, DV)
    _arrive(counter)
    _await(counter, start + (3 * P if NTOP > 0 else 2 * P))
    merge_part(gates, part_o, part_m, part_l, o, b, g, bg, p, G, HPG, HP, P, MERGED, DV)
