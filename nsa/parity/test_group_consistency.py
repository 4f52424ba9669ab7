"""The heads of a group share one selection, and groups do not touch each other."""

from __future__ import annotations

import pytest
import torch

from nsa.attention.dispatch import Impl
from nsa.parity.cases import Case, devices, implementations, inputs, run_impl

CASE = Case(B=1, S=120, G=2, heads_per_group=4, Dk=8, Dv=8, l=8, d=4, l_sel=8, n_sel=4, w=8)
RUNS = [(device, impl) for device in devices() for impl, dtype in implementations(device) if dtype == torch.float32]


@pytest.mark.parametrize(("device", "impl"), RUNS)
def test_group_shares_one_selection(device: str, impl: Impl) -> None:
    """Equal values make the selected output depend on the selection alone: it must be the mean over its tokens."""
    xs = inputs(CASE, device=device)
    token = torch.arange(CASE.S, device=device)
    with torch.no_grad():
        xs[0].zero_()  # queries of zero attend evenly
        xs[4].copy_(torch.nn.functional.one_hot(token // CASE.l_sel % CASE.Dv, CASE.Dv)[None, :, None, :].to(xs[4]))
    _, aux, _ = run_impl(CASE, xs, impl)
    picked = aux.blocks.long()[..., None, :] == (token // CASE.l_sel)[:, None]  # [B, S, G, S, n_sel]
    seen = picked.any(-1) & (token <= token[:, None])[None, :, None]
    weight = seen / seen.sum(-1, keepdim=True)
    mean = torch.einsum("bsgt,btgv->bsgv", weight.to(xs[4]), xs[4])
    per_head = mean.repeat_interleave(CASE.heads_per_group, dim=2)
    torch.testing.assert_close(aux.o_sel, per_head.to(aux.o_sel), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("device", "impl"), RUNS)
def test_group_is_independent_of_the_other(device: str, impl: Impl) -> None:
    xs = inputs(CASE, device=device)
    o, aux, _ = run_impl(CASE, xs, impl)
    other = [x.detach().clone().requires_grad_() for x in xs]
    with torch.no_grad():
        other[0][:, :, 4:] += 1.0
        for x in other[1:7]:
            x[:, :, 1:] -= 2.0
    o_other, aux_other, _ = run_impl(CASE, other, impl)
    assert torch.equal(aux.blocks[:, :, 0], aux_other.blocks[:, :, 0])
    torch.testing.assert_close(o[:, :, :4], o_other[:, :, :4], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(o[:, :, 4:], o_other[:, :, 4:])
