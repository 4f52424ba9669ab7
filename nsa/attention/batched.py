"""The vectorized torch path: whole chunks of queries at a time, on any device, with bounded memory.

Queries are taken in chunks and scores live only inside a chunk; the backward pass computes them again. So nothing of
size S x S or S x C outlasts its chunk, and a 65,536-token sequence trains in ordinary memory. The
selected branch has two ways to reach its keys: early chunks multiply with every visible key and mask, later ones go
by pairs of query and block (:mod:`nsa.attention.gathered`), at a cost that is the same for every position.

Tensors inside this module are grouped: ``q`` is ``[B, G, R, T, D]`` with R = H/G heads per group, keys are
``[B, G, N, D]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.attention.compress import compute_dtype
from nsa.attention.gathered import BlockPairs, group_pairs, paired_backward, paired_forward
from nsa.attention.geometry import Geometry
from nsa.attention.select import all_visible_blocks, block_scores, select_blocks
from nsa.attention.spans import span

__all__ = ["Branches", "batched_branches"]

# Elements of the largest tensor of a chunk. On the CPU scores should stay in the last-level cache; a GPU wants large
# products. Pairs want many queries per chunk everywhere, since only queries of one chunk share the reading of a block.
_CHUNK_ELEMENTS = {"cpu": 1 << 20, "other": 1 << 26}
_PAIR_ELEMENTS = {"cpu": 1 << 23, "other": 1 << 26}
# Up to this many times n_sel * l_sel visible keys, one masked product beats sorting pairs by block.
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
    pair_chunk: int

    def chunks(self) -> list[tuple[int, int]]:
        return _cut(0, self.seq_len, self.chunk)

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

    def selected_pairs(self, blocks: Tensor, t0: int, t1: int) -> tuple[BlockPairs, Tensor]:
        """The (query, block) pairs of a chunk, and the bias ``[rows, n_sel * l_sel]`` of their keys."""
        B, G, R = self.q.shape[:3]
        geo = self.geometry
        n_blocks = self.k_sel.shape[2] // geo.l_sel
        base = torch.arange(B * G, device=blocks.device).view(B, G, 1, 1) * n_blocks
        # An empty place reads block 0 and hides all of it.
        flat = (blocks.clamp(min=0) + base).flatten()
        pairs = group_pairs(flat, n=geo.n_sel, n_blocks=B * G * n_blocks, heads=R)
        in_block = torch.arange(geo.l_sel, device=blocks.device)
        position = blocks[..., None] * geo.l_sel + in_block
        hidden = (blocks < 0)[..., None] | (position > self.positions(t0, t1)[:, None, None])
        return pairs, self.bias(hidden.reshape(-1, geo.n_sel * geo.l_sel))

    def rows(self, x: Tensor, t0: int, t1: int) -> Tensor:
        """Part of ``[B, G, R, S, D]`` as ``[B * G * T, R, D]``, the layout of pairs."""
        return x[:, :, :, t0:t1].transpose(2, 3).flatten(0, 2)

    def selected_blocks(self, x: Tensor) -> Tensor:
        """Padded keys ``[B, G, N, D]`` as ``[all blocks, l_sel, D]``; a view, so gradients can be added to it."""
        return x.view(-1, self.geometry.l_sel, x.shape[-1])

    def selected_chunks(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Chunks of the selected branch: those that mask all visible keys, and those that go by pairs."""
        reach = min(_DENSE_REACH * self.geometry.n_sel * self.geometry.l_sel, self.seq_len)
        return _cut(0, reach, self.chunk), _cut(reach, self.seq_len, self.pair_chunk)

    def select(self, p: Tensor | None, t0: int, t1: int) -> Tensor:
        """Selection of a chunk, ``[B, G, T, n_sel]``, from its compressed attention (rows from ``l - 1`` on)."""
        B, G, R = self.q.shape[:3]
        query = self.positions(t0, t1)
        if p is None or t1 <= self.geometry.n_sel * self.geometry.l_sel:
            return all_visible_blocks(query, self.geometry).expand(B, G, t1 - t0, -1)
        group = p.view(B, G, R, -1, p.shape[-1]).sum(2)
        group = F.pad(group, (0, 0, t1 - t0 - group.shape[2], 0))
        return select_blocks(block_scores(group, self.geometry.n_blocks(t1), self.geometry), query, self.geometry)


def _cut(start: int, stop: int, step: int) -> list[tuple[int, int]]:
    return [(t0, min(t0 + step, stop)) for t0 in range(start, stop, step)]


