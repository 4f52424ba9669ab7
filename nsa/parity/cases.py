"""Inputs and comparisons shared by the parity tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from nsa.attention import NSAAux, nsa_attention
from nsa.attention.dispatch import Impl, load_kernels
from nsa.parity.oracle import OracleResult, oracle_attention

__all__ = ["KERNEL_CASE", "Case", "devices", "implementations", "inputs", "relative_error", "run_impl", "run_oracle"]


@dataclass(frozen=True)
class Case:
    """Sizes of one comparison; names as in :func:`nsa.attention.nsa_attention`."""

    B: int
    S: int
    G: int
    heads_per_group: int
    Dk: int
    Dv: int
    l: int = 32  # noqa: E741 - the paper's symbol
    d: int = 16
    l_sel: int = 64
    n_sel: int = 16
    w: int = 512

    @property
    def geometry(self) -> dict[str, int]:
        """The keyword arguments that set block sizes."""
        return {name: asdict(self)[name] for name in ("l", "d", "l_sel", "n_sel", "w")}


KERNEL_CASE = Case(B=1, S=333, G=1, heads_per_group=4, Dk=64, Dv=64, n_sel=4, w=100)
"""What the fused kernels are compared on: they are built for real head sizes only."""


def devices() -> list[str]:
    """Devices of this machine that the tests run on."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def implementations(device: str) -> list[tuple[Impl, torch.dtype]]:
    """Implementations, each with the type it is tested in, that exist on a device."""
    impls: list[tuple[Impl, torch.dtype]] = [("batched", torch.float32), ("batched", torch.bfloat16)]
    if device == "cpu":
        return [("reference", torch.float32), ("sequential", torch.float32), *impls]
    return [*impls, ("triton", torch.bfloat16)] if load_kernels() is not None else impls


def inputs(case: Case, *, seed: int = 0, device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """``q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates``; the same numbers on every device."""
    rng = torch.Generator().manual_seed(seed)
    heads = case.G * case.heads_per_group
    shapes = [(case.B, case.S, heads, case.Dk)] + [(case.B, case.S, case.G, D) for D in (case.Dk, case.Dv)] * 3
    tensors = [torch.randn(shape, generator=rng) for shape in shapes]
    tensors.append(torch.rand((case.B, case.S, heads, 3), generator=rng))
    # Gates stay in float32, as the layer makes them: bfloat16 has no value between 0.996 and 1.
    dtypes = [dtype] * 7 + [torch.float64 if dtype == torch.float64 else torch.float32]
    return [x.to(device, kind).requires_grad_() for x, kind in zip(tensors, dtypes, strict=True)]


def run_impl(
    case: Case, xs: list[Tensor], impl: Impl, upstream: Tensor | None = None
) -> tuple[Tensor, NSAAux, list[Tensor]]:
    """Output, selection and branches, and the gradients of all inputs for the output's gradient ``upstream``.

    Without ``upstream`` nothing is differentiated and the last part is empty.
    """
    with torch.set_grad_enabled(upstream is not None):
        result = nsa_attention(*xs, **case.geometry, impl=impl, return_aux=True)  # type: ignore[arg-type]
    assert isinstance(result, tuple), "return_aux=True returns a pair"
    o, aux = result
    grads = [] if upstream is None else list(torch.autograd.grad(o, xs, upstream.to(o)))
    return o, aux, grads


def run_oracle(
    case: Case, xs: list[Tensor], upstream: Tensor, *, blocks: Tensor | None = None
) -> tuple[OracleResult, list[Tensor]]:
    """The same by the oracle, in float64 on the CPU."""
    leaves = [x.detach().to("cpu", torch.float64).requires_grad_() for x in xs]
    result = oracle_attention(*leaves, **case.geometry, blocks=blocks)  # type: ignore[arg-type]
    return result, list(torch.autograd.grad(result.o, leaves, upstream.to("cpu", torch.float64)))


def relative_error(got: Tensor, want: Tensor, *, least: float = 1e-12) -> float:
    """Largest difference over the largest expected magnitude, or over ``least`` where that is larger.

    A gradient that is exactly zero, as of a softmax over one key, is computed with the rounding of terms that cancel:
    it is small relative to the other gradients, not to zero.
    """
    if want.numel() == 0:
        return 0.0
    got, want = got.detach().to("cpu", torch.float64), want.detach()
    return float((got - want).abs().max() / want.abs().max().clamp(min=least))
