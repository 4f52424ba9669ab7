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
from nsa.kernels.cluster import why_no_cluster
from nsa.kernels.decode_plan import DecodeSizes
from nsa.kernels.precompile import Shape

pytestmark = pytest.mark.gpu

CACHES = ("k_raw", "v_raw", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win")
SHAPES = {"125M": (12, 2, 64, 64), "wide": (64, 4, 128, 128), "paper": (64, 4, 192, 128), "mha": (12, 12, 64, 64)}

BATCHES = [("125M", 1), ("125M", 8), ("wide", 8), ("paper", 3), ("mha", 3)]
STEPS = [
    Shape(20_100, *SHAPES[name], B=batch) for name, batch in [*BATCHES, *((name, 2) for name in SHAPES), ("125M", 150)]
]


def filled(shape: tuple[int, ...], *, batch: int, length: int, max_len: int = 20_100) -> NSACache:
    _, G, Dk, Dv = shape
    cache = NSACache(
        geometry=Geometry(), batch=batch, max_len=max_len, n_kv_groups=G, d_k=Dk, d_v=Dv, device="cuda",
        dtype=torch.bfloat16,
    )  # fmt: skip
    for name in CACHES:
        getattr(cache, name).normal_()
    cache.length = length
    return cache


def poison() -> None:
    """Fill memory that the allocator will hand out next with NaN."""
    blocks = [torch.full((n,), float("nan"), device="cuda") for n in (2**26, *[2**17] * 64)]
    del blocks


def attention(q: Tensor, gates: Tensor, cache: NSACache, lengths: Tensor) -> tuple[Tensor, Tensor]:
    streams = (cache.k_cmp, cache.v_cmp, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win)
    o, top = step.decode_attention(q, gates, *streams, lengths, [32, 16, 64, 16, 512], q.shape[-1] ** -0.5)
    return o, top


def one_launch(q: Tensor, gates: Tensor, new: list[Tensor], cache: NSACache, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """A step; the row's length grows by 1 on the device."""
    caches = [getattr(cache, name) for name in CACHES]
    o, top = step.decode_step(
        q, gates, new, *caches, lengths, cache.arrivals, [32, 16, 64, 16, 512], q.shape[-1] ** -0.5
    )
    return o, top


def query(shape: tuple[int, ...], batch: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Query, gates and a new position."""
    H, G, Dk, Dv = shape
    q = torch.randn(batch, 1, H, Dk, device="cuda", dtype=torch.bfloat16)
    new = [torch.randn(batch, 1, G, d, device="cuda", dtype=torch.bfloat16) for d in (Dk, Dv) * 3]
    return q, torch.rand(batch, 1, H, 3, device="cuda"), new


def sized(shape: tuple[int, ...], batch: int) -> tuple[Tensor, Tensor, DecodeSizes]:
    """A query, its gates and the sizes of its step."""
    q, gates, _ = query(shape, batch)
    cache = filled(shape, batch=batch, length=1)
    streams = (cache.k_cmp, cache.v_cmp, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win)
    return q, gates, step.sizes_of(q, streams, [32, 16, 64, 16, 512])


def assert_same(got: Tensor, top: Tensor, q: Tensor, gates: Tensor, cache: NSACache) -> None:
    """Output and selection against torch's decode of what ``cache`` holds."""
    branches = decode_branches(q, cache, scale=q.shape[-1] ** -0.5)
    wanted = combine(branches, gates).float()
    assert ((got.float() - wanted).norm() / wanted.norm()).item() <= 1e-2
    own = (cache.length - 1) // 64
    for chosen, blocks in zip(top.flatten(0, 2).tolist(), branches.blocks.flatten(0, 2).tolist(), strict=True):
        # Equal but for a last place that may go to a block of almost the same score.
        assert len({j for j in chosen if j >= 0} - (set(blocks) - {-1, 0, own, own - 1})) <= 1


@pytest.fixture(params=["clusters", "triton"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which kernels a step in one launch takes; clusters need compute capability 9.0."""
    if request.param == "triton":
        monkeypatch.setattr(step, "why_no_cluster", lambda *_: "test")
    elif torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("a GPU without thread block clusters")
    return str(request.param)


LENGTHS = [1, 31, 200, 1500, 20_000]


@pytest.mark.parametrize("name", SHAPES)
def test_one_step_equals_torch(name: str) -> None:
    cache = filled(SHAPES[name], batch=2, length=1)
    for length in LENGTHS:
        torch.manual_seed(length)
        cache.length = length
        q, gates, _ = query(SHAPES[name], 2)
        lengths = torch.full((2, SHAPES[name][1]), length, dtype=torch.int32, device="cuda")
        poison()
        assert_same(*attention(q, gates, cache, lengths), q, gates, cache)


@pytest.mark.parametrize(("name", "batch"), BATCHES)
def test_a_step_in_one_launch_stores_the_position_and_equals_torch(name: str, batch: int, by: str) -> None:
    if by == "clusters":
        assert why_no_cluster(*sized(SHAPES[name], batch)) == ("shared_memory" if name == "paper" else None)
    caches = [filled(SHAPES[name], batch=batch, length=1) for _ in range(2)]
    for kept in CACHES:
        getattr(caches[1], kept).copy_(getattr(caches[0], kept))
    for before in (0, 1, 30, 63, 64, 199, 511, 512, 1499, 20_047):
        torch.manual_seed(before)
        q, gates, new = query(SHAPES[name], batch)
        lengths, other = (torch.full((batch, SHAPES[name][1]), before, dtype=torch.int32, device="cuda") for _ in "ab")
        poison()
        o, top = one_launch(q, gates, new, caches[0], lengths)
        step.decode_append(new, *(getattr(caches[1], kept) for kept in CACHES), other, 32, 16)
        for kept in CACHES:
            assert torch.equal(getattr(caches[0], kept), getattr(caches[1], kept)), (kept, before)
        assert torch.equal(lengths, other)
        caches[1].length = before + 1
        assert_same(o, top, q, gates, caches[1])


@pytest.mark.usefixtures("by")
def test_a_thousand_steps_in_one_launch_are_the_same_every_time() -> None:
    # Nothing but the order of arrival differs between two runs; a result that does would be a race.
    torch.manual_seed(0)
    cache = filled(SHAPES["125M"], batch=8, length=19_000)
    q, gates, new = query(SHAPES["125M"], 8)
    lengths = torch.full((8, 2), 19_000, dtype=torch.int32, device="cuda")
    caches = [getattr(cache, name).clone() for name in CACHES]
    first = [one_launch(q, gates, new, cache, lengths)[0] for _ in range(1000)]
    assert bool((lengths == 20_000).all())
    for name, kept in zip(CACHES, caches, strict=True):
        getattr(cache, name).copy_(kept)
    lengths.fill_(19_000)
    for wanted in first:
        assert torch.equal(one_launch(q, gates, new, cache, lengths)[0], wanted)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.usefixtures("by")
def test_equal_scores_go_to_the_lower_block_also_in_tiles_of_different_maxima(*, together: bool) -> None:
    torch.manual_seed(0)
    H, G, D, _ = SHAPES["125M"]
    cache = filled(SHAPES["125M"], batch=1, length=20_000)
    q, gates, new = query(SHAPES["125M"], 1)
    q.random_(-2, 3)
    # Five compressed tokens score a block; these are the same in six blocks, and near the queries of their group. Whole
    # numbers: no order of summation makes products of equal keys differ.
    same = [3, 41, 97, 150, 215, 301]
    keys = q[0, 0].view(G, H // G, D).float().sum(1) + torch.zeros(5, G, D, device="cuda").random_(-1, 2)
    for j in same:
        cache.k_cmp[0, 4 * j - 1 : 4 * j + 4] = keys.to(cache.k_cmp.dtype)
    # In three of the tiles another block scores higher, each time by another measure.
    for j, times in ((44, 1.25), (102, 1.5), (220, 1.75)):
        cache.k_cmp[0, 4 * j + 1] = (keys[0] * times).to(cache.k_cmp.dtype)
    lengths = torch.full((1, G), 20_000 - together, dtype=torch.int32, device="cuda")
    _, top = one_launch(q, gates, new, cache, lengths) if together else attention(q, gates, cache, lengths)
    assert [[j for j in chosen if j in same] for chosen in top[0, 0].tolist()] == [same] * G


@pytest.mark.usefixtures("by")
def test_more_groups_than_processors() -> None:
    torch.manual_seed(0)
    rows = 150
    cache = filled(SHAPES["125M"], batch=rows, length=0, max_len=4000)
    q, gates, new = query(SHAPES["125M"], rows)
    lengths = torch.full((rows, 2), 3000, dtype=torch.int32, device="cuda")
    o, top = one_launch(q, gates, new, cache, lengths)
    cache.length = 3001
    assert_same(o, top, q, gates, cache)


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


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.usefixtures("by")
def test_a_captured_step_can_be_replayed_and_goes_on_by_itself(*, together: bool) -> None:
    torch.manual_seed(0)
    G = SHAPES["125M"][1]
    caches = [filled(SHAPES["125M"], batch=1, length=1000) for _ in range(2)]
    for name in CACHES:
        getattr(caches[1], name).copy_(getattr(caches[0], name))
    q, gates, new = query(SHAPES["125M"], 1)

    def once(cache: NSACache, lengths: Tensor) -> Tensor:
        if together:
            return one_launch(q, gates, new, cache, lengths)[0]
        step.decode_append(new, *(getattr(cache, name) for name in CACHES), lengths, 32, 16)
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
