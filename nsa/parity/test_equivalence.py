"""Every implementation on this machine agrees with the float64 oracle, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nsa.attention import fallback_counters
from nsa.attention.dispatch import Impl
from nsa.parity.cases import KERNEL_CASE, Case, devices, implementations, inputs, relative_error, run_impl, run_oracle
from nsa.parity.oracle import selection_defects

CASES = {
    "several_groups": Case(B=2, S=100, G=2, heads_per_group=3, Dk=8, Dv=6, l=8, d=4, l_sel=16, n_sel=4, w=20),
    "one_head_per_group": Case(B=1, S=65, G=3, heads_per_group=1, Dk=6, Dv=10, l=4, d=2, l_sel=8, n_sel=3, w=5),
    "shorter_than_a_block": Case(B=1, S=5, G=1, heads_per_group=4, Dk=8, Dv=8, l=8, d=8, l_sel=8, n_sel=2, w=3),
    "default_sizes": KERNEL_CASE,
}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
# Scores that differ by less than this are equal within the rounding of the type that they are computed in.
SCORE_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-5, "triton": 2e-2}
NAMES = ("q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates")


def _parameters() -> list[Any]:
    runs: list[Any] = []
    for device in devices():
        for impl, dtype in implementations(device):
            kind = str(dtype).removeprefix("torch.")
            runs += [
                pytest.param(device, impl, dtype, name, id=f"{device}-{impl}-{kind}-{name}")
                for name, case in CASES.items()
                if case is KERNEL_CASE or impl != "triton"
            ]
    return runs


@pytest.mark.parametrize(("device", "impl", "dtype", "name"), _parameters())
def test_equivalence(device: str, impl: Impl, dtype: torch.dtype, name: str, request: pytest.FixtureRequest) -> None:
    if impl == "triton":
        request.getfixturevalue("compiled_kernels")
    case = CASES[name]
    xs = inputs(case, device=device, dtype=dtype)
    upstream = torch.randn(case.B, case.S, case.G * case.heads_per_group, case.Dv)
    fallbacks = fallback_counters()
    o, aux, grads = run_impl(case, xs, impl, upstream)
    assert fallback_counters() == fallbacks, "another implementation ran than the one asked for"

    want, _ = run_oracle(case, xs, upstream)
    tol = SCORE_TOLERANCE["triton" if impl == "triton" else dtype]
    assert not selection_defects(aux.blocks, want.scores, l_sel=case.l_sel, n_sel=case.n_sel, tol=tol)
    want, want_grads = run_oracle(case, xs, upstream, blocks=aux.blocks)
    errors = {"o": relative_error(o, want.o)}
    errors |= {n: relative_error(g, w) for n, g, w in zip(NAMES, grads, want_grads, strict=True)}
    assert max(errors.values()) <= TOLERANCE[dtype], errors
