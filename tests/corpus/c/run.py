"""Runs the cases through a validator: python run.py --cases DIR --validator EXECUTABLE --out results.json"""
import argparse, concurrent.futures as cf, json, os, re, shlex, shutil, signal, subprocess, sys, time
from pathlib import Path
import generate

WORDS = {0: "GO", 1: "NO-GO", 2: "REFUSED", 3: "INCONCLUSIVE", 4: "MACHINE", 130: "INTERRUPTED"}
LIMIT_S = 150

def stop(process):
    """SIGTERM to the validator we started, which stops its own runs; SIGKILL to its group 50 s later."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(50)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

def find_result(folder):
    found = sorted(folder.glob("reports/*/result.json")) + sorted(folder.glob("reports/result.json"))
    if not found:
        return {}
    try:
        return json.loads(found[-1].read_text())
    except ValueError:
        return {}

def one(name, cases, executable):
    folder = Path(cases).resolve() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    label = generate.materialise(folder, name)
    env = dict(os.environ)
    for var in ("RUNTIME_DIR", "CACHE_HOME", "CONFIG_HOME", "DATA_HOME", "STATE_HOME"):
        xdg = folder / "xdg" / var.lower()
        xdg.mkdir(parents=True, mode=0o700)
        env["XDG_" + var] = str(xdg)
    started = time.monotonic()
    with open(folder / "validator.out", "wb") as log:
        process = subprocess.Popen([*executable, "run", "runbook.yaml", "--out", "reports"], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            rc = process.wait(LIMIT_S)
            got = WORDS.get(rc, f"EXIT {rc}")
        except subprocess.TimeoutExpired:
            stop(process)
            got = "TIMEOUT"
    result = find_result(folder)
    findings = [(f.get("code"), f.get("severity")) for f in result.get("findings", [])]
    failing = []
    for phase in result.get("phases", []):
        for c in phase.get("criteria", []):
            if str(c.get("status", "")).upper() not in ("PASS", "SKIPPED"):
                failing.append(f"{c.get('id', '')} {c.get('text', '')}")
    text = str(result.get("why", "")) + " " + (folder / "validator.out").read_text(errors="replace")
    right = got in label["decisions"]
    # an info is no cause, unless nothing else speaks of the label's code
    by_code = [c for c, s in findings if c in label["codes"] and s != "info"]
    by_criterion = [f for f in failing if any(re.search(p, f, re.I) for p in label["criteria"])]
    by_why = [p for p in label["why_patterns"] if re.search(p, text, re.I)]
    named = bool(by_code or by_criterion or by_why or got == "REFUSED")
    mark = ("ok" if label["kind"] == "healthy" or named else "??") if right else "BAD"
    return dict(label, got=got, mark=mark, named=named if label["kind"] == "sick" else None, seconds=round(time.monotonic() - started, 1), findings=findings,
                vetoes=[c for c, s in findings if s == "veto"], failing=failing, result_why=result.get("why"), tail="" if right and result else text[-1500:])

def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--cases", help="folder in which each case gets a folder of its own (emptied first)")
    p.add_argument("--validator", help="executable, with arguments if quoted")
    p.add_argument("--jobs", type=int, default=3)
    p.add_argument("--only", nargs="+", metavar="NAME")
    p.add_argument("--kind", choices=["sick", "healthy"])
    p.add_argument("--list", action="store_true")
    p.add_argument("--out", default="results.json")
    a = p.parse_args()
    chosen = [(n, l) for n, _, l in generate.CASES if (not a.only or n in a.only) and (not a.kind or l["kind"] == a.kind)]
    if a.only and (unknown := set(a.only) - {n for n, _, _ in generate.CASES}):
        p.error(f"no such case: {', '.join(sorted(unknown))}")
    if a.list:
        for n, l in chosen:
            print(f"{n:24s} {l['class']:28s} {'/'.join(l['decisions']):26s} {','.join(l['codes'] + l['criteria']):44s} {l['why']}")
        return 0
    if not a.cases or not a.validator:
        p.error("--cases and --validator are needed")
    executable = shlex.split(a.validator)
    if os.path.exists(executable[0]):
        executable[0] = os.path.abspath(executable[0])
    results = []
    with cf.ThreadPoolExecutor(a.jobs) as pool:
        for future in cf.as_completed([pool.submit(one, n, a.cases, executable) for n, _ in chosen]):
            r = future.result()
            results.append(r)
            print(f"{r['mark']:3s} {r['name']:24s} {r['got']:12s} of {'/'.join(r['decisions']):22s} {r['seconds']:6.1f} s  {' '.join(f'{c}({str(s)[:1]})' for c, s in r['findings'] if s != 'info')}"
                  + (f"  | {'; '.join(r['failing'])[:150]}" if r["failing"] else ""), flush=True)
            Path(a.out).write_text(json.dumps(results, indent=1))
    sick = [r for r in results if r["kind"] == "sick"]
    well = [r for r in results if r["kind"] == "healthy"]
    if sick:
        print(f"sick {len(sick)}: wrong GO {sum(r['got'] == 'GO' and 'GO' not in r['decisions'] for r in sick)}, expected decision {sum(r['mark'] != 'BAD' for r in sick)}, named {sum(r['named'] for r in sick)}, expected and named {sum(r['mark'] == 'ok' for r in sick)}")
    if well:
        count = lambda word: sum(r["got"] == word for r in well)
        rest = len(well) - count("GO") - count("NO-GO") - count("INCONCLUSIVE")
        print(f"healthy {len(well)}: GO {count('GO')}, NO-GO {count('NO-GO')}, INCONCLUSIVE {count('INCONCLUSIVE')}, other {rest}, with a veto {sum(bool(r['vetoes']) for r in well)}, as labelled {sum(r['mark'] == 'ok' for r in well)}")
    return 0

if __name__ == "__main__":
    sys.exit(main())
