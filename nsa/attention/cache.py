"""The caches of decoding, one per branch, and the count of keys that the latest step read.

The selected branch keeps every key and value. The window keeps the last ``w`` in a ring. The compressed branch keeps
the compressed tokens, and the last ``l`` raw ones in a ring, from which the next compressed token is made every
``d`` steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention.compress import Compress
from nsa.attention.geometry import Geometry, TokenReads

__all__ = ["NSACache"]


class NSACache:
    """Keys and values of up to ``max_len`` positions, rotated already, for one attention layer.

    Attributes:
        length: positions held.
        last_reads: what the latest decode step read, counted from the tensors that it read; None before the first. It
            equals :meth:`Geometry.reads` of its position.
    """

    def __init__(
        self,
        *,
        geometry: Geometry,
        batch: int,
        max_len: int,
        n_kv_groups: int,
        d_k: int,
        d_v: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        if batch < 1 or max_len < 1:
            raise ValueError(f"batch={batch}, max_len={max_len}: both must be at least 1")

        def pair(length: int) -> tuple[Tensor, Tensor]:
            k = torch.zeros(batch, length, n_kv_groups, d_k, device=device, dtype=dtype)
            return k, torch.zeros(batch, length, n_kv_groups, d_v, device=device, dtype=dtype)

        self.geometry, self.max_len, self.length = geometry, max_len, 0
        self.k_sel, self.v_sel = pair(max_len)
        self.k_win, self.v_win = pair(min(geometry.w, max_len))
        self.k_raw, self.v_raw = pair(geometry.l)
        self.k_cmp, self.v_cmp = pair(geometry.n_compressed(max_len))
        # What the programs of a fused decode step count their arrivals in, a cache line per row and group.
        self.arrivals = torch.zeros(batch, n_kv_groups, 32, device=device, dtype=torch.int32)
        self.last_reads: TokenReads | None = None

    @property
    def n_compressed(self) -> int:
        """Compressed tokens held."""
        return self.geometry.n_compressed(self.length)

    def check_room(self, added: int) -> None:
        """Raise ValueError if ``added`` further positions would exceed ``max_len``."""
        end = self.length + added
        if end > self.max_len:
            raise ValueError(
                f"cache: {end} positions exceed max_len={self.max_len}; create it with init_cache(max_len)"
            )

    def append(self, streams: tuple[Tensor, ...], compress: Compress) -> None:
        """Add S new positions: ``(k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)``, each ``[B, S, G, .]``, not yet
        compressed.

        Raises:
            ValueError: the cache would exceed ``max_len``.
        """
        k_raw, v_raw, k_sel, v_sel, k_win, v_win = streams
        added = k_sel.shape[1]
        self.check_room(added)
        start, end = self.length, self.length + added
        self.k_sel[:, start:end], self.v_sel[:, start:end] = k_sel, v_sel
        self._compress_new(k_raw, v_raw, end, compress)
        _ring_write(self.k_win, k_win, end)
        _ring_write(self.v_win, v_win, end)
        self.length = end

    def _compress_new(self, k_raw: Tensor, v_raw: Tensor, end: int, compress: Compress) -> None:
        """Make the compressed tokens that become complete, from raw ones kept and raw ones given."""
        geo, start = self.geometry, self.length
        # Most decode steps complete no block; every d-th one completes one, and a prompt many.
        have, want = geo.n_compressed(start), geo.n_compressed(end)
        if want > have:
            # Raw positions from the first new block's start; those before `start` come from the ring.
            first = have * geo.d
            old = torch.arange(first, start, device=k_raw.device) % geo.l
            k, v = (
                torch.cat([ring[:, old], new.to(ring.dtype)], dim=1)
                for ring, new in ((self.k_raw, k_raw), (self.v_raw, v_raw))
            )
            # With blocks apart (first > start) the leading raw tokens belong to no block.
            skip = max(first - start, 0)
            k_new, v_new = compress(k[:, skip:], v[:, skip:])
            self.k_cmp[:, have:want], self.v_cmp[:, have:want] = k_new, v_new
        _ring_write(self.k_raw, k_raw, end)
        _ring_write(self.v_raw, v_raw, end)

    def window(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the last ``min(w, length)`` positions, in the order of the ring."""
        held = min(self.length, self.k_win.shape[1])
        return self.k_win[:, :held], self.v_win[:, :held]


def _ring_write(ring: Tensor, new: Tensor, end: int) -> None:
    """Store the last positions of ``new``, which ends at ``end``, each at its position modulo the ring's length."""
    kept = min(new.shape[1], ring.shape[1])
    slot = torch.arange(end - kept, end, device=ring.device) % ring.shape[1]
    ring[:, slot] = new[:, new.shape[1] - kept :].to(ring.dtype)
