"""Put a run together from its resolved configuration: processes, data, model, optimizer, telemetry, resume."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nsa.checkpoint import newest_step
from nsa.config import Config, flatten
from nsa.data import BatchLoader, DataError, Sources, StreamSource, Tokenizer, open_sources, open_tokenizer
from nsa.effective import Effective, settle_config
from nsa.instruments import Instruments
from nsa.microbatch import MicroBatches, make_graphs
from nsa.model import LanguageModel, model_flops_per_token
from nsa.optim import build_optimizer
from nsa.outdir import make_out
from nsa.parallel import ReduceHook, World, close_world, open_world, wrap_ddp
from nsa.resolve import Resolved
from nsa.resume import Restored, restore
from nsa.telemetry import Heartbeat, SignalDesk, memory_now, write_env_json
from nsa.telemetry.hardware import peak_bf16_flops
from nsa.telemetry.recorder import Rates, Recorder
from nsa.telemetry.startup import StartClock
from nsa.warmup import WarmUp, start_warm_up

__all__ = ["Run", "open_run", "takes_stats"]


def takes_stats(config: Config) -> bool:
    """Whether any step collects gate and selection statistics."""
    return config.telemetry.aux_stats and config.model.attention == "nsa"


@dataclass(frozen=True)
class Run:
    """Everything the loop works with. `bare_model` is what is saved."""

    resolved: Resolved
    effective: Effective
    out: Path
    world: World
    sources: Sources
    loader: BatchLoader
    bare_model: LanguageModel
    micro_batches: MicroBatches
    optimizer: torch.optim.Optimizer
    hook: ReduceHook
    heartbeat: Heartbeat
    signals: SignalDesk
    recorder: Recorder
    instruments: Instruments
    restored: Restored
    tokens_per_step: int

    @property
    def start_step(self) -> int:
        """The last step of earlier starts."""
        return self.restored.step

    @property
    def config(self) -> Config:
        """The effective configuration."""
        return self.effective.config

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.world.is_main:
            print(text, flush=True)  # noqa: T201 - the trainer's log is its standard output


def _prepare_torch(config: Config) -> None:
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    if config.train.deterministic:
        # cuBLAS repeats itself only with workspaces of a fixed size; without this, torch refuses the first product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest" if config.train.deterministic else "high")
    torch.manual_seed(config.train.seed)


def _build_model(effective: Effective, world: World) -> LanguageModel:
    config = effective.config
    model = LanguageModel(config.model, grad_checkpointing=config.train.grad_checkpointing)
    sharded = config.ddp.parallel == "fsdp"
    model.to("cpu" if sharded else world.device, effective.param_dtype)
    if config.train.compile:
        for block in model.blocks:
            block.compile()
    if sharded:
        from nsa.sharded import shard_model

        shard_model(model, world, compute_bf16=effective.autocast, compress=config.ddp.ddp_compress)
    return model


def _build_micro_batches(effective: Effective, world: World, model: LanguageModel, hook: ReduceHook) -> MicroBatches:
    config, data = effective.config, effective.config.data
    graphs = None
    if config.train.cuda_graph:
        graphs = make_graphs(
            batch_size=data.batch_size,
            seq_len=data.seq_len,
            device=world.device,
            stats=takes_stats(config),
            fresh=tuple(model.parameters()) if data.accum == 1 else (),
        )
    return MicroBatches(
        model=model if graphs else wrap_ddp(model, config.ddp, world, hook),
        bare_model=model,
        device=world.device,
        autocast=effective.autocast,
        accum=data.accum,
        graphs=graphs,
    )


def _refuse_unequal_data(sources: Sources, world: World) -> None:
    """Raise DataError on every rank if one found other data: sample numbers would mean another text there."""
    if world.backend is None:
        return
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, dict(sources.info))
    other = next((rank for rank, info in enumerate(found) if info != found[0]), None)
    if other is not None:
        raise DataError(
            f"rank {other} reads other data than rank 0 ({found[other]}, not {found[0]}): give every machine the same "
            "files under data_path"
        )


def _build_loader(config: Config, sources: Sources, world: World, start_step: int) -> BatchLoader:
    return BatchLoader(
        sources.train,
        rank=world.rank,
        world=world.size,
        batch_size=config.data.batch_size,
        accum=config.data.accum,
        start_step=start_step,
        prefetch=config.data.prefetch_batches,
        timeout_s=config.data.loader_timeout_s,
        pin=world.on_cuda,
    )


def _build_instruments(config: Config, out: Path, world: World, model: LanguageModel, start_step: int) -> Instruments:
    telemetry = config.telemetry
    return Instruments(
        out,
        model=model,
        device=world.device,
        rank=world.rank,
        start_step=start_step,
        last_step=config.train.steps,
        nvtx=telemetry.nvtx,
        profile_steps=telemetry.profile_steps,
        sdpa_audit=telemetry.sdpa_audit,
        say=lambda text: print(text, flush=True) if world.is_main else None,  # noqa: T201
    )


def _facts(
    resolved: Resolved,
    effective: Effective,
    world: World,
    model: LanguageModel,
    tokenizer: Tokenizer,
    sources: Sources,
    restored: Restored,
    rates: Rates,
) -> dict[str, Any]:
    """The run's own part of env.json."""
    weights = list(model.parameters())
    return {
        "argv": sys.argv,
        "config_file": str(resolved.config_file) if resolved.config_file else None,
        "requested": resolved.requested,
        "effective": flatten(effective.config),
        "sources": resolved.sources,
        "notes": list(effective.notes),
        "params": sum(p.numel() for p in weights),
        "weight_dtype": str(effective.param_dtype).removeprefix("torch."),
        "compute_dtype": "bfloat16" if effective.autocast else "float32",
        "world_size": world.size,
        "backend": world.backend,
        "device": str(world.device),
        "tokens_per_step": rates.tokens_per_step,
        "grad_bytes": sum(p.numel() * p.element_size() for p in weights if p.requires_grad),
        "flops_per_token": {"nsa": rates.flops_nsa, "dense_equivalent": rates.flops_dense_equivalent},
        "peak_flops": rates.peak_flops,
        "tokenizer": {"name": tokenizer.name, "vocab_size": tokenizer.vocab_size, "eos_id": tokenizer.eos_id},
        "data": sources.info,
        "resumed_from": {"step": restored.step, "checkpoint": restored.checkpoint} if restored.checkpoint else None,
    }


