"""Makes the 84 cases: python generate.py DIR. Everything random comes from SEED."""
import json, math, os, random, re, sys, time
from pathlib import Path
from parts import TASKS, LOSS_OK, CURVE, METER, W, S

SEED = 20261122
CASES = []
HEAD = '''"""{doc}"""
import argparse, json, math, os, random, signal, sys, time
{args}
TOKENS = {tokens}
FIRST, EVERY, PER_EPOCH, SEED, BATCH = {first}, {every}, 50, {seed}, {batch}
LR = {lr}

def g(k):
    return random.Random(k * 7919 + {seed}).gauss(0, 1)
{sched}
{lr_at}
{due}
'''
ARGS = {
    "flags": ('_p = argparse.ArgumentParser()\n_p.add_argument("--steps", type=int)\n_p.add_argument("--out", default=".")\n{more}A = _p.parse_args()\nSTEPS, OUT = A.steps, A.out', None, '{steps: "{steps}", out: "{out}"%s}'),
    "equals": ('_p = argparse.ArgumentParser()\n_p.add_argument("--max_iters", type=int)\n_p.add_argument("--out_dir", default=".")\n{more}A, _ = _p.parse_known_args()\nSTEPS, OUT = A.max_iters, A.out_dir', '["--max_iters={steps}", "--out_dir={out}"]', None),
    "positional": ('{more}STEPS, OUT = int(sys.argv[1]), sys.argv[2]', '["{steps}", "{out}"]', None),
}
def q(s): return "'" + s.replace("'", "''") + "'"

def case(name, kind, klass, why, *, task="regression", shape="plain", writer="csv4", D=None, wall=None, steps=None, sched="return D * (1 + 0.01 * g(k))",
         pause="return 0", accept=None, phase="train", warm=15, settled=None, decisions=None, codes=(), crit=(), whyre=(), distort="", incident="", claim="",
         every=1, due=None, first=1, lr_at="return LR", lr=0.5, learn=None, prelude="", postlude="", beat=False, env=None, args=None, more="", argyaml="", batch=1,
         tokens=None, declare=None, phase_yaml="", defaults_yaml="", phases=None, watchdog="{first_step: 30s, stall: 15s, interval: 1s}", timeout="90s",
         hint="", raw=None, files=None, metrics=None, nproc=0, near=False, writer_edit=None, learned=True, trainer_yaml="", minute=""):
    rng = random.Random(f"{SEED}-{name}")
    D = D or round(rng.uniform(0.032, 0.055), 4)
    steps = steps or int((wall or rng.uniform(8.5, 12)) / D)
    seq, samples = rng.choice([64, 128, 256, 512]), rng.choice([4, 8, 16, 32])
    tok = tokens or f"{seq} * {samples}"
    seed = rng.randrange(1, 9999)
    tokv = eval(tok, {"A": type("A", (), {"batch_size": 8, "seq_len": 128})})
    schedule = f"D, N = {D}, {steps}\ndef seconds(k):\n    {sched}\ndef pause(k):\n    {pause}\n"
    ns = dict(math=math, random=random, g=lambda k: random.Random(k * 7919 + seed).gauss(0, 1))
    exec(schedule, ns)
    w = settled or warm
    ks = range(first + w, first + steps)
    t = sum(ns["seconds"](k) for k in ks) + sum(ns["pause"](k) or 0 for k in range(first + w - 1, first + steps - 1))
    rate, stept = len(ks) * tokv / t, sum(ns["seconds"](k) for k in ks) / len(ks)
    margins = {}
    def bound(m):
        f = float(m[2]); v = (rate if m[1] == "R" else stept) * f
        margins[f"@{m[1]}{m[2]}"] = round(abs(f - 1) * 100, 1)
        return f"{v:.4g}" if v < 1000 else f"{v:.0f}"
    sub = lambda s: re.sub(r"@([RT])([\d.]+)", bound, s)
    style = args or rng.choice(["flags", "equals", "positional"])
    if more: style = "flags"
    wcode, wyaml, _, need = W[writer]
    if style == "flags" and raw is None and wyaml.startswith("stdout"): pass
    if raw is None:
        text = HEAD.format(doc=hint or f"{task} trainer", args=ARGS[style][0].format(more=more), tokens=tok, first=first, every=every, seed=seed, batch=batch, lr=lr,
                           sched="\n" + schedule, lr_at=f"def lr_at(k):\n    {lr_at}", due=f"def row_due(k, meter):\n    {due or 'return k % EVERY == 0 or k in (FIRST, FIRST + STEPS - 1)'}")
        text += (learn or TASKS[task]).replace("{seed}", str(seed)) + METER.replace("#CLAIM", claim or "pass") + (writer_edit(wcode) if writer_edit else wcode)
        if env is not None:
            text += ENV % json.dumps(env)
        if beat: text += BEAT
        text += prelude
        body = S[shape]
        for key, val in (("DISTORT", distort), ("INCIDENT", incident)):
            def put(m):
                return "".join(m[1] + line + "\n" for line in val.split("\n")) if val else ""
            body = re.sub(r"^( *)#" + key + r"\n", put, body, flags=re.M)
        text += body + postlude
    else:
        text = raw.replace("%SEED%", str(seed)).replace("%D%", str(D)).replace("%TOKENS%", str(tokv))
    if accept is None:
        f = round(rng.uniform(0.73, 0.86), 3)
        accept = [f"toks_per_s.mean >= @R{f} tok/s"] + ([LOSS_OK[task]] if learn is None and learned else [])
    cmd = "[train.py" + (", " + ARGS[style][1][1:] if ARGS[style][1] else "]")
    y = [f"schema: 1", f"name: {name.replace('_', '-')}", "hardware: {gpus: 0}", "trainer:", f"  command: {cmd}"]
    if ARGS[style][1] is None: y.append("  args: " + ARGS[style][2] % argyaml)
    if declare is not None or need: y.append(f"  tokens_per_step: {declare or tokv}")
    y += ["  metrics:"] + ["    " + l for l in ([metrics] if metrics else [wyaml])]
    if beat: y.append('    heartbeat: "heartbeat_rank{rank}.jsonl"')
    if env is not None: y.append("    env: env.json")
    if trainer_yaml: y.append(trainer_yaml)
    y.append(f"defaults: {{nproc: {nproc}, timeout: {timeout}, warmup_steps: {warm}, watchdog: {watchdog}{defaults_yaml}}}")
    y.append("phases:")
    if phases is None:
        y += ["  - id: " + {"train": "baseline", "soak": "soak"}[phase], f"    kind: {phase}", f"    steps: {steps}"]
        if phase_yaml: y += ["    " + l for l in phase_yaml.split("\n")]
        if accept: y += ["    accept:"] + ["      - " + (sub(a) if a.startswith("{") else q(sub(a))) for a in accept]
    else:
        y += sub(phases.replace("%STEPS%", str(steps))).split("\n")
    label = dict(name=name, kind=kind, **{"class": klass}, why=why, decisions=decisions or ["GO"], codes=list(codes), criteria=list(crit), why_patterns=list(whyre),
                 true_rate=round(rate, 1), rate_bound_distance_pct=margins, nominal_s=round(t + sum(ns["seconds"](k) for k in range(first, first + w)), 1))
    if kind == "healthy":
        for d in margins.values(): assert (4 <= d <= 9) if near else d >= 12, (name, margins)
    fs = {"train.py": text, "runbook.yaml": "\n".join(y) + "\n"}
    for k, v in (files or {}).items(): fs[k] = v
    CASES.append((name, fs, label))

