"""Source of the trainers: a loop paced by due times, print formats, and a trainer of several processes."""

PRELUDE = r'''import json, math, os, random, sys, time
from datetime import datetime
from pathlib import Path

args = dict(zip((a.lstrip("-").replace("-", "_") for a in sys.argv[1::2]), sys.argv[2::2]))
N, OUT = int(args["@STEPS@"]), Path(args.get("@OUT@", "."))
TOK, B, FIRST, EVERY, SPE = @TOK@, @B@, @FIRST@, @EVERY@, @SPE@  # tokens and seconds of a step, first step, log cadence, steps per epoch
clk, rng = random.Random(@SEED@), random.Random(@SEED@ + 1)
OUT.mkdir(parents=True, exist_ok=True)


def say(text, end="\n", file=None):
    print(text, end=end, file=file, flush=True)


def stamp(form="%Y-%m-%d %H:%M:%S", shift=0.0):
    return datetime.fromtimestamp(time.time() + shift).strftime(form)


def wait(seconds):  # until the next due time, however late the machine was before
    global due
    due += seconds
    time.sleep(max(0.0, due - time.perf_counter()))


'''

LOOP = r'''
def dt(k):
    return @DT@


def pause(k):
    return @PAUSE@


@SETUP@
start = due = row = time.perf_counter()
own, last, trained = 0.0, 0, 0.0
for k in range(1, N + 1):
    began = time.perf_counter()
    @BEFORE@
    wait(dt(k))
    s, lr = FIRST + k - 1, @LR@
    loss = @LOSS@
    norm = @NORM@
    own += time.perf_counter() - began
    if k % EVERY == 0 or k == N:
        now = time.perf_counter()
        took, wall, el = own / (k - last), (now - row) / (k - last), now - start
        trained += own
        @LIE@
        tps = TOK / wall
        @EMIT@
        row, own, last = now, 0.0, k
    if pause(k):
        @TALK@
        wait(pause(k))
@END@
'''

