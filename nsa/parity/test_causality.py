"""Nothing after a position reaches it: neither its output nor its selection."""

from __future__ import annotations

import pytest
import torch

from nsa.attention.dispatch import Impl
from nsa.parity.cases import Case, devices, implementations, inputs, run_impl

CASE = Case(B=1, S=90, G=2, heads_per_group=2, Dk=8, Dv=6, l=8, d=4, l_sel=8, n_sel=4, w=12)
RUNS = [(device, impl) for device in devices() for impl, dtype in implementations(device) if dtype == torch.float32]


@pytest.mark.parametrize("t", [0, 6, 7, 31, 88])
@pytest.mark.parametrize(("device", "impl"), RUNS)
def test_causality(device: str, impl: Impl, t: int) -> None:
    xs = inputs(CASE, device=device)
    o, aux, _ = run_impl(CASE, xs, impl)
    changed = [x.detach().clone().requires_grad_() for x in xs]
    with torch.no_grad():
        for x in changed:
            x[:, t + 1 :] = 3.0 * torch.randn(x[:, t + 1 :].shape).to(x)
    o_changed, aux_changed, _ = run_impl(CASE, changed, impl)
    assert torch.equal(aux.blocks[:, : t + 1], aux_changed.blocks[:, : t + 1])
    torch.testing.assert_close(o[:, : t + 1], o_changed[:, : t + 1], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(o[:, t + 1 :], o_changed[:, t + 1 :]), "the change must reach the positions after t"


@pytest.mark.parametrize(("device", "impl"), RUNS)
def test_causality_of_gradients(device: str, impl: Impl) -> None:
    """A loss on positions up to t sends no gradient behind t."""
    t = 40
    xs = inputs(CASE, device=device)
    upstream = torch.randn(CASE.B, CASE.S, 4, CASE.Dv)
    upstream[:, t + 1 :] = 0.0
    _, _, grads = run_impl(CASE, xs, impl, upstream)
    for grad in grads:
        assert not grad[:, t + 1 :].any()
        assert grad[:, : t + 1].any()
