"""Writes every case as a folder (train.py, runbook.yaml, label.json), always the same ones: `python generate.py DIR`."""

import json
import math
import random
import re
import sys
import textwrap
from pathlib import Path

SEED = 90210

SKELETON = '''\
import json, math, os, random, sys, time

N, OUT = int(sys.argv[1]), (sys.argv + [""])[2]
TPS, D, L0, RUN = {tps}, {d}, {l0}, {seed}
rt, rng = random.Random(RUN), random.Random(RUN + 1)


def say(*parts, **more):
    print(*parts, flush=True, **more)


def opt(name, default):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def hms(s):
    return f"{{int(s) // 3600}}:{{int(s) // 60 % 60:02d}}:{{int(s) % 60:02d}}"


def until(t):
    time.sleep(max(0.0, t - time.perf_counter()))


{head}
start = before = ends = time.perf_counter()
due = 0.0
for k in range(1, N + 1):
    dt = {time}
    due += dt
    until(start + due)
    now = time.perf_counter()
    own, gap, el, before = now - ends, now - before, now - start, now  # own: without pauses; gap: since the last step's end
    loss = {loss}
{emit}
    rest = {rest}
    if rest:
        due += rest
{during}
        until(start + due)
        ends = time.perf_counter()
    else:
        ends = now
{tail}
'''

# A trainer of several plain processes, each with a heartbeat; rank 0 writes the table.
RANKS = '''\
import json, os, random, sys, time

N, OUT, WORLD, TPS, D, L0 = int(sys.argv[1]), sys.argv[2], {world}, {tps}, {d}, {l0}
os.makedirs(OUT, exist_ok=True)


def work(r, start, rng):
    path = f"{{OUT}}/heartbeat_rank{{r}}.jsonl"
    with open(path, "w", buffering=1) as log, open(os.devnull if r else f"{{OUT}}/training.csv", "w", buffering=1) as table:
        def beat(msg, step, **more):
            now = time.time()
            iso = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
            log.write(json.dumps(dict(ts=now, iso=iso, pid=os.getpid(), rank=r, step=step, msg=msg, **more)) + "\\n")
        beat("boot", 0, world_size=WORLD, device="cpu")
        {wait}
        beat("loader_ready", 0)
        table.write("step,loss,lr,toks_per_s,step_time_s\\n")
        begin = before = max(start, time.perf_counter())
        for k in range(1, N + 1):
            time.sleep(max(0.0, begin + k * D - time.perf_counter()))
            now = time.perf_counter()
            took, before = now - before, now
            loss = L0 * (.3 + .7 / (1 + k / 40)) + rng.gauss(0, .01 * L0)
            own = D * {own} * rng.uniform(.97, 1.03)
            {change}
            beat("progress", k, loss=loss, lr=3e-4, step_time_s=took, compute_time_s=own, toks_per_s=TPS / took)
            table.write(f"{{k}},{{loss:.5f}},0.0003,{{TPS / took:.1f}},{{took:.5f}}\\n")
        beat("done", N, status="done", why="last step done")


start, children = time.perf_counter() + .2, []
for r in range(1, WORLD):
    child = os.fork()
    if not child:
        work(r, start, random.Random({seed} + r))
        os._exit(0)
    children.append(child)
work(0, start, random.Random({seed}))
for child in children:
    os.waitpid(child, 0)
print("all workers joined", flush=True)
'''

CASES = []
IDS = "speed proof gate bench trial pace learn main look_at_it first_look short_run acceptance ten_seconds measure".split()


def number(x):
    return f"{x:.0f}" if x >= 1000 else f"{x:.5g}"


def schedule(env, time, rest, n, warm):
    """Mean seconds of a step from the end of warm-up to the last step, pauses between them included."""
    total = 0.0
    for k in range(1, n + 1):
        env["k"] = k
        step, pause = eval(time, env), eval(rest, env)
        total += (step if k > warm else 0) + (pause if warm <= k < n else 0)
    return total / (n - warm)


