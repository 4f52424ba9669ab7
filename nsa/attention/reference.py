"""The readable implementation: the three branches as plain masked attention over whole sequences.

For tests and for reading, not for long sequences: it holds S x S scores for every head. The ordinary autograd engine
differentiates it, which makes it the check for the hand-written backward passes of the other paths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention.batched import Branches
from nsa.attention.compress import compute_dtype
from nsa.attention.geometry import Geometry
from nsa.attention.select import block_scores, select_blocks

__all__ = ["reference_branches"]


def reference_branches(streams: tuple[Tensor, ...], *, geometry: Geometry, scale: float) -> Branches:
    """The three branches and the selection. Shapes as in :func:`nsa.attention.batched.batched_branches`."""
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win = (x.to(compute_dtype(x.dtype)) for x in streams)
    S = q.shape[1]
    t = torch.arange(S, device=q.device)
    query_S1, key_1S = t[:, None], t[None, :]

    last_token_C = torch.arange(k_cmp.shape[1], device=q.device) * geometry.d + geometry.l - 1
    o_cmp, p_cmp = _attend(q, k_cmp, v_cmp, last_token_C <= query_S1, scale)

    with torch.no_grad():
        score_BGSJ = block_scores(p_cmp.sum(2), geometry.n_blocks(S), geometry)
        blocks_BGSn = select_blocks(score_BGSJ, t, geometry)
        selected_BGSS = (blocks_BGSn[..., None, :] == (t // geometry.l_sel)[:, None]).any(-1)
    o_sel, _ = _attend(q, k_sel, v_sel, (selected_BGSS & (key_1S <= query_S1))[:, :, None], scale)

    in_window_SS = (key_1S <= query_S1) & (key_1S > query_S1 - geometry.w)
    o_win, _ = _attend(q, k_win, v_win, in_window_SS, scale)
    return Branches(o_cmp, o_sel, o_win, blocks_BGSn.transpose(1, 2))


def _attend(q_BSHK: Tensor, k_BNGK: Tensor, v_BNGV: Tensor, allowed: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Grouped softmax attention: ``o [B, S, H, Dv]`` and ``p [B, G, H/G, S, N]``; rows that see nothing give 0."""
    B, S, H, _ = q_BSHK.shape
    q_BSGRK = q_BSHK.reshape(B, S, k_BNGK.shape[2], -1, q_BSHK.shape[-1])
    scores = torch.einsum("bsgrk,bngk->bgrsn", q_BSGRK, k_BNGK) * scale
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    # Masking the probabilities again clears rows in which every score was masked.
    p = torch.softmax(scores, dim=-1) * allowed if k_BNGK.shape[1] else scores
    o_BSGRV = torch.einsum("bgrsn,bngv->bsgrv", p, v_BNGV)
    return o_BSGRV.reshape(B, S, H, -1), p
