"""Settings that did not become what was asked for, or that cannot do what they are meant to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from validator.diagnose.facts import MICRO_BATCHES, LogHit, RunFacts, same_value
from validator.diagnose.rule import evidence, found, percent
from validator.judge.config import untold
from validator.judge.window import MIN_ROWS, covered_steps
from validator.model.record import RunRecord
from validator.model.verdict import Finding

__all__ = [
    "COMPRESSION",
    "config_ignored",
    "config_unknown",
    "noop_compression",
    "sequential_prefill",
    "uncompiled",
    "warmup_exceeds_run",
]

COMPRESSION = ("ddp_compress", "compress", "grad_compression", "gradient_compression")

_WORKLOAD = frozenset(
    {"seq_len", "batch_size", *MICRO_BATCHES, "global_batch_size", "vocab_size", "data"}
    | {"n_layers", "dim", "n_heads", "n_kv_groups", "d_k", "d_v", "ffn_dim", "attention"}
    | {"l", "d", "l_sel", "n_sel", "w"}
    | {"dtype", "param_dtype", "weight_dtype", "compute_dtype", "precision"}
)
"""Settings that decide how much work a step is. A rate measured with others is the rate of something else."""

_OPEN = frozenset({"auto", "none", "null", "", "default"})
"""Values that leave the choice to the trainer."""

_PLACES = frozenset({"out", "out_dir", "output", "output_dir", "config", "config_file", "run_name", "name"})
_TOKEN_TOLERANCE = 0.1
_LONGER, _LONGER_S = 1.1, 2.0


def _differences(run: RunFacts) -> dict[str, tuple[Any, Any]]:
    """Settings whose effective value is not the one asked for; what was left open or never asked for is none."""
    sources = run.environment.get("sources")
    defaults = {k for k, v in sources.items() if v == "default"} if isinstance(sources, dict) else set()
    different = {}
    for name, asked in run.asked.items():
        if name == "sdpa" and run.spec.kind == "audit":
            continue  # a variant may have nothing to restrict; the audit says so
        if name not in run.ran or name in _PLACES or name in COMPRESSION or name in defaults:
            continue
        ran = run.ran[name]
        if str(asked).strip().lower() in _OPEN or "/" in f"{asked}{ran}" or same_value(asked, ran):
            continue
        different[name] = (asked, ran)
    return different


def config_ignored(run: RunFacts) -> Iterator[Finding]:
    """What ran is not what was asked for: by the trainer's own account, by its ranks, or by its arithmetic."""
    different = _differences(run)
    workload = {name: pair for name, pair in different.items() if name in _WORKLOAD}
    if run.training and different:
        pairs = workload or different
        said = ", ".join(f"{name} {asked} asked, {ran} ran" for name, (asked, ran) in list(pairs.items())[:6])
        yield found(
            "config-ignored",
            f"The trainer did not run what was asked for: {said}.",
            severity="veto" if workload else "warning",
            because=[
                evidence(f"{name}: requested {asked!r}, effective {ran!r}", _env_path(run), f"effective.{name}")
                for name, (asked, ran) in list(pairs.items())[:8]
            ],
            next_step="Find where the trainer drops or overrides these settings (flag spelling, order of config files, "
            "environment), then run again; the figures of this run belong to another configuration.",
        )
    ranks = run.irregular("world-size")
    if ranks:
        yield found(
            "config-ignored",
            f"{ranks[0].message[:1].upper()}{ranks[0].message[1:]}.",
            severity="veto",
            because=[evidence(ranks[0].message, ranks[0].path, "world_size")],
            next_step="Start the trainer under torchrun and let it read WORLD_SIZE, then run again.",
        )
    if not different and not {"seq_len", "batch_size"} <= run.ran.keys():
        yield from _tokens_disagree(run)


def _env_path(run: RunFacts) -> str | None:
    found_source = run.result.scalars.get("effective.seq_len") or next(
        (s for name, s in run.result.scalars.items() if name.startswith("effective.")), None
    )
    return found_source.source if found_source is not None else None


def _measured_tokens(run: RunFacts) -> float | None:
    """Tokens of a step by rate × step time, where both are the trainer's own and independent figures."""
    rate, times = run.series("toks_per_s"), run.series("step_time_s")
    if rate is None or times is None or run.rate is None:
        return None
    common, left, right = np.intersect1d(rate.steps, times.steps, return_indices=True)
    products = (rate.values[left] * times.values[right])[common > run.spec.warmup_steps]
    products = products[np.isfinite(products) & (products > 0)]
    return float(np.median(products)) if products.size >= 3 else None


