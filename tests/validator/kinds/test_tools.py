"""The kind `tools`: what each tool prints is read, and one that is absent or fails is said."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.validator.kinds.machines import found, judged
from validator.model.verdict import PhaseReport
from validator.system import gpu_tools

# Rows as the tools print them: nccl-tests on eight H100, perftest and nvbandwidth in their documented formats.
NCCL = """\
# nccl-tests version 2.17.6 nccl-headers=22707 nccl-library=22707
# nThread 1 nGpus 8 minBytes 268435456 maxBytes 2147483648 step: 2(factor) warmup iters: 5 iters: 20
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   268435456      67108864     float     sum      -1   1119.8  239.71  419.49      0   1117.4  240.24  420.42      0
  2147483648     536870912     float     sum      -1   7983.5  268.99  470.73      {wrong}   7985.2  268.93  470.63   0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 448.212
"""
IB = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    5000             394.68             392.00 \t\t   0.046728
"""
COPIES = {
    "nvbandwidth": {
        "version": "v0.8",
        "testcases": [
            {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["55.20", "48.10"]]},
            {"name": "device_to_host_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["54.00", "53.00"]]},
            {
                "name": "device_to_device_memcpy_read_ce",
                "status": "Passed",
                "bandwidth_matrix": [["N/A", "390.1"], ["388.2", "N/A"]],
            },
        ],
    }
}


def diagnosis(root: str, status: str, **result: Any) -> dict[str, Any]:
    passed = {"name": "PCIe", "results": [{"gpu_id": "0", "status": "Pass"}, {"gpu_id": "1", "status": "Skip"}]}
    failed = {"name": "Memory", "results": [{"status": status, **result}]}
    groups = [{"category": "Integration", "tests": [passed]}, {"category": "Hardware", "tests": [failed]}]
    return {root: {"version": "4.2.3", "test_categories": groups}}


def double(place: Path, name: str, text: str, *, code: int = 0) -> None:
    """A program that prints a recorded text, and waits where it is a server."""
    place.mkdir(exist_ok=True)
    program = place / name
    wait = "import time; time.sleep(30)" if name == "ib_write_bw" else ""
    program.write_text(
        f"#!{sys.executable}\nimport sys\nif {name!r} == 'ib_write_bw' and '127.0.0.1' not in sys.argv:\n"
        f"    if '--version' in sys.argv: sys.exit(print('Version: 6.23'))\n    {wait or 'pass'}\n"
        f"print({text!r})\nsys.exit({code})\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def asked(tmp_path: Path, gpus: int) -> dict[str, Any]:
    """What the program of a run writes with the doubles alone on PATH."""
    code = "from validator.system import gpu_tools; from pathlib import Path; "
    code += f"gpu_tools._ADAPTERS = Path({str(tmp_path / 'ib')!r}); raise SystemExit(gpu_tools.main())"
    words = (sys.executable, "-c", code, str(gpus), str(tmp_path / "tools.json"))
    subprocess.run(words, env={**os.environ, "PATH": str(tmp_path / "bin")}, check=True, capture_output=True)
    found: dict[str, Any] = json.loads((tmp_path / "tools.json").read_text())["tools"]
    return found


def said(tmp_path: Path, tools: dict[str, Any], *, gpus: int = 2, **phase: Any) -> PhaseReport:
    def write(out: Path) -> None:
        (out / "tools.json").write_text(json.dumps({"tools": tools}))

    return judged(tmp_path / "judged", {"kind": "tools", **phase}, write, gpus=gpus)


def test_every_tool_is_read_with_its_version(tmp_path: Path) -> None:
    double(tmp_path / "bin", "all_reduce_perf", NCCL.format(wrong=0))
    double(tmp_path / "bin", "nvbandwidth", json.dumps(COPIES))
    double(tmp_path / "bin", "ib_write_bw", IB)
    double(tmp_path / "bin", "dcgmi", json.dumps(diagnosis("DCGM Diagnostic", "Pass")))
    (tmp_path / "ib" / "mlx5_0").mkdir(parents=True)
    tools = asked(tmp_path, 8)
    assert {name: one["version"] for name, one in tools.items()} == {
        "nccl_tests": "2.17.6 NCCL 22707", "nvbandwidth": "v0.8", "ib": "6.23", "dcgm": "4.2.3"
    }  # fmt: skip
    report = said(tmp_path, tools, accept=["nccl_tests.all_reduce_bus_gb_s >= 450", "dcgm.failed == 0"])
    assert report.status == "PASS", report.message
    assert {name: one.value for name, one in report.runs[0].scalars.items() if not name.startswith("outcome")} == {
        "nccl_tests.all_reduce_bus_gb_s": 470.73,
        "nvbandwidth.host_to_device_gb_s": 48.1,
        "nvbandwidth.device_to_host_gb_s": 53.0,
        "nvbandwidth.peer_gb_s": 388.2,
        "ib.write_gb_s": 49.0,
        "dcgm.failed": 0.0,
    }
    assert "Version 2.17.6 NCCL 22707: all_reduce_bus_gb_s 470.7." in found(report, "nccl_tests")[1]


def test_what_is_absent_is_said_and_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    report = said(tmp_path, asked(tmp_path, 2))
    assert report.status == "PASS"
    assert found(report, "dcgm") == ("SKIPPED", "Not looked at: dcgmi is not installed.")
    assert not any(one.required for one in report.criteria if one.status == "SKIPPED")
    assert not report.asks, "nothing was looked at, so it carries no GO"


def test_a_failed_diagnosis_names_gpu_and_reason(tmp_path: Path) -> None:
    old = diagnosis("DCGM GPU Diagnostic", "Fail", gpu_ids="1", warnings=["2 pages are pending retirement"])
    double(tmp_path / "bin", "dcgmi", "Starting.\n" + json.dumps(old), code=226)
    double(tmp_path / "bin", "all_reduce_perf", NCCL.format(wrong=3))
    report = said(tmp_path, asked(tmp_path, 2))
    assert found(report, "dcgm") == ("FAIL", "Memory on GPU 1: 2 pages are pending retirement.")
    assert found(report, "nccl_tests") == ("FAIL", "3 wrong elements at 2147483648 bytes.")
    assert report.status == "FAIL"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nvbandwidth": {"testcases": 3}}', "nonsense " * 99])
def test_an_answer_that_cannot_be_read_is_a_reason_and_no_value(tmp_path: Path, text: str) -> None:
    for name in ("all_reduce_perf", "nvbandwidth", "dcgmi"):
        double(tmp_path / "bin", name, text)
    report = said(tmp_path, asked(tmp_path, 2))
    assert {found(report, name)[0] for name in ("nccl_tests", "nvbandwidth", "dcgm")} == {"SKIPPED"}


def test_a_tool_that_crashes_or_has_no_gpu_is_said(tmp_path: Path) -> None:
    double(tmp_path / "bin", "all_reduce_perf", "NCCL failure: unhandled cuda error", code=3)
    assert asked(tmp_path, 2)["nccl_tests"]["skipped"] == (
        "all_reduce_perf: it ended with code 3: NCCL failure: unhandled cuda error"
    )
    assert asked(tmp_path, 0)["nccl_tests"]["skipped"] == "all_reduce_perf: it needs two GPUs"


def test_bandwidth_in_other_units_is_not_taken() -> None:
    with pytest.raises(gpu_tools._Silent, match="Gb/sec"):
        gpu_tools.read_ib_write(IB.replace("Gb/sec", "MB/sec"))
