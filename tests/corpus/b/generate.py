"""Sick and healthy cases, made from one seed. `python3 generate.py [DIR]` writes them; run.py imports `build`."""

import json
import math
import random
import sys
import textwrap
import time
from pathlib import Path

import kit

SEED = 20261122
GO, NOGO, INC, REFUSED = "GO", "NO-GO", "INCONCLUSIVE", "REFUSED"
NAMES = "amber basil cedar dune ember fjord glade heron iris jade kelp lark moss nova opal pine quill reed sage tern umber vale wren yarrow zinc".split()
CASES = []
CHATTER = ["UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.", "data: 20000 records, skipping 1 corrupt (error in record 17)",
           "eval: error rate 12.5 %", "nan check: on, 0 nan so far", "FutureWarning: You are using `torch.load` with `weights_only=False`.",
           "git: 3f2a91c (clean)", "model: 0.02M parameters", "OOM guard armed", "loaded vocabulary, 0 errors, 2 warnings", "Using 1 device: cpu",
           "retry 1/5 after timeout while fetching index ... ok", "wandb: offline, results will not be synced", "=" * 72, "— Überblick: alles bereit ✓",
           "W1122 04:00:00.000000 140 site-packages/run.py:766] Setting OMP_NUM_THREADS to be 1", "Killed 0 stale workers"]


def ind(text, by):
    text = textwrap.dedent(text).strip("\n")
    return textwrap.indent(text or "pass", " " * by)


def three(x, up=False):
    if x == 0:
        return 0.0
    e = 10 ** (math.floor(math.log10(abs(x))) - 3)
    return float(f"{(math.ceil(x / e) if up else math.floor(x / e)) * e:.10g}")