ENV = '''
_open = open_log
def open_log():
    os.makedirs(OUT, exist_ok=True)
    requested, effective = (lambda r, e: (r, e))(*%s)
    for d in (requested, effective):
        for key, v in d.items():
            if isinstance(v, str) and v.startswith("A."): d[key] = getattr(A, v[2:])
    doc = dict(schema_version=1, time=time.strftime("%%Y-%%m-%%dT%%H:%%M:%%SZ", time.gmtime()), python=sys.version.split()[0], requested=requested, effective=effective,
               world_size=1, device="cpu")
    with open(os.path.join(OUT, "env.json.tmp"), "w") as f:
        json.dump(doc, f); f.flush(); os.fsync(f.fileno())
    os.replace(os.path.join(OUT, "env.json.tmp"), os.path.join(OUT, "env.json"))
    _open()
'''
BEAT = '''
_log, _open2, _close = log, open_log, close_log
SHIFT = [0.0]
def beat(msg, step, **more):
    now = time.time() + SHIFT[0]
    iso = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    HB.write(json.dumps(dict(ts=round(now, 4), iso=iso, pid=os.getpid(), rank=0, step=step, msg=msg, **more)) + "\\n"); HB.flush()
def open_log():
    global HB
    os.makedirs(OUT, exist_ok=True)
    HB = open(os.path.join(OUT, "heartbeat_rank0.jsonl"), "w")
    beat("boot", 0, world_size=1, device="cpu"); beat("loader_ready", 0)
    _open2()
def log(m):
    _log(m); beat("progress", m["step"], loss=m["loss"], lr=m["lr"], toks_per_s=m["rate"], step_time_s=m["mean"])
    HB_LAST[0] = m["step"]
def close_log():
    _close(); beat("done", HB_LAST[0], status="done", why="")
HB_LAST = [0]
'''
ASKS = [r"asks?\b.{0,30}\bnothing", r"nothing.{0,50}could fail", "asks only", "best moment", r"\bcarr(y|ies)\b", "decides nothing", "no required criteri", "holds? of any", "always (true|holds)"]
INC, NOGO, GO = "INCONCLUSIVE", "NO-GO", "GO"
def sick(name, klass, why, decisions, **kw): case("s_" + name, "sick", klass, why, decisions=decisions, **kw)
def healthy(name, klass, why, decisions=(GO,), **kw): case("h_" + name, "healthy", klass, why, decisions=list(decisions), **kw)
RATE = r"toks_per_s\.mean"
curve = lambda floor=1.2, span=2.5, tau=60, noise=0.02: CURVE.replace("{floor}", str(floor)).replace("{span}", str(span)).replace("{tau}", str(tau)).replace("{noise}", str(noise))

