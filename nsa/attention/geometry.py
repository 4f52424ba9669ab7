"""The integers of Native Sparse Attention and the block arithmetic that follows from them.

Everything here is plain arithmetic on Python integers, so that the torch paths, the kernels, the decode cache and
the FLOP counts share one statement of which block sees what. Source: arXiv 2502.11089, sections 3.2 and 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Geometry", "TokenReads"]


@dataclass(frozen=True)
class TokenReads:
    """Keys read by one decode step for one batch row and group, by branch."""

    cmp: int
    sel: int
    win: int

    @property
    def total(self) -> int:
        """Sum over the branches."""
        return self.cmp + self.sel + self.win


@dataclass(frozen=True)
class Geometry:
    """Block sizes of the three branches, in tokens (``n_sel`` in blocks).

    Args:
        l: length of a compression block.
        d: stride between compression blocks; divides ``l`` and ``l_sel``.
        l_sel: length of a selection block, at least ``l``.
        n_sel: blocks selected per query and group, the forced ones included.
        w: length of the sliding window, the query's own position included.

    Raises:
        ValueError: a size is not positive, or ``d`` does not divide ``l`` and ``l_sel``, or ``l > l_sel``.
    """

    l: int = 32  # noqa: E741 - the paper's symbol
    d: int = 16
    l_sel: int = 64
    n_sel: int = 16
    w: int = 512

    def __post_init__(self) -> None:
        for name in ("l", "d", "l_sel", "n_sel", "w"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r}: must be a positive integer")
        for name in ("l", "l_sel"):
            if getattr(self, name) % self.d:
                raise ValueError(f"{name}={getattr(self, name)}: must be a multiple of d={self.d}")
        if self.l > self.l_sel:
            raise ValueError(f"l={self.l}: must not exceed l_sel={self.l_sel}")

    def n_compressed(self, seq_len: int) -> int:
        """Number of complete compression blocks in ``seq_len`` tokens."""
        return 0 if seq_len < self.l else (seq_len - self.l) // self.d + 1

    def n_visible(self, t: int) -> int:
        """Number of compressed tokens that the query at position ``t`` may see: all of each block is at or before t."""
        return self.n_compressed(t + 1)

    def n_blocks(self, seq_len: int) -> int:
        """Number of selection blocks that start within ``seq_len`` tokens; the last one may be partial."""
        return -(-seq_len // self.l_sel)

    def overlap_weights(self) -> tuple[int, ...]:
        """Tokens, in units of ``d``, that a selection block shares with each compression block that touches it.

        Entry ``k`` belongs to compression block ``j * l_sel // d + k + self.first_overlap`` for selection block
        ``j``. With the defaults this is (1, 2, 2, 2, 1) on blocks 4j-1 to 4j+3 (paper eq. 9, counted from zero).
        """
        offsets = range(self.first_overlap, self.l_sel // self.d)
        return tuple((min(k * self.d + self.l, self.l_sel) - max(k * self.d, 0)) // self.d for k in offsets)

    @property
    def first_overlap(self) -> int:
        """Index, relative to ``j * l_sel // d``, of the first compression block that overlaps selection block j."""
        return 1 - self.l // self.d

    def forced_blocks(self, t: int) -> tuple[int, ...]:
        """Blocks that the query at ``t`` always selects, without duplicates, in order of priority.

        The block that holds ``t`` comes first, then block 0, then the block before ``t``'s. The order matters only
        when ``n_sel`` is smaller than three.
        """
        own = t // self.l_sel
        wanted = (own, 0, max(own - 1, 0))
        return tuple(dict.fromkeys(wanted))[: self.n_sel]

    def reads(self, t: int) -> TokenReads:
        """Keys that the decode step for position ``t`` reads, exactly, for one batch row and group.

        Complete compressed blocks; ``n_sel`` blocks or as many as exist, of which the query's own ends at ``t``; the
        window.
        """
        own = t // self.l_sel
        selected = (min(self.n_sel, own + 1) - 1) * self.l_sel + t - own * self.l_sel + 1
        return TokenReads(cmp=self.n_visible(t), sel=selected, win=min(self.w, t + 1))

    def published_reads(self, n_tokens: int) -> int:
        """The paper's count of keys read by one decode step with ``n_tokens`` in context (section 5.2, table 4), an
        upper bound of :meth:`reads`.

        ``n_tokens / d + n_sel * l_sel + w``: it takes one compressed token for every ``d`` tokens. The last ``l/d -
        1`` of those blocks are not complete yet, so with the defaults it is one more than what is read; selected and
        window tokens are counted up to what the context holds.
        """
        return n_tokens // self.d + min(self.n_sel * self.l_sel, n_tokens) + min(self.w, n_tokens)
