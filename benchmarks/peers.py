"""Attention beside its peers in one run: ``python -m benchmarks.peers``.

Dense causal attention by cuDNN and by FlashAttention-4 (package ``flash-attn-4``), and three public implementations of
Native Sparse Attention where their packages lie in the folders given: ``flash_nsa`` (``--flash-nsa DIR``, repository
mdy666/Scalable-Flash-Native-Sparse-Attention), ``native_sparse_attention`` (``--nsa-triton DIR``, repository
XunhaoLai/native-sparse-attention-triton), and ``fsa`` with ``nsa_ref`` (``--fsa DIR``, repository
Relaxed-System-Lab/Flash-Sparse-Attention).

All take the same queries, keys, values and gates; the branches share keys and values, for no peer knows three pairs.
Outputs are compared before anything is timed, the sparse ones with ours and the dense ones with each other; who is off
gets no time. Choices of nearly equal blocks may differ, so the bound on sparse peers is wide.

Short sequences are also timed from a CUDA graph, ours and the dense ones: launched they may wait for Python.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.errors import TritonError

from benchmarks.attention_gpu import limit_ms, median_ms, table
from benchmarks.kernels_beside import SHAPES
from benchmarks.kernels_device import SIZES, ceilings, graphed, relative
from benchmarks.machine import need_gpu
from nsa.kernels import nsa_attention_triton
from nsa.kernels.precompile import Shape, warm

L, D, BLOCK, TOP, WINDOW = SIZES
SPARSE_BOUND, DENSE_BOUND = 0.1, 1e-2
GRAPH_UP_TO = 8192
"""Tokens of the longest sequence that is timed from a graph too."""
_UNFIT = (ImportError, AttributeError, AssertionError, TypeError, ValueError, RuntimeError, TritonError)
"""What a peer may end with that is not there, or not made for the shape or the versions at hand."""


@dataclass(frozen=True)
class Inputs:
    """``q [1, S, H, dim]``, ``k, v [1, S, G, dim]``, ``gates [1, S, H, 3]`` float32 in (0, 1), and dO."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Tensor
    do: Tensor

    @classmethod
    def draw(cls, shape: tuple[int, ...]) -> Inputs:
        S, H, G, Dk, Dv = shape
        gen = torch.Generator("cuda").manual_seed(0)

        def normal(heads: int, dim: int) -> Tensor:
            x = torch.randn(1, S, heads, dim, generator=gen, device="cuda")
            return x.to(torch.bfloat16).requires_grad_()

        gates = 0.1 + 0.8 * torch.rand(1, S, H, 3, generator=gen, device="cuda")
        return cls(normal(H, Dk), normal(G, Dk), normal(G, Dv), gates.requires_grad_(), normal(H, Dv).detach())

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v


Make = Callable[[Inputs], Callable[[], Tensor]]
"""A peer's forward pass over some inputs, ``[1, S, H, dim]``."""


def ours(x: Inputs) -> Callable[[], Tensor]:
    def forward() -> Tensor:
        o = nsa_attention_triton(x.q, x.k, x.v, x.k, x.v, x.k, x.v, x.gates, l=L, d=D, l_sel=BLOCK, n_sel=TOP, w=WINDOW)
        assert isinstance(o, Tensor)
        return o

    return forward


def dense_cudnn(x: Inputs) -> Callable[[], Tensor]:
    def forward() -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in x.leaves)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

    return forward


def dense_fa4(x: Inputs) -> Callable[[], Tensor]:
    function = importlib.import_module("flash_attn.cute.interface").flash_attn_func

    def forward() -> Tensor:
        o = function(*x.leaves, causal=True)
        return o[0] if isinstance(o, tuple) else o

    return forward


