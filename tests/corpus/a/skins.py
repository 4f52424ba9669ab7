"""Trainer scripts in several handwritings: a schedule, a loss curve, a log format, and the code around them."""
import math
import random
import re
import textwrap
from dataclasses import dataclass, field

ARGS = [("steps", "out"), ("max-steps", "output-dir"), ("num_iters", "workdir"), ("max_iters", "out_dir"),
        ("train-steps", "save-dir"), ("iterations", "logdir")]
DOCS = ["Small language model trainer.", "Finetune the thing.", "GPT from scratch, single node.", "Pretraining loop.",
        "Train a byte-level model.", "Character model, one process.", "MoE toy.", "Quick trainer for ablations.",
        "Training entry point.", "Trains and logs. Do not touch before the deadline."]
WORDS = ["corpus", "tinystories", "wiki_en", "code_mix", "shards_v3", "openweb", "pile_small", "proteins", "chess", "logs"]
VOCABULARY = {"due": ["next_at", "deadline_s", "target_t"], "busy": ["work_s", "acc_time", "spent"], "mark": ["prev_t", "t_last", "row_at"],
              "begin": ["t0", "t_begin", "tick"], "table": ["csv_file", "log_f", "sink"], "cost": ["work_time", "planned_s", "step_cost"],
              "loss_at": ["fake_loss", "curve", "objective"], "lr_at": ["schedule", "get_lr", "lr_for"], "beat": ["heartbeat_line", "emit", "pulse"],
              "_state": ["_wander", "_ar", "_w"], "_noise": ["_rng", "_dice", "_jit"]}


@dataclass
class Spec:
    n: int
    base: float                       # planned seconds of a step
    cv: float = 0.015
    rho: float = 0.0
    effect: str = ""                  # source: changes t inside cost(i, n)
    pause: tuple | None = None        # (every, seconds): validation or checkpoint
    loss: str = ""                    # body of loss_at(i, n); empty: a decaying curve
    loss_from: float = 0.0
    loss_to: float = 0.0
    batch: int = 8
    seq: int = 512
    world: int = 1
    every: int = 1
    style: str = "csv"                # csv, csv-nohead, stdout
    fname: str = "training.csv"
    columns: list = field(default_factory=list)    # (name, f-string)
    fmt: str = ""                     # f-string of a printed line
    regex: str = ""
    to_stderr: bool = False
    eol: str = "\\n"
    cut_last: bool = False
    rate: str = "T * k / gap"         # what it prints as tokens/s
    row_extra: str = ""               # source before the row is written
    top: str = ""                     # source at the head of each step
    after: str = ""                   # source after each row or step
    final: str = ""
    prologue: str = ""
    first: int = 1                    # number of the first step
    args: list = field(default_factory=list)       # (flag, type, default)
    heartbeat: bool = False
    hb_extra: str = ""
    env: dict | None = None
    env_code: str = ""
    imports: tuple = ()
    tokens: int = 0


def schedule_source(s: Spec, seed: int) -> str:
    return f'''
_noise = random.Random({seed})
_state = [_noise.gauss(0, 1)]


def cost(i, n):
    """Seconds of work in step i of n."""
    _state[0] = {s.rho} * _state[0] + {round((1 - s.rho ** 2) ** 0.5, 6)} * _noise.gauss(0, 1)
    t = {s.base} * (1 + {s.cv} * max(-2.5, min(2.5, _state[0])))
{textwrap.indent(textwrap.dedent(s.effect).strip(), "    ")}
    return t
'''.replace("\n\n    return t", "\n    return t")


def loss_source(s: Spec, seed: int, r: random.Random) -> str:
    hi, lo = s.loss_from or round(r.uniform(5.2, 10.6), 2), s.loss_to or round(r.uniform(1.9, 3.8), 2)
    if s.loss:
        body = textwrap.dedent(s.loss).strip()
    elif r.random() < 0.5:
        body = f"return {lo} + {round(hi - lo, 3)} * math.exp(-{round(r.uniform(2.6, 4.5), 2)} * i / n) + _jitter.gauss(0, {round(r.uniform(0.005, 0.03), 4)})"
    else:
        body = f"return {lo - 0.3:.3f} + {round(hi - lo, 3)} * i ** -{round(r.uniform(0.35, 0.55), 2)} + _jitter.gauss(0, {round(r.uniform(0.005, 0.03), 4)})"
    return f'''
_jitter = random.Random({seed + 1})


def loss_at(i, n):
{textwrap.indent(body, "    ")}
'''


