"""Attention on a GPU beside dense attention: ``python -m benchmarks.attention --device cuda [--out DIR]``.

Everything comes from one run: ceilings of the card, checks, forward and forward+backward of each shape with dense
FlashAttention and cuDNN beside it, growth with the length, and a decode step. What fails its check gets no time.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import decode_gpu
from benchmarks import kernels_device as kd
from nsa.config import ModelConfig
from nsa.flops import nsa_keys_per_query
from nsa.kernels.precompile import Shape, warm

__all__ = ["run"]

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
DENSE = ("flash", "flash_stored", "cudnn", "cudnn_stored", "default", "default_stored")
GROWTH = (32768, 65536, 131072)


def median_ms(call: Callable[[], Any], *, least: int = 5, budget_ms: float = 300.0) -> float:
    """Median time of one call by device events, after two calls unmeasured. Calls follow each other as in a training
    step, none waits for the one before: what Python takes counts only where the GPU is done sooner."""

    def take(n: int) -> list[float]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(n)]  # type: ignore[no-untyped-call]
        for begin, end in events:
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in events]

    call()
    (first,) = take(1)
    return statistics.median(take(min(max(least, int(budget_ms / first)), 200)))


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


def limit_ms(shape: tuple[int, ...], batch: int, tflops: float) -> dict[str, float]:
    """Time of the products alone at ``tflops``: two per key forward, and the scores again to select; five backward."""
    S, H, _, Dk, Dv = shape
    keys = nsa_keys_per_query(ModelConfig(), S)
    per_key = 2.0 * batch * S * H * (Dk + Dv)
    score = 2.0 * batch * S * H * Dk * keys.cmp
    forward = per_key * keys.total + score
    backward = 2.0 * batch * S * H * (3 * Dk + 2 * Dv) * keys.total
    return {"forward_ms": forward / tflops / 1e9, "both_ms": (forward + backward) / tflops / 1e9}


def shape_row(name: str, tflops: float) -> dict[str, Any]:
    """One shape: check, then times, memory, share of the limit, and dense attention beside it."""
    shape, batch = kd.LARGE[name], kd.BATCH.get(name, 1)
    row: dict[str, Any] = {"shape": name, **kd.check_large(name)}
    torch.cuda.empty_cache()
    if not row["ok"]:
        return row
    row |= kd.measure(name)
    limit = limit_ms(shape, batch, tflops)
    row |= {"limit": limit, "share_of_limit": limit["both_ms"] / row["both_ms"]}
    torch.cuda.empty_cache()
    for backend in BACKENDS:
        row[backend] = dense_ms(shape, batch, backend)
        torch.cuda.empty_cache()
    return row


def growth_rows() -> list[dict[str, Any]]:
    """Forward+backward of the wide shape at several lengths, and the exponent of S from the first."""
    rows: list[dict[str, Any]] = []
    _, H, G, Dk, Dv = kd.LARGE["wide64k"]
    for S in GROWTH:
        x = kd.make(1, S, H, G, Dk, Dv, torch.bfloat16)
        do = torch.randn(1, S, H, Dv, device="cuda", dtype=torch.bfloat16)

        def both(x: list[Tensor] = x, do: Tensor = do) -> None:
            torch.autograd.grad(kd.call(x, kd.SIZES), x, do)

        ms = median_ms(both)
        first = rows[0] if rows else None
        exponent = math.log(ms / first["both_ms"]) / math.log(S / first["S"]) if first else None
        rows.append({"S": S, "both_ms": ms, "exponent": exponent})
        del x, do, both
        torch.cuda.empty_cache()
    return rows


def bars(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What is asked of the kernels, what was measured, and whether it holds."""
    found: list[dict[str, Any]] = []

    def bar(text: str, value: float | None, bound: float, *, at_most: bool) -> None:
        holds = value is not None and (value <= bound if at_most else value >= bound)
        found.append({"bar": text, "measured": value, "bound": bound, "holds": holds})

    rows = {row["shape"]: row for row in result["shapes"]}
    for name, floor in kd.FLOORS_MS.items():
        if name in rows:
            bar(f"{name} forward+backward, ms", rows[name].get("both_ms"), floor, at_most=True)
    wide = rows.get("wide64k", {})
    bar("wide64k peak memory, GiB", wide.get("peak_gib"), 16, at_most=True)
    for backend, what, times in (
        ("flash", "forward", 6.0), ("cudnn", "forward", 3.5), ("flash", "both", 7.0), ("cudnn", "both", 4.4),
    ):  # fmt: skip
        dense, ours = wide.get(backend, {}).get(f"{what}_ms"), wide.get(f"{what}_ms")
        value = dense / ours if dense and ours else None
        bar(f"wide64k {what}, times faster than dense {backend}", value, times, at_most=False)
    bar("exponent of S, 32k to 128k", result["growth"][-1]["exponent"], 1.75, at_most=True)
    for row in result["decode"]:
        for backend in BACKENDS:
            dense, ours = row.get(f"{backend}_stored_us"), row.get("nsa_us")
            value = dense / ours if dense and ours else None
            bar(f"decode {row['shape']}, times faster than dense {backend}", value, 5.0, at_most=False)
    return found


