"""Judges every case with a validator: python run.py --cases DIR --validator PATH [--jobs N] [--only NAME ...] [--out FILE]"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import generate

WORDS = {0: "GO", 1: "NO-GO", 2: "REFUSED", 3: "INCONCLUSIVE"}


def decide(folder: Path, validator: Path) -> str:
    command = [str(validator), "run", "runbook.yaml", "--out", str(folder / "reports")]
    with (folder / "validator.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            code = process.wait(150)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return "TIMEOUT"
    return WORDS.get(code, f"exit {code}")


def judge(folder: Path, validator: Path) -> dict:
    label = json.loads((folder / "label.json").read_text(encoding="utf-8"))
    shutil.rmtree(folder / "reports", ignore_errors=True)
    begun = time.monotonic()
    decision = decide(folder, validator)
    seconds = time.monotonic() - begun
    found = sorted((folder / "reports").rglob("result.json"), key=lambda p: len(p.parts))
    result = json.loads(found[0].read_text(encoding="utf-8")) if found else {}
    findings = [{"code": f["code"], "severity": f["severity"]} for f in result.get("findings", [])]
    criteria = [c for p in result.get("phases", []) for c in p.get("criteria", [])]
    opened = [f"{c.get('id', '')} {c.get('text', '')}".strip() for c in criteria if c.get("required", True) and str(c.get("status")).upper() not in ("PASS", "SKIPPED")]
    said = {f["code"] for f in findings if f["severity"] != "info"}
    silent = not label["codes"] and not label["criteria"]  # the decision itself says it
    named = bool(said & set(label["codes"])) or any(re.search(p, c) for p in label["criteria"] for c in opened) or silent and decision in label["expect"]
    return {"name": label["name"], "kind": label["kind"], "decision": decision, "expect": label["expect"], "right": decision in label["expect"], "named": named, "near": label["near"],
            "findings": findings, "open_criteria": opened, "seconds": round(seconds, 1), "what": label["what"], "why": result.get("why")}


def show(row: dict) -> dict:
    mark = "ok " if row["right"] and (row["named"] or row["kind"] == "healthy") else "BAD"
    findings = " ".join(f"{f['code']}:{f['severity']}" for f in row["findings"])
    unnamed = "" if row["named"] or row["kind"] == "healthy" else " NOT NAMED"
    print(f"{mark} {row['name']:36} {row['decision']:12} of {'/'.join(row['expect'])} {row['seconds']:.0f} s{unnamed} [{findings}] open: {row['open_criteria']}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--validator", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    root = options.cases.resolve()
    if not root.exists() or not any(root.iterdir()):
        generate.generate(root)
    validator = Path(os.path.abspath(options.validator))
    folders = [p.parent for p in sorted(root.glob("*/label.json")) if not options.only or p.parent.name in options.only]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda folder: show(judge(folder, validator)), folders))
    sick, healthy = ([r for r in rows if r["kind"] == kind] for kind in ("sick", "healthy"))
    wrong = [r["name"] for r in sick if r["decision"] == "GO" and not r["right"]]
    print(f"sick {len(sick)}: wrong GO {len(wrong)} {wrong}, as expected {sum(r['right'] for r in sick)}, named {sum(r['named'] for r in sick)}")
    count = {d: sum(r["decision"] == d for r in healthy) for d in ("GO", "NO-GO", "INCONCLUSIVE")}
    vetoed = [r["name"] for r in healthy if any(f["severity"] == "veto" for f in r["findings"])]
    print(f"healthy {len(healthy)}: {count}, other {len(healthy) - sum(count.values())}, vetoed {len(vetoed)} {vetoed}")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
