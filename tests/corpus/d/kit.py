"""What the cases share: random draws, the head of every trainer, and how a case becomes a folder."""
import json
import random
import re
import string
import textwrap
from pathlib import Path
from types import SimpleNamespace

SEED = 4242
draws = random.Random(SEED)
CASES = []

HEAD = '''"""$doc"""
import json, math, os, random, sys, time
from pathlib import Path


def option(name, default=None):
    for place, word in enumerate(sys.argv):
        if word == "--" + name:
            return sys.argv[place + 1]
        if word.startswith(f"--{name}="):
            return word.split("=", 1)[1]
    return default


STEPS = int($steps_from)
OUT = Path($out_from)
rng = random.Random($seed)
START = mark = time.monotonic()
due = 0.0


def work(seconds):
    """Wait until this piece of work is due; what has passed since the last piece."""
    global due, mark
    due += seconds
    time.sleep(max(0.0, START + due - time.monotonic()))
    now = time.monotonic()
    took, mark = now - mark, now
    return took


def fall(k, low=$low, top=$top, noise=0.01):
    return low + (top - low) / (1 + 0.06 * k) + rng.gauss(0, noise * (top - low))


def say(*words, **more):
    print(*words, **{"flush": True, **more})


def table(name, header=""):
    OUT.mkdir(parents=True, exist_ok=True)
    file = open(OUT / name, "a", buffering=1, encoding="utf-8")
    file.write(header + "\\n" if header else "")
    return file


def row(file, *cells):
    file.write(",".join(f"{c:.6g}" if isinstance(c, float) else str(c) for c in cells) + "\\n")


'''

BEAT = '''
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
series = table("training.csv", "step,loss,lr,toks_per_s") if RANK == 0 else None
beat = table(f"heartbeat_rank{RANK}.jsonl")
def pulse(step, msg, **more):
    now = time.time()
    iso = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    beat.write(json.dumps({"ts": now, "iso": iso, "pid": os.getpid(), "rank": RANK, "step": step, "msg": msg, **more}) + "\\n")
pulse(0, "boot", world_size=WORLD, device="cpu")
'''


EACH = """
for k in range(1, STEPS + 1):
    took = work($dt)"""


def series(name, *more):
    """The head of a program that writes a table of these columns, one row a step."""
    return f'series = table("{name}", "{",".join(["step,loss,lr,toks_per_s", *more])}")' + EACH


def draw(seconds=(7.0, 9.5), step=(0.032, 0.062), **more):
    """Sizes of one case: step time, steps, tokens of a step, losses; `rate` and `span` follow from them."""
    dt = round(draws.uniform(*step), 4)
    n = max(12, round(draws.uniform(*seconds) / dt))
    top = round(draws.uniform(2.5, 11.0), 2)
    p = dict(dt=dt, n=n, tok=draws.randrange(300, 90000, 4), top=top, low=round(top * draws.uniform(0.2, 0.55), 2),
             seed=draws.randrange(10**6), w=draws.randrange(7, 16), lr=round(draws.uniform(1e-4, 3e-3), 5))
    p.update(more)
    return SimpleNamespace(**p, rate=p["tok"] / p["dt"])


def least(p, share, rate=None):
    """A bound on the rate at this share of the true (or of the nominal) one."""
    return f"toks_per_s.mean >= {(rate or p.rate) * share:.0f} tok/s"


def fill(text, p, **more):
    return string.Template(textwrap.dedent(text).strip("\n") + "\n").substitute({**vars(p), **more})


def clearance(p, span, accept):
    """By how many percent the true rate and the true time of a step clear their bounds, the lesser of them."""
    true = (p.n - 1) * p.dt if span is None else span
    texts = [one for one in accept if isinstance(one, str)]
    rates = [100 * (p.tok * (p.n - 1) / true / float(m[1]) - 1) for t in texts if (m := re.match(r"toks_per_s\.mean >= ([\d.]+) tok/s", t))]
    times = [100 * (1 - p.dt / float(m[1])) for t in texts if (m := re.match(r"step_time_s\.mean <= ([\d.]+) s", t))]
    return min(rates + times, default=None)