# name: (lines that open the log, lines of a row, trainer.metrics, metric of the rate); a stdout pattern needs no folder
FORMATS = {
    "nanogpt": ("say('number of parameters: 29.94M'); say(f'tokens per iteration will be: {TOK:,}')",
                "say(f'iter {s}: loss {loss:.4f}, time {took * 1e3:.2f}ms, mfu {31 + rng.random():.2f}%')",
                r"iter {step}: loss {loss}, time {own_step_time_ms}ms", "step_time_s"),
    "hf": ("say('***** Running training *****'); say(f'  Total optimization steps = {N}')",
           "say({'loss': round(loss, 4), 'grad_norm': round(norm, 4), 'learning_rate': lr, 'tokens_per_second': round(tps, 1), 'epoch': round(k / SPE, 2)})",
           r"{row}'loss': {loss}, 'grad_norm': {grad_norm}, 'learning_rate': {lr}, 'tokens_per_second': {toks_per_s}", "toks_per_s"),
    "megatron": ("say(f'setting number of micro-batches to constant 4'); say('[before the start of training step] datetime: ' + stamp())",
                 "say(f' [{stamp()}] iteration {s:8d}/{FIRST - 1 + N:8d} | consumed samples: {s * 32:12d} | elapsed time per iteration (ms): {took * 1e3:.1f} | learning rate: {lr:.6E} | global batch size:    32 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |')",
                 r"iteration +{step}/.*elapsed time per iteration \(ms\): {step_time_ms}.*lm loss: {loss} .*grad norm: {grad_norm}", "step_time_s"),
    "deepspeed": ("say(f'[{stamp()},000] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.14.2')",
                  "say(f'[{stamp()},{int(time.time() * 1e3) % 1000:03d}] [INFO] [stdout] steps: {s} loss: {loss:.4f} iter time (s): {took:.4f} samples/sec: {64 / took:.3f}')",
                  r"steps: {step} loss: {loss} iter time \(s\): {step_time_s}", "step_time_s"),
    "titan": ("say('\\x1b[31m[titan] ' + stamp() + ' - root - INFO - Training starts at step 1\\x1b[39m', file=sys.stderr)",
              "say(f'\\x1b[31m[titan] {stamp()} - root - INFO - \\x1b[32mstep: {s:2d}  \\x1b[33mloss: {loss:7.4f}  \\x1b[34mmemory: 41.20GiB(51.9%)  \\x1b[36mtps: {tps:,.0f}  \\x1b[35mmfu: {38 + rng.random():.2f}%\\x1b[39m', file=sys.stderr)",
              r"step: +{step} +loss: +{loss} .*tps: +{toks_per_s_per_rank}", "toks_per_s"),
    "modded": ("say('='*60)", "say(f'step:{s}/{N} train_loss:{loss:.4f} train_time:{trained * 1e3:.0f}ms step_avg:{trained / k * 1e3:.2f}ms')",
               r"step:{step}/\d+ (?:train_loss:{loss} )?(?:val_loss:{val_loss} )?train_time:{elapsed_ms}ms", "toks_per_s"),
    "keras": ("", "e = (k - 1) // SPE; i = k - e * SPE; say((f'Epoch {e + 1}/9\\n' if i == 1 else '') + f'\\r{i}/{SPE} ━━━━━━━━ {(SPE - i) * took:.0f}s {took * 1e3:.0f}ms/step - accuracy: {1 - loss / 9:.4f} - loss: {loss:.4f}', end='\\n' if i == SPE or k == N else '')",
              r"{step}/{steps_per_epoch} .* {step_time_ms}ms/step - .*loss: {loss}", "step_time_s"),
    "llmc": ("say('| device | 8x (simulated) |')", "say(f'step {s:4d}/{N} | loss {loss:.6f} (+0.11z)| norm {norm:.4f} (-0.31z)| lr {lr:.2e} | {took * 1e3:.2f} ms | 41.2% bf16 MFU | {TOK * k / el:.0f} tok/s')",
             r"step +{step}/\d+ \| loss +{loss} .*norm +{grad_norm} .*lr {lr} \| +{step_time_ms} ms", "toks_per_s"),
    "fairseq": ("say(stamp() + ' | INFO | fairseq.trainer | begin training epoch 1')",
                "say(f'{stamp()} | INFO | train_inner | ' + json.dumps({'epoch': 1 + k // SPE, 'loss': f'{loss:.3f}', 'wps': f'{tps:.1f}', 'ups': f'{1 / wall:.2f}', 'num_updates': str(s), 'gnorm': f'{norm:.3f}'}))",
                r'"loss": "{loss}", "wps": "{toks_per_s}".*"num_updates": "{step}", "gnorm": "{grad_norm}"', "toks_per_s"),
    "tqdm": ("", "say(f'\\rtrain: {100 * k // N:3d}%|{\"█\" * (20 * k // N):<20}| {k}/{N} [{el:05.1f}<{(N - k) * wall:05.1f}, loss={loss:.3f}, tps={tps:.1f}]', end='\\n' if k == N else '')",
             r"{step}/{steps_total} \[.*loss={loss}, tps={toks_per_s}\]", "toks_per_s"),
    "loguru": ("say(stamp() + '.000 | INFO     | trainer:fit:41 - 学習を開始します')",
               "say(f'{stamp()}.{int(time.time() * 1e3) % 1000:03d} | INFO     | trainer:fit:88 - ステップ {s} 損失={loss:.4f} 速度={tps / 1e3:.3f}k語/秒')",
               r"ステップ {step} 損失={loss} 速度={toks_per_s}", "toks_per_s"),
    "json": ("", "say(json.dumps({'step': s, 'loss': round(loss, 5), 'grad_norm': round(norm, 4), 'tps': round(tps, 2), 'host': 'node-07'}))",
             r'"step": {step}, "loss": {loss}, "grad_norm": {grad_norm}, "tps": {toks_per_s}', "toks_per_s"),
    "unixms": ("", "say(json.dumps({'t': int(time.time() * 1e3), 'update': s, 'ce': round(loss, 5), 'tokens': s * TOK}))",
               r'"t": {timestamp}, "update": {step}, "ce": {loss}, "tokens": {tokens_seen}', "toks_per_s"),
    "ktoks": ("", "say(f'[{k}/{N}] ppl={math.exp(min(loss, 20)):.2f} nll={loss:.4f} | {tps / 1e3:.2f} ktok/s')",
              r"\[{step}/\d+\] .*nll={loss} \| {ktoks_per_s} ktok/s", "toks_per_s"),
    "hms": ("", "say(f'{int(el) // 3600}:{int(el) // 60 % 60:02d}:{int(el) % 60:02d} batch {s} cost {loss:.4f}')",
            r"^{elapsed_s} batch {step} cost {loss}", "step_time_s"),
    "ups": ("", "say(f'update {s:>6} | xent {loss:.4f} | {1 / took:.2f} updates/s | clip {norm:.2f}')",
            r"update +{step} \| xent {loss} \| {steps_per_s} updates/s", "step_time_s"),
    "mean": ("", "say(f'INFO:root:batch {s} objective={loss:.5f} running mean {trained / k:.5f} s/batch')",
             r"batch {step} objective={loss} running mean {mean_step_time_s} s/batch", "step_time_s"),
    "d2": ("", "say(f'[{stamp(\"%m/%d %H:%M:%S\")} d2.utils.events]:  eta: 0:00:{int((N - k) * took):02d}  iter: {s}  total_loss: {loss:.4f}  loss_cls: {loss * .4:.4f}  time: {trained / k:.4f}  last_time: {took:.4f}  data_time: 0.0031  lr: {lr:.5f}  max_mem: 8121M')",
           r"iter: {step} +total_loss: {loss} .*last_time: {step_time_s}", "step_time_s"),
    "tsv": ("say('epoch\\tstep\\tloss\\tseconds')", "say(f'{k // SPE}\\t{s}\\t{loss:.5f}\\t{took:.5f}')",
            r"^\d+\t{step}\t{loss}\t{step_time_s}$", "step_time_s"),
    "gan": ("", "say(f'[Epoch {(k - 1) // SPE}/9] [Batch {(k - 1) % SPE}/{SPE}] [D loss: {loss:.6f}] [G loss: {5 - loss:.6f}] [{took:.4f} s]')",
            r"\[Epoch {epoch}/\d+\] \[Batch {step}/{steps_per_epoch}\] \[D loss: {loss}\] .*\[{step_time_s} s\]", "step_time_s"),
    "rl": ("say('Using device: cuda:0 | 16 envs')", "say(f'update={s} sps={tps:.0f} ep_return={-21 + 30 * k / N + rng.gauss(0, 1):.2f} pg_loss={loss:.5f} approx_kl={0.01 + 0.004 * rng.random():.4f}')",
           r"update={step} sps={toks_per_s} .*pg_loss={loss} ", "toks_per_s"),
    "frames": ("", "say(f'(rank0) upd {s} :: ctc={loss:.4f} gnorm={norm:.3f} :: {tps:,.1f} frames/s')",
               r"upd {step} :: ctc={loss} gnorm={grad_norm} :: {toks_per_s} frames/s", "toks_per_s"),
    "interval": ("", "say(f'#{s} L={loss:.4f} Δ={wall:.4f}s η={lr:.2e}')", r"#{step} L={loss} Δ={interval_s}s", "step_time_s"),
    "torchtune": ("", "say(f'Step {s} | loss:{loss:.4f} lr:{lr:.3e} tokens_per_second_per_gpu:{tps:.2f} peak_memory_alloc:17.3')",
                  r"Step {step} \| loss:{loss} lr:{lr} tokens_per_second_per_gpu:{toks_per_s_per_rank} ", "toks_per_s"),
    "nemo": ("", "say(f'Training epoch 0, iteration {k - 1}/{N - 1} | lr: {lr:.3e} | global_batch_size: 128 | global_step: {s} | reduced_train_loss: {loss:.4f} | train_step_timing in s: {took:.4f}')",
             r"global_step: {step} \| reduced_train_loss: {loss} \| train_step_timing in s: {step_time_s}", "step_time_s"),
    "logging": ("say(stamp() + ',000 INFO __main__ start')", "say(f'{stamp(shift=SHIFT)},{int((time.time() + SHIFT) * 1e3) % 1000:03d} INFO __main__ step={s} loss={loss:.4f}')",
                r"^{timestamp} INFO .*step={step} loss={loss}", "step_time_s"),
}

