"""Runs a validator over the cases: run.py --cases DIR --validator EXECUTABLE [--jobs 4] [--only NAME ...] [--kind sick|healthy] [--list] --out results.json"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import generate

DECISION = {0: "GO", 1: "NO-GO", 2: "REFUSED", 3: "INCONCLUSIVE", 4: "UNABLE", 130: "INTERRUPTED"}
LIMIT_S = 150


def start(command, folder, home):
    env = dict(os.environ, NO_COLOR="1")
    for name in ("RUNTIME_DIR", "CONFIG_HOME", "DATA_HOME", "STATE_HOME", "CACHE_HOME"):
        (home / name).mkdir(mode=0o700)
        env["XDG_" + name] = str(home / name)
    for name in [n for n in env if n in ("GITHUB_STEP_SUMMARY", "RANK", "WORLD_SIZE", "LOCAL_RANK")]:
        del env[name]
    with open(folder / "console.txt", "wb") as console:
        p = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return p.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGTERM)
            try:
                p.wait(45)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
            return None


def read(folder):
    found = sorted((folder / "reports").glob("*/result.json"), key=lambda f: f.stat().st_mtime)
    if not found:
        return {}
    try:
        return json.loads(found[-1].read_text(encoding="utf-8"))
    except ValueError:
        return {}


def criteria(result):
    return [c for p in result.get("phases", []) for c in p.get("criteria", [])]


def is_named(label, decision, result):
    codes = {f["code"] for f in result.get("findings", []) if f.get("severity") in ("veto", "warning", "info")}
    if not label["codes"] and not label["criteria"]:
        return True
    if codes & set(label["codes"]):
        return True
    if label["need_code"]:
        return False
    if decision == "REFUSED":
        return True
    bad = {"FAIL"} if decision == "NO-GO" else {"FAIL", "INCONCLUSIVE", "NOT_RUN", "SKIPPED"}
    return any(str(c.get("status", "")).upper() in bad and c.get("required", True) and re.search(pattern, f"{c.get('id', '')} {c.get('text', '')}")
               for c in criteria(result) for pattern in label["criteria"])


def one(case, args):
    label = case["label"]
    folder = (Path(args.cases) / label["name"]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    generate.write(case, folder)
    home = Path(tempfile.mkdtemp(prefix="xdg-"))
    began = time.monotonic()
    try:
        rc = start([*shlex.split(args.validator), "run", "runbook.yaml", "--out", "reports"], folder, home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    took = time.monotonic() - began
    result = read(folder)
    decision = "TIMEOUT" if rc is None else DECISION.get(rc, f"exit {rc}")
    right = decision in label["decisions"]
    named = is_named(label, decision, result) if label["kind"] == "sick" else True
    found = [dict(code=f.get("code"), severity=f.get("severity"), message=str(f.get("message", ""))[:300]) for f in result.get("findings", [])]
    out = dict(name=label["name"], kind=label["kind"], decision=decision, expected=label["decisions"], right=right, named=named, near=label["near"],
               distance_pct=label["distance_pct"], seconds=round(took, 1), why=str(result.get("why", ""))[:400], findings=found,
               criteria=[dict(text=c.get("text") or c.get("id"), status=c.get("status"), required=c.get("required"), observed=c.get("observed"),
                              ci=[c.get("ci_low"), c.get("ci_high")]) for c in criteria(result)], label=label["why"])
    if not result:
        out["console"] = (folder / "console.txt").read_text(errors="replace")[-1500:]
    mark = "BAD" if not right else "ok" if named else "??"
    say = ",".join(sorted({f["code"] + ("!" if f["severity"] == "veto" else "") for f in found if f["severity"] != "info"}))
    print(f"{mark:3} {label['name']:26} {decision:12} expected {'/'.join(label['decisions']):22} {took:5.0f} s  {say}  {out['why'][:110]}", flush=True)
    return out


def totals(rows):
    sick, well = ([r for r in rows if r["kind"] == k] for k in ("sick", "healthy"))
    if sick:
        wrong = [r["name"] for r in sick if r["decision"] == "GO" and "GO" not in r["expected"]]
        print(f"sick    {len(sick)}: wrong GO {len(wrong)}, expected decision {sum(r['right'] for r in sick)}, named {sum(r['named'] for r in sick)}, "
              f"both {sum(r['right'] and r['named'] for r in sick)}", *wrong)
    if well:
        count = {d: sum(r["decision"] == d for r in well) for d in ("GO", "NO-GO", "INCONCLUSIVE")}
        veto, warn = (sum(any(f["severity"] == s for f in r["findings"]) for r in well) for s in ("veto", "warning"))
        print(f"healthy {len(well)}: GO {count['GO']}, NO-GO {count['NO-GO']}, INCONCLUSIVE {count['INCONCLUSIVE']}, other {len(well) - sum(count.values())}, "
              f"with a veto {veto}, with a warning {warn}, acceptable {sum(r['right'] for r in well)}")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--cases", default="/tmp/setB-cases", help="folder that the cases are materialised in; folders of the same names are replaced")
    ap.add_argument("--validator", help="the executable, arguments allowed")
    ap.add_argument("--jobs", type=int, default=4)
    ap.add_argument("--only", nargs="+", default=[], help="names, or beginnings of names")
    ap.add_argument("--kind", choices=["sick", "healthy"])
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--out", default="results.json")
    args = ap.parse_args()
    cases = [c for c in generate.build() if args.kind in (None, c["label"]["kind"]) and (not args.only or any(c["label"]["name"].startswith(o) for o in args.only))]
    if args.list:
        for c in cases:
            x = c["label"]
            print(f"{x['name']:26} {x['kind']:8} {'/'.join(x['decisions']):20} {x['seconds']:5.1f} s  {'' if x['distance_pct'] is None else x['distance_pct']:>7}  {x['why']}")
        return 0
    if not args.validator:
        ap.error("--validator is needed")
    if os.sep in args.validator and " " not in args.validator:
        args.validator = shlex.quote(str(Path(args.validator).absolute()))
    Path(args.cases).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(lambda c: one(c, args), cases))
    totals(rows)
    Path(args.out).write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
