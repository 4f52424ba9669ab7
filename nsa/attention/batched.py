"""The vectorized torch path: whole chunks of queries at a time, on any device, with bounded memory.

Queries are taken in chunks and scores live only inside a chunk; the backward pass computes them again. So nothing of
size S x S or S x C outlasts its chunk, and a 65,536-token sequence trains in ordinary memory. The
selected branch has two ways to reach its keys: early chunks multiply with every visible key and mask, later ones gather
the blocks of each query, which costs the same for every position.

Tensors inside this module are grouped: ``q`` is ``[B, G, R, T, D]`` with R = H/G heads per group, keys are
``[B, G, N, D]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.attention.compress import compute_dtype
from nsa.attention.geometry import Geometry
from nsa.attention.select import all_visible_blocks, block_scores, select_blocks
from nsa.attention.spans import span

__all__ = ["Branches", "batched_branches"]

# Scores held at once, in elements. On the CPU a chunk should stay in the last-level cache; a GPU wants large products.
_CHUNK_ELEMENTS = {"cpu": 1 << 20, "other": 1 << 26}
# Up to this many times n_sel * l_sel visible keys, one large masked product beats gathering blocks query by query.
_DENSE_REACH = 2


class Branches(NamedTuple):
    """Outputs of the three branches before gating, ``[B, S, H, Dv]``, and the selection ``[B, S, G, n_sel]`` int32."""

    o_cmp: Tensor
    o_sel: Tensor
    o_win: Tensor
    blocks: Tensor


@dataclass(frozen=True)
class _Tile:
    """One masked softmax attention: ``q [..., M, Dk]``, ``k [..., N, Dk]``, ``v [..., N, Dv]``.

    ``bias`` is -inf where a key must not be seen, else 0, and broadcasts against the scores viewed as ``score_shape``.
    (On the CPU adding it is an order of magnitude faster than filling by a boolean mask.) Every row sees a key.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor
    score_shape: tuple[int, ...]

    def probabilities(self) -> Tensor:
        scores = self.q @ self.k.transpose(-1, -2)
        scores.view(self.score_shape).add_(self.bias)
        return torch.softmax(scores, dim=-1)

    def backward(self, do: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v for the output gradient ``do [..., M, Dv]``."""
        p = self.probabilities()
        dv = p.transpose(-1, -2) @ do
        ds = torch.ops.aten._softmax_backward_data(do @ self.v.transpose(-1, -2), p, -1, p.dtype)
        return ds @ self.k, ds.transpose(-1, -2) @ self.q, dv


@dataclass(frozen=True)
class _Problem:
    """Inputs, grouped and in compute precision; ``q`` is scaled, selected keys are padded to whole blocks."""

    q: Tensor
    k_cmp: Tensor
    v_cmp: Tensor
    k_sel: Tensor
    v_sel: Tensor
    k_win: Tensor
    v_win: Tensor
    geometry: Geometry
    seq_len: int
    chunk: int

    def chunks(self) -> Iterator[tuple[int, int]]:
        for t0 in range(0, self.seq_len, self.chunk):
            yield t0, min(t0 + self.chunk, self.seq_len)

    def positions(self, t0: int, t1: int) -> Tensor:
        return torch.arange(t0, t1, device=self.q.device)

    def bias(self, hidden: Tensor) -> Tensor:
        return torch.zeros_like(hidden, dtype=self.q.dtype).masked_fill_(hidden, float("-inf"))

    def _dense(self, k: Tensor, v: Tensor, bias: Tensor, t0: int, t1: int) -> _Tile:
        B, G, R, _, Dk = self.q.shape
        q = self.q[:, :, :, t0:t1].reshape(B, G, R * (t1 - t0), Dk)
        return _Tile(q, k, v, bias, (B, G, R, t1 - t0, k.shape[2]))

    def compressed_tile(self, t0: int, t1: int) -> _Tile:
        """Queries ``t0`` to ``t1`` against the compressed tokens that the last of them sees; needs ``t0 >= l - 1``."""
        geo = self.geometry
        n_cmp = geo.n_visible(t1 - 1)
        last_token = torch.arange(n_cmp, device=self.q.device) * geo.d + geo.l - 1
        bias = self.bias(last_token > self.positions(t0, t1)[:, None])
        return self._dense(self.k_cmp[:, :, :n_cmp], self.v_cmp[:, :, :n_cmp], bias, t0, t1)

    def window_tile(self, t0: int, t1: int) -> _Tile:
        first = max(t0 - self.geometry.w + 1, 0)
        key, query = self.positions(first, t1), self.positions(t0, t1)[:, None]
        bias = self.bias((key > query) | (key <= query - self.geometry.w))
        return self._dense(self.k_win[:, :, first:t1], self.v_win[:, :, first:t1], bias, t0, t1)

    def selected_dense_tile(self, blocks: Tensor, t0: int, t1: int) -> _Tile:
        """All keys up to ``t1``, masked to ``blocks [B, G, T, n_sel]``."""
        geo = self.geometry
        bias = self.bias(self.positions(0, t1) > self.positions(t0, t1)[:, None])
        if t1 > geo.n_sel * geo.l_sel:
            n_blocks = geo.n_blocks(t1)
            # Slot n_blocks takes the -1 entries and is dropped again.
            slot = torch.where(blocks < 0, n_blocks, blocks).long()
            skipped = self.q.new_full((*blocks.shape[:-1], n_blocks + 1), float("-inf"))
            skipped = skipped.scatter_(-1, slot, 0.0)[..., :n_blocks]
            bias = (skipped.repeat_interleave(geo.l_sel, dim=-1)[..., :t1] + bias)[:, :, None]
        return self._dense(self.k_sel[:, :, :t1], self.v_sel[:, :, :t1], bias, t0, t1)

    def selected_gather_tile(self, blocks: Tensor, t0: int, t1: int) -> tuple[_Tile, Tensor]:
        """Each query against its own blocks; also the flat block rows that were gathered, ``[B * G * T * n_sel]``."""
        B, G, R, _, Dk = self.q.shape
        geo, T = self.geometry, t1 - t0
        rows = self.gather_rows(blocks)
        width = geo.n_sel * geo.l_sel
        k = self.k_sel.view(-1, geo.l_sel * Dk).index_select(0, rows).view(B, G, T, width, Dk)
        v = self.v_sel.view(-1, geo.l_sel * self.v_sel.shape[-1]).index_select(0, rows).view(B, G, T, width, -1)
        in_block = torch.arange(geo.l_sel, device=blocks.device)
        position = (blocks[..., None] * geo.l_sel + in_block).view(B, G, T, width)
        empty = (blocks < 0).repeat_interleave(geo.l_sel, dim=-1)
        bias = self.bias(empty | (position > self.positions(t0, t1)[:, None]))[:, :, :, None]
        q = self.q[:, :, :, t0:t1].transpose(2, 3)
        return _Tile(q, k, v, bias, (B, G, T, R, width)), rows

    def gather_rows(self, blocks: Tensor) -> Tensor:
        """Row of each chosen block in keys viewed as ``[B * G * n_blocks, l_sel * D]``; -1 reads block 0."""
        B, G = blocks.shape[:2]
        n_blocks = self.k_sel.shape[2] // self.geometry.l_sel
        base = torch.arange(B * G, device=blocks.device).view(B, G, 1, 1) * n_blocks
        return (blocks.clamp(min=0) + base).flatten()

    def gather_chunks(self, t0: int, t1: int) -> Iterator[tuple[int, int]]:
        """Split a chunk so that the gathered keys and values stay within the same budget as scores."""
        geo = self.geometry
        per_query = (
            self.q.shape[0] * self.q.shape[1] * geo.n_sel * geo.l_sel * (self.q.shape[-1] + self.v_sel.shape[-1])
        )
        step = max(_budget(self.q.device) // per_query, 1)
        for start in range(t0, t1, step):
            yield start, min(start + step, t1)

    def uses_dense(self, t1: int) -> bool:
        return t1 <= _DENSE_REACH * self.geometry.n_sel * self.geometry.l_sel

    def select(self, p: Tensor | None, t0: int, t1: int) -> Tensor:
        """Selection of a chunk, ``[B, G, T, n_sel]``, from its compressed attention (rows from ``l - 1`` on)."""
        B, G, R = self.q.shape[:3]
        query = self.positions(t0, t1)
        if p is None or t1 <= self.geometry.n_sel * self.geometry.l_sel:
            return all_visible_blocks(query, self.geometry).expand(B, G, t1 - t0, -1)
        group = p.view(B, G, R, -1, p.shape[-1]).sum(2)
        group = F.pad(group, (0, 0, t1 - t0 - group.shape[2], 0))
        return select_blocks(block_scores(group, self.geometry.n_blocks(t1), self.geometry), query, self.geometry)


def _budget(device: torch.device) -> int:
    return _CHUNK_ELEMENTS["cpu" if device.type == "cpu" else "other"]


def _chunk_length(seq_len: int, heads: int, geometry: Geometry, device: torch.device) -> int:
    """Queries per chunk such that the widest scores of a chunk fit the budget, in steps of 16."""
    widest = max(
        min(seq_len, _DENSE_REACH * geometry.n_sel * geometry.l_sel),
        geometry.n_compressed(seq_len),
        min(seq_len, geometry.w),
        1,
    )
    return max(_budget(device) // (heads * widest) // 16 * 16, 16)


def _grouped(x_BSHD: Tensor, groups: int) -> Tensor:
    B, S, H, D = x_BSHD.shape
    dtype = compute_dtype(x_BSHD.dtype)
    return x_BSHD.to(dtype).view(B, S, groups, H // groups, D).permute(0, 2, 3, 1, 4).contiguous()


def _keys(x_BSGD: Tensor, pad: int = 0) -> Tensor:
    x = x_BSGD.to(compute_dtype(x_BSGD.dtype)).transpose(1, 2)
    return F.pad(x, (0, 0, 0, pad)) if pad else x.contiguous()


def _ungrouped(x_BGRTD: Tensor) -> Tensor:
    B, G, R, T, D = x_BGRTD.shape
    return x_BGRTD.permute(0, 3, 1, 2, 4).reshape(B, T, G * R, D)


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
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        problem = _problem((q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win), geometry, scale, chunk)
        outputs = _forward(problem)
        ctx.save_for_backward(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, outputs.blocks)
        ctx.settings = (geometry, scale, chunk)
        ctx.mark_non_differentiable(outputs.blocks)
        return tuple(outputs)  # type: ignore[return-value]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, blocks = ctx.saved_tensors
        geometry, scale, chunk = ctx.settings
        with torch.autocast(device_type=blocks.device.type, enabled=False):
            problem = _problem(tuple(inputs), geometry, scale, chunk)
            found = _backward(problem, blocks, grads[:3])
        dq, *dkv = found
        out = [_ungrouped(dq * scale).to(inputs[0].dtype)]
        for grad, source in zip(dkv, inputs[1:], strict=True):
            out.append(grad[:, :, : source.shape[1]].transpose(1, 2).to(source.dtype))
        return (*out, None, None, None)


def _problem(inputs: tuple[Tensor, ...], geometry: Geometry, scale: float, chunk: int | None) -> _Problem:
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win = inputs
    _, S, H, _ = q.shape
    pad = geometry.n_blocks(S) * geometry.l_sel - S
    return _Problem(
        _grouped(q, k_sel.shape[2]) * scale,
        _keys(k_cmp),
        _keys(v_cmp),
        _keys(k_sel, pad),
        _keys(v_sel, pad),
        _keys(k_win),
        _keys(v_win),
        geometry,
        S,
        chunk or _chunk_length(S, q.shape[0] * H, geometry, q.device),
    )


def _forward(problem: _Problem) -> Branches:
    B, G, R, S, _ = problem.q.shape
    Dv = problem.v_sel.shape[-1]
    o_cmp, o_sel, o_win = (problem.q.new_zeros(B, S, G, R, Dv) for _ in range(3))
    blocks = torch.empty(B, S, G, problem.geometry.n_sel, dtype=torch.int32, device=problem.q.device)

    def store(out: Tensor, o: Tensor, t0: int, t1: int) -> None:  # o: [B, G, R * T, Dv]
        out[:, t0:t1] = o.view(B, G, R, t1 - t0, Dv).permute(0, 3, 1, 2, 4)

    for t0, t1 in problem.chunks():
        first = max(t0, problem.geometry.l - 1)
        p = None
        if first < t1:
            with span("nsa.cmp"):
                tile = problem.compressed_tile(first, t1)
                p = tile.probabilities()
                store(o_cmp, p @ tile.v, first, t1)
        with span("nsa.sel.ranges_v2"):
            chosen = problem.select(p, t0, t1)
            blocks[:, t0:t1] = chosen.transpose(1, 2)
        del p
        with span("nsa.sel"):
            if problem.uses_dense(t1):
                tile = problem.selected_dense_tile(chosen, t0, t1)
                store(o_sel, tile.probabilities() @ tile.v, t0, t1)
            else:
                for g0, g1 in problem.gather_chunks(t0, t1):
                    tile, _ = problem.selected_gather_tile(chosen[:, :, g0 - t0 : g1 - t0], g0, g1)
                    o_sel[:, g0:g1] = (tile.probabilities() @ tile.v).transpose(1, 2)
        with span("nsa.win"):
            tile = problem.window_tile(t0, t1)
            store(o_win, tile.probabilities() @ tile.v, t0, t1)
    o_cmp, o_sel, o_win = (o.view(B, S, G * R, Dv) for o in (o_cmp, o_sel, o_win))
    return Branches(o_cmp, o_sel, o_win, blocks)


def _backward(problem: _Problem, blocks: Tensor, grads: tuple[Tensor, ...]) -> list[Tensor]:
    """Gradients of the seven inputs in grouped layout; that of ``q`` is still to be multiplied by the scale."""
    B, G, R, _, Dk = problem.q.shape
    do_cmp, do_sel, do_win = (_grouped(g, G).to(problem.q.dtype) for g in grads)
    sources = (problem.q, problem.k_cmp, problem.v_cmp, problem.k_sel, problem.v_sel, problem.k_win, problem.v_win)
    dq, dk_cmp, dv_cmp, dk_sel, dv_sel, dk_win, dv_win = out = [torch.zeros_like(x) for x in sources]

    def dense(tile: _Tile, do: Tensor, dk: Tensor, dv: Tensor, t0: int, t1: int) -> None:
        gq, gk, gv = tile.backward(do[:, :, :, t0:t1].reshape(B, G, R * (t1 - t0), -1))
        dq[:, :, :, t0:t1] += gq.view(B, G, R, t1 - t0, Dk)
        dk += gk
        dv += gv

    for t0, t1 in problem.chunks():
        first = max(t0, problem.geometry.l - 1)
        if first < t1:
            n_cmp = problem.geometry.n_visible(t1 - 1)
            with span("nsa.cmp.backward"):
                tile = problem.compressed_tile(first, t1)
                dense(tile, do_cmp, dk_cmp[:, :, :n_cmp], dv_cmp[:, :, :n_cmp], first, t1)
        chosen = blocks[:, t0:t1].transpose(1, 2)
        with span("nsa.sel.backward"):
            if problem.uses_dense(t1):
                tile = problem.selected_dense_tile(chosen, t0, t1)
                dense(tile, do_sel, dk_sel[:, :, :t1], dv_sel[:, :, :t1], t0, t1)
            else:
                _backward_gather(problem, chosen, do_sel, (dq, dk_sel, dv_sel), t0, t1)
        with span("nsa.win.backward"):
            key0 = max(t0 - problem.geometry.w + 1, 0)
            dense(problem.window_tile(t0, t1), do_win, dk_win[:, :, key0:t1], dv_win[:, :, key0:t1], t0, t1)
    return out


def _backward_gather(
    problem: _Problem, chosen: Tensor, do: Tensor, out: tuple[Tensor, Tensor, Tensor], t0: int, t1: int
) -> None:
    dq, dk, dv = out
    l_sel = problem.geometry.l_sel
    dk_rows, dv_rows = (x.view(-1, l_sel * x.shape[-1]) for x in (dk, dv))
    for g0, g1 in problem.gather_chunks(t0, t1):
        tile, rows = problem.selected_gather_tile(chosen[:, :, g0 - t0 : g1 - t0], g0, g1)
        gq, gk, gv = tile.backward(do[:, :, :, g0:g1].transpose(2, 3))
        dq[:, :, :, g0:g1] += gq.transpose(2, 3)
        dk_rows.index_add_(0, rows, gk.reshape(rows.shape[0], -1))
        dv_rows.index_add_(0, rows, gv.reshape(rows.shape[0], -1))


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
) -> Branches:
    """The three branches and the selection, vectorized and differentiable once.

    Args:
        q: ``[B, S, H, Dk]``.
        k_cmp: ``[B, C, G, Dk]``, already compressed, as is ``v_cmp``; the other keys and values are ``[B, S, G, .]``.
        query_chunk: queries per chunk; None sizes chunks by a budget of scores.

    Returns:
        Branch outputs in compute precision (float64 for float64 inputs, else float32).
    """
    streams = (q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)
    return Branches(*_BatchedAttention.apply(*streams, geometry, scale, query_chunk))  # type: ignore[no-untyped-call]