def _rates(config: Config, model: LanguageModel, world: World) -> Rates:
    data = config.data
    flops = model_flops_per_token(model, data.seq_len)
    peak = peak_bf16_flops(world.device)
    return Rates(
        tokens_per_step=data.batch_size * data.accum * world.size * data.seq_len,
        flops_nsa=flops.nsa,
        flops_dense_equivalent=flops.dense_equivalent,
        peak_flops=peak * world.size if peak else None,
    )


@dataclass(frozen=True)
class _Process:
    """What exists before the model: this process among the others, its heartbeat and its signals."""

    out: Path
    world: World
    heartbeat: Heartbeat
    signals: SignalDesk


def _open_process(asked: Config, stack: contextlib.ExitStack) -> _Process:
    out = Path(asked.train.out)
    make_out(out)
    world = open_world(asked.train.device, timeout_s=asked.ddp.ddp_timeout_s, out=out)
    stack.callback(close_world, world)
    heartbeat = Heartbeat(
        out, rank=world.rank, beat_s=asked.telemetry.heartbeat_s, gpu_memory=lambda: _rounded_memory(world)
    )
    stack.callback(heartbeat.close)
    if asked.train.resume:
        heartbeat.go_on_from(newest_step(out))  # a first sign of life at step 0 is that of another run
    heartbeat.write("boot", world_size=world.size, device=str(world.device))
    heartbeat.start()
    signals = SignalDesk(out, rank=world.rank, on_dump=lambda path: heartbeat.write("watchdog_dump", file=path.name))
    stack.callback(signals.close)
    return _Process(out, world, heartbeat, signals)


def _build_recorder(config: Config, process: _Process, rates: Rates, restored: Restored) -> Recorder:
    return Recorder(
        process.out,
        is_main=process.world.is_main,
        heartbeat=process.heartbeat,
        rates=rates,
        device=process.world.device,
        log_every=config.telemetry.log_every,
        steps=config.train.steps,
        start_step=restored.step,
        wall_before_s=restored.wall_s,
        tensorboard=config.telemetry.tensorboard,
    )


