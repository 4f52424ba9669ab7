"""Settings whose effective value is not the requested one, or that cannot have their effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from validator.diagnose.rule import (
    MICRO_BATCHES,
    WORKLOAD,
    Diagnosis,
    PhaseFacts,
    RunFacts,
    evidence,
    hit_evidence,
    rule,
)
from validator.judge.config import differences, same_value
from validator.model.arguments import changes_arithmetic
from validator.model.network import forbids_peers, is_on
from validator.model.result import LogHit
from validator.model.settings import given_numbers
from validator.stats.spacing import covered_steps
from validator.stats.window import MIN_ROWS
from validator.text import format_percent

COMPRESSION = ("ddp_compress", "compress", "grad_compression", "gradient_compression")

_OPEN = frozenset({"auto", "none", "null", "", "default"})
"""Values that leave the choice to the trainer."""

_LOCATIONS = frozenset({"out", "out_dir", "output", "output_dir", "config", "config_file", "run_name", "name"})

_TOKEN_TOLERANCE = 0.1
_LONGER, _LONGER_S = 1.1, 2.0


@rule("config-ignored", "veto", of="run")
def config_ignored(run: RunFacts) -> Iterator[Diagnosis]:
    """The effective config is not the requested one: by the trainer's account, by its ranks, or by its arithmetic."""
    different = _ignored(run)
    workload = {name: pair for name, pair in different.items() if name in WORKLOAD}
    if run.training and different:
        pairs = workload or different
        listed = ", ".join(
            f"{name} {one} requested, {other} effective" for name, (one, other) in list(pairs.items())[:6]
        )
        yield Diagnosis(
            f"The trainer did not run the requested config: {listed}.",
            severity="veto" if workload else "warning",
            because=[
                evidence(f"{name}: requested {one!r}, effective {other!r}", run.config_path, f"effective.{name}")
                for name, (one, other) in list(pairs.items())[:8]
            ],
            next_step="Find where the trainer drops or overrides these settings (flag spelling, order of config files, "
            "environment), then run again; the results of this run belong to another configuration.",
        )
    ranks = run.irregular("world-size")
    if ranks:
        yield Diagnosis(
            f"{ranks[0].message[:1].upper()}{ranks[0].message[1:]}.",
            because=[evidence(ranks[0].message, ranks[0].path, "world_size")],
            next_step="Start the trainer under torchrun and let it read WORLD_SIZE, then run again.",
        )
    if run.training and not run.effective:
        yield from _stated_otherwise(run)
    if not different and not {"seq_len", "batch_size"} <= run.effective.keys():
        yield from _tokens_disagree(run)


