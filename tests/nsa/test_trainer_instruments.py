"""What the audit and the trace say is read off the profiler, for every layer, branch and direction."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import nsa
from nsa.attention.spans import set_spans, span, spans_enabled
from nsa.instruments import Instruments
from nsa.model import LanguageModel
from nsa.telemetry.audit import audit_record, backend_of
from nsa.telemetry.trace import covered_us, overlap_us, summarize_trace
from tests.nsa.conftest import Rows, Train


def audit_of(out: Path) -> dict[tuple[int, str, str], dict[str, Any]]:
    record = json.loads((out / "sdpa_audit.json").read_text())
    assert record["step"] == 2
    return {(e["layer"], e["branch"], e["direction"]): e for e in record["layers"]}


@pytest.mark.parametrize("extra", [[], ["--grad-checkpointing"]])
def test_the_audit_covers_every_branch_of_every_layer(tmp_path: Path, train: Train, extra: list[str]) -> None:
    assert train(tmp_path, "--steps", "3", "--sdpa-audit", *extra) == 0
    audit = audit_of(tmp_path)
    for layer in (0, 1):
        for branch in ("cmp", "sel", "win"):
            for direction in ("forward", "backward"):
                entry = audit[layer, branch, direction]
                assert entry["backend"] == "matmul"
                assert "aten::bmm" in entry["kernels"]
        assert (layer, "select", "forward") in audit
    assert not spans_enabled()


@pytest.mark.filterwarnings("default")  # torch.compile's own
def test_the_audit_of_a_compiled_run_covers_every_branch_too(
    tmp_path: Path, train: Train, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **kwargs: compiler(*args, **kwargs | {"backend": "eager"}))
    assert train(tmp_path, "--steps", "3", "--sdpa-audit", "--compile", "--n-layers", "1") == 0
    audit = audit_of(tmp_path)
    assert {(0, b, d) for b in ("cmp", "sel", "win") for d in ("forward", "backward")} <= set(audit)
    assert "[sdpa] the audited step runs uncompiled" in capsys.readouterr().out


def test_the_audit_tells_flash_from_no_flash(tmp_path: Path, train: Train) -> None:
    for mode, backend in (("flash_only", "flash"), ("no_flash", "sdpa_math")):
        out = tmp_path / mode
        assert train(out, "--steps", "2", "--attention", "dense", "--sdpa-audit", "--sdpa", mode) == 0
        audit = audit_of(out)
        assert {audit[layer, "dense", "forward"]["backend"] for layer in (0, 1)} == {backend}
        assert json.loads((out / "env.json").read_text())["effective"]["sdpa"] == mode


def test_a_backend_that_no_branch_uses_is_not_claimed(tmp_path: Path, train: Train, capsys: Any) -> None:
    assert train(tmp_path, "--steps", "1", "--sdpa", "flash_only") == 0
    env = json.loads((tmp_path / "env.json").read_text())
    assert (env["requested"]["sdpa"], env["effective"]["sdpa"]) == ("flash_only", "auto")
    assert "[sdpa] flash_only requested, effective auto" in capsys.readouterr().out


def test_the_trace_has_the_steps_asked_for_and_their_ranges(tmp_path: Path, train: Train, rows: Rows) -> None:
    assert train(tmp_path, "--steps", "8", "--profile-steps", "2", "--nvtx") == 0
    summary = json.loads((tmp_path / "trace" / "summary.json").read_text())
    assert summary["steps"] == [5, 6]
    assert {"nsa.cmp", "nsa.sel", "nsa.sel.ranges_v2", "nsa.win", "nsa.win.backward"} <= set(summary["ranges_seen"])
    assert summary["ranges_seen"]["nsa.sel.ranges_v2"]["count"] == 2 * 2  # steps × layers
    assert summary["gpu_busy_share"] is None  # there is no GPU here, which is not the same as an idle one
    assert summary["wall_ms"] > 0
    with gzip.open(tmp_path / "trace" / "rank0.json.gz", "rt", encoding="utf-8") as handle:
        names = {event.get("name") for event in json.load(handle)["traceEvents"]}
    assert {"nsa.step.5", "nsa.step.6"} <= names
    assert "nsa.step.7" not in names
    assert len(rows(tmp_path / "training.csv")) == 8


def instruments(out: Path, **changed: Any) -> Instruments:
    settings: dict[str, Any] = {"rank": 0, "start_step": 0, "last_step": 20, "nvtx": False, "profile_steps": 3}
    settings |= {"sdpa_audit": True, "say": print, "device": torch.device("cpu")} | changed
    return Instruments(out, model=LanguageModel.__new__(LanguageModel), **settings)


def test_every_rank_waits_at_the_same_steps(tmp_path: Path) -> None:
    """A rank that read a reason to stop before a step that the others launched would leave them waiting for it."""
    ranks = [instruments(tmp_path, rank=r) for r in (0, 1)]
    watched = [[step for step in range(1, 21) if i.watches(step)] for i in ranks]
    assert watched == [[2, 5, 6, 7]] * 2
    ranks[1].begin(2)  # the audit is rank 0's alone
    ranks[1].finish(2)
    assert not (tmp_path / "sdpa_audit.json").exists()


def test_layers_are_seen_in_the_audited_step_and_the_first_traced_one(tmp_path: Path) -> None:
    """The others are replayed where the run has a graph, or the trace would time what the run does not do."""
    seen = {step for step in range(1, 21) if instruments(tmp_path).sees_layers(step)}
    assert seen == {2, 5}
    assert not any(instruments(tmp_path, sdpa_audit=False, profile_steps=0).sees_layers(step) for step in range(1, 21))


@pytest.mark.parametrize(("profile_steps", "timed"), [(3, [6, 7]), (1, [5])])
def test_time_is_taken_of_steps_that_run_as_the_rest_does(tmp_path: Path, profile_steps: int, timed: list[int]) -> None:
    of = instruments(tmp_path, sdpa_audit=False, profile_steps=profile_steps)
    for step in range(1, 21):
        of.begin(step)
        with of.mark(step):
            pass
        of.finish(step)
    summary = json.loads((tmp_path / "trace" / "summary.json").read_text())
    assert summary["timed_steps"] == timed
    assert summary["steps"] == list(range(5, 5 + profile_steps))


def test_a_short_run_is_traced_as_far_as_it_goes(tmp_path: Path, train: Train) -> None:
    assert train(tmp_path, "--steps", "2", "--profile-steps", "5") == 0
    assert json.loads((tmp_path / "trace" / "summary.json").read_text())["steps"] == [1, 2]


@pytest.mark.parametrize(
    ("names", "backend"),
    [
        ({"pytorch_flash::flash_fwd_kernel<...>"}, "flash"),
        ({"fmha_cutlassF_bf16_aligned_64x64_rf_sm80"}, "mem_efficient"),
        ({"cudnn_generated_fort_native_sdpa_sm90_flash_fprop"}, "cudnn"),
        ({"aten::_scaled_dot_product_attention_math", "aten::bmm"}, "sdpa_math"),
        ({"gather_backward_kernel", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"}, "triton"),
        ({"nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "sm90_xmma_kernel"}, "matmul"),
        ({"sm90_xmma_gemm_bf16bf16"}, "matmul"),
        ({"aten::add"}, "none"),
    ],
)
def test_backends_by_name(names: set[str], backend: str) -> None:
    assert backend_of(names) == backend


def test_every_kernel_of_hopper_is_known_by_the_name_of_its_source() -> None:
    """They serve `prefill: triton` as Triton's do; the audit said `none` of the branches that they run."""
    sources = sorted((Path(nsa.__file__ or "").parent / "kernels" / "hopper").glob("*.cu"))
    assert len(sources) >= 7
    assert {source.stem: backend_of({source.stem}) for source in sources} == {x.stem: "triton" for x in sources}


