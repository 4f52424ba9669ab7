"""check.py DIR [NAME ...]: runs each trainer without validator, three at a time, and asserts what its label says of it."""
import concurrent.futures
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

NUMBER = r"[-+]?(?:\d[\d,_]*(?:\.\d*)?(?:[eE][-+]?\d+)?[kKM]?|\.\d+|nan|inf)"
STAMP = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]?\d*"


def expand(pattern):
    seen = {}

    def group(match):
        name = match[1]
        seen[name] = seen.get(name, 0) + 1
        return "" if name == "row" else f"(?P<{name}__{seen[name]}>{STAMP if name == 'timestamp' else NUMBER})"
    return re.compile(re.sub(r"\{([a-z_]+)\}", group, pattern))


def read(stream, kept):
    for line in stream:
        kept.append((time.monotonic(), re.sub(r"\x1b\[[0-9;]*m", "", line)))


def start(folder, plan, out, rank):
    argv = [word.replace("{steps}", str(plan["steps"])).replace("{out}", str(out)) for word in plan["argv"]]
    env = {**os.environ, **plan["env"], "PYTHONUNBUFFERED": "1", "RANK": str(rank), "WORLD_SIZE": str(max(1, plan["nproc"]))}
    return subprocess.Popen([sys.executable, *argv], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
                            errors="replace", preexec_fn=lambda: os.nice(10), start_new_session=True)


def losses(plan, at_lines, text):
    """The losses that the pattern, or the column, holds; NaN and infinity as they are."""
    if plan["csv"]:
        table = [line.split(",") for line in text.splitlines()]
        names = table[0] if table and not text[0].isdigit() else []
        place = next((i for i, name in enumerate(names) if name in ("loss", "train_loss")), 1)
        cells = [cells[place] for cells in table[bool(names):] if len(cells) > place]
    else:
        groups = [match.groupdict() for line in at_lines if (match := expand(plan["stdout"]).search(line))]
        cells = [value for one in groups for name, value in one.items() if name.startswith("loss__") and value]
    return [float(cell.replace(",", "")) for cell in cells if re.fullmatch(NUMBER, cell)]


def unlike(label, book, values):
    """What the losses contradict of the label."""
    last = statistics.median(values[-max(5, len(values) // 20):]) if values else 0.0
    least = min((statistics.median(values[i:i + 5]) for i in range(max(1, len(values) - 4))), default=0.0)
    noise = statistics.median(abs(b - a) for a, b in zip(values, values[1:])) if len(values) > 2 else 0.0  # about one standard deviation of a row
    up = last - least > max(abs(least) / 4, (values[0] - least) / 10, 8 * noise) if values else False
    codes, wrong = label["codes"], []
    if label["kind"] == "healthy" and up and "accept_findings" not in book:
        wrong.append(f"the loss ends at {last:.4g}, {least:.4g} at its least")
    if label["kind"] == "healthy" and "loss.last < loss.first" in book and not values[-1] < values[0]:
        wrong.append("the loss does not fall")
    if codes == ["diverging"] and label["name"] != "gradient-explodes" and not up:
        wrong.append("the loss does not diverge")
    if "nan-loss" in codes and label["name"] != "nan-on-rank-1" and all(math.isfinite(value) for value in values):
        wrong.append("every loss is finite")
    if "zero-loss" in codes and (any(values[-3:]) or max(values) < 0.1):
        wrong.append("the last losses are not 0")
    if label["name"] == "frozen-loss" and len(set(values)) > 1:
        wrong.append("the loss changes")
    if label["name"] == "repeated-digit-for-digit" and values[13:] != values[:-13]:
        wrong.append("the losses do not repeat")
    return wrong


def check(folder):
    label = json.loads((folder / "label.json").read_text(encoding="utf-8"))
    plan, wrong = label["check"], []
    if label["expect"] == ["REFUSED"]:
        return label["name"], wrong, 0.0, ""
    out = Path(tempfile.mkdtemp())
    began, texts, errors, rows = time.monotonic(), [], [], []
    ranks = [start(folder, plan, out, rank) for rank in range(max(1, plan["nproc"]))]
    readers = [threading.Thread(target=read, args=pair, daemon=True) for one in ranks for pair in ((one.stdout, texts), (one.stderr, errors))]
    for reader in readers:
        reader.start()
    while any(one.poll() is None for one in ranks) and time.monotonic() - began < (14 if plan["rc"] is None and label["kind"] == "sick" and "hang" in label["codes"] else 60):
        time.sleep(0.02)
        if plan["csv"] and (out / plan["csv"]).exists():
            have = (out / plan["csv"]).read_text(encoding="utf-8").count("\n")
            rows += [time.monotonic()] * (have - len(rows))
    for one in ranks:
        if one.poll() is None:
            os.killpg(one.pid, 9)
            one.wait()
    lasted = time.monotonic() - began
    for reader in readers:
        reader.join(0.5)
    if plan["csv"]:
        text = (out / plan["csv"]).read_text(encoding="utf-8") if (out / plan["csv"]).exists() else ""
        header = 1 if text[:1] and not text[0].isdigit() else 0
        at = [*rows, *[time.monotonic()] * (text.count("\n") - len(rows))][header:]
    else:
        lines = texts if any(expand(plan["stdout"]).search(line) for _, line in texts) else errors
        at, text = [when for when, line in lines if expand(plan["stdout"]).search(line)], ""
    if plan["rows"]:
        wrong += unlike(label, (folder / "runbook.yaml").read_text(encoding="utf-8"), losses(plan, [] if plan["csv"] else [line for _, line in lines], text))
    if len(at) != plan["rows"]:
        wrong.append(f"rows {len(at)}, not {plan['rows']}")
    if plan["rc"] is not None and [one.returncode for one in ranks] != [plan["rc"]] * len(ranks):
        wrong.append(f"exit codes {[one.returncode for one in ranks]}, not {plan['rc']}")
    if len(at) > 1 and abs(at[-1] - at[0] - plan["span"]) > 0.04 * plan["span"] + 0.4:
        wrong.append(f"{at[-1] - at[0]:.2f} s from first to last row, not {plan['span']:.2f}")
    if label["kind"] == "healthy" and any("Error" in line for _, line in errors) and label["name"] != "handled-traceback":
        wrong.append("an error is printed")
    shutil.rmtree(out)
    return label["name"], wrong, lasted, (texts or errors or [(0, "")])[-1][1].rstrip()[:110]


if __name__ == "__main__":
    cases = [one.parent for one in sorted(Path(sys.argv[1]).glob("*/label.json")) if not sys.argv[2:] or one.parent.name in sys.argv[2:]]
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for name, wrong, lasted, last in pool.map(check, cases):
            bad += bool(wrong)
            print(f"{'BAD' if wrong else 'ok ':3} {name:28} {lasted:5.1f} s  {'; '.join(wrong) or last}", flush=True)
    print(f"{len(cases)} cases, {bad} bad")
    sys.exit(bool(bad))
