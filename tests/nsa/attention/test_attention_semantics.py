"""What attention means, apart from the oracle: causality, coverage, ties, overlap, forced blocks, bounded memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nsa.attention import Geometry, nsa_attention
from nsa.attention.compress import average_compress
from nsa.attention.select import block_scores, select_blocks
from nsa.parity.cases import Case, inputs, run_impl
from nsa.parity.oracle import overlap_matrix

IMPLS = ["reference", "sequential", "batched"]


def one_hot_gates(shape: torch.Size, branch: int) -> torch.Tensor:
    gates = torch.zeros(*shape[:3], 3, dtype=torch.float64)
    gates[..., branch] = 1.0
    return gates


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("branch", [0, 1, 2])
def test_each_branch_alone_is_full_causal_attention_when_it_covers_everything(impl: str, branch: int) -> None:
    """l = d = 1 compresses nothing, n_sel * l_sel >= S selects all, w >= S sees all."""
    case = Case(B=2, S=45, G=2, heads_per_group=3, Dk=6, Dv=5, l=1, d=1, l_sel=8, n_sel=6, w=45)
    xs = inputs(case, dtype=torch.float64)
    k, v = xs[1 + 2 * branch], xs[2 + 2 * branch]
    got = nsa_attention(*xs[:7], one_hot_gates(xs[0].shape, branch), **case.geometry, impl=impl)
    q, k, v = (x.transpose(1, 2) for x in (xs[0], k, v))
    k, v = (x.repeat_interleave(3, dim=1) for x in (k, v))
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("impl", IMPLS)
def test_gates_weigh_the_branches_in_order(impl: str) -> None:
    case = Case(B=1, S=30, G=1, heads_per_group=2, Dk=4, Dv=4, l=4, d=2, l_sel=4, n_sel=3, w=5)
    xs = inputs(case, dtype=torch.float64)
    o, aux = nsa_attention(*xs, **case.geometry, impl=impl, return_aux=True)
    g = xs[7][..., None]
    torch.testing.assert_close(o, g[:, :, :, 0] * aux.o_cmp + g[:, :, :, 1] * aux.o_sel + g[:, :, :, 2] * aux.o_win)


@pytest.mark.parametrize("impl", IMPLS)
def test_future_probe_at_every_position(impl: str) -> None:
    """Changing everything after t leaves what happens at or before t as it was; the last rows go by pairs."""
    case = Case(B=1, S=57, G=1, heads_per_group=2, Dk=4, Dv=4, l=8, d=4, l_sel=8, n_sel=3, w=6)
    xs = inputs(case, dtype=torch.float64)
    o, aux, _ = run_impl(case, xs, impl)
    for t in range(case.S - 1):
        changed = [x.detach().clone() for x in xs]
        for x in changed:
            x[:, t + 1 :] = 7.0
        o_changed, aux_changed, _ = run_impl(case, changed, impl)
        assert torch.equal(aux.blocks[:, : t + 1], aux_changed.blocks[:, : t + 1])
        torch.testing.assert_close(o[:, : t + 1], o_changed[:, : t + 1], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("impl", IMPLS)
def test_no_visible_compressed_block_gives_zero_and_no_gradient(impl: str) -> None:
    case = Case(B=1, S=20, G=1, heads_per_group=2, Dk=4, Dv=4, l=8, d=4, l_sel=8, n_sel=2, w=4)
    xs = inputs(case, dtype=torch.float64)
    _, aux = nsa_attention(*xs, **case.geometry, impl=impl, return_aux=True)
    assert not aux.o_cmp[:, :7].any()
    assert aux.o_cmp[:, 7:].all()
    upstream = torch.zeros_like(aux.o_cmp)
    upstream[:, :7] = 1.0
    grads = torch.autograd.grad(aux.o_cmp, xs[:3], upstream)
    assert not any(g.any() for g in grads)


@pytest.mark.parametrize("impl", IMPLS)
def test_exact_ties_go_to_the_lower_index(impl: str) -> None:
    """Equal keys give every block the same score, where a small bias by index drowns in rounding.

    Small whole numbers keep the products exact: matrix libraries may round the last columns differently.
    """
    case = Case(B=1, S=96, G=1, heads_per_group=3, Dk=4, Dv=4, l=4, d=4, l_sel=4, n_sel=6, w=4)
    xs = inputs(case)
    with torch.no_grad():
        xs[0].mul_(2).round_()
        xs[1][:] = torch.tensor([1.0, -2.0, 4.0, 3.0])
    _, aux, _ = run_impl(case, xs, impl)
    for t in range(case.S):
        own = t // 4
        want = list(dict.fromkeys([own, 0, max(own - 1, 0), *range(own + 1)]))[:6]
        assert [b for b in aux.blocks[0, t, 0].tolist() if b >= 0] == sorted(want)


def test_ties_between_huge_indices_survive_float32() -> None:
    """4,096 blocks of one score: the lowest win, in order."""
    geometry = Geometry(l=32, d=16, l_sel=64, n_sel=16, w=512)
    t = 64 * 4096 - 1
    blocks = select_blocks(torch.full((1, 1, 1, 4096), 0.1), torch.tensor([t]), geometry)
    assert blocks.flatten().tolist() == [*range(14), 4094, 4095]


@pytest.mark.parametrize("n_sel", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("t", [0, 3, 4, 7, 8, 11, 30])
def test_forced_blocks_and_their_priority(n_sel: int, t: int) -> None:
    geometry = Geometry(l=4, d=4, l_sel=4, n_sel=n_sel, w=4)
    score = torch.rand(1, 1, 8, generator=torch.Generator().manual_seed(t))
    row = select_blocks(score, torch.tensor([t]), geometry)[0, 0].tolist()
    chosen = [b for b in row if b >= 0]
    assert set(geometry.forced_blocks(t)) <= set(chosen)
    assert t // 4 in chosen, "the block that t is in is always attended"
    assert chosen == sorted(set(chosen))
    assert max(chosen) <= t // 4
    assert len(chosen) == min(n_sel, t // 4 + 1)
    assert row[len(chosen) :] == [-1] * (n_sel - len(chosen))


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(d=st.integers(1, 20), in_block=st.integers(1, 5), more=st.integers(0, 5))
@example(d=16, in_block=2, more=2)
@example(d=1, in_block=1, more=0)
def test_overlap_weights_are_the_tokens_shared(d: int, in_block: int, more: int) -> None:
    """For every size that is allowed, not only the paper's."""
    l, l_sel = d * in_block, d * (in_block + more)  # noqa: E741
    geometry = Geometry(l=l, d=d, l_sel=l_sel, n_sel=3, w=8)
    seq_len = 5 * l_sel + d
    n_cmp, n_blocks = geometry.n_compressed(seq_len), geometry.n_blocks(seq_len)
    truth = overlap_matrix(n_cmp, n_blocks, l=l, d=d, l_sel=l_sel)
    got = block_scores(torch.eye(n_cmp, dtype=torch.float64), n_blocks, geometry)
    assert torch.equal(got, truth)


