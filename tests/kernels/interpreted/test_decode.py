"""The decode kernels against the decode of torch, float32, tiny sizes."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from nsa.attention import NSAAttention
from nsa.attention.cache import NSACache
from nsa.attention.compress import average_compress
from nsa.attention.decode import decode_branches
from nsa.attention.dispatch import fallback_counters, reset_fallback_counters
from nsa.attention.functional import combine
from nsa.attention.geometry import Geometry
from nsa.kernels import resident, step
from tests.kernels.interpreted.together import run_together

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Case(NamedTuple):
    B: int
    S: int
    H: int
    G: int
    Dk: int
    Dv: int
    geometry: Geometry


CASES = {
    "grouped heads": Case(2, 52, 4, 2, 16, 32, Geometry(l=4, d=2, l_sel=8, n_sel=5, w=12)),
    "keys in two parts, one head per group, block of no power of two": Case(
        1, 65, 2, 2, 48, 16, Geometry(l=8, d=4, l_sel=12, n_sel=4, w=20)
    ),
    "more blocks than one chunk": Case(1, 76, 3, 1, 16, 16, Geometry(l=2, d=2, l_sel=2, n_sel=6, w=5)),
    "no scored blocks": Case(1, 30, 2, 1, 16, 16, Geometry(l=8, d=4, l_sel=8, n_sel=3, w=9)),
}


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def new_streams(case: Case, t: int) -> list[Tensor]:
    """The six streams at position t."""
    widths = (case.Dk, case.Dv) * 3
    return [random(case.B, 1, case.G, n, seed=7 * t + i) for i, n in enumerate(widths)]


def empty(case: Case) -> NSACache:
    return NSACache(
        geometry=case.geometry, batch=case.B, max_len=case.S, n_kv_groups=case.G, d_k=case.Dk, d_v=case.Dv,
        device="cpu", dtype=torch.float32,
    )  # fmt: skip


def average(k: Tensor, v: Tensor, geo: Geometry) -> tuple[Tensor, Tensor]:
    return average_compress(k, l=geo.l, d=geo.d), average_compress(v, l=geo.l, d=geo.d)


def append(cache: NSACache, new: list[Tensor], lengths: Tensor) -> None:
    geo = cache.geometry
    step.decode_append(
        new, cache.k_raw, cache.v_raw, cache.k_cmp, cache.v_cmp, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win,
        lengths, geo.l, geo.d,
    )  # fmt: skip


def attention(q: Tensor, gates: Tensor, cache: NSACache, lengths: Tensor) -> tuple[Tensor, Tensor]:
    geo = cache.geometry
    sizes = [geo.l, geo.d, geo.l_sel, geo.n_sel, geo.w]
    streams = (cache.k_cmp, cache.v_cmp, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win)
    return step.decode_attention(q, gates, *streams, lengths, sizes, 0.2)


def in_one_launch(
    q: Tensor, gates: Tensor, new: list[Tensor], cache: NSACache, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    geo = cache.geometry
    caches = (cache.k_raw, cache.v_raw, cache.k_cmp, cache.v_cmp, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win)
    sizes = [geo.l, geo.d, geo.l_sel, geo.n_sel, geo.w]
    return step.decode_step(q, gates, new, *caches, lengths, cache.arrivals, sizes, 0.2)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_step_equals_the_decode_of_torch(name: str, *, together: bool) -> None:
    case = CASES[name]
    geo = case.geometry
    fused, plain = empty(case), empty(case)
    lengths = torch.zeros(case.B, case.G, dtype=torch.int32)
    assert step.why_no_decode(
        torch.zeros(case.B, 1, case.H, case.Dk), fused, sizes=(geo.l, geo.d, geo.l_sel, geo.n_sel, geo.w)
    ) is None  # fmt: skip
    for t in range(case.S):
        new = new_streams(case, t)
        plain.append(tuple(new), lambda k, v: average(k, v, geo))
        attends = t % 11 == 0 or t >= case.S - 2  # every step is stored, every eleventh and the last ones attend
        q, gates = random(case.B, 1, case.H, case.Dk, seed=t), random(case.B, 1, case.H, 3, seed=-t - 1)
        if together and attends:
            o, top = in_one_launch(q, gates, new, fused, lengths)
        else:
            append(fused, new, lengths)
        if not attends:
            continue
        if not together:
            o, top = attention(q, gates, fused, lengths)
        branches = decode_branches(q, plain, scale=0.2)
        torch.testing.assert_close(o, combine(branches, gates), atol=1e-5, rtol=1e-4)
        own = t // geo.l_sel
        for chosen, wanted in zip(top.flatten(0, 2), branches.blocks.flatten(0, 2), strict=True):
            scored = sorted(set(wanted.tolist()) - {-1, 0, own, own - 1})
            assert sorted(j for j in chosen.tolist() if j >= 0) == scored
    assert lengths.tolist() == [[case.S] * case.G] * case.B
    for name in ("k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "k_raw", "v_raw"):
        torch.testing.assert_close(getattr(fused, name), getattr(plain, name))


def test_rows_of_different_length_are_as_if_alone() -> None:
    case = CASES["grouped heads"]
    together, lengths = empty(case), torch.zeros(2, case.G, dtype=torch.int32)
    q, gates = random(2, 1, case.H, case.Dk, seed=1), random(2, 1, case.H, 3, seed=2)
    for t in range(48):
        append(together, new_streams(case, t), lengths)
    alone = attention(q, gates, together, lengths)[0]
    shorter = torch.tensor([[48] * case.G, [23] * case.G], dtype=torch.int32)
    for name in ("k_win", "v_win"):  # the ring of the shorter row, as it was then
        ring, stream = getattr(together, name), 4 if name == "k_win" else 5
        for t in range(23):
            ring[1, t % case.geometry.w] = new_streams(case, t)[stream][1, 0]
    mixed = attention(q, gates, together, shorter)[0]
    torch.testing.assert_close(mixed[0], alone[0])
    plain = empty(case)
    for t in range(23):
        plain.append(tuple(new_streams(case, t)), lambda k, v: average(k, v, case.geometry))
    wanted = combine(decode_branches(q, plain, scale=0.2), gates)
    torch.testing.assert_close(mixed[1], wanted[1], atol=1e-5, rtol=1e-4)


def test_equal_scores_go_to_the_lower_block() -> None:
    case = CASES["more blocks than one chunk"]
    cache, lengths = empty(case), torch.zeros(1, case.G, dtype=torch.int32)
    for t in range(case.S):
        append(cache, new_streams(case, t), lengths)
    q = torch.zeros(1, 1, case.H, case.Dk)
    _, top = attention(q, torch.ones(1, 1, case.H, 3), cache, lengths)
    assert top.flatten().tolist() == [1, 2, 3]


def test_a_full_row_is_left_as_it_is() -> None:
    case = CASES["no scored blocks"]
    cache, lengths = empty(case), torch.full((1, case.G), case.S, dtype=torch.int32)
    before = cache.k_sel.clone()
    append(cache, new_streams(case, 0), lengths)
    assert torch.equal(cache.k_sel, before)
    assert lengths.tolist() == [[case.S] * case.G]


def test_the_layer_decodes_by_the_kernels_as_it_does_by_torch_and_counts_the_same_reads() -> None:
    torch.manual_seed(0)
    shape = {"dim": 32, "n_heads": 4, "n_kv_groups": 2, "d_k": 16, "d_v": 16, "l": 2, "d": 2, "l_sel": 4, "n_sel": 4}
    fused = NSAAttention(**shape, w=6, prefill="triton")  # type: ignore[arg-type]
    plain = NSAAttention(**shape, w=6, prefill="batched")  # type: ignore[arg-type]
    plain.load_state_dict(fused.state_dict())
    seen: dict[str, list[Tensor]] = {"fused": [], "plain": []}
    fused.recorder = lambda _, blocks: seen["fused"].append(blocks)
    plain.recorder = lambda _, blocks: seen["plain"].append(blocks)
    caches = [layer.init_cache(1, 22, device="cpu", dtype=torch.float32) for layer in (fused, plain)]
    reset_fallback_counters()
    for t in range(22):
        x = random(1, 1, 32, seed=t)
        a, b = (layer.decode(x, cache) for layer, cache in zip((fused, plain), caches, strict=True))
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        assert caches[0].last_reads == caches[1].last_reads
    assert fallback_counters() == {}
    for a, b in zip(seen["fused"], seen["plain"], strict=True):
        assert torch.equal(a, b.to(a.dtype))
    with pytest.raises(ValueError, match="23 positions exceed max_len=22"):
        fused.decode(random(1, 1, 32, seed=1), caches[0])


HELD = ("k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "k_raw", "v_raw")


@pytest.mark.parametrize("programs", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_programs_that_wait_for_each_other_equal_the_decode_of_torch(
    name: str, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    geo = case.geometry
    run_together(resident.step_kernel, monkeypatch)
    monkeypatch.setattr(step, "resident_shares", lambda *_, **__: programs)
    fused, plain = empty(case), empty(case)
    for t in range(case.S):
        new = new_streams(case, t)
        attends = t in {0, geo.l - 1, case.S // 2, case.S - 1}
        if attends:
            for held in HELD:
                getattr(fused, held).copy_(getattr(plain, held))
        plain.append(tuple(new), lambda k, v: average(k, v, geo))
        if not attends:
            continue
        lengths = torch.full((case.B, case.G), t, dtype=torch.int32)
        q, gates = random(case.B, 1, case.H, case.Dk, seed=t), random(case.B, 1, case.H, 3, seed=-t - 1)
        o, top = in_one_launch(q, gates, new, fused, lengths)
        branches = decode_branches(q, plain, scale=0.2)
        torch.testing.assert_close(o, combine(branches, gates), atol=1e-5, rtol=1e-4)
        assert scored(top, t, geo) == scored(branches.blocks, t, geo)
        assert (lengths == t + 1).all()
        # Every program arrives as often as every other one, whatever the number of steps.
        assert (fused.arrivals[..., 0] % programs == 0).all()
        for held in HELD:
            torch.testing.assert_close(getattr(fused, held), getattr(plain, held))


def scored(blocks: Tensor, t: int, geo: Geometry) -> list[list[int]]:
    """The blocks of each row but for none and the forced ones, ascending."""
    own = t // geo.l_sel
    return [sorted(set(row) - {-1, 0, own, own - 1}) for row in blocks.flatten(0, 2).tolist()]


@pytest.mark.parametrize("seed", [6, 33, 57])
def test_equal_scores_go_to_the_lower_block_also_in_tiles_of_different_maxima(seed: int) -> None:
    geo = Geometry(l=4, d=2, l_sel=4, n_sel=11, w=4)
    case = Case(1, 160, 2, 1, 16, 16, geo)
    cache = empty(case)
    generator = torch.Generator().manual_seed(seed)
    for held in HELD:
        # Whole numbers: no order of summation makes products of equal keys differ.
        getattr(cache, held).random_(-2, 3, generator=generator)
    # What scores a block: the compressed tokens that begin in it and the one before.
    same, keys = [3, 9, 15, 21, 27, 33], torch.zeros(3, 16).random_(-3, 4, generator=generator)
    for j in same:
        cache.k_cmp[0, 2 * j - 1 : 2 * j + 2, 0] = keys
    q = torch.zeros(1, 1, 2, 16).random_(-2, 3, generator=generator)
    _, top = attention(q, torch.ones(1, 1, 2, 3), cache, torch.full((1, 1), case.S, dtype=torch.int32))
    chosen = [j for j in top.flatten().tolist() if j in same]
    assert len(chosen) > 1
    assert chosen == same[: len(chosen)]
