"""The vectorized torch path: whole chunks of queries at a time, on any device, with bounded memory.

Queries are taken in chunks and scores live only inside a chunk; the backward pass computes them again. So nothing of
size S x S or S x C outlasts its chunk, and a 65,536-token sequence trains in ordinary memory. The
selected branch has two ways to reach its keys: early chunks multiply with every visible key and mask, later ones
are computed by pairs of query and block (:mod:`nsa.attention.gathered`), at a cost that is the same for every position.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsa.attention.chunks import Problem, grouped, prepare, ungrouped
from nsa.attention.gathered import paired_backward, paired_forward
from nsa.attention.geometry import Geometry
from nsa.attention.ranges import RangesVersion
from nsa.attention.spans import span

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
        with torch.autocast(device_type=blocks.device.type, enabled=False):
            problem = prepare(tuple(inputs), geometry, scale, chunk, "v2")
            found = _backward(problem, blocks.transpose(1, 2), o_sel, lse, grads[:3])
            for dk in found[1::2]:
                dk.mul_(scale)  # keys came scaled; these are the gradients of the scaled keys
        out = [ungrouped(grad, like=x).to(x.dtype) for grad, x in zip(found, inputs, strict=True)]
        return (*out, None, None, None, None)


def _forward(problem: Problem) -> tuple[Branches, Tensor]:
    """The branches, and the logarithm of the sums of exponentials of the rows computed by pairs: ``[pair rows, R]``,
    the paired chunks one after another."""
    B, S, G, R = problem.shape
    geo, scratch, Dv = problem.geometry, problem.scratch, problem.v_sel.shape[-1]
    o = scratch("output", B * G, S * R, Dv)  # of one branch at a time, in the layout of the products

    def branch() -> Tensor:
        table = o.view(B, G, S, R, Dv).transpose(1, 2)
        return table.clone(memory_format=torch.contiguous_format).view(B, S, G * R, Dv)

    blocks = torch.empty(B, G, S, geo.n_sel, dtype=torch.int32, device=problem.q.device)
    problem.rows(o, 0, geo.l - 1).zero_()  # these see no compressed token
    for t0, t1 in problem.compressed_chunks():
        first, p = max(t0, geo.l - 1), None
        if first < t1:
            with span("nsa.cmp"):
                p = problem.compressed_tile(first, t1).attend(problem.rows(o, first, t1), scratch)
        with span(f"nsa.sel.ranges_{problem.sel_ranges}"):
            blocks[:, :, t0:t1] = problem.select(p, t0, t1)
    o_cmp = branch()
    with span("nsa.win"):
        for t0, t1 in problem.window_chunks():
            problem.window_tile(t0, t1).attend(problem.rows(o, t0, t1), scratch)
        o_win = branch()
    with span("nsa.sel"):
        lse = _forward_selected(problem, blocks, o)
        o_sel = branch()
    return Branches(o_cmp, o_sel, o_win, blocks.transpose(1, 2).contiguous()), lse


def _forward_selected(problem: Problem, blocks: Tensor, o: Tensor) -> Tensor:
    scratch = problem.scratch
    for t0, t1 in problem.masked_chunks():
        problem.masked_tile(blocks[:, :, t0:t1], t0, t1).attend(problem.rows(o, t0, t1), scratch)
    k, v = problem.in_blocks(problem.k_sel), problem.in_blocks(problem.v_sel)
    sums = [o.new_empty(0, problem.shape[3])]
    for t0, t1 in problem.paired_chunks():
        pairs, last_key = problem.pairs(blocks[:, :, t0:t1], t0, t1)
        q = problem.pair_rows(problem.q, t0, t1)
        o_pairs, lse = paired_forward(q, k, v, pairs, last_key, budget=problem.budget, scratch=scratch)
        rows = problem.rows(o, t0, t1)
        rows.copy_(o_pairs.view(rows.shape))
        sums.append(lse)
    return torch.cat(sums)


def _backward(problem: Problem, blocks: Tensor, o_sel: Tensor, lse: Tensor, grads: tuple[Tensor, ...]) -> list[Tensor]:
    """Gradients of the problem's q and its six (scaled) keys and values, in its layout."""
    B, S, G, R = problem.shape
    geo, scratch, rows = problem.geometry, problem.scratch, problem.rows
    sources = (
        problem.q, problem.k_cmp, problem.v_cmp, problem.k_sel, problem.v_sel, problem.k_win, problem.v_win,
    )  # fmt: skip
    dq, dk_cmp, dv_cmp, dk_sel, dv_sel, dk_win, dv_win = found = [torch.zeros_like(x) for x in sources]

    def of_queries(x: Tensor, name: str) -> Tensor:
        return grouped(x, scratch(name, B, G, S, R, x.shape[-1]))

    with span("nsa.cmp.backward"):
        do = of_queries(grads[0], "output gradient")
        for t0, t1 in problem.compressed_chunks():
            first, n_cmp = max(t0, geo.l - 1), geo.n_visible(t1 - 1)
            if first < t1:
                tile, dk, dv = problem.compressed_tile(first, t1), dk_cmp[:, :n_cmp], dv_cmp[:, :n_cmp]
                tile.backward(rows(do, first, t1), rows(dq, first, t1), dk, dv, scratch)
    with span("nsa.win.backward"):
        do = of_queries(grads[2], "output gradient")
        for t0, t1 in problem.window_chunks():
            key0 = max(t0 - geo.w + 1, 0)
            tile, dk, dv = problem.window_tile(t0, t1), dk_win[:, key0:t1], dv_win[:, key0:t1]
            tile.backward(rows(do, t0, t1), rows(dq, t0, t1), dk, dv, scratch)
    with span("nsa.sel.backward"):
        do = of_queries(grads[1], "output gradient")
        for t0, t1 in problem.masked_chunks():
            tile = problem.masked_tile(blocks[:, :, t0:t1], t0, t1)
            n_keys = tile.k.shape[1]
            tile.backward(rows(do, t0, t1), rows(dq, t0, t1), dk_sel[:, :n_keys], dv_sel[:, :n_keys], scratch)
        if problem.paired_chunks():
            o = of_queries(o_sel, "output")
            _backward_pairs(problem, blocks, (o, lse, do), (dq, dk_sel, dv_sel))
    return found


