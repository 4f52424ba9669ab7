"""Processes: who this rank is, the process group, DDP with its gradient reduction, and the control message.

Two readings are taken here. `ReduceHook` notes when this rank's own gradients were complete, which separates
the time spent waiting for other ranks from compute time. `control_step` is the one small all-reduce per step that
carries the loss and the reasons to stop, so that all ranks stop after the same step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nsa.compiler import without_compiler
from nsa.config import DdpConfig, SetupError
from nsa.interrupt import EXIT_CODE
from nsa.telemetry.files import write_json

__all__ = [
    "ReduceHook",
    "World",
    "close_world",
    "effective_compression",
    "hand_out",
    "measure_in_world",
    "open_world",
    "pick_device",
    "wrap_ddp",
]


@dataclass(frozen=True)
class World:
    """This process among the others. `backend` is None for a single process without torchrun."""

    rank: int
    local_rank: int
    size: int
    device: torch.device
    backend: str | None

    @property
    def is_main(self) -> bool:
        """Rank 0 writes what is written once."""
        return self.rank == 0

    @property
    def on_cuda(self) -> bool:
        """Whether the model lives on a GPU."""
        return self.device.type == "cuda"


def pick_device(wanted: str, local_rank: int = 0) -> torch.device:
    """The device of a process for `auto`, `cpu` or `cuda`. Raises SetupError when there is no such GPU."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SetupError("device=cuda but torch sees no CUDA device: set device=cpu, or check the driver")
    if local_rank >= torch.cuda.device_count():
        raise SetupError(
            f"local rank {local_rank} needs GPU {local_rank} but {torch.cuda.device_count()} are visible: start fewer "
            "processes or widen CUDA_VISIBLE_DEVICES"
        )
    return torch.device("cuda", local_rank)


def _arm_flight_recorder(out: Path) -> None:
    """Let NCCL keep its last collectives and dump them on a timeout; a user's own settings win."""
    for name in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"):
        os.environ.setdefault(name, "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(out / "nccl_trace_rank_"))


def open_world(device: str, *, timeout_s: float, out: Path, env: Mapping[str, str] = os.environ) -> World:
    """Join the process group that torchrun describes, or stand alone.

    Raises SetupError when the device asked for does not exist, or the processes do not find each other in time.
    """
    local_rank = int(env.get("LOCAL_RANK", 0))
    chosen = pick_device(device, local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return World(0, 0, 1, chosen, None)
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    kwargs: dict[str, Any] = {}
    if backend == "nccl":
        _arm_flight_recorder(out)
        kwargs["device_id"] = chosen
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), **kwargs)
    except (ValueError, RuntimeError) as error:
        raise SetupError(
            f"rank {env['RANK']} of WORLD_SIZE={env['WORLD_SIZE']} found no process group "
            f"(ddp_timeout_s={timeout_s:g}): {error}; start all ranks by "
            "torchrun, with the same MASTER_ADDR and MASTER_PORT"
        ) from error
    return World(dist.get_rank(), local_rank, dist.get_world_size(), chosen, backend)


def close_world(world: World) -> None:
    """Leave the process group, if one was joined."""
    if not world.backend or not dist.is_initialized():
        return
    # Freeing gloo's part joins threads, and one of them may still need the GIL to free the last reduced tensor.
    # Up to torch 2.7 a group keeps the GIL while it frees its parts, so the two would deadlock;
    # a part that Python holds a reference to releases the GIL first.
    part = dist.group.WORLD._get_backend(world.device) if dist.group.WORLD is not None else None
    dist.destroy_process_group()
    del part


