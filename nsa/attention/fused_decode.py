"""A decode step by the fused kernels, where they can serve it; elsewhere torch does it and the reason is counted.

The kernels average a compressed token by themselves, so this is for phi = avg.
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from nsa.attention.cache import NSACache, TokenReads
from nsa.attention.dispatch import Impl, count_fallback, load_kernels

__all__ = ["fused_decode"]


def fused_decode(
    q_B1HK: Tensor,
    streams: tuple[Tensor, ...],
    gates_B1H3: Tensor,
    cache: NSACache,
    *,
    impl: Impl,
    averages: bool,
    scale: float,
) -> tuple[Tensor, Tensor] | None:
    """Append one position and attend from it: output ``[B, 1, H, Dv]`` and selection ``[B, 1, G, n_sel]``.

    Args:
        streams: ``(k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)`` of the new position, ``[B, 1, G, .]``.
        impl: the layer's implementation; ``auto`` means the kernels on CUDA.
        averages: whether phi is the mean.

    Returns None, with nothing done, where the kernels are not asked for or cannot run. Nothing here waits for the
    device.
    """
    if impl not in ("auto", "triton") or (impl == "auto" and q_B1HK.device.type != "cuda"):
        return None
    geo = cache.geometry
    sizes = (geo.l, geo.d, geo.l_sel, geo.n_sel, geo.w)
    reason = "missing" if load_kernels() is None else None if averages else "phi"
    if reason is None:
        kernels = importlib.import_module("nsa.kernels.step")
        reason = kernels.why_no_decode(q_B1HK, cache, sizes=sizes)
    if reason is not None:
        count_fallback(f"fb_decode_{reason}")
        return None
    cache.check_room(1)
    lengths = torch.full((q_B1HK.shape[0], streams[0].shape[2]), cache.length, dtype=torch.int32, device=q_B1HK.device)
    held = (cache.k_cmp, cache.v_cmp, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win)
    new = [x.to(cache.k_sel.dtype) for x in streams]
    o, top = kernels.decode_step(
        q_B1HK, gates_B1H3.contiguous(), new, cache.k_raw, cache.v_raw, *held, lengths, cache.arrivals, list(sizes),
        scale,
    )  # fmt: skip
    t = cache.length
    cache.length += 1
    n_blocks = min(geo.n_sel, t // geo.l_sel + 1)
    # The newest block is read up to t, the others are whole: they lie before it.
    read = (n_blocks - 1) * geo.l_sel + t % geo.l_sel + 1
    cache.count(TokenReads(cache.n_compressed, read, min(t + 1, cache.k_win.shape[1])))
    blocks: Tensor = kernels.selected_blocks(top, l_sel=geo.l_sel, n_sel=geo.n_sel, first=t)
    return o, blocks
