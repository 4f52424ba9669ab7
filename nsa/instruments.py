"""Looking inside a step: named ranges, a trace with its summary, and the audit of what attention really ran.

Nothing here is taken from settings or guessed from shapes: the audit and the summary are read off the profiler's
events of a step that trained.
"""

from __future__ import annotations

import contextlib
import gzip
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, record_function

from nsa.attention.spans import set_spans
from nsa.model import LanguageModel
from nsa.telemetry.audit import audit_record
from nsa.telemetry.files import write_json
from nsa.telemetry.trace import summarize_trace

__all__ = ["AUDIT_STEP", "PROFILE_FIRST_STEP", "Instruments", "sdpa_mode"]

AUDIT_STEP = 2  # counted from the start: the first step compiles and allocates
PROFILE_FIRST_STEP = 5


def sdpa_mode(mode: str) -> contextlib.AbstractContextManager[Any]:
    """Restrict `scaled_dot_product_attention` to flash, or to everything but flash."""
    if mode == "auto":
        return contextlib.nullcontext()
    others = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION] if mode == "flash_only" else others)


class Instruments:
    """Wraps each step as asked. One profiler runs at a time: the audit's step comes before the trace's first."""

    def __init__(
        self,
        out: Path,
        *,
        model: LanguageModel,
        device: torch.device,
        rank: int,
        start_step: int,
        last_step: int,
        nvtx: bool,
        profile_steps: int,
        sdpa_audit: bool,
        say: Callable[[str], None],
    ) -> None:
        self._out, self._model, self._device, self._rank, self._say = out, model, device, rank, say
        self._nvtx = nvtx
        # A run shorter than the usual place is profiled as late as it can be, after the audit's step.
        self._audit_step = min(start_step + AUDIT_STEP, last_step) if sdpa_audit else 0
        earliest = max(start_step, self._audit_step) + 1
        first = max(min(start_step + PROFILE_FIRST_STEP, last_step - profile_steps + 1), earliest)
        self._traced = range(first, min(first + profile_steps, last_step + 1))
        self._profiler: profile | None = None
        self._ranges = contextlib.ExitStack()
        set_spans(nvtx)

    def watches(self, step: int) -> bool:
        """Whether `step` is profiled: nothing else may be under way on the device when it begins and finishes.

        The answer is the same on every rank, also where only rank 0 profiles, for all ranks must read the reasons to
        stop at the same place.
        """
        return step == self._audit_step or step in self._traced

    def sees_layers(self, step: int) -> bool:
        """Whether Python has to launch `step`, for ranges are opened there: the audit's, and the first traced one.

        The other traced steps run as the rest of the run does, from a CUDA graph if it has one, and theirs is the time.
        """
        return step in (self._audit_step, self._traced.start if self._traced else None)

    def _is_audited(self, step: int) -> bool:
        return step == self._audit_step and self._rank == 0

    def begin(self, step: int) -> None:
        """Start what `step` needs."""
        if self._is_audited(step):
            self._ranges.enter_context(_uncompiled(self._model, say=self._say))
            self._ranges.enter_context(_layer_ranges(self._model))
        if self._profiler is None and (self._is_audited(step) or step in self._traced):
            self._profiler = self._start()

    def mark(self, step: int) -> contextlib.AbstractContextManager[Any]:
        """The range of a step, where ranges are on."""
        return record_function(f"nsa.step.{step}") if self._nvtx or self.watches(step) else contextlib.nullcontext()

    def finish(self, step: int) -> None:
        """Stop and write what ends with `step`."""
        audited, is_last = self._is_audited(step), step in self._traced and step == self._traced[-1]
        if self._profiler is None or not (audited or is_last):
            return
        profiler, self._profiler = self._profiler, None
        self._end(profiler)
        if audited:
            self._ranges.close()
            self._write_audit(profiler, step)
        else:
            self._write_trace(profiler)

    def _start(self) -> profile:
        set_spans(True)
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(activities=activities, acc_events=True)
        profiler.__enter__()
        return profiler

    def _end(self, profiler: profile) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        profiler.__exit__(None, None, None)
        set_spans(self._nvtx)

    def _write_audit(self, profiler: profile, step: int) -> None:
        record = audit_record(profiler.events() or [], step=step, device=str(self._device))
        write_json(self._out / "sdpa_audit.json", record)
        for line in record["summary"]:
            self._say(f"[sdpa] {line}")

    def _write_trace(self, profiler: profile) -> None:
        folder = self._out / "trace"
        folder.mkdir(exist_ok=True)
        path, plain = (folder / f"rank{self._rank}.json{end}" for end in (".gz", ""))
        profiler.export_chrome_trace(str(plain))
        # torch's own way packs line by line and as tightly as it can: 36 MB in 1.5 s, here in 0.2.
        with plain.open("rb") as written, gzip.open(path, "wb", compresslevel=3) as packed:
            shutil.copyfileobj(written, packed, 1 << 20)
        plain.unlink()
        if self._rank == 0:
            timed, events = self._timed_steps(), profiler.events() or []
            record = summarize_trace(events, on_cuda=self._device.type == "cuda", timed_steps=timed)
            steps = {"steps": list(self._traced), "timed_steps": timed}
            write_json(folder / "summary.json", {**record, **steps, "file": path.name})
            self._say(f"[profile] {len(self._traced)} steps in {path}, summary in the same folder")

    def _timed_steps(self) -> list[int]:
        """The traced steps that ran as the rest of the run does: the first one starts the profiler, and is launched by
        Python where the others are replayed."""
        traced = list(self._traced)
        return traced[1:] or traced

    def close(self) -> None:
        """Stop a profiler that a run's early end left on; its trace is dropped."""
        self._ranges.close()
        if self._profiler is not None:
            self._end(self._profiler)
            self._profiler = None
        set_spans(False)


def _uncompiled(model: LanguageModel, *, say: Callable[[str], None]) -> contextlib.AbstractContextManager[Any]:
    """Let compiled blocks run as written: a layer's ranges are hooks, which have no place in compiled code. Attention
    runs the same kernels either way, for to the compiler they are operators that it calls as they are."""
    if all(getattr(block, "_compiled_call_impl", None) is None for block in model.blocks):
        return contextlib.nullcontext()
    say("[sdpa] the audited step runs uncompiled, where ranges can be seen; the kernels of attention are the same")
    return torch.compiler.set_stance("force_eager")


@contextlib.contextmanager
def _layer_ranges(model: LanguageModel) -> Iterator[None]:
    """Mark forward and backward of each block's attention with `nsa.layer.N` and `nsa.layer.N.backward`."""
    handles = []
    for number, block in enumerate(model.blocks):
        attention = block.attention
        assert isinstance(attention, nn.Module)
        forward, backward = _Range(f"nsa.layer.{number}"), _Range(f"nsa.layer.{number}.backward")
        handles += [
            attention.register_forward_pre_hook(forward.begin),
            attention.register_forward_hook(forward.end),
            attention.register_full_backward_pre_hook(backward.begin),
            attention.register_full_backward_hook(backward.end),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Range:
    """A profiler range that hooks open and close."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: list[record_function] = []

    def begin(self, *_: Any) -> None:
        self._open.append(record_function(self._name))
        self._open[-1].__enter__()

    def end(self, *_: Any) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)
