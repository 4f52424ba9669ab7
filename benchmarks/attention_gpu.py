"""Attention on a GPU beside dense attention: ``python -m benchmarks.attention --device cuda [--out DIR]``.

Everything comes from one run: ceilings of the card, checks, forward and forward+backward of each shape with dense
FlashAttention and cuDNN beside it, growth with the length, and a decode step. What fails its check gets no time.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import kernels_device as kd
from nsa.attention.cache import NSACache
from nsa.attention.decode import decode_branches
from nsa.attention.functional import combine
from nsa.attention.geometry import Geometry

__all__ = ["run"]

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
DECODE = {"125M": (12, 2, 64, 64), "wide": (64, 4, 128, 128)}
DECODE_BATCH, DECODE_CONTEXT = 8, 65536
GROWTH = (32768, 65536, 131072)


def median_ms(call: Callable[[], Any], *, least: int = 5, budget_ms: float = 300.0) -> float:
    """Median time of one call by device events, after two calls unmeasured."""
    call()
    call()
    times: list[float] = []
    while len(times) < least or (sum(times) < budget_ms and len(times) < 200):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def dense_inputs(shape: tuple[int, ...], batch: int) -> list[Tensor]:
    """``q, k, v`` as dense attention takes them, ``[B, heads, S, D]``, stored as ``[B, S, heads, D]``."""
    S, H, G, Dk, Dv = shape
    made = [torch.randn(batch, S, n, d, device="cuda", dtype=torch.bfloat16) for n, d in ((H, Dk), (G, Dk), (G, Dv))]
    return [x.transpose(1, 2).requires_grad_() for x in made]


def dense_ms(shape: tuple[int, ...], batch: int, backend: str) -> dict[str, float | str]:
    """Forward and forward+backward of causal scaled_dot_product_attention; keys are expanded beforehand where the
    backend has no grouped form."""
    q, k, v = dense_inputs(shape, batch)
    reason = ""
    for grouped in (True, False):
        if not grouped:
            k, v = (x.detach().repeat_interleave(q.shape[1] // x.shape[1], 1).requires_grad_() for x in (k, v))

        def forward(k: Tensor = k, v: Tensor = v, grouped: bool = grouped) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)

        try:
            with sdpa_kernel(BACKENDS[backend]):
                do = torch.randn_like(forward())

                def both(k: Tensor = k, v: Tensor = v, do: Tensor = do) -> None:
                    torch.autograd.grad(forward(), (q, k, v), do)

                with torch.no_grad():
                    forward_ms = median_ms(forward)
                return {"forward_ms": forward_ms, "both_ms": median_ms(both), "grouped": str(grouped)}
        except RuntimeError as error:
            reason = str(error).splitlines()[0][:160]
    return {"reason": reason}


def decode_caches(shape: tuple[int, ...], n: int) -> Iterator[tuple[Tensor, Tensor, NSACache, list[Tensor]]]:
    """``n`` layers' worth of query, gates, full caches and one new position; room for 64 positions is left."""
    H, G, Dk, Dv = shape
    B, N = DECODE_BATCH, DECODE_CONTEXT
    for _ in range(n):
        cache = NSACache(
            geometry=Geometry(), batch=B, max_len=N, n_kv_groups=G, d_k=Dk, d_v=Dv, device="cuda", dtype=torch.bfloat16
        )
        for x in (cache.k_cmp, cache.v_cmp, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win, cache.k_raw):
            x.normal_()
        cache.length = N
        q = torch.randn(B, 1, H, Dk, device="cuda", dtype=torch.bfloat16)
        new = [torch.randn(B, 1, G, d, device="cuda", dtype=torch.bfloat16) for _ in range(3) for d in (Dk, Dv)]
        yield q, torch.rand(B, 1, H, 3, device="cuda"), cache, new


def fused_step(q: Tensor, gates: Tensor, cache: NSACache, new: list[Tensor], lengths: Tensor) -> tuple[Tensor, Tensor]:
    """One position stored and attended from, by the kernels."""
    from nsa.kernels import step

    geo = cache.geometry
    streams = (cache.k_cmp, cache.v_cmp, cache.k_sel, cache.v_sel, cache.k_win, cache.v_win)
    step.decode_append(new, cache.k_raw, cache.v_raw, *streams, lengths, geo.l, geo.d)
    sizes = [geo.l, geo.d, geo.l_sel, geo.n_sel, geo.w]
    return step.decode_attention(q, gates, *streams, lengths, sizes, q.shape[-1] ** -0.5)


def graph_ms(call: Callable[[], Any], per: int) -> float:
    """Milliseconds of one of the ``per`` steps that ``call`` makes, replayed from a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return median_ms(graph.replay, least=50) / per


def decode_row(name: str, *, layers: int = 6) -> dict[str, Any]:
    """One decode step at the full context: the kernels (append included) against dense attention (append left out).

    Several layers take turns, so that their caches come from memory as they do in a model.
    """
    shape = DECODE[name]
    _, G, Dk, Dv = shape
    made = list(decode_caches(shape, layers))
    lengths = [torch.full((DECODE_BATCH,), DECODE_CONTEXT - 1, device="cuda", dtype=torch.int32) for _ in made]
    row: dict[str, Any] = {"shape": name, "batch": DECODE_BATCH, "context": DECODE_CONTEXT}
    q, gates, cache, new = made[0]
    o, _ = fused_step(q, gates, cache, new, lengths[0])
    wanted = combine(decode_branches(q, cache, scale=Dk**-0.5), gates)
    row["error"] = kd.relative(o, wanted)
    row["ok"] = row["error"] <= 1e-2
    if not row["ok"]:
        return row

    def sparse(made: list[Any] = made) -> None:
        for one, length in zip(made, lengths, strict=True):
            fused_step(*one, length)
            length.sub_(1)

    def back() -> None:
        for length in lengths:
            length.sub_(1)

    lengths[0].sub_(1)
    row["kernels_us"] = {name: round(1e3 * ms / layers, 2) for name, ms in kd.kernel_times(sparse, 5).items()}
    row["nsa_us"] = 1e3 * (graph_ms(sparse, layers) - graph_ms(back, layers))
    row["eager_us"] = 1e3 * median_ms(sparse, least=20) / layers
    del made, sparse
    torch.cuda.empty_cache()
    kv = [torch.randn(DECODE_BATCH, DECODE_CONTEXT, G, d, device="cuda", dtype=torch.bfloat16) for d in (Dk, Dv)]
    k, v = (x.transpose(1, 2) for x in kv)
    best: dict[str, float] = {}
    for backend in BACKENDS:

        def dense() -> None:
            F.scaled_dot_product_attention(q.transpose(1, 2), k, v, enable_gqa=True)

        try:
            with sdpa_kernel(BACKENDS[backend]):
                best[backend] = 1e3 * graph_ms(dense, 1)
        except RuntimeError as error:
            row[f"{backend}_reason"] = str(error).splitlines()[0][:160]
    row |= {f"{backend}_us": us for backend, us in best.items()}
    if best:
        row["times_faster"] = min(best.values()) / row["nsa_us"]
    return row


def main() -> None:
    """Print decode rows alone."""
    for name in DECODE:
        print(json.dumps(decode_row(name)))


if __name__ == "__main__":
    main()