def test_interval_arithmetic() -> None:
    assert covered_us([(0, 2), (1, 3), (5, 6), (5, 5)]) == 4
    assert overlap_us([(0, 4), (6, 8)], [(3, 7)]) == 2
    assert overlap_us([], [(0, 1)]) == 0


def event(name: str, start: float, end: float, device: str = "cpu") -> Any:
    return SimpleNamespace(
        name=name,
        device_type=f"DeviceType.{device.upper()}",
        time_range=SimpleNamespace(start=start, end=end),
        self_cpu_time_total=end - start,
    )


def test_shares_of_a_gpu_timeline() -> None:
    events = [
        event("nsa.step.5", 0, 100),
        event("nsa.win", 0, 10),
        event("gemm", 10, 50, "cuda"),
        event("nsa.win", 10, 50, "cuda"),  # the range's mirror is no kernel,
        event("Optimizer.step#AdamW.step", 11, 12),
        event("Optimizer.step#AdamW.step", 70, 95, "cuda"),  # nor is that of a range which torch itself opened
        event("ncclDevKernel_AllReduce", 40, 70, "cuda"),
        event("adam", 70, 80, "cuda"),
    ]
    summary = summarize_trace(events, on_cuda=True, timed_steps=[5])
    assert summary["gpu_busy_share"] == pytest.approx(0.7)
    assert summary["host_bound_share"] == pytest.approx(0.3)
    assert summary["comm_share"] == pytest.approx(0.3)
    assert summary["exposed_comm_share"] == pytest.approx(0.2)
    assert [k["name"] for k in summary["top_kernels"]] == ["gemm", "ncclDevKernel_AllReduce", "adam"]
    assert summary["ranges_seen"] == {"nsa.win": {"count": 1, "time_ms": 0.01}}