def make_sick():
    sick("soak_drop", "rate drop", "the rate falls by 35 % at three fifths of a soak, which fails soak.sustained_rate", [NOGO], phase="soak", task="bigram", shape="class", writer="csvfull", beat=True,
         sched="return D * (1 + 0.01 * g(k)) * (1.54 if k > 0.6 * N else 1)", accept=["loss.last < loss.first", "toks_per_s.mean >= @R0.5"], codes=["rate-shift", "no-steady-state"], crit=["sustained"])
    sick("train_drop", "rate drop", "the second half is 45 % slower and the mean misses the bound by 17 % (the interval over two levels may be wide)", [NOGO, INC], task="softmax", shape="callbacks", writer="nanochat",
         sched="return D * (1 + 0.012 * g(k)) * (1.8 if k > N / 2 else 1)", accept=["toks_per_s.mean >= @R1.2", "loss.last < loss.first"], codes=["rate-shift", "no-steady-state"], crit=[RATE])
    sick("drop_late", "rate drop", "after a confirmed slow-down of 50 % a PASS needs the last level to clear the bound, and it misses it by a quarter", [NOGO, INC], task="kmeans", shape="epochs", writer="llmc",
         sched="return D * (1 + 0.01 * g(k)) * (2 if k > 0.68 * N else 1)", accept=["toks_per_s.mean >= @R0.86"], codes=["rate-shift", "no-steady-state"], crit=[RATE])
    sick("speedup_late", "late speed-up", "for 65 % of the run the rate is below the bound, a late speed-up is no warm-up", [NOGO, INC], task="contrastive", shape="generator", writer="tokseen",
         sched="return D * (1 + 0.01 * g(k)) * (1 if k < 0.65 * N else 0.55)", accept=["toks_per_s.mean >= @R1.2 tok/s"], codes=["rate-shift", "no-steady-state"], crit=[RATE])
    sick("soak_ramp", "gradual slow-down", "steps get 60 % longer from start to end of a soak", [NOGO], phase="soak", task="factors", shape="threads", writer="csviter", beat=True,
         sched="return D * (1 + 0.01 * g(k)) * (1 + 0.6 * k / N)", accept=["loss.last < loss.first", "{expr: abs(rate.drift_pct) <= 8 %, why: the long run lasts for days}"], codes=["rate-shift", "no-steady-state"], crit=["sustained", "drift_pct"])
    sick("hidden_validation", "hidden pauses", "1.4 s of validation each 40 steps are in neither figure of the CSV; the true rate misses the bound by a quarter", [NOGO], task="bigram", shape="generator", writer="csvfull", D=0.035, wall=8,
         pause="return 1.4 * (k % 35 == 0)", claim='m["rate"] = m["n"] * TOKENS / m["work"]; self.paid = getattr(self, "paid", 0) + m["work"]; m["total"] = self.paid', accept=["toks_per_s.mean >= @R1.33", "loss.last < loss.first"], codes=["unit-mismatch", "periodic-stall"], crit=[RATE])
    sick("loader_bound", "loader-bound", "60 % of a step waits for data, and the rate is half of what is asked", [NOGO], task="denoise", shape="threads", sched="return D * (1 + 0.02 * g(k))",
         writer="csv4", writer_edit=lambda c: c.replace("lr,toks_per_s", "lr,toks_per_s,step_time_s,dt_fetch_s").replace("{m['rate']:.1f}", "{m['rate']:.1f},{m['mean']:.5f},{0.6*m['mean']:.5f}"),
         accept=["toks_per_s.mean >= @R1.9", "dt_fetch_s.mean <= 0.2 * step_time_s.mean"], codes=["loader-bound"], crit=[RATE, "dt_fetch_s"])
    sick("ms_are_cs", "wrong claim of time", "times are printed ten times too small, the declared tokens make ten times the rate", [NOGO, INC], task="regression", shape="class", writer="nanogpt",
         claim='m["own"] /= 10', accept=["toks_per_s.mean >= @R3", "loss.last < loss.first"], codes=["unit-mismatch"], crit=[RATE])
    sick("tokens_x8", "wrong claim of tokens", "eight times the tokens of a step are claimed, and tokens_per_step is declared", [NOGO, INC], task="softmax", shape="plain", writer="logfmt",
         claim='m["rate"] *= 8', declare=None, accept=["toks_per_s.mean >= @R2.5"], codes=["unit-mismatch"], crit=[RATE], trainer_yaml="  # tokens_per_step below")
    sick("time_x3", "wrong claim of time", "step times are claimed three times too long (a clock of ticks), the other direction", [NOGO, INC], task="density", shape="epochs", writer="csvglobal",
         claim='m["mean"] *= 3', accept=["{expr: step_time_s.mean <= @T4, why: budget of a step}", "loss.last < loss.first"], codes=["unit-mismatch"])
    sick("tokens_of_effective", "wrong claim of tokens", "the rate is four times what the effective config can give in the time that passes", [NOGO, INC], task="kmeans", shape="callbacks", writer="csvfull",
         tokens="128 * 8", claim='m["rate"] *= 4; m["tokens"] *= 4', env=[dict(seq_len=128, batch_size=8, accum=1)] * 2, accept=["toks_per_s.mean >= @R3"], codes=["unit-mismatch"], crit=[RATE])
    sick("nan_to_the_end", "NaN", "the loss is nan from 55 % on", [NOGO], task="bigram", shape="plain", writer="csvsps", distort='if k > 0.55 * N: loss = float("nan")',
         codes=["nan-loss"], crit=["loss", "finite"], accept=["toks_per_s.mean >= @R0.8", "loss.last < loss.first"])
    sick("inf_printed", "inf", "the loss grows to inf and is printed as +Infinity", [NOGO, INC], task="regression", shape="generator", writer="jsonl",
         distort='if k > 0.7 * N: loss = float("inf")', codes=["nan-loss", "diverging"], crit=["loss", "finite"], accept=["toks_per_s.mean >= @R0.8", "loss.last < loss.first"])
    sick("zero_loss", "zero loss", "the logger prints 0.0 for the last rows after a loss above 0.5", [INC, NOGO], shape="class", writer="hf", learn=curve(0.9, 2.0), distort="if k > 0.8 * N: loss = 0.0",
         codes=["zero-loss"], accept=["toks_per_s.mean >= @R0.75", "loss.last < loss.first"])
    sick("divergence", "divergence", "the loss climbs from 1.3 to 3 in the last third, and the user asks for the rate alone", [INC, NOGO], shape="callbacks", writer="torchtitan", learn=curve(1.2, 2.5, 30),
         distort="loss += max(0.0, k / N - 0.66) * 6", codes=["diverging"], accept=["toks_per_s.mean >= @R0.8"])
    sick("exploding_norm", "exploding gradients", "the gradient norm ends at a thousand times its usual value and the loss rises by half", [INC, NOGO], shape="epochs", writer="megatron", learn=curve(1.4, 2, 30),
         distort="r = max(0.0, k / N - 0.75) * 4; norm *= 10 ** (4 * r); loss *= 1 + 1.2 * r", codes=["diverging"], accept=["toks_per_s.mean >= @R0.8", "loss.last < loss.first"])
    sick("no_learning", "no learning", "the loss stays at ln 27 although a fall by a tenth is required", [NOGO], task="bigram", lr=0.0, lr_at="return 3e-4", shape="threads", writer="ktok", codes=["random-data-floor", "zero-grad"], crit=["loss.last"],
         accept=["toks_per_s.mean >= @R0.8", "loss.last <= 0.9 * loss.first"])
    sick("plateau", "plateau, loss above its bound", "the loss settles at 2.4 and 1.9 is required", [NOGO], shape="plain", writer="keras", learn=curve(2.4, 1.5, 25, 0.015), accept=["toks_per_s.mean >= @R0.8", "{expr: loss.last <= 1.9, why: the last model had it here}"], crit=["loss.last"])
    sick("periodic_stall", "periodic stall", "every 20th step takes six times as long; the rate's bound is cleared, and the finding is due", [GO, INC], task="softmax", shape="class", writer="csvfull", sched="return D * (1 + 0.01 * g(k)) * (6 if k % 20 == 7 else 1)",
         accept=["toks_per_s.mean >= @R0.6"], codes=["periodic-stall"])
    sick("intermittent_stall", "intermittent stall", "one step in 18, at random, takes five times as long, with the finding due", [GO, INC], task="denoise", shape="generator", writer="nanochat", sched="return D * (1 + 0.01 * g(k)) * (5 if random.Random(k * 31 + 5).random() < 0.055 else 1)",
         accept=["toks_per_s.mean >= @R0.55"], codes=["periodic-stall"])
    ph = """  - id: batches
    kind: sweep
    steps: %STEPS%
    repeats: 1
    over: {args.batch-size: [8, 32]}
    accept: ['loss.last < loss.first', 'toks_per_s.mean >= @R0.5']
    choose: {highest: toks_per_s.mean, adopt: true}"""
    sick("sweep_batch", "vacuous sweep", "arms of batch size 8 and 32 leave the same losses digit for digit: the batch never reached the data", [INC, NOGO], task="regression", shape="class", writer="csv4",
         more='_p.add_argument("--batch-size", type=int, default=8)\n', argyaml=", batch-size: 8", tokens="64 * A.batch_size", batch=2, D=0.04, steps=120, phases=ph, codes=["vacuous-sweep", "config-ignored"])
    ph = """  - id: rates
    kind: ab
    steps: %STEPS%
    repeats: 1
    arms:
      low: {args: {lr: 0.1}}
      high: {args: {lr: 0.4}}
    accept: ['loss.last < loss.first', 'toks_per_s.mean >= @R0.6']
    choose: {lowest: loss.last, prefer: high}"""
    sick("ab_lr", "vacuous A/B", "two learning rates, and losses that are equal digit for digit", [INC, NOGO], task="factors", shape="plain", writer="csvfull",
         more='_p.add_argument("--lr", type=float, default=0.1)\n', argyaml=", lr: 0.1", D=0.04, steps=120, phases=ph, codes=["vacuous-sweep", "config-ignored"])
    sick("config_ignored", "config ignored", "seq_len 2048 was requested and 128 is effective", [INC, NOGO], task="bigram", shape="callbacks", writer="csv4", tokens="128 * 8", more='_p.add_argument("--seq-len", type=int, default=2048)\n', argyaml=", seq-len: 2048",
         env=[dict(seq_len=2048, batch_size=8, accum=1), dict(seq_len=128, batch_size=8, accum=1)], codes=["config-ignored"], crit=["effective", "config"])
    sick("early_exit", "early exit", "the trainer ends with 0 after 55 % of the steps", [NOGO], task="factors", shape="generator", writer="interval", incident='if k > 0.55 * N:\n    print("early stopping: no improvement", flush=True)\n    sys.exit(0)',
         codes=["crashed", "missing-evidence"], crit=["step", r"\bend", "exit"], accept=["toks_per_s.mean >= @R0.7", "loss.last < loss.first"])
    sick("exception_rank", "exception", "rank 1 raises half-way, the launcher prefixes its traceback and ends with 1", [NOGO], task="contrastive", shape="class", writer="torchtitan",
         incident='if k == N // 2:\n    for line in ("Traceback (most recent call last):", "  File \\"/app/pretrain.py\\", line 311, in train_step", "    loss.backward()", "RuntimeError: The size of tensor a (512) must match the size of tensor b (511) at non-singleton dimension 1"):\n        sys.stderr.write("[rank1]: " + line + "\\n")\n    sys.stderr.write("E1122 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 4711) of binary: /usr/bin/python3\\n")\n    sys.exit(1)',
         codes=["crashed"], crit=["exit", "step", r"\bend", r"\brc\b"], accept=["toks_per_s.mean >= @R0.7"])
    sick("hang_at_start", "hang before first step", "no step comes within the declared 6 s, and nothing is active", [NOGO], task="regression", shape="plain", writer="tqdm", postlude="", prelude='\nprint("loading checkpoint shards: 0%", flush=True)\ntime.sleep(300)\n',
         watchdog="{first_step: 6s, stall: 5s, interval: 1s}", timeout="40s", codes=["hang", "over-budget"], crit=["step", r"\bend", "exit", "stall", r"\brc\b"], accept=["toks_per_s.mean >= @R0.7"])
    sick("hang_midway", "hang midway", "nothing is written after 60 % of the steps, without activity", [NOGO], task="softmax", shape="worker", writer="csvfull", beat=True, incident="if k == int(N * 0.6):\n    time.sleep(300)",
         watchdog="{first_step: 20s, stall: 5s, interval: 1s}", timeout="50s", codes=["hang", "over-budget"], crit=["step", r"\bend", "exit", "stall", r"\brc\b"], wall=9)
    sick("sigkill", "SIGKILL", "the process is killed by signal 9 at 70 %", [NOGO, INC], task="policy", shape="epochs", writer="logging", incident="if k == int(N * 0.7):\n    os.kill(os.getpid(), signal.SIGKILL)", codes=["crashed", "oom"],
         crit=["exit", "step", r"\bend", r"\brc\b"], accept=["toks_per_s.mean >= @R0.7"])
    sick("oom", "OOM", "CUDA out of memory at a third of the steps, exit 1", [NOGO], task="bigram", shape="callbacks", writer="megatron",
         incident='if k == N // 3:\n    raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 512.00 MiB is free.")', codes=["oom"], crit=["exit", "step", r"\bend", r"\brc\b"])
    sick("memory_growth", "memory growth", "each step keeps half a MiB: 500 MiB per thousand steps where 64 are allowed", [NOGO], task="denoise", shape="plain", writer="csv4", prelude='\nKEPT = []\n',
         distort='KEPT.append(bytearray(b"x") * 524288)', phase="soak", writer_edit=lambda c: c.replace("lr,toks_per_s", "lr,toks_per_s,host_mem_mib").replace("{m['rate']:.1f}", "{m['rate']:.1f},{int(open('/proc/self/statm').read().split()[1]) / 256:.2f}"),
         accept=["toks_per_s.mean >= @R0.7", "memory.growth_mib_per_1k_steps <= 64 MiB"], codes=["memory-growth"], crit=["growth"])
    sick("rate_short", "rate below bound", "the true rate is 23 % below the bound", [NOGO], task="policy", shape="threads", writer="lightningbar", accept=["toks_per_s.mean >= @R1.3"], crit=[RATE])
    sick("metric_never", "metric never written", "a required criterion names GPU memory, which this trainer never writes", [INC, NOGO], task="gan", shape="plain", writer="csviter",
         accept=["toks_per_s.mean >= @R0.7", "gpu_mem_alloc_mib.max <= 70000 MiB"], crit=["gpu_mem"], codes=["missing-evidence", "not-judged"])
    sick("steps_back", "steps going back", "at 60 % the step numbers start again at 1 in the same CSV", [INC, NOGO], task="kmeans", shape="class", writer="csvfull", claim='m["step"] = k if k <= 0.6 * N else k - int(0.6 * N)', codes=["mixed-runs"], crit=["step"])
    sick("two_writers", "two runs in one file", "a second process appends its own rows to the same CSV", [INC, NOGO], raw=TWO, codes=["mixed-runs", "foreign-results", "damaged-evidence"], crit=["step"], args="flags", D=0.05, steps=200, accept=["toks_per_s.mean >= @R0.5", "loss.last < loss.first"])
    sick("stale_files", "stale files", "nothing is trained: last month's files are copied with their times", [INC, NOGO], raw=STALE, files={"previous/training.csv": "step,loss,lr,toks_per_s,step_time_s\n" + "".join(f"{k},{1 + 2 / k ** .5 + 0.001 * (k * 37 % 11):.4f},0.001,{51200 + k * 7919 % 613}.2,{0.04 + k * 7919 % 97 * 1e-6:.6f}\n" for k in range(1, 241))},
         args="flags", steps=240, D=0.04, codes=["foreign-results", "unit-mismatch"], accept=["toks_per_s.mean >= 40000", "loss.last < loss.first"])
    sick("wrong_steps", "wrong number of steps", "the trainer counts micro-batches, so a quarter of the optimizer steps is done, with exit 0", [NOGO], task="softmax", shape="epochs", writer="kilo", args="positional", D=0.05, steps=400,
         prelude="\nSTEPS //= 4  # gradient accumulation\n", accept=["loss.last < loss.first", "toks_per_s.mean >= 1"], codes=["missing-evidence", "crashed"], crit=["step", r"\bend"])
    sick("asks_nothing", "asks for nothing", "a required phase without a criterion carries no GO", [INC], task="density", shape="class", writer="csv4", accept=[], whyre=ASKS, wall=6)
    sick("only_max", "only .max", "the best moment of a rate carries no GO", [INC], task="denoise", shape="plain", writer="csvfull", accept=["toks_per_s.max >= @R0.5"], whyre=ASKS, wall=7)
    sick("only_optional", "only optional", "nothing is required", [INC], task="gan", shape="callbacks", writer="logfmt", accept=["{expr: toks_per_s.mean >= @R0.5, required: false}", "{expr: loss.last < 5, required: false}"], whyre=ASKS, wall=7)
    sick("tautology", "tautology", "loss.max >= loss.min holds of any run (a runbook refused as wrong, exit 2, is right as well)", [INC, "REFUSED"], task="softmax", shape="generator", writer="hf", accept=["loss.max >= loss.min"], whyre=ASKS, wall=7)
    sick("nan_rank1", "NaN in one rank", "rank 1 writes a loss of NaN in its heartbeat while rank 0's row shows its own", [INC, NOGO], raw=RANKS.replace("%NAN%", '"nan" if RANK == 1 and k > 0.5 * STEPS else loss').replace("%C%", "0.8").replace("%POOR%", "False"), nproc=2, args="flags", D=0.05, steps=180,
         beat=True, codes=["nan-loss"], crit=["loss", "finite"], accept=["toks_per_s.mean >= @R0.7", "loss.last < loss.first"])
    sick("slow_rank", "slow rank", "rank 1 computes for 60 % longer than rank 0 in each step; the rate is cleared, the finding is due", [GO, INC], raw=RANKS.replace("%NAN%", "loss").replace("%C%", "(0.5 if RANK == 0 else 0.8)").replace("%POOR%", "False"), nproc=2, args="flags", D=0.05, steps=180,
         beat=True, codes=["straggler"], accept=["toks_per_s.mean >= @R0.7", "loss.last < loss.first"])

