"""What the batched path works on: the inputs in its layout, how queries are cut into chunks, and the tiles of each.

Keys are ``[B * G, N, D]``; whatever belongs to queries is ``[B * G, S * R, D]`` with R = H/G heads per group, so that
a chunk of queries is a slice of both. Keys, not queries, carry the scale: there are fewer of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.attention.compress import compute_dtype
from nsa.attention.gathered import BlockPairs, group_pairs
from nsa.attention.geometry import Geometry
from nsa.attention.ranges import RangesVersion, range_blocks, ranges_v1
from nsa.attention.select import all_visible_blocks, block_scores, select_blocks
from nsa.attention.tiles import Mask, Scratch, Tile, staircase

__all__ = ["Problem", "grouped", "prepare", "ungrouped"]

# Elements of the scores of a chunk. On the CPU they should stay in the caches next to the core; a GPU wants large
# products. Pairs want many queries per chunk everywhere, since only queries of one chunk share the reading of a block.
_CHUNK_ELEMENTS = {"cpu": 3 << 17, "other": 1 << 26}
_PAIR_ELEMENTS = {"cpu": 1 << 24, "other": 1 << 26}
# Up to this many times n_sel * l_sel visible keys, one masked product beats sorting pairs by block.
_DENSE_REACH = 2


@dataclass(frozen=True)
class Problem:
    """Inputs in compute precision and this module's layout; keys are scaled, and those of the selected branch padded
    to whole blocks."""

    shape: tuple[int, int, int, int]
    """B, S, G, R."""
    q: Tensor
    k_cmp: Tensor
    v_cmp: Tensor
    k_sel: Tensor
    v_sel: Tensor
    k_win: Tensor
    v_win: Tensor
    geometry: Geometry
    query_chunk: int | None
    sel_ranges: RangesVersion
    scratch: Scratch
    stairs: dict[tuple[int, int, int, bool], Tensor] = field(default_factory=dict)

    @property
    def seq_len(self) -> int:
        return self.shape[1]

    @property
    def budget(self) -> int:
        """Elements of scores that a chunk may have; what two cores take on, for every two cores."""
        if self.q.device.type != "cpu":
            return _CHUNK_ELEMENTS["other"]
        return _CHUNK_ELEMENTS["cpu"] * -(-torch.get_num_threads() // 2)

    def chunks(
        self, stop: int, n_visible: Callable[[int], int], *, growth: float = 1.0, longest: int | None = None
    ) -> list[tuple[int, int]]:
        """Cut the queries before ``stop``, fewer at a time where they see more keys, so that scores fit the budget.

        A chunk of T queries from t0 on has ``n_visible(t0) + growth * T`` keys.
        """
        budget = self.budget / (self.q.shape[0] * self.shape[3])
        cuts, t0 = [], 0
        while t0 < stop:
            n = n_visible(t0)
            # T * (n + growth * T) = budget, solved for T and rounded down to a multiple of 8.
            fits = int((math.sqrt(n * n + 4 * growth * budget) - n) / (2 * growth)) // 8 * 8
            step = self.query_chunk or max(min(fits, longest or fits), 16)
            cuts.append((t0, min(t0 + step, stop)))
            t0 += step
        return cuts

    def compressed_chunks(self) -> list[tuple[int, int]]:
        return self.chunks(self.seq_len, self.geometry.n_visible, growth=1 / self.geometry.d)

    def window_chunks(self) -> list[tuple[int, int]]:
        # Of w + T keys each query sees w: chunks longer than the window would mostly multiply with hidden ones.
        w = self.geometry.w
        return self.chunks(self.seq_len, lambda t: min(t, w - 1), longest=max(w, 64))

    def masked_chunks(self) -> list[tuple[int, int]]:
        """Chunks of the selected branch that multiply with all visible keys."""
        return self.chunks(self._reach(), lambda t: t)

    def paired_chunks(self) -> list[tuple[int, int]]:
        """Chunks of the selected branch computed by (query, block) pairs: their queries see more blocks than they
        select."""
        kind = "cpu" if self.q.device.type == "cpu" else "other"
        per_row = self.geometry.n_sel * max(self.q.shape[2], self.v_sel.shape[2])
        per_query = self.q.shape[0] * self.shape[3] * per_row
        step = self.query_chunk or max(_PAIR_ELEMENTS[kind] // per_query, 16)
        return [(t0, min(t0 + step, self.seq_len)) for t0 in range(self._reach(), self.seq_len, step)]

    def _reach(self) -> int:
        return min(_DENSE_REACH * self.geometry.n_sel * self.geometry.l_sel, self.seq_len)

    def positions(self, t0: int, t1: int) -> Tensor:
        return torch.arange(t0, t1, device=self.q.device)

    def stair(self, rows: int, columns: int, offset: int, *, below: bool = False) -> Tensor:
        """:func:`staircase`, made once for chunks that lie alike."""
        key = (rows, columns, offset, below)
        if key not in self.stairs:
            self.stairs[key] = staircase(self.k_sel, rows, columns, offset=offset, below=below)
        return self.stairs[key]

    def rows(self, x: Tensor, t0: int, t1: int) -> Tensor:
        """Queries ``t0`` to ``t1`` of ``x [B * G, S * R, D]``: a view."""
        R = self.shape[3]
        return x[:, t0 * R : t1 * R]

    def pair_rows(self, x: Tensor, t0: int, t1: int) -> Tensor:
        """The same as ``[B * G * T, R, D]``, the layout of pairs."""
        return self.rows(x, t0, t1).reshape(-1, self.shape[3], x.shape[-1])

    def _tile(
        self, k: Tensor, v: Tensor, masks: tuple[Mask, ...], t0: int, t1: int, block_bias: Tensor | None = None
    ) -> Tile:
        B, _, G, R = self.shape
        return Tile(self.rows(self.q, t0, t1), k, v, (B, G, t1 - t0, R), masks, block_bias)

    def compressed_tile(self, t0: int, t1: int) -> Tile:
        """Queries ``t0`` to ``t1`` against the compressed tokens that the last of them sees; needs ``t0 >= l - 1``."""
        geo = self.geometry
        all_see, n_cmp = geo.n_visible(t0), geo.n_visible(t1 - 1)
        last_token = torch.arange(all_see, n_cmp, device=self.q.device) * geo.d + geo.l - 1
        hidden = last_token > self.positions(t0, t1)[:, None]
        bias = torch.zeros_like(hidden, dtype=self.k_cmp.dtype).masked_fill_(hidden, float("-inf"))[:, None]
        return self._tile(self.k_cmp[:, :n_cmp], self.v_cmp[:, :n_cmp], (Mask(all_see, bias),), t0, t1)

    def window_tile(self, t0: int, t1: int) -> Tile:
        w, T = self.geometry.w, t1 - t0
        first = max(t0 - w + 1, 0)
        masks = [Mask(t0 - first, self.stair(T, T, 0))]
        if t1 > w + first:  # the last query no longer sees the first key
            masks.append(Mask(0, self.stair(T, t1 - w - first, t0 - w - first, below=True)))
        return self._tile(self.k_win[:, first:t1], self.v_win[:, first:t1], tuple(masks), t0, t1)

    def masked_tile(self, blocks: Tensor, t0: int, t1: int) -> Tile:
        """All keys up to ``t1``, masked to ``blocks [B, G, T, n_sel]``."""
        geo, T = self.geometry, t1 - t0
        if t1 <= geo.n_sel * geo.l_sel:  # every visible block is selected
            mask = Mask(t0, self.stair(T, T, 0))
            return self._tile(self.k_sel[:, :t1], self.v_sel[:, :t1], (mask,), t0, t1)
        n_blocks = geo.n_blocks(t1)
        n_keys = n_blocks * geo.l_sel
        # Slot n_blocks takes the -1 entries and is dropped again.
        slot = torch.where(blocks < 0, n_blocks, blocks).long()
        skipped = self.k_sel.new_full((*blocks.shape[:-1], n_blocks + 1), float("-inf"))
        skipped = skipped.scatter_(-1, slot, 0.0)[:, :, :, None, :n_blocks, None]
        mask = Mask(t0, self.stair(T, n_keys - t0, 0))
        return self._tile(self.k_sel[:, :n_keys], self.v_sel[:, :n_keys], (mask,), t0, t1, skipped)

    def pairs(self, blocks: Tensor, t0: int, t1: int) -> tuple[BlockPairs, Tensor]:
        """The (query, block) pairs of a chunk, and the last key that each row sees, counted through all blocks."""
        B, G, _, n = blocks.shape
        n_blocks = self.k_sel.shape[1] // self.geometry.l_sel
        base = torch.arange(B * G, device=blocks.device) * n_blocks
        flat = (blocks + base.view(B, G, 1, 1)).flatten()
        pairs = group_pairs(flat, n=n, n_blocks=B * G * n_blocks, heads=self.shape[3])
        last_key = base[:, None] * self.geometry.l_sel + self.positions(t0, t1)
        return pairs, last_key.flatten()

    def in_blocks(self, x: Tensor) -> Tensor:
        """Padded keys ``[B * G, N, D]`` as ``[all blocks, l_sel, D]``; a view, so gradients can be added to it."""
        return x.view(-1, self.geometry.l_sel, x.shape[-1])

    def select(self, p: Tensor | None, t0: int, t1: int) -> Tensor:
        """What a chunk reads in the selected branch, ``[B, G, T, n_sel]`` blocks, from its compressed attention.

        A selection is what its merged ranges say, so ``v1`` goes through them row by row. Ascending blocks without
        duplicates, which :func:`select_blocks` gives, are the same already: ``v2`` leaves them.
        """
        blocks = self._choose(p, t0, t1)
        if self.sel_ranges == "v2":
            return blocks
        l_sel, n_sel = self.geometry.l_sel, self.geometry.n_sel
        ranges = ranges_v1(blocks.transpose(1, 2), self.positions(t0, t1), l_sel=l_sel, seq_len=self.seq_len)
        return range_blocks(ranges, n=n_sel, l_sel=l_sel).transpose(1, 2)

    def _choose(self, p: Tensor | None, t0: int, t1: int) -> Tensor:
        """``p`` has the rows from ``l - 1`` on, or is None if there are none."""
        B, _, G, R = self.shape
        query = self.positions(t0, t1)
        if p is None or t1 <= self.geometry.n_sel * self.geometry.l_sel:
            return all_visible_blocks(query, self.geometry).expand(B, G, t1 - t0, -1)
        group = p.view(B, G, -1, R, p.shape[-1]).sum(3)
        group = F.pad(group, (0, 0, t1 - t0 - group.shape[2], 0))
        return select_blocks(block_scores(group, self.geometry.n_blocks(t1), self.geometry), query, self.geometry)


def grouped(x_BNMD: Tensor, out: Tensor, *, factor: float = 1.0) -> Tensor:
    """``[B, N, G * R, D]`` into ``out [B, G, at least N, R, D]``, times ``factor``, the rest zero; returns ``out`` as
    ``[B * G, N * R, D]``."""
    B, N, _, D = x_BNMD.shape
    _, G, _, R, _ = out.shape
    held = out[:, :, :N].copy_(x_BNMD.reshape(B, N, G, R, D).transpose(1, 2))
    if factor != 1.0:
        held.mul_(factor)
    out[:, :, N:].zero_()
    return out.view(B * G, -1, D)


def ungrouped(x: Tensor, like: Tensor) -> Tensor:
    """The first N positions of ``x [B * G, at least N * R, D]`` in the shape ``[B, N, G * R, D]`` of ``like``, and in
    the type of x."""
    B, N, M, D = like.shape
    G = x.shape[0] // B
    return x.view(B, G, -1, M // G, D)[:, :, :N].transpose(1, 2).reshape(B, N, M, D)


def prepare(
    inputs: tuple[Tensor, ...],
    geometry: Geometry,
    scale: float,
    query_chunk: int | None,
    sel_ranges: RangesVersion,
) -> Problem:
    """Bring ``q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win`` (keys and values of the compressed branch compressed
    already) into the layout of this module; ``query_chunk`` None cuts by memory."""
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win = inputs
    (B, S, H, Dk), G = q.shape, k_sel.shape[2]
    pad = geometry.n_blocks(S) * geometry.l_sel - S
    like = q.new_empty(0, dtype=compute_dtype(q.dtype))

    def keys(x_BNGD: Tensor, factor: float = 1.0, pad: int = 0) -> Tensor:
        _, N, _, D = x_BNGD.shape
        return grouped(x_BNGD, like.new_empty(B, G, N + pad, 1, D), factor=factor)

    return Problem(
        shape=(B, S, G, H // G),
        q=grouped(q, like.new_empty(B, G, S, H // G, Dk)),
        k_cmp=keys(k_cmp, scale),
        v_cmp=keys(v_cmp),
        k_sel=keys(k_sel, scale, pad),
        v_sel=keys(v_sel, pad=pad),
        k_win=keys(k_win, scale),
        v_win=keys(v_win),
        geometry=geometry,
        query_chunk=query_chunk,
        sel_ranges=sel_ranges,
        scratch=Scratch(like),
    )