def test_a_pause_of_another_rank_in_one_step_is_no_share_of_communication() -> None:
    """Two healthy GPUs were refused: one rank began a step 0.3 s after the other, which waited in its reduction."""
    events = []
    for step, (begin, waited) in enumerate([(0, 0), (200, 700), (1100, 0)], 6):
        events += [
            event(f"nsa.step.{step}", begin, begin + 20),
            event("gemm", begin + 10, begin + 90, "cuda"),
            event("ncclDevKernel_AllReduce", begin + 80, begin + 100 + waited, "cuda"),
        ]
    summary = summarize_trace(events, on_cuda=True, timed_steps=[6, 7, 8])
    assert summary["wall_ms"] == pytest.approx(1.0)
    assert summary["exposed_comm_share"] == pytest.approx(0.1)
    assert summary["comm_share"] == pytest.approx(0.2)
    assert summary["gpu_busy_share"] == pytest.approx(0.9)


def test_a_step_that_is_not_timed_adds_ranges_and_nothing_else() -> None:
    events = [
        event("nsa.step.5", 0, 1000),
        event("nsa.cmp", 0, 10),
        event("aten::mm", 10, 900),
        event("gemm", 20, 30, "cuda"),
        event("nsa.step.6", 1000, 1010),
        event("cudaGraphLaunch", 1001, 1009),
        event("gemm", 1010, 1090, "cuda"),
        event("adam", 1090, 1100, "cuda"),
    ]
    summary = summarize_trace(events, on_cuda=True, timed_steps=[6])
    assert summary["wall_ms"] == pytest.approx(0.1)
    assert summary["gpu_busy_share"] == pytest.approx(0.9)
    assert [(k["name"], k["count"]) for k in summary["top_kernels"]] == [("gemm", 1), ("adam", 1)]
    assert [o["name"] for o in summary["top_operators"]] == ["cudaGraphLaunch"]
    assert summary["ranges_seen"] == {"nsa.cmp": {"count": 1, "time_ms": 0.01}}


