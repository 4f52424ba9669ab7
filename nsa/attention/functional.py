"""The functional interface: one function for every implementation.

``nsa_attention`` checks its arguments, picks the implementation, applies the gates and cuts variable-length
batches; the arithmetic of the branches lives in :mod:`nsa.attention.reference`, :mod:`~nsa.attention.sequential`,
:mod:`~nsa.attention.batched` and :mod:`nsa.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from nsa.attention.arguments import check_compressed, check_options, check_scale, check_streams
from nsa.attention.batched import Branches, batched_branches
from nsa.attention.compress import average_compress
from nsa.attention.dispatch import Impl, choose_impl, load_kernels
from nsa.attention.geometry import Geometry
from nsa.attention.ranges import RangesVersion
from nsa.attention.reference import reference_branches
from nsa.attention.sequential import sequential_branches
from nsa.attention.spans import span
from nsa.attention.varlen import packed_batches, scatter_packed

__all__ = ["NSAAux", "attend", "nsa_attention"]


class NSAAux(NamedTuple):
    """What ``return_aux`` adds to the output."""

    blocks: Tensor
    """``[B, S, G, n_sel]`` int32, ascending, with -1 in the empty places at the end."""
    o_cmp: Tensor
    """``[B, S, H, Dv]``, before gating, like the two that follow; differentiable but on the ``triton`` path."""
    o_sel: Tensor
    o_win: Tensor


@overload
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
    l: int = ...,  # noqa: E741
    d: int = ...,
    l_sel: int = ...,
    n_sel: int = ...,
    w: int = ...,
    scale: float | None = ...,
    impl: Impl = ...,
    return_aux: Literal[False] = ...,
    cu_seqlens: Tensor | None = ...,
    query_chunk: int | None = ...,
    sel_ranges: RangesVersion = ...,
) -> Tensor: ...


@overload
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
    l: int = ...,  # noqa: E741
    d: int = ...,
    l_sel: int = ...,
    n_sel: int = ...,
    w: int = ...,
    scale: float | None = ...,
    impl: Impl = ...,
    return_aux: Literal[True],
    cu_seqlens: Tensor | None = ...,
    query_chunk: int | None = ...,
    sel_ranges: RangesVersion = ...,
) -> tuple[Tensor, NSAAux]: ...


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
        sel_ranges: what the selected branch reads is listed by a loop over rows (``v1``, the meaning, slow) or without
            one (``v2``); the result is the same. ``reference`` and ``triton`` have no such list.

    Returns:
        ``o [B, S, H, Dv]`` in the type of ``q``; with ``return_aux`` the pair ``(o, NSAAux)``.

    Raises:
        ValueError: a shape, type, device or size does not fit; the message names the argument.
    """
    geometry = Geometry(l=l, d=d, l_sel=l_sel, n_sel=n_sel, w=w)
    return attend(
        (q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win),
        gates,
        geometry=geometry,
        compress=None,
        scale=scale,
        impl=impl,
        return_aux=return_aux,
        cu_seqlens=cu_seqlens,
        query_chunk=query_chunk,
        sel_ranges=sel_ranges,
    )


@dataclass(frozen=True)
class _Settings:
    geometry: Geometry
    compress: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None
    scale: float
    impl: Impl
    query_chunk: int | None
    sel_ranges: RangesVersion


def attend(
    streams: tuple[Tensor, ...],
    gates: Tensor,
    *,
    geometry: Geometry,
    compress: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None,
    scale: float | None = None,
    impl: Impl = "auto",
    return_aux: bool = False,
    cu_seqlens: Tensor | None = None,
    query_chunk: int | None = None,
    sel_ranges: RangesVersion = "v2",
) -> Tensor | tuple[Tensor, NSAAux]:
    """:func:`nsa_attention` with any compression function.

    Args:
        streams: ``(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)``.
        compress: maps ``k_cmp [B, S, G, Dk], v_cmp [B, S, G, Dv]`` to one entry per complete block; None averages.
    """
    check_options(query_chunk=query_chunk, sel_ranges=sel_ranges)
    check_streams(streams, gates)
    factor = check_scale(scale, streams[0].shape[-1])
    settings = _Settings(geometry, compress, factor, impl, query_chunk, sel_ranges)
    if cu_seqlens is None:
        o, aux = _attend_padded(streams, gates, settings, return_aux=return_aux)
    else:
        o, aux = _attend_packed(streams, gates, settings, cu_seqlens, return_aux=return_aux)
    return (o, aux) if aux is not None else o


