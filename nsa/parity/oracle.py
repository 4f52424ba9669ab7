"""An independent statement of Native Sparse Attention in float64, for tests.

It imports nothing from :mod:`nsa.attention` and uses none of its tricks: every branch is a dense S x S (or S x C)
masked softmax, masks are built from sets of token positions, overlaps are counted token by token and the selection is
sorted in Python. It runs on the CPU unless told otherwise and is differentiable. Cost is O(B H S^2) memory: keep S
below about 2,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["OracleResult", "oracle_attention", "overlap_matrix", "selection_defects"]


class OracleResult(NamedTuple):
    """Output, branch outputs and selection of the oracle, all float64 on its device (``blocks``: int32)."""

    o: Tensor
    """``[B, S, H, Dv]`` gated sum of the branches."""
    o_cmp: Tensor
    o_sel: Tensor
    o_win: Tensor
    blocks: Tensor
    """``[B, S, G, n_sel]`` int32, ascending, -1 in the empty places at the end."""
    scores: Tensor
    """``[B, S, G, J]`` importance of every selection block, before forcing."""


def overlap_matrix(n_cmp: int, n_blocks: int, *, l: int, d: int, l_sel: int) -> Tensor:  # noqa: E741
    """Tokens shared by compression block i and selection block j, in units of ``d``: ``[n_cmp, n_blocks]`` float64."""
    shared = torch.zeros(n_cmp, n_blocks, dtype=torch.float64)
    for i in range(n_cmp):
        for token in range(i * d, i * d + l):
            if token // l_sel < n_blocks:
                shared[i, token // l_sel] += 1.0
    return shared / d


def _masked_attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Softmax attention of ``q [B,H,S,Dk]`` over the allowed keys; a row that may see nothing gives zero."""
    if k.shape[-2] == 0:
        empty = q.new_zeros(*q.shape[:-1], 0)
        # No compressed token exists: zero, with zero gradients rather than none.
        return q.new_zeros(*q.shape[:-1], v.shape[-1]) + 0.0 * (q.sum() + k.sum() + v.sum()), empty
    weight = (q @ k.transpose(-1, -2)) * scale
    weight = torch.where(allowed, weight, torch.full_like(weight, -1e300))
    top = weight.detach().max(dim=-1, keepdim=True).values
    numerator = torch.exp(weight - top) * allowed
    total = numerator.sum(-1, keepdim=True)
    p = numerator / torch.where(total == 0, torch.ones_like(total), total)
    return p @ v, p


def _choose(scores: Sequence[float], t: int, *, l_sel: int, n_sel: int) -> list[int]:
    """Selection of one row: forced blocks, then by score; ties to the lower index."""
    own = t // l_sel
    chosen: list[int] = []
    for block in (own, 0, own - 1):
        if block >= 0 and block not in chosen and len(chosen) < n_sel:
            chosen.append(block)
    rest = sorted((j for j in range(own + 1) if j not in chosen), key=lambda j: (-scores[j], j))
    chosen += rest[: n_sel - len(chosen)]
    return sorted(chosen) + [-1] * (n_sel - len(chosen))


def _select_all(scores: Tensor, *, l_sel: int, n_sel: int) -> Tensor:
    B, S, G, _ = scores.shape
    table = scores.detach().tolist()
    rows = [
        [[_choose(table[b][t][g], t, l_sel=l_sel, n_sel=n_sel) for g in range(G)] for t in range(S)] for b in range(B)
    ]
    return torch.tensor(rows, dtype=torch.int32).reshape(B, S, G, n_sel)