@rule("config-ignored", "veto", of="phase")
def ignored_by_effect(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """Another value of a setting changes nothing that the trainer does, or a config file's values are not those that
    ran."""
    for one in phase.report.effects if phase.report is not None else ():
        if one.status != "FAIL":
            continue
        confirmed = "." not in one.setting
        what = f"The values of the config file, {one.tried}" if confirmed else f"{one.setting} = {one.declared}"
        yield Diagnosis(
            f"{what}: the trainer did not run it. {one.message}",
            because=[
                evidence(f"{'as declared' if confirmed else one.declared}: loss {_losses(one.declared_losses)}"),
                evidence(f"{one.tried}: loss {_losses(one.tried_losses)}"),
            ],
            next_step="Find where the trainer drops or overrides the setting (flag spelling, order of config files and "
            "arguments, environment), then run again; results with it belong to another configuration.",
        )


def _losses(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.7g}" for value in values)


def _ignored(run: RunFacts) -> dict[str, tuple[Any, Any]]:
    """Settings whose effective value is not the requested one; not those left open or by default, nor locations."""
    sources = run.environment.get("sources")
    defaults = {name for name, source in sources.items() if source == "default"} if isinstance(sources, dict) else set()
    exempt = {*_LOCATIONS, *COMPRESSION, *defaults}
    return {
        name: (requested, effective)
        for name, (requested, effective) in (differences(run.record) or {}).items()
        if name not in exempt and str(requested).strip().lower() not in _OPEN and "/" not in f"{requested}{effective}"
    }


def _stated_otherwise(run: RunFacts) -> Iterator[Diagnosis]:
    """Settings of the command for which the trainer printed another number before its first step.

    One that lists the command's other settings as they were given speaks of the same things; else a line about some
    other part of the program may share a name.
    """
    given = given_numbers(run.spec.argv)
    right = [one for one in run.evidence.stated if same_value(given[one.name], one.value)]
    unclear = stated_unclearly(run)
    wrong = [
        one
        for one in run.evidence.stated
        if one not in right and one.name not in unclear and (changes_arithmetic(one.name) or one.name in WORKLOAD)
    ]
    if not wrong:
        return
    listed = ", ".join(f"{one.name} {given[one.name]} requested, {one.value} printed" for one in wrong[:6])
    yield Diagnosis(
        f"The trainer prints other settings than its command has: {listed}.",
        severity="veto" if right else "warning",
        confidence="medium" if right else "low",
        because=[evidence(one.text, one.path, f"line {one.line}") for one in wrong[:8]],
        next_step="Find where the trainer drops or overrides these settings (order of config files and arguments, flag "
        "spelling, environment), then run again; the results of this run belong to another configuration.",
    )


def stated_unclearly(run: RunFacts) -> set[str]:
    """Settings of the command for which the trainer printed another number that may mean the same: this shows neither
    that it obeys them nor that it does not."""
    given = given_numbers(run.spec.argv)
    counts = [float(run.world_size), *(float(given[name]) for name in MICRO_BATCHES if name in given)]
    other = [one for one in run.evidence.stated if not same_value(given[one.name], one.value)]
    return {one.name for one in other if _means_the_same(one.name, float(given[one.name]), float(one.value), counts)}


_OF_ONE_RANK = frozenset({"device", "gpu", "local", "micro"})
"""Words of a setting's name that say whose it is: `per_device_train_batch_size`, `local_batch_size`."""


def _means_the_same(name: str, requested: float, stated: float, counts: Sequence[float]) -> bool:
    """Whether both can be right: a batch of one rank or of all, a seed of each rank, a rate that is still to rise."""
    words = name.split("_")
    if "seed" in words or (("lr" in words or "rate" in words) and stated < requested):
        return True
    if not _OF_ONE_RANK.isdisjoint(words):
        return False  # by its own name it is that of one rank, on both sides
    factor = max(requested, stated) / min(requested, stated) if min(requested, stated) > 0 else 0.0
    return any(abs(factor - count) < 1e-6 for count in (*counts, float(np.prod(counts))) if count > 1)


def _measured_tokens(run: RunFacts) -> float | None:
    """Tokens of a step by rate × step time, where both are the trainer's own and independent values."""
    products = run.tokens_by_rate[run.tokens_by_rate > 0]
    return float(np.median(products)) if products.size >= 3 and run.rate is not None else None


def _tokens_disagree(run: RunFacts) -> Iterator[Diagnosis]:
    """Without an effective config, rate × step time still shows how many tokens a step really had."""
    measured, expected = _measured_tokens(run), run.expected_tokens
    if not measured and expected:
        yield from _tokens_take_longer(run, expected)
    if not measured or not expected or abs(measured / expected - 1) <= _TOKEN_TOLERANCE:
        return
    yield Diagnosis(
        f"A step had about {measured:,.0f} tokens (rate × step time) where the settings request {expected:,.0f}.",
        severity="veto" if not 0.5 < measured / expected < 2 else "warning",
        confidence="medium",
        because=[
            evidence(f"toks_per_s × step_time_s ≈ {measured:,.0f}", run.source("toks_per_s")),
            evidence(f"batch_size × accum × seq_len × ranks = {expected:,.0f}"),
        ],
        next_step="Have the trainer write its effective batch_size, accum and seq_len into env.json, and compare; "
        "batch_size counts the sequences of one rank and micro-batch.",
    )


def _tokens_take_longer(run: RunFacts, expected: float) -> Iterator[Diagnosis]:
    """At the reported rate, the requested tokens take longer than the whole run did."""
    rate = run.series("toks_per_s")
    if rate is None or run.outcome is None or not (np.isfinite(rate.values) & (rate.values > 0)).all():
        return
    fewest = expected / run.world_size / max(1.0, run.number(*MICRO_BATCHES) or 1.0)
    needed_s = fewest * float((covered_steps(rate.steps) / rate.values)[1:].sum())
    duration_s = run.outcome.duration_s
    if needed_s <= _LONGER * duration_s + _LONGER_S:
        return
    yield Diagnosis(
        f"At the rate that the trainer reports, steps of {fewest:,.0f} tokens, the fewest that the settings can mean, "
        f"take {needed_s:,.0f} s; the run took {duration_s:,.0f} s. Its steps were smaller, or its rate is wrong.",
        confidence="medium",
        because=[evidence(f"toks_per_s over {len(rate.steps)} rows", rate.source.path)],
        next_step="Have the trainer write its effective batch_size, accum and seq_len into env.json, and compare.",
    )


@rule("noop-compression", "warning", of="run")
def noop_compression(run: RunFacts) -> Iterator[Diagnosis]:
    """Gradient compression was requested and changes nothing."""
    requested = next((run.requested[name] for name in COMPRESSION if run.requested.get(name) is not None), None)
    requested = run.variable("NSA_DDP_COMPRESS") if requested is None else requested
    wanted = str(requested).strip().lower()
    if requested is None or wanted in (*_OPEN, "off", "0", "false", "no") or not run.training:
        return
    ran = next((run.effective[name] for name in COMPRESSION if run.effective.get(name) is not None), None)
    weights = str(run.environment.get("weight_dtype", "")).removeprefix("torch.")
    already = (wanted in ("bf16", "bfloat16") and weights in ("bf16", "bfloat16")) or (
        wanted in ("fp16", "float16") and weights in ("fp16", "float16", "half")
    )
    declined = ran is not None and str(ran).strip().lower() in ("off", "false", "0", "no", "none", "no-op", "noop")
    if not already and not declined:
        return
    why = f"gradients are {weights} already" if already else f"the trainer runs with compression {ran}"
    if run.world_size == 1:
        why = "a single process reduces nothing"
    yield Diagnosis(
        f"Gradient compression to {wanted} was requested but has no effect: {why}.",
        severity="info" if run.world_size == 1 else "warning",
        because=[
            *(hit_evidence(hit) for hit in run.hits("compression")[:2]),
            evidence(f"weight_dtype {weights or 'unknown'}, effective compression {ran}", run.config_path),
        ],
        next_step="Leave compression off, or keep fp32 gradients on NCCL if the traffic matters; do not credit it for "
        "a rate.",
    )


@rule("uncompiled", "warning", of="run")
def uncompiled(run: RunFacts) -> Iterator[Diagnosis]:
    """The compiler met more variants of a function than it compiles, and runs it uncompiled from there on."""
    hits = run.hits("recompile_limit")
    if not run.training or not hits:
        return
    as_fast = all(_as_fast_after(run, hit) for hit in hits)
    yield Diagnosis(
        "torch.compile met its limit of variants of one function and runs it uncompiled from there on"
        + (
            ". Steps take as long after that as before, so it is no function of the training step: one of a validation "
            "or of sampling, perhaps."
            if as_fast
            else ": the rates are between those of a compiled and an uncompiled model."
        ),
        severity="info" if as_fast else "warning",
        because=[hit_evidence(hit) for hit in hits[:3]],
        next_step="Run a few steps with TORCH_LOGS=recompiles, which names what differs from call to call, and take it "
        "out of the compiled code or make it a tensor; a higher torch._dynamo.config.recompile_limit only hides it.",
    )


_COMPARED_ROWS = 200
"""Rows on either side of a line of the log whose times are compared."""

_SAME = 1.02
"""Ratio of two medians up to which they are the same."""


def _as_fast_after(run: RunFacts, hit: LogHit) -> bool:
    """Whether the steps after a line of the log take as long as those before it, where ten of each are known."""
    places = run.evidence.places
    if places is None or run.times is None or hit.line is None or places.path != hit.path:
        return False
    at = int(np.searchsorted(places.lines, hit.line))
    if at == 0:
        return False
    steps, times = run.times
    row = int(np.searchsorted(steps, places.steps[at - 1], side="right"))
    start = int(np.searchsorted(steps, run.spec.warmup_steps, side="right"))
    before, after = times[max(start, row - _COMPARED_ROWS) : row], times[row : row + _COMPARED_ROWS]
    return min(before.size, after.size) >= MIN_ROWS and float(np.median(after)) <= _SAME * float(np.median(before))


@rule("warmup-exceeds-run", "warning", of="run")
def warmup_exceeds_run(run: RunFacts) -> Iterator[Diagnosis]:
    """The learning rate's warm-up is longer than the run, so the run shows nothing of training at the peak rate."""
    steps = run.steps_requested or run.steps_done
    warmup = run.number("warmup_steps", "lr_warmup_steps", "warmup")
    lr = run.series("lr")
    if not run.timed or steps is None:
        return
    if warmup is not None and warmup > 1 and warmup >= steps:
        because = [evidence(f"warmup_steps {warmup:.0f}, steps {steps:.0f}", run.config_path)]
        share = steps / warmup
    elif warmup is None and lr is not None and _still_rising(lr.values):
        because = [evidence(f"lr rises from {lr.values[0]:.3g} to {lr.values[-1]:.3g} to the last row", lr.source.path)]
        share = None
    else:
        return
    reached = f", of which it reaches {format_percent(share)}" if share is not None and share < 1 else ""
    yield Diagnosis(
        f"The learning rate is still warming up when the run ends: the run has {steps:.0f} steps"
        + (f", the warm-up {warmup:.0f}{reached}." if warmup is not None else "."),
        confidence="high" if warmup is not None else "medium",
        because=because,
        next_step="Set the warm-up well below the steps of this run, or draw no conclusion from its loss.",
    )


def _still_rising(values: Any) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size >= 10 and (np.diff(finite) > 0).all() and finite[-1] > 2 * finite[0] >= 0)


