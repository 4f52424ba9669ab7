"""Realistic reports in each decision: what the renderings are tried on."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.validator.report.pieces import (
    REQUESTED,
    baseline,
    buckets,
    charts,
    preflight,
    run_report,
    sanity,
    stats,
    verdict,
    window,
)
from validator.model.contrast import (
    Contrast,
    CriterionDifference,
    FindingDifference,
    MetricDifference,
    Sample,
    SettingDifference,
    Subject,
)
from validator.model.measure import ScalarValue
from validator.model.verdict import (
    Artifact,
    Check,
    ComparedArm,
    Comparison,
    Evidence,
    Finding,
    Outlook,
    PhaseReport,
    Recommendation,
    RunbookRef,
    RunReport,
    ValidationReport,
)

__all__ = [
    "HOSTILE",
    "charts",
    "contrast",
    "go",
    "hostile",
    "in_progress",
    "inconclusive",
    "no_go",
    "run_report",
    "trivial",
]

HOSTILE = (
    "</script></style></svg><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31mred\x1b[0m\x00\x07"
    '\u202eevil\u202c |cell| `code` ``` [link](javascript:alert(3)) {{ 7*7 }} {% raw %} $(rm -rf /) \'; rm "quoted" '
    "]]> & &amp; @everyone #1 https://evil.example/ \ud800 \ufffe"
)
"""Every trick that a log line or a file name may try."""


def _report(
    decision: str, why: str, exit_code: int | None, phases: tuple[PhaseReport, ...], **more: Any
) -> ValidationReport:
    values: dict[str, Any] = {
        "run_id": "20250827T140311Z-smoke-cpu-node7-3f9a",
        "runbook": RunbookRef(
            name="smoke-cpu",
            path="runbooks/smoke_cpu.yaml",
            sha256=hashlib.sha256(b"runbook").hexdigest(),
            title="Smoke run on the CPU",
            description="Two processes on real text, in under two minutes.",
            overrides=("baseline.steps=300",),
        ),
        "started": "2025-08-27T14:03:11+00:00",
        "finished": "2025-08-27T14:12:02+00:00",
        "duration_s": 531.2,
        "decision": decision,
        "why": why,
        "exit_code": exit_code,
        "phases": phases,
        "environment": {
            "host": "node7",
            "python": "3.11.9",
            "packages": {"torch": "2.7.1", "numpy": "2.1.0"},
            "cpu": {"model": "AMD EPYC 7B13", "cores_usable": 2, "affinity": [0, 1]},
            "memory_bytes": 12_884_901_888,
            "gpus": [{"index": 0, "name": "NVIDIA A100 80GB PCIe"}, {"index": 1, "name": "NVIDIA A100 80GB PCIe"}],
            "env": {"NCCL_ALGO": "Ring", "HF_TOKEN": "[redacted]"},
        },
        "artifacts": _artifacts(),
        "validator_version": "0.1.0",
    }
    return ValidationReport(**{**values, **more})


def _artifacts() -> tuple[Artifact, ...]:
    sizes = {"run.json": 4_212, "journal.jsonl": 18_233, "runs/baseline/r1/training.csv": 28_113}
    hashed = [
        Artifact(path=path, bytes=size, sha256=hashlib.sha256(path.encode()).hexdigest())
        for path, size in sizes.items()
    ]
    return (*hashed, Artifact(path="runs/baseline/r1/trace/rank 0.json", bytes=3_221_225_472, sha256=None))


def go() -> ValidationReport:
    """All passed, a setting adopted."""
    return _report(
        "GO",
        "All 7 required criteria passed on the declared configuration.",
        0,
        (preflight(), sanity(), baseline(), buckets()),
        recommended=Recommendation(
            env={"NSA_DDP_BUCKET_MB": "4", "NCCL_ALGO": "Ring", "NOTE": "it's a test"},
            command="NSA_DDP_BUCKET_MB=4 python -m torch.distributed.run --nproc-per-node 2 -m nsa.train",
            because=("NSA_DDP_BUCKET_MB=4: 13,130 tok/s against 12,838 of the runner-up over 4 runs each (buckets).",),
        ),
        findings=(
            Finding(
                code="warmup-exceeds-run",
                severity="info",
                confidence="medium",
                phase="baseline",
                message="The schedule warms up for 2,000 steps; this run has 300.",
                next_step="Judge the loss by its trend only.",
            ),
        ),
    )


def no_go() -> ValidationReport:
    """Too slow, because the trainer ignored its settings; a later phase was not run."""
    effective = {**REQUESTED, "seq_len": 128, "dtype": "fp32", "n_layers": 1, "world_size": 2}
    evidence = (Evidence(path="runs/baseline/r1/env.json", where="effective.seq_len", text="requested 512, ran 128"),)
    slow = (
        verdict("baseline.exit", "every run ends by itself with exit code 0", observed=0.0, bound=0.0),
        verdict(
            "baseline.config",
            "the declared configuration is what ran",
            "FAIL",
            observed="2 settings differ",
            message="seq_len ran as 128 instead of 512, dtype as fp32 instead of bf16.",
            evidence=evidence,
        ),
        verdict(
            "baseline.1",
            "toks_per_s.mean >= 39000",
            "FAIL",
            observed=12_840.0,
            unit="tok/s",
            ci_low=12_772.6,
            ci_high=12_907.4,
            bound=39_000.0,
            margin=-0.6708,
            message="The whole interval lies below 39,000 tok/s.",
            evidence=window("baseline/r1"),
        ),
        verdict("baseline.2", "loss.last < loss.first", observed=2.8713, unit="nat", bound=5.5612, margin=0.4837),
        verdict(
            "baseline.4",
            "gate_entropy_min.min >= 0.2",
            "INCONCLUSIVE",
            required=False,
            observed=None,
            bound=0.2,
            message="The trainer wrote no gate_entropy_min; log it on every step.",
        ),
    )
    crashed = run_report(
        "soak",
        metrics={},
        effective=None,
        requested=None,
        warmup_end_step=None,
        outcome={
            "rc": -9,
            "reason": "exited",
            "duration_s": 12.4,
            "detail": "Rank 1 was killed by signal 9 after step 41.",
            "attempts": [
                {
                    "number": 1,
                    "rc": None,
                    "reason": "stalled",
                    "started": "2025-08-27T14:04:11.000+00:00",
                    "duration_s": 200.0,
                    "detail": "No step for 180 s.",
                    "bundle": ["runs/soak/r1.attempt1/dump/stacks.txt"],
                },
                {
                    "number": 2,
                    "rc": -9,
                    "reason": "exited",
                    "started": "2025-08-27T14:07:41.000Z",
                    "duration_s": 12.4,
                    "detail": "Killed after step 41.",
                    "bundle": [],
                },
            ],
        },
        irregularities=("training.csv line 42: cut off in the middle",),
    )
    soak = PhaseReport(
        id="soak",
        kind="soak",
        title="Long run",
        status="FAIL",
        runs=(crashed,),
        duration_s=213.0,
        message="Rank 1 was killed by signal 9 after step 41.",
        criteria=(
            verdict(
                "soak.exit",
                "every run ends by itself with exit code 0",
                "FAIL",
                observed="signal 9",
                bound=0.0,
                message="The run was killed by signal 9.",
            ),
        ),
    )
    single = PhaseReport(
        id="single",
        kind="train",
        title="One process",
        status="NOT_RUN",
        message="It needs `baseline`, which ended FAIL.",
        criteria=(verdict("single.1", "scaling.efficiency >= 0.9", "NOT_RUN", message="The phase was not run."),),
    )
    return _report(
        "NO_GO",
        "baseline fails toks_per_s.mean >= 39000: 12,840 tok/s; and config-ignored vetoes the start.",
        1,
        (
            preflight(),
            sanity(),
            baseline("FAIL", criteria=slow, run=run_report("baseline", effective=effective)),
            single,
            soak,
        ),
        findings=(
            Finding(
                code="oom",
                severity="warning",
                confidence="medium",
                phase="soak",
                run="soak/r1",
                message="Rank 1 ended by SIGKILL while host memory was at 98 %.",
                next_step="Halve batch_size and double accum; watch `dmesg` for the OOM killer.",
                evidence=(Evidence(path="runs/soak/r1/logs/stderr.log", where="line 812", text="Killed"),),
            ),
            Finding(
                code="config-ignored",
                severity="veto",
                confidence="high",
                phase="baseline",
                run="baseline/r1",
                message="The trainer ran [2, 128] in fp32 although [2, 512] in bf16 was requested.",
                next_step="Pass --seq_len 512 and check effective.seq_len in env.json.",
                evidence=evidence,
            ),
        ),
    )


def inconclusive() -> ValidationReport:
    """The interval straddles the bound and the sweep has too few runs."""
    undecided = (
        verdict(
            "baseline.1",
            "toks_per_s.mean >= 12800",
            "INCONCLUSIVE",
            observed=12_840.0,
            unit="tok/s",
            ci_low=12_772.6,
            ci_high=12_907.4,
            bound=12_800.0,
            margin=0.0031,
            message="The interval reaches over the bound; about 900 more steps would decide it.",
            evidence=window("baseline/r1"),
        ),
        verdict("baseline.2", "loss.last < loss.first", observed=2.8713, unit="nat", bound=5.5612, margin=0.4837),
    )
    return _report(
        "INCONCLUSIVE",
        "baseline: toks_per_s.mean >= 12800 is not decided; the interval reaches over the bound.",
        3,
        (preflight(), sanity(), baseline("INCONCLUSIVE", criteria=undecided), buckets("not_decidable")),
        findings=(
            Finding(
                code="not-significant",
                severity="warning",
                confidence="high",
                phase="buckets",
                message="Two runs in each arm; the arms cannot be told apart.",
                next_step="Set repeats: 4.",
            ),
        ),
    )


def in_progress() -> ValidationReport:
    """Half way."""
    soak = PhaseReport(id="soak", kind="soak", title="Long run", status="RUNNING", message="Step 120 of 1,200.")
    return _report(
        "IN_PROGRESS",
        "2 of 4 phases are judged; soak is running, single is pending.",
        None,
        (preflight(), baseline(), soak, PhaseReport(id="single", kind="train", title="One process", status="NOT_RUN")),
        outlook=Outlook(as_of="2025-08-27T14:05:00+00:00", remaining_s=754.0, at_least=True),
        finished=None,
        artifacts=(),
    )


def hostile() -> ValidationReport:
    """Foreign text that attacks in every field that can hold some."""
    text = HOSTILE
    run = run_report(
        "baseline",
        arm=text,
        command=("python", text),
        env={"X": text},
        requested={text: text, "a": text},
        effective={text: "other", "deep": {"a": {"b": [text]}}},
        irregularities=(text,),
        out=text,
        log=text,
        outcome={
            "rc": 1,
            "reason": text,
            "duration_s": 1.0,
            "detail": text,
            "attempts": [
                {"number": text, "reason": text, "detail": text, "bundle": [text], "started": text, "duration_s": 1.0},
                {"number": 2, "rc": 1, "reason": text, "started": "2025-08-27T14:04:11Z", "duration_s": 1.0},
            ],
        },
        metrics={text: stats(1.0, unit=text, source=text, note=text), "loss": stats(2.0, unit="nat")},
        scalars={text: ScalarValue(value=text, unit=text, source="javascript:alert(1)")},
    )
    evidence = (
        Evidence(path="../../etc/passwd", where=text, text=text),
        Evidence(path="https://evil.example/", text=text),
    )
    phase = PhaseReport(
        id="baseline",
        kind="train",
        title=text,
        why=text,
        status="FAIL",
        message=text,
        runs=(run,),
        criteria=(verdict(text, text, "FAIL", observed=text, bound=text, unit=text, message=text, evidence=evidence),),
        checks=(
            Check(id=text, title=text, status="FAIL", observed=text, expected=text, message=text, evidence=evidence),
        ),
        comparison=Comparison(
            metric=text,
            unit=text,
            direction="highest",
            outcome="no_difference",
            recommended=text,
            min_effect=0.02,
            message=text,
            arms=tuple(
                ComparedArm(
                    arm=name, settings={text: text}, run_means=(1.0, 2.0), mean=1.5, ci_low=1.0, ci_high=2.0, stdev=0.5
                )
                for name in (text, "plain")
            ),
        ),
    )
    return _report(
        "NO_GO",
        text,
        1,
        (phase,),
        run_id="hostile",
        environment={text: {text: [text]}, "list": [{text: text}]},
        runbook=RunbookRef(name=text, path=text, sha256=text, title=text, description=text, overrides=(text,)),
        findings=(
            Finding(
                code=text,
                severity="veto",
                confidence="low",
                phase=text,
                run=text,
                message=text,
                evidence=evidence,
                next_step=text,
            ),
        ),
        recommended=Recommendation(env={"GOOD": text, text: text}, command=text, because=(text,)),
        artifacts=(Artifact(path=text, bytes=1, sha256=text), Artifact(path="/etc/passwd", bytes=1, sha256=None)),
        since=contrast(text),
        validator_version=text,
    )


def contrast(text: str) -> Contrast:
    """A comparison with the last GO that says the text wherever it can."""
    metric = MetricDifference(
        phase=text,
        arm=text,
        metric=text,
        unit=text,
        better="higher",
        a=Sample(value=100.0, ci_low=99.0, ci_high=101.0, runs=1),
        b=Sample(value=90.0, runs=1),
        change=-0.1,
        change_low=-0.12,
        change_high=-0.08,
        verdict="not_decidable",
        repeats_needed=4,
        headline=True,
        message=text,
    )
    finding = FindingDifference(code=text, severity=text, phase=text, message=text)
    return Contrast(
        a=Subject(kind="validation", name=text, path=text, decision="GO", started=text),
        b=Subject(kind="validation", name=text),
        verdict="worse",
        message=text,
        caveats=(text,),
        settings=(SettingDifference(name=text, a=text, b=None, where="config", phases=(text,)),),
        metrics=(metric,),
        criteria=(CriterionDifference(id=text, text=text, required=True, a=text, b=None),),
        findings_gained=(finding,),
        findings_lost=(finding,),
    )


def trivial(count: int) -> ValidationReport:
    """Command phases with nothing to draw."""
    phases = tuple(
        PhaseReport(
            id=f"step_{i}",
            kind="command",
            title=f"Step {i}",
            status="PASS",
            duration_s=0.05,
            runs=(
                RunReport(
                    id=f"step_{i}/r1",
                    command=("sh", "-c", "true"),
                    out=f"runs/step_{i}/r1",
                    outcome={"rc": 0, "reason": "exited", "duration_s": 0.05},
                ),
            ),
            criteria=(verdict(f"step_{i}.exit", "every run ends by itself with exit code 0", observed=0.0, bound=0.0),),
        )
        for i in range(count)
    )
    return _report("GO", f"All {count} required criteria passed.", 0, phases)
