"""Merged ranges: v2 equals v1 on every input, and v1 equals the meaning written as sets."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa import effective
from nsa.attention import Geometry, chunks, nsa_attention
from nsa.attention.ranges import merged_ranges, range_blocks, range_tokens, ranges_v1, ranges_v2, row_ranges
from nsa.data import open_tokenizer
from nsa.parallel import open_world
from nsa.parity.cases import Case, inputs
from nsa.resolve import resolve

INT32 = st.integers(-(2**31), 2**31 - 1)


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(
    row=st.lists(st.one_of(st.integers(-3, 30), st.just(-1), INT32), min_size=1, max_size=20),
    t=st.integers(0, 400),
    l_sel=st.integers(1, 40),
    seq_len=st.integers(1, 400),
)
def test_rows_against_sets(row: list[int], t: int, l_sel: int, seq_len: int) -> None:
    want = {p for p in range(min(t + 1, seq_len)) if p // l_sel in row}
    pairs = row_ranges(row, t, l_sel=l_sel, seq_len=seq_len)
    assert {p for start, end in pairs for p in range(start, end)} == want
    assert all(start < end for start, end in pairs)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(pairs)), "touching ranges must be merged"
    blocks, position = torch.tensor(row, dtype=torch.int64).view(1, 1, -1), torch.tensor([t])
    got = ranges_v2(blocks, position, l_sel=l_sel, seq_len=seq_len)[0, 0].tolist()
    assert got == [*map(list, pairs), *[[0, 0]] * (len(row) - len(pairs))]


@pytest.mark.parametrize("kind", ["valid", "wild", "mostly_empty", "clustered", "future"])
def test_a_hundred_thousand_random_rows(kind: str) -> None:
    """20,000 rows of each kind; zero differences."""
    rng = torch.Generator().manual_seed(1)
    S, G, n, l_sel, seq_len = 1000, 20, 8, 16, 1000

    def integers(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (S, G, n), generator=rng)

    t = torch.arange(S)
    blocks = {
        "valid": lambda: integers(0, 63) % (t // l_sel + 1)[:, None, None],
        "wild": lambda: integers(-(2**31), 2**31),
        "mostly_empty": lambda: torch.where(integers(0, 4) > 0, -1, integers(0, 64)),
        "clustered": lambda: integers(0, 56)[..., :1] + integers(-2, 8),
        "future": lambda: (t // l_sel)[:, None, None] + integers(-4, 8),
    }[kind]()
    v1 = ranges_v1(blocks, t, l_sel=l_sel, seq_len=seq_len)
    v2 = ranges_v2(blocks, t, l_sel=l_sel, seq_len=seq_len)
    assert int((v1 != v2).sum()) == 0
    assert v2.dtype == torch.int32


def test_batch_dimensions_and_dispatch() -> None:
    blocks = torch.randint(-1, 6, (2, 3, 30, 2, 4), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    position = torch.arange(30)
    one, two = (merged_ranges(blocks, position, l_sel=5, seq_len=30, version=v) for v in ("v1", "v2"))
    assert one.shape == (2, 3, 30, 2, 4, 2)
    assert torch.equal(one, two)
    with pytest.raises(ValueError, match="sel_ranges='v3'"):
        merged_ranges(blocks, position, l_sel=5, seq_len=30, version="v3")


def test_range_tokens() -> None:
    ranges = torch.tensor([[[0, 3], [7, 9], [0, 0]], [[1, 2], [4, 6], [10, 12]]])
    assert range_tokens(ranges).tolist() == [[0, 1, 2, 7, 8], [1, 4, 5, 10, 11]]
    with pytest.raises(ValueError, match="different numbers"):
        range_tokens(torch.tensor([[[0, 3]], [[0, 2]]]))


def test_range_blocks_undoes_the_merging() -> None:
    """Partial blocks at the end, blocks that touch, empty rows, and rows with every place taken."""
    blocks = torch.tensor([[[0, 1, 2, 5]], [[3, -1, -1, -1]], [[-1, -1, -1, -1]], [[0, 2, 4, 5]]], dtype=torch.int32)
    ranges = ranges_v1(blocks, torch.tensor([43, 30, 3, 45]), l_sel=8, seq_len=46)
    assert torch.equal(range_blocks(ranges, n=4, l_sel=8), blocks)


@pytest.mark.parametrize("sizes", [(8, 4, 8, 3, 10), (4, 4, 4, 6, 4), (32, 16, 64, 4, 40)])
def test_the_version_asked_for_makes_the_list_that_batched_reads(
    sizes: tuple[int, int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`v1` runs its loop on every row, and changes no bit of the output, the selection or a gradient."""
    geometry = dict(zip(("l", "d", "l_sel", "n_sel", "w"), sizes, strict=True))
    xs = inputs(Case(B=2, S=300, G=2, heads_per_group=2, Dk=4, Dv=4, **geometry))
    rows_seen = 0

    def counting(blocks: torch.Tensor, *args: torch.Tensor, **options: int) -> torch.Tensor:
        nonlocal rows_seen
        rows_seen += blocks[..., 0].numel()
        return ranges_v1(blocks, *args, **options)

    monkeypatch.setattr(chunks, "ranges_v1", counting)
    results = []
    for version, rows_expected in (("v2", 0), ("v1", 2 * 300 * 2)):
        o, aux = nsa_attention(*xs, **geometry, impl="batched", sel_ranges=version, return_aux=True)  # type: ignore[arg-type]
        assert rows_seen == rows_expected
        results.append((o, aux.blocks, *torch.autograd.grad(o.square().sum(), xs)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert (
        max(block for row in results[0][1][0, :, 0].tolist() for block in row) == Geometry(**geometry).n_blocks(300) - 1
    )


@pytest.mark.parametrize(
    ("prefill", "asked", "runs"), [("triton", "v1", "v2"), ("triton", "v2", "v2"), ("batched", "v1", "v1")]
)
def test_the_effective_config_names_the_version_that_runs(
    prefill: str, asked: str, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels have no loop over rows, so a request for it is not met, and env.json must say so."""
    monkeypatch.setattr(effective, "_prefill", lambda config, world, autocast: prefill)
    world = open_world("cpu", timeout_s=1.0, out=Path())
    resolved = resolve([], {"NSA_SEL_RANGES_V2": "0" if asked == "v1" else "1"})
    settled = effective.settle_config(resolved, world, open_tokenizer("byte"))
    assert settled.config.model.sel_ranges == runs
    assert any("sel_ranges requested v1, effective v2" in note for note in settled.notes) == (asked != runs)
