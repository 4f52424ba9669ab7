"""A decode step on a GPU beside dense attention: ``python -m benchmarks.decode_gpu``.

One step of a layer stores the keys and values of a new position and attends from it, for NSA as for dense attention;
both are replayed from a CUDA graph. The NSA step is the mean of 16 consecutive ones, of which one completes a
compressed token. Several layers take turns, so that their caches come from memory as they do in a model. A plan that
gives a wrong output gets no time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import kernels_device as kd
from benchmarks.machine import need_gpu
from nsa.attention.cache import NSACache
from nsa.attention.decode import decode_branches
from nsa.attention.functional import combine
from nsa.attention.geometry import Geometry
from nsa.kernels import step
from nsa.kernels.cluster import why_no_cluster
from nsa.kernels.decode_plan import Plan
from nsa.kernels.precompile import Launch, Shape, record_decode, warm_launches

__all__ = ["BACKENDS", "SHAPES", "decode_row", "without_clusters"]

SHAPES = {"125M": (12, 2, 64, 64), "wide": (64, 4, 128, 128)}
BATCH, CONTEXT, LAYERS, STEPS = 8, 65536, 6, 16
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "default": None}
SIZES = list(kd.SIZES)


def without_clusters() -> Any:
    """A context in which a step runs by Triton in one launch, as where there are no clusters."""
    return mock.patch.object(step, "why_no_cluster", return_value="benchmark")


@dataclass(frozen=True)
class Layer:
    """One layer's full cache, its lengths on the device, and what a step gets."""

    q: Tensor
    gates: Tensor
    new: list[Tensor]
    cache: NSACache
    lengths: Tensor

    @property
    def caches(self) -> tuple[Tensor, ...]:
        c = self.cache
        return c.k_raw, c.v_raw, c.k_cmp, c.v_cmp, c.k_sel, c.v_sel, c.k_win, c.v_win

    def step(self) -> tuple[Tensor, Tensor]:
        """One position stored and attended from, in one launch where the GPU can."""
        scale = self.q.shape[-1] ** -0.5
        o, top = step.decode_step(
            self.q, self.gates, self.new, *self.caches, self.lengths, self.cache.arrivals, SIZES, scale
        )  # fmt: skip
        return o, top

    def resident(self) -> tuple[Tensor, Tensor]:
        """The same without clusters."""
        with without_clusters():
            return self.step()

    def parts(self) -> tuple[Tensor, Tensor]:
        """The same by a launch for each part."""
        step.decode_append(self.new, *self.caches, self.lengths, SIZES[0], SIZES[1])
        o, top = step.decode_attention(
            self.q, self.gates, *self.caches[2:], self.lengths, SIZES, self.q.shape[-1] ** -0.5
        )
        return o, top


def layers(shape: tuple[int, ...], n: int) -> Iterator[Layer]:
    """``n`` layers whose caches are full but for the last ``STEPS`` positions."""
    H, G, Dk, Dv = shape
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    for _ in range(n):
        cache = NSACache(geometry=Geometry(), batch=BATCH, max_len=CONTEXT, n_kv_groups=G, d_k=Dk, d_v=Dv, **bf16)
        for x in (
            cache.k_raw,
            cache.v_raw,
            cache.k_cmp,
            cache.v_cmp,
            cache.k_sel,
            cache.v_sel,
            cache.k_win,
            cache.v_win,
        ):
            x.normal_()
        cache.length = CONTEXT
        new = [torch.randn(BATCH, 1, G, width, **bf16) for _ in range(3) for width in (Dk, Dv)]
        lengths = torch.full((BATCH, G), CONTEXT - STEPS, device="cuda", dtype=torch.int32)
        q, gates = torch.randn(BATCH, 1, H, Dk, **bf16), torch.rand(BATCH, 1, H, 3, device="cuda")
        yield Layer(q, gates, new, cache, lengths)


