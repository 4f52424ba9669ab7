"""The vectorized torch path: whole chunks of queries at a time, on any device, with bounded memory.

Queries are taken in chunks and scores live only inside a chunk; the backward pass computes them again. So nothing of
size S x S or S x C outlasts its chunk, and a 65,536-token sequence trains in ordinary memory. The
selected branch has two ways to reach its keys: early chunks multiply with every visible key and mask, later ones go
by pairs of query and block (:mod:`nsa.attention.gathered`), at a cost that is the same for every position.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsa.attention.chunks import Problem, prepare
from nsa.attention.gathered import paired_backward, paired_forward
from nsa.attention.geometry import Geometry
from nsa.attention.ranges import RangesVersion
from nsa.attention.spans import span
from nsa.attention.tiles import Tile

__all__ = ["Branches", "batched_branches"]


class Branches(NamedTuple):
    """Outputs of the three branches before gating, ``[B, S, H, Dv]``, and the selection ``[B, S, G, n_sel]`` int32."""

    o_cmp: Tensor
    o_sel: Tensor
    o_win: Tensor
    blocks: Tensor


class _BatchedAttention(torch.autograd.Function):
    """The three branches, chunk by chunk; the backward pass rebuilds each chunk's scores from the saved inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k_cmp: Tensor,
        v_cmp: Tensor,
        k_sel: Tensor,
        v_sel: Tensor,
        k_win: Tensor,
        v_win: Tensor,
        geometry: Geometry,
        scale: float,
        chunk: int | None,
        sel_ranges: RangesVersion,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        inputs = (q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)
        outputs, lse = _forward(prepare(inputs, geometry, scale, chunk, sel_ranges))
        ctx.save_for_backward(*inputs, outputs.blocks, outputs.o_sel, lse)
        ctx.settings = (geometry, scale, chunk)
        ctx.mark_non_differentiable(outputs.blocks)
        return tuple(outputs)  # type: ignore[return-value]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, blocks, o_sel, lse = ctx.saved_tensors
        geometry, scale, chunk = ctx.settings
        B, _, G = inputs[3].shape[:3]
        with torch.autocast(device_type=blocks.device.type, enabled=False):
            problem = prepare(tuple(inputs), geometry, scale, chunk, "v2")
            dq, *dkv = _backward(problem, blocks.transpose(1, 2), o_sel, lse, grads[:3])
        out = [dq.to(inputs[0].dtype)]
        for i, (grad, source) in enumerate(zip(dkv, inputs[1:], strict=True)):
            # Keys came scaled; their gradients are those of the scaled keys.
            grad = grad.mul_(scale) if i % 2 == 0 else grad
            grad = grad.view(B, G, -1, grad.shape[-1])[:, :, : source.shape[1]]
            out.append(grad.transpose(1, 2).to(source.dtype))
        return (*out, None, None, None, None)


