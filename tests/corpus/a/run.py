"""Materialise the cases, run validator on each, and score its verdicts.

    python run.py --list                                             labels of all cases as JSON
    python run.py --cases WORK --materialise-only                    write the folders, run nothing
    python run.py --cases WORK --validator BIN --out results.json    the whole set
"""
import argparse
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import gen  # noqa: E402

LIMIT_S = 120
EXITS = {0: "GO", 1: "NO_GO", 2: "REFUSED", 3: "INCONCLUSIVE", 4: "UNABLE", 130: "INTERRUPTED"}


def materialise(name: str, root: Path, tokens_key: str = "trainer") -> Path:
    """One case in its own folder."""
    folder = root / name
    shutil.rmtree(folder, ignore_errors=True)
    made = gen.make(name)
    for path, text in made["files"].items():
        if path == "runbook.yaml":
            text = move_tokens(text, tokens_key)
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, newline="")
        if "/" in path:                                   # leftovers of an earlier day
            old = time.time() - 86400
            os.utime(file, (old, old))
    return folder


def move_tokens(text: str, key: str) -> str:
    """`tokens_per_step` under another mapping: the documents do not say where it stands."""
    found = re.search(r"^  tokens_per_step: (\d+)\n", text, re.M)
    if not found or key == "trainer":
        return text
    text = text.replace(found.group(0), "")
    line = f"tokens_per_step: {found.group(1)}\n"
    if key == "trainer.metrics":
        return text.replace("  metrics:\n", "  metrics:\n    " + line)
    if key == "defaults":
        return text.replace("defaults:\n", "defaults:\n  " + line)
    if key == "phase":
        return re.sub(r"^(    kind: \w+\n)", r"\1    " + line, text, count=1, flags=re.M)
    if key == "none":
        return text
    return line.join(["", text]) if key == "top" else text


