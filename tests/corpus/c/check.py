"""Runs trainers standalone (no validator) and checks loss criteria, pace, CPU time, exit codes. Needs PyYAML."""
import concurrent.futures as cf, csv, json, os, re, subprocess, sys, tempfile, time, threading
from pathlib import Path
import yaml, generate
NUM = r"[-+]?(?:\d[\d,_]*\.?\d*(?:[eE][-+]?\d+)?|nan|inf|Infinity|NaN)k?"
SKIP = {}
def one(name):
    d = Path(tempfile.mkdtemp(prefix=name + "-")); label = generate.materialise(d, name)
    y = yaml.safe_load((d / "runbook.yaml").read_text()); p = y["phases"][-1]; t = y["trainer"]; out = d / "out"; steps = p["steps"]
    fill = lambda v: str(v).replace("{steps}", str(steps)).replace("{out}", str(out))
    cmd = [sys.executable] + [fill(c) for c in t["command"]]
    for k, v in t.get("args", {}).items(): cmd += [f"--{k}", fill(v)]
    nproc = y["defaults"]["nproc"]; env = dict(os.environ, PYTHONUNBUFFERED="1"); env.pop("RANK", None)
    t0 = time.monotonic(); ps = []
    for r in range(max(1, nproc)):
        e = dict(env, RANK=str(r), WORLD_SIZE=str(nproc)) if nproc else env
        ps.append(subprocess.Popen(cmd, cwd=d, env=e, stdout=open(d / f"o{r}", "w"), stderr=open(d / f"e{r}", "w"), start_new_session=True))
    stamps = []; cpu = [0.0]
    limit = 25
    src = None
    rc = None
    while rc is None:
        for p_ in ps:
            pid, st, ru = os.wait4(p_.pid, os.WNOHANG)
            if pid: cpu[0] += ru.ru_utime + ru.ru_stime; p_.returncode = os.waitstatus_to_exitcode(st)
        if all(p_.returncode is not None for p_ in ps): rc = [p_.returncode for p_ in ps]
        elif time.monotonic() - t0 > limit:
            for p_ in ps:
                if p_.returncode is None: os.killpg(p_.pid, 9)
            limit = 1e9
            time.sleep(.1)
        else: time.sleep(.1)
    wall = time.monotonic() - t0
    m = t["metrics"]; losses = []; rates = []; times = []; steps_ = []
    if "csv" in m and (out / m["csv"]).exists():
        rows = list(csv.DictReader(open(out / m["csv"], newline="")))
        for r in rows:
            for k in ("loss", "train_loss"):
                if k in r: losses.append(float(r[k]))
            for k, f in (("toks_per_s", 1), ("tokens_per_sec", 1), ("ktoks_per_s", 1e3)):
                if k in r: rates.append(float(r[k]) * f)
    elif "stdout" in m:
        pat = m["stdout"].replace("{row}", "")
        seen = set()
        def g(x):
            n = x[1]
            kind = r"[\d\-]+[ T][\d:,.]+" if n == "timestamp" else NUM
            if n in seen: return kind
            seen.add(n); return f"(?P<{n}>{kind})"
        rx = re.compile(re.sub(r"\{(\w+)\}", g, pat))
        for f in ("o0", "e0"):
            for line in (d / f).read_text().split("\n"):
                h = rx.search(re.sub(r"\x1b\[[\d;]*m", "", line))
                if h:
                    gd = h.groupdict()
                    fl = lambda v: float(v.replace(",", "").replace("k", "")) * (1000 if v.endswith("k") else 1)
                    if gd.get("loss"): losses.append(fl(gd["loss"]))
                    for k, s in (("toks_per_s", 1), ("ktoks_per_s", 1e3), ("toks_per_s_per_rank", 1)):
                        if gd.get(k): rates.append(fl(gd[k]) * s)
            if losses: break
    med = lambda v: sorted(v)[len(v) // 2] if v else float("nan")
    # harmonic mean of claimed rates in the second three quarters against the truth
    v = rates[len(rates) // 4:]
    hm = len(v) / sum(1 / x for x in v) if v and all(x > 0 for x in v) else float("nan")
    bad = []
    acc = (p.get("accept") or [])
    for a in acc:
        a = a if isinstance(a, str) else a["expr"]
        h = re.match(r"loss\.last (<=|<) (?:([\d.]+) \* )?(loss\.first|-?[\d.]+)$", a)
        if h and losses:
            b = (float(h[2]) if h[2] else 1) * (losses[0] if h[3] == "loss.first" else float(h[3]))
            if not losses[-1] < b: bad.append(f"{a}: {losses[0]:.4f}->{losses[-1]:.4f}")
    return (f"{'!!' if bad and name[0] == 'h' or (name[0] == 'h' and rc not in ([0], [0, 0])) or not losses or cpu[0] / wall > .1 else '  '} {name:24s} rc={rc} wall={wall:5.1f} cpu={100*cpu[0]/wall:4.1f}% rows={len(losses)}/{steps} loss {losses[0] if losses else None}->{losses[-1] if losses else None} "
            f"claimed/true={hm/label['true_rate']:.3f} {bad} " + ((d / "e0").read_text()[-200:].replace("\n", "|") if rc != [0] and rc != [0, 0] else "")), wall, d
names = [n for n, _, _ in generate.CASES if not sys.argv[1:] or any(a in n for a in sys.argv[1:])]
with cf.ThreadPoolExecutor(3) as ex:
    walls = []
    for line, w, d in ex.map(one, names):
        print(line, flush=True); walls.append(w)
print("median wall", sorted(walls)[len(walls) // 2], "max", max(walls))
