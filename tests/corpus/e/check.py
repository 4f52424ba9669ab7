"""Runs every trainer by itself, three at a time: python check.py DIR [NAME ...]; asserts exit code, rows, rate and loss."""

import csv
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import generate
from build import CASES, TABLES, runbook, truth

NUMBER = r"(?P<%s>-?(?:nan|inf|[\d][\d.,:_]*(?:[eE][-+]?\d+)?k?)(?:-\d\d-\d\d \d\d:\d\d:\d\d,\d+)?)"
CODES = {"crash_at_step_ninety": 1, "cuda_out_of_memory": 1, "exit_code_three_after_all_steps": 3, "killed_by_the_kernel": -9, "nccl_dies": 1, "port_taken": 1}
HANGS = {"hang_in_the_collective", "hang_before_first_step", "third_worker_stops", "out_of_time"}
ROWS = {"crash_at_step_ninety": 89, "cuda_out_of_memory": 49, "killed_by_the_kernel": 74, "nccl_dies": 39, "port_taken": 0, "stream_ran_dry": 100, "hang_in_the_collective": 60, "hang_before_first_step": 0, "third_worker_stops": 60, "promised_csv_never_written": 0, "output_folder_hard_wired": 0, "two_writers_one_table": 225}
LIARS = {"output_folder_hard_wired", "out_of_time", "garbled_rows", "retries_one_step_for_ever", "two_writers_one_table", "clock_set_back", "repeats_are_copies", "golden_csv_served_again"}


def number(text: str) -> float:
    if "-" in text[1:] and ":" in text:
        return time.mktime(time.strptime(text[:19], "%Y-%m-%d %H:%M:%S")) + int(text[20:]) / 1000
    if ":" in text:
        return sum(float(part) * 60**i for i, part in enumerate(reversed(text.split(":"))))
    text = text.replace(",", "").replace("_", "")
    return float(text[:-1]) * 1000 if text.endswith("k") else float(text)


def rows(spec: dict, book: dict, out: Path, printed: str) -> list[dict[str, float]]:
    metrics = book["trainer"]["metrics"]
    if "stdout" in metrics:
        pattern = re.compile(re.sub(r"\{(\w+)\}", lambda m: "" if m[1] == "row" else NUMBER % m[1], metrics["stdout"]))
        lines = re.split(r"[\r\n]", re.sub(r"\x1b\[\d+m", "", printed))
        return [{k: number(v) for k, v in m.groupdict().items() if v} for m in map(pattern.search, lines) if m]
    path = out / metrics["csv"]
    if not path.exists():
        return []
    with path.open() as file:
        table = list(csv.reader(file))
    head = [c for c, _ in TABLES["csv"][1]] if spec["form"] == "bare" else table.pop(0)
    return [{k: number(v) for k, v in zip(head, row) if re.fullmatch(r"-?[\d.e+-]+|nan|inf", v)} for row in table]


def claimed(spec: dict, table: list[dict[str, float]]) -> float | None:
    """Mean step time that the rows claim behind the warm-up."""
    table = [r for r in table if r.keys() - {"val_loss", "epoch", "step"}]
    late = table[math.ceil(spec["warmup"] / spec["every"]):]
    tok = spec["tok"] * max(1, spec["ranks"])
    for name, convert in (("toks_per_s", lambda v: tok / v), ("tokens_per_sec", lambda v: tok / v), ("toks_per_s_per_rank", lambda v: tok / v), ("ktoks_per_s", lambda v: tok / v / 1e3), ("step_time_s", float), ("step_time_ms", lambda v: v / 1e3), ("own_step_time_ms", lambda v: v / 1e3), ("interval_s", float), ("steps_per_s", lambda v: 1 / v)):
        if late and name in late[0]:
            return statistics.fmean(convert(r[name]) for r in late if r.get(name))
    for name, factor in (("elapsed_ms", 1e-3), ("elapsed_s", 1.0), ("timestamp", 1.0)):
        if late and name in late[0]:
            factor = 1e-3 if late[0][name] > 1e11 else factor
            late = [r for r in late if name in r and "loss" in r or "ce" in r or "tokens_seen" in r]
            return (late[-1][name] - late[0][name]) * factor / (len(late) - 1)
    return late[-1]["mean_step_time_s"] if late and "mean_step_time_s" in late[-1] else None


