"""What a phase shows apart from its runs: tests that did not run, audits that said nothing, sweeps of nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from validator.diagnose.rule import Diagnosis, PhaseFacts, RunFacts, Severity, as_number, evidence, hit_evidence, rule
from validator.judge.config import identical_arms, same_value
from validator.model.arguments import changes_arithmetic
from validator.model.catalogue import METRICS
from validator.model.runbook import ArmsPhase, PytestPhase
from validator.model.xids import xid
from validator.text import format_number

_SELECTION = re.compile(r"select|sel_|ranges|(?<![a-z])v2(?![a-z])", re.I)


@rule("skipped-as-pass", "veto", of="phase")
def skipped_as_pass(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """Tests ended with exit code 0 although some, or all, did not run."""
    if not isinstance(phase.record.phase, PytestPhase):
        return
    for run in phase.runs:
        passed, skipped = run.scalar("tests.passed"), run.scalar("tests.skipped") or 0.0
        ended_well = run.outcome.rc == 0 if run.outcome is not None else not run.scalar("tests.failed")
        if not ended_well or passed is None:
            continue
        if passed and (not skipped or phase.record.phase.allow_skipped):
            continue
        listed = run.evidence.tests.skipped[:5]
        how = "pytest ended with exit code 0" if run.outcome is not None else "No test failed"
        yield Diagnosis(
            f"{how}, but {skipped:.0f} tests were skipped and {passed:.0f} passed: what was skipped is not proven.",
            because=[evidence(f"{t.name}: {t.message}", f"{run.spec.out}/junit.xml") for t in listed]
            or [evidence("no test ran", f"{run.spec.out}/junit.xml")],
            next_step="Run the tests where nothing needs to be skipped (a CUDA device, the package that is "
            "missing), or set allow_skipped: true and say why.",
            run=run,
        )


@rule("selection-mismatch", "veto", of="phase")
def selection_mismatch(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """The two ways to select blocks do not agree."""
    for run in phase.runs:
        failed = [t for t in run.evidence.tests.failed if _SELECTION.search(t.name)]
        hits = run.hits("mismatch")
        if failed or hits:
            yield Diagnosis(
                f"Selection differs between its implementations: {failed[0].name if failed else hits[0].text}.",
                confidence="high" if failed else "medium",
                because=[
                    *(evidence(f"{t.name}: {t.message}", f"{run.spec.out}/junit.xml") for t in failed[:4]),
                    *map(hit_evidence, hits[:3]),
                ],
                next_step="Run with NSA_SEL_RANGES_V2=0 until the parity tests pass on every pattern, gaps included.",
                run=run,
            )


@rule("silent-audit", "warning", of="phase")
def silent_audit(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """An audit of attention backends was requested and reported nothing."""
    for run in phase.runs:
        requested = run.variable("NSA_SDPA_AUDIT") or run.requested.get("sdpa_audit")
        if not run.training or str(requested).lower() not in ("1", "true", "on", "yes"):
            continue
        if run.evidence.audit_entries:
            continue
        missing = run.evidence.audit_entries is None
        yield Diagnosis(
            "The audit of attention backends was on and "
            + ("reported nothing" if missing else "its report is empty")
            + ", so which backend ran is not known.",
            because=[evidence("sdpa_audit.json " + ("is missing" if missing else "holds no entry"))],
            next_step="Set NSA_SDPA_AUDIT=1 with NSA_PREFILL_BATCHED=1, run at least one step that uses the compressed "
            "and window branches, and read rank 0's log.",
            run=run,
        )


@rule("vacuous-sweep", "veto", of="phase")
def vacuous_sweep(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """Arms that ran the same, or left the same losses digit for digit: no winner, and no GO if that cannot be right."""
    if not isinstance(phase.record.phase, ArmsPhase):
        return
    arms: dict[str, list[RunFacts]] = {}
    for run in phase.runs:
        if run.spec.role == "measure":
            arms.setdefault(str(run.spec.arm), []).append(run)
    if len(arms) < 2:
        return
    first = [runs[0] for runs in arms.values()]
    keys = sorted({key for run in first for key in run.spec.settings})
    why = [(text, changes_arithmetic(key)) for key in keys for text in _without_effect(key, first)]
    judged = phase.report.comparison if phase.report is not None else None
    twins = list(identical_arms({arm: [(run.spec, run.result) for run in runs] for arm, runs in arms.items()}))
    why += [(f"{pair.text}.", True) for pair in twins if pair.arithmetic]
    if judged is not None and judged.outcome == "vacuous" and not why:
        why = [(judged.message, False)]
    where = f"{first[0].spec.out}/{first[0].spec.metrics.env or 'env.json'}"
    if why:
        wrong = any(arithmetic for _, arithmetic in why)
        yield Diagnosis(
            f"The comparison is of the same run{' and says nothing' if wrong else ''}: {why[0][0]}",
            severity="veto" if wrong else "warning",
            because=[evidence(text, where) for text, _ in why[:6]],
            next_step="Find where the trainer drops the setting (flag spelling, order of config files), and check "
            "env.json's `effective`; sweep values that can matter here, on a model of the real size.",
        )
    elif twins:
        yield Diagnosis(
            f"The {twins[0].text}. That may be right for a setting that changes the pace alone.",
            severity="info",
            because=[evidence(f"loss of {' and '.join(twins[0].arms)}", first[0].source("loss"))],
            next_step="Check that the setting reached the trainer (env.json's `effective`).",
        )


def _without_effect(key: str, runs: list[RunFacts]) -> Iterator[str]:
    """Why a swept setting cannot have made a difference, if so."""
    name = key.split(".", 1)[-1]
    values = [run.spec.settings.get(key) for run in runs]
    if len({str(v) for v in values}) < 2:
        return
    for flat in (name.replace("-", "_"), name.lower().removeprefix("nsa_"), name.lower()):
        ran = [run.effective.get(flat) for run in runs]
        if all(value is not None for value in ran):
            if all(same_value(ran[0], value) for value in ran[1:]):
                yield f"{key} was {', '.join(map(str, values))}, yet every run had {flat} = {ran[0]}."
                return
            break
    if "bucket" not in name.lower():
        return
    sizes = [as_number(value) for value in values]
    gradients = [as_number(run.environment.get("grad_bytes")) for run in runs]
    if any(run.world_size == 1 for run in runs):
        yield "a single process has no gradient buckets."
    elif None not in sizes and None not in gradients:
        smallest, size = min(s for s in sizes if s is not None), max(g for g in gradients if g is not None)
        if size <= smallest * 2**20:
            yield f"{size / 2**20:.2f} MiB of gradients fit one bucket of {smallest:g} MiB, the smallest tried."


@rule("not-significant", "info", of="phase")
def not_significant(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """The arms do not differ significantly, whatever their means are."""
    judged = phase.report.comparison if phase.report is not None else None
    if judged is None or judged.outcome not in ("no_difference", "not_decidable"):
        return
    unit = judged.unit or METRICS.get(judged.metric.split(".")[0], METRICS["loss"]).unit
    means = ", ".join(f"{a.arm}: {format_number(a.mean)} {unit}".strip() for a in judged.arms if a.mean is not None)
    yield Diagnosis(
        judged.message,
        because=[
            evidence(f"{a.arm}: runs {', '.join(map(format_number, a.run_means))} {unit}".strip(), None, judged.metric)
            for a in judged.arms
            if a.run_means
        ],
        next_step=f"Do not choose by these means ({means}); "
        + (
            "repeat each arm at least four times (repeats: 4)."
            if judged.outcome == "not_decidable" and min(len(a.run_means) for a in judged.arms) < 4
            else "keep the present setting, or repeat each arm as often as stated above."
            if judged.outcome == "not_decidable"
            else "keep the present setting."
            if judged.recommended is None
            else f"take {judged.recommended}, for the reason given."
        ),
    )


@rule("remedied", "warning", of="phase")
def remedied(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """A phase that failed as declared passes with a remedy."""
    attempts = phase.report.remedies if phase.report is not None else ()
    helped = next((one for one in attempts if one.name is not None and one.status == "PASS"), None)
    if helped is None:
        return
    settings = ", ".join(f"{key.split('.', 1)[-1]}={value}" for key, value in helped.settings.items())
    because = [
        evidence(f"{one.name or 'as declared'}: {one.status}. {one.message}", None, phase.record.phase.id)
        for one in attempts
    ]
    if helped.decides:
        yield Diagnosis(
            f"{phase.record.phase.id} failed at first and passed after remedy {helped.name}, which leaves the declared "
            "config as it is.",
            because=because,
            next_step="Read what the first attempt left: an intermittent fault will come back in a run of days.",
        )
    else:
        yield Diagnosis(
            f"{phase.record.phase.id} passes with remedy {helped.name} ({settings}), but not as declared.",
            because=because,
            next_step=f"Declare {settings} in the runbook and validate again: the decision is about what is declared.",
        )


_PESSIMISTIC_GB_PER_S = 1.0
"""Slower than any interconnect between GPUs of one host: traffic that is small even for it was not the cause."""


@rule("not-comm-bound", "info", of="phase")
def not_comm_bound(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """A slow phase whose gradients are too small for communication to be why."""
    if phase.report is None:
        return
    missed = [v for v in phase.report.criteria if v.status == "FAIL" and re.search(r"toks_per_s|step_time_s", v.text)]
    for run in phase.runs if missed else ():
        size, step_s = as_number(run.environment.get("grad_bytes")), run.step_time_s
        if size is None or step_s is None or run.world_size < 2:
            continue
        sent = 2 * (run.world_size - 1) / run.world_size * size
        took_s = sent / (_PESSIMISTIC_GB_PER_S * 1e9)
        if took_s > 0.02 * step_s:
            continue
        yield Diagnosis(
            f"Communication is not why this is slow: {sent / 1e6:,.0f} MB of gradients need at most {took_s:.2g} s of "
            f"a step of {step_s:.3g} s, even at {_PESSIMISTIC_GB_PER_S:g} GB/s.",
            because=[evidence(f"grad_bytes {size:,.0f}, {run.world_size} ranks", run.source("toks_per_s"))],
            next_step="Leave bucket sizes and the interconnect alone, and profile the computation of one rank.",
            run=run,
        )
        return


_HEALTH = re.compile(r"ecc|remap|retired|spare|xid|recovery|nvlink|fabric", re.I)
_PROCESSES = re.compile(r"process|idle", re.I)
_CLOCKS = re.compile(r"throttl|slowdown|thermal|clock", re.I)
_DISK = re.compile(r"disk", re.I)


@rule("unhealthy-gpu", "veto", of="phase")
def unhealthy_gpu(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """A GPU reports uncorrectable errors, remapped rows that wait or failed, broken links, or an Xid that calls for a
    reset."""
    step = "Drain this GPU and reset it; have it replaced if the count comes back."
    yield from _failed_checks(phase, _HEALTH, step, required="veto")
    for run in phase.runs:
        yield from _events_during(run)
        yield from _counted_during(run)


def _events_during(run: RunFacts) -> Iterator[Diagnosis]:
    """The gravest driver events that were sampled, those that call for a reset or more."""
    samples = run.evidence.samples
    codes = () if samples is None else samples.columns.get("xid", ())
    seen = sorted({int(code) for code in codes if 0 < code < 1e6})
    grave = [code for code in seen if xid(code).severity == "fails"]
    if samples is None or not grave:
        return
    listed = "; ".join(f"Xid {code}, {xid(code).meaning}" for code in grave)
    yield Diagnosis(
        f"The driver reported an error of a GPU during {run.spec.id}: {listed}.",
        because=[evidence(f"xid {', '.join(map(str, grave))}", samples.source.path)],
        next_step=f"First {xid(grave[0]).action}; the kernel log (dmesg) names the GPU. Then validate again.",
        run=run,
    )


def _counted_during(run: RunFacts) -> Iterator[Diagnosis]:
    """Errors that links and memories counted while the run used them."""
    counted = run.evidence.counted
    worse = [(one, each.path) for each in counted for one in each.worse()]
    if not worse:
        return
    yield Diagnosis(
        f"{'; '.join(one.text for one, _ in worse)}.",
        severity="veto" if any(one.grave for one, _ in worse) else "warning",
        because=[evidence(f"{one.device} {one.counter} +{one.by}", path) for one, path in worse],
        next_step="Reset the card, or have cable and port replaced; if the count grows again, ask for another machine.",
        run=run,
    )


@rule("leftover-process", "warning", of="phase")
def other_process(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """Another process is on the GPUs before anything was started."""
    yield from _failed_checks(phase, _PROCESSES, "End these processes by their pids, or wait for them, and run again.")


@rule("throttled", "warning", of="phase")
def throttled(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """The hardware slows itself down, for temperature or for power."""
    step = "Check cooling and power (nvidia-smi -q -d PERFORMANCE) before measuring."
    yield from _failed_checks(phase, _CLOCKS, step)


@rule("disk-full", "warning", of="phase")
def disk_low(phase: PhaseFacts) -> Iterator[Diagnosis]:
    """Less free space than the runbook asks for."""
    yield from _failed_checks(phase, _DISK, "Free space, or write results elsewhere with --out.")


def _failed_checks(
    phase: PhaseFacts, pattern: re.Pattern[str], step: str, *, required: Severity = "warning"
) -> Iterator[Diagnosis]:
    """Preflight's failed checks whose id fits; a required check causes a finding of the severity `required`."""
    for check in phase.record.checks:
        if check.status == "FAIL" and pattern.search(check.id):
            yield Diagnosis(
                check.message or f"{check.title}: {check.observed}, expected {check.expected}.",
                severity=required if check.required else "warning",
                because=check.evidence or [evidence(f"{check.title}: {check.observed}", "environment.json", check.id)],
                next_step=step,
            )