def _build_run(
    resolved: Resolved, process: _Process, warm_up: WarmUp, clock: StartClock, stack: contextlib.ExitStack
) -> Run:
    """Data, model and optimizer, restored if asked for, and everything that records them."""
    out, world = process.out, process.world
    tokenizer = open_tokenizer(resolved.config.data.tokenizer, file=resolved.config.data.tokenizer_file)
    effective = settle_config(resolved, world, tokenizer)
    config = effective.config
    sources = open_sources(config.data, tokenizer, seed=config.train.seed)
    stack.callback(sources.close)
    _refuse_unequal_data(sources, world)
    clock.lap("data")
    bare_model = _build_model(effective, world)
    optimizer = build_optimizer(bare_model, config.optim, fused=config.optim.opt_fused == "on")
    restored = Restored()
    if config.train.resume:
        restored = restore(out, world, config, sources, bare_model, optimizer)
        process.heartbeat.go_on_from(restored.step)
        if isinstance(sources.train, StreamSource):
            sources.train.seek(restored.data_position)
    clock.lap("model")
    hook = ReduceHook(world, config.ddp.ddp_compress)
    rates = _rates(config, bare_model, world)
    recorder = _build_recorder(config, process, rates, restored)
    stack.callback(recorder.close)
    if world.is_main:
        facts = _facts(resolved, effective, world, bare_model, tokenizer, sources, restored, rates)
        write_env_json(out, world.device, facts)
    instruments = _build_instruments(config, out, world, bare_model, restored.step)
    stack.callback(instruments.close)
    loader = _build_loader(config, sources, world, restored.step)
    stack.callback(loader.close)
    clock.lap("telemetry")
    # DDP's construction waits for all ranks: those that compile nothing wait there for the one that does.
    warm_up.finish(say=lambda text: print(text, flush=True))  # noqa: T201
    clock.lap("kernels")
    return Run(
        resolved=resolved,
        effective=effective,
        out=out,
        world=world,
        sources=sources,
        loader=loader,
        bare_model=bare_model,
        micro_batches=_build_micro_batches(effective, world, bare_model, hook),
        optimizer=optimizer,
        hook=hook,
        heartbeat=process.heartbeat,
        signals=process.signals,
        recorder=recorder,
        instruments=instruments,
        restored=restored,
        tokens_per_step=rates.tokens_per_step,
    )


@contextlib.contextmanager
def open_run(resolved: Resolved) -> Iterator[Run]:
    """Build the run, hand it out, and take it down again whatever happened: threads, files, process group.

    Raises ConfigError or SetupError naming the setting and the fix.
    """
    clock = StartClock()
    with contextlib.ExitStack() as stack:
        warm_up = start_warm_up(resolved.config)
        stack.callback(warm_up.close)
        _prepare_torch(resolved.config)
        process = _open_process(resolved.config, stack)
        clock.lap("process")
        run = _build_run(resolved, process, warm_up, clock, stack)
        _announce(run)
        run.say(f"[start] {clock}")
        yield run


def _rounded_memory(world: World) -> dict[str, float]:
    return {name: round(value, 1) for name, value in memory_now(world.device).items()}


def _announce(run: Run) -> None:
    data, world = run.config.data, run.world
    for note in run.effective.notes:
        run.say(note)
    if run.config.ddp.ddp_compress != "off":
        run.say(f"[ddp] gradient compression enabled: {run.config.ddp.ddp_compress}")
    if run.start_step >= run.config.train.steps:
        run.say(
            f"[resume] nothing is left to train: step {run.start_step} reaches steps={run.config.train.steps}; raise it"
        )
    params = sum(p.numel() for p in run.bare_model.parameters())
    run.say(
        f"[run] {params / 1e6:.2f} M parameters on {world.size} × {world.device.type}, "
        f"{data.batch_size} × {data.accum} × {world.size} sequences of {data.seq_len} = {run.tokens_per_step:,} "
        f"tokens a step, {run.config.train.dtype}, out {run.out}"
    )
