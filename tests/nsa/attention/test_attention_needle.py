"""One key block planted among 65,536 positions is selected and read back, whatever its depth."""

from __future__ import annotations

import torch

from nsa.attention import Geometry, NSACache, nsa_attention
from nsa.attention.compress import average_compress
from nsa.attention.decode import decode_branches

SEQ_LEN, D, DEPTHS = 65_536, 16, 24
SIZES = {"l": 32, "d": 16, "l_sel": 64, "n_sel": 16, "w": 512}


def haystack() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[int]]:
    """Keys of noise with a needle at each depth: its own direction in the keys, its own number in the values."""
    rng = torch.Generator().manual_seed(0)
    n_blocks = SEQ_LEN // SIZES["l_sel"]
    needles = [round(i * (n_blocks - 1) / (DEPTHS - 1)) for i in range(DEPTHS)]
    directions = torch.nn.functional.normalize(torch.randn(DEPTHS, D, generator=rng), dim=-1)
    k = 0.3 * torch.randn(1, SEQ_LEN, 1, D, generator=rng)
    v = torch.randn(1, SEQ_LEN, 1, 1, generator=rng)
    for i, block in enumerate(needles):
        here = slice(64 * block, 64 * (block + 1))
        k[0, here, 0] += directions[i]
        v[0, here, 0] = 100.0 + i
    return k, v, directions, needles


def test_needle_by_decode() -> None:
    geometry = Geometry(**SIZES)
    k, v, directions, needles = haystack()
    cache = NSACache(
        geometry=geometry, batch=1, max_len=SEQ_LEN, n_kv_groups=1, d_k=D, d_v=1, device="cpu", dtype=torch.float32
    )
    cache.append((k, v, k, v, k, v), lambda *kv: tuple(average_compress(x, l=32, d=16) for x in kv))  # type: ignore[arg-type,return-value]
    for i, block in enumerate(needles):
        branches = decode_branches(60.0 * directions[i].view(1, 1, 1, D), cache, scale=1.0)
        assert block in branches.blocks[0, 0, 0].tolist(), f"depth {block} was not selected"
        assert abs(branches.o_sel.item() - (100.0 + i)) < 0.5, f"depth {block} was not read back"


def test_needle_by_prefill() -> None:
    """The last queries each look for one needle; all are found in one pass over the whole sequence."""
    k, v, directions, needles = haystack()
    q = torch.zeros(1, SEQ_LEN, 1, D)
    q[0, -DEPTHS:, 0] = 60.0 * directions
    gates = torch.tensor([0.0, 1.0, 0.0]).expand(1, SEQ_LEN, 1, 3)
    with torch.no_grad():
        o, aux = nsa_attention(q, k, v, k, v, k, v, gates, **SIZES, scale=1.0, impl="batched", return_aux=True)
    for i, block in enumerate(needles):
        row = SEQ_LEN - DEPTHS + i
        assert block in aux.blocks[0, row, 0].tolist(), f"depth {block} was not selected"
        assert abs(o[0, row, 0, 0].item() - (100.0 + i)) < 0.5, f"depth {block} was not read back"
