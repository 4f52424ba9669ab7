"""Building blocks of the synthetic trainers: models that learn, ways to log, a skeleton. Text only; generate.py puts it together."""

HEAD = '''#!/usr/bin/env python3
"""{doc}"""
import os
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
import argparse, json, math, random, shutil, signal, subprocess, sys, threading, time
from pathlib import Path
{np}
SEED = {seed}
TOKENS = {tokens}      # tokens of one optimizer step
PEAK_LR = {lr}
EVERY = {every}
RANK = int(os.environ.get("RANK", 0))
WORLD = int(os.environ.get("WORLD_SIZE", 1))
'''

MODELS = {
    "softmax": '''
class Model:
    """Softmax regression on blobs."""
    def __init__(self, seed):
        self.r = np.random.default_rng(seed)
        self.centres = self.r.normal(size=(V, 24)) * 0.9
        self.w = np.zeros((24, V))
    def step(self, f):
        y = self.r.integers(V, size=64)
        x = self.centres[y] + self.r.normal(size=(64, 24))
        z = x @ self.w
        z -= z.max(1, keepdims=True)
        p = np.exp(z)
        p /= p.sum(1, keepdims=True)
        loss = -np.log(p[np.arange(64), y] + 1e-12).mean()
        p[np.arange(64), y] -= 1
        g = x.T @ p / 64
        self.w -= 0.12 * f * g
        return float(loss), float(np.sqrt((g * g).sum()))
''',
    "bigram": '''
class Model:
    """A bigram language model on text drawn from a Markov chain."""
    def __init__(self, seed):
        self.r = np.random.default_rng(seed)
        p = self.r.random((V, V)) ** 14 + 1e-5
        self.cum = np.cumsum(p / p.sum(1, keepdims=True), axis=1)
        self.table = np.zeros((V, V))
    def step(self, f):
        a = self.r.integers(V, size=256)
        b = np.minimum((self.r.random(256)[:, None] > self.cum[a]).sum(1), V - 1)
        z = self.table[a]
        z = z - z.max(1, keepdims=True)
        p = np.exp(z)
        p /= p.sum(1, keepdims=True)
        loss = -np.log(p[np.arange(256), b] + 1e-12).mean()
        p[np.arange(256), b] -= 1
        g = np.zeros_like(self.table)
        np.add.at(g, a, p / 256)
        self.table -= 0.35 * V * f * g
        return float(loss), float(np.sqrt((g * g).sum()))
''',
    "ngram": '''
class Model:
    """Counts of character pairs with add-half smoothing, on babble with a grammar of its own."""
    def __init__(self, seed):
        self.r = random.Random(seed)
        syll = ["".join(self.r.choice("bdfgklmnprstvz") + self.r.choice("aeiou")) for _ in range(14)]
        self.words = ["".join(self.r.choice(syll) for _ in range(self.r.randint(1, 4))) for _ in range(60)]
        self.n, self.total, self.last = {}, {}, " "
    def step(self, f):
        text = " ".join(self.r.choice(self.words) for _ in range(24)) + " "
        loss = 0.0
        for c in text:
            n = self.n.get((self.last, c), 0) + 0.5
            loss -= math.log(n / (self.total.get(self.last, 0) + 0.5 * V))
            self.n[self.last, c] = n + 0.5
            self.total[self.last] = self.total.get(self.last, 0) + 1
            self.last = c
        return loss / len(text), 1.0 / (1.0 + 0.02 * len(self.n))
''',
    "matfac": '''
class Model:
    """Matrix factorisation by stochastic gradients, on made-up ratings."""
    def __init__(self, seed):
        self.r = np.random.default_rng(seed)
        a, b = self.r.normal(size=(80, 4)), self.r.normal(size=(4, 60))
        self.m = a @ b
        self.u, self.v = self.r.normal(size=(80, 6)) * 0.3, self.r.normal(size=(6, 60)) * 0.3
    def step(self, f):
        i, j = self.r.integers(80, size=128), self.r.integers(60, size=128)
        u, v = self.u[i], self.v[:, j].T
        e = (u * v).sum(1) - self.m[i, j] - self.r.normal(size=128) * 0.2
        gu, gv = e[:, None] * v, e[:, None] * u
        np.add.at(self.u, i, -0.06 * f * gu)
        np.add.at(self.v.T, j, -0.06 * f * gv)
        return float((e * e).mean()), float(np.sqrt((gu * gu).sum() + (gv * gv).sum()) / 12)
''',
    "twolayer": '''
class Model:
    """Two layers, tanh between, learning a wavy function."""
    def __init__(self, seed):
        self.r = np.random.default_rng(seed)
        self.w1, self.w2 = self.r.normal(size=(8, 32)) * 0.5, self.r.normal(size=(32, 1)) * 0.3
        self.t = self.r.normal(size=8)
    def step(self, f):
        x = self.r.normal(size=(96, 8))
        y = 1.5 * np.sin(x @ self.t)[:, None] + (x @ self.t)[:, None] * 0.7 + self.r.normal(size=(96, 1)) * 0.15
        h = np.tanh(x @ self.w1)
        e = h @ self.w2 - y
        g2 = h.T @ e / 96
        g1 = x.T @ ((e @ self.w2.T) * (1 - h * h)) / 96
        self.w1 -= 0.12 * f * g1
        self.w2 -= 0.12 * f * g2
        return float((e * e).mean()), float(np.sqrt((g1 * g1).sum() + (g2 * g2).sum()))
''',
    "sums": '''
class Model:
    """Least squares whose loss is a sum over the batch, not a mean."""
    def __init__(self, seed):
        self.r = np.random.default_rng(seed)
        self.t, self.w = self.r.normal(size=16), np.zeros(16)
    def step(self, f):
        x = self.r.normal(size=(32, 16))
        e = x @ self.w - x @ self.t - self.r.normal(size=32)
        g = x.T @ e
        self.w -= 0.0016 * f * g
        return float((e * e).sum() * 0.5), float(np.sqrt((g * g).sum()))
''',
    "bandit": '''
class Model:
    """REINFORCE on a contextual bandit; the loss is the negative return."""
    def __init__(self, seed):
        self.r = np.random.default_rng(seed)
        self.pay = self.r.random((6, 8))
        self.th = np.zeros((6, 8))
        self.base = 0.5
    def step(self, f):
        s = self.r.integers(6, size=96)
        p = np.exp(self.th[s])
        p /= p.sum(1, keepdims=True)
        a = np.minimum((self.r.random(96)[:, None] > np.cumsum(p, 1)).sum(1), 7)
        reward = self.pay[s, a] + self.r.normal(size=96) * 0.1
        g = -p
        g[np.arange(96), a] += 1
        g *= (reward - self.base)[:, None] / 96
        t = np.zeros_like(self.th)
        np.add.at(t, s, g)
        self.th += 6.0 * f * t
        self.base += 0.05 * (reward.mean() - self.base)
        return float(-reward.mean() * 10), float(np.sqrt((t * t).sum()))
''',
    "density": '''
class Model:
    """Gaussian density by maximum likelihood: the loss in nats goes below zero by right."""
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.mu, self.ls = 0.0, 0.6
    def step(self, f):
        x = [self.r.gauss(0.8, 0.05) for _ in range(64)]
        s2 = math.exp(2 * self.ls)
        loss = sum(self.ls + (v - self.mu) ** 2 / (2 * s2) for v in x) / 64 + 0.5 * math.log(2 * math.pi)
        gm = sum((self.mu - v) / s2 for v in x) / 64
        gs = 1 - sum((v - self.mu) ** 2 for v in x) / 64 / s2
        self.mu -= 0.3 * f * gm * min(1.0, s2)
        self.ls -= 0.04 * f * gs
        return loss, math.hypot(gm, gs)
''',
    "logit": '''
class Model:
    """Logistic regression in plain Python."""
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.t = [self.r.gauss(0, 1.6) for _ in range(10)]
        self.w = [0.0] * 10
    def step(self, f):
        g, loss = [0.0] * 10, 0.0
        for _ in range(40):
            x = [self.r.gauss(0, 1) for _ in range(10)]
            y = 1.0 if sum(a * b for a, b in zip(x, self.t)) > 0 else 0.0
            p = 1 / (1 + math.exp(-max(-30, min(30, sum(a * b for a, b in zip(x, self.w))))))
            loss -= math.log(max(1e-12, p if y else 1 - p)) / 40
            for i in range(10):
                g[i] += (p - y) * x[i] / 40
        for i in range(10):
            self.w[i] -= 0.35 * f * g[i]
        return loss, math.sqrt(sum(v * v for v in g))
''',
}
PURE = {"ngram", "density", "logit"}

