"""Audits, traces, fallback counters and loaders: what is read from the files, and from damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from validator.ingest import collect_run
from validator.kinds.data import LoaderTrial
from validator.kinds.registry import kind_of

from .folders import outcome, record, spec, write_csv, write_heartbeat


def entry(branch: str, backend: str, *, layer: int = 0, direction: str = "forward", time_us: float = 10.0) -> Any:
    return {"layer": layer, "branch": branch, "direction": direction, "backend": backend, "time_us": time_us}


def write_audit(folder: Path, *entries: Any) -> None:
    (folder / "sdpa_audit.json").write_text(json.dumps({"schema_version": 1, "step": 2, "layers": list(entries)}))


def scalars(folder: Path, **more: Any) -> dict[str, Any]:
    write_csv(folder, [1.0, 1.0])
    found = collect_run(spec(kind="audit", **more), run_dir=folder, outcome=outcome())
    return {name: value.value for name, value in found.scalars.items()}


def test_an_audit_tells_the_backend_of_each_branch(tmp_path: Path) -> None:
    write_audit(
        tmp_path,
        entry("cmp", "triton"),
        entry("cmp", "triton", layer=1, direction="backward"),
        entry("sel", "triton"),
        entry("win", "flash"),
        entry("projections", "matmul"),
    )
    found = scalars(tmp_path)
    assert (found["audit.cmp"], found["audit.sel"], found["audit.win"]) == ("triton", "triton", "flash")
    assert found["audit.attention"] == "flash + triton"
    assert found["audit.layers"] == 2
    assert found["audit.fallbacks"] == 0


def test_a_layer_that_runs_another_kernel_is_not_lost(tmp_path: Path) -> None:
    write_audit(tmp_path, entry("cmp", "triton"), entry("cmp", "none", layer=1))
    assert scalars(tmp_path)["audit.cmp"] == "triton + unrecognized"


def test_a_kernel_that_only_sets_memory_is_no_attention(tmp_path: Path) -> None:
    """A counter that is set to zero between two branches held a healthy machine back."""
    fill = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >"
    moves = {fill: {"count": 1, "time_us": 0.8}, "Memset (Device)": {"count": 1, "time_us": 0.8}}
    write_audit(tmp_path, entry("cmp", "triton"), entry("fused", "none") | {"kernels": moves})
    assert scalars(tmp_path)["audit.cmp"] == "triton"
    others = moves | {"some_product": {"count": 1, "time_us": 0.8}}
    write_audit(tmp_path, entry("cmp", "triton"), entry("fused", "none") | {"kernels": others})
    assert scalars(tmp_path)["audit.cmp"] == "triton + unrecognized"


def test_one_operator_for_all_branches_speaks_for_each(tmp_path: Path) -> None:
    write_audit(tmp_path, entry("fused", "triton"))
    found = scalars(tmp_path)
    assert {found[f"audit.{name}"] for name in ("cmp", "sel", "win", "attention")} == {"triton"}


def test_fallbacks_are_the_highest_count_of_each_counter(tmp_path: Path) -> None:
    write_audit(tmp_path, entry("cmp", "matmul"))
    (tmp_path / "fallback_counters.csv").write_text("step,counter,count\n1,fb_a,12\n2,fb_a,24\n2,fb_b,1\n3,fb_c,x\n")
    assert scalars(tmp_path)["audit.fallbacks"] == 25


def test_an_audit_without_attention_is_silent(tmp_path: Path) -> None:
    write_audit(tmp_path, entry("projections", "matmul"), "garbage", {"branch": 7})
    assert not [name for name in scalars(tmp_path) if name.startswith("audit.")]


TRACE = {
    "schema_version": 1,
    "wall_ms": 1000.0,
    "gpu_busy_share": 0.85,
    "exposed_comm_share": 0.02,
    "host_bound_share": 0.15,
    "comm_share": 0.1,
    "top_kernels": [{"name": "k", "count": 5, "time_ms": 400.0}, {"name": "other", "count": 1, "time_ms": 1.0}],
    "top_operators": [{"name": "aten::mm", "count": 9, "time_ms": 50.0}, "garbage"],
    "ranges_seen": {"nsa.cmp": {"count": 4, "time_ms": 10.0}, "nsa.win": "garbage"},
    "steps": [5, 6, 7, 8],
}


def test_a_trace_tells_where_the_time_goes(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "summary.json").write_text(json.dumps(TRACE))
    write_csv(tmp_path, [1.0, 1.0])
    result = collect_run(spec(kind="profile"), run_dir=tmp_path, outcome=outcome())
    found = {name: value.value for name, value in result.scalars.items() if name.startswith("profile.")}
    assert found == {
        "profile.gpu_busy_share": 0.85,
        "profile.exposed_comm_share": 0.02,
        "profile.host_bound_share": 0.15,
        "profile.comm_share": 0.1,
        "profile.steps": 4.0,
        "profile.step_time_ms": 250.0,
        "profile.top_kernel_share": 0.4,
        "profile.top_operator_share": 0.05,
        "profile.ranges": 2.0,
    }
    assert result.evidence.tables[0].rows[0] == ("k", 5, 400.0, 40.0)


def test_the_time_of_a_step_is_that_of_the_steps_that_were_timed(tmp_path: Path) -> None:
    """Of a run that replays its steps the first traced one is launched by Python, and its time is not in the sum."""
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "summary.json").write_text(json.dumps(TRACE | {"timed_steps": [7, 8]}))
    write_csv(tmp_path, [1.0, 1.0])
    result = collect_run(spec(kind="profile"), run_dir=tmp_path, outcome=outcome())
    assert result.scalars["profile.step_time_ms"].value == 500.0
    assert result.scalars["profile.steps"].value == 4.0


def test_the_gradients_reduction_is_counted_as_bus_bandwidth(tmp_path: Path) -> None:
    """314 MB over two ranks in a tenth of 250 ms: 314 MB × 2 (n - 1) / n ÷ 25 ms."""
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "summary.json").write_text(json.dumps(TRACE))
    write_csv(tmp_path, [1.0, 1.0])
    for world, wanted in ((2, 12.56), (8, 12.56 * 1.75)):
        (tmp_path / "env.json").write_text(json.dumps({"world_size": world, "grad_bytes": 314_000_000}))
        result = collect_run(spec(kind="profile", nproc=world), run_dir=tmp_path, outcome=outcome())
        assert result.scalars["profile.comm_bus_gb_s"].value == pytest.approx(wanted)
    (tmp_path / "env.json").write_text(json.dumps({"world_size": 1, "grad_bytes": 314_000_000}))
    alone = collect_run(spec(kind="profile"), run_dir=tmp_path, outcome=outcome())
    assert "profile.comm_bus_gb_s" not in alone.scalars


def test_a_trace_of_a_cpu_has_no_shares_of_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    on_cpu = {**TRACE, "gpu_busy_share": None, "exposed_comm_share": None, "host_bound_share": None, "top_kernels": []}
    (tmp_path / "trace" / "summary.json").write_text(json.dumps(on_cpu))
    found = scalars(tmp_path)
    assert "profile.gpu_busy_share" not in found
    assert "profile.top_kernel_share" not in found


def test_the_first_batch_is_that_of_the_slowest_rank(tmp_path: Path) -> None:
    for rank, ready_s in ((0, 3.0), (1, 8.0)):
        write_heartbeat(
            tmp_path,
            [record(0, ts=1.0, msg="boot"), record(0, ts=ready_s, msg="loader_ready"), record(1, ts=9.0)],
            rank=rank,
        )
    assert scalars(tmp_path)["startup.first_batch_s"] == 7.0


def test_a_loader_that_gives_up_is_quoted(tmp_path: Path) -> None:
    error = "the hub is unreachable: no route"
    write_heartbeat(tmp_path, [record(0, ts=1.0, msg="boot"), record(0, ts=9.0, msg="loader_error", error=error)])
    result = collect_run(spec(kind="data"), run_dir=tmp_path, outcome=outcome(rc=1))
    told = result.evidence.loader_error
    assert told is not None
    assert (told.rank, told.error, told.unreachable) == (0, error, True)
    assert "startup.first_batch_s" not in result.scalars


def _smoke(folder: Path, stdout: str) -> Any:
    (folder / "logs").mkdir()
    (folder / "logs" / "stdout.log").write_text(stdout)
    return collect_run(
        spec(kind="data", role="smoke", nproc=0), run_dir=folder, outcome=outcome(), read=kind_of("data").read
    )


def test_the_loaders_trial_is_read_from_what_it_prints(tmp_path: Path) -> None:
    told = {"ok": True, "error": None, "first_batch_s": 1.5, "toks_per_s": 9e5, "fetch_p95_ms": 2.0}
    result = _smoke(tmp_path, "a warning\n" + json.dumps(told, indent=2) + "\n")
    assert result.scalars["smoke.first_batch_s"].value == 1.5
    assert result.scalars["smoke.toks_per_s"].unit == "tok/s"
    assert result.evidence.own == LoaderTrial(None, None)
    assert not [one for one in result.irregularities if one.code == "missing-file"], "a trial writes no training log"


def test_a_trial_that_prints_no_json_is_irregular(tmp_path: Path) -> None:
    assert [one.code for one in _smoke(tmp_path, "Traceback …{").irregularities] == ["not-json"]
