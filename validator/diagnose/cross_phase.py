"""What the rates and configs of several runs show together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from validator.diagnose.rule import (
    MICRO_BATCHES,
    Confidence,
    Diagnosis,
    RunFacts,
    ValidationFacts,
    as_number,
    evidence,
    rule,
)
from validator.judge.config import same_value
from validator.judge.data import by_own_word
from validator.model.runbook import TrainPhase
from validator.model.settings import flat_name
from validator.runbook.direction import wrong_ways
from validator.stats.clock import FITS
from validator.text import format_number, format_percent

EXPONENT_LIMIT = 1.5
"""Time per step ∝ length^p. Dense layers alone give 1, causal attention that dominates 2; NSA stays near 1."""

SCALING_LIMIT = 1.05
_MODEL = (
    *("n_layers", "num_layers", "n_layer", "dim", "d_model", "hidden_size", "n_embd", "n_heads", "num_heads", "n_head"),
    *("vocab_size", "seq_len", "dtype"),
)

_BATCH = ("batch_size", *MICRO_BATCHES)

_SAME_RATE = 0.03
_BLAME_RATIO = 2.0
_NOT_COMPARED = frozenset(
    {"out", "seed", "steps", "data_path", "config", "resume", "threads", "global_batch_size"}
    | {"val_every", "val_batches", "save_every", "save_final", "keep_checkpoints"}
    | {"log_every", "heartbeat_s", "aux_every", "warmup_steps", "lr", "min_lr_ratio", "schedule"}
)


@rule("impossible-scaling", "veto", of="validation")
def impossible_scaling(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """More processes made each one faster, which they cannot.

    A ratio of two rates of which one could not be measured is a warning: on a busy machine it is noise.
    """
    for phase in whole.phases:
        own = phase.record.phase
        if not isinstance(own, TrainPhase) or own.scaling_against is None:
            continue
        judged = phase.report.scalars.get("scaling.efficiency") if phase.report is not None else None
        value = as_number(judged.value) if judged is not None else None
        low = judged.ci_low if judged is not None else None
        many = next((p.runs for p in whole.phases if p.record.phase.id == own.scaling_against), ())
        if value is None and phase.runs and many and many[0].rate and phase.runs[0].rate:
            value = many[0].rate_per_rank / phase.runs[0].rate_per_rank
        if value is None or value <= SCALING_LIMIT:
            continue
        unmeasured = judged is not None and as_number(judged.value) is None
        certain = not unmeasured and (low is None or low > SCALING_LIMIT)
        different = (
            [n for n in _varies_by(many[0], phase.runs[0]) if n not in ("nproc", *MICRO_BATCHES)]
            if phase.runs and many
            else []
        )
        why = f"The runs differ in {', '.join(different[:5])}." if different else "Something else differs between them."
        yield Diagnosis(
            f"Each process is {value:.2f} times as fast in {own.scaling_against} as alone in {own.id}. {why}",
            severity="veto" if certain and own.required else "warning",
            confidence="high" if certain else "low",
            because=[
                evidence(f"{r.rate_per_rank:,.0f} tok/s per rank on {r.world_size}", r.source("toks_per_s"), r.spec.id)
                for r in (*many[:1], *phase.runs[:1])
                if r.rate
            ],
            next_step="Compare both env.json's `effective`, look for another process on the device during the "
            "single run, and repeat both, interleaved.",
            phase=own.id,
        )


@rule("config-ignored", "veto", of="validation")
def rate_ignores_length(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """The same rate at lengths that differ by much, and no effective config: the length never reached the model."""
    points = [p for p in _by_length(whole) if not p[2].effective]
    for (short, slow, one), (long, fast, other) in combinations(points, 2):
        if long < 1.9 * short or abs(fast / slow - 1) > _SAME_RATE:
            continue
        same_step = (
            one.series("step_time_s") is not None
            and other.series("step_time_s") is not None
            and one.step_time_s is not None
            and other.step_time_s is not None
            and abs(one.step_time_s / other.step_time_s - 1) <= _SAME_RATE
            and "batch_size" not in _varies_by(one, other)
        )
        yield Diagnosis(
            f"The rate is the same at sequence lengths {short:.0f} and {long:.0f} ({slow:,.0f} and {fast:,.0f} tok/s "
            f"per rank){', and so is the time per step' if same_step else ''}; no effective config was recorded. The "
            "length was likely ignored.",
            severity="veto" if same_step else "warning",
            confidence="high" if same_step else "medium",
            because=[
                evidence(f"seq_len {r.number('seq_len'):.0f}: {r.rate:,.0f} tok/s", r.source("toks_per_s"), r.spec.id)
                for r in (one, other)
            ],
            next_step="Print the shape of the first batch in both runs, or have the trainer write env.json with "
            "`effective`.",
        )
        return


def _by_length(whole: ValidationFacts) -> list[tuple[float, float, RunFacts]]:
    """One `(seq_len, rate per rank, run)` for each length."""
    found_runs: dict[float, tuple[float, float, RunFacts]] = {}
    for run in whole.runs:
        length = run.number("seq_len")
        if length and run.rate:
            found_runs.setdefault(length, (length, run.rate_per_rank, run))
    return [found_runs[length] for length in sorted(found_runs)]


@rule("config-ignored", "veto", of="validation")
def another_config(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """Two runs with the same requested settings differ in model or batches, by env.json: they cannot be compared.

    A number of ranks may change the batch of each, where the global one is fixed; it does not change the model.
    """
    first: dict[tuple[str, ...], RunFacts] = {}
    for run in whole.required_runs:
        for start, names in ((_started_as(run), (*_MODEL, *_BATCH)), (_started_as(run, nproc=False), _MODEL)):
            other = first.setdefault(start, run)
            differ = [
                name
                for name in names
                if name in run.effective
                and name in other.effective
                and not same_value(other.effective[name], run.effective[name])
            ]
            if differ:
                yield _not_alike(other, run, differ)
                return


def _started_as(run: RunFacts, *, nproc: bool = True) -> tuple[str, ...]:
    """How a run was started, without what differs between any two runs and without their length."""
    given = {f"args.{flat_name(key)}": str(value) for key, value in run.spec.requested.items()}
    given |= {f"env.{key}": value for key, value in run.spec.env.items()}
    own = {key for key, value in given.items() if _is_its_own(run, key.partition(".")[2].lower(), value)}
    own_arguments = {str(run.spec.steps), str(run.spec.nproc), *(given[key] for key in own)}
    arguments = [one for one in run.spec.argv if run.spec.out not in one and one not in own_arguments]
    ranks = str(run.world_size) if nproc else "any"
    return (*arguments, f"nproc={ranks}", *(f"{key}={given[key]}" for key in sorted(given.keys() - own)))


def _is_its_own(run: RunFacts, name: str, value: str) -> bool:
    """Whether a setting is a run's folder, its seed or its length, whatever its trainer calls that."""
    length = value == str(run.spec.steps) and re.search("step|iter", name)
    return run.spec.out in value or name in ("out", "steps") or name.endswith("seed") or bool(length)


