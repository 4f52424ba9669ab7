"""Random problems: `sequential` and `batched` against the oracle, forward, selection and all eight gradients."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nsa.attention import nsa_attention
from nsa.parity.cases import Case, inputs, relative_error, run_impl, run_oracle
from nsa.parity.oracle import OracleResult, selection_defects

NAMES = ("q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates")
TOLERANCE = 1e-5


@st.composite
def cases(draw: st.DrawFn, max_len: int = 56) -> Case:
    """Sizes that satisfy the constraints and nothing more: d divides l and l_sel, l <= l_sel."""
    d = draw(st.sampled_from([1, 2, 3, 4, 8]))
    in_block = draw(st.integers(1, 4))
    l, l_sel = d * in_block, d * draw(st.integers(in_block, in_block + 4))  # noqa: E741
    w = draw(st.integers(1, 40))
    edges = [n for edge in (1, l, l + d, l_sel, w, 2 * l_sel) for n in (edge - 1, edge, edge + 1) if 1 <= n <= max_len]
    heads_per_group = draw(st.sampled_from([1, 4, 6, 16]))
    return Case(
        B=draw(st.integers(1, 2)),
        S=draw(st.one_of(st.sampled_from(sorted(set(edges))), st.integers(1, max_len))),
        G=draw(st.integers(1, 2)),
        heads_per_group=heads_per_group,
        Dk=draw(st.integers(1, 9)),
        Dv=draw(st.integers(1, 9)),
        l=l,
        d=d,
        l_sel=l_sel,
        n_sel=draw(st.integers(1, 6)),
        w=w,
    )


@functools.lru_cache(maxsize=1)  # several implementations are held against it, one after the other
def problem(case: Case, seed: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor, OracleResult, list[Tensor]]:
    """Inputs, the output's gradient, and what the oracle makes of them."""
    xs = inputs(case, seed=seed, dtype=dtype)
    upstream = torch.randn(
        case.B, case.S, case.G * case.heads_per_group, case.Dv, generator=torch.Generator().manual_seed(seed + 1)
    )
    return xs, upstream, *run_oracle(case, xs, upstream)