def test_overlap_weights_of_the_defaults() -> None:
    assert Geometry().overlap_weights() == (1, 2, 2, 2, 1)
    assert Geometry().first_overlap == -1


def test_average_compression_by_hand() -> None:
    x = torch.arange(10, dtype=torch.float64).view(1, 10, 1, 1)
    assert average_compress(x, l=4, d=2).flatten().tolist() == [1.5, 3.5, 5.5, 7.5]
    assert average_compress(x[:, :3], l=4, d=2).shape == (1, 0, 1, 1)


class _LargestTensor(TorchDispatchMode):
    """Remembers the most elements that any one operation produced."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        storages = [x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(out) if hasattr(x, "numel")]
        self.numel = max([self.numel, *storages])
        return out


def test_batched_never_holds_a_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of the size of S x S, nor of S x C per head, in either direction; a short window has short chunks."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # chunks grow with the number of cores
    case = Case(B=1, S=4096, G=1, heads_per_group=4, Dk=8, Dv=8, l=8, d=4, l_sel=16, n_sel=4, w=32)
    xs = inputs(case)
    with _LargestTensor() as largest:
        run_impl(case, xs, "batched", torch.ones(1, case.S, 4, case.Dv))
    per_head_compressed = case.S * Geometry(**case.geometry).n_compressed(case.S)
    assert largest.numel < per_head_compressed / 2
