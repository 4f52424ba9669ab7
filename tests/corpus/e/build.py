"""What a case is made of, and how it becomes a folder."""

import json
import math
import random
from pathlib import Path

from templates import FORMATS, LOOP, PRELUDE, RANKS, TABLES

SEED = 77177
SCRIPTS = ["train.py", "pretrain.py", "finetune.py", "main.py", "run_clm.py", "fit.py", "launch.py", "sft.py"]
STEPS = ["steps", "max-steps", "max_iters", "train-iters", "num-updates", "total_steps", "iterations"]
OUTS = ["out", "output_dir", "save", "logdir", "run-dir", "default_root_dir"]
DECISIONS = {"any": ["GO", "NO-GO", "INCONCLUSIVE"], "no": ["NO-GO"], "held": ["NO-GO", "INCONCLUSIVE"], "inc": ["INCONCLUSIVE"], "go": ["GO"], "near": ["GO", "INCONCLUSIVE"], "refused": ["REFUSED"]}
CASES: dict[str, dict] = {}


def schedule(spec: dict) -> tuple[list[float], list[float]]:
    """Seconds of each step and of the pause behind it, as the program itself will draw them."""
    env = {"clk": random.Random(spec["seed"]), "math": math, "random": random, "B": spec["b"], "N": spec["n"], "args": spec.get("argv", {}), "os": __import__("os"), "SPE": spec["spe"]}
    dt, pause = (eval(f"lambda k: {spec[key]}", env) for key in ("dt", "pause"))
    steps, pauses = [], []
    for k in range(1, spec["n"] + 1):
        steps.append(dt(k))
        pauses.append(pause(k) if k < spec["n"] else 0.0)
    return steps, pauses


def truth(spec: dict) -> dict[str, float]:
    """The true rate and step times behind the warm-up, pauses included and not."""
    w, n = spec["warmup"], spec["n"]
    if spec["ranks"]:
        env = {"B": spec["b"], "N": n, "WORLD": spec["ranks"]}
        work = eval(f"lambda k, r: {spec['work']}", env)
        mean = sum(max(work(k, r) for r in range(spec["ranks"])) + 0.002 for k in range(w + 1, n + 1)) / (n - w)
        return {"toks_per_s": spec["tok"] * spec["ranks"] / mean, "step_time_s": mean, "wall_step_time_s": mean}
    steps, pauses = schedule(spec)
    own, wall = sum(steps[w:]) / (n - w), (sum(steps[w:]) + sum(pauses[w:])) / (n - w)
    return {"toks_per_s": spec["tok"] / wall, "step_time_s": own, "wall_step_time_s": wall, "step_rate": spec["tok"] / own}


def rate_criterion(spec: dict) -> tuple[list[str], float | None]:
    """A bound at `bound` times the truth in the sense of speed: 0.85 is cleared, 1.3 is missed."""
    if spec["bound"] is None:
        return [], None
    metric = spec["metric"]
    true = truth(spec)[metric]
    if metric.endswith("time_s"):
        value = float(f"{true / spec['bound']:.4g}")
        return [f"{metric}.mean <= {value} s"], abs(true / value - 1) * 100
    value = float(f"{true * spec['bound']:.4g}")
    return [f"{metric}.mean >= {value:.10g} tok/s"], abs(true / value - 1) * 100


def case(kind: str, name: str, what: str, because: str, expect: str = "go", codes: str = "", criteria: str = "", **more) -> None:
    rng = random.Random(f"{SEED}/{name}")
    b = more.pop("b", round(rng.uniform(0.035, 0.075), 4))
    n = more.pop("n", round(rng.uniform(7.0, 9.5) / b))
    a, fall, p = rng.uniform(0.8, 2.6), rng.uniform(1.8, 5), rng.uniform(0.25, 0.5)
    tok = rng.choice([1, 3, 5, 7, 9, 11]) * 2 ** rng.randint(7, 13)
    form = more.get("form", "csv")
    spec = {
        "kind": kind, "name": name, "what": what, "because": because, "expect": DECISIONS[expect], "codes": codes.split(), "criteria": criteria.split(), "near": expect == "near",
        "b": b, "n": n, "tok": tok, "first": 1, "every": 1, "spe": rng.randint(23, 61), "seed": rng.randrange(10**6), "warmup": rng.choice([5, 8, 10, 12, 15]),
        "script": rng.choice(SCRIPTS), "steps_arg": rng.choice(STEPS), "out_arg": rng.choice(OUTS), "ranks": 0, "timeout": "90s", "nproc": 0,
        "dt": f"B * (1 + {rng.choice([0.01, 0.015, 0.02, 0.03])} * clk.gauss(0, 1))", "pause": "0.0", "lie": "pass", "talk": "pass", "setup": "", "before": "pass", "end": "", "emit": None,
        "loss": f"{a:.3f} + {fall:.3f} * k ** -{p:.2f} + {rng.uniform(0.005, 0.03):.4f} * rng.gauss(0, 1)", "lr": f"{rng.choice([6e-4, 3e-4, 1e-3, 2e-5])} * min(1, k / 8) * (0.55 + 0.45 * math.cos(math.pi * k / N))",
        "norm": f"{rng.uniform(0.2, 0.8):.3f} + {rng.uniform(0.5, 3):.2f} * k ** -0.5 + 0.05 * abs(rng.gauss(0, 1))",
        "bound": 0.8, "accept": ["loss.last < loss.first"], "form": form, "cols": [], "metrics": {}, "trainer": {}, "defaults": {}, "phase": {}, "phases": None, "files": {}, "env": None, "read": None,
        "work": "B", "boot": "pass", "first_batch": "0.1", "more": "", "seq": min(2048, tok & -tok),  # divides the tokens of a step
        "metric": "toks_per_s" if form in TABLES else FORMATS[form][3],
    } | more
    if form in ("modded", "llmc", "hms", "logging") and "tokens_per_step" not in spec["trainer"]:
        spec["trainer"] = {"tokens_per_step": spec["tok"], **spec["trainer"]}
    CASES[name] = spec


