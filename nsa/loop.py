"""The training loop.

On a GPU the host runs one step ahead: it launches step k+1, then reads what step k left in pinned memory. Reading
therefore costs no bubble, and since every rank reads the same reduced message at the same place, all of them stop
after the same step. On a CPU there is nothing to run ahead of, and each step is read as soon as it is done.
"""

from __future__ import annotations

import contextlib
import gc
import math
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from nsa.assemble import Run, takes_stats
from nsa.attention.dispatch import fallback_counters
from nsa.attention.stats import AttentionStats
from nsa.checkpoint import save_checkpoint
from nsa.config import SetupError, UnreachableError, flatten
from nsa.data import BatchLoader, FetchStats, StreamSource
from nsa.instruments import sdpa_mode
from nsa.optim import clip_gradients, learning_rate, optimizer_state_bytes
from nsa.outdir import ANOMALY_FILE, HALT_FILE
from nsa.parallel import WaitMark
from nsa.sharded import local_part, whole_model_state, whole_optimizer_state
from nsa.telemetry import AppendCsv, write_json, write_memory_dump, write_text
from nsa.telemetry.recorder import StepRecord

__all__ = ["Ending", "train"]

LOSS, NORM, HALT, TERM, INT = range(5)  # indices into the control message


@dataclass(frozen=True)
class Ending:
    """How a run ended: `done`, `halted`, `anomaly`, `terminated`, `interrupted`, `unreachable` or `error`, and why."""

    status: str
    why: str = ""


@dataclass(frozen=True)
class _Launched:
    """A step whose work is in progress (GPU) or done (CPU), with what is needed to read its outcome."""

    step: int
    lr: float
    control: torch.Tensor
    arrived: torch.cuda.Event | None
    wait: WaitMark
    control_wait_s: float
    fetch: FetchStats | None
    stats: AttentionStats | None


class _Clock:
    """When steps finished, in `time.perf_counter` seconds.

    The host reads a GPU's step late, and by how much varies with the length of the launch queue; events on the
    device record the time itself.
    """

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()
            self._event.synchronize()
        self.now_s = time.perf_counter()

    def finished_at_s(self, arrived: torch.cuda.Event | None) -> float:
        """The time of a step's end; `arrived` must have passed, and steps must come in order."""
        if arrived is None or self._event is None:
            self.now_s = time.perf_counter()
        else:
            self.now_s += self._event.elapsed_time(arrived) / 1e3
            self._event = arrived
        return self.now_s


def train(run: Run) -> Ending:
    """Train to the last step or to a reason to stop; writes everything but env.json. Raises what the data raises."""
    if run.world.is_main:
        write_memory_dump(run.out, "boot", run.world.device, step=run.start_step)
    if run.config.train.gc_every:
        gc.disable()
    try:
        with sdpa_mode(run.config.telemetry.sdpa):
            ending = _steps(run)
        _finish(run, ending)
        _write_end(run, ending)
    except BaseException as error:
        if isinstance(error, SetupError):
            error.midway = True
        if isinstance(error, torch.cuda.OutOfMemoryError):
            _dump_memory(run, "oom", run.recorder.last.step if run.recorder.last else run.start_step)
        with contextlib.suppress(OSError):  # a disk that is full must not hide what ended the run
            _write_end(run, _ending_of(error))
        raise
    finally:
        gc.enable()
    return ending


def _write_end(run: Run, ending: Ending) -> None:
    """Say how the run ended, in the last heartbeat and in metrics.json."""
    try:
        run.heartbeat.write("done", status=ending.status, why=ending.why)
    finally:
        if run.world.is_main:
            _write_metrics(run, ending)


def _ending_of(error: BaseException) -> Ending:
    """How a run ended that something broke out of."""
    if isinstance(error, KeyboardInterrupt):
        return Ending("interrupted", "a second SIGINT; nothing more was saved")
    return Ending("unreachable" if isinstance(error, UnreachableError) else "error", f"{type(error).__name__}: {error}")


