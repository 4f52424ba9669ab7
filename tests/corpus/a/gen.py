"""Synthetic cases for validator: 44 sick and 44 healthy trainers with their runbooks and labels, from seed.json."""
import json
import math
import random
import zlib
from pathlib import Path

from skins import ARGS, Spec, planned, script

SEED = json.loads((Path(__file__).parent / "seed.json").read_text())["seed"]
CASES = {}
GO, NO, INC, REF = "GO", "NO_GO", "INCONCLUSIVE", "REFUSED"      # REFUSED: exit 2, `check` would not have it
RATE, STEPS = r"toks_per_s(_per_rank)?\.(mean|p50|min)", r"steps\.|outcome|exit|rc\b|ended|complete|finish"


def case(kind, klass):
    def add(build):
        name = build.__name__.replace("_", "-")
        CASES[name] = (kind, klass, build)
        return build
    return add


# ---------------------------------------------------------------- small tools

def sig(x, digits=3, up=False):
    """Rounded to a few digits, away from the truth: down for a floor, up for a ceiling."""
    if x == 0:
        return 0
    e = digits - 1 - math.floor(math.log10(abs(x)))
    y = (math.ceil if up else math.floor)(x * 10 ** e) / 10 ** e
    return int(y) if e <= 0 else round(y, e)


def number(x):
    return str(int(x)) if float(x).is_integer() else f"{x:.10g}"


def pick(r, *options):
    return r.choice(options)


def sizes(r):
    """A made-up model's batch and length."""
    return dict(batch=r.choice([1, 2, 4, 6, 8, 12, 16, 24, 32]), seq=r.choice([128, 192, 256, 384, 512, 768, 1024, 2048]))


def pace(r, seconds, low=0.015, high=0.06):
    """Steps and step time for a run of about so many seconds."""
    base = round(r.uniform(low, high), 4)
    return dict(n=max(20, int(seconds / base)), base=base)


LOSS_C, LR_C = ("loss", "{loss:.4f}"), ("lr", "{lr:.3e}")


def contract(*more, loss="{loss:.4f}"):
    return [("step", "{step}"), ("loss", loss), LR_C, ("toks_per_s", "{rate:.1f}"), *more]


STEP_S = ("step_time_s", "{busy / k:.6f}")


def aliases(r):
    """CSV under other names; those of own-trainer.md only."""
    return [(r.choice(["global_step", "iter"]), "{step}"), ("train_loss", "{loss:.5f}"),
            *r.sample([("epoch", "0"), ("lr", "{lr:.2e}"), ("samples", "{i * BATCH}")], 2),
            r.choice([("tokens_per_sec", "{rate:.2f}"), ("ktoks_per_s", "{rate / 1000:.6f}")])]


PRINTS = {   # name: (f-string, regex)
    "plain": ("step {step} loss {loss:.3f} tok/s {rate:.1f}",
              r"step (?P<step>\d+) loss (?P<loss>[\d.]+) tok/s (?P<toks_per_s>[\d.]+)"),
    "nanogpt": ("iter {step}: loss {loss:.4f}, time {1000 * busy / k:.2f}ms, mfu {31 + loss / 10:.2f}%",
                r"iter (?P<step>\d+): loss (?P<loss>[\d.]+), time (?P<step_time_ms>[\d.]+)ms"),
    "titan": ("\\x1b[31mstep: {step:>4}  \\x1b[32mloss: {loss:8.5f}  \\x1b[33mmemory: 21.34GiB(27%)  \\x1b[34mtps: {rate:,.0f}  \\x1b[36mmfu: 41.02%\\x1b[0m",
              r"step: +(?P<step>\d+) +loss: +(?P<loss>[\d.]+).* tps: +(?P<toks_per_s>[\d,]+)"),
    "logger": ("[INFO][train] epoch 0 | step {step:5d}/{steps} | train_loss={loss:.3f} | lr={lr:.2e} | {rate:,.0f} tokens/s | {1000 * busy / k:.1f} ms/step",
               r"step +(?P<step>\d+)/\d+ \| train_loss=(?P<loss>[\d.]+) \| lr=(?P<lr>[\d.e+-]+) \| (?P<toks_per_s>[\d,]+) tokens/s \| (?P<step_time_ms>[\d.]+) ms/step"),
    "json": ('{{"step": {step}, "loss": {loss:.4f}, "lr": {lr:.3e}, "tokens_per_second": {rate:.1f}, "elapsed": {elapsed:.2f}}}',
             r'"step": (?P<step>\d+), "loss": (?P<loss>[\d.naif]+), .*"tokens_per_second": (?P<toks_per_s>[\d.]+)'),
    "running": ("step {step}/{steps}  loss {loss:.4f}  avg throughput {T * i / elapsed:,.0f} tok/s",
                r"step (?P<step>\d+)/\d+ +loss (?P<loss>[\d.]+) +avg throughput (?P<toks_per_s>[\d,]+) tok/s"),
    "terse": (">> {step}  L={loss:.3f}  thr={rate / 1000:.3f} ktok/s",
              r">> (?P<step>\d+) +L=(?P<loss>[\d.]+) +thr=(?P<ktoks_per_s>[\d.]+) ktok/s"),
    "bar": ("Epoch 1/1 [{step:>5}/{steps}]  loss: {loss:.4f}  {rate:,.1f} tok/s  eta 00:12",
            r"\[ *(?P<step>\d+)/\d+\] +loss: (?P<loss>[\d.]+) +(?P<toks_per_s>[\d,.]+) tok/s"),
}


