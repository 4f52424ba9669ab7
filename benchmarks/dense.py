"""The yardstick: a dense model of the same shape, trained with what torch offers and nothing around it.

torch.compile over the whole model, one fused attention backend, fused AdamW, bf16 autocast over fp32 weights, a
fixed batch that never leaves the device. What a trainer adds (data, telemetry, control) is absent, so that its
tokens per second can be held against these. Alone, or under torchrun for DDP with bf16 gradients.

    python benchmarks/dense.py --seq-len 2048 --batch-size 32
    torchrun --nproc-per-node 2 benchmarks/dense.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from nsa.config import Config, replace_flat
from nsa.model import LanguageModel, model_flops_per_token
from nsa.parallel import World, close_world, open_world
from nsa.telemetry.hardware import peak_bf16_flops

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}


def _parallel(model: nn.Module, world: World) -> nn.Module:
    if world.size == 1:
        return model
    wrapped = DistributedDataParallel(
        model, device_ids=[world.device.index] if world.on_cuda else None, gradient_as_bucket_view=True
    )
    if world.on_cuda:
        wrapped.register_comm_hook(None, bf16_compress_hook)
    return wrapped


def _steps(model: nn.Module, bare: LanguageModel, args: argparse.Namespace, world: World) -> list[float]:
    """Seconds of each step after the warm-up."""
    optimizer = torch.optim.AdamW(bare.parameters(), lr=2e-4, fused=True)
    tokens = torch.randint(0, args.vocab, (args.batch_size, args.seq_len + 1), device=world.device)
    times = []
    for _ in range(args.warm_up + args.steps):
        began = time.perf_counter()
        with torch.autocast(world.device.type, torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(bare.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if world.on_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times[args.warm_up :]


def main() -> None:
    """Train and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=264)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=8)
    parser.add_argument("--sdpa", choices=sorted(BACKENDS), default="flash")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    world = open_world("auto", timeout_s=300.0, out=Path())
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1337)
    config = replace_flat(Config(), attention="dense", vocab_size=args.vocab).model
    bare = LanguageModel(config).to(world.device)
    model = _parallel(bare, world)
    if not args.no_compile:
        model = torch.compile(model)  # type: ignore[assignment]
    with sdpa_kernel(BACKENDS[args.sdpa]):
        times = _steps(model, bare, args, world)
    step_s = statistics.median(times)
    rate = args.batch_size * args.seq_len / step_s
    flops, peak = model_flops_per_token(bare, args.seq_len).dense_equivalent, peak_bf16_flops(world.device)
    if world.is_main:
        record = {
            "seq_len": args.seq_len,
            "batch_size": args.batch_size,
            "sdpa": args.sdpa,
            "compiled": not args.no_compile,
            "world": world.size,
            "params_m": round(sum(p.numel() for p in bare.parameters()) / 1e6, 1),
            "step_ms": round(step_s * 1e3, 2),
            "toks_per_s_per_gpu": round(rate),
            "mfu": round(rate * flops / peak, 3) if peak else None,
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if world.on_cuda else None,
            "torch": torch.__version__,
        }
        print(json.dumps(record))
    close_world(world)


if __name__ == "__main__":
    main()