SCHEDULES = {
    "constant": "def schedule(k, n):\n    return 1.0\n",
    "cosine": '''def schedule(k, n):
    warm = max(2, n // 12)
    if k <= warm:
        return k / warm
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (k - warm) / max(1, n - warm)))
''',
    "restarts": '''def schedule(k, n):
    period = max(10, n // 4)
    return 0.08 + 0.46 * (1 + math.cos(math.pi * ((k - 1) % period) / period))
''',
    "linear": '''def schedule(k, n):
    warm = max(2, n // 20)
    return k / warm if k <= warm else max(0.05, 1 - 0.95 * (k - warm) / (n - warm))
''',
    "steps": "def schedule(k, n):\n    return 1.0 if k < 0.6 * n else 0.3 if k < 0.85 * n else 0.1\n",
}

TRANSFORM = {"nat": "loss", "bits": "loss / math.log(2)", "ppl": "math.exp(min(20.0, loss))", "milli": "loss * 1e-3", "big": "loss * 20.0"}

# --- ways to log: code, metrics of the runbook, what a bound on speed is about -------------------------------------------------
WRITERS = {}


def writer(name, kind, metrics, code, *, close="pass", out=True, grad=False, zero=False):
    """`code` is a class, or begins within its `__init__`; `close` is what the log does at the end."""
    if "class Log" not in code:
        code = "\nclass Log:\n    def __init__(self, args):" + code
    code += f"    def close(self):\n        {close}\n"
    WRITERS[name] = dict(kind=kind, metrics=metrics, code=code, out=out, grad=grad, zero=zero)


