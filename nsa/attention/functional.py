"""The functional interface: one function for every implementation.

``nsa_attention`` checks its arguments, picks the implementation, applies the gates and cuts variable-length
batches; the arithmetic of the branches lives in :mod:`nsa.attention.reference`, :mod:`~nsa.attention.sequential`,
:mod:`~nsa.attention.batched` and :mod:`nsa.kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nsa.attention.arguments import check_compressed, check_options, check_scale, check_streams
from nsa.attention.batched import Branches, batched_branches
from nsa.attention.compress import Compress, average_compress
from nsa.attention.dispatch import Impl, choose_impl, load_kernels
from nsa.attention.geometry import Geometry
from nsa.attention.ranges import RangesVersion
from nsa.attention.reference import reference_branches
from nsa.attention.sequential import sequential_branches
from nsa.attention.spans import span
from nsa.attention.varlen import packed_batches, scatter_packed

__all__ = ["AttentionSettings", "NSAAux", "attend", "combine", "nsa_attention"]


class NSAAux(NamedTuple):
    """What ``return_aux`` adds to the output."""

    blocks: Tensor
    """``[B, S, G, n_sel]`` int32, ascending, with -1 in the empty places at the end."""
    o_cmp: Tensor
    """``[B, S, H, Dv]``, before gating, like the two that follow; differentiable but on the ``triton`` path."""
    o_sel: Tensor
    o_win: Tensor


def nsa_attention(
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
    impl: Impl = "auto",
    return_aux: bool = False,
    cu_seqlens: Tensor | None = None,
    query_chunk: int | None = None,
    sel_ranges: RangesVersion = "v2",
) -> Tensor | tuple[Tensor, NSAAux]:
    """Native Sparse Attention with average compression (arXiv 2502.11089), differentiable in all tensors.

    Args:
        q: ``[B, S, H, Dk]`` queries, H a multiple of G.
        k_cmp: ``[B, S, G, Dk]`` keys of the compressed branch, not yet compressed; ``v_cmp`` ``[B, S, G, Dv]``.
        k_sel, v_sel: keys and values of the selected branch, same shapes.
        k_win, v_win: keys and values of the sliding window, same shapes.
        gates: ``[B, S, H, 3]``, already activated, in the order compressed, selected, window.
        l: compression block length; ``d``: compression stride; ``l_sel``: selection block length; ``n_sel``: blocks
            selected, forced ones included; ``w``: window length. All in tokens but ``n_sel``.
        scale: factor of the scores; ``Dk ** -0.5`` if None.
        impl: ``reference`` (readable, S x S memory), ``sequential`` (token by token), ``batched`` (vectorized torch),
            ``triton`` (fused; falls back to ``batched`` with a counted reason), ``auto`` (``triton`` on CUDA, else
            ``batched``).
        return_aux: also return the selection and the outputs of the branches.
        cu_seqlens: ``[n + 1]`` offsets of n sequences packed along S, from 0 to S; B must be 1. Blocks count from the
            start of each sequence.
        query_chunk: queries per chunk of the batched path; None chooses by memory.
        sel_ranges: how the tokens that the selected branch reads are listed: by a loop over rows (``v1``, the
            definition, slow) or vectorized (``v2``); the result is the same. ``reference`` and ``triton`` have no such
            list.

    Returns:
        ``o [B, S, H, Dv]`` in the type of ``q``; with ``return_aux`` the pair ``(o, NSAAux)``.

    Raises:
        ValueError: a shape, type, device or size does not fit; the message names the argument.
    """
    settings = AttentionSettings(
        Geometry(l=l, d=d, l_sel=l_sel, n_sel=n_sel, w=w),
        scale=scale,
        impl=impl,
        query_chunk=query_chunk,
        sel_ranges=sel_ranges,
    )
    streams = (q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)
    o, aux = attend(streams, gates, settings, return_aux=return_aux, cu_seqlens=cu_seqlens)
    return o if aux is None else (o, aux)


@dataclass(frozen=True)
class AttentionSettings:
    """What :func:`attend` computes and how; the fields without a note are as in :func:`nsa_attention`."""

    geometry: Geometry
    compress: Compress | None = None
    """Maps ``k_cmp [B, S, G, Dk], v_cmp [B, S, G, Dv]`` to one entry per complete block; None averages."""
    scale: float | None = None
    impl: Impl = "auto"
    query_chunk: int | None = None
    sel_ranges: RangesVersion = "v2"


def attend(
    streams: tuple[Tensor, ...],
    gates: Tensor,
    settings: AttentionSettings,
    *,
    return_aux: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, NSAAux | None]:
    """:func:`nsa_attention` with any compression function.

    Args:
        streams: ``(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)``, shapes as there.
        gates: ``[B, S, H, 3]``.
        return_aux: whether the second result is the selection and the branch outputs, or None.
        cu_seqlens: ``[n + 1]`` offsets of packed sequences.

    Raises:
        ValueError: as :func:`nsa_attention`, or the compression function returns another number of entries.
    """
    check_options(query_chunk=settings.query_chunk, sel_ranges=settings.sel_ranges)
    check_streams(streams, gates)
    if cu_seqlens is None:
        return _attend_padded(streams, gates, settings, return_aux=return_aux)
    return _attend_packed(streams, gates, settings, cu_seqlens, return_aux=return_aux)


def _attend_packed(
    streams: tuple[Tensor, ...], gates: Tensor, settings: AttentionSettings, cu_seqlens: Tensor, *, return_aux: bool
) -> tuple[Tensor, NSAAux | None]:
    """Run packed sequences as few right-padded batches: causality keeps padding away from every real query."""
    q, v_sel = streams[0], streams[4]
    S, H, n_sel = q.shape[1], q.shape[2], settings.geometry.n_sel
    results: list[tuple[Tensor, ...]] = []
    indices = packed_batches(cu_seqlens, q.shape)
    for index in indices:
        # Padding (-1) reads token 0: any value does, since no real query attends to it.
        padded = [x[0][index.clamp(min=0)] for x in (*streams, gates)]
        o, aux = _attend_padded(tuple(padded[:-1]), padded[-1], settings, return_aux=return_aux)
        results.append((o, *aux) if aux is not None else (o,))
    out_shape = (1, S, H, v_sel.shape[-1])
    shapes = [out_shape, (1, S, v_sel.shape[2], n_sel), out_shape, out_shape, out_shape]
    if not return_aux:
        shapes = shapes[:1]
    o, *rest = (scatter_packed(indices, [r[i] for r in results], shape) for i, shape in enumerate(shapes))
    return o, NSAAux(*rest) if return_aux else None


def _attend_padded(
    streams: tuple[Tensor, ...], gates: Tensor, settings: AttentionSettings, *, return_aux: bool
) -> tuple[Tensor, NSAAux | None]:
    q, k_cmp, v_cmp, *rest = streams
    geometry, compressed = settings.geometry, settings.compress is not None
    scale = check_scale(settings.scale, q.shape[-1])
    if settings.compress is not None:
        with span("nsa.compress"):
            k_cmp, v_cmp = settings.compress(k_cmp, v_cmp)
        check_compressed(k_cmp, v_cmp, *rest[:2], n_compressed=geometry.n_compressed(q.shape[1]))
    impl = choose_impl(settings.impl, (q, k_cmp, v_cmp, *rest), geometry=geometry, compressed=compressed)
    # Precision is decided here, not by an autocast region around the model.
    with torch.autocast(device_type=q.device.type, enabled=False):
        if impl == "triton":
            return _run_triton((q, k_cmp, v_cmp, *rest), gates, settings, scale, return_aux=return_aux)
        if not compressed:
            with span("nsa.compress"):
                k_cmp, v_cmp = (average_compress(x, l=geometry.l, d=geometry.d) for x in (k_cmp, v_cmp))
        branches = _run_torch(impl, (q, k_cmp, v_cmp, *rest), settings, scale)
        with span("nsa.gate"):
            o = combine(branches, gates).to(q.dtype)
    if not return_aux:
        return o, None
    # By name, since torch 2.6 cannot trace a slice of a named tuple.
    return o, NSAAux(branches.blocks, *(x.to(q.dtype) for x in (branches.o_cmp, branches.o_sel, branches.o_win)))


def _run_triton(
    streams: tuple[Tensor, ...], gates: Tensor, settings: AttentionSettings, scale: float, *, return_aux: bool
) -> tuple[Tensor, NSAAux | None]:
    kernels = load_kernels()
    assert kernels is not None, "choose_impl returns triton only when the kernels are there"
    geo = settings.geometry
    result = kernels.nsa_attention_triton(
        *streams,
        gates,
        l=geo.l,
        d=geo.d,
        l_sel=geo.l_sel,
        n_sel=geo.n_sel,
        w=geo.w,
        scale=scale,
        compressed=settings.compress is not None,
        return_aux=return_aux,
    )
    return (result[0], NSAAux(*result[1])) if return_aux else (result, None)


def _run_torch(impl: Impl, streams: tuple[Tensor, ...], settings: AttentionSettings, scale: float) -> Branches:
    geometry, sel_ranges = settings.geometry, settings.sel_ranges
    if impl == "reference":
        return reference_branches(streams, geometry=geometry, scale=scale)
    if impl == "sequential":
        return sequential_branches(streams, geometry=geometry, scale=scale, sel_ranges=sel_ranges)
    chunk = settings.query_chunk
    return batched_branches(streams, geometry=geometry, scale=scale, query_chunk=chunk, sel_ranges=sel_ranges)


def combine(branches: Branches, gates: Tensor) -> Tensor:
    """Gated sum of the three branch outputs, ``[B, S, H, Dv]``, in their precision."""
    g_cmp, g_sel, g_win = gates.to(branches.o_cmp.dtype).unsqueeze(-1).unbind(-2)
    return (g_cmp * branches.o_cmp).addcmul_(g_sel, branches.o_sel).addcmul_(g_win, branches.o_win)
