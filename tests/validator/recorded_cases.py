"""Further recorded cases of the self-test, which need not run on a user's machine: findings that no shipped case shows,
other ways to the same findings, and healthy runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from validator.selftest.case import Case, Expected, RunCase
from validator.selftest.cases import LOW
from validator.selftest.recorded_case import (
    ALL_FILES,
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


def _not_numbers(lines: list[bytes]) -> list[bytes]:
    def cells(line: bytes, value: bytes) -> bytes:
        parts = line.split(b",")
        return b",".join([*parts[:3], value, value, *parts[5:]])

    return [*lines[:50], cells(lines[50], b"nan"), cells(lines[51], b"inf"), *lines[52:]]


def _thinned(lines: list[bytes]) -> list[bytes]:
    return [*lines[:73], *lines[74::2]]


def _torn(lines: list[bytes]) -> list[bytes]:
    return [*lines[:30], lines[30][:20] + lines[31], *lines[32:]]


def _beats(edit: Callable[[list[bytes]], list[bytes]]) -> FakeRun:
    return FakeRun(damage=edited("heartbeat_rank1.jsonl", edit))


def _table(edit: Callable[[list[bytes]], list[bytes]]) -> FakeRun:
    return FakeRun(damage=edited("training.csv", edit))


def _fault(name: str, expect: Expected, run: RunCase | FakeRun, *codes: str, text: str | None = None) -> Case:
    return case(name, name, "files", expect, run, *codes, text=text)


_SLOW = book(train(accept=LOW))
_SEVERAL_LENGTHS = book(
    *(train(f"s{n}", args={"seq-len": n}, nproc=1, accept=LOW) for n in (512, 1024, 2048)), metrics=ALL_FILES
)
_LENGTHS = {
    f"s{n}": FakeRun(rates=scatter(rate), config={"seq_len": n})
    for n, rate in ((512, 260.0), (1024, 66.0), (2048, 17.0))
}
_TWO_CONFIGS = book(train("production", accept=LOW, args={"accum": 2}), train("custom", accept=LOW))
_ONE_FAILED = (
    '<testsuite><testcase name="a"/><testcase name="test_selection_v2[gaps]"><failure/></testcase></testsuite>'
)
_GAVE_UP = (
    "W1121 20:57:19.645000 5148 torch/_dynamo/convert_frame.py:1994] torch._dynamo hit config.recompile_limit (8)\n"
)
_NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled system error\n"
_AUDIT = '{"schema_version": 1, "summary": ["cmp, sel and win run the Triton kernels"]}'
_BACKWARDS = book(train(accept=[LOW[0], "loss.last > 0.1 * loss.first"]))
_AUDITED = book(train(env={"NSA_SDPA_AUDIT": 1}))
_COMPRESSED = book(args={"ddp-compress": "bf16"})
_FUSED = {"opt_fused": "on"}
_BUCKET = "env.NSA_DDP_BUCKET_MB"
_NO_ENV_FILE = book(
    *(train(f"s{n}", args={"seq-len": n, "batch-size": 1}, nproc=1, accept=LOW) for n in (1024, 2048)),
    metrics={"csv": "training.csv"},
)
_ONE_LENGTH = {
    f"s{n}": FakeRun(rates=scatter(847.0, seed=i), config={"seq_len": 1024}) for i, n in enumerate((1024, 2048))
}

FAULTS: tuple[Case, ...] = (
    _fault("table-with-nan-and-inf", "NO_GO", FakeRun(damage=edited("training.csv", _not_numbers)), "damaged-evidence"),
    _fault("table-with-two-headers", "INCONCLUSIVE", _table(lambda x: [*x[:60], x[0], *x[1:]]), "mixed-runs"),
    _fault(
        "table-with-nul-bytes", "INCONCLUSIVE", _table(lambda x: [*x[:70], b"\0" * 512, *x[72:]]), "damaged-evidence"
    ),
    _fault(
        "heartbeat-cut-mid-line",
        "INCONCLUSIVE",
        _beats(lambda x: [*x[:-2], x[-2][: len(x[-2]) // 2]]),
        "damaged-evidence",
    ),
    _fault("heartbeat-with-garbage", "INCONCLUSIVE", _beats(_torn), "damaged-evidence"),
    _fault(
        "heartbeat-of-another-rank",
        "INCONCLUSIVE",
        _beats(lambda lines: [line.replace(b'"rank": 1', b'"rank": 0') for line in lines]),
        "foreign-results",
    ),
    _fault("clock-set-forth", "GO", FakeRun(jump_s=(70, 86_400.0)), "clock-jump"),
    _fault("env-missing", "INCONCLUSIVE", FakeRun(without=("env.json",)), "missing-evidence", "config-unknown"),
    _fault("every-other-row-from-some-step-on", "GO", _table(_thinned), "missing-evidence"),
    _fault("metrics-missing", "INCONCLUSIVE", FakeRun(without=("metrics.json",)), "missing-evidence"),
    _fault(
        "env-that-is-no-json",
        "INCONCLUSIVE",
        FakeRun(damage=edited("env.json", lambda lines: [lines[0][:200]])),
        "damaged-evidence",
    ),
    _fault("wrong-world-size", "INCONCLUSIVE", FakeRun(ranks=1), "config-ignored"),
    _fault("bound-the-wrong-way-round", "GO", FakeRun(), "wrong-way-bound", text=_BACKWARDS),
    _fault("config-that-is-not-reported", "GO", FakeRun(config_reported=False), "config-unknown"),
    _fault("same-rate-at-twice-the-length", "INCONCLUSIVE", by_phase(_NO_ENV_FILE, _ONE_LENGTH), "config-ignored"),
    _fault(
        "sweep-of-one-bucket",
        "GO",
        sweep(
            {mb: FakeRun(config={"ddp_bucket_mb": mb}, facts={"grad_bytes": 1_017_118}) for mb in (25, 50)},
            over=_BUCKET,
        ),
        "vacuous-sweep",
    ),
    _fault(
        "sweep-that-never-arrived",
        "GO",
        sweep({mb: FakeRun(config={"ddp_bucket_mb": 25}) for mb in (25, 50)}, over=_BUCKET),
        "vacuous-sweep",
    ),
    _fault(
        "zero-loss-that-is-accepted",
        "GO",
        FakeRun(losses=[*falling(80), *[0.0] * 40]),
        "zero-loss",
        text=book(train(accept_findings=["zero-loss"])),
    ),
    _fault(
        "evaluations-that-are-the-same",
        "INCONCLUSIVE",
        FakeRun(columns={"val_loss": [max(3.2522, 4.1203 - 0.29 * (i // 15)) for i in range(120)]}),
        "zero-grad",
    ),
    _fault("norm-that-is-not-measured", "GO", FakeRun(columns={"grad_norm": [0.0] * 120}), "zero-grad"),
    _fault(
        "rate-that-steps-down",
        "GO",
        FakeRun(rates=[*scatter(40_000.0, 60), *scatter(37_000.0, 60, seed=2)]),
        "rate-shift",
        text=book(train(accept=["loss.last < loss.first"])),
    ),
    _fault(
        "never-steady", "GO", FakeRun(rates=[229 + 467 * i / 119 for i in range(120)]), "no-steady-state", text=_SLOW
    ),
    _fault("straggler", "GO", FakeRun(rank_fields={0: {"compute_time_s": 0.048}}), "straggler"),
    _fault("idle-gpu", "GO", sampled(gpu_pct=24.0), "host-bound"),
    _fault("rank-that-leaves", "INCONCLUSIVE", sampled(gpu_pct=97.0, together=120), "rank-left"),
    _fault("other-programs", "GO", sampled(gpu_pct=97.0, cpu_pct=99.0, others_pct=60.0), "busy-host"),
    _fault("exit-0-too-soon", "NO_GO", FakeRun(rates=scatter(40_000.0, 60)), "ended-early"),
    _fault(
        "other-process-on-the-gpu",
        "NO_GO",
        failed_check("gpu_processes", "process 4711 holds 8 GiB on GPU 0."),
        "leftover-process",
    ),
    _fault(
        "disk-nearly-full",
        "NO_GO",
        failed_check("disk_free_space", "3 GiB are free, 50 GiB are needed."),
        "disk-full",
    ),
    _fault("no-arrival-stamps", "GO", FakeRun(without=("arrivals.jsonl",)), "clock-unverified"),
    _fault(
        "compression-of-nothing",
        "GO",
        FakeRun(config={"ddp_compress": "bf16"}, facts={"weight_dtype": "bfloat16"}),
        "noop-compression",
        text=_COMPRESSED,
    ),
    _fault("compiler-that-gave-up", "GO", FakeRun(stderr=_GAVE_UP), "uncompiled"),
    _fault("warm-up-longer-than-the-run", "GO", FakeRun(config={"warmup_steps": 2000}), "warmup-exceeds-run"),
    _fault("sequential-prefill", "GO", FakeRun(config={"prefill": "sequential"}), "host-bound"),
    _fault(
        "one-setting-to-blame",
        "GO",
        by_phase(
            _TWO_CONFIGS,
            {"production": FakeRun(rates=scatter(23.0), config={"accum": 2}), "custom": FakeRun(rates=scatter(847.0))},
        ),
        "setting-to-blame",
    ),
    _fault("silent-audit", "GO", RecordedCase(_AUDITED, FakeRun()), "silent-audit"),
    _fault(
        "selection-mismatch",
        "NO_GO",
        FakeRun(rc=1, files={"junit.xml": _ONE_FAILED}),
        "selection-mismatch",
        text=book({"id": "sanity", "kind": "pytest", "targets": ["nsa.parity"]}),
    ),
    _fault(
        "loss-of-guessing",
        "NO_GO",
        FakeRun(losses=[5.548 - 0.001 * (i % 3) for i in range(120)], config={"vocab_size": 256}),
        "random-data-floor",
        text=book(train(accept=["loss.last < 0.9 * loss.first"])),
    ),
    _fault("dead-parameter", "GO", FakeRun(facts={"dead_parameters": ["layers.3.gate.weight"]}), "dead-parameter"),
    _fault(
        "fused-optimizer-unstable",
        "GO",
        FakeRun(rates=[*scatter(594.0, 50), *scatter(656.0, 40, seed=2), *scatter(177.0, 30, seed=3)], config=_FUSED),
        "fused-unstable",
        "no-steady-state",
        text=_SLOW,
    ),
    _fault(
        "batches-that-come-again",
        "GO",
        FakeRun(losses=[*falling(40), *([6.9, 7.1, 6.8, 7.3, 7.0, 7.2, 6.7, 7.4] * 10)]),
        "repeated-data",
    ),
    _fault(
        "few-batches-by-heart",
        "INCONCLUSIVE",
        FakeRun(
            losses=[(0.01 + 5 * 0.93**i) * (1 + 0.05 * (7 * i % 5 - 2)) for i in range(120)],
            columns={"val_loss": ["" if i % 30 else 4.9 + i / 40 for i in range(120)]},
        ),
        "repeated-data",
    ),
    _fault(
        "rank-that-only-boots",
        "GO",
        FakeRun(damage=edited("heartbeat_rank1.jsonl", lambda lines: [lines[0], b""])),
        "not-judged",
    ),
    _fault("superlinear-in-length", "GO", by_phase(_SEVERAL_LENGTHS, _LENGTHS), "superlinear-in-seq"),
    _fault(
        "promise-of-an-end",
        "GO",
        FakeRun(rates=scatter(4096 / 105), stdout="ETA: ~73 h for 50,000 steps\n"),
        "eta-wrong",
        text=_SLOW,
    ),
    _fault(
        "slow-but-not-for-its-interconnect",
        "NO_GO",
        FakeRun(rates=scatter(39.0), facts={"grad_bytes": 157_000_000}),
        "not-comm-bound",
    ),
    _fault("memory-nearly-full", "GO", FakeRun(columns={"gpu_mem_reserved_mib": [77_000.0] * 120}), "low-headroom"),
    _fault("slow-data", "GO", FakeRun(fields={"dt_fetch_s": 0.042}), "loader-bound"),
    _fault("slow-interconnect", "GO", FakeRun(compute_share=0.4), "comm-bound"),
    _fault(
        "nccl-error",
        "NO_GO",
        FakeRun(rc=1, stderr=_NCCL, detail="exited with code 1", without=("metrics.json",)),
        "nccl-error",
    ),
)

# Phases that measure the machine: two H200, the second of which is at fault.


def _on_two(phase: Mapping[str, Any]) -> str:
    return json.dumps({**json.loads(book({"id": "it", **phase})), "hardware": {"gpus": 2}})


def _machine(name: str, kind: str, code: str, *runs: FakeRun, **phase: Any) -> Case:
    """Each run of the phase is the first, or of two that of its GPU."""
    cards = {f"gpu{at}": {"name": "NVIDIA H200", "nvlinks_active": 18, "index": at} for at in range(2)}
    recorded = RecordedCase(
        _on_two({"kind": kind, **phase}), lambda spec: runs[-1 if spec.arm == "gpu1" else 0], {"gpus": cards}
    )
    return case(name, name, "files", "NO_GO", recorded, code)


def _burned(rank: int, *, rate: float = 740.0, wrong: int = 0) -> str:
    head = {"device": {"rank": rank, "name": "NVIDIA H200", "index": rank}, "answer": {"bits": "1"}}
    product = {"tflops": rate, "wrong": wrong}
    rounds = [
        {"round": at, "t": 1000.0 + at, "products": {"bf16": {**product, "tflops": rate + at % 3}}} for at in range(24)
    ]
    return "\n".join(json.dumps(one) for one in ({**head}, *rounds, {"done": True})) + "\n"


def _left(**files: str) -> FakeRun:
    return FakeRun(files={name.replace("__", "."): text for name, text in files.items()}, without=("training.csv",))


def _burnin(**second: Any) -> FakeRun:
    return _left(burnin_rank0__jsonl=_burned(0), burnin_rank1__jsonl=_burned(1, **second))


_LATE = {"bytes": 2**20, "seconds": 0.02, "bus_gb_s": 50.0, "late_s": [0.0, 0.02], "wrong": {}}
_COLLECTIVES = {
    "backend": "nccl",
    "devices": [{"rank": at, "index": at, "name": "NVIDIA H200"} for at in range(2)],
    "collectives": {"broadcast": [_LATE, {**_LATE, "bytes": 2**21}]},
}
_THROUGH_HOST = {
    **_COLLECTIVES,
    "collectives": {},
    "connections": {
        "ranks": [
            {
                "log": f"nccl_rank{at}.txt",
                "via": [[at, 1 - at, "SHM/direct/direct"]],
                "settings": {"NCCL_P2P_DISABLE": "1"},
                "gpus": {str(at): {"id": f"0-{at}", "links": ["NVS/0-0"]}},
            }
            for at in range(2)
        ]
    },
}
_PROBE = {
    "gemm_bf16": {"value": 690.0, "best": 790.0},
    "copy": {"value": 4150.0},
    "host_to_device": {"value": 55.0},
    "device_to_host": {"value": 55.0},
    "peer_to_peer": {"value": 41.0},
}
_DISK = {
    "path": "/data",
    "filesystem": "ext4",
    "tool": "fio",
    "direct": True,
    "checkpoint": {"slowest_s": 20.0, "mb_s": 25.0},
}


_KEPT_APART = RecordedCase(
    book(train(env={"NCCL_P2P_DISABLE": 1}, accept=LOW)),
    lambda spec: FakeRun(),
    {"gpus": {f"gpu{at}": {"name": "NVIDIA H200", "nvlinks_active": 18, "index": at} for at in range(2)}},
)

MACHINES: tuple[Case, ...] = (
    case("gpus-that-a-variable-keeps-apart", "a variable of NCCL", "files", "GO", _KEPT_APART, "slow-collectives"),
    _machine("gpu-that-errs", "burnin", "device-corrupts", _burnin(wrong=3)),
    _machine("gpu-that-is-slow", "burnin", "device-slow", _burnin(rate=290.0)),
    _machine("rank-that-is-late", "network", "rank-late", _left(collectives__json=json.dumps(_COLLECTIVES))),
    _machine(
        "collectives-through-the-host",
        "network",
        "path-through-host",
        _left(collectives__json=json.dumps(_THROUGH_HOST)),
    ),
    _machine(
        "peer-path-through-the-host", "preflight", "link-slow", _left(probe__json=json.dumps({"ranks": [_PROBE] * 2}))
    ),
    _machine(
        "gpus-that-differ",
        "determinism",
        "devices-differ",
        FakeRun(),
        FakeRun(losses=[*falling(119), 9.9]),
        steps=120,
        args={"seed": 1},
    ),
    _machine(
        "disk-that-is-throttled",
        "storage",
        "disk-slow",
        _left(storage__json=json.dumps(_DISK)),
        path="/data",
        accept=["storage.checkpoint_mb_s >= 50 MB/s"],
    ),
)

_CHATTER = "".join(f"[{i}] step {i} of ???? {{eta}} 50% faster x \x1b[2K\r {i:x}\n" for i in range(3000))

_GATES = {"gate_entropy_mean": scatter(0.8), "gate_max_gate": scatter(0.5), "gate_collapse_frac": [0.1] * 120}
_PLATEAU = {"gpu_mem_reserved_mib": [49_000.0 - 9_000.0 * 0.8**i for i in range(120)]}

HEALTHY: tuple[Case, ...] = (
    case("gates", "that use all branches", "healthy", "GO", FakeRun(columns=_GATES)),
    case("memory-plateau", "below the GPU's size", "healthy", "GO", FakeRun(columns=_PLATEAU)),
    case("uneven-ranks", "by 2 %", "healthy", "GO", FakeRun(rank_fields={0: {"compute_time_s": 0.0954}})),
    case("fused", "steady", "healthy", "GO", FakeRun(config=_FUSED)),
    case("settled", "by 1.5 %", "healthy", "GO", FakeRun(rates=[*scatter(40_600.0, 40), *scatter(40_000.0, 80)])),
    case("chatter", "words that mean nothing", "healthy", "GO", FakeRun(stdout=_CHATTER)),
    case("compression", "of fp32", "healthy", "GO", FakeRun(config={"ddp_compress": "bf16"}), text=_COMPRESSED),
    case("audit", "with backends", "healthy", "GO", FakeRun(files={"sdpa_audit.json": _AUDIT}), text=_AUDITED),
)

MORE_CASES = (*FAULTS, *MACHINES, *HEALTHY)
