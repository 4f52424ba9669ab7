"""Source text that trainers are put together from: tasks, ways to write, shapes of the program."""
import re, textwrap

# ---------------------------------------------------------------- tasks: learn(k) -> (loss, norm of the gradient)
TASKS = {}
TASKS["softmax"] = '''
import os
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

class Blobs:
    """Softmax regression on four gaussian blobs."""
    def __init__(self, seed, batch):
        self.rng, self.batch = np.random.default_rng(seed), batch
        self.centres = self.rng.normal(0, 1.6, (4, 12))
        self.w = np.zeros((12, 4))
    def __call__(self, k):
        y = self.rng.integers(0, 4, 64 * self.batch)
        x = self.centres[y] + self.rng.normal(0, 1, (len(y), 12))
        z = x @ self.w
        z -= z.max(1, keepdims=True)
        p = np.exp(z); p /= p.sum(1, keepdims=True)
        loss = -np.log(p[np.arange(len(y)), y] + 1e-12).mean()
        p[np.arange(len(y)), y] -= 1
        g = x.T @ p / len(y)
        self.w -= LR * g
        return float(loss), float(np.sqrt((g * g).sum()))
learn = Blobs(SEED, BATCH)
'''
TASKS["regression"] = '''
def make_regression(seed, batch):
    rng = random.Random(seed)
    truth = [rng.gauss(0, 1) for _ in range(6)]
    weights = [0.0] * 6
    def learn(k):
        grad, loss, rows = [0.0] * 6, 0.0, 8 * batch
        for _ in range(rows):
            x = [rng.gauss(0, 1) for _ in truth]
            e = sum((w - t) * v for w, t, v in zip(weights, truth, x)) + rng.gauss(0, 0.3)
            loss += e * e / rows
            for i, v in enumerate(x):
                grad[i] += 2 * e * v / rows
        for i, g in enumerate(grad):
            weights[i] -= 0.3 * LR * g
        return loss, math.sqrt(sum(g * g for g in grad))
    return learn
learn = make_regression(SEED, BATCH)
'''
TASKS["kmeans"] = '''
class KMeans(object):
    def __init__(self):
        self.r = random.Random(SEED)
        self.true = [(self.r.uniform(-4, 4), self.r.uniform(-4, 4)) for _ in range(3)]
        self.c = [[9.0 + i, 9.0 - i] for i in range(3)]
    def __call__(self, k):
        total, n, moved = 0.0, 12 * BATCH, 0.0
        for _ in range(n):
            cx, cy = self.r.choice(self.true)
            x, y = self.r.gauss(cx, .5), self.r.gauss(cy, .5)
            d = [(x - a) ** 2 + (y - b) ** 2 for a, b in self.c]
            j = d.index(min(d)); total += d[j]
            self.c[j][0] += 0.06 * LR * (x - self.c[j][0]); self.c[j][1] += 0.06 * LR * (y - self.c[j][1])
            moved += d[j] ** .5
        return total / n, moved / n
learn = KMeans()
'''
TASKS["bigram"] = '''
import os
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np
TEXT = ("it was the best of times it was the worst of times it was the age of wisdom it was the age of foolishness " * 9)
IDS = np.array([(ord(c) - 96) if c != " " else 0 for c in TEXT])
_rng = np.random.default_rng(SEED)
W = np.zeros((27, 27))
def learn(k):
    """n-gram model by gradient descent: starts at ln 27"""
    at = _rng.integers(0, len(IDS) - 1, 128 * BATCH)
    a, b = IDS[at], IDS[at + 1]
    z = W[a]; p = np.exp(z - z.max(1, keepdims=True)); p /= p.sum(1, keepdims=True)
    loss = float(-np.log(p[np.arange(len(b)), b]).mean())
    p[np.arange(len(b)), b] -= 1
    g = np.zeros_like(W); np.add.at(g, a, p / len(b))
    W[...] -= 12 * LR * g
    return loss, float(np.linalg.norm(g))
'''
TASKS["gan"] = '''
def gan(seed):
    """One-dimensional GAN: the generator shifts a gaussian, the discriminator is logistic."""
    rng = random.Random(seed); state = dict(shift=0.0, a=0.1, b=0.0)
    sig = lambda v: 1 / (1 + math.exp(-max(-30, min(30, v))))
    def learn(k):
        n = 24; d_loss = ga = gb = gs = g_loss = 0.0
        for _ in range(n):
            real, fake = rng.gauss(2, 1), rng.gauss(state["shift"], 1)
            pr, pf = sig(state["a"] * real + state["b"]), sig(state["a"] * fake + state["b"])
            d_loss -= (math.log(pr + 1e-9) + math.log(1 - pf + 1e-9)) / n
            g_loss -= math.log(pf + 1e-9) / n
            ga += ((pr - 1) * real + pf * fake) / n; gb += (pr - 1 + pf) / n
            gs += (pf - 1) * state["a"] / n
        state["a"] -= 0.05 * LR * ga + 0.002 * state["a"]; state["b"] -= 0.05 * LR * gb; state["shift"] -= 0.1 * LR * gs
        EXTRA["g_loss"] = g_loss
        return d_loss, math.hypot(ga, gb)
    return learn
EXTRA = {}
learn = gan(SEED)
'''
TASKS["contrastive"] = '''
import os
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np
class InfoNCE:
    def __init__(self, dim=8, pairs=32):
        self.r = np.random.default_rng(SEED); self.n = pairs; self.s = 0.05; self.d = dim
    def similarity(self):
        a = self.r.normal(size=(self.n, self.d)); b = a + 0.4 * self.r.normal(size=a.shape)
        a /= np.linalg.norm(a, axis=1)[:, None]; b /= np.linalg.norm(b, axis=1)[:, None]
        return a @ b.T
    def __call__(self, k):
        s = self.similarity(); z = self.s * s; p = np.exp(z - z.max(1, keepdims=True)); p /= p.sum(1, keepdims=True)
        loss = float(-np.log(np.diag(p)).mean())
        g = float((p * s).sum(1).mean() - np.diag(s).mean())
        self.s -= 0.35 * LR * g
        return loss, abs(g)
learn = InfoNCE()
'''
TASKS["policy"] = '''
class Bandit:
    """REINFORCE on ten arms; what is written as loss is the negated mean reward, so it falls below zero."""
    def __init__(self, seed):
        self.r = random.Random(seed); self.q = [0.1 * i for i in range(10)]; self.h = [0.0] * 10; self.base = 0.0
    def probs(self):
        m = max(self.h); e = [math.exp(v - m) for v in self.h]; t = sum(e); return [v / t for v in e]
    def act(self, k):
        got = 0.0; norm = 0.0; p = self.probs(); n = 40
        for _ in range(n):
            a = self.r.choices(range(10), p)[0]; rew = self.r.gauss(self.q[a], 0.2); got += rew / n
            for i in range(10):
                d = 0.02 * LR * (rew - self.base) * ((i == a) - p[i]); self.h[i] += d; norm += abs(d)
        self.base += 0.1 * (got - self.base)
        return -got - 1.0 * 0, norm
learn = Bandit(SEED).act
'''
TASKS["denoise"] = '''
import os
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np
def denoiser(dim=10, sigma=0.1):
    r = np.random.default_rng(SEED); basis = np.linalg.qr(r.normal(size=(dim, 3)))[0]; A = np.zeros((dim, dim))
    def learn(k):
        x = r.normal(size=(48 * BATCH, 3)) @ basis.T
        noisy = x + sigma * r.normal(size=x.shape)
        e = noisy @ A - x
        g = 2 * noisy.T @ e / len(x)
        A[...] -= 0.05 * LR * g
        return float((e * e).sum(1).mean()), float(np.linalg.norm(g))
    return learn
learn = denoiser()
'''
TASKS["density"] = '''
class Gaussian:
    # negative log-likelihood of a narrow density: goes from +1 to about -1.6
    mu, logs = 0.8, 0.0
    def __init__(self): self.r = random.Random(SEED)
    def __call__(self, k):
        n = 30 * BATCH; loss = gm = gs = 0.0
        for _ in range(n):
            x = self.r.gauss(0.3, 0.05); z = (x - self.mu) / math.exp(self.logs)
            loss += (0.5 * z * z + self.logs + 0.919) / n; gm -= z / math.exp(self.logs) / n; gs += (1 - z * z) / n
        self.mu -= 0.02 * LR * max(-5, min(5, gm)) * math.exp(2 * self.logs) * 10; self.logs -= 0.05 * LR * max(-1, min(1, gs))
        return loss, math.hypot(gm, gs)
learn = Gaussian()
'''
TASKS["factors"] = '''
def factorise():
    rng = random.Random(SEED)
    u = [[rng.gauss(0, .1) for _ in range(2)] for _ in range(12)]; v = [[rng.gauss(0, .1) for _ in range(2)] for _ in range(12)]
    a = [[1.5 * math.sin(i * .7) * math.cos(j * .4) + 1.2 for j in range(12)] for i in range(12)]
    while True:
        loss = norm = 0.0
        for i in range(12):
            for j in range(12):
                e = u[i][0] * v[j][0] + u[i][1] * v[j][1] - a[i][j]; loss += e * e / 144
                for f in range(2):
                    du, dv = e * v[j][f], e * u[i][f]; norm += du * du + dv * dv
                    u[i][f] -= .02 * LR * du; v[j][f] -= .02 * LR * dv
        yield loss + 0.05 + rng.uniform(0, 0.004), math.sqrt(norm)
_factors = factorise()
def learn(k): return next(_factors)
'''
LOSS_OK = {  # what a user asks of the loss of each
    "softmax": "loss.last <= 0.7 * loss.first", "regression": "loss.last < 0.6 * loss.first", "kmeans": "loss.last < 0.5 * loss.first",
    "bigram": "loss.last <= 0.9 * loss.first", "gan": "loss.last <= 2.5", "contrastive": "loss.last < 0.9 * loss.first",
    "policy": "loss.last < -0.55", "denoise": "loss.last <= 0.5 * loss.first", "density": "loss.last < loss.first", "factors": "loss.last < 0.6 * loss.first",
}
CURVE = '''
def learn(k, _r=random.Random({seed})):
    """A curve as of a small language model."""
    loss = {floor} + {span} * math.exp(-k / {tau}) + _r.gauss(0, {noise})
    return loss, 0.4 + 1.5 * math.exp(-k / 40) + abs(_r.gauss(0, 0.05))
'''

