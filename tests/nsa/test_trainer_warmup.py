"""Kernels are compiled beside the start of a run, for the problem that the run has, and never hold it up."""

from __future__ import annotations

import importlib
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

import nsa.attention.module
import nsa.warmup
from nsa.config import Config, replace_flat
from nsa.model import LanguageModel
from nsa.parity.cases import KERNEL_CASE, inputs
from nsa.parity.conftest import kernel_config
from nsa.telemetry.startup import StartClock, process_age_s
from nsa.warmup import kernel_shape, start_warm_up
from tests.nsa.ranks import is_running
from tests.processes import wait_until

pytest.importorskip("triton", reason="Triton is Linux only")
import nsa.kernels

# Stands in for the compiler, which takes a minute here: notes each launch, and does to some what `{act}` says.
SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
from triton.runtime.jit import JITFunction
import nsa.kernels.hopper.program as program
import nsa.warmup as warmup
from nsa.config import Config, replace_flat
from nsa.kernels import nvrtc

def note(name):
    {act}
    (Path(sys.argv[1]) / f"{{name}}-{{os.getpid()}}-{{time.time_ns()}}").touch()

def compile(self, source, target, options):
    assert target.arch == 90
    note(source.fn.__name__)

def compiler_of(self):
    return lambda *args, **kwargs: compile(self, *args, **kwargs)

