"""One decode step: a single query against the caches of the three branches.

Reads the visible compressed tokens, the tokens of the selected ranges and the window, and nothing else; the counts
in the cache are taken from the tensors that were read, not from the formula they are tested against.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention.batched import Branches
from nsa.attention.cache import NSACache
from nsa.attention.compress import compute_dtype
from nsa.attention.geometry import TokenReads
from nsa.attention.ranges import RangesVersion, merged_ranges, range_tokens
from nsa.attention.select import block_scores, select_blocks
from nsa.attention.spans import span

__all__ = ["decode_branches"]


def decode_branches(q_B1HK: Tensor, cache: NSACache, *, scale: float, sel_ranges: RangesVersion = "v2") -> Branches:
    """The three branches for the newest position of the cache; shapes as in prefill with S = 1."""
    B, _, H, Dk = q_B1HK.shape
    geo, t = cache.geometry, cache.length - 1
    G = cache.k_sel.shape[2]
    query_BGRK = q_B1HK.to(compute_dtype(q_B1HK.dtype)).view(B, G, H // G, Dk) * scale

    n_cmp = cache.n_compressed
    with span("nsa.cmp"):
        k_cmp, v_cmp = cache.k_cmp[:, :n_cmp], cache.v_cmp[:, :n_cmp]
        o_cmp, p_BGRC = _attend(query_BGRK, k_cmp.transpose(1, 2), v_cmp.transpose(1, 2))
    with span(f"nsa.sel.ranges_{sel_ranges}"):
        position = torch.tensor([t], device=q_B1HK.device)
        score = block_scores(p_BGRC.sum(2)[:, :, None], geo.n_blocks(t + 1), geo)
        blocks_B1Gn = select_blocks(score, position, geo).transpose(1, 2)
        ranges = merged_ranges(blocks_B1Gn, position, l_sel=geo.l_sel, seq_len=t + 1, version=sel_ranges)
        token_BGN = range_tokens(ranges)[:, 0]
    with span("nsa.sel"):
        k_sel, v_sel = (_gather(x, token_BGN) for x in (cache.k_sel, cache.v_sel))
        o_sel, _ = _attend(query_BGRK, k_sel, v_sel)
    with span("nsa.win"):
        k_win, v_win = cache.window()
        o_win, _ = _attend(query_BGRK, k_win.transpose(1, 2), v_win.transpose(1, 2))
    cache.count(TokenReads(k_cmp.shape[1], k_sel.shape[2], k_win.shape[1]))
    o_cmp, o_sel, o_win = (o.reshape(B, 1, H, -1) for o in (o_cmp, o_sel, o_win))
    return Branches(o_cmp, o_sel, o_win, blocks_B1Gn)


def _attend(q_BGRK: Tensor, k_BGNK: Tensor, v_BGNV: Tensor) -> tuple[Tensor, Tensor]:
    p_BGRN = torch.softmax(q_BGRK @ k_BGNK.to(q_BGRK.dtype).transpose(-1, -2), dim=-1)
    return p_BGRN @ v_BGNV.to(q_BGRK.dtype), p_BGRN


def _gather(x_BNGD: Tensor, token_BGM: Tensor) -> Tensor:
    """``[B, G, M, D]``: the given tokens of each batch row and group."""
    index = token_BGM.transpose(1, 2)[..., None].expand(-1, -1, -1, x_BNGD.shape[-1])
    return x_BNGD.gather(1, index).transpose(1, 2)