# ---------------------------------------------------------------- measuring and pacing
METER = '''
class Meter:
    """Waits for the due time of a step, and measures what a step took."""
    def __init__(self):
        self.t0 = self.due = self.before = self.row = time.perf_counter()
        self.n, self.work, self.steps = 0, 0.0, 0
    def sleep(self, s):
        self.due += s
        left = self.due - time.perf_counter()
        if left > 0:
            time.sleep(left)
    def step(self, k):
        self.sleep(seconds(k))
        self.now = time.perf_counter()
        self.own = self.now - self.before
        self.work += self.own
        self.n += 1
        self.steps += 1
        self.before = self.now
    def rest(self, s):
        if s > 0:
            self.sleep(s)
            self.before = time.perf_counter()
    def read(self, k, loss, norm):
        m = dict(step=k, loss=loss, norm=norm, lr=lr_at(k), n=self.n, wall=self.now - self.row, own=self.own, work=self.work,
                 mean=self.work / self.n, total=self.now - self.t0, tokens=self.steps * TOKENS, done=self.steps)
        m["rate"] = m["n"] * TOKENS / m["wall"]
        #CLAIM
        self.row, self.n, self.work = self.now, 0, 0.0
        return m
'''

# ---------------------------------------------------------------- ways to write: open_log(), log(m), close_log(); and the metrics: of the runbook
W = {}  # name -> (code, metrics yaml, has toks_per_s, needs tokens_per_step)
CSV = '''
def open_log():
    global TABLE
    os.makedirs(OUT, exist_ok=True)
    TABLE = open(os.path.join(OUT, "%s"), "w", buffering=1%s)
    TABLE.write("%s")
def log(m):
    TABLE.write(f"%s")
def close_log():
    TABLE.close()
'''
def csvw(name, header, row, file="training.csv", extra="", eol="\\n"):
    W[name] = (CSV % (file, extra, header + eol, row + eol), f"csv: {file}", "toks_per_s" in header or "tokens_per_sec" in header, False)