def _backward_pairs(
    problem: Problem, blocks: Tensor, known: tuple[Tensor, Tensor, Tensor], found: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Add the gradients of the chunks computed by pairs to ``found``: dq, and dk and dv of the selected branch."""
    (o, lse, do), (dq, dk, dv) = known, found
    k, v, dk, dv = (problem.in_blocks(x) for x in (problem.k_sel, problem.v_sel, dk, dv))
    done = 0
    for t0, t1 in problem.paired_chunks():
        pairs, last_key = problem.pairs(blocks[:, :, t0:t1], t0, t1)
        n_rows = last_key.shape[0]
        q_rows, o_rows, do_rows = (problem.pair_rows(x, t0, t1) for x in (problem.q, o, do))
        gq = paired_backward(
            q_rows,
            k,
            v,
            pairs,
            last_key,
            o=o_rows,
            lse=lse[done : done + n_rows],
            do=do_rows,
            dk=dk,
            dv=dv,
            budget=problem.budget,
            scratch=problem.scratch,
        )
        done += n_rows
        into = problem.rows(dq, t0, t1)
        into += gq.view(into.shape)


def batched_branches(
    streams: tuple[Tensor, ...],
    *,
    geometry: Geometry,
    scale: float,
    query_chunk: int | None = None,
    sel_ranges: RangesVersion = "v2",
) -> Branches:
    """The three branches and the selection, vectorized and differentiable once.

    Args:
        streams: ``(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)``: ``q [B, S, H, Dk]``; keys and values of the
            compressed branch ``[B, C, G, .]``, compressed already; the others ``[B, S, G, .]``.
        query_chunk: queries per chunk; None sizes chunks by a budget of scores.
        sel_ranges: ``v1``: a loop over rows lists what is read; ``v2``: vectorized code does.

    Returns:
        Branch outputs in compute precision (float64 for float64 inputs, else float32).
    """
    return Branches(*_BatchedAttention.apply(*streams, geometry, scale, query_chunk, sel_ranges))  # type: ignore[no-untyped-call]
