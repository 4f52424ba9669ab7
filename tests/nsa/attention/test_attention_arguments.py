"""Arguments that do not fit are refused with the argument's name, its value and what it must be, whoever checks."""

from __future__ import annotations

import math

import pytest
import torch

from nsa.attention import NSAAttention, nsa_attention
from nsa.attention.functional import AttentionSettings, attend
from nsa.attention.geometry import Geometry
from nsa.kernels import nsa_attention_triton
from nsa.parity.cases import Case, inputs

CASE = Case(B=1, S=40, G=1, heads_per_group=2, Dk=4, Dv=4, l=8, d=4, l_sel=8, n_sel=3, w=10)


def bad(position: int, **change: object) -> list[torch.Tensor]:
    xs = [x.detach() for x in inputs(CASE)]
    xs[position] = xs[position].to(**change) if "shape" not in change else torch.zeros(*change["shape"])  # type: ignore[call-overload,misc]
    return xs


REFUSED = [
    (bad(2, shape=(1, 40, 1, 9)), r"v_cmp: shape \(1, 40, 1, 9\), must be \(1, 40, 1, 4\)"),
    (bad(5, shape=(1, 39, 1, 4)), "k_win: shape"),
    (bad(3, shape=(40, 1, 4)), r"k_sel: shape \(40, 1, 4\), must be \[batch"),
    (bad(1, dtype=torch.float64), "k_cmp: torch.float64, must be of one floating-point type"),
    (bad(0, dtype=torch.int64), "q: torch.int64, must be of one floating-point type"),
    (bad(0, shape=(1, 40, 0, 4)), "q: 0 heads, must be a multiple of the 1 groups of v_sel, and at least 1"),
    (bad(4, device="meta"), "v_sel: on meta, must be on the device of q, cpu"),
    (bad(7, shape=(1, 40, 2, 2)), r"gates: shape \(1, 40, 2, 2\), must be \(1, 40, 2, 3\)"),
    (bad(7, dtype=torch.float64), "gates: float64, must not be wider"),
    (bad(7, dtype=torch.bool), "gates: torch.bool, must be of a floating-point type"),
]


@pytest.mark.parametrize(("xs", "message"), REFUSED)
def test_tensors_that_do_not_fit_are_named(xs: list[torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nsa_attention(*xs, **CASE.geometry)


@pytest.mark.parametrize(("xs", "message"), REFUSED)
def test_the_kernels_refuse_in_the_same_words(xs: list[torch.Tensor], message: str) -> None:

    with pytest.raises(ValueError, match=message):
        nsa_attention_triton(*xs, **CASE.geometry)  # type: ignore[arg-type]


@pytest.mark.parametrize("impl", ["reference", "sequential", "batched", "triton", "auto"])
@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_is_positive_and_finite_on_every_path(impl: str, scale: float) -> None:
    """What one path refuses, all refuse: otherwise a program that runs on a CPU would fail on a GPU."""
    with pytest.raises(ValueError, match=f"scale={scale}: must be positive and finite"):
        nsa_attention(*inputs(CASE), **CASE.geometry, impl=impl, scale=scale)  # type: ignore[arg-type]


def test_names_and_sizes_that_do_not_fit_are_named() -> None:
    xs = inputs(CASE)
    with pytest.raises(ValueError, match="impl='fast': must be one of reference"):
        nsa_attention(*xs, **CASE.geometry, impl="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="w=0: must be a positive integer"):
        nsa_attention(*xs, w=0)
    for impl in ("sequential", "batched", "reference"):
        with pytest.raises(ValueError, match="sel_ranges='v3': must be v1 or v2"):
            nsa_attention(*xs, **CASE.geometry, impl=impl, sel_ranges="v3")  # type: ignore[arg-type]
    for chunk in (0, -16):
        with pytest.raises(ValueError, match=f"query_chunk={chunk}: must be at least 1"):
            nsa_attention(*xs, **CASE.geometry, query_chunk=chunk)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"query_chunk={chunk}: must be at least 1"):
            NSAAttention(dim=16, n_heads=2, n_kv_groups=1, d_k=4, d_v=4, query_chunk=chunk)
    with pytest.raises(ValueError, match="batch and sequence must not be empty"):
        nsa_attention(*(x[:, :0] for x in xs))  # type: ignore[arg-type]


def test_a_compression_function_gives_one_entry_per_complete_block() -> None:
    """Without the check a longer result would let queries see keys of a wrong place, and say nothing."""
    *streams, gates = inputs(CASE)
    with pytest.raises(ValueError, match=r"k_cmp after compression: shape \(1, 40, 1, 4\), must be \(1, 9, 1, 4\)"):
        attend(tuple(streams), gates, AttentionSettings(Geometry(**CASE.geometry), compress=lambda k, v: (k, v)))


def test_a_layer_says_which_size_is_wrong() -> None:
    with pytest.raises(ValueError, match="n_heads=5: must be a multiple of n_kv_groups=2"):
        NSAAttention(dim=16, n_heads=5, n_kv_groups=2, d_k=4, d_v=4)
