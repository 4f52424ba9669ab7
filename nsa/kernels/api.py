"""What the attention package calls: can the kernels serve this problem, and the attention itself."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.attention.arguments import check_scale, check_streams
from nsa.attention.geometry import Geometry
from nsa.kernels import ops
from nsa.kernels.config import interpreting, split_head_dim

__all__ = ["BlockSizes", "nsa_attention_triton", "why_unsupported"]

_MAX_HEADS_PER_GROUP = 32
_MAX_HEAD_DIM = 256
_MAX_BLOCK = 128
_MAX_OFFSET = 2**31
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class BlockSizes(Protocol):
    """The block sizes that :func:`why_unsupported` reads."""

    @property
    def l(self) -> int: ...  # noqa: E743
    @property
    def d(self) -> int: ...
    @property
    def l_sel(self) -> int: ...
    @property
    def n_sel(self) -> int: ...


def why_unsupported(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    *,
    geometry: BlockSizes,
    compressed: bool,
) -> str | None:
    """None if the kernels can run, else the reason, one word or two in snake case.

    ``device`` (no CUDA and no interpreter), ``capability`` (older than 8.0), ``dtype``, ``heads_per_group``
    (more than 32), ``head_dim`` (more than 256), ``length`` (keys beyond 32-bit offsets), ``block_size``
    (``l_sel`` above 128), ``n_sel`` (below 3: the forced blocks alone are three).
    """
    H, Dk = q.shape[2:]
    if interpreting():
        # The interpreter computes bfloat16 products wrongly without saying so.
        dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    elif q.device.type != "cuda":
        return "device"
    elif torch.cuda.get_device_capability(q.device) < (8, 0):
        return "capability"
    else:
        dtypes = _DTYPES
    if any(x.dtype not in dtypes for x in (q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)):
        return "dtype"
    if H // k_sel.shape[2] > _MAX_HEADS_PER_GROUP:
        return "heads_per_group"
    if max(Dk, v_sel.shape[-1]) > _MAX_HEAD_DIM:
        return "head_dim"
    if k_sel.shape[1] * k_sel.shape[2] * _MAX_HEAD_DIM >= _MAX_OFFSET:
        return "length"
    if geometry.l_sel > _MAX_BLOCK:
        return "block_size"
    return "n_sel" if geometry.n_sel < 3 else None


def _ready(x: Tensor, width: int) -> Tensor:
    """Padded to ``width``, unit stride in the last dimension, and rows within reach of a 32-bit offset."""
    if x.shape[-1] != width:
        return F.pad(x, (0, width - x.shape[-1]))
    return x if x.stride(-1) == 1 and x.shape[1] * x.stride(1) < _MAX_OFFSET else x.contiguous()


def nsa_attention_triton(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    *,
    l: int = 32,  # noqa: E741 - the paper's symbol
    d: int = 16,
    l_sel: int = 64,
    n_sel: int = 16,
    w: int = 512,
    scale: float | None = None,
    compressed: bool = False,
    return_aux: bool = False,
    deterministic: bool | None = None,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Native Sparse Attention (arXiv 2502.11089) by the fused kernels; arguments as
    :func:`nsa.attention.nsa_attention`.

    Args:
        compressed: ``k_cmp [B, C, G, Dk]`` and ``v_cmp [B, C, G, Dv]`` hold one entry per complete compression
        block already.
        deterministic: gradients bit-equal between runs, at the price of a sort and, on Hopper, of its own kernels; None
            follows ``torch.use_deterministic_algorithms``. The output always is.

    Returns: ``o [B, S, H, Dv]``, or with ``return_aux`` ``(o, (blocks, o_cmp, o_sel, o_win))``. Gradients flow
        through ``o`` only: the branch outputs are detached.

    Raises:
        ValueError: a shape, type, device, size or the scale does not fit, in the words of
            :func:`nsa.attention.nsa_attention`. Whether the kernels serve it is for :func:`why_unsupported` to say.
    """
    geometry = Geometry(l=l, d=d, l_sel=l_sel, n_sel=n_sel, w=w)
    n_compressed = geometry.n_compressed(q.shape[1]) if compressed else None
    check_streams((q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win), gates, n_compressed=n_compressed)
    Dk, Dv = q.shape[-1], v_sel.shape[-1]
    scale = check_scale(scale, Dk)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    dims = split_head_dim(Dk, Dv)
    q, k_cmp, k_sel, k_win = (_ready(x, dims.dk) for x in (q, k_cmp, k_sel, k_win))
    v_cmp, v_sel, v_win = (_ready(x, dims.dv) for x in (v_cmp, v_sel, v_win))
    tensors = (q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates.contiguous())
    sizes = [l, d, l_sel, n_sel, w]
    if not return_aux and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return ops.attention_output(*tensors, sizes, scale, compressed)[..., :Dv]
    result = ops.attention(*tensors, sizes, scale, compressed, deterministic)
    o: Tensor = result[0][..., :Dv]
    if not return_aux:
        return o
    o_cmp, o_sel, o_win = (x.detach()[..., :Dv] for x in result[1:4])
    B, S, G = k_sel.shape[:3]
    top = result[9].view(B, G, S, -1).transpose(1, 2)
    return o, (selected_blocks(top, l_sel=l_sel, n_sel=n_sel), o_cmp, o_sel, o_win)


def selected_blocks(top: Tensor, *, l_sel: int, n_sel: int, first: int = 0) -> Tensor:
    """The whole selection of positions from ``first`` on: ``top [B, S, G, n]`` scored blocks with the forced ones,
    ``[B, S, G, n_sel]`` int32 ascending, then -1."""
    B, S, G, n = top.shape
    none = torch.iinfo(torch.int32).max
    own = torch.arange(first, first + S, dtype=torch.int32, device=top.device) // l_sel
    forced = torch.stack((torch.zeros_like(own), own.clamp(min=1) - 1, own), dim=-1)
    forced[:, 1].masked_fill_(own < 2, none)
    forced[:, 2].masked_fill_(own < 1, none)
    every = torch.cat((forced[:, None].expand(B, S, G, 3), top.masked_fill(top < 0, none)), dim=-1)
    blocks = F.pad(every, (0, max(n_sel - n - 3, 0)), value=none).sort(dim=-1).values
    return blocks.masked_fill(blocks == none, -1)