def prints(name):
    fmt, regex = PRINTS[name]
    return dict(style="stdout", fmt=fmt, regex=regex, to_stderr=name == "titan")


def fmt_value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return number(value)
    plain = value.replace("_", "").replace("-", "").replace(".", "").replace("/", "")
    return value if plain.isalnum() and not plain[0].isdigit() else json.dumps(value)


def criterion(c):
    if isinstance(c, str):
        return c
    why = f", why: {json.dumps(c['why'])}" if "why" in c else ""
    need = ", required: false" if c.get("required") is False else ""
    return "{expr: " + c["expr"] + need + why + "}"


def runbook(*, name, title, command, args, metrics, defaults, phases, tokens_per_step=None):
    out = ["schema: 1", f"name: {name}", f"title: {title}", "trainer:",
           "  command: [" + ", ".join(json.dumps(c) if "{" in c or c.startswith("-") else c for c in command) + "]"]
    if args:
        out.append("  args: {" + ", ".join(f"{k}: {json.dumps(v) if isinstance(v, str) else fmt_value(v)}" for k, v in args.items()) + "}")
    if tokens_per_step:
        out.append(f"  tokens_per_step: {tokens_per_step}")
    out.append("  metrics:")
    for key, value in metrics.items():
        if isinstance(value, dict):
            out.append(f"    {key}: {{" + ", ".join(f"{k}: {v}" for k, v in value.items()) + "}")
        else:
            out.append(f"    {key}: '{value}'" if key == "stdout" or "{" in value else f"    {key}: {value}")
    out.append("defaults:")
    for key, value in defaults.items():
        if isinstance(value, dict):
            out.append(f"  {key}: {{" + ", ".join(f"{k}: {v}" for k, v in value.items()) + "}")
        else:
            out.append(f"  {key}: {fmt_value(value) if not isinstance(value, str) else value}")
    out.append("phases:")
    for phase in phases:
        first = True
        for key, value in phase.items():
            lead = "  - " if first else "    "
            first = False
            if key == "accept":
                if value:
                    out.append(f"{lead}accept:")
                    out += [f"      - {criterion(c)}" for c in value]
            elif isinstance(value, dict):
                out.append(f"{lead}{key}: " + flow(value))
            elif isinstance(value, list):
                out.append(f"{lead}{key}: [" + ", ".join(fmt_value(v) for v in value) + "]")
            else:
                out.append(f"{lead}{key}: {fmt_value(value) if not isinstance(value, str) else value}")
    return "\n".join(out) + "\n"


def flow(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(v) for v in value) + "]"
    return fmt_value(value)