csvw("csv4", "step,loss,lr,toks_per_s", "{m['step']},{m['loss']:.6f},{m['lr']:.3e},{m['rate']:.1f}")
csvw("csvfull", "step,loss,lr,toks_per_s,step_time_s,grad_norm,tokens,wall_s",
     "{m['step']},{m['loss']:.5f},{m['lr']:.6g},{m['rate']:.2f},{m['mean']:.6f},{m['norm']:.5g},{m['tokens']},{m['total']:.4f}")
csvw("csvglobal", "global_step,train_loss,step_time_ms,learning_rate,grad_norm", "{m['step']},{m['loss']:.5f},{m['mean']*1e3:.3f},{m['lr']:.6g},{m['norm']:.4f}", "log.csv")
W["csvglobal"] = W["csvglobal"][:2] + (True, True)
csvw("csvlightning", "epoch,step,tokens_per_sec,train_loss,val_loss", "{m['done']//50},{m['step']-1},{m['rate']:.2f},{m['loss']:.7f},", "metrics.csv")
csvw("csviter", "iter,loss,lr,ktoks_per_s", "{m['step']},{m['loss']:.4f},{m['lr']:.2e},{m['rate']/1e3:.4f}", "progress.csv")
W["csviter"] = W["csviter"][:2] + (True, False)
csvw("csvcrlf", "step,loss,lr,toks_per_s,note", "{m['step']},{m['loss']:.5f},{m['lr']:.3e},{m['rate']:.1f},\\\"warm, steady\\\"", extra=', newline=""', eol="\\r\\n")
csvw("csvsps", "step,loss,steps_per_s,grad_norm", "{m['step']},{m['loss']:.5f},{m['n']/m['work']:.4f},{m['norm']:.4f}", "run.csv")
W["csvsps"] = W["csvsps"][:2] + (True, True)
OUTP = '''
def open_log(): %s
def log(m):
    %s
def close_log(): print("%s", flush=True)
'''
def outw(name, code, pattern, declare, first='print("starting")', bye="training finished"):
    W[name] = (OUTP % (first, code, bye), "stdout: '" + pattern.replace("'", "''") + "'", True, declare)