def planned(s: Spec, seed: int) -> list[float]:
    """The schedule's step times, as the trainer will draw them."""
    space = {"random": random, "math": math}
    exec(schedule_source(s, seed), space)
    return [space["cost"](i, s.n) for i in range(1, s.n + 1)]


def script(s: Spec, seed: int, r: random.Random, steps_arg: str, out_arg: str, positional: bool) -> str:
    """The whole text of train.py."""
    uses_out = s.style != "stdout" or s.heartbeat or s.env is not None or bool(s.env_code)
    ind = textwrap.indent
    head = [f'"""{r.choice(DOCS)}  ({r.choice(WORDS)})"""']
    imports = {"math", "random", "time", "argparse", *s.imports}
    if s.heartbeat or s.env is not None or s.env_code:
        imports |= {"json", "os", "datetime"}
    if s.to_stderr:
        imports.add("sys")
    if uses_out:
        imports.add("os")
    head += [f"import {name}" for name in sorted(imports)]
    T = s.tokens or s.batch * s.seq * s.world
    consts = [f"BATCH = {s.batch}", f"SEQ = {s.seq}", f"T = {T}" + ("" if s.tokens else "  # tokens a step, all ranks"),
              f"PEAK_LR = {r.choice(['3e-4', '6e-4', '1e-3', '2.5e-4', '8e-5'])}"]
    helpers = "def lr_at(i, n):\n    return PEAK_LR * min(1.0, i / 8) * (0.55 + 0.45 * math.cos(math.pi * i / n))\n"
    if r.random() < 0.4:
        helpers = "def lr_at(i, n):\n    return PEAK_LR * (1 - 0.9 * i / n)\n"
    ap = ["parser = argparse.ArgumentParser()"]
    if positional:
        ap.append('parser.add_argument("steps", type=int)')
        steps_var = "steps"
    else:
        ap.append(f'parser.add_argument("--{steps_arg}", type=int, default={s.n})')
        steps_var = steps_arg.replace("-", "_")
    if uses_out:
        ap.append(f'parser.add_argument("--{out_arg}", default="runs/last")')
    for flag, kind, default in s.args:
        ap.append(f'parser.add_argument("--{flag}", type={kind}, default={default!r})')
    ap += ["args = parser.parse_args()", f"steps = args.{steps_var}"]
    if uses_out:
        ap += [f"out = args.{out_arg.replace('-', '_')}", "os.makedirs(out, exist_ok=True)"]
    ap.append('rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))'
              if "os" in imports else "rank, world = 0, 1")
    if s.prologue:
        ap.append(textwrap.dedent(s.prologue).strip())
    if s.env_code:
        ap.append(textwrap.dedent(s.env_code).strip())
    elif s.env is not None:
        ap.append(f'''if rank == 0:
    settings = {s.env!r}
    with open(os.path.join(out, "env.json"), "w") as f:
        json.dump({{"schema_version": 1, "time_unix_s": time.time(), "world_size": world, "tokens_per_step": T, **settings}}, f)''')
    if s.heartbeat:
        helpers += '''

def beat(file, rank, step, msg, **more):
    now = time.time()
    iso = datetime.datetime.fromtimestamp(now, datetime.timezone.utc).isoformat()
    file.write(json.dumps({"ts": now, "iso": iso, "pid": os.getpid(), "rank": rank, "step": step, "msg": msg, **more}) + "\\n")
'''
        ap.append('hb = open(os.path.join(out, f"heartbeat_rank{rank}.jsonl"), "w", buffering=1)')
        ap.append('beat(hb, rank, 0, "boot", world_size=world, device="cpu")')
    if s.style.startswith("csv"):
        names = ",".join(name for name, _ in s.columns)
        cells = ",".join(text for _, text in s.columns)
        ap.append(f'table = open(os.path.join(out, "{s.fname}"), "w", buffering=1, newline="") if rank == 0 else None')
        if s.style == "csv":
            ap.append(f'if rank == 0:\n    table.write("{names}{s.eol}")')
        if s.cut_last:
            row = f'table.write(f"{cells}" + ("" if i == steps else "{s.eol}"))\ntable.flush()'
        elif s.eol == "\\n" and (how := r.random()) < 0.45:
            if how < 0.2:
                row = f'print(f"{cells}", file=table, flush=True)'
            else:
                row = f'with open(os.path.join(out, "{s.fname}"), "a") as f:\n    f.write(f"{cells}\\n")'
        else:
            row = f'table.write(f"{cells}{s.eol}")'
        row = "if rank == 0:\n" + ind(row, "    ")
        if r.random() < 0.5:
            row += f'\nif {"rank == 0 and " if s.world > 1 else ""}i % 50 == 0:\n    print(f"... {{step}} of {{steps}}")'
    else:
        row = f'print(f"""{s.fmt}"""' + (", file=sys.stderr" if s.to_stderr else "") + r.choice(["", ", flush=True"]) + ")"
        row = row.replace('"""', "'" if '"' in s.fmt else '"')
        if '"' not in s.fmt and not s.to_stderr and r.random() < 0.35:
            if r.random() < 0.5:
                row = f'sys.stdout.write(f"{s.fmt}\\n")\nsys.stdout.flush()'
                head.insert(1, "import sys")
            else:
                row = f'log.info(f"{s.fmt}")'
                head.insert(1, "import logging")
                helpers += '\n\nlogging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")\nlog = logging.getLogger("train")\n'
    if s.row_extra:
        row = textwrap.dedent(s.row_extra).strip() + "\n" + row
    if s.heartbeat:
        row += '\n' + (textwrap.dedent(s.hb_extra).strip() or
                       'beat(hb, rank, step, "progress", loss=loss, lr=lr, toks_per_s=rate, step_time_s=busy / k, compute_time_s=0.97 * busy / k)')
    loop = ["elapsed = 0.0", "due = mark = start = time.perf_counter()", "k, busy = 0, 0.0",
            "for i in range(1, steps + 1):", "    step = i" + ("" if s.first == 1 else " - 1" if s.first == 0 else f" + {s.first - 1}")]
    if s.top:
        loop.append(ind(textwrap.dedent(s.top).strip(), "    "))
    loop += ["    begin = time.perf_counter()", "    due += cost(i, steps)",
             "    time.sleep(max(0.0, due - time.perf_counter()))  # forward, backward, optimizer",
             "    now = time.perf_counter()", "    dt = now - begin", "    busy += dt", "    k += 1",
             "    loss, lr = loss_at(i, steps), lr_at(i, steps)"]
    row = "gap, mark, elapsed = now - mark, now, now - start\nrate = " + s.rate + "\n" + row + "\nk, busy = 0, 0.0"
    if s.every > 1:
        row = f"if i % {s.every} == 0 or i == steps:\n" + ind(row, "    ")
    loop.append(ind(row, "    "))
    if s.pause:
        word = r.choice(["evaluating", "saving checkpoint", "running validation", "ckpt ->"])
        loop.append(f'    if i % {s.pause[0]} == 0:\n        print("{word} at", step)\n        due += {s.pause[1]}\n'
                    '        time.sleep(max(0.0, due - time.perf_counter()))')
    if s.after:
        loop.append(ind(textwrap.dedent(s.after).strip(), "    "))
    end = []
    if s.style.startswith("csv"):
        end.append("if rank == 0:\n    table.close()")
    if s.final:
        end.append(textwrap.dedent(s.final).strip())
    if s.heartbeat:
        end.append('beat(hb, rank, step, "done", status="done", why="")')
    if r.random() < 0.6:
        end.append(r.choice(['print("finished")', 'print("training done in %.1fs" % (time.perf_counter() - start))', 'print("bye")']))
    body = "\n".join(ap + loop + end)
    used = body
    consts_text = "\n".join(consts)
    model = schedule_source(s, seed) + "\n" + loss_source(s, seed, r)
    shape = r.choice(["flat", "main", "class"])
    if shape == "flat":
        text = "\n".join(head) + "\n\n" + consts_text + "\n" + model + "\n\n" + helpers + "\n\n" + used + "\n"
    elif shape == "main":
        text = "\n".join(head) + "\n\n" + consts_text + "\n" + model + "\n\n" + helpers + "\n\ndef main():\n" + ind(used, "    ") + \
            '\n\n\nif __name__ == "__main__":\n    main()\n'
    else:
        text = "\n".join(head) + "\n\n" + consts_text + "\n" + model + "\n\n" + helpers + "\n\nclass Trainer:\n    def fit(self):\n" + \
            ind(used, "        ") + '\n\n\nif __name__ == "__main__":\n    Trainer().fit()\n'
    for name, others in VOCABULARY.items():
        text = re.sub(rf"(?<!['\"])\b{name}\b(?!['\"])", r.choice([name, *others]), text)
    return re.sub(r"\n{4,}", "\n\n\n", text)
