"""The kernels as torch operators: ``nsa::attention``, ``nsa::attention_backward``, and ``nsa::attention_output`` for
where no gradient is wanted.

To torch.compile they are opaque calls of known output shapes; autograd is registered between the first two. All take
padded, unit-stride tensors; :mod:`nsa.kernels.api` prepares them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsa.kernels import launch
from nsa.kernels.launch_backward import backward
from nsa.kernels.operators import operator
from nsa.kernels.problem import Problem

__all__ = ["attention", "attention_backward", "attention_output"]

_N_SAVED = 8


def _problem(q: Tensor, k_sel: Tensor, v_sel: Tensor, sizes: list[int], scale: float, deterministic: bool) -> Problem:
    l, d, l_sel, n_sel, w = sizes  # noqa: E741 - the paper's symbol
    return Problem.of(q, k_sel, v_sel, sizes=(l, d, l_sel, n_sel, w), scale=scale, deterministic=deterministic)


@operator("nsa::attention")
def attention(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    sizes: list[int],
    scale: float,
    compressed: bool,
    deterministic: bool,
) -> list[Tensor]:
    """Returns ``o, o_cmp, o_sel, o_win, lse_cmp, lse_sel, lse_win``, the averaged ``kc, vc`` (empty if
    ``compressed``), and the index: ``top, pairs, offsets, tile_offsets, tile_block``. ``sizes`` is ``[l, d,
    l_sel, n_sel, w]``."""
    p = _problem(q, k_sel, v_sel, sizes, scale, deterministic)
    kc, vc = (k_cmp, v_cmp) if compressed else (launch.compress(k_cmp, p), launch.compress(v_cmp, p))
    o, s = launch.forward(q, kc, vc, k_sel, v_sel, k_win, v_win, gates, p)
    averaged = [q.new_empty(0), q.new_empty(0)] if compressed else [kc, vc]
    i = s.index
    return [
        o, s.o_cmp, s.o_sel, s.o_win, s.lse_cmp, s.lse_sel, s.lse_win, *averaged,
        i.top, i.pairs, i.offsets, i.tile_offsets, i.tile_block,
    ]  # fmt: skip


@torch.library.register_fake("nsa::attention")
def _(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    sizes: list[int],
    scale: float,
    compressed: bool,
    deterministic: bool,
) -> list[Tensor]:
    p = _problem(q, k_sel, v_sel, sizes, scale, deterministic)
    out = [q.new_empty(p.B, p.S, p.H, p.dims.dv) for _ in range(4)]
    out += [q.new_empty(p.B, p.S, p.H, dtype=torch.float32) for _ in range(3)]
    if compressed:
        out += [q.new_empty(0), q.new_empty(0)]
    else:
        out += [q.new_empty(p.B, p.n_cmp, p.G, n) for n in (p.dims.dk, p.dims.dv)]
    shapes: list[tuple[int, ...]] = [(p.bg, p.S, p.n_top)]
    if p.n_top:
        shapes += [(p.bg, p.n_pairs), (p.bg, p.n_lists + 1), (p.bg, p.n_lists + 1), (p.bg, p.max_tiles)]
    else:
        shapes += [(0,)] * 4
    return out + [q.new_empty(shape, dtype=torch.int32) for shape in shapes]


@operator("nsa::attention_output")
def attention_output(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    sizes: list[int],
    scale: float,
    compressed: bool,
) -> Tensor:
    """The first output of :func:`attention` alone; nothing is kept for a backward pass."""
    p = _problem(q, k_sel, v_sel, sizes, scale, deterministic=False)
    kc, vc = (k_cmp, v_cmp) if compressed else (launch.compress(k_cmp, p), launch.compress(v_cmp, p))
    o, _ = launch.forward(q, kc, vc, k_sel, v_sel, k_win, v_win, gates, p, save=False)
    return o


@torch.library.register_fake("nsa::attention_output")
def _(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    sizes: list[int],
    scale: float,
    compressed: bool,
) -> Tensor:
    return q.new_empty(*q.shape[:3], v_sel.shape[-1])


@operator("nsa::attention_backward")
def attention_backward(
    do: Tensor,
    q: Tensor,
    kc: Tensor,
    vc: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    saved: list[Tensor],
    sizes: list[int],
    scale: float,
    compressed: bool,
    deterministic: bool,
) -> list[Tensor]:
    """Gradients of the eight tensor arguments of :func:`attention`; ``saved`` are its outputs 1-6 and 9-13."""
    p = _problem(q, k_sel, v_sel, sizes, scale, deterministic)
    o_cmp, o_sel, o_win, lse_cmp, lse_sel, lse_win, *index = saved
    s = launch.Saved(o_cmp, o_sel, o_win, lse_cmp, lse_sel, lse_win, launch.Index(*index))
    *grads, delta = backward(
        do, q, kc, vc, k_sel, v_sel, k_win, v_win, gates, s, p, per_token=not compressed
    )  # fmt: skip
    return [*grads, delta.to(gates.dtype) if gates.dtype != delta.dtype else delta]


@torch.library.register_fake("nsa::attention_backward")
def _(
    do: Tensor,
    q: Tensor,
    kc: Tensor,
    vc: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    saved: list[Tensor],
    sizes: list[int],
    scale: float,
    compressed: bool,
    deterministic: bool,
) -> list[Tensor]:
    dk_cmp, dv_cmp = (kc, vc) if compressed else (k_sel, v_sel)
    shaped = (q, dk_cmp, dv_cmp, k_sel, v_sel, k_win, v_win, gates)
    return [x.new_empty(x.shape) for x in shaped]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, sizes, scale, compressed, deterministic = inputs
    kc, vc = (k_cmp, v_cmp) if compressed else output[7:9]
    # Only the first output has a gradient; zeros for the others would cost three times its memory.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, kc, vc, k_sel, v_sel, k_win, v_win, gates, *output[1:7], *output[9:])
    ctx.options = (list(sizes), scale, compressed, deterministic)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    do = grads[0]
    if do is None:
        return (None,) * (_N_SAVED + 4)
    tensors = ctx.saved_tensors
    result = attention_backward(do.contiguous(), *tensors[:_N_SAVED], list(tensors[_N_SAVED:]), *ctx.options)
    return (*result, None, None, None, None)


def _no_second_derivative(ctx: Any, *grads: Any) -> None:
    raise NotImplementedError("nsa::attention_backward has no derivative: call backward without create_graph=True")


torch.library.register_autograd("nsa::attention", _backward, setup_context=_setup_context)
torch.library.register_autograd("nsa::attention_backward", _no_second_derivative)