TWO = '''"""Trainer whose restart script did not wait for the first one to end."""
import argparse, os, subprocess, sys, time
p = argparse.ArgumentParser(); p.add_argument("--steps", type=int); p.add_argument("--out"); p.add_argument("--second", action="store_true")
a = p.parse_args()
os.makedirs(a.out, exist_ok=True)
f = open(os.path.join(a.out, "training.csv"), "a", buffering=1)
other = None
if not a.second:
    f.write("step,loss,lr,toks_per_s\\n")
due = last = time.perf_counter()
for k in range(1, a.steps + 1):
    if k == 60 and not a.second:
        other = subprocess.Popen([sys.executable, __file__, "--steps", "80", "--out", a.out, "--second"])
    due += %D%
    time.sleep(max(0, due - time.perf_counter()))
    now = time.perf_counter()
    f.write(f"{k},{1.0 + 3 / k ** 0.5 + a.second * 0.3:.5f},0.01,{%TOKENS% / (now - last):.1f}\\n"); last = now
if other:
    other.wait()
'''
STALE = '''"""Skips training where a cached result exists."""
import argparse, os, shutil, time
p = argparse.ArgumentParser(); p.add_argument("--steps", type=int); p.add_argument("--out"); a = p.parse_args()
here = os.path.dirname(os.path.abspath(__file__))
os.makedirs(a.out, exist_ok=True)
print("found cached results, skipping training", flush=True)
time.sleep(2)
shutil.copy2(os.path.join(here, "previous", "training.csv"), os.path.join(a.out, "training.csv"))
time.sleep(1)
'''
RANKS = '''"""Two ranks that pace each other by the clock; rank 0 writes the table, each its heartbeat."""
import argparse, json, os, random, time
p = argparse.ArgumentParser(); p.add_argument("--steps", type=int); p.add_argument("--out"); a = p.parse_args()
RANK, WORLD, STEPS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), a.steps
os.makedirs(a.out, exist_ok=True)
hb = open(os.path.join(a.out, f"heartbeat_rank{RANK}.jsonl"), "w", buffering=1)
def beat(msg, step, **more):
    now = time.time()
    hb.write(json.dumps(dict(ts=now, iso=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)), pid=os.getpid(), rank=RANK, step=step, msg=msg, **more)) + "\\n")
beat("boot", 0, world_size=WORLD, device="cpu")
# both wait until both are there
open(os.path.join(a.out, f"ready{RANK}"), "w").close()
while not all(os.path.exists(os.path.join(a.out, f"ready{r}")) for r in range(WORLD)):
    time.sleep(0.05)
if not (%POOR% and RANK): beat("loader_ready", 0)
table = open(os.path.join(a.out, "training.csv"), "w", buffering=1) if RANK == 0 else None
if table: table.write("step,loss,lr,toks_per_s,step_time_s\\n")
rng = random.Random(%SEED% + RANK)
due = last = time.perf_counter()
for k in range(1, STEPS + 1):
    start = time.perf_counter()
    time.sleep(max(0.0, due + %D% * %C% * (1 + rng.gauss(0, 0.01)) - start))   # own work
    own = time.perf_counter() - start
    due += %D%
    time.sleep(max(0.0, due - time.perf_counter()))          # waits for the others
    loss = 1.1 + 2.2 / (1 + k / 20) + rng.gauss(0, 0.01)
    now = time.perf_counter(); dt = now - last; last = now
    if table: table.write(f"{k},{loss:.5f},0.001,{%TOKENS% / dt:.1f},{dt:.5f}\\n")
    if not (%POOR% and RANK): beat("progress", k, loss=%NAN%, lr=0.001, toks_per_s=%TOKENS% / dt, step_time_s=dt, compute_time_s=own)
beat("done", STEPS, status="done", why="")
'''