outw("nanogpt", 'print(f"iter {m[\'step\']}: loss {m[\'loss\']:.4f}, time {m[\'own\']*1000:.2f}ms, mfu {3.1:.2f}%", flush=True)',
     "iter {step}: loss {loss}, time {own_step_time_ms}ms", True, 'print("number of parameters: 0.80M\\ncompiling the model... (takes a ~minute)")')
outw("nanochat", 'print(f"step {m[\'step\']:05d}/{STEPS:05d} ({100*m[\'done\']/STEPS:.2f}%) | loss: {m[\'loss\']:.6f} | lrm: 1.00 | dt: {m[\'mean\']*1000:.2f}ms | tok/sec: {int(m[\'rate\']):,} | mfu: 4.20 | total time: {m[\'total\']/60:.2f}m")',
     "step {step}/.*loss: {loss} .*dt: {step_time_ms}ms .*tok/sec: {toks_per_s}", False)
outw("torchtitan", 'sys.stderr.write(f"[rank0]:[titan] {time.strftime(\'%Y-%m-%d %H:%M:%S\')},{int(time.time()*1000)%1000:03d} - root - INFO - \\x1b[31mstep: {m[\'step\']:2d}  \\x1b[32mloss: {m[\'loss\']:7.4f}  \\x1b[33mmemory: 29.50GiB(37.21%)  \\x1b[34mtps: {round(m[\'rate\']):,}  \\x1b[36mtflops: 10.20  \\x1b[35mmfu: 3.27%\\x1b[39m\\n"); sys.stderr.flush()',
     r"step: +{step} +loss: +{loss} .*tps: +{toks_per_s_per_rank}", False)