def _selected_mask(blocks: Tensor, S: int, *, l_sel: int) -> Tensor:
    """``[B, G, S, S]``: query (third) may attend key (fourth)."""
    t = torch.arange(S, device=blocks.device)
    picked = (blocks[..., None].long() == t // l_sel).any(dim=-2)
    return picked.permute(0, 2, 1, 3) & (t[None, :] <= t[:, None])


def oracle_attention(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    *,
    l: int = 32,  # noqa: E741 - the paper's symbol
    d: int = 16,
    l_sel: int = 64,
    n_sel: int = 16,
    w: int = 512,
    scale: float | None = None,
    blocks: Tensor | None = None,
    compressed: bool = False,
    device: str = "cpu",
) -> OracleResult:
    """Native Sparse Attention of one batch, by dense masks in float64.

    Args:
        q: ``[B, S, H, Dk]``; ``k_*`` ``[B, S, G, Dk]``; ``v_*`` ``[B, S, G, Dv]``; ``gates`` ``[B, S, H, 3]``, in the
            order compressed, selected, window. ``k_cmp`` and ``v_cmp`` are averaged here unless ``compressed``.
        blocks: attend to this selection instead of the oracle's own. Two correct implementations may differ where
            scores tie within rounding; a test then checks the selection by :func:`selection_defects` and the
            arithmetic by passing the selection here.
        compressed: ``k_cmp`` and ``v_cmp`` hold one entry per compression block already.
        device: where the dense products run; a GPU takes seconds off each problem of a thousand tokens.
    """
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates = (
        x.to(device, torch.float64) for x in (q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates)
    )
    B, S, H, Dk = q.shape
    G = k_sel.shape[2]
    scale = Dk**-0.5 if scale is None else scale
    starts = [s for s in range(0, S, d) if s + l <= S]
    if not compressed:
        averaging = torch.zeros(len(starts), S, dtype=torch.float64)
        for i, start in enumerate(starts):
            averaging[i, start : start + l] = 1.0 / l
        averaging = averaging.to(device)
        k_cmp = torch.einsum("cs,bsgk->bcgk", averaging, k_cmp)
        v_cmp = torch.einsum("cs,bsgk->bcgk", averaging, v_cmp)

    def per_head(x: Tensor) -> Tensor:  # [B, N, G, D] -> [B, H, N, D]
        return x.repeat_interleave(H // G, dim=2).permute(0, 2, 1, 3)

    query = q.permute(0, 2, 1, 3)
    t = torch.arange(S, device=device)
    ends = torch.tensor([s + l - 1 for s in starts], dtype=torch.long, device=device)
    o_cmp, p = _masked_attention(query, per_head(k_cmp), per_head(v_cmp), ends[None, :] <= t[:, None], scale)

    n_blocks = -(-S // l_sel)
    p_group = p.reshape(B, G, H // G, S, len(starts)).sum(2)
    overlap = overlap_matrix(len(starts), n_blocks, l=l, d=d, l_sel=l_sel).to(device)
    scores = (p_group @ overlap).permute(0, 2, 1, 3).detach()
    chosen = _select_all(scores, l_sel=l_sel, n_sel=n_sel) if blocks is None else blocks
    chosen = chosen.to(device, torch.int32)
    mask = _selected_mask(chosen, S, l_sel=l_sel).repeat_interleave(H // G, dim=1)
    o_sel, _ = _masked_attention(query, per_head(k_sel), per_head(v_sel), mask, scale)

    in_window = (t[None, :] <= t[:, None]) & (t[None, :] > t[:, None] - w)
    o_win, _ = _masked_attention(query, per_head(k_win), per_head(v_win), in_window, scale)

    o_cmp, o_sel, o_win = (x.permute(0, 2, 1, 3) for x in (o_cmp, o_sel, o_win))
    o = gates[..., 0:1] * o_cmp + gates[..., 1:2] * o_sel + gates[..., 2:3] * o_win
    return OracleResult(o, o_cmp, o_sel, o_win, chosen, scores)


def selection_defects(blocks: Tensor, scores: Tensor, *, l_sel: int, n_sel: int, tol: float = 1e-5) -> list[str]:
    """What is wrong with a selection, given the oracle's ``scores``; an empty list if nothing is.

    Checks shape, order, duplicates, causality, forced blocks and fullness exactly, and that no block left out beats a
    chosen one by more than ``tol`` relative to the row's largest score. ``tol=0`` demands the exact choice, ties
    included.
    """
    B, S, G, _ = scores.shape
    if tuple(blocks.shape) != (B, S, G, n_sel):
        return [f"shape {tuple(blocks.shape)}, expected {(B, S, G, n_sel)}"]
    defects: list[str] = []
    got, table = blocks.cpu().tolist(), scores.cpu().tolist()
    for b in range(B):
        for t in range(S):
            for g in range(G):
                problem = _row_defect(got[b][t][g], table[b][t][g], t, l_sel=l_sel, n_sel=n_sel, tol=tol)
                if problem:
                    defects.append(f"b={b} t={t} g={g}: {problem}; selection {got[b][t][g]}")
    return defects


def _row_defect(row: list[int], score: list[float], t: int, *, l_sel: int, n_sel: int, tol: float) -> str | None:
    own = t // l_sel
    valid = [j for j in row if j >= 0]
    if row != sorted(set(valid)) + [-1] * (n_sel - len(valid)):
        return "not ascending, duplicated, or with -1 before a block"
    if len(valid) != min(n_sel, own + 1):
        return f"{len(valid)} blocks, expected {min(n_sel, own + 1)}"
    if valid[-1] > own:
        return "a block from the future"
    expected = _choose(score, t, l_sel=l_sel, n_sel=n_sel)
    if tol == 0:
        return None if row == expected else f"expected {expected}"
    forced = list(dict.fromkeys((own, 0, max(own - 1, 0))))[:n_sel]
    missing = [j for j in forced if j not in valid]
    if missing:
        return f"forced blocks {missing} missing"
    free = [score[j] for j in valid if j not in forced]
    left = [score[j] for j in range(own + 1) if j not in valid]
    if free and left and max(left) > min(free) + tol * max(score):
        return f"a block left out scores {max(left):.9g}, one chosen scores {min(free):.9g}"
    return None
