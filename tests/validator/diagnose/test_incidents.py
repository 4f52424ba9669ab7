"""Incidents as they really happened, each rebuilt as one trainer's folder and looked at by `inspect`; each has a twin.

The twin is the same folder without the fault, and nothing may be said of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.validator.diagnose.cases import UNCERTAIN, healthy
from tests.validator.ingest.folders import START_S, record, write_csv, write_heartbeat, write_logs
from validator.pipeline.inspect import inspect

Make = Callable[[Path], object]


def configured(*, asked: dict[str, object], ran: dict[str, object], rate: float) -> Make:
    def make(folder: Path) -> None:
        healthy(folder, rate=rate, effective=ran)
        account = json.loads((folder / "env.json").read_text())
        account["requested"] = {**account["effective"], **asked}
        (folder / "env.json").write_text(json.dumps(account))

    return make


def told(line: str, *, rate: float = 845.0) -> Make:
    def make(folder: Path) -> None:
        healthy(folder, rate=rate)
        write_logs(folder, stdout=f"{line}\n", rank=0)

    return make


def three_rows(rates: Sequence[float], *, fused: bool = False) -> Make:
    def make(folder: Path) -> None:
        write_csv(folder, rates, steps=[1, 20, 40])
        account = {"opt_fused": "on" if fused else "off", "seq_len": 1024, "steps": 40}
        (folder / "env.json").write_text(json.dumps({"requested": account, "effective": account}))

    return make


def slow(folder: Path, *, every: int) -> None:
    """105 s a step; the last record is of step 40, and ten minutes of beats follow."""
    steps = range(every, 41, every)
    write_csv(folder, [39.0] * len(steps), steps=list(steps), step_time_s=[105.0] * len(steps))
    marks = [record(step, ts=105 * step) for step in steps]
    write_heartbeat(folder, [*marks, *(record(40, ts=4200 + 5 * i, msg="beat") for i in range(1, 120))])
    (folder / "env.json").write_text(json.dumps({"effective": {"seq_len": 2048}}))


def appended(folder: Path) -> None:
    path = healthy(folder) / "training.csv"
    path.write_text(path.read_text() + "".join(path.read_text().splitlines(keepends=True)[1:40]))


def with_file(name: str, text: str, **env: object) -> Make:
    def make(folder: Path) -> None:
        healthy(folder, env=dict(env))
        (folder / name).write_text(text)

    return make


def old_halt(folder: Path) -> None:
    healthy(folder)
    (folder / ".HALT").write_text("")
    os.utime(folder / ".HALT", (START_S - 3600, START_S - 3600))


def report_of_tests(skipped: int) -> str:
    cases = (
        '<testcase name="equivalence"/>'
        + '<testcase name="v2_on_cuda"><skipped message="no CUDA"/></testcase>' * skipped
    )
    return f"<testsuite>{cases}</testsuite>"


TINY: dict[str, object] = {"seq_len": 128, "batch_size": 8, "n_layers": 1, "dtype": "fp32"}
FULL: dict[str, object] = {"seq_len": 2048, "batch_size": 1, "n_layers": 12, "dtype": "bf16"}
AUDIT = {"NSA_SDPA_AUDIT": "1"}

INCIDENTS: tuple[tuple[str, str, Make, Make], ...] = (
    (
        "config-ignored",
        "847 tokens/s at 2,048 tokens was [8, 128], one layer, fp32",
        configured(asked=FULL, ran=TINY, rate=847.0),
        configured(asked=FULL, ran=FULL, rate=847.0),
    ),
    (
        "not-significant",
        "bucket 50 MB: 297 and 835 are 566 ± 269",
        three_rows([623, 297, 835]),
        three_rows([850, 852, 848]),
    ),
    ("no-steady-state", "229 → 480 → 696", three_rows([229, 480, 696]), three_rows([690, 700, 696])),
    ("no-steady-state", "594 → 656 → 177", three_rows([594, 656, 177]), three_rows([594, 656, 600])),
    (
        "fused-unstable",
        "594 → 656 → 177 with the fused optimizer",
        three_rows([594, 656, 177], fused=True),
        three_rows([594, 656, 600], fused=True),
    ),
    (
        "host-bound",
        "sequential prefill at 2,048 tokens",
        lambda folder: healthy(folder, rate=17.0, effective={"prefill": "sequential"}),
        lambda folder: healthy(folder, rate=847.0, effective={"prefill": "batched"}),
    ),
    (
        "slow-not-hung",
        "last line at step 5, next at step 20, 105 s a step",
        lambda folder: slow(folder, every=20),
        lambda folder: healthy(folder, rate=4096 / 105),
    ),
    (
        "eta-wrong",
        "about 73 h for 50,000 steps at 105 s",
        told("ETA: ~73 h for 50,000 steps", rate=4096 / 105),
        told("ETA: ~1458 h for 50,000 steps", rate=4096 / 105),
    ),
    ("stale-halt", ".HALT from before the start", old_halt, with_file(".HALT", "asked for by the watchdog")),
    ("mixed-runs", "a step that goes back inside one table", appended, healthy),
    (
        "skipped-as-pass",
        "exit code 0 with the CUDA test skipped",
        with_file("junit.xml", report_of_tests(1)),
        with_file("junit.xml", report_of_tests(0)),
    ),
    (
        "selection-mismatch",
        "parity on all patterns but gaps",
        with_file(
            "junit.xml", '<testsuite><testcase name="v2[gaps]"><failure message="differs"/></testcase></testsuite>'
        ),
        with_file("junit.xml", '<testsuite><testcase name="v2[gaps]"/></testsuite>'),
    ),
    (
        "silent-audit",
        "an audit that printed nothing",
        lambda folder: healthy(folder, env={"env": AUDIT}),
        with_file("sdpa_audit.json", '{"summary": ["win ran flash"]}', env=AUDIT),
    ),
    (
        "noop-compression",
        "bf16 compression of gradients that are bf16 already",
        lambda folder: healthy(folder, effective={"ddp_compress": "bf16"}, env={"weight_dtype": "bfloat16"}),
        lambda folder: healthy(folder, effective={"ddp_compress": "bf16"}, env={"weight_dtype": "float32"}),
    ),
    (
        "unit-mismatch",
        "855× of five iterations against 169× of one",
        told("selection v2: 855x speedup\nselection v2: 169x speedup per iteration"),
        told("selection v2: 169x speedup\nselection v2: 171x speedup per iteration"),
    ),
    (
        "random-data-floor",
        "a loss stuck at ln 256 = 5.545 taken for convergence",
        lambda folder: healthy(folder, losses=[5.548 - 0.001 * (i % 3) for i in range(60)]),
        lambda folder: healthy(folder, losses=[5.548 - 0.01 * i for i in range(60)]),
    ),
    (
        "warmup-exceeds-run",
        "2,000 steps of warm-up in a run of 300",
        lambda folder: healthy(folder, n=300, effective={"warmup_steps": 2000}),
        lambda folder: healthy(folder, n=300, effective={"warmup_steps": 20}),
    ),
    (
        "nan-loss",
        "a loss that is no number",
        lambda folder: healthy(folder, losses=[3.0] * 30 + [float("nan")] * 30),
        lambda folder: healthy(folder, losses=[3.0 - i / 60 for i in range(60)]),
    ),
)


def codes(folder: Path) -> set[str]:
    return {finding.code for finding in inspect(folder, warmup_steps=20).findings}


@pytest.mark.parametrize(("code", "title", "make", "twin"), INCIDENTS, ids=[f"{i[0]}: {i[1]}" for i in INCIDENTS])
def test_inspect_recognizes_it_and_does_not_accuse_its_twin(
    tmp_path: Path, code: str, title: str, make: Make, twin: Make
) -> None:
    make(tmp_path / "incident")
    twin(tmp_path / "twin")
    assert code in codes(tmp_path / "incident"), title
    assert codes(tmp_path / "twin") - UNCERTAIN == set(), title


ROWS = [f"step {i} loss {3 / i**0.5:.4f}" for i in range(1, 41)]
TRACE = ["Traceback (most recent call last):", '  File "t.py", line 3, in <module>', "    x[8]", "KeyError: 8"]


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (TRACE, "KeyError: 8"),
        ([f"[rank1]: {line}" for line in TRACE], "KeyError: 8"),
        ([*TRACE, "", "100%|###| 40/40 [00:10<00:00, 3.88it/s]"], "KeyError: 8"),
        (
            ["slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-05-06T16:32:52 DUE TO TIME LIMIT ***", ROWS[-1]],
            "TIME",
        ),
        (
            ["mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 11 (Segmentation fault)."],
            "rank 3",
        ),
        (["Killed"], "Killed"),
        (["train.sh: line 3: 1234 Aborted (core dumped) python t.py"], "core dumped"),
        ([*TRACE, *ROWS], None),  # it was caught, and the training went on
        (["Exception ignored in: <function __del__>", *TRACE], None),
        (["ValueError: is the name of a column"], None),
        (["saved", "done"], None),
    ],
)
def test_a_log_that_ends_in_an_error_is_named(tmp_path: Path, ending: list[str], said: str | None) -> None:
    """Of eight public logs that ended so, none had a word."""
    (tmp_path / "train.log").write_text("\n".join([*ROWS, *ending]) + "\n")
    found = [one.message for one in inspect(tmp_path, warmup_steps=20).findings if one.code == "crashed"]
    assert [said in message for message in found if said is not None] == ([True] if said else [])
    assert bool(found) == (said is not None)