def as_text(value: Any, digits: int = 2) -> str:
    """A cell."""
    return "–" if value is None else f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def table(head: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(as_text(cell) for cell in row) + " |" for row in rows)])


def as_markdown(result: dict[str, Any]) -> str:
    """All tables."""
    shapes = []
    for r in result["shapes"]:
        dense = [r.get(b, {}).get(f"{w}_ms") for b in BACKENDS for w in ("forward", "both")]
        own = [r.get(k) for k in ("forward_ms", "both_ms", "graph_ms", "peak_gib", "share_of_limit")]
        shapes.append([r["shape"], *own, *dense])
    head = ["shape", "forward", "forward + backward", "from a graph", "peak GiB", "share of limit"]
    head += ["flash forward", "flash both", "cuDNN forward", "cuDNN both"]
    decode = [[r["shape"], *(r.get(f"{k}_us") for k in ("nsa", "parts", "eager", *DENSE))] for r in result["decode"]]
    parts = [
        f"{result['gpu']}, torch {result['torch']}, Triton {result['triton']}, {result['date']}; medians in ms; "
        f"{result['ceilings']['matmul_tflops']:.0f} TFLOP/s, {result['ceilings']['copy_tb_s']:.2f} TB/s",
        table(head, shapes),
        table(
            ["S", "forward + backward", "exponent"], [[r["S"], r["both_ms"], r["exponent"]] for r in result["growth"]]
        ),
        table(["decode, µs a step", "NSA", "by parts", "eager", *(name.replace("_", ", ") for name in DENSE)], decode),
        table(["bar", "measured", "bound", "holds"], [list(b.values()) for b in result["bars"]]),
    ]
    return "\n\n".join(parts)


def run(out: Path, shapes: list[str] | None = None) -> int:
    """Everything in one run; writes ``attention-gpu.json`` and ``.md``. Returns 1 if a check failed."""
    names = shapes or list(kd.LARGE)
    grown = [Shape(S, *kd.LARGE["wide64k"][1:]) for S in GROWTH]
    warm(kd.shapes_to_warm(names, small=False) + grown)
    result: dict[str, Any] = {
        "schema_version": 1, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": triton.__version__, "date": time.strftime("%Y-%m-%d"), "ceilings": kd.ceilings(),
    }  # fmt: skip
    result["shapes"] = [shape_row(name, result["ceilings"]["matmul_tflops"]) for name in names]
    result["growth"] = growth_rows()
    result["decode"] = [decode_gpu.decode_row(name) for name in decode_gpu.SHAPES]
    result["bars"] = bars(result)
    out.mkdir(parents=True, exist_ok=True)
    (out / "attention-gpu.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (out / "attention-gpu.md").write_text(as_markdown(result) + "\n", encoding="utf-8")
    print(as_markdown(result))
    checked = [*result["shapes"], *result["decode"]]
    for failed in (c for c in checked if not c["ok"]):
        print(f"not timed, its output is wrong: {failed}")
    return 0 if all(c["ok"] for c in checked) else 1