writer("contract", "toks", "{csv: training.csv}", '''
        Path(args.out).mkdir(parents=True, exist_ok=True)
        self.f = open(Path(args.out) / "training.csv", "a", buffering=1)
        self.f.write("step,loss,lr,toks_per_s,step_time_s,grad_norm,tokens,wall_s\\n")
    def __call__(self, r):
        self.f.write(f"{r.k},{fmt(r.loss)},{r.lr:.6g},{r.rate:.1f},{r.step_s:.6f},{fmt(r.gn)},{r.tokens},{r.total:.4f}\\n")
''', close="self.f.close()", grad=True)

writer("csv4", "toks", "{csv: training.csv}", '''
        Path(args.out).mkdir(parents=True, exist_ok=True)
        self.f = open(Path(args.out) / "training.csv", "w", buffering=1)
        print("step,loss,lr,toks_per_s", file=self.f)
    def __call__(self, r):
        print(r.k, fmt(r.loss), f"{r.lr:.3e}", f"{r.rate:.2f}", sep=",", file=self.f)
''', close="self.f.close()")

writer("itercsv", "toks", "{csv: log.csv}", '''
import csv
class Log:
    def __init__(self, args):
        Path(args.out).mkdir(parents=True, exist_ok=True)
        self.f = open(Path(args.out) / "log.csv", "w", newline="")
        self.w = csv.writer(self.f, lineterminator="\\n")
        self.w.writerow(["iter", "train_loss", "step_time_ms", "ktoks_per_s", "lr"])
        self.f.flush()
    def __call__(self, r):
        self.w.writerow([r.k, fmt(r.loss), round(1e3 * r.step_s, 3), round(r.rate / 1e3, 4), r.lr])
        self.f.flush()
''', close="self.f.close()")

