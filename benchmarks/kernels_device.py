"""Check every kernel on a GPU, then time it: ``python -m benchmarks.kernels_device --out DIR``.

A shape whose output fails its check gets no time. Small problems are checked against the float64 oracle,
forward and backward, with freed memory poisoned by NaN beforehand; the large ones, where no dense reference
fits, by recomputing sampled query rows and sampled key columns in float32 from the kernels' own selection.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import need_gpu
from nsa.kernels.precompile import Shape, warm

SIZES = (32, 16, 64, 16, 512)
NAMES = ("dq", "dk_cmp", "dv_cmp", "dk_sel", "dv_sel", "dk_win", "dv_win", "dgates")
LARGE = {
    "wide64k": (65536, 64, 4, 128, 128),
    "paper64k": (65536, 64, 4, 192, 128),
    "125M64k": (65536, 12, 2, 64, 64),
    "wide8k": (8192, 64, 4, 128, 128),
    "125M8k": (8192, 12, 2, 64, 64),
    "125M2kx32": (2048, 12, 2, 64, 64),
}
BATCH = {"125M2kx32": 32}
FLOORS_MS = {"wide64k": 102, "paper64k": 165, "125M64k": 16, "wide8k": 7.9, "125M8k": 2.6}
TARGETS_MS = {"wide64k": 73, "paper64k": 95, "125M64k": 10, "wide8k": 6.0, "125M8k": 1.5}
SMALL = [
    # B, S, H, G, Dk, Dv, dtype, sizes
    (1, 1100, 32, 2, 128, 128, torch.bfloat16, SIZES),
    (1, 1023, 32, 2, 192, 128, torch.bfloat16, SIZES),
    (2, 1500, 12, 2, 64, 64, torch.bfloat16, SIZES),
    (1, 777, 12, 12, 64, 64, torch.bfloat16, SIZES),
    (1, 1290, 16, 1, 64, 64, torch.float16, SIZES),
    (1, 700, 8, 2, 256, 256, torch.bfloat16, SIZES),
    (1, 31, 8, 2, 64, 64, torch.bfloat16, SIZES),
    # One to three compressed blocks, two keys: nothing averages what few rows leave.
    (1, 47, 6, 1, 128, 128, torch.bfloat16, SIZES),
    (4, 68, 12, 2, 64, 64, torch.bfloat16, SIZES),
    (1, 2, 8, 2, 64, 64, torch.bfloat16, SIZES),
    (1, 900, 12, 2, 64, 64, torch.float32, SIZES),
    (1, 333, 8, 2, 128, 64, torch.float32, (16, 8, 32, 6, 100)),
    (2, 190, 12, 2, 48, 80, torch.bfloat16, (8, 4, 24, 7, 33)),
]


def make(B: int, S: int, H: int, G: int, Dk: int, Dv: int, dtype: torch.dtype, *, seed: int = 0) -> list[Tensor]:
    """Random leaf tensors in the order of the API; gates are float32 in (0, 1)."""
    gen = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=gen, device="cuda", dtype=torch.float32).to(dtype).requires_grad_()

    streams = [normal(B, S, H, Dk)] + [normal(B, S, G, n) for _ in range(3) for n in (Dk, Dv)]
    gates = torch.rand((B, S, H, 3), generator=gen, device="cuda").requires_grad_()
    return [*streams, gates]


def poison(gib: float = 6.0) -> None:
    """Fill memory that the allocator will hand out next with NaN."""
    blocks = [torch.full((int(gib * 2**28 / 4),), float("nan"), device="cuda") for _ in range(4)]
    small = [torch.full((2**17,), float("nan"), device="cuda") for _ in range(512)]
    del blocks, small


def call(x: list[Tensor], sizes: tuple[int, ...], **options: Any) -> Any:
    from nsa.kernels import nsa_attention_triton

    l, d, l_sel, n_sel, w = sizes  # noqa: E741
    return nsa_attention_triton(*x, l=l, d=d, l_sel=l_sel, n_sel=n_sel, w=w, **options)


def relative(a: Tensor, b: Tensor) -> float:
    """Relative error; values below a thousandth of the unit inputs on average count as that much, for a gradient may be
    exactly zero (one key, one weight of 1)."""
    b = b.detach().double()
    a = a.detach().to(b)
    return ((a - b).norm() / b.norm().clamp(min=1e-3 * b.numel() ** 0.5)).item()


def check_small(case: tuple[Any, ...], seed: int) -> dict[str, Any]:
    """Forward and every gradient against the oracle, and the selection against its scores."""
    from nsa.parity.oracle import oracle_attention, selection_defects

    *shape, dtype, sizes = case
    x = make(*shape, dtype, seed=seed)
    l, d, l_sel, n_sel, w = sizes  # noqa: E741
    poison(1.0)
    o, (blocks, *branches) = call(x, sizes, return_aux=True)
    do = torch.randn_like(o)
    grads = torch.autograd.grad(o, x, do)
    y = [t.detach().double().requires_grad_() for t in x]
    ref = oracle_attention(*y, l=l, d=d, l_sel=l_sel, n_sel=n_sel, w=w, blocks=blocks, device="cuda")
    wanted = torch.autograd.grad(ref.o, y, do.double())
    exact = dtype == torch.float32
    bound = 1e-5 if exact else 1e-2
    errors = {"o": relative(o, ref.o)}
    errors |= {n: relative(a, b) for n, a, b in zip(("o_cmp", "o_sel", "o_win"), branches, ref[1:4], strict=True)}
    errors |= {n: relative(a, b) for n, a, b in zip(NAMES, grads, wanted, strict=True)}
    defects = selection_defects(blocks, ref.scores, l_sel=l_sel, n_sel=n_sel, tol=1e-5 if exact else 1e-2)
    bad = {n: e for n, e in errors.items() if not e <= bound}
    return {"case": str(case), "errors": errors, "bad": bad, "defects": defects[:3], "ok": not bad and not defects}


def _rows(x: list[Tensor], o: Tensor, do: Tensor, dq: Tensor, blocks: Tensor, sample: Tensor) -> dict[str, float]:
    """Output and query gradient of sampled positions, batch 0, recomputed in float32."""
    l, d, l_sel, _, w = SIZES  # noqa: E741
    q, kc, vc, ks, vs, kw, vw, gates = (t.detach()[0] for t in x)
    S, G = ks.shape[:2]
    n_cmp = (S - l) // d + 1
    pos = torch.arange(S, device="cuda")
    total = {"o": [0.0, 0.0], "dq": [0.0, 0.0]}
    means = []
    for t in (kc, vc):
        chunks = t[: (n_cmp + 1) * d].float().view(n_cmp + 1, d, G, -1).sum(1)
        means.append(((chunks[:-1] + chunks[1:]) / l).to(t.dtype).float())
    for t in sample.tolist():
        qt = q[t].float().view(G, -1, q.shape[-1]).requires_grad_()
        seen = blocks[0, t]
        outs = []
        picked = torch.stack([torch.isin(pos // l_sel, seen[g][seen[g] >= 0]) & (pos <= t) for g in range(G)])
        window = ((pos <= t) & (pos > t - w)).expand(G, S)
        whole = (torch.arange(n_cmp, device="cuda") * d + l <= t + 1).expand(G, n_cmp)
        for k, v, mask in ((*means, whole), (ks, vs, picked), (kw, vw, window)):
            s = torch.einsum("ghk,ngk->ghn", qt, k.float()) * q.shape[-1] ** -0.5
            s = s.masked_fill(~mask[:, None], float("-inf"))
            outs.append(torch.einsum("ghn,ngv->ghv", s.softmax(-1), v.float()) if mask.any() else 0.0)
        gate = gates[t].float().view(G, -1, 3)
        mixed = sum(gate[..., i : i + 1] * out for i, out in enumerate(outs))
        grad = torch.autograd.grad(mixed, qt, do[0, t].float().view_as(mixed))[0]
        for name, got, want in (("o", o[0, t], mixed), ("dq", dq[0, t], grad)):
            total[name][0] += (got.float().view_as(want) - want).square().sum().item()
            total[name][1] += want.square().sum().item()
    return {name: (a / b) ** 0.5 for name, (a, b) in total.items()}


def _columns(
    x: list[Tensor], saved: list[Tensor], do: Tensor, grads: Any, blocks: Tensor, keys: list[int]
) -> dict[str, float]:
    """Key and value gradients of sampled keys, batch 0, from all queries, in float32."""
    l, d, l_sel, _, w = SIZES  # noqa: E741
    q, kc, vc, ks, vs, kw, vw, gates = (t.detach()[0] for t in x)
    o_b, lse_b = [s[0] for s in saved[1:4]], [s[0] for s in saved[4:7]]
    S, G = ks.shape[:2]
    R = q.shape[1] // G
    n_cmp = (S - l) // d + 1
    pos = torch.arange(S, device="cuda")
    scale = q.shape[-1] ** -0.5
    dof = do[0].float().view(S, G, R, -1)
    total: dict[str, list[float]] = {}

    def one(branch: int, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        dk, dv = [], []
        for g in range(G):
            qg = q[:, g * R : (g + 1) * R].float()
            p = torch.exp2(qg @ k[g].float() * (scale * 1.4426950408889634) - lse_b[branch][:, g * R : (g + 1) * R])
            p = torch.where(mask[:, g, None], p, 0.0) * gates[:, g * R : (g + 1) * R, branch].float()
            delta = (dof[:, g] * o_b[branch][:, g * R : (g + 1) * R].float()).sum(-1)
            ds = p * (dof[:, g] @ v[g].float() - delta)
            dv.append(torch.einsum("sr,srv->v", p, dof[:, g]))
            dk.append(torch.einsum("sr,srk->k", ds, qg) * scale)
        return torch.stack(dk), torch.stack(dv)

    for n in keys:
        chosen = (blocks[0] == n // l_sel).any(-1) & (pos >= n)[:, None]
        window = ((pos >= n) & (pos < n + w))[:, None].expand(S, G)
        want = [*one(1, ks[n], vs[n], chosen), *one(2, kw[n], vw[n], window)]
        sums = [torch.zeros_like(kc[0], dtype=torch.float32), torch.zeros_like(vc[0], dtype=torch.float32)]
        for i in range(max((n - l) // d + 1, 0), min(n // d, n_cmp - 1) + 1):
            if i * d + l <= n:
                continue
            k, v = (t[i * d : i * d + l].float().mean(0).to(t.dtype) for t in (kc, vc))
            mask = (pos >= i * d + l - 1)[:, None].expand(S, G)
            for acc, part in zip(sums, one(0, k, v, mask), strict=True):
                acc += part / l
        for name, ref, got in zip(NAMES[1:7], [*sums, *want], grads[1:7], strict=True):
            pair = total.setdefault(name, [0.0, 0.0])
            pair[0] += (got[0, n].float() - ref).square().sum().item()
            pair[1] += ref.square().sum().item()
    return {name: (a / b) ** 0.5 if b else 0.0 for name, (a, b) in total.items()}


def check_large(name: str) -> dict[str, Any]:
    """Sampled rows and columns of a large problem."""
    from nsa.kernels import ops
    from nsa.kernels.api import selected_blocks

    S, H, G, Dk, Dv = LARGE[name]
    B = BATCH.get(name, 1)
    x = make(B, S, H, G, Dk, Dv, torch.bfloat16, seed=3)
    poison(8.0)
    saved = ops.attention(*x, list(SIZES), Dk**-0.5, False, False)
    o = saved[0]
    do = torch.randn_like(o)
    grads = torch.autograd.grad(o, x, do)
    blocks = selected_blocks(saved[9].view(B, G, S, -1).transpose(1, 2), l_sel=64, n_sel=16)
    sample = torch.cat([torch.tensor([0, 31, 63, 64, 191, 192, S - 1]), torch.randint(0, S, (25,))])
    errors = _rows(x, o, do, grads[0], blocks, sample)
    errors |= _columns(
        x, [s.detach() for s in saved], do, grads, blocks, [0, 40, 64, 1000, S // 2, S - 700, S - 33, S - 1]
    )
    finite = all(bool(torch.isfinite(t).all()) for t in (o, *grads))
    ok = finite and all(e <= 1e-2 for e in errors.values())
    return {"case": name, "errors": errors, "finite": finite, "ok": ok}


def time_ms(fn: Callable[[], Any], grad_to: list[Tensor] | None = None, *, rep: int = 300) -> float:
    import triton

    return float(triton.testing.do_bench(fn, warmup=50, rep=rep, return_mode="median", grad_to_none=grad_to))


def kernel_times(fn: Callable[[], Any], repeats: int = 3) -> dict[str, float]:
    """Milliseconds per call of ``fn`` by kernel name."""
    from torch.profiler import ProfilerActivity, profile

    fn()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        for _ in range(repeats):
            fn()
        torch.cuda.synchronize()
    table: dict[str, float] = {}
    for event in prof.key_averages():
        table[event.key[:60]] = table.get(event.key[:60], 0.0) + event.self_device_time_total / 1e3 / repeats
    return dict(sorted(table.items(), key=lambda kv: -kv[1]))


def measure(name: str) -> dict[str, Any]:
    """Forward and forward+backward medians, peak memory, and the time of each kernel."""
    S, H, G, Dk, Dv = LARGE[name]
    x = make(BATCH.get(name, 1), S, H, G, Dk, Dv, torch.bfloat16)
    do = torch.randn(*x[0].shape[:3], Dv, device="cuda", dtype=torch.bfloat16)

    def forward() -> Tensor:
        return call(x, SIZES)  # type: ignore[no-any-return]

    def both() -> None:
        forward().backward(do)

    def forward_only() -> Tensor:
        with torch.no_grad():
            return forward()

    out: dict[str, Any] = {"shape": name, "forward_ms": time_ms(forward_only), "both_ms": time_ms(both, x)}
    for t in x:
        t.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    both()
    out["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    graph_ms = None
    try:
        graph_ms = graphed(lambda: torch.autograd.grad(call(x, SIZES), x, do))
    except RuntimeError as error:  # a capture failure is a result, not an end
        print(f"{name}: graph capture failed: {str(error)[:200]}")
    out["graph_ms"] = graph_ms
    out["kernels_ms"] = kernel_times(both)
    return out


def graphed(step: Callable[[], Any]) -> float:
    """Milliseconds of a step replayed from a CUDA graph: what a compiled trainer sees, launch gaps removed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return time_ms(graph.replay)


