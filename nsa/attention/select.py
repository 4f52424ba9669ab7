"""From compressed attention to the blocks that a query selects.

The scores of a group are the compressed attention of its heads, summed, and spread over selection blocks by true
overlap (paper eq. 8 to 10). Forced blocks come first, then the highest scores; equal scores go to the lower index,
which needs a stable sort: adding a small multiple of the index does not survive float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.attention.geometry import Geometry

__all__ = ["block_scores", "select_blocks", "all_visible_blocks"]


def block_scores(p_TC: Tensor, n_blocks: int, geometry: Geometry) -> Tensor:
    """Spread compressed attention over selection blocks.

    Args:
        p_TC: ``[..., T, C]`` compressed attention, already summed over the heads of the group.
        n_blocks: number of selection blocks wanted.

    Returns:
        ``[..., T, n_blocks]``. Every column adds its terms in the same order, so that blocks with equal terms have
        exactly equal scores.
    """
    step = geometry.l_sel // geometry.d
    weights = geometry.overlap_weights()
    left = -geometry.first_overlap
    width = (n_blocks - 1) * step + len(weights)
    padded = F.pad(p_TC, (left, max(width - left - p_TC.shape[-1], 0)))
    span = (n_blocks - 1) * step + 1
    score = padded[..., 0:span:step] * weights[0]
    for k, weight in enumerate(weights[1:], start=1):
        score = score + padded[..., k : k + span : step] * weight
    return score


def select_blocks(score_TJ: Tensor, t_T: Tensor, geometry: Geometry) -> Tensor:
    """Choose ``n_sel`` blocks per row.

    Args:
        score_TJ: ``[..., T, J]`` non-negative scores, J blocks.
        t_T: ``[T]`` positions of the queries.

    Returns:
        ``[..., T, n_sel]`` int32, ascending, then -1 for every empty place.
    """
    n_blocks = score_TJ.shape[-1]
    block_J = torch.arange(n_blocks, device=score_TJ.device)
    own_T1 = (t_T // geometry.l_sel)[:, None]
    largest = torch.finfo(score_TJ.dtype).max
    # The three forced blocks rank above every score in this order, which decides only when n_sel < 3.
    ranked = score_TJ.masked_fill(block_J == own_T1 - 1, largest / 2)
    ranked = ranked.masked_fill(block_J == 0, largest)
    ranked = ranked.masked_fill(block_J == own_T1, float("inf"))
    ranked = ranked.masked_fill(block_J > own_T1, float("-inf"))
    order = ranked.sort(dim=-1, descending=True, stable=True)
    taken = min(geometry.n_sel, n_blocks)
    empty = order.values[..., :taken] == float("-inf")
    chosen = order.indices[..., :taken].masked_fill(empty, n_blocks).sort(dim=-1).values
    chosen = chosen.masked_fill(chosen == n_blocks, -1)
    return F.pad(chosen, (0, geometry.n_sel - taken), value=-1).to(torch.int32)


def all_visible_blocks(t_T: Tensor, geometry: Geometry) -> Tensor:
    """The selection of rows that see at most ``n_sel`` blocks: all of them. ``[T, n_sel]`` int32, -1 when empty."""
    slot = torch.arange(geometry.n_sel, device=t_T.device)
    own_T1 = (t_T // geometry.l_sel)[:, None]
    return torch.where(slot <= own_T1, slot, -1).to(torch.int32)
