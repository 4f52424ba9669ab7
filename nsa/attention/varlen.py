"""Packed sequences as padded batches.

Sequences of similar length (within a factor of two) share a batch, so padding never more than doubles the work.
Nothing masks the padding: it follows each sequence, and attention is causal.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import torch
from torch import Tensor

__all__ = ["packed_batches", "scatter_packed", "sequence_positions"]


def _check_form(cu_seqlens: Tensor) -> None:
    if cu_seqlens.dim() != 1 or cu_seqlens.is_floating_point():
        raise ValueError(f"cu_seqlens: {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}, must be integers [n + 1]")


def _offsets(cu_seqlens: Tensor, batch: int, seq_len: int) -> list[int]:
    _check_form(cu_seqlens)
    if batch != 1:
        raise ValueError(f"cu_seqlens: batch is {batch}, packed sequences need a batch of 1")
    offsets: list[int] = cu_seqlens.tolist()
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != seq_len:
        raise ValueError(f"cu_seqlens={offsets}: must start with 0 and end with the sequence length {seq_len}")
    if any(b <= a for a, b in itertools.pairwise(offsets)):
        raise ValueError(f"cu_seqlens={offsets}: must increase strictly")
    return offsets


def packed_batches(cu_seqlens: Tensor, shape: torch.Size) -> list[Tensor]:
    """Group the sequences by length.

    Args:
        cu_seqlens: ``[n + 1]`` integer offsets, from 0 to S.
        shape: ``[1, S, ...]`` shape of the packed tensor.

    Returns:
        One ``[n_i, longest_i]`` int64 tensor per group: the packed position of each token, -1 for padding. Every
        position of the packed tensor occurs exactly once.
    """
    offsets = _offsets(cu_seqlens, shape[0], shape[1])
    groups: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for start, end in itertools.pairwise(offsets):
        groups[(end - start).bit_length()].append((start, end))
    batches = []
    for members in groups.values():
        longest = max(end - start for start, end in members)
        first = torch.tensor([start for start, _ in members], device=cu_seqlens.device)[:, None]
        stop = torch.tensor([end for _, end in members], device=cu_seqlens.device)[:, None]
        position = first + torch.arange(longest, device=cu_seqlens.device)
        batches.append(torch.where(position < stop, position, -1))
    return batches


def scatter_packed(indices: list[Tensor], parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Put padded results ``parts[i] [n_i, longest_i, ...]`` back at their packed places in ``shape [1, S, ...]``."""
    kept = [index >= 0 for index in indices]
    rows = torch.cat([part[keep] for part, keep in zip(parts, kept, strict=True)])
    order = torch.cat([index[keep] for index, keep in zip(indices, kept, strict=True)])
    return rows[torch.argsort(order)].view(shape)


def sequence_positions(cu_seqlens: Tensor, seq_len: int) -> Tensor:
    """Position of every packed token within its own sequence: ``[S]`` int64."""
    _check_form(cu_seqlens)
    offsets = cu_seqlens.to(torch.int64)
    token = torch.arange(seq_len, device=cu_seqlens.device)
    return token - offsets[torch.searchsorted(offsets, token, right=True) - 1]
