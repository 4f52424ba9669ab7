"""Judges a validator by the cases: `python run.py --cases DIR --validator PATH [--jobs N] [--only NAME ...] [--out FILE]`."""

import argparse
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DECISIONS = {0: "GO", 1: "NO-GO", 2: "REFUSED", 3: "INCONCLUSIVE", 4: "UNABLE", 130: "INTERRUPTED"}
LIMIT_S = 150


def start(validator, place):
    """Exit code and result.json of one validation; None for a code where it ran out of time."""
    reports = place / "reports"
    before = set(reports.glob("*/result.json"))
    with (place / "validator.log").open("w") as log:
        process = subprocess.Popen([validator, "run", "runbook.yaml", "--out", str(reports)], cwd=place, stdout=log,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            code = None
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    found = sorted(set(reports.glob("*/result.json")) - before)
    return code, json.loads(found[-1].read_text()) if found else {}


def judge(place, validator):
    label = json.loads((place / "label.json").read_text())
    begin = time.monotonic()
    code, result = start(validator, place)
    decision = "TIMEOUT" if code is None else DECISIONS.get(code, f"EXIT {code}")
    findings = [dict(code=f["code"], severity=f["severity"]) for f in result.get("findings", [])]
    items = [i for phase in result.get("phases", []) for part in ("criteria", "checks") for i in phase.get(part) or []]
    left = [f"{i.get('id') or i.get('name') or ''}: {i.get('text') or ''} [{i.get('status')}]" for i in items if i.get("status") != "PASS"]
    named = any(f["code"] in label["codes"] for f in findings) or any(re.search(p, i) for p in label["criteria"] for i in left)
    if not label["codes"] and not label["criteria"]:
        named = decision in label["expect"]
    return dict(name=label["name"], kind=label["kind"], decision=decision, expect=label["expect"], right=decision in label["expect"],
                named=named, findings=findings, open_criteria=left, seconds=round(time.monotonic() - begin, 1))


def show(row):
    good = row["right"] and (row["kind"] == "healthy" or row["named"])
    findings = " ".join(f"{f['code']}({f['severity']})" for f in row["findings"])
    print("ok " if good else "BAD", row["name"], row["decision"], "expected", "|".join(row["expect"]), f"{row['seconds']} s", "::", findings or "-",
          "::", "; ".join(row["open_criteria"]) or "-", "" if row["kind"] == "healthy" or row["named"] else ":: NOT NAMED", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--validator", required=True)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.cases = args.cases.resolve()
    if not args.cases.is_dir() or not any(args.cases.iterdir()):
        subprocess.run([sys.executable, str(Path(__file__).with_name("generate.py")), str(args.cases)], check=True)
    validator = str(Path(args.validator).resolve()) if "/" in args.validator else args.validator
    places = [p for p in sorted(args.cases.iterdir()) if (p / "label.json").exists() and (not args.only or p.name in args.only)]

    def one(place):
        row = judge(place, validator)
        show(row)
        return row
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(one, places))
    sick, healthy = [r for r in rows if r["kind"] == "sick"], [r for r in rows if r["kind"] == "healthy"]
    print(f"sick {len(sick)}: wrong GO {sum(r['decision'] == 'GO' and not r['right'] for r in sick)}, "
          f"as expected {sum(r['right'] for r in sick)}, named {sum(r['named'] for r in sick)}")
    print(f"healthy {len(healthy)}: " + ", ".join(f"{d} {sum(r['decision'] == d for r in healthy)}" for d in ("GO", "NO-GO", "INCONCLUSIVE"))
          + f", vetoed {sum(any(f['severity'] == 'veto' for f in r['findings']) for r in healthy)}")
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    sys.exit(any(not r["right"] for r in rows))


if __name__ == "__main__":
    main()
