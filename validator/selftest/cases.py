"""All cases: faults with real processes, recorded faults and healthy runs, one for each way to a wrong verdict.

A sick case has a healthy one that looks like it. Further recorded cases are in tests/validator/recorded_cases.py.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from validator.model.plan import RunSpec
from validator.model.settings import flat_name
from validator.selftest.case import Case, CaseRun, RunCase, Sandbox, read_result
from validator.selftest.live import LIVE, run_book, tests
from validator.selftest.recorded_case import (
    Damage,
    FakeRun,
    RecordedCase,
    book,
    by_phase,
    case,
    edited,
    failed_check,
    falling,
    sampled,
    scatter,
    sweep,
    train,
)

_BUCKET = "env.NSA_DDP_BUCKET_MB"
LOW = ["toks_per_s.mean >= 1", "loss.last < loss.first"]
"""Criteria that slow runs meet."""


def modified_before(*names: str, by_s: float = 86_400.0) -> Damage:
    """Files from before the run's start; a missing one is created."""

    def damage(out: Path) -> None:
        for name in names:
            path = out / name
            path.touch()
            os.utime(path, (time.time() - by_s,) * 2)

    return damage


def _garbage(lines: list[bytes]) -> list[bytes]:
    return [*lines[:40], b"\xff\xfe\x07garbage", b"41,,,", *lines[42:60], b"step 60 loss=3 ok", *lines[61:]]


def _step_back(lines: list[bytes]) -> list[bytes]:
    return [*lines[:60], *lines[30:]]


_REFUSED = FakeRun(
    rates=(),
    without=("training.csv", "heartbeat_rank0.jsonl", "heartbeat_rank1.jsonl", "metrics.json"),
    rc=2,
    detail="exited with code 2",
    stderr="error: .HALT is left from an earlier run; remove it\n",
    damage=modified_before(".HALT"),
)
_STOPPED_EARLY = FakeRun(
    rates=[4096 / 105] * 3,
    steps=(1, 20, 40),
    rc=-15,
    reason="timeout",
    detail="was still running at step 40 of 120 after its timeout of 1 min",
    without=("metrics.json",),
)
_ASKED_LENGTH = book(
    train(accept=["toks_per_s.mean >= 1000", "loss.last < loss.first"]),
    metrics={"csv": "training.csv"},
    args={"seq-len": 2048, "batch-size": 1},
)
_SCALING = book(train(nproc=2, accept=LOW), train("single", nproc=1, accept=LOW, scaling_against="baseline"))
_SOAK = book(train("soak", kind="soak", accept=["loss.last < loss.first"]))
_PAUSES = dict.fromkeys(range(20, 120, 10), 1.0)
"""A second after every tenth step, which takes 0.1 s: the true rate is half of what the rows say."""


def _buckets(first: float, second: float) -> dict[object, FakeRun]:
    """Arms of a sweep over the bucket size, with the rate of each."""
    return {mb: FakeRun(rates=[rate], config={"ddp_bucket_mb": mb}) for mb, rate in ((25, first), (50, second))}


def compared(rate: float, other: float, *, rc: int) -> RunCase:
    """Two validations with four runs an arm, and `validator compare` of them, which must end with exit code `rc`."""

    def run(sandbox: Sandbox) -> CaseRun:
        folders = []
        for level in (rate, other):
            folders.append(str(sweep(_buckets(1.05 * level, level), over=_BUCKET).write(sandbox)))
            sandbox.call("report", folders[-1])
        ended, out, err = sandbox.call("compare", *folders)
        wrong = () if ended == rc else (f"compare ended with exit code {ended}, expected {rc}: {(out + err)[-300:]}",)
        return replace(read_result(sandbox, 0, err), wrong=wrong)

    return run