def ceilings() -> dict[str, float]:
    """Matrix rate and copy bandwidth of this GPU in this run."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    matmul_ms = time_ms(lambda: a @ b)
    src = torch.randn(2**30, device="cuda")
    dst = torch.empty_like(src)
    copy_ms = time_ms(lambda: dst.copy_(src))
    return {"matmul_tflops": 2 * 8192**3 / matmul_ms / 1e9, "copy_tb_s": 2 * 4 * 2**30 / copy_ms / 1e9}


def shapes_to_warm(names: list[str], *, small: bool) -> list[Shape]:
    """What the run will launch, for the parallel compiler."""
    shapes = [Shape(*LARGE[n], B=BATCH.get(n, 1)) for n in names]
    if small:
        shapes += [Shape(S, H, G, Dk, Dv, dtype, B=B, sizes=sizes) for B, S, H, G, Dk, Dv, dtype, sizes in SMALL]
    return shapes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--shapes", default=",".join(LARGE))
    parser.add_argument("--skip-small", action="store_true")
    parser.add_argument("--skip-large-check", default="")
    arguments = parser.parse_args()
    need_gpu("kernels_device")
    names = arguments.shapes.split(",")
    start = time.perf_counter()
    compiled = warm(shapes_to_warm(names, small=not arguments.skip_small))
    print(f"compiled {len(compiled)} kernels in {time.perf_counter() - start:.0f} s", flush=True)
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"),
        "ceilings": ceilings(), "checks": [], "times": [],
    }  # fmt: skip
    print(result["gpu"], result["torch"], result["ceilings"], flush=True)
    passed = True
    for seed, case in enumerate([] if arguments.skip_small else SMALL):
        check = check_small(case, seed)
        passed &= check["ok"]
        result["checks"].append(check)
        worst = max(check["errors"].values())
        print(
            ("ok  " if check["ok"] else "FAIL"),
            check["case"],
            f"worst {worst:.1e}",
            check["bad"],
            check["defects"],
            flush=True,
        )
    for name in names:
        if name not in arguments.skip_large_check.split(","):
            check = check_large(name)
            result["checks"].append(check)
            torch.cuda.empty_cache()
            print(
                ("ok  " if check["ok"] else "FAIL"),
                name,
                {k: f"{v:.1e}" for k, v in check["errors"].items()},
                flush=True,
            )
            if not check["ok"]:
                passed = False
                continue
        times = measure(name)
        torch.cuda.empty_cache()
        result["times"].append(times)
        print(f"   {time.perf_counter() - start:.0f} s since start", flush=True)
        for kernel, ms in times["kernels_ms"].items():
            if ms > 0.004 * times["both_ms"]:
                print(f"   {ms:8.3f} ms  {kernel}", flush=True)
    print(f"{'shape':12s} {'fwd':>8s} {'fwd+bwd':>8s} {'graph':>8s} {'floor':>7s} {'target':>7s} {'peak GiB':>8s}")
    for t in result["times"]:
        graph = f"{t['graph_ms']:8.2f}" if t["graph_ms"] else "       -"
        bounds = f"{FLOORS_MS.get(t['shape'], 0):7.1f} {TARGETS_MS.get(t['shape'], 0):7.1f}"
        print(f"{t['shape']:12s} {t['forward_ms']:8.2f} {t['both_ms']:8.2f} {graph} {bounds} {t['peak_gib']:8.2f}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "kernels.json").write_text(json.dumps(result, indent=1))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