def graph_us(call: Callable[[], Any], *, per: int, before: Callable[[], Any] = lambda: None) -> float:
    """Microseconds of one of the ``per`` steps of ``call``, replayed from a CUDA graph; ``before`` is not timed."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        before()
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    before()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(33):
        before()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / per)
    return sorted(times[3:])[15]


def check(layer: Layer, step_of: Callable[[], tuple[Tensor, Tensor]]) -> float:
    """Relative error of the last step of a full cache, against torch, with memory poisoned beforehand."""
    layer.lengths.fill_(CONTEXT - 1)
    kd.poison(1.0)
    o, _ = step_of()
    wanted = combine(decode_branches(layer.q, layer.cache, scale=layer.q.shape[-1] ** -0.5), layer.gates)
    return kd.relative(o, wanted) if bool((layer.lengths == CONTEXT).all()) else float("nan")


def sparse_row(name: str, *, eager: bool = True) -> dict[str, Any]:
    """NSA alone."""
    made = list(layers(SHAPES[name], LAYERS))
    ways = {"": Layer.step, "_resident": Layer.resident, "_parts": Layer.parts}
    first = made[0]
    row: dict[str, Any] = {f"error{way}": check(first, lambda call=call: call(first)) for way, call in ways.items()}  # type: ignore[misc]
    row["no_cluster"] = why_no_cluster(first.q, first.gates, step.sizes_of(first.q, first.caches[2:], SIZES))
    row["ok"] = max(row[f"error{way}"] for way in ways) <= 1e-2
    if not row["ok"]:
        return row

    def reset(length: int = CONTEXT - STEPS) -> None:
        for layer in made:
            layer.lengths.fill_(length)

    def steps(call: Callable[[Layer], Any]) -> Callable[[], None]:
        def all_layers() -> None:
            for _ in range(STEPS):
                for layer in made:
                    call(layer)

        return all_layers

    def completing() -> None:
        for layer in made:
            layer.step()

    row["nsa_us"] = graph_us(steps(Layer.step), per=STEPS * LAYERS, before=reset)
    row["completing_us"] = graph_us(completing, per=LAYERS, before=lambda: reset(CONTEXT - 1))
    if eager:
        for way in ("resident", "parts"):
            row[f"{way}_us"] = graph_us(steps(ways[f"_{way}"]), per=STEPS * LAYERS, before=reset)
        row["kernels_us"] = {k: round(1e3 * ms / LAYERS, 2) for k, ms in kd.kernel_times(completing, 5).items()}
        row["eager_us"] = kd.time_ms(completing) * 1e3 / LAYERS
    return row


def dense_row(name: str) -> dict[str, Any]:
    """Dense attention over the whole cache, alone and with the new position stored before it."""
    H, G, Dk, Dv = SHAPES[name]
    row: dict[str, Any] = {}
    kv = torch.randn(2, BATCH, CONTEXT, G, max(Dk, Dv), device="cuda", dtype=torch.bfloat16)
    k, v = kv[0, ..., :Dk].transpose(1, 2), kv[1, ..., :Dv].transpose(1, 2)
    q = torch.randn(BATCH, H, 1, Dk, device="cuda", dtype=torch.bfloat16)
    new = torch.randn_like(kv[:, :, -1])

    def attend() -> None:
        for _ in range(LAYERS):
            F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def store_and_attend() -> None:
        for _ in range(LAYERS):
            kv[:, :, -1] = new
            F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    for backend, chosen in BACKENDS.items():
        try:
            with sdpa_kernel(chosen) if chosen else contextlib.nullcontext():
                row[f"{backend}_us"] = graph_us(attend, per=LAYERS)
                row[f"{backend}_stored_us"] = graph_us(store_and_attend, per=LAYERS)
        except RuntimeError as error:
            row[f"{backend}_reason"] = str(error).splitlines()[0][:160]
    return row


def decode_row(name: str) -> dict[str, Any]:
    """One shape: NSA and dense attention with a full cache."""
    row = {"shape": name, "batch": BATCH, "context": CONTEXT} | sparse_row(name)
    torch.cuda.empty_cache()
    return row | dense_row(name) if row["ok"] else row


def _launches(plan: Plan | None) -> list[Launch]:
    shapes = [Shape(CONTEXT, *shape, B=BATCH) for shape in SHAPES.values()]
    return [one for shape in shapes for one in record_decode(shape, plan=plan, together=True)]


def main() -> None:
    """Print and store a row for each shape, and with ``--plan``, repeatable, one for each plan instead."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", action="append", default=[], help="of Triton's step: keys,warps,stages,resident")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--out", type=Path, default=Path())
    arguments = parser.parse_args()
    need_gpu("decode_gpu")
    plans = [Plan(*map(int, text.split(","))) for text in arguments.plan]
    warm_launches([one for plan in plans or [None] for one in _launches(plan)])
    rows = []
    for name in arguments.shapes.split(","):
        for plan in plans:
            with (
                mock.patch.object(step, "choose_plan", return_value=plan),
                mock.patch.object(step, "why_no_cluster", return_value="plan"),
            ):
                try:
                    row = sparse_row(name, eager=False)
                except Exception as error:  # noqa: BLE001 - a plan that does not fit is a row of the table
                    row = {"reason": f"{type(error).__name__}: {error}"[:160]}
            rows.append({"shape": name, "plan": str(plan), **row})
            print(json.dumps(rows[-1]), flush=True)
            torch.cuda.empty_cache()
        if not plans:
            rows.append(decode_row(name))
            print(json.dumps(rows[-1]), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "decode.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