writer("lightning", "toks", "{csv: metrics.csv, extra: {val_loss: nat}}", '''
class Log:
    """Columns and empty cells as Lightning's CSVLogger leaves them."""
    def __init__(self, args):
        Path(args.out).mkdir(parents=True, exist_ok=True)
        self.f = open(Path(args.out) / "metrics.csv", "w", buffering=1)
        self.f.write("epoch,step,tokens_per_sec,train_loss,val_loss\\n")
    def __call__(self, r):
        self.f.write(f"{(r.k - 1) // 60},{r.k - 1},{r.rate},{fmt(r.loss)},\\n")
        if r.k % 60 == 0:
            self.f.write(f"{(r.k - 1) // 60},{r.k - 1},,,{fmt(abs(r.loss) * 1.05)}\\n")
''', close="self.f.close()", zero=True)

writer("nanogpt", "time", r"""{stdout: 'iter (?P<step>\d+): loss (?P<loss>[\d.]+), time (?P<step_time_ms>[\d.]+)ms'}""", '''
        print(f"tokens per iteration will be: {TOKENS:,}")
        print("number of parameters: 0.01M")
    def __call__(self, r):
        if r.k % 100 == 1:
            print(f"step {r.k - 1}: train loss {fmt(r.loss)}, val loss {fmt(r.loss + 0.02)}", flush=True)
        print(f"iter {r.k - 1}: loss {fmt(r.loss)}, time {1e3 * r.one:.2f}ms, mfu {12 + r.k % 3:.2f}%", flush=True)
''', out=False, zero=True)

writer("titan", "rank", r"""{stdout: 'step: +(?P<step>\d+) +loss: +(?P<loss>[\d.]+).* tps: +(?P<toks_per_s_per_rank>[\d,]+)'}""", '''
        sys.stderr.write("[titan] 2026-11-22 04:00:00,000 - root - INFO - Starting job: toy\\n")
    def __call__(self, r):
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        sys.stderr.write(f"[titan] {stamp},{int(r.total * 1e3) % 1000:03d} - root - INFO - \\x1b[31mstep: {r.k:2d}  \\x1b[32mloss: {fmt(r.loss):>7}  "
                         f"\\x1b[33mmemory:  0.81GiB(0.85%)  \\x1b[34mtps: {r.rate:,.0f}  \\x1b[36mtflops: 1.23  \\x1b[35mmfu: 0.39%\\x1b[39m\\n")
        sys.stderr.flush()
''', close='sys.stderr.write("[titan] Training completed\\n")', out=False)

writer("megatron", "time", r"""{stdout: 'iteration +(?P<step>\d+)/.*elapsed time per iteration \(ms\): (?P<step_time_ms>[\d.]+).*learning rate: (?P<lr>[-+\dE.]+).*lm loss: (?P<loss>[-+\dE.]+).*grad norm: (?P<grad_norm>[\d.]+)'}""", '''
        self.n = args.steps
        print("using world size: 1, data-parallel size: 1 ...")
        print("training ...", flush=True)
    def __call__(self, r):
        loss = f"{r.loss:.6E}" if math.isfinite(r.loss) else fmt(r.loss)
        print(f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {r.k:8d}/{self.n:8d} | consumed samples: {r.k * 32:12d} | elapsed time per iteration (ms): "
              f"{1e3 * r.gap / r.steps:.1f} | learning rate: {r.lr:.6E} | global batch size:    32 | lm loss: {loss} | loss scale: 1.0 | "
              f"grad norm: {r.gn:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |", flush=True)
''', close='print("[after training is done] datetime: now")', out=False, grad=True)

writer("deepspeed", "time", r"""{stdout: 'steps: (?P<step>\d+) loss: (?P<loss>[\d.]+) iter time \(s\): (?P<step_time_s>[\d.]+) samples/sec: (?P<samples_per_s>[\d.]+)', extra: {samples_per_s: samples/s}}""", '''
        print("[INFO] [config.py:1000:print] DeepSpeedEngine configuration:")
    def __call__(self, r):
        t = r.gap / r.steps
        stamp = time.strftime("[%Y-%m-%d %H:%M:%S,000]")
        print(f"{stamp} [INFO] [logging.py:96:log_dist] [Rank 0] step={r.k}, skipped=0, lr=[{r.lr:.6f}], mom=[(0.9, 0.95)]")
        print(f"{stamp} [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd_microstep: {300 * t:.2f} | bwd_microstep: {600 * t:.2f} | step_microstep: {100 * t:.2f}")
        print(f"steps: {r.k} loss: {fmt(r.loss)} iter time (s): {t:.5f} samples/sec: {32 / t:.3f}", flush=True)
''', out=False)

