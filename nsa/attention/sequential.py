"""The definition, slow: one position, batch row and group at a time, reading keys through merged ranges.

It exists to be read and compared with. Each step does what one decode step does, without a cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention.batched import Branches
from nsa.attention.compress import compute_dtype
from nsa.attention.geometry import Geometry
from nsa.attention.ranges import RangesVersion, merged_ranges
from nsa.attention.select import block_scores, select_blocks
from nsa.attention.spans import span

__all__ = ["sequential_branches"]


def sequential_branches(
    streams: tuple[Tensor, ...], *, geometry: Geometry, scale: float, sel_ranges: RangesVersion = "v2"
) -> Branches:
    """The three branches and the selection, token by token; shapes as in ``batched_branches``."""
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win = (x.to(compute_dtype(x.dtype)) for x in streams)
    B, S, H, _ = q.shape
    G = k_sel.shape[2]
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    blocks = torch.empty(B, S, G, geometry.n_sel, dtype=torch.int32, device=q.device)
    for b in range(B):
        for t in range(S):
            for g in range(G):
                query_RK = q[b, t].view(G, H // G, -1)[g] * scale
                o_cmp, p_cmp = _compressed(query_RK, k_cmp[b, :, g], v_cmp[b, :, g], t, geometry)
                blocks[b, t, g] = _select(p_cmp, t, geometry)
                with span(f"nsa.sel.ranges_{sel_ranges}"):
                    token_N = _tokens(blocks[b, t, g], t, geometry, sel_ranges)
                o_sel = _attend(query_RK, k_sel[b, token_N, g], v_sel[b, token_N, g])
                first = max(t - geometry.w + 1, 0)
                o_win = _attend(query_RK, k_win[b, first : t + 1, g], v_win[b, first : t + 1, g])
                rows.append((o_cmp, o_sel, o_win))
    o_cmp, o_sel, o_win = (torch.stack(branch).view(B, S, H, -1) for branch in zip(*rows, strict=True))
    return Branches(o_cmp, o_sel, o_win, blocks)


def _attend(query_RK: Tensor, k_NK: Tensor, v_NV: Tensor) -> Tensor:
    return torch.softmax(query_RK @ k_NK.T, dim=-1) @ v_NV


def _compressed(query_RK: Tensor, k_CK: Tensor, v_CV: Tensor, t: int, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Output ``[R, Dv]`` of the compressed branch, and its attention ``[C]`` summed over the heads."""
    n_cmp = geometry.n_visible(t)
    k, v = k_CK[:n_cmp], v_CV[:n_cmp]
    if n_cmp == 0:
        # Zero, and still connected to the graph, so that every parameter that made the inputs receives a gradient.
        return query_RK @ k.T @ v, query_RK.new_zeros(0)
    p = torch.softmax(query_RK @ k.T, dim=-1)
    return p @ v, p.detach().sum(0)


def _select(p_C: Tensor, t: int, geometry: Geometry) -> Tensor:
    score = block_scores(p_C[None], geometry.n_blocks(t + 1), geometry)
    return select_blocks(score, torch.tensor([t], device=p_C.device), geometry)[0]


def _tokens(blocks_N: Tensor, t: int, geometry: Geometry, sel_ranges: RangesVersion) -> Tensor:
    """Positions of the tokens that a row's selection covers, ascending."""
    position = torch.tensor([t], device=blocks_N.device)
    ranges = merged_ranges(blocks_N.view(1, 1, -1), position, l_sel=geometry.l_sel, seq_len=t + 1, version=sel_ranges)
    pairs = ranges.view(-1, 2).tolist()
    return torch.cat([torch.arange(start, end, device=blocks_N.device) for start, end in pairs if end > start])