def case(kind, name, decisions, why, *, model="softmax", V=8, w="csv4", dt=0.04, T=10.0, cv=0.03, plan="", spoil="", sched="constant",
         loss="nat", digits=4, every=1, when=None, claim="", setup="", before="", after="", logged="", end="", flags="", pause="pass",
         warm=None, rate=("true", 0.85), accept=("loss.last < loss.first",), codes=(), criteria=(), near=False, hb=False, env=None,
         phase="train", extra_phase="", defaults="", more="", phases=None, tps=False, nanfmt='"nan"', inffmt="inf", run_cv=0.002, nproc=0,
         timeout="2m", log=None, metrics=None, tokens=None, cmd=None, files=None, trainer="", n=None, need_code=False, also=()):
    r = random.Random(f"{SEED}/{name}")
    wr = dict(kit.WRITERS[w])
    if metrics:
        wr["metrics"] = metrics
    dt = round(dt * r.uniform(0.88, 1.12), 5)
    n = n or max(10, int(T / dt) // 10 * 10)
    tokens = tokens or r.choice([256, 384, 512, 1024, 2048, 4096, 6144, 8192, 16384])
    seed = r.randrange(1, 10**6)
    lr = r.choice([1e-3, 3e-4, 6e-4, 2e-2, 0.1])
    if warm is None:
        warm = r.choice([10, 15, 20])
    steps_flag, out_flag = r.choice([("--steps", "--out"), ("--max-steps", "--output-dir"), ("--max_iters", "--out_dir"), ("--train_steps", "--save")])
    body = kit.BODY.format(nanfmt=nanfmt, inffmt=inffmt, digits=digits, schedule=kit.SCHEDULES[sched], dt=dt, cv=cv,
                           plan=ind(plan, 4), spoil=ind(spoil, 4))
    src = kit.HEAD.format(doc=r.choice(["A small trainer.", "Toy training loop.", "Trains a little model.", "Experiment script."]),
                          np="" if model in kit.PURE else "import numpy as np\n", seed=seed, tokens=tokens, lr=lr, every=every)
    src += f"V = {V}\n" + kit.MODELS[model] + (log or wr["code"]) + (kit.HEARTBEAT if hb else "") + body
    if "SKEW" not in src:
        src += "SKEW = 0.0\n"
    hb_setup = "beat = Beat(args.out)\n" if hb == True else ""  # noqa: E712
    hb_row = 'beat.write("progress", k, loss=r.loss if math.isfinite(r.loss) else fmt(r.loss), toks_per_s=round(r.rate, 2), step_time_s=round(r.step_s, 6))\n' if hb is True else ""
    hb_end = 'beat.write("done", n, status="done", why="all steps")\n' if hb is True else ""
    chatter, files_too = r.sample(CHATTER, r.choice([0, 1, 2, 3])), (wr["out"] and nproc == 0 and r.random() < 0.5)
    before_it = "".join(f"print({c!r})\n" for c in chatter) + f"time.sleep({r.choice([0, 0.1, 0.3, 0.8, 1.3])})\n"
    if files_too:
        before_it += r.choice([
            'Path(args.out).mkdir(parents=True, exist_ok=True)\n(Path(args.out) / "config.json").write_text(json.dumps(vars(args)))\n',
            'Path(args.out, "ckpt").mkdir(parents=True, exist_ok=True)\nPath(args.out, "ckpt", "step_0.bin").write_bytes(os.urandom(200_000))\n',
            'Path(args.out, "tb").mkdir(parents=True, exist_ok=True)\nPath(args.out, "tb", "events.out.tfevents.1").write_bytes(bytes(range(256)) * 40)\n',
            'Path(args.out).mkdir(parents=True, exist_ok=True)\nPath(args.out, "samples.txt").write_text("once upon a time, nan said inf\\n" * 5)\n'])
    setup = before_it + textwrap.dedent(setup)
    src += kit.MAIN.format(steps_flag=steps_flag, out_flag=out_flag, n=n, flags=ind(flags or "pass", 4), setup=ind(hb_setup + textwrap.dedent(setup), 4),
                           run_cv=run_cv, before=ind(before, 8), transform=kit.TRANSFORM[loss], after=ind(after, 8),
                           when=when or "k == 1 or k == n or k % EVERY == 0", claim=ind(claim, 12), logged=ind(hb_row + textwrap.dedent(logged), 12),
                           pause=pause, end=ind(hb_end + textwrap.dedent(end), 4))
    # what it really does, from the same code
    space = {"math": math, "random": random, "V": V, "time": time}
    if model not in kit.PURE:
        import numpy
        space["np"] = numpy
    exec(kit.MODELS[model] + body, space)
    D, P = space["plan"](n, random.Random(seed))
    m, rng, losses = space["Model"](seed), random.Random(seed + 1), []
    for k in range(1, n + 1):
        x, g = m.step(space["schedule"](k, n))
        x, g = space["spoil"](k, n, eval(kit.TRANSFORM[loss], {"math": math, "loss": x}), g, rng)
        losses.append(x)
    seconds = sum(D[warm:]) + sum(v for k, v in P.items() if warm <= k < n)
    true_dt = seconds / (n - warm)
    whole = sum(D) + sum(P.values())
    accept = list(accept)
    distance = None
    if rate:
        ref, share = rate
        per = {"true": true_dt, "level": dt}.get(ref, ref)
        b = three(tokens * share / per) if wr["kind"] != "time" else three(per / share, up=True)
        text = {"toks": f"toks_per_s.mean >= {b:g} tok/s", "rank": f"toks_per_s_per_rank.mean >= {b:g}",
                "time": f"step_time_s.mean <= {b:.4g} s"}[wr["kind"]]
        text = text.replace("e+06", "000000") if False else text
        if "e+" in text:
            text = text.replace(f"{b:g}", f"{b:.0f}")
        accept.insert(0, text)
        distance = round(100 * (tokens / true_dt / b - 1 if wr["kind"] != "time" else b / true_dt - 1), 1)
    fills = {"@LAST130": three(1.3 * losses[-1], True) if losses[-1] == losses[-1] else 0, "@LAST70": three(0.7 * losses[-1]) if losses[-1] == losses[-1] else 0,
             "@N": n, "@FASTEST": three(0.8 * tokens / min(D)), "@DT": dt, "@TOKENS": tokens}
    for key, v in fills.items():
        accept = [a.replace(key, f"{v:g}") for a in accept]
        phases = phases and phases.replace(key, f"{v:g}")
        more, extra_phase, trainer, defaults = (t.replace(key, f"{v:g}") for t in (more, extra_phase, trainer, defaults))
    if kind == "healthy" or decisions == [GO]:
        for a in accept:
            if a.startswith("loss.last") and not eval(a.replace("loss.last", "losses[-1]").replace("loss.first", "losses[0]").replace(" nat", "")):
                raise SystemExit(f"{name}: loss does not fall: {losses[0]} {losses[-1]}")
    if kind == "healthy" and accept and not phases and not near and nproc == 0 and "r.k +=" not in src:
        more_bounds = ["{expr: loss.last < 0.95 * loss.first, why: it must learn}"] if losses[-1] < 0.8 * losses[0] and losses[0] > 0 else []
        if not wr["zero"]:
            more_bounds.append(f"steps.done == {n}")
        if losses[-1] > 0.05:
            more_bounds.append(f"loss.last <= {three(1.4 * losses[-1], True):g}")
        more_bounds.append("outcome.duration_s <= 60 s")
        accept += r.sample(more_bounds, min(len(more_bounds), r.choice([0, 1, 1, 2])))
    title = f"{NAMES[r.randrange(len(NAMES))]}-{r.choice(['run', 'lm', 'net', 'exp', 'job'])}{r.randrange(2, 99)}"
    style = r.randrange(3)
    with_out = wr["out"] or hb or env
    if cmd:
        start = cmd.replace("@STEPS", steps_flag).replace("@OUT", out_flag)
    elif style == 0 and with_out:
        start = f"  command: [train.py]\n  args: {{{steps_flag[2:]}: \"{{steps}}\", {out_flag[2:]}: \"{{out}}\"}}\n"
    elif style == 1:
        start = f"  command: [train.py, \"{steps_flag}={{steps}}\"" + (f", \"{out_flag}={{out}}\"" if with_out else "") + "]\n"
    else:
        start = f"  command: [train.py, {steps_flag}, \"{{steps}}\"" + (f", {out_flag}, \"{{out}}\"" if with_out else "") + "]\n"
    met = wr["metrics"]
    if hb:
        met = met[:-1] + ', heartbeat: "heartbeat_rank{rank}.jsonl"}'
    if env:
        met = met[:-1] + ", env: env.json}"
    book = f"schema: 1\nname: {title}\ntrainer:\n{start}  metrics: {met}\n"
    if tps:
        book += f"  tokens_per_step: {tokens}\n"
    book += textwrap.indent(textwrap.dedent(trainer), "  ")
    book += f"defaults: {{nproc: {nproc}, timeout: {timeout}, warmup_steps: {warm}{defaults}}}\nphases:\n"
    if phases:
        book += textwrap.indent(textwrap.dedent(phases).strip("\n"), "  ") + "\n"
    else:
        book += f"  - id: {r.choice(['baseline', 'main', 'throughput', 'trial'])}\n    kind: {phase}\n    steps: {n}\n"
        book += textwrap.indent(textwrap.dedent(more), "    ")
        if accept:
            book += "    accept:\n" + "".join(f"      - {a}\n" for a in accept)
        book += textwrap.indent(textwrap.dedent(extra_phase).strip("\n"), "  ") + "\n" if extra_phase else ""
    label = dict(name=name, kind=kind, decisions=decisions, codes=list(codes), criteria=list(criteria), need_code=need_code, why=why,
                 distance_pct=distance, near=near, true_step_s=round(true_dt, 5), seconds=round(whole, 1), steps=n, nproc=nproc,
                 first_loss=round(losses[0], 4), last_loss=round(losses[-1], 4))
    CASES.append(dict(label=label, files={"train.py": src, "runbook.yaml": book}, setup=files))


def sick(name, decisions, why, **k):
    case("sick", name, decisions, why, **k)


def healthy(name, why, *, near=False, decisions=None, **k):
    case("healthy", name, decisions or ([GO, INC] if near else [GO]), why, near=near, **k)


RATE = r"(toks_per_s|step_time_s|step_rate|toks_per_s_per_rank).*mean|sustained_rate"
ENV = '''
Path(args.out).mkdir(parents=True, exist_ok=True)
want = dict({want})
have = dict(want, **{have})
with open(Path(args.out) / "env.tmp", "w") as f:
    json.dump({{"schema_version": 1, "time_unix_s": time.time(), "argv": sys.argv, "python": sys.version.split()[0], "requested": want,
               "effective": have, "world_size": 1, "device": "cpu", "backend": None}}, f)
os.replace(Path(args.out) / "env.tmp", Path(args.out) / "env.json")
'''
WATCH = "watchdog: {first_step: 30s, stall: 5s, stall_factor: 10, interval: 1s}\n"


def sick_cases():
    B = [NOGO, INC]
    sick("s01_halving", [NOGO], "The rate halves at 40 % of the run; its true mean misses the bound by a quarter.", w="contract", dt=0.025, T=7,
         plan="for i in range(int(0.4 * n), n):\n    D[i] *= 2", rate=("level", 0.85), codes=["rate-shift", "no-steady-state"], criteria=[RATE])
    sick("s02_soak_drop30", [NOGO], "In a soak the rate falls by 30 % for good.", w="kv", model="bigram", V=27, phase="soak", dt=0.03, T=12, cv=0.02,
         plan="for i in range(int(0.55 * n), n):\n    D[i] /= 0.7", rate=None, accept=["loss.last < 0.95 * loss.first"],
         codes=["rate-shift"], criteria=[RATE, "soak", "drift"])
    sick("s03_drop30_late", B, "The mean clears the bound, but the level that a long run would have (the last 30 %) misses it by 12 %.", w="ranklog",
         model="ngram", V=40, dt=0.03, T=10, cv=0.02, plan="for i in range(int(0.7 * n), n):\n    D[i] /= 0.7", rate=("level", 0.8),
         codes=["rate-shift", "no-steady-state"], criteria=[RATE])
    sick("s04_late_speedup", B, "Only the last third is fast enough; the mean of the run is not.", w="nanogpt", model="bigram", V=65, dt=0.05, T=11,
         plan="for i in range(int(0.65 * n), n):\n    D[i] *= 0.5", rate=("level", 1.6), codes=["rate-shift", "no-steady-state"], criteria=[RATE])
    sick("s05_gradual", [NOGO], "Every step is slower than the one before; at the end 2.2 times.", w="titan", model="twolayer", dt=0.02, T=7, sched="cosine",
         plan="for i in range(n):\n    D[i] *= 1 + 1.2 * i / n", rate=("level", 0.9), codes=["rate-shift", "no-steady-state"], criteria=[RATE])
    sick("s06_val_pauses", [NOGO], "Validation every 40 steps takes more time than the steps; printed rates leave it out.", w="contract", model="sums",
         dt=0.022, T=6, plan="for k in range(40, n, 40):\n    P[k] = 1.1", claim="r.rate = TOKENS / r.step_s", rate=("level", 0.8),
         pause='print("validating ...", flush=True)', codes=["unit-mismatch"], criteria=[RATE])
    sick("s07_ckpt_data_pauses", [NOGO], "Checkpoints of 0.9 s every 25 steps cost 45 % of the time, and no printed figure holds them.", w="llmc", model="bigram", V=50,
         dt=0.042, T=7, plan="for k in range(25, n, 25):\n    P[k] = 0.9", claim="r.rate = TOKENS / r.step_s", rate=("level", 0.82), tps=True,
         pause='print(f"writing checkpoint model_{k:08d}.bin", flush=True)', codes=["unit-mismatch"], criteria=[RATE])
    sick("s08_loader_gaps", [NOGO], "Waits for data of 0.2 to 0.5 s between steps at random places; the step timer starts behind them.", w="itercsv", model="matfac",
         dt=0.02, T=6, plan="for k in range(2, n):\n    if rng.random() < 0.07:\n        P[k] = rng.uniform(0.15, 0.35)",
         claim="r.rate = TOKENS / r.step_s", rate=("level", 0.8), codes=["unit-mismatch", "periodic-stall", "loader-bound"], criteria=[RATE])
    sick("s09_tokens_twice", B, "Printed tokens/s are twice what tokens_per_step and the clock give; the true rate misses the bound.", w="kv", model="softmax",
         dt=0.05, T=10, claim="r.rate *= 2", rate=("level", 1.5), tps=True, codes=["unit-mismatch"], criteria=[RATE])
    sick("s10_world_size", B, "The rate counts eight ranks, of which one exists (tokens_per_step is declared).", w="contract", model="twolayer", dt=0.03, T=9,
         claim="r.rate *= 8\nr.tokens *= 8", rate=("level", 4.0), tps=True, codes=["unit-mismatch"], criteria=[RATE])
    sick("s11_seconds_as_ms", B, "time.time() differences in seconds are printed under the name of ms: a step of 50 ms reads 0.05 ms.", w="nanogpt", model="bigram", V=30,
         dt=0.055, T=10, claim="r.one /= 1e3", rate=("level", 1.6), log=kit.WRITERS["nanogpt"]["code"].replace(":.2f}ms, mfu", ":.4f}ms, mfu"),
         codes=["unit-mismatch"], criteria=[RATE])
    sick("s12_time_too_long", [INC, NOGO], "Step times are printed three times too long (summed over three timers); a claim that the clock contradicts proves nothing.",
         w="itercsv", model="softmax", V=5, dt=0.04, T=10, claim="r.step_s *= 3\nr.rate /= 3", rate=("level", 0.2), codes=["unit-mismatch"], need_code=True)
    sick("s13_nan_docs_pattern", [NOGO], "The loss is nan from 60 % on; the pattern is the one of the documentation.", w="nanogpt", model="bigram", V=64, dt=0.04, T=8,
         spoil="if k > 0.6 * n:\n    loss = math.nan", codes=["nan-loss"], criteria=["loss"])
    sick("s14_minus_nan_csv", B, "The loss is -nan(ind)-like (NaN) in the last tenth of a CSV.", w="contract", model="twolayer", dt=0.03, T=8,
         nanfmt='"NaN"', spoil="if k > 0.9 * n:\n    loss = math.nan", codes=["nan-loss", "damaged-evidence"], criteria=["loss"])
    sick("s15_nan_one_rank", B, "Rank 1's own loss is nan in its heartbeat; the table holds rank 0's.", w="csv4", model="logit", nproc=2, dt=0.03, T=5, hb=True,
         log='class Log:\n    def __init__(self, args):\n        Path(args.out).mkdir(parents=True, exist_ok=True)\n        self.f = open(Path(args.out) / "training.csv", "w", buffering=1) if RANK == 0 else open(os.devnull, "w")\n        print("step,loss,lr,toks_per_s", file=self.f)\n    def __call__(self, r):\n        print(f"{r.k},{r.loss:.4f},{r.lr},{r.rate:.1f}", file=self.f)\n    def close(self):\n        self.f.close()\n',
         claim="r.rate *= WORLD", spoil="if globals().get('RANK') == 1 and k > n // 2:\n    loss = math.nan", rate=("level", 1.4), codes=["nan-loss"], need_code=True)
    sick("s16_nan_grad", [NOGO], "Gradient norms turn nan at half-way and every step is skipped from then on.", w="kv", model="twolayer", dt=0.035, T=8,
         spoil="if k > n // 2:\n    gn = math.nan", nanfmt='"-nan"', accept=["grad_norm.max <= 1000", "loss.last < loss.first"], codes=["nan-loss", "zero-grad", "diverging"], criteria=["grad_norm"])
    sick("s17_zero_loss", [INC, NOGO], "From 55 % on the printed loss is exactly 0.0, as loggers print a filtered nan.", w="hf", model="bigram", V=48, dt=0.04, T=9,
         spoil="if k > 0.55 * n:\n    loss = 0.0", codes=["zero-loss"], need_code=True)
    sick("s18_diverges_caught", [NOGO], "The loss falls, then climbs above nine tenths of its start; the bound on it fails.", w="deepspeed", model="bigram", V=80, dt=0.04, T=9,
         sched="cosine", spoil="x = k / n\nif x > 0.6:\n    loss = loss + 3.2 * (x - 0.6) / 0.4 * (4.4 - 0.4 * loss) / 4.4", accept=["loss.last < 0.7 * loss.first"],
         codes=["diverging"], criteria=["loss"])
    sick("s19_diverges_weak_bound", [INC, NOGO], "The loss reaches a fifth of its start, then climbs to four fifths; only 'last < first' is asked.", w="sep", model="sums", dt=0.025, T=9,
         spoil="x = k / n\nif x > 0.7:\n    loss += 105 * (x - 0.7) / 0.3", codes=["diverging"], need_code=True)
    sick("s20_grad_explodes", [INC, NOGO], "Gradient norms grow a thousandfold over the last third while the loss turns upwards.", w="llmc", model="softmax", V=10, dt=0.04, T=9,
         spoil="x = k / n\nif x > 0.65:\n    gn *= 10 ** (4 * (x - 0.65) / 0.35)\n    loss += 0.6 * (x - 0.65) / 0.35",
         codes=["diverging"], need_code=True)
    sick("s21_floor_caught", [NOGO], "The loss comes down to ln 256 = 5.545 and stays: nothing but uniformity is learned. The bound on it is missed.", w="titan", model="logit",
         dt=0.035, T=9, spoil="loss = math.log(256) + 0.6 * math.exp(-k / 15) + rng.gauss(0, 0.004)", accept=["loss.last <= 5.0 nat"],
         codes=["random-data-floor"], criteria=["loss"])
    sick("s22_floor_weak_bound", [GO, INC, NOGO], "The same plateau at ln 512 with the vocabulary in env.json; only 'last < first' is asked: it must be said.", w="contract", model="logit",
         env=True, dt=0.03, T=8, spoil="loss = math.log(512) + 0.5 * math.exp(-k / 12) + rng.gauss(0, 0.003)",
         setup=ENV.format(want='vocab_size=512, seq_len=256, batch_size=8', have="{}"), codes=["random-data-floor"], need_code=True)
    sick("s23_periodic_stall", [NOGO], "Every 20th step takes 16 times as long; the mean misses the bound.", w="csv4", model="matfac", dt=0.022, T=6,
         plan="for i in range(19, n, 20):\n    D[i] *= 16", rate=("level", 0.75), codes=["periodic-stall"], criteria=[RATE])
    sick("s24_periodic_stall_cleared", [GO, INC], "Every 25th step takes 15 times as long; the bound is cleared all the same, but period and cost must be said.", w="contract",
         model="softmax", dt=0.025, T=8, plan="for i in range(24, n, 25):\n    D[i] *= 15", rate=("true", 0.7), codes=["periodic-stall"], need_code=True)
    sick("s25_intermittent", [NOGO], "One step in twenty-five, at random, stalls for half a second; the true mean misses the bound by a third.", w="jsonl", model="ngram", V=40,
         dt=0.025, T=7, plan="for i in range(n):\n    if rng.random() < 0.045 or i % 97 == 50:\n        D[i] += 0.5", rate=("level", 0.8), codes=["periodic-stall"], criteria=[RATE])
    sick("s26_sweep_same", [GO, INC, NOGO], "A sweep of the learning rate whose arms have the same losses digit for digit: the setting does not arrive.", w="csv4", model="bigram", V=27, dt=0.02,
         flags='ap.add_argument("--lr", type=float, default=1e-3)', n=120, warm=10, rate=None, accept=[],
         phases='''
         - id: learning_rate
           kind: sweep
           steps: 120
           over: {args.lr: [0.001, 0.003, 0.01]}
           repeats: 2
           accept: [loss.last < loss.first]
           choose: {lowest: loss.last}
         ''', codes=["vacuous-sweep", "config-ignored"], need_code=True)
    sick("s27_config_ignored", [INC, NOGO], "env.json says that a sequence is 512 long where 2,048 were asked for; the rate is of another config.", w="contract", model="bigram", V=40,
         env=True, dt=0.03, T=8, flags='ap.add_argument("--seq-len", type=int, default=512)', cmd='  command: [train.py]\n  args: {@STEPS: "{steps}", @OUT: "{out}", seq-len: 2048}\n',
         setup=ENV.format(want="seq_len=args.seq_len, batch_size=4, accum=2", have='{"seq_len": 512}'), codes=["config-ignored"], criteria=["effective"], need_code=True)
    sick("s28_exit0_early", B, "Ends with exit code 0 after 45 % of the steps that were asked for.", w="itercsv", model="softmax", V=6, dt=0.03, T=9, need_code=False,
         after="if k > 0.45 * n:\n    log.close()\n    print('early stopping?')\n    sys.exit(0)", codes=["missing-evidence", "crashed"], criteria=["steps", "outcome", "run", "end"])
    sick("s29_exception", [NOGO], "An exception at 70 % of the run.", w="hf", model="twolayer", dt=0.035, T=9,
         after="if k == int(0.7 * n):\n    raise ValueError('shape (32, 17) does not match (32, 16)')", codes=["crashed"], criteria=["outcome", "steps", "rc", "run"])
    sick("s30_rank_prefix_exit0", B, "A launcher catches the exception, prints it with a rank prefix, and ends with 0.", w="ranklog", model="matfac", dt=0.03, T=9,
         after="if k == int(0.6 * n):\n    print('[rank0]: Traceback (most recent call last):\\n[rank0]:   File \"engine.py\", line 214, in step\\n[rank0]: RuntimeError: CUDA error: an illegal memory access was encountered', file=sys.stderr, flush=True)\n    os._exit(0)",
         codes=["crashed", "missing-evidence", "nccl-error"], criteria=["steps", "outcome", "run", "end"])
    sick("s31_hang", [NOGO], "After half of the steps nothing moves any more, and nothing works.", w="csv4", model="logit", dt=0.035, T=8, hb=True, more=WATCH, timeout="60s",
         after="if k == n // 2:\n    time.sleep(300)", codes=["hang"], criteria=["outcome", "run", "steps", "stall"])
    sick("s32_stall_beats", B, "The loop waits for data for ever while a thread goes on writing beats.", w="csv4", model="softmax", dt=0.035, T=8, hb=True, more=WATCH, timeout="40s",
         setup="def beating():\n    while True:\n        time.sleep(1)\n        beat.write('beat', at[0])\nat = [0]\nthreading.Thread(target=beating, daemon=True).start()",
         after="at[0] = k\nif k == int(0.4 * n):\n    threading.Event().wait(300)", codes=["hang", "slow-not-hung", "over-budget"], criteria=["outcome", "run", "steps", "stall"])
    sick("s33_killed", [NOGO], "SIGKILL from outside at 60 %, without a word.", w="megatron", model="bigram", V=100, dt=0.04, T=9, after="if k == int(0.6 * n):\n    os.kill(os.getpid(), signal.SIGKILL)",
         codes=["crashed", "oom"], criteria=["outcome", "run", "steps", "rc"])
    sick("s34_oom", [NOGO], "Out of memory at step 80.", w="titan", model="softmax", dt=0.035, T=8,
         after="if k == 80:\n    raise type('OutOfMemoryError', (RuntimeError,), {'__module__': 'torch'})('CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.02 GiB is free.')",
         codes=["oom"], criteria=["outcome", "run", "steps", "rc"], need_code=True)
    sick("s35_memory_growth", [NOGO], "Every step keeps a megabyte; the bound on growth is missed by far.", w="contract", model="softmax", dt=0.025, T=8, rate=("true", 0.8),
         log='class Log:\n    def __init__(self, args):\n        Path(args.out).mkdir(parents=True, exist_ok=True)\n        self.f = open(Path(args.out) / "training.csv", "w", buffering=1)\n        self.f.write("step,loss,lr,toks_per_s,host_mem_mib\\n")\n    def __call__(self, r):\n        rss = int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20\n        self.f.write(f"{r.k},{r.loss:.5f},{r.lr},{r.rate:.1f},{rss:.2f}\\n")\n    def close(self):\n        self.f.close()\n',
         setup="kept = []", after="kept.append(b'x' * 2**20)", accept=["loss.last < loss.first", "memory.growth_mib_per_1k_steps <= 50 MiB"],
         codes=["memory-growth"], criteria=["memory"])
    sick("s36_slow_rank", [NOGO], "Rank 1's own work takes 60 % longer than rank 0's, and rank 0 waits.", w="csv4", model="logit", nproc=2, dt=0.03, T=5, rate=None, hb="own",
         log='class Log:\n    def __init__(self, args):\n        Path(args.out).mkdir(parents=True, exist_ok=True)\n        self.f = open(Path(args.out) / "training.csv", "w", buffering=1) if RANK == 0 else open(os.devnull, "w")\n        print("step,loss,lr,toks_per_s", file=self.f)\n        self.b = Beat(args.out)\n    def __call__(self, r):\n        own = r.step_s * (1.0 if RANK else 1 / 1.6) * (1 + 0.02 * random.random())\n        print(f"{r.k},{r.loss:.4f},{r.lr},{r.rate * WORLD:.1f}", file=self.f)\n        self.b.write("progress", r.k, loss=round(r.loss, 4), toks_per_s=round(r.rate * WORLD, 1), step_time_s=round(r.step_s, 6), compute_time_s=round(min(own, r.step_s), 6))\n        self.last = r.k\n    def close(self):\n        self.b.write("done", self.last, status="done", why="all steps")\n',
         accept=["loss.last < loss.first", "straggler.score >= 0.9"], codes=["straggler"], criteria=["straggler"])
    sick("s37_loader_bound", [NOGO], "Two thirds of each step are waits for the loader.", w="csv4", model="softmax", dt=0.04, T=8,
         log='class Log:\n    def __init__(self, args):\n        Path(args.out).mkdir(parents=True, exist_ok=True)\n        self.f = open(Path(args.out) / "training.csv", "w", buffering=1)\n        self.f.write("step,loss,lr,toks_per_s,step_time_s,dt_fetch_s\\n")\n    def __call__(self, r):\n        self.f.write(f"{r.k},{r.loss:.5f},{r.lr},{r.rate:.1f},{r.step_s:.6f},{r.fetch:.6f}\\n")\n    def close(self):\n        self.f.close()\n',
         before="time.sleep(0.65 * D[k - 1])\nfetch = time.perf_counter() - t0", claim="r.fetch = fetch", accept=["loss.last < loss.first", "dt_fetch_s.mean <= 0.2 * step_time_s.mean"],
         codes=["loader-bound"], criteria=["fetch"])
    sick("s38_repeated_data", [NOGO], "The same sixteen batches come again and again and the weights never move: the losses repeat digit for digit.", w="jsonl", model="softmax", V=12,
         dt=0.035, T=8, spoil="loss = 2.48 + 0.05 * math.sin(7.3 * (k % 16)) + 0.03 * math.cos(2.1 * (k % 16) ** 2)", accept=["loss.last < 0.9 * loss.first"],
         codes=["zero-grad", "random-data-floor"], criteria=["loss"])
    sick("s39_too_slow", [NOGO], "Plainly 25 % below the bound, with noise.", w="keras", model="logit", dt=0.035, T=8, cv=0.1, rate=("true", 1.33), criteria=[RATE])
    sick("s40_unlogged", [INC, NOGO, REFUSED], "A required criterion asks for gradient norms that the trainer never writes.", w="csv4", model="bigram", V=33, dt=0.035, T=7,
         accept=["loss.last < loss.first", "grad_norm.max <= 100"], codes=["missing-evidence"], criteria=["grad_norm"])
    sick("s41_two_runs_one_file", [INC, NOGO], "Yesterday's table lies in the output folder (copied with the template) and today's run is appended under a second header.", w="contract", model="sums",
         dt=0.03, T=8, digits=3, setup='Path(args.out).mkdir(parents=True, exist_ok=True)\nshutil.copy2("template/training.csv", Path(args.out) / "training.csv")',
         files="yesterday", codes=["mixed-runs", "foreign-results"], need_code=True)
    sick("s42_stale_results", [INC, NOGO], "The trainer finds yesterday's finished table, copies it, and ends with 0: nothing was trained today.", w="csv4", model="softmax", dt=0.03, T=8,
         setup='Path(args.out).mkdir(parents=True, exist_ok=True)\nshutil.copy2("template/training.csv", Path(args.out) / "training.csv")\nprint("already finished, nothing to do")\nsys.exit(0)',
         files="yesterday", rate=("level", 0.5), codes=["foreign-results", "mixed-runs", "missing-evidence", "unit-mismatch"], criteria=["steps"], need_code=False)
    sick("s43_asks_nothing", [INC, REFUSED], "No phase asks for anything: there is nothing to decide from.", w="llmc", model="softmax", dt=0.04, T=6, rate=None, accept=[])
    sick("s44_best_moment", [INC, NOGO, REFUSED], "The only bound is on the best moment of the rate, which one lucky step clears; the optional mean is not met.", w="csv4", model="matfac", dt=0.035, T=7, cv=0.25,
         rate=None, accept=["toks_per_s.max >= @FASTEST tok/s", "{expr: toks_per_s.mean >= 99000000 tok/s, required: false}"])
    sick("s45_only_optional", [INC, REFUSED], "Every criterion is optional, and they fail.", w="kv", model="bigram", V=40, dt=0.04, T=6, rate=None,
         accept=["{expr: toks_per_s.mean >= 99000000 tok/s, required: false}", "{expr: loss.last <= 0.001, required: false}"])
    sick("s46_steps_back", [INC, NOGO], "The step falls back by 100 half-way: a restart within the run trains the same steps again.", w="contract", model="twolayer", dt=0.03, T=9,
         claim="if k > 0.6 * n:\n    r.k = k - 100", codes=["mixed-runs", "missing-evidence"], criteria=["steps"])
    sick("s47_replayed_log", [INC, NOGO], "Two repeats print the very same rates to the last digit: a recording, not a measurement.", w="csv4", model="ngram", V=40, dt=0.025, T=5,
         more="repeats: 2\n", claim="r.rate = TOKENS / D[k - 1]", run_cv=0.0, codes=["foreign-results", "unit-mismatch"], need_code=True)


DROP_SICK = {"s14_minus_nan_csv", "s18_diverges_caught", "s23_periodic_stall"}  # near doubles of s13, s19, s25: 44 are asked for


def healthy_cases():
    healthy("h01_ramp", "Slow start that fades over 40 steps, 20 declared; the last row of the ramp is long past at the end.", w="contract", hb=True, model="bigram", V=40, dt=0.028, warm=20,
            plan="for i in range(n):\n    D[i] *= 1 + 1.5 * math.exp(-i / 12)", sched="cosine")
    healthy("h02_long_warmup", "The first fifth runs at half speed, and is declared as warm-up.", w="titan", model="softmax", V=9, dt=0.025, n=360, warm=75,
            plan="for i in range(72):\n    D[i] *= 2")
    healthy("h03_stair_warmup", "Three stairs of warm-up, 3 times, 2 times and 1.4 times as slow, over 30 steps.", w="llmc", model="twolayer", dt=0.03, warm=35,
            plan="for i in range(30):\n    D[i] *= (3, 2, 1.4)[i // 10]")
    healthy("h04_compile_twice", "Compilation at step 1 (2 s) and again at step 20 (1.5 s), both within the declared warm-up.", w="nanogpt", model="bigram", V=65, dt=0.03, T=8, warm=25,
            plan="D[0] += 2\nD[19] += 1.5")
    healthy("h05_eval_pauses", "Evaluation of 0.5 s every 50 steps, counted in the rate; the bound is cleared by it.", near=True, w="contract", hb=True, model="bigram", V=50, dt=0.022, T=8,
            plan="for k in range(50, n + 1, 50):\n    P[k] = 0.5", rate=("true", 0.93), pause='print(f"val loss after step {k}", flush=True)')
    healthy("h06_ckpt_pauses", "Checkpoints of 0.6 s every 60 steps, and the declared cadence.", w="llmc", model="softmax", V=11, dt=0.035, T=9, defaults=", pause_every: 60",
            plan="for k in range(60, n + 1, 60):\n    P[k] = 0.6", rate=("true", 0.85), pause='print("saving checkpoint ...", flush=True)')
    healthy("h07_spikes", "Loss spikes of three steps that recover at once.", w="hf", model="softmax", V=16, dt=0.04, spoil="if k % 61 in (40, 41, 42) and k < n - 5:\n    loss = loss + (2.0, 0.9, 0.3)[k % 61 - 40]")
    healthy("h08_curriculum", "The loss jumps at each of two harder levels by design and falls again.", w="kv", model="bigram", V=60, dt=0.035, digits=5,
            spoil="x = 3 * (k - 1) / n\nlevel = int(x)\nloss = loss * (0.75 + 0.0 * level) + 0.45 * level * math.exp(-3 * (x - level))", accept=["loss.last < 0.9 * loss.first"])
    healthy("h09_restarts", "Cosine learning rate with warm restarts; the loss wiggles at each.", w="jsonl", model="twolayer", dt=0.035, sched="restarts")
    healthy("h10_zero_gradnorm", "The log prints grad norm 0.000 (not computed) while the loss falls.", w="megatron", model="bigram", V=90, dt=0.04, spoil="gn = 0.0", sched="linear")
    healthy("h11_same_names", "Columns rank (of a matrix), tokens (of the last document) and status mean other things than the tool's.", w="csv4", model="matfac", dt=0.03,
            log='class Log:\n    def __init__(self, args):\n        Path(args.out).mkdir(parents=True, exist_ok=True)\n        self.f = open(Path(args.out) / "training.csv", "w", buffering=1)\n        self.f.write("step,loss,lr,toks_per_s,rank,tokens,phase,epoch,status\\n")\n    def __call__(self, r):\n        self.f.write(f"{r.k},{r.loss:.5f},{r.lr},{r.rate:.2f},{6 - r.k % 3},{200 + r.k * 37 % 611},main,{r.k / 90:.3f},warm\\n")\n    def close(self):\n        self.f.close()\n')
    healthy("h12_passes_ln256", "The loss of a vocabulary of 8,192 comes down from 9.0, passes ln 256 = 5.545 and ends near it, still falling.", w="titan", model="ngram", V=8192, dt=0.035, sched="cosine",
            spoil="loss = 5.50 + 3.5 * math.exp(-3.5 * k / n) * (1 + 0.01 * rng.gauss(0, 1)) + rng.gauss(0, 0.02) - 0.13 * k / n")
    healthy("h13_negative", "A policy gradient's loss is negative from the start and falls.", w="kv", model="bandit", dt=0.03, loss="nat", accept=["loss.last < loss.first - 1"])
    healthy("h14_near_zero", "A loss near zero with noise in its last digits.", w="sep", model="logit", dt=0.03, loss="milli", digits=7)
    healthy("h15_rises_a_little", "The loss is flat with noise at the end, the last tenth a per cent higher.", w="contract", model="softmax", V=14, dt=0.03, env=True, setup=ENV.format(want="batch_size=16, seq_len=128, dtype=None, accum='auto'", have='{"dtype": "fp32", "accum": 1}'),
            spoil="if k > 0.9 * n:\n    loss *= 1.01", accept=["loss.last < 0.9 * loss.first"])
    healthy("h16_odd_even", "Odd steps take 25 ms, even ones 50 (accumulation); the bound is 6 % off.", near=True, w="keras", model="logit", dt=0.025, plan="for i in range(1, n, 2):\n    D[i] *= 2", rate=("true", 0.94))
    healthy("h17_every_tenth", "Every tenth step takes twice as long by design (logging of histograms).", near=True, w="itercsv", hb=True, model="softmax", V=7, dt=0.03, plan="for i in range(9, n, 10):\n    D[i] *= 2", rate=("true", 0.92))
    healthy("h18_thermal", "A soak that settles 1.5 % lower as the machine warms.", w="kv", model="bigram", V=30, phase="soak", dt=0.028, T=13, cv=0.015,
            plan="for i in range(n):\n    D[i] *= 1.015 - 0.015 * math.exp(-i / (0.2 * n))", rate=("true", 0.85))
    healthy("h19_improves", "The rate improves by 6 % over the run.", w="ranklog", model="ngram", V=40, dt=0.032, plan="for i in range(n):\n    D[i] *= 1.06 - 0.06 * i / n", rate=("true", 0.84))
    healthy("h20_autocorrelated", "Step times wander (AR(1), 0.9, 4 %).", near=True, w="csv4", model="matfac", dt=0.03, T=11, rate=("true", 0.925),
            plan="x = 0.0\nfor i in range(n):\n    x = 0.9 * x + rng.gauss(0, 0.04 * math.sqrt(1 - 0.81))\n    D[i] *= 1 + x")
    healthy("h21_heavy_tails", "Step times with a Pareto tail.", w="contract", model="sums", dt=0.025, rate=("true", 0.75), plan="for i in range(n):\n    D[i] *= 0.8 + 0.1 * min(15, rng.paretovariate(1.8))")
    healthy("h22_few_rows", "Sixty steps, a row every six: eleven rows in all.", w="csv4", model="bigram", V=20, dt=0.09, n=60, warm=5, every=6, rate=("true", 0.65))
    healthy("h23_powers_of_two", "Rows at powers of two alone.", w="kv", model="softmax", V=8, dt=0.02, n=512, warm=8, when="k & (k - 1) == 0", rate=("true", 0.6))
    healthy("h24_each_second", "A row each second, whatever the step.", near=True, w="jsonl", model="logit", dt=0.02, T=13, warm=20, when="k in (1, n) or now - last >= 1.0", rate=("true", 0.92))
    healthy("h25_text_columns", "Text columns and no newline at the end of the file.", w="csv4", model="twolayer", dt=0.03,
            log='class Log:\n    def __init__(self, args):\n        Path(args.out).mkdir(parents=True, exist_ok=True)\n        self.f = open(Path(args.out) / "training.csv", "w")\n        self.f.write("step,loss,lr,toks_per_s,host,comment")\n    def __call__(self, r):\n        self.f.write(f"\\n{r.k},{r.loss:.5f},{r.lr},{r.rate:.2f},node-ä,{\'saved\' if r.k % 50 == 0 else \'\'}")\n        self.f.flush()\n    def close(self):\n        self.f.close()\n')
    healthy("h26_crlf_quoted", "Windows newlines and every cell in quotes.", w="itercsv", model="softmax", V=10, dt=0.03,
            log=kit.WRITERS["itercsv"]["code"].replace('lineterminator="\\n"', 'quoting=csv.QUOTE_ALL'))
    healthy("h27_empty_cells", "Lightning's table: validation rows with empty cells, steps from 0.", w="lightning", model="bigram", V=45, dt=0.033, sched="steps")
    healthy("h28_fork_helper", "A helper process is started, works for two seconds and ends; unicode in the log.", w="jsonl", model="softmax", V=9, dt=0.033,
            setup="helper = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(2)'])", end="helper.wait()")
    healthy("h29_long_lines", "Lines of 20,000 characters and progress bars with carriage returns beside the log lines.", w="llmc", model="bigram", V=30, dt=0.04,
            after="if k % 50 == 0:\n    print('weights: ' + ' '.join(f'{0.001 * j:.4f}' for j in range(2900)), flush=True)\nprint(f'\\r{100 * k // n:3d}%|{\"#\" * (20 * k // n):20s}|', end='\\r', file=sys.stderr, flush=True)")
    healthy("h30_big_numbers", "Losses of sums (hundreds), a hundred million tokens/s printed with separators.", w="sep", model="sums", dt=0.03, tokens=4194304, sched="linear")
    healthy("h31_resumed", "A resumed run counts on from step 5,000 (heartbeat and table say so).", w="contract", model="softmax", V=8, dt=0.03, T=9, hb="own", warm=10,
            setup="beat = Beat(args.out, at=5000)", claim="r.k += 5000\nr.tokens += 5000 * TOKENS\nr.total += 151.3",
            logged='beat.write("progress", r.k, loss=round(r.loss, 5), toks_per_s=round(r.rate, 2))', end='beat.write("done", n + 5000, status="done", why="all steps")', decisions=[GO, INC])
    healthy("h32_poor_rank", "Two ranks; rank 1 writes nothing but its boot line.", w="csv4", model="logit", nproc=2, dt=0.03, T=5, hb="own", rate=None,
            log='class Log:\n    def __init__(self, args):\n        Path(args.out).mkdir(parents=True, exist_ok=True)\n        self.f = open(Path(args.out) / "training.csv", "w", buffering=1) if RANK == 0 else open(os.devnull, "w")\n        print("step,loss,lr,toks_per_s", file=self.f)\n        self.b = Beat(args.out)\n    def __call__(self, r):\n        print(f"{r.k},{r.loss:.4f},{r.lr},{r.rate * WORLD:.1f}", file=self.f)\n        if RANK == 0:\n            self.b.write("progress", r.k, loss=round(r.loss, 4), toks_per_s=round(r.rate * WORLD, 1), step_time_s=round(r.step_s, 6))\n        self.last = r.k\n    def close(self):\n        if RANK == 0:\n            self.b.write("done", self.last, status="done", why="all steps")\n',
            accept=["loss.last < loss.first", "toks_per_s.mean >= 1000 tok/s"])
    healthy("h33_repeats", "Four repeats that differ by half a per cent; the bound is 5 % off.", near=True, w="kv", model="bigram", V=27, dt=0.022, T=4, run_cv=0.005, more="repeats: 4\n", rate=("true", 0.95))
    healthy("h34_sweep_equal", "A sweep of bucket sizes between which there is no difference, with bit-equal losses by right.", w="csv4", model="softmax", V=8, dt=0.022, n=130, warm=10, rate=None, accept=[],
            phases='''
            - id: trial
              kind: train
              steps: 130
              accept: [loss.last < loss.first, "toks_per_s.mean >= 500 tok/s"]
            - id: buckets
              kind: sweep
              steps: 130
              over: {env.BUCKET_MB: [25, 50]}
              repeats: 2
              accept: [loss.last < loss.first]
              choose: {highest: toks_per_s.mean}
            ''')
    healthy("h35_ab_small", "An A/B with a real difference of 4 %; either answer is fine, both arms clear the bound.", w="csv4", model="ngram", V=40, dt=0.02, n=100, warm=10, rate=None, accept=[],
            flags='ap.add_argument("--fused", action="store_true")', before="pass", run_cv=0.004,
            setup="global TURBO\nTURBO = args.fused", plan="if globals().get('TURBO'):\n    D = [d / 1.04 for d in D]",
            phases='''
            - id: optimizer
              kind: ab
              steps: 100
              arms: {plain: {}, fused: {args: {fused: true}}}
              repeats: 4
              accept: [toks_per_s.mean >= 800 tok/s, loss.last < loss.first]
              choose: {highest: toks_per_s.mean, prefer: fused}
            ''')
    healthy("h36_wall_clock", "The wall clock is set back by an hour half-way; every time that is claimed comes from a monotonic one.", w="csv4", model="twolayer", dt=0.032, hb=True, after="if k == n // 2:\n    SKEW = -3600.0")
    healthy("h37_os_exit", "Ends by os._exit(0) with everything flushed.", w="titan", model="bigram", V=70, dt=0.035, end="sys.stdout.flush()\nsys.stderr.flush()\nos._exit(0)")
    healthy("h38_sys_exit", "Ends by sys.exit(0); DeepSpeed's several lines a step, one step in two.", w="deepspeed", model="bandit", dt=0.035, every=2, spoil="loss = loss + 20", end="sys.exit(0)")
    healthy("h39_buffered", "The table is flushed once in 25 rows: rows arrive in bursts.", w="contract", model="bigram", V=36, dt=0.03, log=kit.WRITERS["contract"]["code"].replace(", buffering=1)", ", buffering=1 << 20)").replace('{r.total:.4f}\\n")', '{r.total:.4f}\\n")\n        if r.k % 25 == 0:\n            self.f.flush()'))
    healthy("h40_running_average", "The printed rate is a running average since the start, with a slow first second.", near=True, w="kv", model="softmax", V=13, dt=0.03, T=12, warm=20,
            plan="D[0] += 0.3", claim="r.rate = r.tokens / r.total", rate=("true", 0.92))
    healthy("h41_one_of_ten", "A line every ten steps with the time of one of them (nanoGPT's log_interval = 10), steps from 0.", w="nanogpt", model="bigram", V=65, dt=0.03, T=14, every=10, when="k % EVERY == 1 or k == n", rate=("true", 0.8))
    healthy("h42_mean_of_ten", "Megatron's mean of ten iterations, the loss in bits.", w="megatron", model="ngram", V=40, dt=0.03, T=13, every=10, loss="bits", rate=("true", 0.8), sched="cosine")
    healthy("h43_zero_answered", "A hinge-like loss that is exactly 0 from half-way by right, and the runbook answers for it.", w="itercsv", model="logit", dt=0.03,
            spoil="loss = max(0.0, loss * (1 - k / (0.5 * n)))", more="accept_findings: [zero-loss]\n")
    healthy("h44_observe", "A phase that only observes stands beside one that asks; perplexity as loss.", w="llmc", model="bigram", V=25, dt=0.03, T=6, loss="ppl", tps=True,
            extra_phase='''
            - id: look
              kind: train
              steps: 100
              observe: true
            ''')


def build():
    CASES.clear()
    sick_cases()
    healthy_cases()
    chosen = [c for c in CASES if c["label"]["name"] not in DROP_SICK]
    return sorted(chosen, key=lambda c: c["label"]["name"])


def write(case, folder):
    """One case in a folder of its own; yesterday's files get yesterday's dates."""
    import os
    folder.mkdir(parents=True)
    for name, text in case["files"].items():
        (folder / name).write_text(text, encoding="utf-8")
    if case["setup"] == "yesterday":
        r = random.Random(case["label"]["name"])
        t = folder / "template"
        t.mkdir()
        n, full = case["label"]["steps"], "contract" in case["files"]["train.py"] or "step_time_s,grad_norm" in case["files"]["train.py"]
        dt, tok = case["label"]["true_step_s"], int(case["files"]["train.py"].split("TOKENS = ")[1].split()[0])
        with open(t / "training.csv", "w") as f:
            f.write("step,loss,lr,toks_per_s" + (",step_time_s,grad_norm,tokens,wall_s\n" if full else "\n"))
            for k in range(1, n + 1):
                s = dt * (1 + r.gauss(0, 0.03))
                f.write(f"{k},{2 / k**0.3 + r.gauss(0, 0.02):.4f},0.001,{tok / s:.1f}" + (f",{s:.6f},{1 / k**0.2:.4f},{k * tok},{k * dt:.4f}\n" if full else "\n"))
        old = time.time() - 86400
        os.utime(t / "training.csv", (old, old))
        os.utime(t, (old, old))


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else "generated")
    cases = build()
    for c in cases:
        write(c, where / c["label"]["name"])
    (where / "labels.json").write_text(json.dumps([c["label"] for c in cases], indent=1))
    kinds = [c["label"]["kind"] for c in cases]
    print(kinds.count("sick"), "sick,", kinds.count("healthy"), "healthy, median seconds", sorted(c["label"]["seconds"] for c in cases)[len(cases) // 2])