outw("megatron", 'print(f" [{time.strftime(\'%Y-%m-%d %H:%M:%S\')}] iteration {m[\'step\']:8d}/{STEPS:8d} | consumed samples: {m[\'step\']*16:12d} | elapsed time per iteration (ms): {m[\'mean\']*1000:.1f} | learning rate: {m[\'lr\']:.6E} | global batch size:    16 | lm loss: {m[\'loss\']:.6E} | loss scale: 1.0 | grad norm: {m[\'norm\']:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |")',
     r"iteration +{step}/.*elapsed time per iteration \(ms\): {step_time_ms}.*lm loss: {loss} .*grad norm: {grad_norm}", True)
outw("deepspeed", 'stamp = time.strftime("%Y-%m-%d %H:%M:%S") + f",{int(time.time()*1000)%1000:03d}"; print(f"[{stamp}] [INFO] [timer.py:264:stop] epoch=0/micro_step={m[\'step\']}/global_step={m[\'step\']}, RunningAvgSamplesPerSec={8*m[\'done\']/m[\'total\']:.4f}, CurrSamplesPerSec={8*m[\'n\']/m[\'wall\']:.4f}, MemAllocated=0.51GB, MaxMemAllocated=1.2GB"); print(f"train_loss {m[\'loss\']:.5f}")',
     r"^\[{timestamp}\].*global_step={step}, .*CurrSamplesPerSec={samples_per_s}|^train_loss {loss}", True)
outw("keras", 'sys.stdout.write(f"{(m[\'done\']-1)%PER_EPOCH+1}/{PER_EPOCH} \\u2501\\u2501\\u2501\\u2501\\u2501 0s {m[\'mean\']*1e3:.1f}ms/step - accuracy: 0.5000 - loss: {m[\'loss\']:.4f}\\n")',
     r"{step}/{steps_per_epoch} .* {step_time_ms}ms/step - .*loss: {loss}", True)
outw("hf", 'print({"loss": round(m["loss"], 4), "grad_norm": round(m["norm"], 4), "learning_rate": m["lr"], "tps": round(m["rate"], 1), "epoch": round(m["done"] / 60, 2)})',
     "{row}'loss': {loss}, 'grad_norm': {grad_norm}, .*'tps': {toks_per_s}", False)
outw("llmc", 'print("step %4d/%d | loss %.6f (%+.2fz)| norm %.4f (%+.2fz)| lr %.2e | %.2f ms | %.1f%% bf16 MFU | %.0f tok/s" % (m["step"], STEPS, m["loss"], 0.1, m["norm"], -0.2, m["lr"], m["mean"] * 1000, 11.2, m["tokens"] / m["total"]))',
     r"step +{step}/\d+ \| loss +{loss} .*norm +{grad_norm} .*lr {lr} \| +{step_time_ms} ms", True)
outw("logfmt", 'print(f\'level=info msg="train step" step={m["step"]} loss={m["loss"]:.5f} gnorm={m["norm"]:.4f} dt={m["mean"]:.5f} tps={m["rate"]:.1f}\')',
     "step={step} loss={loss} gnorm={grad_norm} dt={step_time_s} tps={toks_per_s}", False)
