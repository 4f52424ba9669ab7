"""run.py --cases DIR --validator PATH [--jobs N] [--only NAME ...] [--out results.json]: runs validator on every case and scores it."""
import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

DECISIONS = {0: "GO", 1: "NO-GO", 2: "REFUSED", 3: "INCONCLUSIVE", 4: "MACHINE", 130: "INTERRUPTED"}
LIMIT_S = 150


def criteria_open(result):
    """Texts of the criteria that did not pass; criteria that are not required count as well."""
    return [f"{one.get('id', '')}: {one.get('text', '')}" if one.get("id") not in (None, one.get("text")) else str(one.get("text"))
            for phase in result.get("phases", []) for one in phase.get("criteria", []) if one.get("status") not in ("PASS", "pass")]


def run(folder, validator):
    label = json.loads((folder / "label.json").read_text(encoding="utf-8"))
    began = time.monotonic()
    reports = folder / "reports"
    child = subprocess.Popen([validator, "run", "runbook.yaml", "--out", str(reports)], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        output, _ = child.communicate(timeout=LIMIT_S)
        decision = DECISIONS.get(child.returncode, f"exit {child.returncode}")
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            output, _ = child.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, _ = child.communicate()
        decision = "TIMEOUT"
    seconds = time.monotonic() - began
    found = sorted(reports.glob("*/result.json"), key=lambda path: path.stat().st_mtime)
    result = json.loads(found[-1].read_text(encoding="utf-8")) if found else {}
    findings = [{"code": one["code"], "severity": one["severity"]} for one in result.get("findings", [])]
    left = criteria_open(result)
    codes = {one["code"] for one in findings if one["severity"] in ("veto", "warning")}
    asked = label["codes"] or label["criteria"]
    named = not asked or bool(codes & set(label["codes"])) or any(re.search(pattern, text) for pattern in label["criteria"] for text in left)
    return {"name": label["name"], "kind": label["kind"], "what": label["what"], "expect": label["expect"], "near": label["near"], "decision": decision,
            "right": decision in label["expect"], "named": named if label["kind"] == "sick" else True, "findings": findings, "open_criteria": left,
            "seconds": round(seconds, 1), "output_tail": (output or "")[-600:]}


def show(row):
    mark = "ok " if row["right"] and row["named"] else "BAD"
    findings = " ".join(f"{one['code']}({one['severity']})" for one in row["findings"] if one["severity"] != "info") or "-"
    print(f"{mark} {row['name']:28} {row['decision']:12} of {'/'.join(row['expect']):22} {row['seconds']:6.1f} s  {findings}"
          f"{'' if row['named'] else '  NOT NAMED'}  {'; '.join(row['open_criteria'])}", flush=True)


def summary(rows):
    sick, fit = [r for r in rows if r["kind"] == "sick"], [r for r in rows if r["kind"] == "healthy"]
    wrong_go = [r["name"] for r in sick if r["decision"] == "GO" and "GO" not in r["expect"]]
    print(f"\nsick {len(sick)}: wrong GO {len(wrong_go)} {wrong_go}; decisions as expected {sum(r['right'] for r in sick)}; named {sum(r['named'] for r in sick)}")
    count = {word: [r["name"] for r in fit if r["decision"] == word] for word in ("GO", "NO-GO", "INCONCLUSIVE")}
    vetoed = [r["name"] for r in fit if any(one["severity"] == "veto" for one in r["findings"])]
    print(f"healthy {len(fit)}: GO {len(count['GO'])}; NO-GO {len(count['NO-GO'])} {count['NO-GO']}; INCONCLUSIVE {len(count['INCONCLUSIVE'])} "
          f"{count['INCONCLUSIVE']}; vetoed {len(vetoed)} {vetoed}; other {[r['name'] for r in fit if r['decision'] not in count]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--validator", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not args.cases.exists() or not any(args.cases.iterdir()):
        subprocess.run([sys.executable, str(Path(__file__).with_name("generate.py")), str(args.cases)], check=True)
    folders = [one.parent.resolve() for one in sorted(args.cases.glob("*/label.json")) if not args.only or one.parent.name in args.only]
    validator = str(Path(args.validator).absolute()) if os.sep in args.validator else args.validator
    rows = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(lambda folder: run(folder, validator), folders):
            rows.append(row)
            show(row)
            if args.out:
                args.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    summary(rows)


if __name__ == "__main__":
    main()
