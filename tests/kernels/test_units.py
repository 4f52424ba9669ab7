"""Sizes, tile choice and the assembled selection, without launching anything."""

from __future__ import annotations

import pytest
import torch

from nsa.attention.dispatch import fallback_counters, reset_fallback_counters
from nsa.attention.functional import nsa_attention
from nsa.attention.geometry import Geometry
from nsa.kernels import nsa_attention_triton, why_unsupported
from nsa.kernels.api import selected_blocks
from nsa.kernels.config import HeadDims, split_head_dim


@pytest.mark.parametrize(
    ("dk", "dv", "expected"),
    [
        (64, 64, HeadDims(64, 0, 64)),
        (192, 128, HeadDims(128, 64, 128)),
        (256, 256, HeadDims(256, 0, 256)),
        (80, 80, HeadDims(64, 16, 128)),
        (100, 8, HeadDims(64, 64, 16)),
        (10, 10, HeadDims(16, 0, 16)),
    ],
)
def test_head_dimensions_grow_to_the_nearest_served(dk: int, dv: int, expected: HeadDims) -> None:
    if expected.dk1 == expected.dk0:
        expected = HeadDims(2 * expected.dk0, 0, expected.dv)
    assert split_head_dim(dk, dv) == expected


def test_forced_blocks_join_the_scored_ones_in_order() -> None:
    top = torch.full((1, 20, 1, 2), -1, dtype=torch.int32)
    top[0, 18, 0] = torch.tensor([2, 1])
    top[0, 14, 0] = torch.tensor([1, -1])
    blocks = selected_blocks(top, l_sel=4, n_sel=5)[0, :, 0].tolist()
    assert blocks[0] == [0, -1, -1, -1, -1]
    assert blocks[5] == [0, 1, -1, -1, -1]
    assert blocks[9] == [0, 1, 2, -1, -1]
    assert blocks[14] == [0, 1, 2, 3, -1]
    assert blocks[18] == [0, 1, 2, 3, 4]


def streams(H: int = 4, Dk: int = 16) -> list[torch.Tensor]:
    return [torch.zeros(1, 8, H, Dk)] + [torch.zeros(1, 8, 2, n) for n in (Dk, 16) * 3]


def test_without_cuda_the_batched_path_runs_and_is_counted() -> None:
    reset_fallback_counters()
    assert why_unsupported(*streams(), geometry=Geometry(), compressed=False) == "device"
    nsa_attention(*streams(), torch.zeros(1, 8, 4, 3), impl="triton")
    assert fallback_counters() == {"fb_triton_device": 1}
    reset_fallback_counters()


def test_a_scale_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scale=0\.0: must be positive"):
        nsa_attention_triton(*streams(), torch.zeros(1, 8, 4, 3), scale=0.0)