def _tokens_disagree(run: RunFacts) -> Iterator[Finding]:
    """Without an effective config, rate × step time still tells how many tokens a step really had."""
    measured, expected = _measured_tokens(run), run.expected_tokens
    if not measured and expected:
        yield from _tokens_take_longer(run, expected)
    if not measured or not expected or abs(measured / expected - 1) <= _TOKEN_TOLERANCE:
        return
    yield found(
        "config-ignored",
        f"A step had about {measured:,.0f} tokens (rate × step time) where the settings ask for {expected:,.0f}.",
        severity="veto" if not 0.5 < measured / expected < 2 else "warning",
        confidence="medium",
        because=[
            evidence(f"toks_per_s × step_time_s ≈ {measured:,.0f}", run.source("toks_per_s")),
            evidence(f"batch_size × accum × seq_len × ranks = {expected:,.0f}"),
        ],
        next_step="Have the trainer write its effective batch_size, accum and seq_len into env.json, and compare; "
        "batch_size counts the sequences of one rank and micro-batch.",
    )


def _tokens_take_longer(run: RunFacts, expected: float) -> Iterator[Finding]:
    """At the rate that is told, the tokens that were asked for take longer than the whole run did."""
    rate = run.series("toks_per_s")
    if rate is None or run.outcome is None or not (np.isfinite(rate.values) & (rate.values > 0)).all():
        return
    fewest = expected / run.world_size / max(1.0, run.number(*MICRO_BATCHES) or 1.0)
    needed_s = fewest * float((covered_steps(rate.steps) / rate.values)[1:].sum())
    duration_s = run.outcome.duration_s
    if needed_s <= _LONGER * duration_s + _LONGER_S:
        return
    yield found(
        "config-ignored",
        f"At the rate that the trainer tells, steps of {fewest:,.0f} tokens, the fewest that the settings can mean, "
        f"take {needed_s:,.0f} s; the run took {duration_s:,.0f} s. Its steps were smaller, or its rate is wrong.",
        severity="veto",
        confidence="medium",
        because=[evidence(f"toks_per_s over {len(rate.steps)} rows", rate.source.path)],
        next_step="Have the trainer write its effective batch_size, accum and seq_len into env.json, and compare.",
    )


def config_unknown(run: RunFacts) -> Iterator[Finding]:
    """The trainer does not say what it ran, or not all of it, so nobody knows."""
    if run.training and run.ran:
        yield from _untold_workload(run)
    if not run.training or run.ran or (run.spec.phase == "inspect" and not run.result.series):
        return
    if run.steps_done is None:
        return
    yield found(
        "config-unknown",
        "The trainer does not write its effective config, so whether the settings were obeyed is not known.",
        severity="info",
        because=[evidence("no `effective` in the trainer's environment file")],
        next_step="Let the trainer write env.json with `requested` and `effective` (docs/trainer-contract.md) and "
        "name it in trainer.metrics.env.",
    )


def _untold_workload(run: RunFacts) -> Iterator[Finding]:
    """Settings that decide how much work a step is, and that a trainer which tells others does not tell."""
    silent = [name for name in untold(RunRecord(run.spec, run.outcome, run.result)) if name in _WORKLOAD]
    if silent:
        yield found(
            "config-unknown",
            f"The trainer was given {', '.join(silent)} and does not tell what it ran of it.",
            severity="info",
            because=[evidence(f"no effective.{name}", _env_path(run)) for name in silent[:4]],
            next_step="Let the trainer write the same keys under `requested` and `effective`; a flag that it does not "
            "know should be an error.",
        )


def noop_compression(run: RunFacts) -> Iterator[Finding]:
    """Gradient compression was asked for and changes nothing."""
    asked = next((run.asked[name] for name in COMPRESSION if run.asked.get(name) is not None), None)
    asked = run.variable("NSA_DDP_COMPRESS") if asked is None else asked
    wanted = str(asked).strip().lower()
    if asked is None or wanted in (*_OPEN, "off", "0", "false", "no") or not run.training:
        return
    ran = next((run.ran[name] for name in COMPRESSION if run.ran.get(name) is not None), None)
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
    yield found(
        "noop-compression",
        f"Gradient compression to {wanted} was asked for but has no effect: {why}.",
        severity="info" if run.world_size == 1 else "warning",
        because=[
            *(hit.evidence for hit in run.hits("compression")[:2]),
            evidence(f"weight_dtype {weights or 'unknown'}, effective compression {ran}", _env_path(run)),
        ],
        next_step="Leave compression off, or keep fp32 gradients on NCCL if the traffic matters; do not credit it for "
        "a rate.",
    )