def run_case(name: str, root: Path, validator: str, tokens_key: str, limit: float) -> dict:
    folder = materialise(name, root, tokens_key)
    label = gen.make(name)["label"]
    env = dict(os.environ)
    home = folder / "home"
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        env[variable] = str(home / variable.lower())       # no history shared between cases
    env["NO_COLOR"] = "1"
    begun = time.monotonic()
    with (folder / "stdout.txt").open("w") as out, (folder / "stderr.txt").open("w") as err:
        process = subprocess.Popen([validator, "run", "runbook.yaml", "--out", "reports"], cwd=folder, stdout=out, stderr=err,
                                   stdin=subprocess.DEVNULL, env=env, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = "driver-timeout"
            for number, patience in ((signal.SIGTERM, 50), (signal.SIGKILL, 10)):
                try:
                    os.killpg(process.pid, number)
                    process.wait(patience)
                    break
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue
    return {**label, **judge(label, folder, code), "wall_s": round(time.monotonic() - begun, 1), "folder": str(folder)}


def judge(label: dict, folder: Path, code) -> dict:
    """What validator said, held against the label."""
    files = sorted((folder / "reports").glob("**/result.json"), key=lambda p: (len(p.parts), -p.stat().st_mtime))
    try:
        result = json.loads(files[0].read_text()) if files else {}
    except (OSError, ValueError):
        result = {}
    by_exit = EXITS.get(code, str(code))
    decision = result.get("decision") or by_exit
    findings = [{"code": f.get("code"), "severity": f.get("severity"), "message": str(f.get("message", ""))[:200]} for f in result.get("findings") or []]
    criteria = [c for phase in result.get("phases") or [] for c in phase.get("criteria") or []]
    open_ = [{"id": c.get("id"), "text": c.get("text"), "status": c.get("status"), "phase": None}
             for c in criteria if c.get("required", True) and c.get("status") not in ("PASS", "SKIPPED")]
    texts = [f"{c['id']} {c['text']}" for c in open_]
    said = str(result.get("why", ""))
    if by_exit == "REFUSED":
        said += " " + (folder / "stderr.txt").read_text() + (folder / "stdout.txt").read_text()
    by_code = sorted({f["code"] for f in findings if f["severity"] in ("veto", "warning") and f["code"] in label["codes"]})
    by_criterion = [t for t in texts if any(re.search(p, t) for p in label["criteria"])]
    by_why = bool(label["why_re"] and by_exit != "GO" and re.search(label["why_re"], said))
    return {"exit": code, "decision": decision, "exit_matches_decision": by_exit == decision or by_exit in ("REFUSED", "UNABLE"),
            "expected": by_exit in label["decisions"], "named": bool(by_code or by_criterion or by_why),
            "named_by": by_code + by_criterion[:2] + (["why"] if by_why else []), "findings": findings, "open_criteria": open_,
            "vetoes": sorted({f["code"] for f in findings if f["severity"] == "veto"}),
            "warnings": sorted({f["code"] for f in findings if f["severity"] == "warning"}), "why_said": str(result.get("why", ""))[:300]}


def table(rows: list[dict]) -> str:
    lines = []
    for row in sorted(rows, key=lambda x: (x["kind"], x["class"], x["name"])):
        mark = "ok " if row["expected"] and (row["kind"] == "healthy" or row["named"]) else "?? " if row["expected"] else "BAD"
        notes = ", ".join(row["named_by"]) if row["kind"] == "sick" else " ".join(["veto:" + v for v in row["vetoes"]] + ["warn:" + w for w in row["warnings"]])
        lines.append(f"{mark} {row['kind']:7} {row['class']:22} {row['name']:32} {str(row['decision']):13} exit {row['exit']!s:4} {row['wall_s']:6.1f}s  {notes}"
                     + ("  [debatable]" if row["debatable"] else ""))
    sick = [r for r in rows if r["kind"] == "sick"]
    well = [r for r in rows if r["kind"] == "healthy"]
    count = lambda some, test: sum(1 for r in some if test(r))  # noqa: E731
    lines += ["",
              f"sick     {len(sick):3}  wrong GO {count(sick, lambda r: r['exit'] == 0)} (of these debatable: {count(sick, lambda r: r['exit'] == 0 and r['debatable'])};"
              f" GO but named: {count(sick, lambda r: r['exit'] == 0 and r['named'])})   expected decision {count(sick, lambda r: r['expected'])}   named {count(sick, lambda r: r['named'])}"
              f"   refused {count(sick, lambda r: r['exit'] == 2)}   unable/timeout {count(sick, lambda r: r['exit'] not in (0, 1, 2, 3))}",
              f"healthy  {len(well):3}  GO {count(well, lambda r: r['exit'] == 0)}   NO-GO {count(well, lambda r: r['exit'] == 1)}   INCONCLUSIVE {count(well, lambda r: r['exit'] == 3)}"
              f"   with a veto {count(well, lambda r: bool(r['vetoes']))}   refused {count(well, lambda r: r['exit'] == 2)}   unable/timeout {count(well, lambda r: r['exit'] not in (0, 1, 2, 3))}",
              f"exit code and result.json disagree: {count(rows, lambda r: not r['exit_matches_decision'])}"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=Path("work"), help="folder where the cases are written and run")
    parser.add_argument("--validator", help="the executable, or a script that stands for it")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME")
    parser.add_argument("--kind", choices=["sick", "healthy"])
    parser.add_argument("--without-tag", nargs="+", default=[], metavar="TAG", help="leave out cases with a tag: torchrun, tokens_per_step")
    parser.add_argument("--tokens-key", default="trainer", choices=["trainer", "trainer.metrics", "defaults", "phase", "top", "none"])
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    parser.add_argument("--out", type=Path, default=Path("results.json"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--materialise-only", action="store_true")
    args = parser.parse_args()
    unknown = set(args.only or []) - set(gen.CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    names = [n for n in (args.only or gen.CASES) if args.kind in (None, gen.CASES[n][0])]
    labels = {n: gen.make(n)["label"] for n in names}
    names = [n for n in names if not set(labels[n]["tags"]) & set(args.without_tag)]
    if args.list:
        print(json.dumps([labels[n] for n in names], indent=1))
        return 0
    root = args.cases.resolve()
    root.mkdir(parents=True, exist_ok=True)
    if args.materialise_only:
        for n in names:
            materialise(n, root, args.tokens_key)
        return 0
    if not args.validator:
        parser.error("--validator is needed")
    validator = shutil.which(args.validator) or str(Path(args.validator).absolute())
    rows = []

    def one(n):
        row = run_case(n, root, validator, args.tokens_key, args.limit)
        rows.append(row)
        print(f"{len(rows):3}/{len(names)} {n}: {row['decision']} (exit {row['exit']}) {row['wall_s']} s", file=sys.stderr, flush=True)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, names))
    for n in [r["name"] for r in rows if r["exit"] == 4]:          # a lock of the machine: once more, alone
        rows[:] = [r for r in rows if r["name"] != n]
        one(n)
    args.out.write_text(json.dumps({"seed": gen.SEED, "cases": sorted(rows, key=lambda r: r["name"])}, indent=1) + "\n")
    print(table(rows))
    bad = [r for r in rows if not r["expected"]]
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