writer("hf", "toks", r"""{stdout: "'loss': (?P<loss>[-+\\d.e]+), 'grad_norm': (?P<grad_norm>[-+\\d.e]+), 'learning_rate': (?P<lr>[-+\\d.e]+).*'tokens_per_second': (?P<toks_per_s>[\\d.]+), 'step': (?P<step>\\d+)"}""", '''
        self.n = args.steps
        print("***** Running training *****")
        print(f"  Total optimization steps = {args.steps}", flush=True)
    def __call__(self, r):
        d = {"loss": float(fmt(r.loss)), "grad_norm": round(r.gn, 6), "learning_rate": r.lr, "epoch": round(r.k / self.n, 3),
             "tokens_per_second": round(r.rate, 2), "step": r.k}
        print(d, flush=True)
''', close='print({"train_runtime": 10.0, "train_loss": 1.0, "epoch": 1.0})', out=False, grad=True)

writer("keras", "time", r"""{stdout: 'step (?P<step>\d+) - (?P<step_time_ms>[\d.]+)ms/step - .*loss: (?P<loss>[\d.]+)'}""", '''
        self.n = args.steps
    def __call__(self, r):
        bar = "━" * (20 * r.k // self.n)
        sys.stderr.write(f"\\r\\x1b[1m{r.k}/{self.n}\\x1b[0m {bar:20s} {r.total:.0f}s")
        sys.stderr.flush()
        print(f"step {r.k} - {1e3 * r.gap / r.steps:.2f}ms/step - accuracy: {0.5 + 0.4 * r.k / self.n:.4f} - loss: {fmt(r.loss)}", flush=True)
''', close='sys.stderr.write("\\n")', out=False)

writer("llmc", "toks", r"""{stdout: 'step +(?P<step>\d+)/\d+ \| loss (?P<loss>[\d.]+) .*\| norm (?P<grad_norm>[\d.]+) .*\| (?P<step_time_ms>[\d.]+) ms .*\| (?P<toks_per_s>[\d.]+) tok/s'}""", '''
        self.n = args.steps
        print("+-----------------------+----------------------------------------------------+")
        print("| device                | toy                                                |")
    def __call__(self, r):
        print(f"step {r.k:5d}/{self.n} | loss {fmt(r.loss)} (+0.12z)| norm {r.gn:.4f} (-0.31z)| lr {r.lr:.2e} | {1e3 * r.step_s:.2f} ms | 41.2% bf16 MFU | {r.rate:.0f} tok/s", flush=True)
''', close='print("total average iteration time: -")', out=False, grad=True)

writer("jsonl", "toks", r"""{stdout: '"step": (?P<step>\d+), "loss": (?P<loss>[-+\w.]+), "tokens_per_second": (?P<toks_per_s>[\d.]+)'}""", '''
        pass
    def __call__(self, r):
        print(json.dumps({"event": "train", "step": r.k, "loss": float(fmt(r.loss)), "tokens_per_second": round(r.rate, 3), "lr": r.lr, "note": "größe ≤ 3 µs"}, ensure_ascii=False), flush=True)
''', close='print(json.dumps({"event": "end"}))', out=False)

writer("kv", "toks", r"""{stdout: 'step=(?P<step>\d+) loss=(?P<loss>[-+\w.]+) gnorm=(?P<grad_norm>[-+\w.]+) .*tps=(?P<toks_per_s>[\d.]+)'}""", '''
        print("level=info msg=start")
    def __call__(self, r):
        print(f"level=info ts={time.time():.3f} step={r.k} loss={fmt(r.loss)} gnorm={fmt(r.gn)} lr={r.lr:.3g} tps={r.rate:.1f}", flush=True)
''', close='print("level=info msg=bye")', out=False, grad=True)