@rule("host-bound", "warning", of="run")
def sequential_prefill(run: RunFacts) -> Iterator[Diagnosis]:
    """The per-position loop of sequential prefill at a length where it keeps the CPU, not the GPU, busy."""
    length, prefill = run.number("seq_len"), run.setting("prefill", "prefill_impl")
    switch = run.variable("NSA_PREFILL_BATCHED")
    sequential = str(prefill).lower() == "sequential" or (prefill is None and switch in ("0", "false"))
    chosen = any(key.split(".")[-1] in ("prefill", "NSA_PREFILL_BATCHED") for key in run.spec.settings)
    if not run.training or not sequential or chosen or length is None or length < 1024:
        return
    shown = prefill or f"NSA_PREFILL_BATCHED={switch}"
    yield Diagnosis(
        f"Prefill is sequential at a sequence length of {length:.0f}: Python loops over positions set the pace.",
        confidence="medium",
        because=[evidence(f"prefill {shown}, seq_len {length:.0f}", run.config_path)],
        next_step="Set NSA_PREFILL_BATCHED=1 and run again.",
    )


# Variables that keep collectives from a faster path.

_DOES: Mapping[str, str] = {
    "NCCL_P2P_DISABLE": "GPUs of one host reach each other through its memory",
    "NCCL_P2P_LEVEL": "GPUs of one host reach each other through its memory",
    "NCCL_SHM_DISABLE": "GPUs that cannot reach each other directly do so over the network",
    "NCCL_IB_DISABLE": "hosts reach each other over sockets",
    "NCCL_NET": "hosts reach each other over sockets",
    "NCCL_NVLS_ENABLE": "nothing is reduced inside the NVLink switches",
    "CUDA_DEVICE_MAX_CONNECTIONS": "a GPU has one queue, in which collectives and computation may wait for each other",
    "CUDA_LAUNCH_BLOCKING": "each kernel is waited for, so that nothing overlaps",
}


