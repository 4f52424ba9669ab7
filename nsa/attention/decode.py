"""One decode step: a position is appended to the caches, and its query reads the three branches.

The fused kernels do both where they can serve the step, and torch elsewhere; a step that torch does although the
kernels were wanted is counted. Either reads the visible compressed tokens, the selected blocks and the window, and
nothing else. ``NSACache.last_reads`` says how much; on the torch path it is taken from the tensors that were read, not
from the formula that it is tested against.
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from nsa.attention.batched import Branches
from nsa.attention.cache import NSACache
from nsa.attention.compress import Compress, compute_dtype
from nsa.attention.dispatch import Impl, count_fallback, load_kernels
from nsa.attention.functional import combine
from nsa.attention.geometry import TokenReads
from nsa.attention.ranges import range_tokens, ranges_v2
from nsa.attention.select import block_scores, select_blocks
from nsa.attention.spans import span

__all__ = ["decode_branches", "decode_step"]


def decode_step(
    q_B1HK: Tensor,
    streams: tuple[Tensor, ...],
    gates_B1H3: Tensor,
    cache: NSACache,
    *,
    impl: Impl,
    compress: Compress,
    averages: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Append one position and attend from it.

    Args:
        q_B1HK: the new position's query.
        streams: ``(k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)`` of the new position, ``[B, 1, G, .]``.
        gates_B1H3: its gates, already activated.
        impl: the layer's implementation; ``auto`` means the kernels on CUDA, anything but ``triton`` means torch.
        compress: makes the compressed tokens; ``averages`` says that it is the mean, which the kernels do themselves.
        scale: factor of the scores.

    Returns:
        Output ``[B, 1, H, Dv]`` and selection ``[B, 1, G, n_sel]``.

    Raises:
        ValueError: the cache is full.
    """
    if impl == "triton" or (impl == "auto" and q_B1HK.device.type == "cuda"):
        reason = _why_not_fused(q_B1HK, cache, averages=averages)
        if reason is None:
            return _fused_step(q_B1HK, streams, gates_B1H3, cache, scale=scale)
        count_fallback(f"fb_decode_{reason}")
    cache.append(streams, compress)
    branches = decode_branches(q_B1HK, cache, scale=scale)
    return combine(branches, gates_B1H3).to(q_B1HK.dtype), branches.blocks


def _sizes(cache: NSACache) -> tuple[int, int, int, int, int]:
    geo = cache.geometry
    return geo.l, geo.d, geo.l_sel, geo.n_sel, geo.w


def _why_not_fused(q_B1HK: Tensor, cache: NSACache, *, averages: bool) -> str | None:
    """None if the kernels can serve the step, else the reason in snake case."""
    if load_kernels() is None:
        return "missing"
    if not averages:
        return "phi"
    reason: str | None = importlib.import_module("nsa.kernels.step").why_no_decode(q_B1HK, cache, sizes=_sizes(cache))
    return reason


def _fused_step(
    q_B1HK: Tensor, streams: tuple[Tensor, ...], gates_B1H3: Tensor, cache: NSACache, *, scale: float
) -> tuple[Tensor, Tensor]:
    """The step by the kernels, without a transfer and without waiting for the device."""
    kernels = importlib.import_module("nsa.kernels.step")
    geo = cache.geometry
    cache.check_room(1)
    # The kernels read lengths from the device, so that a CUDA graph of a step can be replayed.
    lengths = torch.full((q_B1HK.shape[0], streams[0].shape[2]), cache.length, dtype=torch.int32, device=q_B1HK.device)
    cached = (cache.k_cmp, cache.v_cmp, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win)
    new = [x.to(cache.k_sel.dtype) for x in streams]
    o, top = kernels.decode_step(
        q_B1HK, gates_B1H3.contiguous(), new, cache.k_raw, cache.v_raw, *cached, lengths, cache.arrivals,
        list(_sizes(cache)), scale,
    )  # fmt: skip
    t = cache.length
    cache.length += 1
    n_blocks = min(geo.n_sel, t // geo.l_sel + 1)
    # The newest block is read up to t, the others are whole: they lie before it.
    n_selected = (n_blocks - 1) * geo.l_sel + t % geo.l_sel + 1
    cache.last_reads = TokenReads(cache.n_compressed, n_selected, min(t + 1, cache.k_win.shape[1]))
    blocks: Tensor = kernels.selected_blocks(top, l_sel=geo.l_sel, n_sel=geo.n_sel, first=t)
    return o, blocks


def decode_branches(q_B1HK: Tensor, cache: NSACache, *, scale: float) -> Branches:
    """The three branches for the newest position of the cache, by torch; shapes as in prefill with S = 1."""
    B, _, H, Dk = q_B1HK.shape
    geo, t = cache.geometry, cache.length - 1
    G = cache.k_sel.shape[2]
    query_BGRK = q_B1HK.to(compute_dtype(q_B1HK.dtype)).view(B, G, H // G, Dk) * scale

    n_cmp = cache.n_compressed
    with span("nsa.cmp"):
        k_cmp, v_cmp = cache.k_cmp[:, :n_cmp], cache.v_cmp[:, :n_cmp]
        o_cmp, p_BGRC = _attend(query_BGRK, k_cmp.transpose(1, 2), v_cmp.transpose(1, 2))
    with span("nsa.sel.ranges_v2"):
        position = torch.tensor([t], device=q_B1HK.device)
        score = block_scores(p_BGRC.sum(2)[:, :, None], geo.n_blocks(t + 1), geo)
        blocks_B1Gn = select_blocks(score, position, geo).transpose(1, 2)
        token_BGN = range_tokens(ranges_v2(blocks_B1Gn, position, l_sel=geo.l_sel, seq_len=t + 1))[:, 0]
    with span("nsa.sel"):
        k_sel, v_sel = (_gather(x, token_BGN) for x in (cache.k_sel, cache.v_sel))
        o_sel, _ = _attend(query_BGRK, k_sel, v_sel)
    with span("nsa.win"):
        k_win, v_win = cache.window()
        o_win, _ = _attend(query_BGRK, k_win.transpose(1, 2), v_win.transpose(1, 2))
    cache.last_reads = TokenReads(k_cmp.shape[1], k_sel.shape[2], k_win.shape[1])
    o_cmp, o_sel, o_win = (o.reshape(B, 1, H, -1) for o in (o_cmp, o_sel, o_win))
    return Branches(o_cmp, o_sel, o_win, blocks_B1Gn)


def _attend(q_BGRK: Tensor, k_BGNK: Tensor, v_BGNV: Tensor) -> tuple[Tensor, Tensor]:
    p_BGRN = torch.softmax(q_BGRK @ k_BGNK.to(q_BGRK.dtype).transpose(-1, -2), dim=-1)
    return p_BGRN @ v_BGNV.to(q_BGRK.dtype), p_BGRN


def _gather(x_BNGD: Tensor, token_BGM: Tensor) -> Tensor:
    """``[B, G, M, D]``: the given tokens of each batch row and group."""
    index = token_BGM.transpose(1, 2)[..., None].expand(-1, -1, -1, x_BNGD.shape[-1])
    return x_BNGD.gather(1, index).transpose(1, 2)