def test_kernels_of_one_operator_are_told_apart_by_their_launches() -> None:
    """The profiler credits both kernels to `nsa::attention`; the driver calls stand inside the branches' ranges."""

    def inside(parent: Any, name: str, number: int) -> Any:
        return SimpleNamespace(**vars(event(name, 0, 1)) | {"cpu_parent": parent, "id": number, "kernels": []})

    def kernel(name: str, number: int) -> Any:
        return SimpleNamespace(**vars(event(name, 0, 7, "cuda")) | {"cpu_parent": None, "id": number})

    layer = inside(None, "nsa.layer.0", 1)
    operator = inside(inside(layer, "GeneratedBackwardFor_nsa_attention_default", 0), "nsa::attention", 2)
    operator.kernels = [SimpleNamespace(name=n, duration=7) for n in ("compressed_kernel", "combine_kernel")]
    calls = [inside(inside(operator, f"nsa.{b}", 0), "cuLaunchKernelEx", n) for b, n in (("cmp", 3), ("win", 4))]
    mirrors = [kernel("nsa.layer.0", 1), kernel("nsa::attention", 2)]
    events = [layer, operator, *calls, kernel("compressed_kernel", 3), kernel("combine_kernel", 4), *mirrors]
    record = audit_record(events, step=2, device="cuda:0")
    found = {(e["branch"], e["direction"]): list(e["kernels"]) for e in record["layers"]}
    assert found == {("cmp", "forward"): ["compressed_kernel"], ("win", "forward"): ["combine_kernel"]}
    without_launches = audit_record([layer, operator, *events[4:]], step=2, device="cuda:0")
    assert [(e["branch"], e["backend"]) for e in without_launches["layers"]] == [("fused", "triton")]


def test_every_launch_of_the_kernels_stands_in_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    precompile = pytest.importorskip("nsa.kernels.precompile", reason="Triton is Linux only")
    open_ranges: list[str] = []
    seen: set[tuple[str, str]] = set()

    @contextlib.contextmanager
    def noted(name: str) -> Iterator[None]:
        open_ranges.append(name)
        yield
        open_ranges.pop()

    launch_of = precompile.Launch

    def note(*args: Any) -> Any:
        seen.add((args[0].__name__, open_ranges[-1]))
        return launch_of(*args)

    for module in ("launch", "launch_backward"):
        monkeypatch.setattr(f"nsa.kernels.{module}.span", noted)
    monkeypatch.setattr(precompile, "Launch", note)
    precompile.record(precompile.Shape(2048, 12, 2, 64, 64))
    ranges = {name: {r for kernel, r in seen if kernel == name} for name in {kernel for kernel, _ in seen}}
    assert ranges["compress_kernel"] == {"nsa.compress"}
    assert ranges["compressed_kernel"] == {"nsa.cmp"}
    assert ranges["select_kernel"] == ranges["scatter_kernel"] == {"nsa.sel.ranges_v2"}
    assert ranges["gather_kernel"] == {"nsa.sel"}
    assert ranges["dkv_kernel"] == {"nsa.cmp.backward", "nsa.sel.backward", "nsa.win.backward"}
    assert ranges["dq_kernel"] == {"nsa.query.backward"}
    assert "nsa.win" in {r for _, r in seen}


def test_switching_ranges_on_recompiles_nothing() -> None:
    """A profile that began with a compilation would show that, and not the run."""

    def marked(x: torch.Tensor) -> torch.Tensor:
        with span("nsa.test"):
            return x * 2

    compiled = torch.compile(marked, fullgraph=True, backend="eager")
    ones = torch.ones(3)
    compiled(ones)
    set_spans(True)
    try:
        with torch.compiler.set_stance("fail_on_recompile"):
            assert compiled(ones).tolist() == [2, 2, 2]
    finally:
        set_spans(False)