RECORDED: tuple[Case, ...] = (
    case(
        "table-with-garbage",
        "lines of the table that are no rows",
        *("files", "INCONCLUSIVE", FakeRun(damage=edited("training.csv", _garbage)), "damaged-evidence"),
    ),
    case(
        "step-going-back",
        "step 30 follows step 59: two runs in one table",
        *("files", "INCONCLUSIVE", FakeRun(damage=edited("training.csv", _step_back)), "mixed-runs"),
    ),
    case(
        "results-of-yesterday",
        "the table is older than the process",
        *("files", "INCONCLUSIVE", FakeRun(damage=modified_before("training.csv")), "foreign-results"),
    ),
    case(
        "missing-rank",
        "rank 1 wrote no heartbeat",
        *("files", "INCONCLUSIVE", FakeRun(without=("heartbeat_rank1.jsonl",)), "missing-evidence"),
    ),
    case("stale-halt", "a .HALT of yesterday stops the run", "files", "NO_GO", _REFUSED, "stale-halt"),
    case(
        "clock-set-back",
        "the wall clock is set back by an hour",
        *("files", "GO", FakeRun(jump_s=(70, -3600.0)), "clock-jump"),
    ),
    case(
        "length-ignored-in-silence",
        "no effective config is reported, but rate × step time shows a fourth of the tokens",
        *("settings", "INCONCLUSIVE", FakeRun(config={"seq_len": 512}), "config-ignored", "config-unknown"),
        text=_ASKED_LENGTH,
    ),
    case(
        "sweep-of-identical-arms",
        "two learning rates by the trainer's report, and one loss curve",
        "settings",
        "INCONCLUSIVE",
        sweep({lr: FakeRun(config={"lr": lr}) for lr in (1e-4, 2e-4)}, over="args.lr"),
        "vacuous-sweep",
    ),
    case(
        "phase-without-criteria",
        "nothing that could fail is asked of the run",
        *("settings", "INCONCLUSIVE", FakeRun()),
        text=book(train(accept=[])),
    ),
    case(
        "loss-that-diverges",
        "the loss falls to 4.2 and ends at 10.3, without a NaN",
        "learning",
        "INCONCLUSIVE",
        FakeRun(losses=[*falling(80, last=4.2), *(4.2 + 6.1 * i / 39 for i in range(40))]),
        "diverging",
        text=book(train(accept=["toks_per_s.mean >= 1000"])),
    ),
    case(
        "loss-that-becomes-zero",
        "a logger that filters NaN prints 0.0 from step 81 on",
        *("learning", "INCONCLUSIVE", FakeRun(losses=[*falling(80), *[0.0] * 40]), "zero-loss"),
    ),
    case(
        "gradients-that-are-skipped",
        "every 17th gradient norm is NaN, and the loss is written without these steps",
        "learning",
        "INCONCLUSIVE",
        FakeRun(columns={"grad_norm": [math.nan if i % 17 == 16 else 0.4 for i in range(120)]}),
        "nonfinite-values",
    ),
    case(
        "rate-that-halves-in-a-soak",
        "half of the rate is lost half-way; its mean still meets the bound",
        *("pace", "NO_GO", FakeRun(rates=[*scatter(40_000.0, 60), *scatter(20_000.0, 60, seed=2)]), "rate-shift"),
        text=_SOAK,
    ),
    case(
        "pauses-hidden-from-the-rate",
        "40,000 tokens/s in the rows, half of it in wall time",
        *("pace", "NO_GO", FakeRun(pauses=_PAUSES)),
        text=book(train(accept=["toks_per_s.mean >= 35000", "loss.last < loss.first"])),
    ),
    case(
        "rate-of-one-rank",
        "the rate is per rank where the global one is meant",
        *("pace", "INCONCLUSIVE", FakeRun(facts={"tokens_per_step": 8192}), "unit-mismatch"),
    ),
    case(
        "impossible-scaling",
        "each process is 1.27 times as fast in a pair as alone",
        "pace",
        "INCONCLUSIVE",
        by_phase(_SCALING, {"baseline": FakeRun(rates=scatter(847.0)), "single": FakeRun(rates=scatter(334.0))}),
        "impossible-scaling",
    ),
    case(
        "arms-that-do-not-differ",
        "two values whose means differ by less than the runs do",
        "pace",
        "GO",
        sweep(_buckets(40_000.0, 40_020.0), over=_BUCKET),
        "not-significant",
    ),
    case(
        "slow-not-hung",
        "105 s a step, logged every 20: stopped at its timeout, and only slow",
        *("pace", "NO_GO", _STOPPED_EARLY, "slow-not-hung", "over-budget"),
        text=book(train(accept=LOW)),
    ),
    case(
        "pause-at-every-seventh-step",
        "half of a step's time is lost at every seventh step",
        "pace",
        "GO",
        FakeRun(rates=[rate / (1.5 if i % 7 == 6 else 1) for i, rate in enumerate(scatter(40_000.0))]),
        "periodic-stall",
    ),
    case(
        "slower-than-the-run-before",
        "a tenth less than the validation that it is compared with",
        *("pace", "GO", compared(40_000.0, 36_000.0, rc=1)),
    ),
    case(
        "throttled-gpu",
        "the GPU throttles while it is measured: its rate counts, as a long run's does",
        *("machine", "GO", sampled(gpu_pct=97.0, throttled=range(80, 130)), "throttled"),
    ),
    case(
        "shared-gpu",
        "another program uses the GPU in some of the steps, which do not count",
        *("machine", "GO", sampled(gpu_pct=97.0, shared=range(100, 110)), "busy-gpu"),
    ),
    case(
        "unhealthy-gpu",
        "uncorrectable memory errors",
        *("machine", "NO_GO", failed_check("gpu_ecc", "3 uncorrectable ECC errors since the last reset.")),
        "unhealthy-gpu",
    ),
    case(
        "memory-leak",
        "memory rises by 5 MiB a step to the end",
        *("machine", "GO", FakeRun(columns={"host_mem_mib": [1000.0 + 5.0 * i for i in range(120)]}), "memory-growth"),
    ),
)