def make_healthy():
    H = healthy
    H("deepspeed_plain", "plain", "a steady run, one line of DeepSpeed's timer a step, seconds between date prefixes", task="softmax", shape="plain", writer="deepspeed", accept=["step_time_s.mean <= @T1.25", "loss.last <= 0.7 * loss.first"])
    H("compile_pause", "compile pause", "the first step takes 3 s (compilation), within the declared warm-up", task="regression", shape="class", writer="nanogpt", sched="return 3.0 if k == 1 else D * (1 + 0.01 * g(k))", wall=9)
    H("ramp", "warm-up", "steps start 2.5 times as long and settle within a fifth of the run", task="bigram", shape="callbacks", writer="csvfull", tokens="128 * 8", env=[dict(seq_len=128, batch_size=8, accum=1)] * 2, sched="return D * (1 + 0.01 * g(k)) * (1 + 1.5 * math.exp(-k / 11))", settled=50, D=0.038, steps=270, warm=20, accept=["toks_per_s.mean >= @R0.8 tok/s", "loss.last <= 0.9 * loss.first"])
    H("warm_level", "warm-up", "the first fifth runs at half the rate, which is warm-up within a quarter of the run", task="kmeans", shape="epochs", writer="llmc", sched="return D * (1 + 0.01 * g(k)) * (2 if k <= 50 else 1)", settled=50, warm=10, D=0.036, steps=250, accept=["toks_per_s.mean >= @R0.78", "loss.last < 0.5 * loss.first"])
    H("eval_pauses", "evaluation pauses", "0.8 s of evaluation each 40 steps, and the bound is cleared with them", task="denoise", shape="generator", writer="nanochat", pause="return 0.8 * (k % 40 == 0)", D=0.035, steps=240, defaults_yaml=", pause_every: 40")
    H("checkpoint_pauses", "checkpoint pauses", "checkpoints each 30 steps; the table's rate holds them, its step time leaves them out, as by contract", task="bigram", shape="threads", writer="csvfull", beat=True, pause="return 0.5 * (k % 30 == 0)", D=0.04, steps=220, accept=["toks_per_s.mean >= @R0.8 tok/s", "loss.last < loss.first"])
    H("spike", "spike", "the loss spikes to three times its value for four steps and recovers", shape="class", writer="torchtitan", learn=curve(1.3, 3, 40), distort="if int(0.6 * N) <= k < int(0.6 * N) + 4: loss *= 3; norm *= 8", accept=["toks_per_s.mean >= @R0.8", "loss.last < 0.6 * loss.first"])
    H("curriculum", "curriculum", "the loss rises by a sixth at each of three stages and falls below the old level after each", shape="callbacks", writer="megatron", learn=curve(1.0, 3.2, 70, 0.012), distort="loss += 0.35 * sum(math.exp(-(k - int(N * f)) / 12) for f in (0.25, 0.5, 0.7) if k >= int(N * f))", accept=["toks_per_s.mean >= @R0.82", "loss.last < 0.5 * loss.first"])
    H("warm_restarts", "cyclic learning rate", "the learning rate restarts four times, the loss waves with it and ends low", shape="epochs", writer="keras", learn=curve(1.2, 2.4, 60), lr_at="return 0.01 * (1 + math.cos(math.pi * (k % 50) / 50)) / 2", distort="loss += 0.15 * math.exp(-(k % 50) / 8)", steps=249, D=0.042, accept=["toks_per_s.mean >= @R0.8", "loss.last < 0.6 * loss.first"])
    H("negative_loss", "negative loss", "a log-density whose negative falls through zero to -1.5", task="density", shape="plain", writer="logfmt")
    H("policy", "rising reward", "the loss is the negated reward, which rises", task="policy", shape="class", writer="jsonl", lr=2.0)
    H("near_zero", "loss near zero", "the loss falls to 0.0003 and stays above zero", shape="generator", writer="csv4", learn=curve(3e-4, 0.5, 18, 1e-5), accept=["toks_per_s.mean >= @R0.8", "loss.last <= 0.01"])
    H("through_ln_v", "ln V", "the loss passes ln 256 and ln 128 on its way from 6.9 to 4.4 (its vocabulary has 1,000 words)", shape="worker", writer="tokseen", learn=curve(4.3, 2.6, 80, 0.02), accept=["toks_per_s.mean >= @R0.76", "loss.last < 0.8 * loss.first"])
    H("norm_printed_zero", "zero gradient norm", "the norm is printed as 0.0000 while the loss falls: not measured", task="softmax", shape="plain", writer="csvglobal", distort="norm = 0.0", accept=["step_time_s.mean <= @T1.3", "loss.last <= 0.7 * loss.first"])
    H("val_loss_nan", "NaN in an unjudged column", "val_loss is nan on steps without validation", task="bigram", shape="class", writer="csv4", writer_edit=lambda c: c.replace("lr,toks_per_s", "lr,toks_per_s,val_loss").replace("{m['rate']:.1f}", "{m['rate']:.1f},{m['loss']*1.02 if k_of(m) % 25 == 0 else float('nan'):.4f}"), prelude="\ndef k_of(m): return m['step']\n")
    H("text_columns", "text, empty cells, unicode", "text columns with quotes and umlauts, empty cells", task="factors", shape="threads", writer="csv4", writer_edit=lambda c: c.replace("lr,toks_per_s", "lr,toks_per_s,stage,comment,bleu").replace("{m['rate']:.1f}", "{m['rate']:.1f},train,\\\"Größe „klein“, läuft → gut\\\",").replace("training.csv\"), \"w\", buffering=1", "training.csv\"), \"w\", buffering=1, encoding=\"utf-8\""))
    H("crlf", "CRLF, no final newline", "Windows line ends, quoted cells, and the last row without an end of line", task="regression", shape="plain", writer="csvcrlf", writer_edit=lambda c: c.replace("note\\r\\n", "note").replace('write(f"{m', 'write(f"\\r\\n{m').replace('steady\\"\\r\\n"', 'steady\\""'))
    H("moe_gates", "columns of other meaning", "a mixture of experts writes gate_max_gate 0.97 and gate_entropy_mean 0.05, which are its router's", task="contrastive", shape="callbacks", writer="csv4", writer_edit=lambda c: c.replace("lr,toks_per_s", "lr,toks_per_s,gate_max_gate,gate_entropy_mean,gate_collapse_frac,epoch").replace("{m['rate']:.1f}", "{m['rate']:.1f},{0.97 - 0.01 * (m['step'] % 3):.3f},{0.05 + 0.002 * (m['step'] % 5):.4f},0.81,{m['done'] // 50}"))
    H("odd_even", "alternation", "odd steps take 0.7, even ones 1.3 of the mean (two loaders)", task="kmeans", shape="plain", writer="csvfull", sched="return D * (1 + 0.01 * g(k)) * (0.7 if k % 2 else 1.3)", accept=["toks_per_s.mean >= @R0.75", "loss.last < 0.5 * loss.first"])
    H("every_tenth", "every Nth step slower by design", "each tenth step refreshes a target network and takes 80 % longer, which the runbook accepts", task="policy", shape="epochs", writer="csvsps", lr=2.0, sched="return D * (1 + 0.01 * g(k)) * (1.8 if k % 10 == 0 else 1)", phase_yaml="accept_findings: [periodic-stall]", accept=["toks_per_s.mean >= @R0.78", "loss.last < loss.first"])
    H("settling", "thermal settling", "a soak whose steps get 1.5 % longer over the first half, healthy by the documents", phase="soak", task="bigram", shape="class", writer="csvfull", beat=True, tokens="256 * 4 * 2", env=[dict(seq_len=256, batch_size=4, accum=2)] * 2, sched="return D * (1 + 0.006 * g(k)) * (1 + 0.015 * min(1, 2 * k / N))", accept=["toks_per_s.mean >= @R0.82", "loss.last < loss.first"], wall=12)
    H("autocorrelated", "autocorrelated noise", "step times wander by 6 % with a memory of ten steps", task="denoise", shape="generator", writer="hf", sched="return D * (1 + 0.06 * sum(g(k - i) * 0.85 ** i for i in range(25)) * 0.53)", accept=["toks_per_s.mean >= @R0.7", "loss.last <= 0.5 * loss.first"])
    H("heavy_tails", "heavy-tailed noise", "step times with Student's t noise of three degrees of freedom", task="gan", shape="threads", writer="csviter", sched="r = random.Random(k * 31 + 7); return D * max(0.5, 1 + 0.05 * r.gauss(0, 1) / math.sqrt(sum(r.gauss(0, 1) ** 2 for _ in range(3)) / 3))", accept=["toks_per_s.mean >= @R0.65", "loss.last <= 2.5"])
    H("few_rows", "few rows", "a line each 10 steps with the time since the line before: 25 rows, bound 40 % away", task="softmax", shape="class", writer="interval", every=10, D=0.042, steps=250, due="return k % EVERY == 0", accept=["toks_per_s.mean >= @R0.6", "loss.last <= 0.8 * loss.first"])
    H("own_time_each_5", "one step's time each N steps", "a line each 5 steps with the time of that one step", task="contrastive", shape="plain", writer="nanogpt", every=5, D=0.036, steps=300, due="return k % EVERY == 0", accept=["toks_per_s.mean >= @R0.7", "loss.last < 0.9 * loss.first"])
    H("rows_by_time", "rows by time", "a line whenever 0.3 s have passed, running time printed", task="kmeans", shape="generator", writer="elapsed", D=0.033, steps=360, due="return meter.now - meter.row >= 0.3 or k in (FIRST, FIRST + STEPS - 1)", accept=["toks_per_s.mean >= @R0.65", "loss.last < 0.5 * loss.first"], sched="return D * (1 + 0.02 * g(k))")
    H("power_of_two", "power-of-two rows", "rows at steps 1, 2, 4, … 256; the bound is 55 % away and each reading clears it (with nine rows the documents leave room for INCONCLUSIVE)", (GO, INC), task="factors", shape="epochs", writer="csvfull", D=0.042, steps=256, due="return k & (k - 1) == 0", warm=10, accept=["toks_per_s.mean >= @R0.45", "loss.last < loss.first"])
    H("resumed", "resumed steps", "step numbers go on from 500, as of a resumed run", task="density", shape="callbacks", writer="csvfull", first=501, accept=["toks_per_s.mean >= @R0.8", "loss.last < loss.first"])
    H("unequal_beats", "unequal heartbeats", "rank 1 writes boot and done alone, rank 0 everything", raw=RANKS.replace("%NAN%", "loss").replace("%C%", "0.8").replace("%POOR%", "True"), nproc=2, args="flags", D=0.05, steps=190, beat=True, accept=["toks_per_s.mean >= @R0.75", "loss.last < loss.first"])
    H("repeats", "repeats", "four repeats of a short run with one seed: equal losses by right", task="bigram", shape="plain", writer="csv4", D=0.03, steps=100, phase_yaml="repeats: 4", accept=["toks_per_s.mean >= @R0.8", "loss.last < loss.first"])
    ph = """  - id: workers
    kind: sweep
    steps: %STEPS%
    repeats: 2
    over: {env.LOADER_WORKERS: [1, 4]}
    accept: ['toks_per_s.mean >= @R0.7', 'loss.last < loss.first']
    choose: {highest: toks_per_s.mean}"""
    H("sweep_equal", "sweep without a difference", "loader workers change nothing and losses may be equal by right; an undecided sweep keeps the setting", task="softmax", shape="class", writer="csvfull", D=0.028, steps=110, phases=ph, accept=None)
    ph = """  - id: batch
    kind: ab
    steps: %STEPS%
    repeats: 2
    arms:
      eight: {args: {batch-size: 8}}
      sixteen: {args: {batch-size: 16}}
    accept: ['loss.last < loss.first', 'toks_per_s.mean >= @R0.7']
    choose: {highest: toks_per_s.mean, prefer: sixteen}"""
    H("ab_batch", "A/B with a difference", "batch 16 trains twice the tokens a second of batch 8, with losses of its own", task="regression", shape="plain", writer="csv4", D=0.028, steps=110, more='_p.add_argument("--batch-size", type=int, default=8)\n', argyaml=", batch-size: 8", tokens="64 * A.batch_size",
      learn=TASKS["regression"].replace("learn = make_regression(SEED, BATCH)", "learn = make_regression(SEED, A.batch_size // 8)"), env=[dict(seq_len=64, batch_size="A.batch_size", accum=1)] * 2, phases=ph)
    H("clock_set_back", "wall clock set back", "the wall clock of the heartbeats goes back by an hour half-way, the rates are measured monotonically", task="denoise", shape="callbacks", writer="csvfull", beat=True, incident="if k == N // 2: SHIFT[0] -= 3600", accept=["toks_per_s.mean >= @R0.7", "loss.last <= 0.5 * loss.first"])
    H("os_exit", "os._exit(0), helper processes", "a helper process ends first, then the trainer leaves by os._exit(0)", task="kmeans", shape="worker", writer="ktok", postlude="\nsys.stdout.flush()\nos._exit(0)\n")
    H("long_lines", "long lines, progress bar", "a bar with carriage returns on stderr and dumps of 20 kB lines on stdout", task="softmax", shape="generator", writer="tqdm", incident='if k % 40 == 0: print("sample: " + "lorem ipsum " * 1700)')
    H("stderr_warnings", "warnings on stderr", "harmless warnings that speak of NaN, overflow and memory", task="contrastive", shape="threads", writer="running", incident='if k % 37 == 5: sys.stderr.write("/app/model.py:88: RuntimeWarning: overflow encountered in exp; nan values are masked\\nUserWarning: pinned memory disabled to avoid running out of memory\\n"); sys.stderr.flush()')
    ph = """  - id: look
    kind: train
    steps: 80
    observe: true
  - id: baseline
    kind: train
    steps: %STEPS%
    accept: ['toks_per_s.mean >= @R0.8 tok/s', 'loss.last < loss.first']"""
    H("observe", "observe phase", "a first phase asks for nothing on purpose, the second one decides", task="factors", shape="class", writer="csvlightning", D=0.038, steps=210, phases=ph)
    H("accepted_zero", "accepted finding", "a hinge loss reaches exactly 0 at the end, and the runbook accepts zero-loss", shape="callbacks", writer="csv4", learn=curve(-0.02, 1.4, 25, 0.004), distort="loss = max(0.0, loss)", phase_yaml="accept_findings: [zero-loss]", accept=["toks_per_s.mean >= @R0.8", "loss.last <= 0.05"])
    H("near_lightning", "near bound", "bound 8 % below a quiet rate", (GO, INC), near=True, task="bigram", shape="epochs", writer="csvlightning", accept=["toks_per_s.mean >= @R0.92", "loss.last < loss.first"], wall=10)
    H("near_bar", "near bound", "bound 6 % below the rate of a Lightning bar", (GO, INC), near=True, task="factors", shape="plain", writer="lightningbar", accept=["toks_per_s.mean >= @R0.94"], wall=9)
    H("near_improving", "near bound, slight improvement", "steps get 2 % shorter over the run, bound 7 % below", (GO, INC), near=True, task="density", shape="class", writer="nanochat", sched="return D * (1 + 0.01 * g(k)) * (1 - 0.02 * k / N)", accept=["toks_per_s.mean >= @R0.93"], wall=9)
    H("near_five", "near bound", "bound 5 % below a quiet rate", (GO, INC), near=True, task="policy", lr=2.0, shape="threads", writer="ktok", accept=["toks_per_s.mean >= @R0.95", "loss.last < loss.first"], wall=9)

make_sick(); make_healthy()
# tokens_x8 declares what a step really holds
for n, fs, lab in CASES:
    if n == "s_tokens_x8":
        tok = eval(re.search(r"^TOKENS = (.*)$", fs["train.py"], re.M)[1])
        fs["runbook.yaml"] = fs["runbook.yaml"].replace("  # tokens_per_step below", f"  tokens_per_step: {tok}")

def materialise(folder, name):
    folder = Path(folder)
    files, label = next((f, l) for n, f, l in CASES if n == name)
    for path, text in files.items():
        p = folder / path
        p.parent.mkdir(parents=True, exist_ok=True)
        p.write_bytes(text.encode())
        if path.startswith("previous/"):
            old = time.time() - 30 * 86400
            os.utime(p, (old, old))
    (folder / "label.json").write_text(json.dumps(label, indent=1))
    return label

if __name__ == "__main__":
    for n, _, _ in CASES: materialise(Path(sys.argv[1]) / n, n)
    print(len(CASES), "cases:", sum(n[0] == "s" for n, _, _ in CASES), "sick,", sum(n[0] == "h" for n, _, _ in CASES), "healthy")
