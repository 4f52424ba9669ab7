"""The decode kernels on a GPU in bfloat16: against torch, step by step after a prompt, and from a CUDA graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nsa.attention import NSAAttention
from nsa.attention.cache import NSACache
from nsa.attention.decode import decode_branches
from nsa.attention.dispatch import fallback_counters, reset_fallback_counters
from nsa.attention.functional import combine
from nsa.attention.geometry import Geometry
from nsa.kernels import step

pytestmark = pytest.mark.gpu

SHAPES = {"125M": (12, 2, 64, 64), "wide": (64, 4, 128, 128), "paper": (64, 4, 192, 128), "mha": (12, 12, 64, 64)}


def filled(shape: tuple[int, ...], *, batch: int, length: int) -> NSACache:
    _, G, Dk, Dv = shape
    cache = NSACache(
        geometry=Geometry(), batch=batch, max_len=length + 8, n_kv_groups=G, d_k=Dk, d_v=Dv, device="cuda",
        dtype=torch.bfloat16,
    )  # fmt: skip
    for name in ("k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "k_raw", "v_raw"):
        getattr(cache, name).normal_()
    cache.length = length
    return cache


def attention(q: Tensor, gates: Tensor, cache: NSACache, lengths: Tensor) -> tuple[Tensor, Tensor]:
    streams = (cache.k_cmp, cache.v_cmp, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win)
    o, top = step.decode_attention(q, gates, *streams, lengths, [32, 16, 64, 16, 512], q.shape[-1] ** -0.5)
    return o, top


@pytest.mark.parametrize("length", [1, 31, 200, 1500, 20_000])
@pytest.mark.parametrize("name", SHAPES)
def test_one_step_equals_torch(name: str, length: int) -> None:
    torch.manual_seed(length)
    H, _, Dk, _ = SHAPES[name]
    cache = filled(SHAPES[name], batch=2, length=length)
    q = torch.randn(2, 1, H, Dk, device="cuda", dtype=torch.bfloat16)
    gates = torch.rand(2, 1, H, 3, device="cuda")
    lengths = torch.full((2, SHAPES[name][1]), length, dtype=torch.int32, device="cuda")
    got, top = attention(q, gates, cache, lengths)
    branches = decode_branches(q, cache, scale=Dk**-0.5)
    wanted = combine(branches, gates).float()
    assert ((got.float() - wanted).norm() / wanted.norm()).item() <= 1e-2
    own = (length - 1) // 64
    for chosen, blocks in zip(top.flatten(0, 2).tolist(), branches.blocks.flatten(0, 2).tolist(), strict=True):
        # Equal but for a last place that may go to a block of almost the same score.
        assert len({j for j in chosen if j >= 0} - (set(blocks) - {-1, 0, own, own - 1})) <= 1


def test_a_layer_decodes_on_after_a_prompt_as_prefill_would() -> None:
    torch.manual_seed(0)
    layer = NSAAttention(dim=256, n_heads=12, n_kv_groups=2, d_k=64, d_v=64).cuda().bfloat16()
    x = torch.randn(1, 700, 256, device="cuda", dtype=torch.bfloat16)
    cache = layer.init_cache(1, 700, device="cuda", dtype=torch.bfloat16)
    reset_fallback_counters()
    with torch.no_grad():
        whole = layer(x)
        layer.fill(x[:, :600], cache)
        steps = torch.cat([layer.decode(x[:, t : t + 1], cache) for t in range(600, 700)], 1)
    assert fallback_counters() == {}
    error = (steps.float() - whole[:, 600:].float()).norm() / whole[:, 600:].float().norm()
    assert error.item() <= 2e-2


def test_a_captured_step_can_be_replayed_and_goes_on_by_itself() -> None:
    torch.manual_seed(0)
    H, G, Dk, Dv = SHAPES["125M"]
    caches = [filled(SHAPES["125M"], batch=1, length=1000) for _ in range(2)]
    for name in ("k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "k_raw", "v_raw"):
        getattr(caches[1], name).copy_(getattr(caches[0], name))
    q = torch.randn(1, 1, H, Dk, device="cuda", dtype=torch.bfloat16)
    gates = torch.rand(1, 1, H, 3, device="cuda")
    new = [torch.randn(1, 1, G, d, device="cuda", dtype=torch.bfloat16) for d in (Dk, Dv) * 3]

    def once(cache: NSACache, lengths: Tensor) -> Tensor:
        streams = (cache.k_cmp, cache.v_cmp, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win)
        step.decode_append(new, cache.k_raw, cache.v_raw, *streams, lengths, 32, 16)
        return attention(q, gates, cache, lengths)[0]

    plain = torch.full((1, G), 1000, dtype=torch.int32, device="cuda")
    wanted = [once(caches[0], plain).clone() for _ in range(4)]
    lengths = torch.full((1, G), 1000, dtype=torch.int32, device="cuda")
    once(filled(SHAPES["125M"], batch=1, length=1000), lengths.clone())  # compiled before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = once(caches[1], lengths)
    got = []
    for _ in range(4):
        graph.replay()
        got.append(o.clone())
    assert lengths.flatten().tolist() == [1004] * G
    for a, b in zip(got, wanted, strict=True):
        assert torch.equal(a, b)
