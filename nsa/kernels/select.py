"""Importance scores and top-k in one pass, without a score matrix in memory.

The kernel recomputes the compressed scores from the branch's log-sum-exp, transposed (keys down, rows across),
sums the heads of a group in registers, folds compressed blocks into selection blocks by their overlap and keeps
the sums of a few tokens in a scratch strip that its program owns. The strips are as many as programs run at
once; they never grow with the sequence times itself. The top-k then reads the strip back.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["select_kernel"]


@triton.jit
def _head_sum(p, BN: tl.constexpr, BT: tl.constexpr, HP: tl.constexpr):
    """``[BN, BT * HP]`` to ``[BN, BT]``; columns are ordered (token // 4, head // 2, token % 4, head % 2).

    A thread of a matrix-unit accumulator holds columns 2i and 2i+1 of every eighth; with this order each thread sums
    the heads of its tokens without talking to its neighbours.
    """
    if HP > 1:
        split = tl.reshape(p, [BN, BT // 4, HP // 2, 4, 2])
        total = tl.reshape(tl.sum(tl.sum(split, 4), 2), [BN, BT])
    else:
        total = p
    return total


@triton.jit
def _strip_keys(strip, j, tt, limit, STRIP, BT: tl.constexpr):
    """Sortable int64 keys of blocks ``j`` (broadcast to ``[., BT]``); -1 for a block that does not compete."""
    competes = (j >= 1) & (j < limit[None, :])
    offs = j * BT + tt[None, :]
    score = tl.load(strip + offs, mask=competes, other=0.0)
    score += tl.load(strip + STRIP * BT + offs, mask=competes, other=0.0)
    # Scores are never negative, so their bits order like the numbers; the inverted index below them makes the lower
    # block win a tie, exactly.
    key = (score.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (0x7FFFFFFF - j).to(tl.int64)
    return tl.where(competes, key, -1)


@triton.jit(do_not_specialize=["S", "NC", "NB", "STRIP", "n_items", "n_tiles", "SPAN", "NL"])
def select_kernel(
    q,
    k,
    lse,
    strips,
    maxima,
    top,
    counts,
    sqb,
    sqs,
    sqh,
    skb,
    skn,
    skg,
    S,
    NC,
    NB,
    STRIP,
    n_items,
    n_tiles,
    SPAN,
    NL,
    scale2,
    H: tl.constexpr,
    G: tl.constexpr,
    HPG: tl.constexpr,
    HP: tl.constexpr,
    BT: tl.constexpr,
    L: tl.constexpr,
    D: tl.constexpr,
    LS: tl.constexpr,
    NTOP: tl.constexpr,
    DK0: tl.constexpr,
    DK1: tl.constexpr,
    BN: tl.constexpr,
    MP: tl.constexpr,
    NBP: tl.constexpr,
    NTOPP: tl.constexpr,
    GS: tl.constexpr,
    CHUNK: tl.constexpr,
    BK: tl.constexpr,
    GROUPED: tl.constexpr,
    PREC: tl.constexpr,
):
    """Scored part of the selection.

    ``top [B*G, S, NTOP]`` int32: the highest-scoring blocks of each token that are not forced, best first, -1
    where fewer exist; ``counts [B*G, NL]`` int32, zeroed by the caller, collects how often each block was
    chosen from each span of ``SPAN`` tokens, ``NL = spans * NB``. ``strips [programs, 2, STRIP, BT]`` float32
    scratch: what compressed blocks give to their own selection block, and to the next one; ``maxima [programs,
    NBP // GS, BT]`` int64 scratch: best key of each group of blocks. Persistent: programs walk ``n_items =
    n_tiles * B * G`` tiles of ``BT`` tokens, longest first, and choose for ``BK`` of them at a time.
    """
    M: tl.constexpr = LS // D
    BM: tl.constexpr = BT * HP
    BJ: tl.constexpr = BN // MP
    strip = strips + tl.program_id(0).to(tl.int64) * (2 * STRIP * BT)
    c = tl.arange(0, BM)
    if HP > 1:
        col_t = c // (4 * HP) * 4 + c // 2 % 4
        col_h = c // 8 % (HP // 2) * 2 + c % 2
    else:
        col_t = c
        col_h = c * 0
    tt = tl.arange(0, BT)
    slot = tl.arange(0, BN) % MP
    own_w = tl.minimum(L // D, M - slot).to(tl.float32)
    carry_w = (L // D - tl.minimum(L // D, M - slot)).to(tl.float32)
    maxima += tl.program_id(0).to(tl.int64) * (NBP // GS * BT)
    for item in range(tl.program_id(0), n_items, tl.num_programs(0)):
        BG = n_items // n_tiles
        bg = item % BG
        b = (bg // G).to(tl.int64)
        g = bg % G
        t0 = (n_tiles - 1 - item // BG) * BT
        t1 = tl.minimum(t0 + BT, S) - 1
        col_ok = (col_h < HPG) & (t0 + col_t < S)
        qp = q + b * sqb + t0.to(tl.int64) * sqs + (col_t * sqs + (g * HPG + col_h) * sqh)[:, None]
        q0 = tl.load(qp + tl.arange(0, DK0)[None, :], mask=col_ok[:, None], other=0.0)
        q1 = tl.load(qp + DK0 + tl.arange(0, DK1)[None, :], mask=col_ok[:, None], other=0.0) if DK1 > 0 else q0
        # Idle columns get +inf: their probabilities are then exactly zero.
        lse_c = tl.load(
            lse + (b * S + t0) * H + col_t * H + g * HPG + col_h, mask=col_ok, other=float("inf")
        )  # fmt: skip
        kp = k + b * skb + g * skg
        # Only blocks below own-1 compete, and all their compressed blocks are visible: no causal mask is needed.
        n_scored = tl.maximum(t1 // LS - 1, 0)
        for j0 in tl.range(0, n_scored, BJ):
            n = (j0 + tl.arange(0, BN) // MP) * M + slot
            n_ok = (slot < M) & (n < NC)
            k0 = tl.load(kp + n[:, None] * skn + tl.arange(0, DK0)[None, :], mask=n_ok[:, None], other=0.0)
            s = tl.dot(k0, tl.trans(q0), input_precision=PREC)
            if DK1 > 0:
                k1 = tl.load(
                    kp + n[:, None] * skn + DK0 + tl.arange(0, DK1)[None, :], mask=n_ok[:, None], other=0.0
                )  # fmt: skip
                s = tl.dot(k1, tl.trans(q1), s, input_precision=PREC)
            p = tl.math.exp2(s * scale2 - lse_c[None, :])
            p = _head_sum(p, BN, BT, HP)
            p = tl.where(n_ok[:, None], p, 0.0)
            own = tl.sum(tl.reshape(p * own_w[:, None], [BJ, MP, BT]), 1)
            carry = tl.sum(tl.reshape(p * carry_w[:, None], [BJ, MP, BT]), 1)
            j = j0 + tl.arange(0, BJ)
            tl.store(strip + j[:, None] * BT + tt[None, :], own)
            tl.store(strip + STRIP * BT + (j + 1)[:, None] * BT + tt[None, :], carry)
        tl.debug_barrier()
        for k0 in range(0, BT, BK):
            tk = k0 + tl.arange(0, BK)
            t = t0 + tk
            limit = t // LS - 1
            if GROUPED:
                # All winners lie in the NTOP groups of GS blocks whose best is highest; ties go to the lower group, as
                # they do for blocks.
                groups = tl.arange(0, CHUNK // GS)
                for j0 in range(0, tl.maximum(n_scored, 1), CHUNK):
                    part = _strip_keys(strip, j0 + tl.arange(0, CHUNK)[:, None], tk, limit, STRIP, BT)
                    best = tl.max(tl.reshape(part, [CHUNK // GS, GS, BK]), 1)
                    tl.store(maxima + (j0 // GS + groups)[:, None] * BT + tk[None, :], best)
                tl.debug_barrier()
                at = tl.arange(0, NBP // GS)[:, None]
                known = at * GS < tl.maximum(n_scored, 1)
                key = tl.load(maxima + at * BT + tk[None, :], mask=known, other=-1)
                ranks = tl.arange(0, NTOPP)[:, None]
                chosen = tl.zeros([NTOPP, BK], tl.int32) - 1
                for rank in range(NTOP):
                    best = tl.max(key, 0)
                    key = tl.where(key == best[None, :], -1, key)
                    group = tl.where(best >= 0, (0x7FFFFFFF - (best & 0x7FFFFFFF)).to(tl.int32) // GS, -1)
                    chosen = tl.where(ranks == rank, group[None, :], chosen)
                first = tl.where(chosen >= 0, chosen * GS, -GS)
                j = tl.reshape(first[:, None, :] + tl.arange(0, GS)[None, :, None], [NTOPP * GS, BK])
            else:
                j = tl.arange(0, NBP)[:, None] + tl.zeros([NBP, BK], tl.int32)
            key = _strip_keys(strip, j, tk, limit, STRIP, BT)
            t_ok = t < S
            for rank in range(NTOP):
                best = tl.max(key, 0)
                key = tl.where(key == best[None, :], -1, key)
                found = best >= 0
                j_best = tl.where(found, 0x7FFFFFFF - (best & 0x7FFFFFFF), -1).to(tl.int32)
                tl.store(top + (bg.to(tl.int64) * S + t) * NTOP + rank, j_best, mask=t_ok)
                tl.atomic_add(counts + bg * NL + t // SPAN * NB + j_best, 1, mask=t_ok & found, sem="relaxed")
        tl.debug_barrier()
