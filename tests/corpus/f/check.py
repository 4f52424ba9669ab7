"""Runs every trainer by itself, three at a time, and holds it against what its label believes: `python check.py DIR [NAME ...]`."""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NUMBER = r"[-+]?(?:\d[\d,_]*\.?\d*(?:e[-+]?\d+)?k?|nan|inf)"
TIME = r"(?:\d+ days?, )?[-\d:/., ]*\d"


def expand(pattern):
    seen = {}

    def group(m):
        name = m[1]
        seen[name] = seen.get(name, 0) + 1
        form = TIME if name in ("timestamp", "elapsed_s") else NUMBER
        return "" if name == "row" else f"(?P<{name}{'_' * (seen[name] - 1)}>{form})"
    return re.compile(re.sub(r"(?<!P)\{([a-z_]+)\}", group, pattern))


def follow(command, cwd, cut):
    """Lines of the process with the time each came, and its exit code."""
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if cut:
        import threading
        threading.Timer(cut, process.kill).start()
    lines = [(time.perf_counter(), part) for line in process.stdout for part in re.split(r"[\r\n]+", line) if part]
    return lines, process.wait()


def verify(place):
    label = json.loads((place / "label.json").read_text())
    want, wrong = label["check"], []
    with tempfile.TemporaryDirectory() as out:
        lines, rc = follow([sys.executable, "train.py", str(want["steps"]), out], place, want.get("cut"))
        if not want.get("cut") and rc != want["rc"]:
            wrong.append(f"exit code {rc}: {lines[-1:]}")
        if want["pattern"]:
            expression = expand(want["pattern"])
            hits = [(at, m) for at, line in lines if (m := expression.search(re.sub(r"\x1b\[\d+m", "", line)))]
            steps = [at for at, m in hits if m.groupdict().get("step") or "{row}" in want["pattern"]]
            losses = [float(m["loss"].replace(",", "")) for _, m in hits if m.groupdict().get("loss") and m["loss"] != "None"]
            rows = len(steps)
        else:
            table = Path(out) / want["csv"]
            text = table.read_text().splitlines() if table.exists() else []
            rows, steps, losses = len(text) - 1, [], []
        expected = int(want["steps"] * want.get("part", 1))
        if want["rows"] is not None and abs(rows - expected) > 1:
            wrong.append(f"{rows} rows, not {expected}")
        if rows < 10 and want.get("part") != 0 and "refused" not in place.name and (want["pattern"] or want["rows"] is not None):
            wrong.append(f"only {rows} rows")
        if want["rows"] is not None and want.get("part", 1) == 1 and len(steps) > 40 and label["bound_distance_pct"]:
            skip = len(steps) // 10
            pace = (steps[-1] - steps[skip]) / (len(steps) - 1 - skip)
            share = pace / want["step_s"]
            if not .93 < share < 1.07 and not re.search("slow_first|speed_up|compile|mean_rate", place.name):
                wrong.append(f"{pace:.4f} s a step, not {want['step_s']:.4f}")
        if losses and not want.get("rising") and not losses[-1] < losses[0]:
            wrong.append(f"loss {losses[0]} -> {losses[-1]}")
        if losses and any(not math.isfinite(x) for x in losses) and "nan" not in label["what"].lower() + "".join(label["codes"]):
            wrong.append("a loss is not finite")
    return place.name, rows, wrong


if __name__ == "__main__":
    os.nice(10)
    chosen = sys.argv[2:]
    places = [p for p in sorted(Path(sys.argv[1]).iterdir()) if (p / "label.json").exists() and (not chosen or p.name in chosen)]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(verify, places))
    for name, rows, wrong in results:
        print("BAD" if wrong else "ok ", name, rows, *wrong, flush=True)
    sys.exit(any(wrong for *_, wrong in results))