def flash_nsa(x: Inputs) -> Callable[[], Tensor]:
    peer, layer = importlib.import_module("flash_nsa"), importlib.import_module("flash_nsa.modules.hf_level_nsa")
    if not any(importlib.util.find_spec(name) for name in ("flash_attn_interface", "flash_attn_2_cuda")):
        # It takes its window from FlashAttention, and has none of its own where that is missing.
        window = _window()
        layer.swa_varlen_func = lambda q, k, v, _scale: window(q[None], k[None], v[None])[0]  # type: ignore[attr-defined]
    S, H, G = x.q.shape[1], x.q.shape[2], x.k.shape[2]
    config = peer.NSAConfig(
        num_heads=H, num_kv_heads=G, head_dim=x.q.shape[3], v_head_dim=x.v.shape[3], kernel_size=L, stride=D,
        block_size=BLOCK, top_n=TOP, num_init_blocks=1, num_local_blocks=2, window_size=WINDOW,
    )  # fmt: skip
    core = peer.HFNSACore(config).to(x.q)
    # It applies the sigmoid itself.
    weights = torch.logit(x.gates.detach())[0].to(x.q.dtype).requires_grad_()
    ends = torch.tensor([0, S], dtype=torch.int32, device="cuda")
    return lambda: core(x.q[0], x.k[0], x.v[0], weights, ends)[None]


def _window() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention over the last ``WINDOW`` positions: native_sparse_attention takes its window from elsewhere."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled: Any = torch.compile(flex_attention, dynamic=False)
    masks: dict[int, Any] = {}

    def seen(_b: Tensor, _h: Tensor, t: Tensor, n: Tensor) -> Tensor:
        return (n <= t) & (n > t - WINDOW)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        S = q.shape[1]
        if S not in masks:
            masks[S] = create_block_mask(seen, None, None, S, S, device="cuda")
        o: Tensor = compiled(*(t.transpose(1, 2) for t in (q, k, v)), block_mask=masks[S], enable_gqa=True)
        return o.transpose(1, 2)

    return attend


def _of_branches(ops: Any, attend_chosen: Callable[..., Tensor], x: Inputs) -> Callable[[], Tensor]:
    """Compressed branch and choice of blocks by ``ops``, the chosen blocks by ``attend_chosen``."""
    window, S = _window(), x.q.shape[1]
    ends = torch.tensor([0, S], dtype=torch.int32, device="cuda")

    def forward() -> Tensor:
        q, k, v = (t[0] for t in x.leaves)
        kc, compressed_ends = ops.avgpool_compress(k, None, ends, L, D)
        vc, _ = ops.avgpool_compress(v, None, ends, L, D)
        n_compressed = (S - L) // D + 1
        o_cmp, top = ops.compressed_attention(
            q, kc, vc, L, D, BLOCK, TOP, ends, compressed_ends, S, n_compressed, None, 1, 2
        )  # fmt: skip
        o_sel = attend_chosen(q, k, v, top, BLOCK, ends, None)
        gates = x.gates.to(q.dtype)
        o: Tensor = gates[..., :1] * o_cmp + gates[..., 1:2] * o_sel + gates[..., 2:] * window(*x.leaves)
        return o

    return forward


def nsa_triton(x: Inputs) -> Callable[[], Tensor]:
    ops = importlib.import_module("native_sparse_attention.ops")
    return _of_branches(ops, ops.topk_sparse_attention, x)


def fsa(x: Inputs) -> Callable[[], Tensor]:
    """Its own kernels are for groups of up to eight heads; for larger ones its layer takes those beside them."""
    ops, own = importlib.import_module("nsa_ref.ops"), importlib.import_module("fsa.ops")
    few = x.q.shape[2] // x.k.shape[2] <= 8
    return _of_branches(ops, own.FSA_topk_sparse_attention if few else ops.topk_sparse_attention, x)


SPARSE: dict[str, Make] = {"ours": ours, "flash_nsa": flash_nsa, "NSA-triton": nsa_triton, "FSA": fsa}
DENSE: dict[str, Make] = {"dense cuDNN": dense_cudnn, "dense FA4": dense_fa4}


