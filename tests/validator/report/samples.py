"""Realistic reports in each decision, and the one that attacks: what the renderings are tried on, by name."""

from __future__ import annotations

from tests.validator.report.frame import report_of
from tests.validator.report.hostile import hostile
from tests.validator.report.pieces import (
    REQUESTED,
    baseline,
    buckets,
    charts,
    ended_well,
    loss_verdict,
    preflight,
    rate_verdict,
    run_report,
    sanity,
    verdict,
)
from validator.model.verdict import (
    Evidence,
    Finding,
    PhaseReport,
    Recommendation,
    RemainingTime,
    RunReport,
    ValidationReport,
)

__all__ = ["charts", "go", "hostile", "in_progress", "inconclusive", "no_go", "trivial"]


def go() -> ValidationReport:
    """All passed, a setting adopted."""
    return report_of(
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
        ended_well("baseline"),
        verdict(
            "baseline.config",
            "the declared configuration is what ran",
            "FAIL",
            observed="2 settings differ",
            message="seq_len ran as 128 instead of 512, dtype as fp32 instead of bf16.",
            evidence=evidence,
        ),
        rate_verdict(39_000, "FAIL", margin=-0.6708, message="The whole interval lies below 39,000 tok/s."),
        loss_verdict(),
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
    return report_of(
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
        rate_verdict(
            12_800,
            "INCONCLUSIVE",
            margin=0.0031,
            message="The interval reaches over the bound; about 900 more steps would decide it.",
        ),
        loss_verdict(),
    )
    return report_of(
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
    return report_of(
        "IN_PROGRESS",
        "2 of 4 phases are judged; soak is running, single is pending.",
        None,
        (preflight(), baseline(), soak, PhaseReport(id="single", kind="train", title="One process", status="NOT_RUN")),
        outlook=RemainingTime(as_of="2025-08-27T14:05:00+00:00", remaining_s=754.0, at_least=True),
        finished=None,
        artifacts=(),
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
            criteria=(ended_well(f"step_{i}"),),
        )
        for i in range(count)
    )
    return report_of("GO", f"All {count} required criteria passed.", 0, phases)