def _steps(run: Run) -> Ending:
    last = run.config.train.steps
    lag = _steps_ahead(run)
    in_flight: deque[_Launched] = deque()
    clock = _Clock(run.world.device)
    run.recorder.start(clock.now_s)
    ending: Ending | None = None
    for step in range(run.start_step + 1, last + 1):
        watched = run.instruments.watches(step)
        while watched and in_flight and ending is None:
            ending = _read(run, in_flight.popleft(), clock)
        if ending is not None:
            break
        if watched:
            _excluded(run, partial(_begin_watching, run), step)
        with run.instruments.mark(step):
            in_flight.append(_launch(run, step))
        due = step == run.start_step + 1 or step == last or watched or _is_break(run, step)
        while in_flight and ending is None and (due or len(in_flight) > lag):
            ending = _read(run, in_flight.popleft(), clock)
        if ending is not None:
            break
        if due:
            _excluded(run, partial(_between_steps, run), step)
    while in_flight:  # the step launched before the reason to stop was read
        ending = _read(run, in_flight.popleft(), clock, is_last=True) or ending
    return ending or Ending("done")


def _steps_ahead(run: Run) -> int:
    """How many steps are launched before one is read."""
    return 1 if run.world.on_cuda else 0


def _excluded(run: Run, work: Callable[[int], None], step: int) -> None:
    """Do work after `step` that does not count as time of any step."""
    began = time.perf_counter()
    work(step)
    run.recorder.exclude(time.perf_counter() - began)


def _begin_watching(run: Run, step: int) -> None:
    """Start what `step` is looked at with, on all ranks: the first one that is ready would wait for the last one in
    its first reduction, and the trace would show that as communication."""
    run.instruments.begin(step)
    if run.world.backend:
        dist.barrier()


def _is_break(run: Run, step: int) -> bool:
    """Whether something other than training happens after `step`."""
    config = run.config
    every = (config.data.val_every, config.train.save_every, config.train.gc_every)
    return any(n and step % n == 0 for n in every)


def _launch(run: Run, step: int) -> _Launched:
    """Start forward, backward and update of one step; on a GPU this returns before they are done."""
    config, world = run.config, run.world
    lr = learning_rate(config.optim, step, config.train.steps)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    logged = run.recorder.is_logged(step)
    loss, stats = torch.zeros((), device=world.device), None
    for micro in range(config.data.accum):
        tokens_BT = _next_batch(run, step, micro).to(world.device, non_blocking=True)
        # A static graph is learned in the first pass, which therefore has to reduce; averaging what was averaged
        # already changes nothing, so the first step may reduce in each of its passes.
        learning = config.ddp.ddp_static_graph and step == run.start_step + 1
        reduces = learning or micro == config.data.accum - 1
        # The first micro-batch is sample enough for statistics.
        collects = logged and micro == 0 and _has_stats(run, step)
        done = run.micro_batches.run(
            tokens_BT, collects=collects, reduces=reduces, by_python=run.instruments.sees_layers(step)
        )
        loss = loss + done.loss
        stats = stats or done.stats
    wait = run.hook.backward_done()
    norm = clip_gradients(run.bare_model.parameters(), config.optim.grad_clip)
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=not run.micro_batches.keeps_gradients)
    control, arrived, control_wait_s = _send_control(run, loss, norm)
    fetch = run.loader.take_stats() if logged else None
    return _Launched(step, lr, control, arrived, wait, control_wait_s, fetch, stats)


def _fetch(run: Run, loader: BatchLoader) -> torch.Tensor:
    try:
        return loader.next()
    except Exception as error:
        reason = "unreachable" if isinstance(error, UnreachableError) else getattr(error, "reason", "data")
        run.heartbeat.write("loader_error", error=str(error), reason=reason)
        raise


def _next_batch(run: Run, step: int, micro: int) -> torch.Tensor:
    tokens = _fetch(run, run.loader)
    if step == run.start_step + 1 and micro == 0:
        run.heartbeat.write("loader_ready")
    return tokens


def _has_stats(run: Run, step: int) -> bool:
    """Whether `step`, if it is logged, collects gate and selection statistics: every `aux_every`-th one."""
    telemetry = run.config.telemetry
    nth = (step - run.start_step - 1) // telemetry.log_every
    return takes_stats(run.config) and nth % telemetry.aux_every == 0


