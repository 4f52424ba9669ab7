"""Tools of others that measure GPUs and links, where they are installed: nccl-tests, nvbandwidth, ib_write_bw, dcgmi.

Each runs for a bounded time in a process of `main`, which writes what they answered with their versions. What a tool
says is untrusted text: a number that cannot be read is a reason, never a value.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from validator.documents import parse_json
from validator.files import replace_file

_LIMIT_S = 180.0
_DIAG_LIMIT_S = 420.0
_ADAPTERS = Path("/sys/class/infiniband")
_MESSAGE = 2**20

Answer = dict[str, Any]
"""Of a tool: `version`, `values` by the last part of a scalar's name, `notes`, and whether these are `bad`; or
`skipped`, why it said nothing."""


class _Silent(Exception):
    """A tool that gave no values; the message says why."""


def _output(words: Sequence[str], *, limit_s: float = _LIMIT_S, codes: Iterable[int] = (0,)) -> str:
    """What a tool prints on both streams, where it ends with one of `codes`."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=limit_s
        )
    except subprocess.TimeoutExpired as error:
        raise _Silent(f"it did not end within {limit_s:g} s") from error
    except OSError as error:
        raise _Silent(f"it could not be started: {error.strerror or error}") from error
    if done.returncode not in codes:
        last = ([line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["no output"])[-1]
        raise _Silent(f"it ended with code {done.returncode}: {last.strip()[:300]}")
    return done.stdout + done.stderr


def _float(text: object) -> float | None:
    try:
        value = float(str(text))
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _json(text: str) -> Any:
    """The object in an output that may begin with lines for people."""
    start = text.find("{")
    try:
        return parse_json(text[start : text.rfind("}") + 1]) if start >= 0 else {}
    except ValueError as error:
        raise _Silent(f"its JSON cannot be read: {error}") from error


def read_nccl_tests(text: str) -> Answer:
    """The largest size of `all_reduce_perf`: bus bandwidth out of place, and every row."""
    version = re.search(r"nccl-tests version (\S+)", text)
    library = re.search(r"(?:nccl-library=|NCCL version )(\S+)", text)
    rows = []
    for words in (line.split() for line in text.splitlines()):
        if len(words) >= 9 and words[0].isdigit() and words[1].isdigit():
            bus, wrong = _float(words[7]), words[8]
            if bus is not None:
                rows.append({"bytes": int(words[0]), "time_us": _float(words[5]), "bus_gb_s": bus, "wrong": wrong})
    if not rows:
        raise _Silent("its table holds no row")
    bad = [row for row in rows if row["wrong"] not in ("0", "N/A")]
    return {
        "version": " ".join(filter(None, (version and version[1], library and f"NCCL {library[1]}"))) or "unknown",
        "values": {"all_reduce_bus_gb_s": rows[-1]["bus_gb_s"]},
        "rows": rows,
        "bad": bool(bad),
        "notes": [f"{row['wrong']} wrong elements at {row['bytes']} bytes" for row in bad],
    }


_COPIES = {
    "host_to_device_memcpy_ce": "host_to_device_gb_s",
    "device_to_host_memcpy_ce": "device_to_host_gb_s",
    "device_to_device_memcpy_read_ce": "peer_gb_s",
}


def read_nvbandwidth(text: str) -> Answer:
    """The slowest cell of each matrix; a test that was waived has none."""
    whole = _json(text)
    found = whole.get("nvbandwidth") if isinstance(whole, Mapping) else None
    cases = found.get("testcases") if isinstance(found, Mapping) else None
    if not isinstance(cases, list) or not isinstance(found, Mapping):
        raise _Silent("it lists no test cases")
    values: dict[str, float] = {}
    notes = []
    for case in (one for one in cases if isinstance(one, Mapping)):
        name, matrix = _COPIES.get(str(case.get("name"))), case.get("bandwidth_matrix")
        rows = [row for row in matrix if isinstance(row, list)] if isinstance(matrix, list) else []
        cells = [value for row in rows for cell in row if (value := _float(cell)) is not None]
        if name is not None and cells:
            values[name] = min(cells)
        elif case.get("status") not in ("Passed", "Waived"):
            notes.append(f"{case.get('name')}: {case.get('status')} {case.get('error', '')}".strip())
    version = found.get("version") or found.get("git_version") or "unknown"
    return {"version": str(version), "values": values, "notes": notes}


def read_ib_write(text: str) -> float:
    """The average of the last row in GB/s; the tool was asked for Gbit/s."""
    rows = [line.split() for line in text.splitlines()]
    averages = [value for row in rows if len(row) >= 4 and row[0].isdigit() and (value := _float(row[3])) is not None]
    if not averages or "Gb/sec" not in text:
        raise _Silent("its table holds no row in Gb/sec")
    return averages[-1] / 8


def read_dcgm(text: str) -> Answer:
    """Tests that failed, with the GPU and the reason of each."""
    whole = _json(text)
    found = whole.get("DCGM Diagnostic") or whole.get("DCGM GPU Diagnostic") if isinstance(whole, Mapping) else None
    groups = found.get("test_categories") if isinstance(found, Mapping) else None
    if not isinstance(groups, list) or not isinstance(found, Mapping):
        raise _Silent("it reports no tests")
    ran, failed = 0, []
    for test in (one for group in groups if isinstance(group, Mapping) for one in group.get("tests") or ()):
        for result in test.get("results") or ():
            status = str(result.get("status", "")).lower()
            ran += status in ("pass", "warn", "fail")
            if status == "fail":
                gpu = result.get("gpu_id", result.get("gpu_ids", result.get("entity_id")))
                where = "" if gpu is None else f" on GPU {gpu}"
                failed.append(f"{test.get('name')}{where}: {_reason(result)}"[:300])
    if not ran:
        raise _Silent("every test was skipped")
    version = found.get("version") or (found.get("metadata") or {}).get("version") or "unknown"
    values = {"failed": float(len(failed))}
    return {"version": str(version), "values": values, "tests": ran, "bad": bool(failed), "notes": failed}


def _reason(result: Mapping[str, Any]) -> str:
    found = result.get("warnings") or result.get("info") or ("no reason given",)
    first = found[0] if isinstance(found, (list, tuple)) else found
    return str(first.get("warning", first) if isinstance(first, Mapping) else first)


# Running them.


def _nccl_tests(program: str, gpus: int) -> Answer:
    if gpus < 2:
        raise _Silent("it needs two GPUs")
    return read_nccl_tests(_output([program, "-b", "1K", "-e", "4G", "-f", "4", "-g", str(gpus)]))


def _nvbandwidth(program: str, gpus: int) -> Answer:
    if gpus < 1:
        raise _Silent("there is no GPU")
    return read_nvbandwidth(_output([program, "-j", "-t", *_COPIES], codes=(0, 1)))


def _ib_write_bw(program: str, gpus: int) -> Answer:
    """Each adapter writes to itself: the adapter and its PCIe slot, not the switch."""
    adapters = sorted(one.name for one in _ADAPTERS.glob("*")) if _ADAPTERS.is_dir() else []
    if not adapters:
        raise _Silent("there is no InfiniBand adapter")
    version = re.search(r"[Vv]ersion:?\s*(\S+)", _output([program, "--version"], codes=(0, 1)))
    rates = {}
    for number, name in enumerate(adapters):
        words = [program, "-d", name, "-p", str(18515 + number), "-s", str(_MESSAGE), "-F", "--report_gbits"]
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(1.0)  # it says that it listens on a stream that it buffers
            rates[name] = read_ib_write(_output([*words, "127.0.0.1"], limit_s=60.0))
        finally:
            server.kill()
            server.wait()
    notes = [f"{name}: {rate:.4g} GB/s" for name, rate in rates.items()]
    found = {"write_gb_s": min(rates.values())}
    return {"version": version[1] if version else "unknown", "values": found, "notes": notes, "adapters": rates}


def _dcgm(program: str, gpus: int) -> Answer:
    if gpus < 1:
        raise _Silent("there is no GPU")
    # It ends with another code than 0 where a test failed, and says which in its report.
    return read_dcgm(_output([program, "diag", "-r", "2", "-j"], limit_s=_DIAG_LIMIT_S, codes=range(256)))


TOOLS: dict[str, tuple[str, Callable[[str, int], Answer]]] = {
    "nccl_tests": ("all_reduce_perf", _nccl_tests),
    "nvbandwidth": ("nvbandwidth", _nvbandwidth),
    "ib": ("ib_write_bw", _ib_write_bw),
    "dcgm": ("dcgmi", _dcgm),
}
"""Tool by the first part of its scalars: the program, and what it is asked."""


def measure(gpus: int) -> dict[str, Answer]:
    """What each tool answered, or why it did not."""
    found: dict[str, Answer] = {}
    for name, (program, asked) in TOOLS.items():
        path = shutil.which(program)
        if path is None:
            found[name] = {"skipped": f"{program} is not installed"}
            continue
        began = time.monotonic()
        try:
            found[name] = asked(path, gpus)
        except (_Silent, AttributeError, TypeError) as error:  # JSON of another shape than any version had
            found[name] = {"skipped": f"{program}: {error}"}
        found[name]["seconds"] = round(time.monotonic() - began, 1)
    return found


def main() -> int:
    """Run the tools for `argv[1]` GPUs, and write `argv[2]`."""
    found = {"schema_version": 1, "tools": measure(int(sys.argv[1]))}
    replace_file(Path(sys.argv[2]), json.dumps(found, indent=1))
    print(json.dumps(found))  # noqa: T201 - the log of the run
    return 0
