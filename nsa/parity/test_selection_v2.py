"""The vectorized ranges equal the row-by-row ones on every kind of input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nsa.attention.ranges import ranges_v1, ranges_v2
from nsa.parity.cases import devices

L_SEL, SEQ_LEN, N_SEL = 16, 500, 8
PATTERNS: dict[str, list[int]] = {
    "random": [7, 2, 30, 11, 0, 19, 5, 23],
    "sequential": [0, 1, 2, 3, 4, 5, 6, 7],
    "adjacent_pairs": [0, 1, 5, 6, 12, 13, 30, 31],
    "duplicates": [4, 4, 4, 9, 9, 0, 0, 4],
    "gaps": [0, 4, 8, 12, 16, 20, 24, 28],
    "single_valid": [-1, -1, -1, 9, -1, -1, -1, -1],
    "empty_between": [3, -1, 4, -1, 5, -1, -1, 6],
    "all_invalid": [-1, -1, -1, -1, -1, -1, -1, -1],
    "very_negative": [-7, 2, -2147483648, 3, -2, 1, -3, 0],
    "out_of_range": [0, 31, 32, 40, 1000, 134217728, 2147483647, 30],
    "future": [31, 30, 29, 28, 27, 26, 25, 24],
    "partial_last_block": [31, 0, 31, 30, -1, -1, -1, 15],
    "descending": [12, 11, 10, 9, 8, 2, 1, 0],
}


def _both(blocks: Tensor, position: Tensor, device: str) -> tuple[Tensor, Tensor]:
    blocks, position = blocks.to(device), position.to(device)
    return (
        ranges_v1(blocks, position, l_sel=L_SEL, seq_len=SEQ_LEN),
        ranges_v2(blocks, position, l_sel=L_SEL, seq_len=SEQ_LEN),
    )


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("pattern", list(PATTERNS))
def test_equivalence_various_patterns(pattern: str, device: str) -> None:
    position = torch.arange(SEQ_LEN)
    blocks = torch.tensor(PATTERNS[pattern], dtype=torch.int32).expand(SEQ_LEN, 1, N_SEL)
    v1, v2 = _both(blocks, position, device)
    assert torch.equal(v1, v2)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("low", "high"), [(0, 32), (-3, 12), (-1, 3), (-1000, 1000)])
def test_equivalence_of_random_rows(low: int, high: int, device: str) -> None:
    rng = torch.Generator().manual_seed(0)
    blocks = torch.randint(low, high, (2, SEQ_LEN, 2, N_SEL), generator=rng, dtype=torch.int32)
    position = torch.randint(0, SEQ_LEN, (SEQ_LEN,), generator=rng)
    v1, v2 = _both(blocks, position, device)
    assert torch.equal(v1, v2)


def test_ranges_by_hand() -> None:
    """Merging, clamping to t + 1, and the order of the result, written out once."""
    blocks = torch.tensor([[[2, 0, 1, 2, -1, 5, 31, 99]]], dtype=torch.int32)
    want = [[0, 48], [80, 91], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0]]
    for got in _both(blocks, torch.tensor([90]), "cpu"):
        assert got[0, 0].tolist() == want
