"""Hopper's own kernels of the forward pass, each against Triton's, with freed memory poisoned by NaN."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from benchmarks.kernels_device import SIZES, poison
from nsa.kernels import launch, problem
from nsa.kernels.hopper import combine, forward
from nsa.kernels.precompile import Shape
from nsa.kernels.problem import Problem

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_hopper")]

CASES = {
    "16 heads a group": (1, 1100, 32, 2, 128, 128, torch.bfloat16),
    "8 heads, two sequences, float16": (2, 3001, 16, 2, 128, 128, torch.float16),
    "6 heads, idle rows": (2, 2500, 12, 2, 64, 64, torch.bfloat16),
    "4 heads": (1, 4100, 32, 8, 128, 128, torch.bfloat16),
    "12 heads, narrow values": (1, 1500, 24, 2, 128, 64, torch.bfloat16),
    "5 heads": (1, 1700, 10, 2, 128, 64, torch.float16),
    "32 heads, length of whole tiles": (1, 1024, 64, 2, 64, 64, torch.bfloat16),
    "one head": (1, 1300, 4, 4, 64, 64, torch.float16),
    "keys of 192": (1, 2300, 32, 2, 192, 128, torch.bfloat16),
    "four blocks": (1, 257, 32, 2, 128, 128, torch.bfloat16),
    "one compressed token": (1, 40, 8, 2, 128, 128, torch.bfloat16),
    "long": (1, 16384, 32, 2, 128, 128, torch.bfloat16),
}
PROBLEMS = [Shape(S, H, G, Dk, Dv, dtype, B=B) for B, S, H, G, Dk, Dv, dtype in CASES.values()]
Streams = tuple[Tensor, ...]


@pytest.fixture(autouse=True)
def _slower_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_LEAST_HEADS", 1)
    monkeypatch.setattr(forward, "_LEAST_KEY_DIM", 0)
    monkeypatch.setattr(combine, "_LEAST_KEY_DIM", 0)


@pytest.fixture(params=CASES.values(), ids=CASES)
def inputs(request: pytest.FixtureRequest) -> tuple[Streams, Tensor, Problem]:
    """Query, compressed, selected and window streams; gates of either sign; all cut out of wider tensors."""
    B, S, H, G, Dk, Dv, dtype = request.param
    gen = torch.Generator("cuda").manual_seed(S)

    def cut(heads: int, dim: int) -> Tensor:
        return torch.randn(B, S, heads + 2, dim, generator=gen, device="cuda").to(dtype)[:, :, 1:-1]

    q, *streams = (cut(H, Dk), *(cut(G, dim) for _ in range(3) for dim in (Dk, Dv)))
    p = Problem.of(q, *streams[2:4], sizes=SIZES, scale=Dk**-0.5, deterministic=False)
    compressed = [launch.compress(x * 3, p) for x in streams[:2]]
    gates = torch.rand(B, S, H, 3, generator=gen, device="cuda") * 2 - 1
    gates[:, ::7] = 0
    return (q, *compressed, *streams[2:]), gates, p


def close(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> bool:
    # A row that sees nothing has -1e30 as its log-sum-exp, which would outweigh all others.
    pairs = [(a.double().clamp(min=-100), b.double().clamp(min=-100)) for a, b in zip(found, wanted, strict=True)]
    return all(bool((a - b).norm() <= 5e-3 * b.norm()) for a, b in pairs)


def test_the_compressed_branch_equals_tritons(inputs: tuple[Streams, Tensor, Problem]) -> None:
    (q, kc, vc, *_), _, p = inputs
    assert forward.why_no_forward(q, kc, vc, p) is None
    wanted = launch._compressed(q, kc, vc, p, by_wgmma=False)
    poison(0.25)
    found = forward.compressed(q, kc, vc, p)
    assert close(found, wanted)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(forward.compressed(q, kc, vc, p), found, strict=True))


@pytest.mark.parametrize("to", [20.0, 200.0, -200.0])
def test_scores_that_rise_or_fall_from_tile_to_tile(inputs: tuple[Streams, Tensor, Problem], to: float) -> None:
    # By less than sums are kept for, by more, and never.
    (q, kc, vc, *_), _, p = inputs
    ramp = torch.linspace(0, to, max(p.n_cmp, 1), device="cuda")[None, :, None, None] * q.shape[-1] ** -0.5
    q, kc = torch.ones_like(q), ramp.expand_as(kc).to(kc.dtype).contiguous()
    assert close(forward.compressed(q, kc, vc, p), launch._compressed(q, kc, vc, p, by_wgmma=False))


def same_blocks(top: Tensor, wanted: Tensor) -> float:
    """Share of blocks that are the same, whatever their order."""
    return float((top.sort(-1).values == wanted.sort(-1).values).float().mean())


def test_chosen_blocks_are_tritons_but_for_near_ties(inputs: tuple[Streams, Tensor, Problem]) -> None:
    (q, kc, vc, *_), _, p = inputs
    if reason := forward.why_no_choose(q, kc, vc, p):
        assert not p.n_top, reason
        return
    plain = launch._compressed(q, kc, vc, p, by_wgmma=False)
    wanted, _ = launch._select(q, kc, plain[1], p)
    poison(0.25)
    *out, top, counts = forward.compressed_and_chosen(q, kc, vc, p)
    assert close(tuple(out), plain)
    assert torch.equal(top >= 0, wanted >= 0)
    assert same_blocks(top, wanted) > 0.999
    lists = (torch.arange(p.S, device="cuda") // p.span)[None, :, None] * p.n_blocks + top
    seen = torch.zeros_like(counts).scatter_add_(1, lists.clamp(min=0).flatten(1).long(), (top >= 0).flatten(1).int())
    assert torch.equal(counts, seen)
    # Short work tiles follow each other fast: what is brought too early shows in a few launches of thousands.
    differ = torch.zeros((), dtype=torch.int64, device="cuda")
    for i in range(1000):
        # The first time keys and values without rows of zeros behind them.
        again = forward.compressed_and_chosen(q, kc if i else kc.clone(), vc if i else vc.clone(), p)
        differ += torch.stack([(a != b).any() for a, b in zip(again, (*out, top, counts), strict=True)]).any()
    assert not differ


@pytest.mark.parametrize("limit", [1, 3 << 20])
def test_tokens_in_turns_choose_the_same_blocks(
    inputs: tuple[Streams, Tensor, Problem], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (q, kc, vc, *_), _, p = inputs
    if forward.why_no_choose(q, kc, vc, p):
        return
    at_once = forward.compressed_and_chosen(q, kc, vc, p)
    monkeypatch.setattr(forward, "_STRIP_BYTES", limit)
    poison(0.25)
    in_turns = forward.compressed_and_chosen(q, kc, vc, p)
    assert all(torch.equal(a, b) for a, b in zip(in_turns[2:], at_once[2:], strict=True))
    assert close(in_turns[:2], at_once[:2])


@pytest.mark.parametrize("spread", [0.0, 0.003, 0.03, 30.0])
def test_blocks_of_nearly_equal_and_of_very_different_scores(
    inputs: tuple[Streams, Tensor, Problem], spread: float
) -> None:
    # Sums of a block are rounded to 13 bits on the way: what might change places must be scored again.
    (q, kc, vc, *_), _, p = inputs
    if forward.why_no_choose(q, kc, vc, p):
        return
    q = q * spread
    lse = forward.compressed(q, kc, vc, p)[1]
    wanted, _ = launch._select(q, kc, lse, p)
    top = forward.compressed_and_chosen(q, kc, vc, p)[2]
    # Where scores are nearly equal two orders of a sum choose differently.
    assert same_blocks(top, wanted) > (1 - 1e-9 if not spread else 0.99 if spread < 0.1 else 0.999)


def test_of_equal_scores_the_lower_block_is_chosen(inputs: tuple[Streams, Tensor, Problem]) -> None:
    (q, kc, vc, *_), _, p = inputs
    if forward.why_no_choose(q, kc, vc, p):
        return
    top = forward.compressed_and_chosen(q, torch.full_like(kc, 0.25), vc, p)[2]
    many = (torch.arange(p.S, device="cuda") // p.l_sel - 2).clamp(0, p.n_top)
    slot = torch.arange(p.n_top, device="cuda")
    wanted = torch.where(slot[None] < many[:, None], slot[None] + 1, -1).to(torch.int32)
    assert torch.equal(top, wanted.expand_as(top))


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("n_top", [13, 32])
def test_chosen_blocks_of_scores_in_order(inputs: tuple[Streams, Tensor, Problem], n_top: int, rising: bool) -> None:
    # In order, the best of those seen so far change with every block, or never.
    (q, kc, vc, *streams), _, p = inputs
    sizes = (*SIZES[:3], SIZES[3] - p.n_top + n_top, SIZES[4])
    p = Problem.of(q, *streams[:2], sizes=sizes, scale=q.shape[-1] ** -0.5, deterministic=False)
    if forward.why_no_choose(q, kc, vc, p) or n_top > p.n_blocks:
        return
    ramp = torch.linspace(0, 8, p.n_cmp, device="cuda")[None, :, None, None] * (1 if rising else -1)
    q, kc = torch.ones_like(q), (ramp * q.shape[-1] ** -0.5).expand_as(kc).to(kc.dtype).contiguous()
    _, lse = launch._compressed(q, kc, vc, p, by_wgmma=False)
    wanted, _ = launch._select(q, kc, lse, p)
    top = forward.compressed_and_chosen(q, kc, vc, p)[2]
    assert torch.equal(top >= 0, wanted >= 0)
    assert same_blocks(top, wanted) > 0.99


@pytest.mark.parametrize("w", [1, 30, 57, 64, 100, 577])
def test_windows_of_any_width(inputs: tuple[Streams, Tensor, Problem], w: int) -> None:
    (q, kc, vc, *rest), gates, p = inputs
    p = Problem.of(q, *rest[:2], sizes=(*SIZES[:4], w), scale=q.shape[-1] ** -0.5, deterministic=False)
    if combine.why_no_combine((q, *rest), p):
        return
    o_cmp, lse = launch._compressed(q, kc, vc, p, by_wgmma=False)
    index = launch._index(*launch._select(q, kc, lse, p), p)
    wanted, found = (
        launch._selected_and_window((q, *rest), o_cmp, gates, index, p, save=True, by_wgmma=by) for by in (False, True)
    )
    assert close(found, wanted)


@pytest.mark.parametrize("off", ["merge", "gather", "nothing", "gaps between queries"])
@pytest.mark.parametrize(("scratch", "save"), [(4 << 30, True), (1 << 22, True), (4 << 30, False)])
def test_chosen_blocks_and_the_merge_of_all_branches_equal_tritons(
    inputs: tuple[Streams, Tensor, Problem], scratch: int, save: bool, off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (q, kc, vc, *rest), gates, p = inputs
    streams = (q.contiguous() if off.startswith("gaps") else q, *rest)
    merges, gathers = combine.why_no_combine(streams, p), forward.why_no_attend(*streams[:3], p)
    assert merges is None or not p.n_top
    assert gathers is None or not p.n_top
    if off in ("merge", "gather"):
        where, what = (combine, "why_no_combine") if off == "merge" else (forward, "why_no_attend")
        monkeypatch.setattr(where, what, lambda *_: "off")
    o_cmp, lse = launch._compressed(q, kc, vc, p, by_wgmma=False)
    index = launch._index(*launch._select(q, kc, lse, p), p)

    def run(*, by_wgmma: bool) -> tuple[Tensor, ...]:
        with mock.patch.object(problem, "_SCRATCH_BYTES", scratch):
            return launch._selected_and_window(streams, o_cmp, gates, index, p, save=save, by_wgmma=by_wgmma)

    wanted = run(by_wgmma=False)
    poison(0.25)
    found = run(by_wgmma=True)
    assert close(found, wanted)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(run(by_wgmma=True), found, strict=True))