@rule("slow-collectives", "info", of="run")
def slow_collectives(run: RunFacts) -> Iterator[Diagnosis]:
    """A variable keeps collectives from a faster path, or from overlapping with computation."""
    cards = run.machine.get("gpus")
    gpus = [one for one in (cards.values() if isinstance(cards, Mapping) else ()) if isinstance(one, Mapping)]
    if not run.training or run.world_size < 2 or not gpus:
        return
    found = {name: value for name in _DOES if (value := _inherited(run, name)) and _slows(name, value, run, gpus)}
    if not found:
        return
    said = "; ".join(f"{name}={value}: {_DOES[name]}" for name, value in found.items())
    yield Diagnosis(
        f"{said}.",
        because=[evidence(f"{name}={value}") for name, value in found.items()],
        next_step=f"Unset {' and '.join(found)} where it is not meant; a phase of kind network measures what it costs.",
        command="validator run acceptance --only network",
    )


def _inherited(run: RunFacts, name: str) -> str | None:
    """A variable of the run: given by the plan, reported by the trainer, or set where validator was started."""
    own, env = run.variable(name), run.machine.get("env")
    inherited = env.get(name) if isinstance(env, Mapping) else None
    return own if own is not None or inherited is None else str(inherited)


def _slows(name: str, value: str, run: RunFacts, gpus: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a variable with that value keeps something from this run."""
    several = any(len(group) > 1 for group in run.spec.groups)
    each = -(-run.world_size // max((len(group) for group in run.spec.groups), default=1))
    if name == "NCCL_P2P_LEVEL":
        return each > 1 and forbids_peers(value)
    if name == "NCCL_NVLS_ENABLE":  # which NCCL uses from three GPUs on
        return each > 2 and value.strip() == "0" and all(one.get("fabric") for one in gpus)
    if name == "NCCL_NET":
        return several and value.strip().lower() == "socket"
    if name == "CUDA_DEVICE_MAX_CONNECTIONS":
        return value.strip() == "1"
    linked = all(one.get("nvlinks_active") for one in gpus) and not is_on(_inherited(run, "NCCL_P2P_DISABLE") or "")
    needed = {"NCCL_P2P_DISABLE": each > 1, "NCCL_SHM_DISABLE": each > 1 and not linked, "NCCL_IB_DISABLE": several}
    return is_on(value) and needed.get(name, True)