TABLES = {  # name: (file, columns in order: name and expression, header or not)
    "csv": ("training.csv", [("step", "s"), ("loss", "f'{loss:.4f}'"), ("lr", "f'{lr:.2e}'"), ("toks_per_s", "f'{tps:.1f}'")], True),
    "bare": ("log.csv", [("step", "s"), ("loss", "f'{loss:.4f}'"), ("lr", "f'{lr:.2e}'"), ("toks_per_s", "f'{tps:.1f}'")], False),
    "lightning": ("metrics.csv", [("epoch", "k // SPE"), ("step", "s"), ("train_loss", "f'{loss:.5f}'"), ("tokens_per_sec", "f'{tps:.2f}'"), ("val_loss", "''")], True),
    "wide": ("progress.csv", [("global_step", "s"), ("train_loss", "f'{loss:.4f}'"), ("grad_norm", "f'{norm:.4f}'"), ("step_time_ms", "f'{took * 1e3:.3f}'"), ("ktoks_per_s", "f'{tps / 1e3:.3f}'")], True),
}

RANKS = r'''import json, math, os, random, subprocess, sys, time
from datetime import datetime, timezone
from pathlib import Path

args = dict(zip((a.lstrip("-").replace("-", "_") for a in sys.argv[1::2]), sys.argv[2::2]))
N, OUT = int(args["@STEPS@"]), Path(args["@OUT@"])
WORLD = int(os.environ.get("WORLD_SIZE", "@WORLD@"))
TOK, B = @TOK@ * WORLD, @B@
rank, kids = int(os.environ.get("RANK", -1)), []
OUT.mkdir(parents=True, exist_ok=True)
if rank < 0:  # started by python alone: the other workers are processes of its own
    rank, kids = 0, [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(WORLD)}) for r in range(1, WORLD)]
clock = OUT / "rendezvous"
if rank == 0:
    (OUT / "env.json").write_text(json.dumps({"schema_version": 1, "world_size": WORLD, "tokens_per_step": TOK, "requested": {"seq_len": @SEQ@}, "effective": {"seq_len": @SEQ@}}))
    (OUT / "rendezvous.tmp").write_text(str(time.time() + 0.7))
    os.replace(OUT / "rendezvous.tmp", clock)
while not clock.exists():
    time.sleep(0.02)
zero = float(clock.read_text()) - time.time() + time.perf_counter()
clk, rng = random.Random(@SEED@), random.Random(@SEED@ + 1)
beats = (OUT / f"heartbeat_rank{rank}.jsonl").open("w", buffering=1)
table = (OUT / "training.csv").open("w", buffering=1) if rank == 0 else None
if table:
    table.write("step,loss,lr,toks_per_s,step_time_s,compute_time_s\n")


def beat(msg, step, **more):
    ts = time.time()
    iso = datetime.fromtimestamp(ts, timezone.utc).isoformat()
    beats.write(json.dumps({"ts": ts, "iso": iso, "pid": os.getpid(), "rank": rank, "step": step, "msg": msg, **more}) + "\n")


def until(due):
    time.sleep(max(0.0, due - time.perf_counter()))


def work(k, r):  # seconds that rank r computes in step k; all wait for the slowest
    return @WORK@


@BOOT@
beat("boot", 0, world_size=WORLD, device="cpu")
until(zero + @FIRST_BATCH@)
beat("loader_ready", 0)
due = row = zero + @FIRST_BATCH@
for k in range(1, N + 1):
    noise = [1 + 0.015 * clk.gauss(0, 1) for _ in range(WORLD)]
    times = [work(k, r) * noise[r] for r in range(WORLD)]
    began = time.perf_counter()
    @BEFORE@
    until(due + times[rank])
    compute = time.perf_counter() - began
    due += max(times) + 0.002
    until(due)
    now = time.perf_counter()
    loss, lr = @LOSS@, 3e-4
    rate, took = TOK / (now - row), now - row
    row = now
    beat("progress", k, loss=loss if math.isfinite(loss) else str(loss), lr=lr, toks_per_s=rate, step_time_s=took, compute_time_s=compute, grad_norm=1.5 / k**0.5 + 0.3, dt_fetch_s=0.0004, @MORE@)
    if table:
        table.write(f"{k},{loss:.4f},{lr},{rate:.1f},{took:.5f},{compute:.5f}\n")
beat("done", N, status="done", why="all steps")
for kid in kids:
    kid.wait()
@END@
'''