outw("jsonl", 'print(json.dumps({"event": "step", "step": m["step"], "loss": m["loss"], "tok_s": m["rate"], "lr": m["lr"]}))',
     '"step": {step}, "loss": {loss}, "tok_s": {toks_per_s}', False)
outw("logging", 'logging.info("step %d | loss %.4f | lr %.2e", m["step"], m["loss"], m["lr"])',
     r"^{timestamp} \[INFO\] trainer: step {step} \| loss {loss} \|", True,
     'import logging; globals()["logging"] = logging; logging.basicConfig(stream=sys.stdout, level=20, format="%(asctime)s [%(levelname)s] trainer: %(message)s"); logging.info("model built")')
outw("tqdm", 'sys.stderr.write(f"\\r{100*m[\'done\']//STEPS:3d}%|####      | {m[\'done\']}/{STEPS} [00:{int(m[\'total\']):02d}<00:09, {m[\'done\']/m[\'total\']:.2f}it/s]"); sys.stderr.flush(); print(f"[train] it {m[\'step\']} nll {m[\'loss\']:.5f} tokens/s {m[\'rate\']:.0f}")',
     r"\[train\] it {step} nll {loss} tokens/s {toks_per_s}", False)
outw("elapsed", 'print(f"step:{m[\'step\']}/{STEPS} train_loss:{m[\'loss\']:.4f} train_time:{m[\'total\']*1000:.0f}ms step_avg:{m[\'total\']*1000/m[\'done\']:.2f}ms")',
     r"step:{step}/\d+ train_loss:{loss} train_time:{elapsed_ms}ms", True)
outw("running", 'print(f"batch {m[\'step\']}: loss {m[\'loss\']:.4f} (avg {1000*m[\'total\']/m[\'done\']:.4f} ms/batch so far)")',
     r"batch {step}: loss {loss} \(avg {mean_step_time_ms} ms/batch", True)
outw("tokseen", 'print(f"t={m[\'total\']:.3f}s seen={m[\'tokens\']} step={m[\'step\']} ce={m[\'loss\']:.5f}")',
     r"t={elapsed_s}s seen={tokens_seen} step={step} ce={loss}", False)
outw("lightningbar", 'i = (m["done"] - 1) % PER_EPOCH + 1; sys.stdout.write(f"Epoch {(m[\'done\']-1)//PER_EPOCH}: {100*i//PER_EPOCH:3d}%|\\u2588\\u2588\\u258d  | {i}/{PER_EPOCH} [00:01<00:02, {m[\'n\']/m[\'wall\']:.2f}it/s, v_num=0, train_loss={m[\'loss\']:.4f}]\\n")',
     r"Epoch {epoch}: .*\| {step}/{steps_per_epoch} \[.* {steps_per_s}it/s.*loss={loss}", True)
outw("interval", 'print(f"steps done {m[\'step\']:>6} took {m[\'wall\']:.4f} s objective {m[\'loss\']:+.5f}")',
     r"steps done +{step} took {interval_s} s objective {loss}", True)
outw("kilo", 'print(f"[{m[\'step\']}] loss={m[\'loss\']:.4f} thr={m[\'rate\']/1000:.3f}k tok/s")', r"^\[{step}\] loss={loss} thr={toks_per_s} tok/s", False)
outw("ktok", 'print(f"step {m[\'step\']} | train {m[\'loss\']:.4f} | {m[\'rate\']/1000:.3f} ktok/s")', r"step {step} \| train {loss} \| {ktoks_per_s} ktok/s", False)