def _attend_packed(
    streams: tuple[Tensor, ...], gates: Tensor, settings: _Settings, cu_seqlens: Tensor, *, return_aux: bool
) -> tuple[Tensor, NSAAux | None]:
    """Run packed sequences as few right-padded batches: causality keeps padding away from every real query."""
    q, v_sel = streams[0], streams[4]
    S, H, n_sel = q.shape[1], q.shape[2], settings.geometry.n_sel
    results: list[tuple[Tensor, ...]] = []
    indices = packed_batches(cu_seqlens, q.shape)
    for index in indices:
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
    streams: tuple[Tensor, ...], gates: Tensor, settings: _Settings, *, return_aux: bool
) -> tuple[Tensor, NSAAux | None]:
    q, k_cmp, v_cmp, *rest = streams
    geometry, compressed = settings.geometry, settings.compress is not None
    if settings.compress is not None:
        with span("nsa.compress"):
            k_cmp, v_cmp = settings.compress(k_cmp, v_cmp)
        check_compressed(k_cmp, v_cmp, *rest[:2], n_compressed=geometry.n_compressed(q.shape[1]))
    impl = choose_impl(settings.impl, (q, k_cmp, v_cmp, *rest), geometry=geometry, compressed=compressed)
    # Precision is decided here, not by an autocast region around the model.
    with torch.autocast(device_type=q.device.type, enabled=False):
        if impl == "triton":
            return _run_triton((q, k_cmp, v_cmp, *rest), gates, settings, return_aux=return_aux)
        if not compressed:
            with span("nsa.compress"):
                k_cmp, v_cmp = (average_compress(x, l=geometry.l, d=geometry.d) for x in (k_cmp, v_cmp))
        branches = _run_torch(impl, (q, k_cmp, v_cmp, *rest), settings)
        with span("nsa.gate"):
            o = combine(branches, gates).to(q.dtype)
    if not return_aux:
        return o, None
    # By name, since torch 2.6 cannot trace a slice of a named tuple.
    return o, NSAAux(branches.blocks, *(x.to(q.dtype) for x in (branches.o_cmp, branches.o_sel, branches.o_win)))


def _run_triton(
    streams: tuple[Tensor, ...], gates: Tensor, settings: _Settings, *, return_aux: bool
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
        scale=settings.scale,
        compressed=settings.compress is not None,
        return_aux=return_aux,
    )
    return (result[0], NSAAux(*result[1])) if return_aux else (result, None)


def _run_torch(impl: Impl, streams: tuple[Tensor, ...], settings: _Settings) -> Branches:
    geometry, scale, sel_ranges = settings.geometry, settings.scale, settings.sel_ranges
    if impl == "reference":
        return reference_branches(*streams, geometry=geometry, scale=scale)
    if impl == "sequential":
        return sequential_branches(*streams, geometry=geometry, scale=scale, sel_ranges=sel_ranges)
    chunk = settings.query_chunk
    return batched_branches(*streams, geometry=geometry, scale=scale, query_chunk=chunk, sel_ranges=sel_ranges)


def combine(branches: Branches, gates: Tensor) -> Tensor:
    """Gated sum of the three branch outputs, ``[B, S, H, Dv]``, in their precision."""
    g_cmp, g_sel, g_win = gates.to(branches.o_cmp.dtype).unsqueeze(-1).unbind(-2)
    return (g_cmp * branches.o_cmp).addcmul_(g_sel, branches.o_sel).addcmul_(g_win, branches.o_win)