def _send_control(
    run: Run, loss: torch.Tensor, norm: torch.Tensor
) -> tuple[torch.Tensor, torch.cuda.Event | None, float]:
    """Add up loss, gradient norm and reasons to stop over the ranks; the sums land in host memory."""
    world = run.world
    flags = torch.zeros(3, dtype=torch.float32)
    flags[0] = float((run.out / HALT_FILE).exists())
    flags[1] = float(run.signals.stop_signal == signal.SIGTERM)
    flags[2] = float(run.signals.stop_signal == signal.SIGINT)
    if world.on_cuda:
        flags = flags.pin_memory().to(world.device, non_blocking=True)
    message = torch.cat((torch.stack((loss.float(), norm.float())), flags))
    waited_s = 0.0
    if world.backend:
        began = time.perf_counter()
        dist.all_reduce(message)
        waited_s = 0.0 if world.on_cuda else time.perf_counter() - began
    if not world.on_cuda:
        return message, None, waited_s
    host = torch.empty(5, dtype=torch.float32, pin_memory=True)
    host.copy_(message, non_blocking=True)
    arrived = torch.cuda.Event(enable_timing=True)
    arrived.record()
    return host, arrived, waited_s


def _read(run: Run, launched: _Launched, clock: _Clock, *, is_last: bool = False) -> Ending | None:
    """Wait for a launched step, record it, and say whether it is a reason to stop."""
    if launched.arrived is not None:
        launched.arrived.synchronize()
    sums = launched.control.tolist()
    loss, norm = sums[LOSS] / run.world.size, sums[NORM] / run.world.size
    aux: dict[str, Any] = {}
    fallbacks: dict[str, int] = {}
    if launched.stats is not None:
        aux, fallbacks = launched.stats.summary(), fallback_counters()
    record = StepRecord(
        step=launched.step,
        loss=loss,
        lr=launched.lr,
        grad_norm=norm,
        wait_s=launched.wait.read_s() + launched.control_wait_s,
        aux=aux,
        fallbacks=fallbacks,
    )
    ending = _reason_to_stop(run, record, sums)
    # The step that ends a run has a row, whichever it is: what stopped it, and the time behind the row before.
    fetch = launched.fetch or (run.loader.take_stats() if ending or is_last else None)
    run.recorder.step_done(record, fetch, clock.finished_at_s(launched.arrived))
    return ending


def _reason_to_stop(run: Run, record: StepRecord, sums: list[float]) -> Ending | None:
    for name, value in (("loss", record.loss), ("grad_norm", record.grad_norm)):
        if not math.isfinite(value):
            kind = f"{'nan' if math.isnan(value) else 'inf'}_{name}"
            if run.world.is_main:
                write_text(run.out / ANOMALY_FILE, kind + "\n")
            return Ending("anomaly", f"{kind} at step {record.step}")
    if sums[HALT]:
        return Ending("halted", f"{HALT_FILE} found at step {record.step}")
    if sums[TERM]:
        return Ending("terminated", f"SIGTERM at step {record.step}")
    if sums[INT]:
        return Ending("interrupted", f"SIGINT at step {record.step}")
    return None


def _between_steps(run: Run, step: int) -> None:
    """What is due after `step`, with no work in flight: dumps, garbage, validation, checkpoint."""
    config = run.config
    if run.instruments.watches(step):
        run.instruments.finish(step)
    if step == run.start_step + 1 and run.world.is_main:
        _dump_memory(run, "step1", step)
    if run.micro_batches.awaits_capture:
        run.micro_batches.capture()
        run.optimizer.zero_grad(set_to_none=not run.micro_batches.keeps_gradients)
    if config.train.gc_every and step % config.train.gc_every == 0:
        gc.collect()
    if config.data.val_every and step % config.data.val_every == 0:
        validate(run, step)
    if config.train.save_every and step % config.train.save_every == 0 and step != config.train.steps:
        save(run, step)