JITFunction.compile = property(compiler_of, lambda self, value: None)  # Triton sets it anew for each kernel
nvrtc.missing = lambda: {missing!r}
program.compiled = lambda name, constants: note(name)
warmup._capability = lambda: 90
warmup._build_launcher = lambda compiled: None
torch.version.cuda = "12.9"
warm_up = warmup.start_warm_up(replace_flat(Config(), deterministic={deterministic}))
said = []
waited_s = warm_up.finish(say=said.append)
print(waited_s > 0, said, warm_up.finish(say=said.append))
"""


def run_script(
    folder: Path, act: str, *, missing: str | None = "cuda_bindings", deterministic: bool = False, **changes: Any
) -> subprocess.Popen[str]:
    # Not in the tests' own process: it has threads, and those do not go well with a fork.
    script = SCRIPT.format(act=act, missing=missing, deterministic=deterministic)
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **changes)


@pytest.mark.parametrize(
    ("missing", "deterministic"),
    [("cuda_bindings", False), (None, False), (None, True)],
    ids=["Triton's", "Hopper's own, and those beside them", "Triton's backward pass, which repeats itself"],
)
def test_every_kernel_of_a_run_is_compiled_before_its_first_step(
    tmp_path: Path, missing: str | None, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = run_script(tmp_path, "pass", missing=missing, deterministic=deterministic).communicate(timeout=120)
    assert out == "True [] 0.0\n"
    compiled = {p.name.split("-")[0] for p in tmp_path.iterdir()}
    from nsa.kernels.precompile import Shape, hopper_sources, record

    monkeypatch.setattr("nsa.kernels.nvrtc.missing", lambda: missing)
    shape = Shape(**kernel_shape(Config()))
    own = {name for name, _ in hopper_sources(shape)}
    assert bool(own) == (missing is None)
    fallback = deterministic or missing is not None
    assert compiled == own | {one.kernel.__name__ for one in record(shape, fallback=fallback)}
    assert ("dkv_kernel" in compiled) == fallback


def test_what_is_compiled_is_not_looked_for_again_until_the_cache_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the ten seconds of a start went into finding that nothing was left to compile."""
    done: list[object] = []

    class Child:
        exitcode = 0

        def __init__(self, **_: object) -> None:
            done.append("compiles")

        def start(self) -> None: ...
        def join(self, *_: float) -> None: ...
        def is_alive(self) -> bool:
            return False

        def close(self) -> None: ...

    gpus = [90]
    monkeypatch.setattr("torch.version.cuda", "12.9")
    monkeypatch.setattr(nsa.warmup, "capabilities", lambda: gpus)
    monkeypatch.setattr("multiprocessing.get_context", lambda how: SimpleNamespace(Process=Child))
    monkeypatch.setattr(nsa.warmup, "_wake_device", lambda rank: done.append(rank))
    monkeypatch.setattr(nsa.warmup, "_hash_triton", lambda: done.append("hash"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def start() -> list[object]:
        done.clear()
        start_warm_up(Config()).finish(say=lambda text: None)
        return sorted(done, key=str)

    monkeypatch.setattr(Child, "exitcode", 1)
    assert start() == ["compiles"]
    monkeypatch.setattr(Child, "exitcode", 0)
    assert start() == ["compiles"], "what failed left no mark"
    assert start() == [0, "hash"]
    gpus[:] = [80]
    assert start() == ["compiles"], "another GPU"
    gpus[:] = [80, 90]
    assert start() == start() == ["compiles"], "two kinds, of which the run takes one that is not known yet"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert start() == [1, "hash"], "rank 0 compiles"
    monkeypatch.delenv("LOCAL_RANK")
    gpus[:] = [90]
    monkeypatch.setenv("HOPPER_KERNELS", "0")
    assert start() == ["compiles"], "other kernels"
    for mark in tmp_path.iterdir():
        mark.unlink()
    assert start() == ["compiles"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"dense_forward", "dense_backward", "window_backward", "gather_backward"}),
        ({"S": 65536, "H": 64, "G": 4, "Dk": 128, "Dv": 128}, {"choose", "combine", "gather_backward"}),
        ({"S": 65536, "H": 64, "G": 4, "Dk": 192, "Dv": 128}, {"choose", "gather_forward", "window_backward"}),
        ({"H": 8, "G": 8}, {"dense_forward", "dense_backward", "window_backward"}),
    ],
)
def test_hoppers_kernels_are_compiled_beside_the_start_where_they_run(
    changes: dict[str, int], expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nsa.kernels.hopper.program import source
    from nsa.kernels.precompile import Shape, hopper_sources

    shape = Shape(**{"S": 2048, "H": 12, "G": 2, "Dk": 64, "Dv": 64} | changes)
    monkeypatch.setattr("nsa.kernels.nvrtc.missing", lambda: None)
    found = dict(hopper_sources(shape))
    assert expected <= found.keys()
    assert ("combine" in found) == (shape.Dk >= 128)
    for name, constants in found.items():
        text = source(name, constants)
        assert f" {name}(const __grid_constant__ Arguments a)" in text
        assert all(f"#define {key} {value}\n" in text for key, value in constants)
    assert hopper_sources(replace(shape, capability=80)) == []
    monkeypatch.setenv("HOPPER_KERNELS", "0")
    assert hopper_sources(shape) == []


def test_a_kernel_that_does_not_compile_is_said_and_left_to_its_launch(tmp_path: Path) -> None:
    out, _ = run_script(tmp_path, "assert name != 'dq_kernel'").communicate(timeout=120)
    assert "kernels were not all compiled ahead (exit code 1): they compile at their first launch" in out
    assert len(list(tmp_path.iterdir())) > 10  # the others are done


def test_a_killed_run_leaves_no_compiler_behind(tmp_path: Path) -> None:
    act = "(Path(sys.argv[1]) / str(os.getpid())).touch(); time.sleep(60)"
    process = run_script(tmp_path, act)
    wait_until(lambda: any(tmp_path.iterdir()), "a worker", timeout_s=90)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    pids = [int(p.name) for p in tmp_path.iterdir()]
    wait_until(lambda: not any(map(is_running, pids)), "the end of all workers", timeout_s=90)


KEYS = """
import sys
from nsa.kernels import backward, forward
kernels = {"dq": backward.dq_kernel, "combine": forward.combine_kernel}
order = sys.argv[1].split(",")
print(sorted((name, kernels[name].cache_key) for name in order))
"""


def test_processes_that_launch_in_another_order_find_each_others_kernels() -> None:
    """Left alone, Triton gave the second of two kernels with a common helper another key than the first would have."""
    orders = ("dq,combine", "combine,dq")
    keys = [subprocess.check_output([sys.executable, "-c", KEYS, order], timeout=120) for order in orders]
    assert keys[0] == keys[1]


def test_every_kernel_has_its_key_from_the_start() -> None:
    """What a test before this one launched has a key anyhow, so the modules are compared and not the keys alone."""
    from triton.runtime.jit import JITFunction

    from nsa.kernels.keys import MODULES

    for module in pkgutil.iter_modules(nsa.kernels.__path__, "nsa.kernels."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, JITFunction):
                assert value.fn.__module__ in {one.__name__ for one in MODULES}, f"{module.name}.{name}"
                assert value.hash is not None, f"{module.name}.{name}"


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_problem_compiled_is_the_one_the_model_has(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    config = replace_flat(
        Config(), vocab_size=40, dim=64, n_layers=1, n_heads=4, n_kv_groups=2, d_k=16, d_v=32, seq_len=64, batch_size=2,
        dtype=dtype,
    )  # fmt: skip
    seen: list[Any] = []
    attend = nsa.attention.module.attend

    def noted(streams: tuple[torch.Tensor, ...], gates: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append((streams, gates))
        return attend(streams, gates, *args, **kwargs)

    monkeypatch.setattr(nsa.attention.module, "attend", noted)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        LanguageModel(config.model)(torch.zeros(2, 64, dtype=torch.int64))
    (((q, *streams), gates),) = seen
    shape = kernel_shape(config)
    assert q.shape == (shape["B"], shape["S"], shape["H"], shape["Dk"])
    assert streams[1].shape == (shape["B"], shape["S"], shape["G"], shape["Dv"])
    assert {x.dtype for x in (q, *streams)} == {shape["dtype"]}
    assert gates.dtype == torch.float32  # what `record` takes them to be


def test_the_parity_tests_have_compiled_what_they_launch() -> None:
    """Compiled one after another those kernels took 13 of the 33 seconds of the parity tests on an H200."""
    q, k, v, *_ = inputs(KERNEL_CASE, dtype=torch.bfloat16)
    (B, S, H, Dk), (G, Dv) = q.shape, v.shape[2:]
    sizes = tuple(KERNEL_CASE.geometry[name] for name in ("l", "d", "l_sel", "n_sel", "w"))
    shape = {"S": S, "H": H, "G": G, "Dk": Dk, "Dv": Dv, "B": B, "dtype": k.dtype, "sizes": sizes}
    assert kernel_shape(kernel_config()) == shape


# The parity tests as a GPU runs them, with the kernels' place taken by the batched implementation.
PARITY = """
import sys
import pytest, torch
import nsa.parity.cases as cases
import nsa.warmup as warmup

class Compilers(warmup.WarmUp):
    def finish(self, *, say):
        print("\\nwaits")
        return 0.0

    def close(self):
        print("stops")

warmup.start_warm_up = lambda config: print("starts") or Compilers(None)
cases.implementations = lambda device: [("batched", torch.bfloat16), ("triton", torch.bfloat16)]
run = cases.run_impl
cases.run_impl = lambda case, xs, impl, upstream: print("runs", impl) or run(case, xs, "batched", upstream)
chosen = ["-p", "no:cacheprovider", "-k", "test_equivalence and default_sizes"]
sys.exit(pytest.main(["-q", "-s", *chosen, "--pyargs", "nsa.parity"]))
"""


def test_the_parity_tests_wait_for_compilers_where_kernels_run_and_no_sooner(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PARITY], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    said = [line.lstrip(".") for line in done.stdout.splitlines()]
    steps = [line for line in said if line in ("starts", "waits", "stops") or line.startswith("runs ")]
    assert steps == ["starts", "runs batched", "waits", "runs triton", "stops"]


@pytest.mark.parametrize("changes", [{"device": "cpu"}, {"attention": "dense"}, {"prefill": "batched"}])
def test_a_run_without_the_kernels_compiles_none(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    monkeypatch.setattr("torch.version.cuda", "12.9")
    monkeypatch.setattr("multiprocessing.get_context", lambda how: pytest.fail("started a process"))
    warm_up = start_warm_up(replace_flat(Config(), **changes))
    assert warm_up.finish(say=pytest.fail) == 0.0


def test_the_start_is_told_in_parts(tmp_path: Path, train: Callable[..., int], capsys: Any) -> None:
    clock = StartClock()
    clock.lap("data")
    clock.lap("model")
    assert str(clock).endswith(", data 0.0, model 0.0")
    age_s = process_age_s()
    assert 0 < age_s < 24 * 3600
    started = time.time() - age_s
    assert abs(started - psutil.Process().create_time()) < 60
    assert train(tmp_path, "--steps", "1") == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("[start]")]
    assert "before the first step: imports" in line