def add(kind, name, what, p, body, *, accept=(), expect="", codes="", crit="", because, stdout=None, csv=None, metrics=None,
        dist=None, near=False, tps=False, args=None, nproc=0, trainer=None, defaults=None, phase=None, phases=None, top=None,
        rows=None, rc=0, span=None, has=None, first=None, files=None, env=None, plain=False):
    """One case. `rows`, `rc`, `span` (seconds from first to last row), `has` (in the output) are what check.py asserts."""
    stem = draws.choice(["run", "fit", "main", "pretrain", "learn", "job", "launch", "loop"])
    script = "train.py" if draws.random() < 0.6 or files else f"{stem}_{draws.randrange(10, 99)}.py"
    if plain or draws.random() < 0.45:
        command, given = [script, "{steps}", "{out}"], {}
        where = {"steps_from": "sys.argv[1]", "out_from": "sys.argv[2]"}
    else:
        s, o = draws.choice(["max-steps", "iters", "num_updates", "total-steps", "n-iter"]), draws.choice(["out", "logdir", "save", "work_dir"])
        command, given = [script], {s: "{steps}", o: "{out}"}
        where = {"steps_from": f'option("{s}")', "out_from": f'option("{o}")'}
    given |= args or {}
    seen = {k: v for k, v in {"csv": csv, "stdout": stdout, **(metrics or {})}.items() if v}
    book = {"schema": 1, "name": name, **(top or {})}
    book["trainer"] = {"command": command, **({"args": given} if given else {}), **({"tokens_per_step": p.tok} if tps else {}),
                       "metrics": seen, **(trainer or {})}
    book["defaults"] = {"nproc": nproc, "timeout": draws.choice(["90s", "2m", "100s"]), "warmup_steps": p.w, **(defaults or {})}
    names = ["baseline", "pilot", "trial", "rehearsal", "short_run", "fitness"]
    book["phases"] = phases or [{"id": draws.choice(names), "kind": "train", "steps": p.n, **({"accept": list(accept)} if accept else {}), **(phase or {})}]
    allowed = expect.split() or (["GO", "INCONCLUSIVE"] if near else ["GO"])
    lead = next((one for one in phases or () if one["kind"] != "command"), {})
    tried = {**next(iter(lead.get("arms", {}).values()), {}).get("args", {}), **{k[5:]: v[0] for k, v in lead.get("over", {}).items() if k[:5] == "args."},
             **lead.get("args", {}), **((phase or {}).get("args") or {}), **((trainer or {}).get("trial_args") or {})}
    if kind == "healthy":
        dist = clearance(p, span, lead.get("accept") or accept)
        assert dist is None or dist >= (4 if near else 10), (name, dist)
    label = {"name": name, "kind": kind, "what": what, "expect": allowed, "codes": codes.split(), "criteria": crit.split(),
             "bound_distance_pct": None if dist is None else round(dist, 1), "near": near, "because": because,
             "check": {"argv": command + [x for k, v in (given | tried).items() for x in (f"--{k}", str(v))], "steps": p.n, "stdout": stdout, "csv": csv,
                       "rows": p.n if rows is None else rows, "rc": rc, "span": (p.n - 1) * p.dt if span is None else span, "has": has,
                       "nproc": nproc, "env": env or {}}}
    code = fill(HEAD + textwrap.dedent(body).strip("\n"), p, doc=what.replace("\\", "/"), **where)
    CASES.append((label, book, {script: code, **{k: fill(v, p) for k, v in (files or {}).items()}}))


def emit(value, depth=0):
    """YAML: mappings as blocks, what is short in flow style, texts quoted as JSON does."""
    pad = "  " * depth
    lines = []
    for key, item in value.items():
        flow = json.dumps(item, ensure_ascii=False)
        if isinstance(item, dict) and (len(flow) > 70 or depth == 0):
            lines += [f"{pad}{key}:", emit(item, depth + 1)]
        elif isinstance(item, list) and key == "phases":
            lines.append(f"{pad}{key}:")
            for one in item:
                text = emit(one, depth + 2)
                lines.append(pad + "  - " + text[len(pad) + 4:])
        elif isinstance(item, list) and key == "accept":
            lines += [f"{pad}{key}:"] + [f"{pad}  - {json.dumps(one, ensure_ascii=False)}" for one in item]
        else:
            lines.append(f"{pad}{key}: {flow}")
    return "\n".join(lines)


def write_case(here, label, book, files):
    here.mkdir(parents=True, exist_ok=True)
    (here / "runbook.yaml").write_text(emit(book) + "\n", encoding="utf-8")
    (here / "label.json").write_text(json.dumps(label, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, text in files.items():
        (here / name).write_text(text, encoding="utf-8")


def write(folder):
    for label, book, files in CASES:
        write_case(Path(folder) / label["name"], label, book, files)