def _finish(run: Run, ending: Ending) -> None:
    """Leave a checkpoint where one is due, and the last memory dump."""
    last = run.recorder.last
    step = last.step if last else run.start_step
    saves = run.config.train
    stopped = ending.status in ("terminated", "interrupted") or (ending.status == "halted" and saves.save_every > 0)
    completed = ending.status == "done" and (saves.save_final or saves.save_every > 0)
    if (stopped or completed) and step > run.start_step:
        save(run, step)
    if run.world.is_main:
        _dump_memory(run, "stepN", step)


def _dump_memory(run: Run, tag: str, step: int) -> None:
    weights = sum(p.numel() * p.element_size() for p in map(local_part, run.bare_model.parameters()))
    state = optimizer_state_bytes(run.optimizer)
    write_memory_dump(run.out, tag, run.world.device, step=step, weights=weights, optimizer_state=state)


def save(run: Run, step: int) -> None:
    """Write the checkpoint of `step` on rank 0; the others wait for it, so that no rank runs into the next step
    while the disk may still fail."""
    data_position = _data_position(run)
    model_state = whole_model_state(run.bare_model, keep=run.world.is_main)
    optimizer_state = whole_optimizer_state(run.optimizer, keep=run.world.is_main)
    if run.world.is_main:
        state = {
            "schema_version": 1,
            "step": step,
            "wall_s": run.recorder.wall_s,
            "config": flatten(run.config),
            "data": dict(run.sources.info),
            "data_position": data_position,
            "model": model_state,
            "optimizer": optimizer_state,
        }
        path = save_checkpoint(run.out, state, step=step, keep=run.config.train.keep_checkpoints)
        run.say(f"[checkpoint] {path}")
    if run.world.backend:
        dist.barrier()


def _data_position(run: Run) -> dict[int, Any]:
    """The stream position after the last step, of every rank's lanes; empty for data that is read by number.

    A lane that was not read since the start keeps its restored position.
    """
    of_ranks: list[Any] = [run.loader.position]
    if run.world.backend and isinstance(run.sources.train, StreamSource):
        of_ranks *= run.world.size
        dist.all_gather_object(of_ranks, run.loader.position)
    return {**run.restored.data_position, **{part: place for places in of_ranks for part, place in places.items()}}


@torch.no_grad()
def validate(run: Run, step: int) -> float:
    """Mean loss over the first `val_batches` held-out batches of every rank: the same samples each time."""
    config, world = run.config, run.world
    assert run.sources.val is not None, "checked when the data was opened"
    loader = BatchLoader(
        run.sources.val,
        rank=world.rank,
        world=world.size,
        batch_size=config.data.batch_size,
        accum=1,
        prefetch=1,  # in a thread: otherwise a wait for an unresponsive hub could not be abandoned
        batches=config.data.val_batches,
        timeout_s=config.data.loader_timeout_s,
    )
    total = torch.zeros((), device=world.device)
    run.bare_model.eval()
    try:
        for _ in range(config.data.val_batches):
            tokens_BT = _fetch(run, loader).to(world.device)
            with torch.autocast(world.device.type, torch.bfloat16, enabled=run.effective.autocast):
                total += run.bare_model(tokens_BT[:, :-1], tokens_BT[:, 1:])
    finally:
        loader.close()
    run.bare_model.train()
    if world.backend:
        dist.all_reduce(total)
    loss = total.item() / (config.data.val_batches * world.size)
    if world.is_main:
        tokens = config.data.val_batches * world.size * config.data.batch_size * config.data.seq_len
        file = AppendCsv(run.out / "val.csv", ("step", "val_loss", "val_tokens", "wall_s"))
        file.row({"step": step, "val_loss": loss, "val_tokens": tokens, "wall_s": run.recorder.wall_s})
        file.close()
        run.say(f"[val] step {step} loss {loss:.4f}")
    return loss


def _write_metrics(run: Run, ending: Ending) -> None:
    summary = {"schema_version": 1, "status": ending.status, "why": ending.why, **run.recorder.summary()}
    write_json(run.out / "metrics.json", summary)
