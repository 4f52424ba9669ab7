"""The decode step as two torch operators, ``nsa::decode_append`` and ``nsa::decode_attention``.

Both read the rows' lengths on the device and wait for nothing, so that a CUDA graph of a step can be replayed. Their
launches depend on the caches' capacity alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nsa.kernels.api import selected_blocks
from nsa.kernels.config import interpreting, next_power_of_2
from nsa.kernels.decode import append_kernel, chosen_kernel, merge_kernel, score_kernel, split_kernel
from nsa.kernels.operators import operator
from nsa.kernels.problem import ceil_div, n_processors

__all__ = [
    "Caches",
    "decode_append",
    "decode_attention",
    "launch_append",
    "launch_attention",
    "selected_blocks",
    "why_no_decode",
]

_MAX_BLOCKS = 4096
_MAX_OFFSET = 2**31
_MAX_PARTS = 32


class Caches(Protocol):
    """What a cache must offer: ``[B, length, G, .]`` tensors, dense, in the type of the queries."""

    k_cmp: Tensor
    v_cmp: Tensor
    k_sel: Tensor
    v_sel: Tensor
    k_win: Tensor
    v_win: Tensor
    k_raw: Tensor
    v_raw: Tensor


def why_no_decode(q: Tensor, cache: Caches, *, sizes: tuple[int, int, int, int, int]) -> str | None:
    """None if a step can run by the kernels, else the reason in snake case.

    ``device``, ``capability``, ``dtype``, ``heads_per_group`` (more than 32), ``head_dim`` (keys neither a power of
    two nor 192 or the like, or values no power of two, from 16 to 256: a cache is not padded at every step), ``n_sel``
    (below 3), ``block_size`` (``l_sel`` above 128), ``length`` (more than 4,096 selection blocks, or offsets beyond 32
    bits).
    """
    _, _, l_sel, n_sel, _ = sizes
    N, G, Dk = cache.k_sel.shape[1:]
    Dv = cache.v_sel.shape[-1]
    if not interpreting():
        if q.device.type != "cuda":
            return "device"
        if torch.cuda.get_device_capability(q.device) < (8, 0):
            return "capability"
    kinds = (torch.float32,) if interpreting() else (torch.float16, torch.bfloat16, torch.float32)
    if q.dtype not in kinds or any(x.dtype != q.dtype for x in (cache.k_sel, cache.v_sel, cache.k_cmp)):
        return "dtype"
    if q.shape[2] // G > 32:
        return "heads_per_group"
    if _key_parts(Dk) is None or Dv != next_power_of_2(Dv) or not 16 <= Dv <= 256:
        return "head_dim"
    if n_sel < 3:
        return "n_sel"
    if l_sel > 128:
        return "block_size"
    return "length" if ceil_div(N, l_sel) > _MAX_BLOCKS or N * G * max(Dk, Dv) >= _MAX_OFFSET else None


@dataclass(frozen=True)
class Plan:
    """Keys per tile and warps of the split kernel, its programs per processor, and warps of the search."""

    keys: int
    warps: int
    rounds: int
    search_warps: int


def _plan(row_bytes: int) -> Plan:
    """By the bytes of a key or value, the larger of the two."""
    if interpreting():
        return Plan(keys=16, warps=1, rounds=2, search_warps=1)
    if row_bytes <= 128:
        return Plan(keys=128, warps=4, rounds=4, search_warps=4)
    if row_bytes <= 256:
        return Plan(keys=128, warps=8, rounds=2, search_warps=4)
    return Plan(keys=64 if row_bytes <= 512 else 32, warps=4, rounds=2, search_warps=4)


def _key_parts(Dk: int) -> tuple[int, int] | None:
    """``Dk`` as one power of two or the sum of two, each at least 16; None if it is neither."""
    low = 1 << (Dk.bit_length() - 1)
    rest = Dk - low
    served = low >= 16 and Dk <= 256 and (rest == 0 or (rest >= 16 and rest == next_power_of_2(rest)))
    return (low, rest) if served else None


def launch_attention(
    q: Tensor, gates: Tensor, streams: tuple[Tensor, ...], lengths: Tensor, sizes: list[int], scale: float, *,
    processors: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What :func:`decode_attention` runs; ``processors`` sets how finely the compressed tokens are split."""
    k_cmp, v_cmp, k_sel, v_sel, k_win, v_win = streams
    B, _, H, Dk = q.shape
    N, G, _ = k_sel.shape[1:]
    Dv, NC, RW = v_sel.shape[-1], k_cmp.shape[1], k_win.shape[1]
    l, d, l_sel, n_sel, _ = sizes  # noqa: E741
    parts = _key_parts(Dk)
    assert parts is not None, "asked of why_no_decode before"
    plan = _plan(max(Dk, Dv) * q.element_size())
    bn = plan.keys
    folded = next_power_of_2(l_sel // d)
    bn = max(bn, folded)
    tile = bn // folded * (l_sel // d)
    n_tiles = ceil_div(NC, tile)
    # Enough programs for two rounds over the chip, and no more parts than the merge takes at once.
    tiles = max(ceil_div(n_tiles * B * G, plan.rounds * processors), ceil_div(n_tiles, _MAX_PARTS), 1)
    p_cmp, p_win = ceil_div(n_tiles, tiles), ceil_div(RW, bn)
    heads, n_top, n_blocks = max(next_power_of_2(H // G), 16), n_sel - 3, next_power_of_2(ceil_div(N, l_sel))
    first = p_cmp + p_win + 3
    part_o = q.new_empty(B * G, first + n_top, heads, Dv, dtype=torch.float32)
    part_m, part_l = (q.new_empty(part_o.shape[:3], dtype=torch.float32) for _ in range(2))
    importance = q.new_empty(B * G, 2, H // G, n_tiles * (bn // folded), dtype=torch.float32)
    tile_m = q.new_empty(B * G, H // G, n_tiles, dtype=torch.float32)
    keys = q.new_empty(B * G, n_blocks, dtype=torch.int64)
    o = q.new_empty(B, 1, H, Dv)
    top = q.new_empty(B, 1, G, n_top, dtype=torch.int32)
    heads_of = {"G": G, "HPG": H // G, "HP": heads}
    blocks_of = {"L": l, "D": d, "LS": l_sel, "MP": folded, "BN": bn, "TILES": tiles}
    widths = {"DK0": parts[0], "DK1": parts[1], "DV": Dv, "PREC": "ieee" if q.dtype == torch.float32 else "tf32"}
    rows, scale2 = max(next_power_of_2(l_sel), 16), scale * 1.4426950408889634
    partial = (part_o, part_m, part_l)
    split_kernel[(first, B * G)](
        q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, lengths, *partial, importance, tile_m, q.stride(0), q.stride(2),
        N, RW, NC, n_tiles, p_cmp, p_win, first + n_top, scale2, LSP=rows, **heads_of, **blocks_of, **widths,
        num_warps=plan.warps, num_stages=2,
    )  # fmt: skip
    if n_top:
        few = min(n_blocks, 8 if interpreting() else 128)
        score_kernel[(n_blocks // few, B * G)](
            lengths, part_m, part_l, importance, tile_m, keys, n_tiles, p_cmp, first + n_top, **heads_of, **blocks_of,
            PP=next_power_of_2(p_cmp), NBP=n_blocks, BB=few, num_warps=4,
        )  # fmt: skip
        chosen_kernel[(n_top, B * G)](
            q, k_sel, v_sel, lengths, keys, *partial, top, q.stride(0), q.stride(2), N, first, first + n_top, scale2,
            **heads_of, NTOP=n_top, LS=l_sel, LSP=rows, NBP=n_blocks, **widths, num_warps=plan.search_warps,
        )  # fmt: skip
    merge_kernel[(B * H,)](
        gates, lengths, *partial, o, RW, p_cmp, p_win, first + n_top, **heads_of, NTOP=n_top, **blocks_of,
        PARTSP=next_power_of_2(first + n_top), DV=Dv, num_warps=4,
    )  # fmt: skip
    return o, top


def launch_append(new: list[Tensor], caches: tuple[Tensor, ...], lengths: Tensor, l: int, d: int) -> None:  # noqa: E741
    """What :func:`decode_append` runs."""
    k_cmp, _, k_sel, v_sel, k_win = caches[2:7]
    # Rows must be dense from the group on; a slice of a wider projection is, for it holds one position.
    new = [x if x.stride(-1) == 1 and x.stride(-2) == x.shape[-1] else x.contiguous() for x in new]
    B, N, G, Dk = k_sel.shape
    Dv = v_sel.shape[-1]
    append_kernel[(B * G,)](
        *new, *caches, lengths, *(x.stride(0) for x in new), N,
        k_win.shape[1], k_cmp.shape[1], G=G, L=l, D=d, LP=next_power_of_2(l), DK=Dk, DKP=next_power_of_2(Dk), DV=Dv,
        DVP=next_power_of_2(Dv), num_warps=2,
    )  # fmt: skip


@operator(
    "nsa::decode_append",
    mutates_args=("k_raw", "v_raw", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "lengths"),
)
def decode_append(
    new: list[Tensor],
    k_raw: Tensor,
    v_raw: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    lengths: Tensor,
    l: int,  # noqa: E741 - the paper's symbol
    d: int,
) -> None:
    """Store one position per row, ``new = [k_cmp, v_cmp, k_sel, v_sel, k_win, v_win]`` each ``[B, 1, G, .]``, average a
    compressed token where one is complete, and add 1 to ``lengths [B, G]`` int32. A full row is left as it is."""
    launch_append(new, (k_raw, v_raw, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win), lengths, l, d)


@operator("nsa::decode_attention")
def decode_attention(
    q: Tensor,
    gates: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    lengths: Tensor,
    sizes: list[int],
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention of the newest position of each row over its caches.

    Args:
        q: ``[B, 1, H, Dk]``; gates: ``[B, 1, H, 3]``; k_cmp ... v_win: as in :class:`Caches`.
        lengths: ``[B, G]`` int32, positions held including the newest, at least 1; equal for the groups of a row.
        sizes: ``[l, d, l_sel, n_sel, w]``; scale: factor of the scores.

    Returns: ``o [B, 1, H, Dv]`` and the scored blocks ``[B, 1, G, n_sel - 3]`` int32, best first, -1 for none; the
        forced ones are not among them.
    """
    streams = (k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)
    return launch_attention(q, gates, streams, lengths, sizes, scale, processors=n_processors(q.device))


@decode_attention.register_fake
def _(
    q: Tensor,
    gates: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    lengths: Tensor,
    sizes: list[int],
    scale: float,
) -> tuple[Tensor, Tensor]:
    B, _, H, _ = q.shape
    top = q.new_empty(B, 1, k_sel.shape[2], sizes[3] - 3, dtype=torch.int32)
    return q.new_empty(B, 1, H, v_sel.shape[-1]), top