def assert_equals_oracle(case: Case, impl: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
    xs, upstream, own, own_grads = problem(case, seed, dtype)
    o, aux, grads = run_impl(case, xs, impl, upstream)
    exact = dtype == torch.float64
    assert not selection_defects(aux.blocks, own.scores, l_sel=case.l_sel, n_sel=case.n_sel, tol=1e-5)
    # Given the blocks that it chose itself, the oracle would only repeat itself.
    same = torch.equal(aux.blocks, own.blocks)
    want, want_grads = (own, own_grads) if same else run_oracle(case, xs, upstream, blocks=aux.blocks)
    least = 1e-4 * max(float(w.abs().max()) for w in want_grads)
    errors = {name: relative_error(g, w, least=least) for name, g, w in zip(NAMES, grads, want_grads, strict=True)}
    errors |= {name: relative_error(getattr(aux, name), getattr(want, name)) for name in ("o_cmp", "o_sel", "o_win")}
    errors["o"] = relative_error(o, want.o)
    assert max(errors.values()) <= (1e-12 if exact else TOLERANCE), (case, impl, errors)


def test_a_gradient_that_is_exactly_zero_is_met_but_for_rounding() -> None:
    """Of the keys where a softmax has one of them: what cancels is a millionth of the other gradients."""
    case = Case(B=1, S=3, G=1, heads_per_group=1, Dk=1, Dv=5, l=1, d=1, l_sel=1, n_sel=1, w=1)
    for impl in ("sequential", "batched"):
        assert_equals_oracle(case, impl, seed=1)


def test_sequential_and_batched_equal_the_oracle() -> None:
    """300 problems, and proof that they were the problems meant."""
    seen: list[Case] = []

    @settings(max_examples=300, derandomize=True, deadline=None, database=None)
    @given(case=cases(), seed=st.integers(0, 2**16))
    def check(case: Case, seed: int) -> None:
        assert_equals_oracle(case, "sequential", seed=seed)
        assert_equals_oracle(case, "batched", seed=seed)
        seen.append(case)

    check()
    assert len(seen) >= 300
    assert {case.heads_per_group for case in seen} == {1, 4, 6, 16}
    assert {case.G for case in seen} == {case.B for case in seen} == {1, 2}
    wanted = {
        "one position": [c for c in seen if c.S == 1],
        "shorter than a compression block": [c for c in seen if c.l > c.S],
        "one past l": [c for c in seen if c.l + 1 == c.S],
        "one past l_sel": [c for c in seen if c.l_sel + 1 == c.S],
        "one past w": [c for c in seen if c.w + 1 == c.S],
        "Dk differs from Dv": [c for c in seen if c.Dk != c.Dv],
        "not every block is selected": [c for c in seen if c.n_sel * c.l_sel < c.S],
        "by pairs of query and block": [c for c in seen if 2 * c.n_sel * c.l_sel < c.S],
        "compression blocks apart": [c for c in seen if c.l == c.d],
        "compression blocks that overlap": [c for c in seen if c.l > c.d],
    }
    assert not [name for name, found in wanted.items() if len(found) < 3]


@settings(max_examples=80, derandomize=True, deadline=None, database=None)
@given(case=cases(max_len=160), seed=st.integers(0, 2**16))
def test_batched_and_reference_equal_the_oracle_on_longer_sequences(case: Case, seed: int) -> None:
    """Long enough that the selected branch gathers blocks instead of masking all keys."""
    assert_equals_oracle(case, "batched", seed=seed)
    assert_equals_oracle(case, "reference", seed=seed)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(case=cases(max_len=90), seed=st.integers(0, 2**16), chunk=st.integers(1, 100))
def test_chunk_length_changes_nothing(case: Case, seed: int, chunk: int) -> None:
    xs = inputs(case, seed=seed, dtype=torch.float64)
    whole, aux = nsa_attention(*xs, **case.geometry, impl="batched", return_aux=True)
    cut, aux_cut = nsa_attention(*xs, **case.geometry, impl="batched", return_aux=True, query_chunk=chunk)
    assert torch.equal(aux.blocks, aux_cut.blocks)
    for got, want in [(cut, whole), *zip(*(torch.autograd.grad(o.sum(), xs) for o in (cut, whole)), strict=True)]:
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


BOUNDARY = Case(B=1, S=1, G=2, heads_per_group=4, Dk=6, Dv=4, l=8, d=4, l_sel=16, n_sel=3, w=12)


@pytest.mark.parametrize("impl", ["reference", "sequential", "batched"])
@pytest.mark.parametrize("S", [1, 2, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 48, 49, 64, 65])
def test_lengths_around_every_boundary(impl: str, S: int) -> None:
    """One before, at, and one past l, l + d, w, and the first multiples of l_sel; exact in float64."""
    case = Case(**{**BOUNDARY.__dict__, "S": S})
    assert_equals_oracle(case, impl, dtype=torch.float64)


@pytest.mark.parametrize("impl", ["reference", "sequential", "batched"])
def test_float64_selection_is_exactly_the_oracles(impl: str) -> None:
    case = Case(B=2, S=150, G=2, heads_per_group=2, Dk=8, Dv=8, l=8, d=4, l_sel=8, n_sel=5, w=16)
    xs = inputs(case, seed=5, dtype=torch.float64)
    _, aux, _ = run_impl(case, xs, impl)
    want, _ = run_oracle(case, xs, torch.zeros(case.B, case.S, 4, case.Dv))
    assert torch.equal(aux.blocks, want.blocks)


@pytest.mark.parametrize("impl", ["reference", "batched"])
def test_default_sizes_over_a_thousand_positions(impl: str) -> None:
    """The paper's blocks, a ragged end, and few enough selected that most queries go by pairs."""
    case = Case(B=1, S=1101, G=2, heads_per_group=3, Dk=12, Dv=8, n_sel=4, w=100)
    assert_equals_oracle(case, impl)


@pytest.mark.parametrize("impl", ["reference", "sequential", "batched"])
def test_scores_beyond_the_range_of_the_exponential(impl: str) -> None:
    """Scores of several hundred: exp of one would overflow, exp of the smallest vanish; nothing becomes NaN."""
    case = Case(B=1, S=70, G=1, heads_per_group=2, Dk=8, Dv=4, l=4, d=4, l_sel=8, n_sel=3, w=10)
    xs = inputs(case)
    with torch.no_grad():
        xs[0].mul_(200.0)
    upstream = torch.randn(1, case.S, 2, case.Dv, generator=torch.Generator().manual_seed(1))
    o, aux, grads = run_impl(case, xs, impl, upstream)
    want, want_grads = run_oracle(case, xs, upstream, blocks=aux.blocks)
    assert (torch.einsum("bshk,btgk->bhst", xs[0], xs[3]).abs().max() * case.Dk**-0.5) > 300
    assert relative_error(o, want.o) < 1e-4
    # The scores themselves carry a rounding error of about 1e-5 here.
    assert max(relative_error(g, w) for g, w in zip(grads, want_grads, strict=True)) < 1e-3


@pytest.mark.parametrize("impl", ["reference", "sequential", "batched"])
@pytest.mark.parametrize("S", [40, 7])
def test_bfloat16_within_one_percent(impl: str, S: int) -> None:
    case = Case(B=1, S=S, G=1, heads_per_group=4, Dk=16, Dv=8, l=8, d=4, l_sel=8, n_sel=3, w=10)
    xs = inputs(case, dtype=torch.bfloat16)
    upstream = torch.randn(case.B, case.S, 4, case.Dv)
    o, aux, grads = run_impl(case, xs, impl, upstream)
    assert o.dtype == torch.bfloat16
    assert [g.dtype for g in grads] == [torch.bfloat16] * 7 + [torch.float32]
    want, want_grads = run_oracle(case, xs, upstream.bfloat16(), blocks=aux.blocks)
    errors = [relative_error(g, w) for g, w in zip([o, *grads], [want.o, *want_grads], strict=True)]
    assert max(errors) <= 1e-2


CHECKED = {
    "overlapping": Case(B=1, S=11, G=1, heads_per_group=2, Dk=2, Dv=3, l=4, d=2, l_sel=4, n_sel=2, w=3),
    "by_pairs": Case(B=1, S=11, G=2, heads_per_group=1, Dk=2, Dv=1, l=1, d=1, l_sel=1, n_sel=4, w=2),
}


@pytest.mark.parametrize("name", list(CHECKED))
@pytest.mark.parametrize("impl", ["reference", "sequential", "batched"])
def test_gradcheck(impl: str, name: str) -> None:
    case = CHECKED[name]
    xs = inputs(case, dtype=torch.float64)

    def all_outputs(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        o, aux = nsa_attention(*tensors, **case.geometry, impl=impl, return_aux=True)
        return o, aux.o_cmp, aux.o_sel, aux.o_win

    # The fast mode compares the Jacobian in one random direction: enough for the slow path, which autograd
    # differentiates, not for one whose backward pass is written here.
    assert torch.autograd.gradcheck(all_outputs, xs, atol=1e-7, fast_mode=impl == "sequential")


@pytest.mark.parametrize("impl", ["reference", "sequential", "batched"])
def test_scale_is_honored(impl: str) -> None:
    case = Case(B=1, S=30, G=1, heads_per_group=2, Dk=4, Dv=4, l=4, d=4, l_sel=8, n_sel=2, w=5)
    xs = inputs(case, dtype=torch.float64)
    scaled = [xs[0] * 0.3 * 4**0.5, *xs[1:]]
    got = nsa_attention(*xs, **case.geometry, impl=impl, scale=0.3)
    torch.testing.assert_close(got, nsa_attention(*scaled, **case.geometry, impl=impl))