def indent(text: str, source: str, marker: str) -> str:
    """Puts lines for a marker at the marker's indentation."""
    if text == "pass" and marker != "@TALK@":
        return "".join(line for line in source.splitlines(True) if line.strip() != marker)
    pad = next((line[: len(line) - len(line.lstrip())] for line in source.splitlines() if line.strip() == marker), "")
    return source.replace(pad + marker, "\n".join(pad + line if line else "" for line in text.splitlines()))


def program(spec: dict) -> str:
    source = RANKS if spec["ranks"] else PRELUDE + LOOP
    setup, emit = spec["setup"], spec["emit"]
    if spec["form"] in TABLES:
        file, columns, header = TABLES[spec["form"]]
        columns = columns + spec["cols"]
        opening = f'table = (OUT / "{file}").open("w", buffering=1)\n' + (f'table.write("{",".join(c for c, _ in columns)}\\n")\n' if header else "")
        emit = emit or f'table.write(",".join(map(str, [{", ".join(e for _, e in columns)}])) + "\\n")'
    else:
        opening, line = FORMATS[spec["form"]][:2]
        opening, emit = f"SHIFT = 0.0\n{opening}" if "SHIFT" in line else opening, emit or line
    if spec["env"]:
        opening += f'\n(OUT / "env.json").write_text(json.dumps({spec["env"]}))'
    parts = {"SETUP": opening + "\n" + setup, "EMIT": emit, "BEFORE": spec["before"], "LIE": spec["lie"], "TALK": spec["talk"], "END": spec["end"], "BOOT": spec["boot"]}
    for marker, text in parts.items():
        source = indent(text, source, f"@{marker}@")
    for key in ("dt", "pause", "loss", "lr", "norm", "tok", "b", "first", "every", "spe", "seed", "work", "first_batch", "more", "seq"):
        source = source.replace(f"@{key.upper()}@", str(spec[key]))
    keys = {"STEPS": spec["steps_arg"], "OUT": spec["out_arg"], "WORLD": spec["ranks"]}
    for key, value in keys.items():
        source = source.replace(f"@{key}@", str(value).replace("-", "_"))
    return source


def runbook(spec: dict) -> dict:
    bounds, distance = rate_criterion(spec)
    spec["bound_distance_pct"] = None if distance is None else round(distance, 1)
    args = {spec["steps_arg"]: "{steps}"}
    files = spec["form"] in TABLES or spec["ranks"] or spec["env"] or spec["read"] or "metrics" in spec["metrics"]
    if files:
        args[spec["out_arg"]] = "{out}"
    if spec["ranks"]:
        metrics = {"csv": "training.csv", "heartbeat": "heartbeat_rank{rank}.jsonl", "env": "env.json"}
    elif spec["form"] in TABLES:
        metrics = {"csv": TABLES[spec["form"]][0]}
    else:
        metrics = {"stdout": FORMATS[spec["form"]][2]}
    if spec["env"]:
        metrics["env"] = "env.json"
    trainer = {"command": [spec["script"]], "args": args, "metrics": spec["read"] or metrics | spec["metrics"]} | spec["trainer"]
    phase = {"id": "baseline", "kind": "train", "steps": spec["n"], "accept": bounds + spec["accept"]} | spec["phase"]
    phases = [phase] if spec["phases"] is None else [phase if p == "MAIN" else p for p in spec["phases"]]
    defaults = {"nproc": spec["nproc"], "timeout": spec["timeout"], "warmup_steps": spec["warmup"]} | spec["defaults"]
    return {"schema": 1, "name": spec["name"].replace("_", "-"), "trainer": trainer, "defaults": defaults, "phases": phases}


def write(folder: Path, spec: dict) -> None:
    folder.mkdir(parents=True)
    book = runbook(spec)
    flow = lambda value: json.dumps(value, ensure_ascii=False)
    text = "".join(f"{key}: {flow(value)}\n" for key, value in book.items() if key not in ("trainer", "phases"))
    text += "trainer:\n" + "".join(f"  {key}: {flow(value)}\n" for key, value in book["trainer"].items())
    text += "phases:\n" + "".join("  - " + "\n    ".join(f"{key}: {flow(value)}" for key, value in phase.items()) + "\n" for phase in book["phases"])
    (folder / "runbook.yaml").write_text(text, encoding="utf-8")
    (folder / spec["script"]).write_text(spec.get("source") or program(spec), encoding="utf-8")
    for name, content in spec["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    label = {key: spec[key] for key in ("name", "kind", "what", "expect", "codes", "criteria", "bound_distance_pct", "near", "because")}
    (folder / "label.json").write_text(json.dumps(label, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