def check(root: Path, name: str) -> tuple[bool, str]:
    spec, problems = CASES[name], []
    book, folder = runbook(spec), root / name
    if spec["expect"] == ["REFUSED"]:
        return True, f"ok  {name}: refused by check, not run"
    phase = next(p for p in book["phases"] if p["kind"] in ("train", "soak", "sweep", "ab", "data") and not p.get("observe"))
    out = Path(tempfile.mkdtemp())
    command = [sys.executable, spec["script"]]
    for key, value in book["trainer"]["args"].items():
        command += [f"--{key}", {"{steps}": str(phase["steps"]), "{out}": str(out)}[value]]
    for key, value in spec.get("argv", {}).items():
        command += [f"--{key}", value]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "BUCKET_MB": "25"}
    begun = time.perf_counter()
    with (out / "printed").open("w") as log:
        run = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=lambda: os.nice(10))
        limit = time.monotonic() + (11 if name in HANGS else 60)
        pid = 0
        while not pid and time.monotonic() < limit:
            time.sleep(0.05)
            pid, status, usage = os.wait4(run.pid, os.WNOHANG)
    seconds, hung = time.perf_counter() - begun, not pid
    try:
        os.killpg(run.pid, 9)  # the group that was started above
    except ProcessLookupError:
        pass
    code, share = None, 0.0
    if pid:
        code, share = os.waitstatus_to_exitcode(status), (usage.ru_utime + usage.ru_stime) / seconds
    else:
        os.wait4(run.pid, 0)
    if hung != (name in HANGS) or not hung and code != CODES.get(name, 0):
        problems.append(f"exit {code}, hung {hung}: " + (out / "printed").read_text()[-300:])
    table = rows(spec, book, out, (out / "printed").read_text())
    losses = [r[k] for r in table for k in ("loss", "train_loss", "ce") if k in r]
    wanted = ROWS.get(name, math.ceil(spec["n"] / spec["every"]))
    if len(losses) != wanted and name not in {"out_of_time", "garbled_rows"}:
        problems.append(f"{len(losses)} rows with a loss, not {wanted}")
    if spec["kind"] == "healthy" and "loss.last < loss.first" in spec["accept"] and not losses[-1] < losses[0]:
        problems.append(f"loss {losses[0]} to {losses[-1]}")
    mean, true = claimed(spec, table) if name not in ROWS else None, truth(spec)
    ratio = mean / true["step_time_s" if spec["metric"] == "step_time_s" or "modded" == spec["form"] else "wall_step_time_s"] if mean else math.nan
    honest = spec["lie"] == "pass" and name not in LIARS and mean
    if honest and not 0.96 < ratio < 1.06:
        problems.append(f"claims {ratio:.3f} of the scheduled step time")
    if not honest and spec["lie"] != "pass" and name != "repeats_are_copies" and 0.9 < ratio < 1.1:
        problems.append(f"lies by only {ratio:.3f}")
    if share > 0.10 and seconds > 3:
        problems.append(f"{share:.0%} of a core")
    if seconds > 20 and not hung:
        problems.append(f"{seconds:.0f} s")
    shutil.rmtree(out)
    return not problems, f"{'BAD' if problems else 'ok '} {name}: {seconds:.1f} s, {len(losses)} rows, loss {losses[:1]} to {losses[-1:]}, step time {ratio:.3f} of the schedule, {share:.1%} of a core {problems or ''}"


if __name__ == "__main__":
    root = Path(sys.argv[1])
    if not root.exists():
        generate.generate(root)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda name: (lambda r: (print(r[1], flush=True), r)[1])(check(root, name)), sys.argv[2:] or CASES))
    print(f"{sum(good for good, _ in results)} of {len(results)} as believed")
    sys.exit(not all(good for good, _ in results))
