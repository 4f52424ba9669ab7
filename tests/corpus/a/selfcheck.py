"""Run the trainers by plain python, without validator, and hold what they write against the labels.

    python selfcheck.py WORK [NAME ...]
"""
import concurrent.futures
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import gen  # noqa: E402
import run  # noqa: E402

ALIAS = {"tokens_per_sec": 1, "toks_per_s": 1, "ktoks_per_s": 1000}


def check(name, root):
    made, folder = gen.make(name), root / name
    shutil.rmtree(folder, ignore_errors=True)
    run.write(name, folder)
    t, label = made["try"], made["label"]
    out = folder / "by-hand"
    fill = lambda s: str(s).replace("{steps}", str(t["steps"])).replace("{out}", str(out))  # noqa: E731
    argv = [fill(c) for c in t["command"]]
    for key, value in t["args"].items():
        argv += [f"--{key}", fill(value)]
    begun, procs = time.monotonic(), []
    for rank in range(t["world"]):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(t["world"]), PYTHONUNBUFFERED="1")
        procs.append(subprocess.Popen([sys.executable, *argv], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    texts = []
    for p in procs:
        try:
            texts.append(p.communicate(timeout=20 if "hang" != label["class"] else 12))
        except subprocess.TimeoutExpired:
            p.kill()
            texts.append(p.communicate())
    wall, rc = time.monotonic() - begun, procs[0].returncode
    rates, losses, rows, problem = [], [], 0, []
    if t["style"] == "stdout":
        for source in texts[0]:
            found = [re.search(t["regex"], re.sub(r"\x1b\[[\d;]*m", "", line)) for line in source.splitlines()]
            found = [m.groupdict() for m in found if m]
            if found:
                break
        rows = len(found)
        losses = [float(m["loss"]) for m in found]
        for m in found:
            rate = m.get("toks_per_s") or m.get("ktoks_per_s")
            if rate:
                rates.append(float(rate.replace(",", "")) * (1000 if "ktoks_per_s" in m else 1))
            else:
                rates.append(1000 / float(m["step_time_ms"]))
    else:
        with (out / t["csv"]).open(newline="") as f:
            lines = list(csv.reader(f))
        if t["style"] == "csv":
            head, *lines = lines
            column = next(c for c in head if c in ALIAS)
            rates = [float(x[head.index(column)]) * ALIAS[column] for x in lines]
            losses = [float(x[1]) if head[1].endswith("loss") else 0.0 for x in lines]
            assert all(len(x) == len(head) for x in lines), "ragged"
        else:
            rates, losses = [float(x[3]) for x in lines], [float(x[1]) for x in lines]
        rows = len(lines)
    skip = max(1, 10 * rows // max(1, t["steps"]))
    usable = [x for x in rates[skip:] if x > 0]
    mean = len(usable) / sum(1 / x for x in usable) if usable else 0.0
    target = t["rate"] if not (t["style"] == "stdout" and "step_time_ms" in t["regex"] and "toks_per_s" not in t["regex"]) else 1 / t["step"]
    off = mean / target - 1
    if label["kind"] == "healthy":
        if rc:
            problem.append(f"rc {rc}")
        if rows != t["rows"]:
            problem.append(f"rows {rows} not {t['rows']}")
        if abs(off) > 0.05 and "avg throughput" not in t["regex"] and name != "checkpoints-cleared-stdout":
            problem.append(f"rate off by {off:+.1%}")
        if losses[-1] >= 0.9 * losses[0]:
            problem.append(f"loss {losses[0]} {losses[-1]}")
        if label["bounds_10pct_away"] is not True:
            problem.append(f"margin {label['margin']}")
    if wall > 20.5:
        problem.append(f"wall {wall:.1f}")
    err = texts[0][1].strip().splitlines()
    return name, f"{name:32} rc {rc!s:3} {wall:5.1f}s (planned {t['seconds']}) rows {rows:4} off {off:+7.1%} loss {losses[0] if losses else None} -> {losses[-1] if losses else None}" + \
        (f"  err: {err[-1][:80]}" if err and "x1b" not in t["regex"] and rc else "") + ("   PROBLEM " + "; ".join(problem) if problem else "")


if __name__ == "__main__":
    root = Path(sys.argv[1]).resolve()
    root.mkdir(parents=True, exist_ok=True)

    def safe(n):
        try:
            return check(n, root)[1]
        except Exception as e:  # noqa: BLE001
            return f"{n:32} PROBLEM {type(e).__name__}: {e}"

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for line in pool.map(safe, sys.argv[2:] or list(gen.CASES)):
            print(line, flush=True)