def case(kind, name, what, because, *, emit="", pat=None, csv=None, expect="GO", codes="", crit="", near=False, secs=(8, 10),
         d=(30, 70), tps=None, declare=True, warm=None, time="D * rt.uniform(.97, 1.03)", rest="0", during="pass", prep="",
         loss="L0 * (.25 + .75 / (1 + k / 30)) + rng.gauss(0, .012 * L0)", head="", tail="", accept=None, more=None,
         phases=None, defaults=None, trainer=None, metrics=None, top=None, code=None, files=None, check=None, args=()):
    draw = random.Random(f"{SEED}:{name}")
    dt = round(draw.uniform(*d) / 1000, 4)
    n = round(draw.uniform(*secs) / dt)
    warm = draw.randint(8, 14) if warm is None else warm
    tps = draw.choice([8, 12, 16, 24, 32, 48]) * draw.choice([64, 96, 128, 200, 256, 512]) if tps is None else tps
    seed, l0 = draw.randrange(10**6), round(draw.uniform(2.2, 9.5), 3)
    if code:
        script, step_s = code.format(**{**dict(tps=tps, d=dt, l0=l0, seed=seed, n=n), **dict(args)}), dt
    else:
        fields = dict(tps=tps, d=dt, l0=l0, seed=seed, head="\n".join(filter(None, [prep, head])), time=time, loss=loss, rest=rest,
                      emit=textwrap.indent(textwrap.dedent(emit).strip(), "    "), tail=tail,
                      during=textwrap.indent(textwrap.dedent(during).strip(), "        "))
        script = SKELETON.format(**fields)
        env = dict(rt=random.Random(seed), N=n, D=dt, math=math, random=random)
        exec(prep, env)
        step_s = schedule(env, time, rest, n, warm)
    rate, far = tps / step_s, []

    def fill(value):
        if isinstance(value, dict):
            return {key: fill(v) for key, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [fill(v) for v in value]
        if not isinstance(value, str):
            return value

        def bound(m):
            factor = float(m[2])
            far.append(abs(1 / factor - 1) * 100)
            return number({"r": rate, "s": step_s, "S": 1 / step_s}[m[1]] * factor)
        return re.sub(r"@([rsS])([\d.]+)", bound, value)
    if accept is None:
        accept = ["toks_per_s.mean >= @r0.78 tok/s", "loss.last < loss.first"]
    reads = dict(stdout=pat) if pat else {}
    reads |= {"csv": csv} if csv else {}
    reads |= metrics or {}
    only_prints = set(reads) == {"stdout"}
    phase = dict(id=draw.choice(IDS), kind="train", steps=n, **({"accept": list(accept)} if accept else {})) | (more or {})
    book = dict(schema=1, name=name.replace("_", "-"), **(top or {}))
    book["trainer"] = dict(command=["train.py", "{steps}"] + ([] if only_prints else ["{out}"]), metrics=reads,
                           **({"tokens_per_step": tps} if declare else {}), **(trainer or {}))
    book["defaults"] = {**dict(nproc=0, timeout="100s", warmup_steps=warm), **(defaults or {})}
    book["phases"] = phases(phase) if phases else [phase]
    book = fill(book)
    split = str.split
    label = dict(name=name, kind=kind, what=what, expect=split(expect), codes=split(codes), criteria=split(crit),
                 bound_distance_pct=round(min(far), 1) if far else None, near=near, because=because,
                 check={**dict(steps=n, pattern=pat, csv=csv, step_s=step_s, rows=n, rc=0), **(check or {})})
    assert not any(c["label"]["name"] == name for c in CASES), name
    CASES.append(dict(label=label, book=book, script=script, files=files or {}))


def scalar(value):
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*|\d+(s|m|MiB)", value)
    if plain and value.lower() not in ("true", "false", "null", "yes", "no", "on", "off", "nan", "inf"):
        return value
    if isinstance(value, str) and "'" not in value and "\n" not in value:
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)


def flow(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return scalar(value)


def yaml(book):
    lines = []
    for key, value in book.items():
        if key == "phases":
            lines.append("phases:")
            for phase in value:
                inner = []
                for name, v in phase.items():
                    if name == "accept":
                        inner += ["accept:"] + [f"  - {flow(item)}" for item in v]
                    else:
                        inner.append(f"{name}: {flow(v)}")
                lines += [("  - " if i == 0 else "    ") + text for i, text in enumerate(inner)]
        elif isinstance(value, dict):
            lines += [f"{key}:"] + [f"  {scalar(k)}: {flow(v)}" for k, v in value.items()]
        else:
            lines.append(f"{key}: {flow(value)}")
    return "\n".join(lines) + "\n"


def collect():
    import healthy
    import sick
    healthy.add()
    sick.add()
    return CASES


def write_case(one, place):
    place.mkdir(parents=True, exist_ok=True)
    (place / "train.py").write_text(one["script"])
    (place / "runbook.yaml").write_text(yaml(one["book"]))
    (place / "label.json").write_text(json.dumps(one["label"], indent=1, ensure_ascii=False) + "\n")
    for name, text in one["files"].items():
        (place / name).write_text(text)


def write(folder):
    for one in collect():
        write_case(one, folder / one["label"]["name"])


if __name__ == "__main__":
    sys.modules["generate"] = sys.modules["__main__"]
    write(Path(sys.argv[1]))
    lines = [f"{c['label']['kind']:8}{c['label']['name']:34}{'|'.join(c['label']['expect']):22}"
             f"{','.join(c['label']['codes'] + c['label']['criteria']) or '-'}: {c['label']['what']}" for c in CASES]
    (Path(__file__).parent / "LABELS.txt").write_text("\n".join(lines) + "\n")
    print(len(CASES), "cases,", sum(c["label"]["kind"] == "sick" for c in CASES), "sick")