def measure_in_world(
    program: str, work: Callable[[World], None], *, device: str, timeout_s: float, out: Path, lost: str = ""
) -> int:
    """Open the world, work in it and close it, as the programs that measure a machine do.

    Returns 0, 2 when there is no such device, 130 when interrupted; `lost` says what is missing then.
    """
    try:
        world = open_world(device, timeout_s=timeout_s, out=out)
        try:
            work(world)
        finally:
            close_world(world)
    except SetupError as error:
        print(f"{program}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print(f"{program}: interrupted{lost}", file=sys.stderr)  # noqa: T201
        return EXIT_CODE
    return 0


def hand_out(record: Mapping[str, Any], world: World, path: Path | None) -> None:
    """Write rank 0's record to a file, or print it."""
    if world.is_main and path is not None:
        write_json(path, record)
    elif world.is_main:
        print(json.dumps(record, indent=2))  # noqa: T201


def effective_compression(asked: str, world: World, grad_dtype: torch.dtype) -> tuple[str, str | None]:
    """What gradient compression will really be, and the log line that says so (None: nothing to say).

    A request that cannot take effect is answered with `off` and its reason.
    """
    if asked == "off":
        return "off", None
    said = f"[ddp] gradient compression requested {asked}, effective off: "
    if world.size == 1 or world.backend is None:
        return "off", said + "a single process reduces nothing"
    if str(grad_dtype) == {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[asked]:
        return "off", said + f"gradients are {asked} already, compression would be a no-op"
    if world.backend == "gloo" and asked == "bf16":
        return "off", said + "gloo has no bf16 all-reduce"
    return asked, f"[ddp] gradient compression enabled: {asked}"


class ReduceHook:
    """DDP communication hook: averages each bucket, in `compress` type if asked, and notes when the last was ready.

    The last bucket is handed over once all of this rank's gradients exist; from there to the end of the backward
    pass the rank waits for the network and for the others. On CUDA both ends are events on the compute stream.
    """

    def __init__(self, world: World, compress: str) -> None:
        self._world = world
        self._dtype = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}[compress]
        self._ready_at_s = 0.0
        self._ready_event: torch.cuda.Event | None = None

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start the reduction of one bucket (called by DDP)."""
        if bucket.is_last():
            self._mark_ready()
        grads = bucket.buffer()
        if self._dtype is None or grads.dtype == self._dtype:
            sent = grads.div_(self._world.size)
        else:
            sent = grads.to(self._dtype).div_(self._world.size)
        future = dist.all_reduce(sent, async_op=True).get_future()

        def unpack(done: torch.futures.Future[Any]) -> torch.Tensor:
            value = done.value()
            reduced = value[0] if isinstance(value, (list, tuple)) else value
            if reduced.data_ptr() != grads.data_ptr():
                grads.copy_(reduced)
            return grads

        return future.then(unpack)

    def _mark_ready(self) -> None:
        if self._world.on_cuda:
            self._ready_event = torch.cuda.Event(enable_timing=True)
            self._ready_event.record()
        else:
            self._ready_at_s = time.perf_counter()

    def backward_done(self) -> WaitMark:
        """Call right after the backward pass that reduced; the wait can be read once the device got there."""
        if self._world.on_cuda:
            end = torch.cuda.Event(enable_timing=True)
            end.record()
            return WaitMark(self._ready_event, end, 0.0)
        return WaitMark(None, None, time.perf_counter() - self._ready_at_s if self._ready_at_s else 0.0)


@dataclass(frozen=True)
class WaitMark:
    """Time between own gradients complete and reduced gradients there."""

    began: torch.cuda.Event | None
    ended: torch.cuda.Event | None
    seconds: float

    def read_s(self) -> float:
        """Seconds waited; on CUDA the device must have passed `ended`."""
        if self.began is None or self.ended is None:
            return self.seconds
        return self.began.elapsed_time(self.ended) / 1e3


def wrap_ddp(model: nn.Module, config: DdpConfig, world: World, hook: ReduceHook) -> nn.Module:
    """The model under DDP with `hook` as its reduction; unchanged where it is sharded, or there is no process group."""
    if world.backend is None or config.parallel == "fsdp":
        return model
    with without_compiler():
        ddp = DistributedDataParallel(
            model,
            device_ids=[world.device.index] if world.on_cuda else None,
            bucket_cap_mb=config.ddp_bucket_mb,
            find_unused_parameters=config.ddp_find_unused,
            static_graph=config.ddp_static_graph,
            gradient_as_bucket_view=True,
        )
    # DDP inspects the hook's annotations as objects, and postponed ones are strings: give it a bare function.
    ddp.register_comm_hook(None, lambda state, bucket: hook(bucket))
    return ddp