def timed(make: Make, x: Inputs, reference: Tensor | None, bound: float) -> tuple[dict[str, Any], Tensor | None]:
    """A peer's times, or why it has none; and its output."""
    try:
        forward = make(x)
        o = forward().detach()
        if reference is not None:
            error = relative(o, reference)
            if not error <= bound:
                return {"reason": f"off by {error:.2g}"}, None

        def without_gradients() -> None:
            with torch.no_grad():
                forward()

        def both() -> None:
            torch.autograd.grad(forward(), x.leaves, x.do)

        found: dict[str, Any] = {"forward_ms": median_ms(without_gradients), "both_ms": median_ms(both)}
        if make in (ours, *DENSE.values()) and x.q.shape[1] <= GRAPH_UP_TO:
            with contextlib.suppress(*_UNFIT):
                found["graph_ms"] = graphed(both)
    except _UNFIT as error:
        return {"reason": f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"}, None
    return found, o


def ratios(row: dict[str, dict[str, Any]], limit: float) -> dict[str, float | None]:
    """Ours to the fastest sparse peer and to dense FlashAttention-4, forward and backward, and the limit's share. The
    second is of times from a graph where both have one."""
    own = row["ours"].get("both_ms")
    peers = [row[name]["both_ms"] for name in SPARSE if name != "ours" and "both_ms" in row[name]]
    way = "graph_ms" if all("graph_ms" in row[name] for name in ("ours", "dense FA4")) else "both_ms"
    dense = row["dense FA4"].get(way)
    return {
        "best_nsa": own / min(peers) if own and peers else None,
        "dense_fa4": row["ours"][way] / dense if own and dense else None,
        "share_of_limit": limit / own if own else None,
    }


def measure(shape: tuple[int, ...], tflops: float) -> dict[str, Any]:
    """All peers over one shape."""
    torch.compiler.reset()  # each shape compiles FlexAttention anew, and behind eight variants torch compiles no more
    x = Inputs.draw(shape)
    row: dict[str, Any] = {}
    for peers, bound in ((SPARSE, SPARSE_BOUND), (DENSE, DENSE_BOUND)):
        reference = None
        for name, make in peers.items():
            row[name], o = timed(make, x, reference, bound)
            reference = o if reference is None else reference
            torch.cuda.empty_cache()
    return row | {"ratios": ratios(row, limit_ms(shape, 1, tflops)["both_ms"])}


def as_markdown(result: dict[str, Any]) -> str:
    """One table: forward and backward, forward in brackets, and both from a graph where that was timed."""

    def cell(found: dict[str, Any]) -> str | None:
        if "both_ms" not in found:
            return None
        graph = f", graph {found['graph_ms']:.2f}" if "graph_ms" in found else ""
        return f"{found['both_ms']:.2f} ({found['forward_ms']:.2f}{graph})"

    names = [*DENSE, *SPARSE]
    rows = []
    for shape, row in result["shapes"].items():
        cells = [cell(row[n]) for n in names]
        rows.append([shape, *cells, *row["ratios"].values()])
    head = ["shape", *names, "ours / best NSA", "ours / dense FA4", "share of limit"]
    return f"{result['gpu']}, torch {result['torch']}, {result['date']}; ms\n\n{table(head, rows)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flash-nsa", type=Path, help="folder that holds the package flash_nsa")
    parser.add_argument("--nsa-triton", type=Path, help="folder that holds the package native_sparse_attention")
    parser.add_argument("--fsa", type=Path, help="folder that holds the packages fsa and nsa_ref")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    need_gpu("peers")
    folders = (arguments.flash_nsa, arguments.nsa_triton, arguments.fsa)
    sys.path[:0] = [str(path) for path in folders if path is not None]
    names = arguments.shapes.split(",")
    warm([Shape(*SHAPES[name]) for name in names])
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"),
        "ceilings": ceilings(), "shapes": {},
    }  # fmt: skip
    for name in names:
        result["shapes"][name] = measure(SHAPES[name], result["ceilings"]["matmul_tflops"])
        print(name, json.dumps(result["shapes"][name]), flush=True)
    print(as_markdown(result))
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "peers.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (arguments.out / "peers.md").write_text(as_markdown(result) + "\n", encoding="utf-8")
    return 0 if all("both_ms" in row["ours"] for row in result["shapes"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