def uncompiled(run: RunFacts) -> Iterator[Finding]:
    """The compiler met more variants of a function than it compiles, and runs it uncompiled from there on."""
    hits = run.hits("recompile_limit")
    if not run.training or not hits:
        return
    beside = all(_as_fast_after(run, hit) for hit in hits)
    yield found(
        "uncompiled",
        "torch.compile met its limit of variants of one function and runs it uncompiled from there on"
        + (
            ". Steps take as long after that as before, so it is no function of the training step: one of a validation "
            "or of sampling, perhaps."
            if beside
            else ": the rates are between those of a compiled and an uncompiled model."
        ),
        severity="info" if beside else "warning",
        because=[hit.evidence for hit in hits[:3]],
        next_step="Run a few steps with TORCH_LOGS=recompiles, which names what differs from call to call, and take it "
        "out of the compiled code or make it a tensor; a higher torch._dynamo.config.recompile_limit only hides it.",
    )


_BESIDE = 200
"""Rows on either side of a line of the log whose times are compared."""

_SAME = 1.02
"""Ratio of two medians up to which they are the same."""


def _as_fast_after(run: RunFacts, hit: LogHit) -> bool:
    """Whether the steps after a line of the log take as long as those before it, where ten of each are known."""
    places = run.result.extra.get("places")
    if places is None or run.times is None or hit.line is None or places["path"] != hit.path:
        return False
    at = int(np.searchsorted(places["lines"], hit.line))
    if at == 0:
        return False
    steps, times = run.times
    row = int(np.searchsorted(steps, places["steps"][at - 1], side="right"))
    start = int(np.searchsorted(steps, run.spec.warmup_steps, side="right"))
    before, after = times[max(start, row - _BESIDE) : row], times[row : row + _BESIDE]
    return min(before.size, after.size) >= MIN_ROWS and float(np.median(after)) <= _SAME * float(np.median(before))


def warmup_exceeds_run(run: RunFacts) -> Iterator[Finding]:
    """The learning rate's warm-up is longer than the run, so the run says nothing about training at the peak rate."""
    steps = run.steps_asked or run.steps_done
    warmup = run.number("warmup_steps", "lr_warmup_steps", "warmup")
    lr = run.series("lr")
    if not run.timed or steps is None:
        return
    if warmup is not None and warmup > 1 and warmup >= steps:
        because = [evidence(f"warmup_steps {warmup:.0f}, steps {steps:.0f}", _env_path(run))]
        share = steps / warmup
    elif warmup is None and lr is not None and _still_rising(lr.values):
        because = [evidence(f"lr rises from {lr.values[0]:.3g} to {lr.values[-1]:.3g} to the last row", lr.source.path)]
        share = None
    else:
        return
    reached = f", of which it reaches {percent(share)}" if share is not None and share < 1 else ""
    yield found(
        "warmup-exceeds-run",
        f"The learning rate is still warming up when the run ends: the run has {steps:.0f} steps"
        + (f", the warm-up {warmup:.0f}{reached}." if warmup is not None else "."),
        confidence="high" if warmup is not None else "medium",
        because=because,
        next_step="Set the warm-up well below the steps of this run, or take its loss as no sign of how training goes.",
    )


def _still_rising(values: Any) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size >= 10 and (np.diff(finite) > 0).all() and finite[-1] > 2 * finite[0] >= 0)


def sequential_prefill(run: RunFacts) -> Iterator[Finding]:
    """The per-position loop of sequential prefill at a length where it keeps the processor, not the GPU, busy."""
    length, prefill = run.number("seq_len"), run.setting("prefill", "prefill_impl")
    switch = run.variable("NSA_PREFILL_BATCHED")
    sequential = str(prefill).lower() == "sequential" or (prefill is None and switch in ("0", "false"))
    chosen = any(key.split(".")[-1] in ("prefill", "NSA_PREFILL_BATCHED") for key in run.spec.settings)
    if not run.training or not sequential or chosen or length is None or length < 1024:
        return
    shown = prefill or f"NSA_PREFILL_BATCHED={switch}"
    yield found(
        "host-bound",
        f"Prefill is sequential at a sequence length of {length:.0f}: Python loops over positions set the pace.",
        confidence="medium",
        because=[evidence(f"prefill {shown}, seq_len {length:.0f}", _env_path(run))],
        next_step="Set NSA_PREFILL_BATCHED=1 and run again.",
    )