class Draft:
    """One case under construction: the trainer's spec, what is true of it, and the runbook's parts."""

    def __init__(self, r, spec, *, warmup=10, kind="train", phase_id=None, nproc=0):
        self.r, self.spec, self.nproc = r, spec, nproc
        self.seed = r.randrange(10 ** 6)
        self.T = spec.tokens or spec.batch * spec.seq * spec.world
        self.times = planned(spec, self.seed)
        self.warmup = warmup
        rest = self.times[warmup:]
        pauses = 0.0
        if spec.pause:
            pauses = spec.pause[1] * sum(1 for i in range(warmup + 1, spec.n + 1) if i % spec.pause[0] == 0 and i < spec.n)
        self.step_rate = self.T * len(rest) / sum(rest)                     # pauses left out
        self.rate = self.T * len(rest) / (sum(rest) + pauses)               # pauses included: the honest one
        self.mean_step = sum(rest) / len(rest)
        self.seconds = sum(self.times) + (spec.pause[1] * (spec.n // spec.pause[0]) if spec.pause else 0)
        self.kind, self.phase_id = kind, phase_id or r.choice(["baseline", "speed", "trial", "fitness", "go_or_not"])
        if kind == "soak":
            self.phase_id = phase_id or r.choice(["soak", "endurance", "long"])
        self.accept, self.extra_phase, self.watchdog, self.repeats = [], {}, None, None
        self.tokens_per_step = None
        self.timeout = r.choice(["60s", "90s", "2m"])
        self.margins = []
        self.more_phases = []
        self.defaults = {}
        self.metrics_more = {}
        self.more_args = {}

    def rate_at_least(self, share, of=None, unit=None):
        of = of or self.rate
        bound = sig(of * share)
        self.margins.append(abs(self.rate / bound - 1))
        unit = self.r.choice(["", " tok/s"]) if unit is None else unit
        c = f"toks_per_s.mean >= {number(bound)}{unit}"
        if self.r.random() < 0.3:
            c = {"expr": c, "why": self.r.choice(["what the budget needs", "last month's runs, with margin", "the deadline", "planned cost per token"])}
        self.accept.append(c)
        return self

    def step_at_most(self, factor, of=None):
        bound = sig((of or self.mean_step) * factor, up=True)
        self.margins.append(abs(1 - self.mean_step / bound))
        self.accept.append(f"step_time_s.mean <= {number(bound)} s")
        return self

    def also(self, *criteria):
        self.accept += criteria
        return self

    def learns(self):
        self.accept.append(self.r.choice(["loss.last < loss.first", "loss.last < 0.9 * loss.first",
                                          {"expr": "loss.last < loss.first", "why": "it must learn"}]))
        return self

    def done(self, *, decisions, codes=(), criteria=(), why_re="", why, debatable="", tags=(), phases=None, runs=1, files=None, margin=None):
        r, s = self.r, self.spec
        steps_arg, out_arg = r.choice(ARGS)
        uses_out = s.style != "stdout" or s.heartbeat or s.env is not None or bool(s.env_code)
        positional = not uses_out and r.random() < 0.4
        program = r.choice(["train.py", "pretrain.py", "main.py", "run_train.py", "fit.py"])
        text = script(s, self.seed, r, steps_arg, out_arg, positional)
        inline = r.random() < 0.35
        args = {}
        if positional:
            command = [program, "{steps}"]
        elif inline:
            command = [program, f"--{steps_arg}={{steps}}"] + ([f"--{out_arg}={{out}}"] if uses_out else [])
        else:
            command = [program]
            args = {steps_arg: "{steps}"} | ({out_arg: "{out}"} if uses_out else {})
        args |= self.more_args
        metrics = {}
        if s.style.startswith("csv"):
            metrics["csv"] = s.fname
        else:
            metrics["stdout"] = s.regex
        if s.heartbeat:
            metrics["heartbeat"] = "heartbeat_rank{rank}.jsonl"
        if s.env is not None or s.env_code:
            metrics["env"] = "env.json"
        metrics |= self.metrics_more
        defaults = {"nproc": self.nproc, "timeout": self.timeout, "warmup_steps": self.warmup} | self.defaults
        if self.watchdog:
            defaults["watchdog"] = self.watchdog
        phase = {"id": self.phase_id, "kind": self.kind, "steps": s.n, **self.extra_phase}
        if self.repeats:
            phase["repeats"] = self.repeats
        phase["accept"] = self.accept
        name = f"{r.choice(['toy', 'lab', 'my', 'team', 'night', 'desk'])}-{r.choice(['gpt', 'lm', 'model', 'net', 'run', 'trainer'])}-{r.randrange(100)}"
        title = r.choice(["Is it fit for the long run?", "Before we start the big one", "Check before renting for a week", "Speed and learning", "Fitness of this trainer"])
        book = runbook(name=name, title=title, command=command, args=args, metrics=metrics, defaults=defaults,
                       phases=phases or [phase, *self.more_phases], tokens_per_step=self.tokens_per_step)
        margin = margin if margin is not None else (min(self.margins) if self.margins else None)
        return {"files": {program: text, "runbook.yaml": book, **(files or {})},
                "try": {"command": command, "args": args, "steps": s.n, "world": s.world, "rate": round(self.rate, 2),
                        "step": round(self.mean_step, 6), "seconds": round(self.seconds, 1), "style": s.style, "regex": s.regex,
                        "csv": s.fname, "rows": len(range(s.every, s.n + 1, s.every)) + (s.n % s.every != 0)},
                "label": {"decisions": sorted(decisions), "codes": sorted(codes), "criteria": list(criteria), "why_re": why_re,
                          "margin": None if margin is None else round(margin, 3),
                          "bounds_10pct_away": None if margin is None else margin >= 0.0999,
                          "why": why, "debatable": debatable, "tags": sorted(tags), "seconds": round(self.seconds * runs, 1)}}


def make(name):
    kind, klass, build = CASES[name]
    r = random.Random(zlib.crc32(f"{SEED}:{name}".encode()))
    made = build(r)
    made["label"] = {"name": name, "kind": kind, "class": klass, **made["label"]}
    return made


import healthy  # noqa: E402,F401  (registers its cases)
import sick  # noqa: E402,F401