def _forward(problem: Problem) -> tuple[Branches, Tensor]:
    """The branches, and the logarithm of the sums of exponentials of the rows that went by pairs: ``[pair rows, R]``
    of all paired chunks in turn."""
    B, S, H, _ = problem.q.shape
    G, Dv, geo, scratch = problem.groups, problem.v_sel.shape[-1], problem.geometry, problem.scratch
    o_cmp, o_sel, o_win = (problem.k_sel.new_empty(B, S, G, H // G, Dv) for _ in range(3))
    blocks = torch.empty(B, G, S, geo.n_sel, dtype=torch.int32, device=problem.q.device)
    o_cmp[:, : geo.l - 1] = 0.0  # these see no compressed token
    for t0, t1 in problem.compressed_chunks():
        first, p = max(t0, geo.l - 1), None
        if first < t1:
            with span("nsa.cmp"):
                tile = problem.compressed_tile(first, t1)
                p = tile.probabilities(scratch)
                o_cmp[:, first:t1] = problem.ungroup(tile.attend(p, scratch), first, t1)
        with span(f"nsa.sel.ranges_{problem.sel_ranges}"):
            blocks[:, :, t0:t1] = problem.select(p, t0, t1)
    with span("nsa.win"):
        for t0, t1 in problem.window_chunks():
            tile = problem.window_tile(t0, t1)
            o_win[:, t0:t1] = problem.ungroup(tile.attend(tile.probabilities(scratch), scratch), t0, t1)
    with span("nsa.sel"):
        lse = _forward_selected(problem, blocks, o_sel)
    o_cmp, o_sel, o_win = (o.view(B, S, H, Dv) for o in (o_cmp, o_sel, o_win))
    return Branches(o_cmp, o_sel, o_win, blocks.transpose(1, 2).contiguous()), lse


def _forward_selected(problem: Problem, blocks: Tensor, o_sel: Tensor) -> Tensor:
    scratch = problem.scratch
    for t0, t1 in problem.masked_chunks():
        tile = problem.masked_tile(blocks[:, :, t0:t1], t0, t1)
        o_sel[:, t0:t1] = problem.ungroup(tile.attend(tile.probabilities(scratch), scratch), t0, t1)
    k, v = problem.in_blocks(problem.k_sel), problem.in_blocks(problem.v_sel)
    sums = [problem.k_sel.new_empty(0, problem.q.shape[2] // problem.groups)]
    for t0, t1 in problem.paired_chunks():
        pairs, last_key = problem.pairs(blocks[:, :, t0:t1], t0, t1)
        q = problem.pair_rows(problem.q, t0, t1, "queries")
        o, lse = paired_forward(q, k, v, pairs, last_key, budget=problem.budget, scratch=scratch)
        o_sel[:, t0:t1] = problem.ungroup(o, t0, t1)
        sums.append(lse)
    return torch.cat(sums)


def _backward(problem: Problem, blocks: Tensor, o_sel: Tensor, lse: Tensor, grads: tuple[Tensor, ...]) -> list[Tensor]:
    """Gradients of q, ``[B, S, H, Dk]``, and of the six grouped and scaled keys and values."""
    B, S, H, Dk = problem.q.shape
    G, geo, scratch = problem.groups, problem.geometry, problem.scratch
    do_cmp, do_sel, do_win = grads
    dq = problem.k_sel.new_zeros(B, S, G, H // G, Dk)
    keys = (problem.k_cmp, problem.v_cmp, problem.k_sel, problem.v_sel, problem.k_win, problem.v_win)
    dk_cmp, dv_cmp, dk_sel, dv_sel, dk_win, dv_win = grads_kv = [torch.zeros_like(x) for x in keys]

    def add(tile: Tile, do: Tensor, dk: Tensor, dv: Tensor, t0: int, t1: int) -> None:
        rows = problem.rows(do, t0, t1, "output gradient")
        dq[:, t0:t1] += problem.ungroup(tile.backward(rows, dk, dv, scratch), t0, t1)

    with span("nsa.cmp.backward"):
        for t0, t1 in problem.compressed_chunks():
            first, n_cmp = max(t0, geo.l - 1), geo.n_visible(t1 - 1)
            if first < t1:
                add(problem.compressed_tile(first, t1), do_cmp, dk_cmp[:, :n_cmp], dv_cmp[:, :n_cmp], first, t1)
    with span("nsa.win.backward"):
        for t0, t1 in problem.window_chunks():
            key0 = max(t0 - geo.w + 1, 0)
            add(problem.window_tile(t0, t1), do_win, dk_win[:, key0:t1], dv_win[:, key0:t1], t0, t1)
    with span("nsa.sel.backward"):
        for t0, t1 in problem.masked_chunks():
            tile = problem.masked_tile(blocks[:, :, t0:t1], t0, t1)
            n_keys = tile.k.shape[1]
            add(tile, do_sel, dk_sel[:, :n_keys], dv_sel[:, :n_keys], t0, t1)
        _backward_pairs(problem, blocks, (o_sel, lse, do_sel), (dq, dk_sel, dv_sel))
    return [dq.view(B, S, H, Dk), *grads_kv]


def _backward_pairs(
    problem: Problem, blocks: Tensor, known: tuple[Tensor, Tensor, Tensor], found: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Add the gradients of the chunks that went by pairs to ``found``: dq, and dk and dv of the selected branch."""
    (o_sel, lse, do_sel), (dq, dk, dv) = known, found
    k, v, dk, dv = (problem.in_blocks(x) for x in (problem.k_sel, problem.v_sel, dk, dv))
    done = 0
    for t0, t1 in problem.paired_chunks():
        pairs, last_key = problem.pairs(blocks[:, :, t0:t1], t0, t1)
        n_rows = last_key.shape[0]
        gq = paired_backward(
            problem.pair_rows(problem.q, t0, t1, "queries"),
            k,
            v,
            pairs,
            last_key,
            o=problem.pair_rows(o_sel, t0, t1, "output"),
            lse=lse[done : done + n_rows],
            do=problem.pair_rows(do_sel, t0, t1, "output gradient"),
            dk=dk,
            dv=dv,
            budget=problem.budget,
            scratch=problem.scratch,
        )
        done += n_rows
        dq[:, t0:t1] += problem.ungroup(gq, t0, t1)


def batched_branches(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    *,
    geometry: Geometry,
    scale: float,
    query_chunk: int | None = None,
    sel_ranges: RangesVersion = "v2",
) -> Branches:
    """The three branches and the selection, vectorized and differentiable once.

    Args:
        q: ``[B, S, H, Dk]``.
        k_cmp: ``[B, C, G, Dk]``, already compressed, as is ``v_cmp``; the other keys and values are ``[B, S, G, .]``.
        query_chunk: queries per chunk; None sizes chunks by a budget of scores.
        sel_ranges: whether a loop over rows (``v1``) or nothing but vectorized code makes the list of what is read.

    Returns:
        Branch outputs in compute precision (float64 for float64 inputs, else float32).
    """
    streams = (q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)
    return Branches(*_BatchedAttention.apply(*streams, geometry, scale, query_chunk, sel_ranges))  # type: ignore[no-untyped-call]