def _healthy(name: str, title: str, run: RunCase | FakeRun, **more: Any) -> Case:
    return case(f"healthy-{name}", title, "healthy", "GO", run, **more)


def _live(*, nproc: int = 0, phases: tuple[Any, ...] = (), **args: Any) -> RunCase:
    return run_book(book(*phases, nproc=nproc, args={key.replace("_", "-"): value for key, value in args.items()}))


def _by_length(spec: RunSpec) -> FakeRun:
    length = int({flat_name(key): value for key, value in spec.requested.items()}["seq_len"])
    return FakeRun(rates=scatter(900.0 * (512 / length) ** 0.1), config={"seq_len": length})


_LENGTHS = book(*(train(f"s{n}", args={"seq-len": n}, nproc=1, accept=LOW) for n in (512, 2048)))
_SPIKE = [loss * (2.0 if 90 <= i < 93 else 1.0) for i, loss in enumerate(falling())]
_SMALL = [loss * x for loss, x in zip(falling(first=0.5, last=0.01), scatter(1.0, share=0.3, seed=5), strict=True)]
_WARM = [*(20_000.0 * (1 + i / 8) for i in range(8)), *scatter(40_000.0, 112)]

HEALTHY: tuple[Case, ...] = (
    _healthy("process", "one process, with real processes", _live()),
    _healthy("pair", "two ranks under torchrun", _live(nproc=2), torch=True, about_s=12),
    _healthy("sparse-log", "a row every five steps", _live(log_every=5, phases=(train(steps=300),))),
    _healthy("tests", "tests that pass", tests("def test_parity():\n    assert 1 + 1 == 2\n")),
    _healthy(
        "several-phases",
        "a command, a baseline and a soak",
        _live(phases=({"id": "words", "kind": "command", "run": "echo ready"}, train(), train("soak", kind="soak"))),
        about_s=6,
    ),
    _healthy("slow-start", "the first step takes two seconds", _live(pace=0.01, at=1, fault="slow-start"), about_s=6),
    _healthy("run", "two ranks", FakeRun()),
    _healthy("eight-ranks", "eight ranks", FakeRun(), text=book(nproc=8)),
    _healthy("resumed", "another process continues after step 60", FakeRun(resumed_at=60)),
    _healthy(
        "observation",
        "a phase that is declared to observe, after one with criteria",
        RecordedCase(
            book(train(), train("look", observe=True, accept=[])),
            lambda spec: FakeRun(rates=scatter(40_000.0, seed=len(spec.phase))),
        ),
    ),
    _healthy("spike", "a loss that doubles at step 90 and recovers", FakeRun(losses=_SPIKE)),
    _healthy("small-loss", "a loss near zero that scatters by a third", FakeRun(losses=_SMALL)),
    _healthy("warm-up", "the rate rises for eight steps, then holds", FakeRun(rates=_WARM)),
    _healthy("noise", "a rate that scatters by 1.5 %", FakeRun(rates=scatter(40_000.0, share=0.015, seed=9))),
    _healthy(
        "settling",
        "a soak that is 1.5 % slower once it is warm",
        FakeRun(rates=[*scatter(40_600.0, 40), *scatter(40_000.0, 80)]),
        text=_SOAK,
    ),
    _healthy(
        "scaling",
        "two processes at 96 % of a lone one's rate each",
        by_phase(_SCALING, {"baseline": FakeRun(rates=scatter(845.0)), "single": FakeRun(rates=scatter(440.0))}),
    ),
    _healthy("lengths", "time per token grows slowly with the length", RecordedCase(_LENGTHS, _by_length)),
    _healthy(
        "sweep",
        "one bucket size is five percent faster",
        sweep(_buckets(42_000.0, 40_000.0), over=_BUCKET),
    ),
    _healthy("compared", "as fast as the validation that it is compared with", compared(40_000.0, 40_000.0, rc=0)),
    _healthy("busy-gpu", "the GPU is busy for 97 % of the time", sampled(gpu_pct=97.0)),
    _healthy(
        "memory-saw",
        "host memory that goes up and down",
        FakeRun(columns={"host_mem_mib": [4000.0 + 40.0 * (i % 8) for i in range(120)]}),
    ),
)

CASES: tuple[Case, ...] = (*LIVE, *RECORDED, *HEALTHY)
"""Faults first, then runs with nothing wrong."""