def _chunk_lengths(q: Tensor, Dv: int, geometry: Geometry) -> tuple[int, int]:
    """Queries per chunk such that the widest tensor fits the budget: of masked products, and of pairs."""
    B, S, H, Dk = q.shape
    kind = "cpu" if q.device.type == "cpu" else "other"
    selected = geometry.n_sel * geometry.l_sel
    widest = max(min(S, _DENSE_REACH * selected), geometry.n_compressed(S), min(S, geometry.w), 1)
    chunk = _CHUNK_ELEMENTS[kind] // (B * H * widest) // 16 * 16
    pair_chunk = _PAIR_ELEMENTS[kind] // (B * H * geometry.n_sel * max(geometry.l_sel, Dk, Dv))
    return max(chunk, 16), max(pair_chunk, 16)


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


def _problem(inputs: tuple[Tensor, ...], geometry: Geometry, scale: float, query_chunk: int | None) -> _Problem:
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win = inputs
    S = q.shape[1]
    pad = geometry.n_blocks(S) * geometry.l_sel - S
    chunk, pair_chunk = (query_chunk,) * 2 if query_chunk else _chunk_lengths(q, v_sel.shape[-1], geometry)
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
        chunk,
        pair_chunk,
    )


def _forward(problem: _Problem) -> Branches:
    B, G, R, S, _ = problem.q.shape
    Dv = problem.v_sel.shape[-1]
    o_cmp, o_sel, o_win = (problem.q.new_zeros(B, S, G, R, Dv) for _ in range(3))
    blocks = torch.empty(B, G, S, problem.geometry.n_sel, dtype=torch.int32, device=problem.q.device)

    def store(out: Tensor, tile: _Tile, p: Tensor, t0: int, t1: int) -> None:
        out[:, t0:t1] = (p @ tile.v).view(B, G, R, t1 - t0, Dv).permute(0, 3, 1, 2, 4)

    for t0, t1 in problem.chunks():
        first, p = max(t0, problem.geometry.l - 1), None
        if first < t1:
            with span("nsa.cmp"):
                tile = problem.compressed_tile(first, t1)
                p = tile.probabilities()
                store(o_cmp, tile, p, first, t1)
        with span("nsa.sel.ranges_v2"):
            blocks[:, :, t0:t1] = problem.select(p, t0, t1)
        del p
        with span("nsa.win"):
            tile = problem.window_tile(t0, t1)
            store(o_win, tile, tile.probabilities(), t0, t1)
    masked, paired = problem.selected_chunks()
    with span("nsa.sel"):
        for t0, t1 in masked:
            tile = problem.selected_dense_tile(blocks[:, :, t0:t1], t0, t1)
            store(o_sel, tile, tile.probabilities(), t0, t1)
        k, v = problem.selected_blocks(problem.k_sel), problem.selected_blocks(problem.v_sel)
        for t0, t1 in paired:
            pairs, bias = problem.selected_pairs(blocks[:, :, t0:t1], t0, t1)
            o = paired_forward(problem.rows(problem.q, t0, t1), k, v, pairs, bias)
            o_sel[:, t0:t1] = o.view(B, G, t1 - t0, R, Dv).transpose(1, 2)
    o_cmp, o_sel, o_win = (o.view(B, S, G * R, Dv) for o in (o_cmp, o_sel, o_win))
    return Branches(o_cmp, o_sel, o_win, blocks.transpose(1, 2).contiguous())


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
        with span("nsa.win.backward"):
            key0 = max(t0 - problem.geometry.w + 1, 0)
            dense(problem.window_tile(t0, t1), do_win, dk_win[:, :, key0:t1], dv_win[:, :, key0:t1], t0, t1)
    blocks = blocks.transpose(1, 2)
    masked, paired = problem.selected_chunks()
    with span("nsa.sel.backward"):
        for t0, t1 in masked:
            tile = problem.selected_dense_tile(blocks[:, :, t0:t1], t0, t1)
            dense(tile, do_sel, dk_sel[:, :, :t1], dv_sel[:, :, :t1], t0, t1)
        k, v, dk, dv = (problem.selected_blocks(x) for x in (problem.k_sel, problem.v_sel, dk_sel, dv_sel))
        for t0, t1 in paired:
            pairs, bias = problem.selected_pairs(blocks[:, :, t0:t1], t0, t1)
            q, do = problem.rows(problem.q, t0, t1), problem.rows(do_sel, t0, t1)
            gq = paired_backward(q, k, v, pairs, bias, do, dk, dv)
            dq[:, :, :, t0:t1] += gq.view(B, G, t1 - t0, R, Dk).transpose(2, 3)
    return out


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