writer("ranklog", "toks", r"""{stdout: 'step (?P<step>\d+) \| loss (?P<loss>[\d.]+) \| (?P<ktoks_per_s>[\d.]+) ktok/s'}""", '''
        print("[rank0]:W1122 04:00:00.000 init_process_group done")
    def __call__(self, r):
        print(f"[rank0]:{time.strftime('%H:%M:%S')} step {r.k} | loss {fmt(r.loss)} | {r.rate / 1e3:.3f} ktok/s | lr {r.lr:.1e}", flush=True)
''', out=False)

writer("sep", "toks", r"""{stdout: 'Step (?P<step>[\d,]+)  loss (?P<loss>[-+\d.e]+)  (?P<toks_per_s>[\d,]+) tokens/s  (?P<step_time_s>[\d.]+) s'}""", '''
        pass
    def __call__(self, r):
        print(f"Step {r.k:,}  loss {r.loss:.4e}  {r.rate:,.0f} tokens/s  {r.step_s:.4f} s  lr {r.lr:.2e}", flush=True)
''', out=False)

HEARTBEAT = '''
class Beat:
    """heartbeat_rank{R}.jsonl as the trainer contract has it."""
    def __init__(self, out, rank=RANK, at=0):
        Path(out).mkdir(parents=True, exist_ok=True)
        self.f, self.rank, self.lock = open(Path(out) / f"heartbeat_rank{rank}.jsonl", "a", buffering=1), rank, threading.Lock()
        self.write("boot", at, world_size=WORLD, device="cpu")
    def write(self, msg, step, **more):
        now = time.time() + SKEW
        iso = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        with self.lock:
            self.f.write(json.dumps({"ts": round(now, 4), "iso": iso, "pid": os.getpid(), "rank": self.rank, "step": step, "msg": msg, **more}) + "\\n")
SKEW = 0.0
'''

BODY = '''
def fmt(x):
    if x is None:
        return ""
    return {nanfmt} if x != x else "{inffmt}" if x == math.inf else f"{{x:.{digits}f}}"


{schedule}

def plan(n, rng):
    """Seconds of work of each step, and pauses behind some."""
    base = {dt}
    D = [max(0.3 * base, base * (1 + {cv} * rng.gauss(0, 1))) for _ in range(n)]
    P = {{}}
{plan}
    return D, P


def spoil(k, n, loss, gn, rng):
{spoil}
    return loss, gn
'''

MAIN = '''

def wait(due):
    left = due - time.perf_counter()
    if left > 0:
        time.sleep(left)


class Row:
    pass


def main():
    global SKEW
    ap = argparse.ArgumentParser(allow_abbrev=False)
    ap.add_argument({steps_flag!r}, dest="steps", type=int, default={n})
    ap.add_argument({out_flag!r}, dest="out", default="out")
{flags}
    args, _ = ap.parse_known_args()
    n = args.steps
{setup}
    model, D, P = Model(SEED), *plan(n, random.Random(SEED))
    scale = 1 + {run_cv} * random.SystemRandom().gauss(0, 1)
    rng = random.Random(SEED + 1)
    log = Log(args)
    start = last = due = time.perf_counter()
    seen, busy = 0, 0.0
    for k in range(1, n + 1):
        f = schedule(k, n)
        t0 = time.perf_counter()
{before}
        loss, gn = model.step(f)
        loss, gn = spoil(k, n, {transform}, gn, rng)
        due += D[k - 1] * scale
        wait(due)
        now = time.perf_counter()
        busy += now - t0
{after}
        if {when}:
            r = Row()
            r.k, r.loss, r.lr, r.gn, r.steps, r.gap, r.one = k, loss, PEAK_LR * f, gn, k - seen, now - last, now - t0
            r.total, r.tokens, r.step_s = now - start, k * TOKENS, busy / (k - seen)
            r.rate = TOKENS * r.steps / r.gap
{claim}
            log(r)
{logged}
            last, seen, busy = now, k, 0.0
        if P.get(k):
            {pause}
            due += P[k] * scale
            wait(due)
    log.close()
{end}


if __name__ == "__main__":
    main()
'''
