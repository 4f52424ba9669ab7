"""`make bench` leaves no benchmark out unsaid, and says in a line what this machine cannot do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from benchmarks import __main__ as bench
from benchmarks import peers
from benchmarks.machine import need_gpu

FOLDER = Path(bench.__file__).parent


def test_every_benchmark_is_run_or_named_with_a_reason() -> None:
    commands = {path.stem for path in FOLDER.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()}
    run = {one.module for one in bench.BENCHMARKS}
    assert run | set(bench.BY_HAND) == commands - {"__main__"}
    assert not run & set(bench.BY_HAND)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("findings", ("--trials", "1", "--only", "straggler")),
        ("comparing", ("--trials", "1")),
        ("calibration", ("--trials", "1")),
        ("bounds", ("--trials", "1")),
        ("lasting", ("--trials", "1", "--only", "85%")),
        ("growth", ("--trials", "1")),
        ("fleet", ("--trials", "1")),
    ],
)
def test_a_benchmark_of_judging_runs_on_the_present_code(module: str, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert len(done.stdout.splitlines()) > 2


def test_what_needs_a_gpu_says_so_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        need_gpu("dense")
    assert ended.value.code == 4
    assert capsys.readouterr().err == "benchmarks.dense: not run, it needs a CUDA device\n"


def test_one_that_fails_fails_the_whole_after_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = {"attention": 0, "calibration": 1, "commands": 4, "reading": 0}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(bench, "BENCHMARKS", (*map(bench.Benchmark, codes), bench.Benchmark("dense", gpu=True)))
    started: list[str] = []

    def run(command: tuple[str, ...], *, check: bool) -> SimpleNamespace:
        started.append(command[2].removeprefix("benchmarks."))
        return SimpleNamespace(returncode=codes[started[-1]])

    monkeypatch.setattr(subprocess, "run", run)
    assert bench.main([]) == 1
    assert started == list(codes)
    said = capsys.readouterr().out
    assert "not run, it needs a CUDA device: python -m benchmarks.dense\n" in said
    assert "2 done; 2 not run; 1 FAILED\nFAILED: python -m benchmarks.calibration\n" in said
    assert bench.main(["reading"]) == 0
    assert bench.main(["commands"]) == 0  # what this machine cannot do is no failure


def test_a_benchmark_that_is_none_is_named_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("speed", "kernels_sweep"):
        with pytest.raises(SystemExit) as ended:
            bench.main([name])
        assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "MODULE is 'speed', and not one of attention, bounds, calibration" in said
    assert "run `python -m benchmarks.kernels_sweep` by hand" in said


def test_a_peer_that_is_off_or_not_there_has_a_reason_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "median_ms", lambda _: 2.0)
    x = peers.Inputs(*(torch.randn(1, 4, 2, 8).requires_grad_() for _ in range(5)))
    wanted = x.q.detach() + x.k.detach() + x.v.detach()

    def near(x: peers.Inputs) -> Callable[[], Tensor]:
        return lambda: x.q + x.k + x.v

    def off(x: peers.Inputs) -> Callable[[], Tensor]:
        return lambda: 2.0 * x.q

    def absent(x: peers.Inputs) -> Callable[[], Tensor]:
        raise ImportError("No module named 'flash_nsa'")

    def untranslated(x: peers.Inputs) -> Callable[[], Tensor]:
        raise peers.TritonError("arange's arguments must be of type tl.constexpr")

    assert peers.timed(near, x, wanted, 1e-2)[0] == {"forward_ms": 2.0, "both_ms": 2.0}
    assert peers.timed(untranslated, x, wanted, 1e-2)[0]["reason"].startswith("TritonError: arange's")
    assert "off by" in peers.timed(off, x, wanted, 1e-2)[0]["reason"]
    assert peers.timed(absent, x, wanted, 1e-2)[0] == {"reason": "ImportError: No module named 'flash_nsa'"}


def test_ratios_are_to_the_fastest_peer_that_was_timed() -> None:
    row = {
        "ours": {"both_ms": 10.0}, "flash_nsa": {"both_ms": 20.0}, "NSA-triton": {"reason": "off by 2"},
        "FSA": {"both_ms": 30.0}, "dense cuDNN": {"both_ms": 5.0}, "dense FA4": {"reason": "ImportError"},
    }  # fmt: skip
    assert peers.ratios(row, 4.0) == {"best_nsa": 0.5, "dense_fa4": None, "share_of_limit": 0.4}
    row["ours"]["graph_ms"], row["dense FA4"] = 8.0, {"both_ms": 9.0, "graph_ms": 4.0}
    assert peers.ratios(row, 4.0) == {"best_nsa": 0.5, "dense_fa4": 2.0, "share_of_limit": 0.4}