# ---------------------------------------------------------------- shapes of the program
STEP = '''\
loss, norm = learn(k)
#DISTORT
meter.step(k)
if row_due(k, meter):
    log(meter.read(k, loss, norm))
meter.rest(pause(k))
#INCIDENT
'''
S = {}
S["plain"] = '''
def main():
    open_log()
    meter = Meter()
    for k in range(FIRST, FIRST + STEPS):
        #STEP
    close_log()

if __name__ == "__main__":
    main()
'''
S["class"] = '''
class Trainer:
    def __init__(self, steps):
        self.steps, self.k = steps, FIRST - 1
        self.meter = None

    def one(self):
        self.k += 1
        k, meter = self.k, self.meter
        #STEP

    def fit(self):
        open_log()
        self.meter = Meter()
        try:
            while self.k < FIRST + self.steps - 1:
                self.one()
        finally:
            close_log()

if __name__ == "__main__":
    Trainer(STEPS).fit()
'''
S["callbacks"] = '''
class Callback:
    def on_begin(self, run): pass
    def on_step(self, run, k, loss, norm): pass
    def on_end(self, run): pass

class Logs(Callback):
    def on_begin(self, run): open_log()
    def on_step(self, run, k, loss, norm):
        if row_due(k, run["meter"]):
            log(run["meter"].read(k, loss, norm))
    def on_end(self, run): close_log()

class Maintenance(Callback):
    def on_step(self, run, k, loss, norm):
        run["meter"].rest(pause(k))

class Events(Callback):
    def on_step(self, run, k, loss, norm):
        meter = run["meter"]
        #INCIDENT
        return

def run(callbacks):
    state = {}
    for c in callbacks: c.on_begin(state)
    meter = state["meter"] = Meter()
    for k in range(FIRST, FIRST + STEPS):
        loss, norm = learn(k)
        #DISTORT
        meter.step(k)
        for c in callbacks: c.on_step(state, k, loss, norm)
    for c in callbacks: c.on_end(state)

run([Logs(), Maintenance(), Events()])
'''
S["generator"] = '''
def batches():
    yield from range(FIRST, FIRST + STEPS)

def training(meter):
    for k in batches():
        loss, norm = learn(k)
        #DISTORT
        meter.step(k)
        yield k, loss, norm
        meter.rest(pause(k))

open_log()
meter = Meter()
for k, loss, norm in training(meter):
    if row_due(k, meter):
        log(meter.read(k, loss, norm))
    #INCIDENT
close_log()
'''
S["epochs"] = '''
def main(epochs, per_epoch):
    open_log()
    meter = Meter()
    k = FIRST - 1
    for epoch in range(epochs):
        for batch in range(per_epoch):
            if k >= FIRST + STEPS - 1:
                break
            k += 1
            #STEP
    close_log()

main(-(-STEPS // PER_EPOCH), PER_EPOCH)
'''
S["threads"] = '''
import queue, threading
QUEUE = queue.Queue(maxsize=4)

def load():
    for k in range(FIRST, FIRST + STEPS):
        QUEUE.put(k)
    QUEUE.put(None)

def main():
    threading.Thread(target=load, daemon=True, name="loader").start()
    open_log()
    meter = Meter()
    while (k := QUEUE.get()) is not None:
        #STEP
    close_log()

if __name__ == "__main__":
    main()
'''
S["worker"] = '''
import subprocess
WORKER = "import sys\\nfor line in sys.stdin:\\n    sys.stdout.write(str(sum(map(int, line.split()))) + chr(10)); sys.stdout.flush()"

def main():
    helper = subprocess.Popen([sys.executable, "-S", "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    open_log()
    meter = Meter()
    try:
        for k in range(FIRST, FIRST + STEPS):
            helper.stdin.write(f"{k} 1\\n"); helper.stdin.flush()
            assert int(helper.stdout.readline()) == k + 1  # augmentation is done elsewhere
            #STEP
    finally:
        helper.stdin.close(); helper.wait()
        close_log()

if __name__ == "__main__":
    main()
'''
S = {name: re.sub(r"^( *)#STEP\n", lambda m: textwrap.indent(STEP, m[1]), text, flags=re.M) for name, text in S.items()}