def _not_alike(one: RunFacts, other: RunFacts, names: list[str]) -> Diagnosis:
    values = ", ".join(f"{name} {one.effective[name]} and {other.effective[name]}" for name in names[:4])
    return Diagnosis(
        f"{one.spec.id} and {other.spec.id} were started with the same settings and ran with {values}.",
        because=[
            evidence(f"{name} {run.effective[name]}", None, run.spec.id) for name in names[:3] for run in (one, other)
        ],
        next_step="Find out what the trainer takes these settings from (a file that changed, the number of ranks, free "
        "memory), and set them in the runbook.",
        run=other,
    )


@rule("superlinear-in-seq", "warning", of="validation")
def superlinear_in_seq(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """Time per step grows faster with the sequence length than any healthy implementation does."""
    points = _by_length(whole)
    if len(points) < 2 or points[-1][0] < 1.5 * points[0][0]:
        return
    lengths = np.log([p[0] for p in points])
    times = np.log([p[0] / p[1] for p in points])  # time of one sequence: length over rate
    exponent, offset = np.polyfit(lengths, times, 1)
    if exponent <= EXPONENT_LIMIT:
        return
    misfit = float(np.abs(times - (exponent * lengths + offset)).max())
    others = sorted(set(_varies_by(points[0][2], points[-1][2])) - {"seq_len", "batch_size"})
    confidence: Confidence = "high" if len(points) >= 3 and misfit < 0.3 and not others else "medium"
    if others:
        confidence = "low"
    slower = points[0][1] / points[-1][1]
    yield Diagnosis(
        f"Time per step grows with the sequence length to the power {exponent:.1f}: from {points[0][0]:.0f} to "
        f"{points[-1][0]:.0f} tokens each token takes {slower:.1f} times as long. That is the algorithm, not "
        "start-up and not the interconnect." + (f" The runs also differ in {', '.join(others[:4])}." if others else ""),
        confidence=confidence,
        because=[
            evidence(f"seq_len {length:.0f}: {rate:,.0f} tok/s per rank", run.source("toks_per_s"), run.spec.id)
            for length, rate, run in points
        ],
        next_step="Profile one step at the longest length; check that prefill is batched (NSA_PREFILL_BATCHED=1) "
        "and that nothing loops over positions.",
    )


@rule("setting-to-blame", "warning", of="validation")
def setting_to_blame(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """Two runs of as many ranks whose rates are far apart: the settings in which they differ are the suspects."""
    runs = [r for r in whole.runs if r.rate and r.effective and r.spec.phase_model.one_config]
    worst: tuple[float, RunFacts, RunFacts, dict[str, tuple[object, object]]] | None = None
    for one, other in combinations(runs, 2):
        fast, slow = sorted((one, other), key=lambda r: r.rate_per_rank, reverse=True)
        ratio = fast.rate_per_rank / slow.rate_per_rank
        different = _varies_by(fast, slow)
        comparable = bool(different.keys() - {"seq_len"}) and fast.world_size == slow.world_size
        if ratio >= _BLAME_RATIO and comparable and (worst is None or ratio > worst[0]):
            worst = (ratio, fast, slow, different)
    if worst is None:
        return
    ratio, fast, slow, different = worst
    listed = ", ".join(f"{n} {a} → {b}" for n, (a, b) in list(different.items())[:6])
    alone = len(different) == 1
    yield Diagnosis(
        f"{slow.spec.phase} is {ratio:.1f} times slower per rank than {fast.spec.phase}; "
        + (f"the only difference is {listed}." if alone else f"they differ in {len(different)} settings: {listed}."),
        severity="warning" if alone else "info",
        confidence="high" if alone else "low",
        because=[
            evidence(f"{r.rate_per_rank:,.0f} tok/s per rank", r.source("toks_per_s"), r.spec.id) for r in (fast, slow)
        ],
        next_step="Change one setting at a time between them"
        + ("" if alone else f", largest suspect first, or halve the list of {len(different)} each time")
        + f"; a share of {format_percent(1 - 1 / ratio)} of the rate is at stake.",
    )


def _varies_by(one: RunFacts, other: RunFacts) -> dict[str, tuple[object, object]]:
    """Settings in which two runs differ: the effective values where they are known."""
    left, right = {**one.requested, **one.effective}, {**other.requested, **other.effective}
    different: dict[str, tuple[object, object]] = {
        name: (left[name], right[name])
        for name in left
        if name in right and name not in _NOT_COMPARED and not same_value(left[name], right[name])
    }
    if one.world_size != other.world_size:
        different["nproc"] = (one.world_size, other.world_size)
    return different


@rule("unit-mismatch", "veto", of="validation")
def tokens_by_pace_differ(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """Runs that were started alike whose rates mean other tokens a step at the pace of their rows: the timer of one of
    them leaves out time."""
    alike: dict[tuple[str, ...], list[tuple[float, RunFacts]]] = {}
    for run in whole.required_runs:
        word = by_own_word(run.record) if run.timed and not run.failed else None
        if word is not None:
            alike.setdefault(_started_as(run), []).append((word.tokens, run))
    for runs in alike.values():
        ordered = sorted(runs, key=lambda pair: pair[0])
        (least, one), (most, other) = ordered[0], ordered[-1]
        if most <= FITS[1] * least:
            continue
        yield Diagnosis(
            f"The toks_per_s of {other.spec.id} means {most:,.0f} tokens a step at the pace of its rows, that of "
            f"{one.spec.id} {least:,.0f}, and both were started alike: the timer of {other.spec.id} leaves out time, "
            f"by a factor of {format_number(most / least, digits=3)}.",
            because=[
                evidence(f"{tokens:,.0f} tokens a step", run.source("toks_per_s"), run.spec.id)
                for tokens, run in ((least, one), (most, other))
            ],
            next_step="Set trainer.tokens_per_step, by which each rate is checked, and look at what the timer leaves "
            "out (data, logging, a validation).",
        )


@rule("wrong-way-bound", "warning", of="validation")
def wrong_way_bound(whole: ValidationFacts) -> Iterator[Diagnosis]:
    """A criterion bounds a value on its good side alone, so that any worse run passes it."""
    for phase in whole.phases:
        own = phase.record.phase
        if phase.report is None or not own.required:
            continue
        for number, one in wrong_ways(own, whole.record.runbook).items():
            verdict = next((found for found in phase.report.criteria if found.id == f"{own.id}.{number + 1}"), None)
            shown = f"{one.text}: {verdict.status}" if verdict is not None else one.text
            yield Diagnosis(
                f"`{one.text}` in phase {own.id} {one.accepts}: its PASS says nothing about how good the run is.",
                phase=own.id,
                because=[evidence(shown, "runbook.yaml", f"phases.{own.id}.accept[{number}]")],
                next_step=f"{one.fix[:1].upper()}{one.fix[1:]}.",
            )
