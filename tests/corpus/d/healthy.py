"""Trainers that look odd and are fit."""
import textwrap

from kit import BEAT, add, draw, draws, least

LEARNS = "loss.last < loss.first"
ONE = "writing-a-runbook.md, Criteria"


def lines(name, what, stdout, line, accept=None, time="$dt", before="", then="", after="", p=None, because=ONE, **kw):
    """A trainer that prints: `line` after each step that takes `time`; `then` in the loop, `before` and `after` around it."""
    p = p or draw()
    body = f"{before}\nfor k in range(1, STEPS + 1):\n    took = work({time})\n"
    body += (f"    say({line})\n" if stdout else f"    {line}\n") + textwrap.indent(then.strip("\n"), "    ") + "\n" + after
    add("healthy", name, what, p, body, stdout=stdout, accept=[least(p, 0.72 + p.seed % 17 / 100), LEARNS] if accept is None else accept(p), because=because, **kw)


def rows(name, what, header, cells, before="", csv=None, **kw):
    csv = csv or draws.choice(["metrics", "train", "log", "progress", "curve", "series", "history"]) + draws.choice(["", "_0", "-rank0", "_main"]) + ".csv"
    lines(name, what, None, f"row(series, {cells})", before=f'series = table("{csv}", "{header}")\n{before}', csv=csv, **kw)


STEP = "step,loss,lr,toks_per_s"
CELLS = "k, fall(k), $lr, $tok / took"

# --- pauses, ramps, unusual times ------------------------------------------------------------------------------------
lines("compile-pause", "A compiler takes five seconds before the first iteration of a small language model ends", r'iter {step}: loss {loss}, time {step_time_ms}ms',
      'f"iter {k - 1}: loss {fall(k):.4f}, time {took * 1000:.2f}ms, mfu {rng.uniform(38, 40):.2f}%"', time="$dt + (5 if k == 1 else 0)", tps=True, because="validation.md, Statistics: warm-up is slow, early and bounded")
p = draw(seconds=(6, 6.5), step=(0.03, 0.035))
n = p.n // 25
rows("validates-every-25", "A speech model validates every 25 steps, as pause_every declares; its rate with the pauses clears the bound", STEP, CELLS, p=p,
     time="$dt + (0.6 if k % 25 == 0 else 0)", accept=lambda p: [least(p, 0.8, p.tok * 25 / (25 * p.dt + 0.6)), LEARNS], phase={"pause_every": 25}, span=(p.n - 1) * p.dt + 0.6 * n,
     because="statistics.md, From rows to a number: pauses included")
p = draw(seconds=(6, 6.5), step=(0.03, 0.035))
lines("saves-every-40", "A segmentation run saves every 40 steps, says so, and clears its bound with these pauses", r'\[{step}\] dice_loss {loss} thr {toks_per_s}',
      'f"[{k}] dice_loss {fall(k, 0.1, 0.8):.4f} thr {$tok / took:.1f}"', then='if k % 40 == 0:\n    say(f"Saving checkpoint at step {k} ...")\n    due += 0.7', p=p,
      time="$dt", accept=lambda p: [least(p, 0.8, p.tok * 40 / (40 * p.dt + 0.7)), LEARNS], span=(p.n - 1) * p.dt + 0.7 * ((p.n - 1) // 40),
      because="findings.md, The thresholds: pauses beside lines that name a checkpoint are information")
lines("slow-start", "The first dozen updates of a recommender take up to three times as long, fading away", r'u={step} bpr={loss} r={toks_per_s}$',
      'f"u={k} bpr={fall(k, 0.2, 0.69):.5f} r={$tok / took:.1f}"', time="$dt * (1 + max(0, 2 * (1 - k / 12)))", p=draw(w=14), span=None, because="statistics.md, Warm-up and levels")
lines("heavy-tails", "Step times of a simulator-bound learner have heavy tails; the mean is clear of its bound", r'env_steps {step} q_loss {loss} sps {toks_per_s}',
      'f"env_steps {k} q_loss {fall(k):.4f} sps {$tok / took:.1f}"', accept=lambda p: [least(p, 0.6), LEARNS],
      time="$dt * min(2.5, max(0.6, 1 + 0.07 * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3)))", because="findings.md, How sure the rules on curves are")
lines("autocorrelated", "Step times of a shared storage wander slowly by a few percent", r'> {step} \(loss {loss}, {toks_per_s} words/sec\)',
      'f"> {k} (loss {fall(k):.3f}, {$tok / took:.1f} words/sec)"', before="drift = 0.0", then="drift = 0.9 * drift + rng.gauss(0, 0.012)", time="$dt * (1 + drift)",
      accept=lambda p: [least(p, 0.7), LEARNS], because="findings.md, How sure the rules on curves are")
rows("soak-steady", "A soak of a weather model holds its rate, its memory and its loss", STEP + ",host_mem_mib", CELLS + ", 2048 + rng.uniform(-2, 2)", p=draw(seconds=(11, 12)),
     accept=lambda p: [least(p, 0.8), "rate.drift_pct >= -12 %", "memory.growth_mib_per_1k_steps <= 200"], phase={"kind": "soak"}, because="runbook-reference.md, kind: soak")
lines("soak-settles", "A soak becomes 1.5 % slower as the machine warms up", r'soak/{step} nll={loss} atoms/s={toks_per_s}', 'f"soak/{k} nll={fall(k):.4f} atoms/s={$tok / took:.1f}"',
      time="$dt * (1 + 0.015 * (1 - math.exp(-k / 60)))", phase={"kind": "soak"}, p=draw(seconds=(10, 11)), because="validation.md, Findings: 1-2 % of thermal settling is healthy")
p = draw(step=(0.055, 0.06), seconds=(9, 10), w=10)
p.n = p.n // 4 * 4
add("healthy", "one-line-in-four", "A masked language model logs the mean time of four steps", p, r'''
for k in range(4, STEPS + 1, 4):
    took = work(4 * $dt)
    say(f"steps={k} mlm={fall(k):.4f} ms/step={250 * took:.3f}")
''', stdout=r'steps={step} mlm={loss} ms/step={step_time_ms}', tps=True, accept=[least(p, 0.75), LEARNS], rows=p.n // 4, span=(p.n - 4) * p.dt,
    because="own-trainer.md, Patterns: step_time_ms is the mean time of the steps since the line before")
p = draw(step=(0.02, 0.024), seconds=(11, 12))
p.n = p.n // 5 * 5
add("healthy", "own-time-of-each-fifth", "Only each fifth iteration has a line, with its own time; a pause for sampling in one of them counts once", p, r'''
for k in range(1, STEPS + 1):
    took = work($dt + (0.5 if k % 100 == 0 else 0))
    if k % 5 == 0:
        say(f"iter {k:,}: ppl-loss {fall(k):.4f} :: own {took * 1000:.1f}ms")
''', stdout=r'iter {step}: ppl-loss {loss} :: own {own_step_time_ms}ms', tps=True, accept=["step_time_s.p50 <= 0.04 s", LEARNS, least(p, 0.5)], rows=p.n // 5,
    span=(p.n - 5) * p.dt + 0.5 * (p.n // 100), because="own-trainer.md, Patterns: own_step_time_ms; a pause in such a step counts once")
p = draw(seconds=(8, 9))
lines("speed-run-clock", "A speed run prints a running time that stands still while it validates every 60 steps; the rate with that clears its bound",
      r'step:{step}/\d+ (?:train_loss:{loss} )?(?:val_loss:{val_loss} )?train_time:{elapsed_ms}ms', 'f"step:{k}/{STEPS} train_loss:{fall(k):.4f} train_time:{clock:.0f}ms"', tps=True, p=p,
      before="clock = 0.0", then='if k % 60 == 0:\n    say(f"step:{k}/{STEPS} val_loss:{fall(k):.4f} train_time:{clock:.0f}ms")\n    work(0.4)',
      time="$dt); clock += 1000 * (took", accept=lambda p: [least(p, 0.8, p.tok * 60 / (60 * p.dt + 0.4)), LEARNS], span=(p.n - 1) * p.dt + 0.4 * ((p.n - 1) // 60),
      rows=p.n + p.n // 60, phase={"pause_every": 60}, because="own-trainer.md, modded-nanogpt")
lines("mean-of-the-run", "The printed time of a step is a mean over the whole run so far, and named so", r'b{step} kl {loss} avg {mean_step_time_ms} ms',
      'f"b{k} kl {fall(k):.4f} avg {1000 * (mark - START) / k:.3f} ms"', tps=True, accept=lambda p: [least(p, 0.75), LEARNS], because="own-trainer.md, Patterns: mean_step_time_ms")
lines("steps-per-second", "A symbolic regressor prints optimizer steps per second", r'gen {step} mse {loss} @ {steps_per_s} it/s', 'f"gen {k} mse {fall(k):.4e} @ {1 / took:.3f} it/s"',
      tps=True, accept=lambda p: [least(p, 0.75), f"step_time_s.mean <= {p.dt * 1.3:.4f} s"], because="own-trainer.md, Patterns: steps_per_s")
p = draw(seconds=(9, 10))
lines("clock-set-back", "The wall clock of a dated log goes back by an hour in the middle, as in October", r'^{timestamp} \| INFO +\| step {step} loss {loss}$',
      'f"{stamp(k)} | INFO     | step {k} loss {fall(k):.4f}"', tps=True, p=p, accept=lambda p: [least(p, 0.75), LEARNS], expect="GO", before=r'''
def stamp(k):
    t = time.time() - (3600 if k > STEPS // 2 else 0)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(t)) + f".{int(t * 1000) % 1000:03d}"
''', because="findings.md, clock-jump: what spans the jump is left out; a warning changes no decision")
lines("deepspeed-date", "Lines begin with a date and show tokens seen, no rate and no time of a step", r'^\[{timestamp}\] \[INFO\].*global_step={step}, ce={loss}, tokens={tokens_seen}$',
      'f"[{stamp()}] [INFO] [logging.py:96:log_dist] [Rank 0] global_step={k}, ce={fall(k):.4f}, tokens={k * $tok}"', accept=lambda p: [least(p, 0.75), LEARNS], before=r'''
def stamp():
    t = time.time()
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(t)) + f",{int(t * 1000) % 1000:03d}"
''', because="own-trainer.md, Patterns: tokens_seen, timestamp")
p = draw(seconds=(7, 8))
lines("elapsed-seconds", "The running time is shown in seconds behind the losses of a molecule generator", r'elbo {loss} .*n={step} t={elapsed_s}s', 'f"elbo {fall(k):.4f} kl 0.2 n={k} t={time.monotonic() - START:.4f}s"',
      tps=True, accept=lambda p: [least(p, 0.75)], p=p, because="own-trainer.md, Patterns: elapsed_s")
for name, what, side in [("near-below", "The rate clears its bound by 5 %", 0.95), ("near-above", "The time of a step is 6 % below its bound", None)]:
    word = f"mb{draws.randrange(10, 99)}"
    lines(name, what, rf'{word}:{{step}} l:{{loss}} s:{{toks_per_s}} d:{{step_time_s}}$', f'f"{word}:{{k}} l:{{fall(k):.4f}} s:{{$tok / took:.1f}} d:{{took:.5f}}"', near=True,
          accept=lambda p, side=side: [least(p, side) if side else f"step_time_s.mean <= {p.dt * 1.06:.5f} s"], because="the brief: nearer than 10 %, may be INCONCLUSIVE")

# --- losses and norms ------------------------------------------------------------------------------------------------
lines("spike-recovers", "The loss of a mixture of experts spikes fourfold for six steps and comes back", r'iteration +{step}/.*elapsed time per iteration \(ms\): {step_time_ms} .*lm loss: {loss} .*grad norm: {grad_norm}',
      'f" iteration {k:8d}/ {STEPS:8d} | elapsed time per iteration (ms): {took * 1000:.1f} | lm loss: {fall(k) + 3 * $top * (0 <= k - STEPS // 2 < 6):.6E} | moe_aux: 0.01 | grad norm: {rng.uniform(0.7, 1.2):.3f} |"',
      tps=True, because="findings.md, How sure the rules on curves are: spike")
lines("curriculum", "The loss of a translator rises a little at each of two harder stages, and falls within each", r'stage \d k={step} xent={loss} tok_s={toks_per_s}',
      'f"stage {3 * k // (STEPS + 1)} k={k} xent={fall(k, noise=0.004) + 0.06 * ($top - $low) * (3 * k // (STEPS + 1)):.4f} tok_s={$tok / took:.1f}"', because="findings.md, How sure the rules on curves are: curriculum")
lines("adversarial-rises", "A self-play loss doubles as the opponent learns; the runbook accepts that", r'selfplay {step} loss {loss} moves/s {toks_per_s}',
      'f"selfplay {k} loss {1 + 1.4 * k / STEPS + rng.gauss(0, 0.02):.4f} moves/s {$tok / took:.1f}"', accept=lambda p: [least(p, 0.8)], phase={"accept_findings": ["diverging"]}, because="findings.md, Answering a finding")
rows("negative-loss", "A flow's negative log-likelihood falls from 1.2 to -3", STEP, "k, fall(k, -3.1, 1.2, 0.006), $lr, $tok / took", because="findings.md, How sure the rules on curves are: negative")
lines("physics-residual", "The residual of a physics-informed net falls to 1e-6, in scientific notation", r'Epoch {step} - PDE {loss} BC .* pts/s {toks_per_s}',
      'f"Epoch {k} - PDE {0.3 * 10 ** (-5.2 * k / STEPS) * math.exp(rng.gauss(0, 0.1)):.3e} BC {rng.random():.2e} pts/s {$tok / took:,.1f}"', because="findings.md, How sure the rules on curves are: near zero")
lines("norm-three-zeros", "The gradient norm is so small that three decimals show 0.000, while the loss falls", r'st {step} L {loss} gn {grad_norm} dt {step_time_s}',
      'f"st {k} L {fall(k):.4f} gn {rng.uniform(1e-5, 4e-4):.3f} dt {took:.4f}"', tps=True, because="validation.md, Findings: gradient norm 0.000 while the loss falls is not measured")
lines("policy-loss-zero", "A clipped policy loss starts at 0 and is 0 in every third update by design", r'grpo {step} pg {loss} resp_tok/s {toks_per_s}',
      'f"grpo {k} pg {0 if k % 3 == 1 else rng.gauss(0, 0.02):.5f} resp_tok/s {$tok / took:.1f}"', accept=lambda p: [least(p, 0.8)], because="findings.md, The thresholds: zero-loss, information where the loss begins at 0")
lines("hinge-zero", "A margin loss reaches exactly 0 and stays there; the runbook accepts that", r'triplet {step}: {loss} \({toks_per_s} img/s\)',
      'f"triplet {k}: {max(0, 0.9 - 1.2 * k / STEPS):.4f} ({$tok / took:.1f} img/s)"', accept=lambda p: [least(p, 0.8)], phase={"accept_findings": ["zero-loss"]}, because="findings.md, Answering a finding")
rows("return-rises", "An actor-critic logs its return, which the runbook asks to rise, in a column of its own", STEP + ",episode_return", CELLS + ", 480 * k / STEPS + rng.gauss(0, 9)",
     metrics={"extra": {"episode_return": "points"}}, accept=lambda p: [least(p, 0.8), "episode_return.last > episode_return.first"], because="runbook-reference.md, trainer.metrics: extra")
lines("noisy-rl-loss", "The value loss of a learner scatters by a third around a slowly falling level", r'vf={loss};it={step};fps={toks_per_s}',
      'f"vf={fall(k) * math.exp(rng.gauss(0, 0.3)):.4f};it={k};fps={$tok / took:.0f}"', accept=lambda p: [least(p, 0.8)], because="findings.md, How sure the rules on curves are: noise 30 %")
lines("gan-balanced", "The two losses of a GAN swing around their balance", r'\[G\] {loss} \[D\] .* @{step} {toks_per_s} im/s', 'f"[G] {1.5 + 0.3 * rng.gauss(0, 1):.4f} [D] {0.7 + 0.1 * rng.gauss(0, 1):.4f} @{k} {$tok / took:.1f} im/s"',
      accept=lambda p: [least(p, 0.8), "loss.max <= 4"], because=ONE)

# --- formats ---------------------------------------------------------------------------------------------------------
lines("japanese-log", "A Japanese tokenizer's trainer logs in Japanese", r'ステップ {step} 損失={loss} 毎秒 {toks_per_s} トークン', 'f"【学習】ステップ {k} 損失={fall(k):.4f} 毎秒 {$tok / took:.1f} トークン"')
lines("greek-log", "A Greek and Russian log of a handwriting model", r'βήμα {step} ▸ потеря {loss} ▸ {toks_per_s} слов/с', 'f"βήμα {k} ▸ потеря {fall(k):.4f} ▸ {$tok / took:.1f} слов/с 🐢"')
rows("headerless", "A table without a header: step, loss, learning rate, tokens per second", "", CELLS, because="own-trainer.md: a headerless one is read too")
rows("wide-table", "A table with two dozen columns, some of them empty, in an order of its own", "время,global_step," + ",".join(f"head_{i}" for i in range(18)) + ",lr,train_loss,toks_per_s",
     "'', k, *(['', 0.5] * 9), $lr, fall(k), $tok / took", because="own-trainer.md, Trainers that many have: global_step counts as step, train_loss as loss")
p = draw()
lines("carriage-returns", "A progress bar on standard error rewrites its line by carriage returns and ends one line a step", r'{step}/{steps_total} \[.*{toks_per_s}tok/s, nll={loss}\]',
      'f"\\r{100 * k // STEPS:3d}%|{chr(9608) * (20 * k // STEPS):<20}| {k}/{STEPS} [00:{k % 60:02d}<00:10, {$tok / took:.1f}tok/s, nll={fall(k):.4f}]", file=sys.stderr',
      then='if k % 50 == 0:\n    for j in (1, 2, 3):\n        say(f"\\reval: {33 * j}%|##| {j}/3 [00:00<00:00, 99.0tok/s, nll=9.0]", file=sys.stderr)', p=p, rows=p.n + 3 * (p.n // 50), because="own-trainer.md, Patterns: steps_total; standard error is searched")
p = draw(seconds=(8, 9), epoch=draws.randrange(23, 37))
lines("keras-epochs", "Steps start again in each epoch, as Keras prints them", r'Epoch {epoch}/|{step}/{steps_per_epoch} .* {step_time_ms}ms/step - .*loss: {loss}',
      'f"{(k - 1) % $epoch + 1}/$epoch [====>.....] - 1s {took * 1000:.1f}ms/step - accuracy: {k / STEPS:.4f} - loss: {fall(k):.4f}"', p=p, tps=True,
      time='$dt if (k - 1) % $epoch or say(f"Epoch {(k - 1) // $epoch + 1}/40") else $dt', rows=p.n + -(-p.n // p.epoch), because="own-trainer.md, Keras")
lines("colours-on-stderr", "Colored lines on standard error, with the rate of one GPU", r'step: +{step} +loss: +{loss} .*tps: +{toks_per_s_per_rank}',
      'f"\\33[32m[titan] \\33[31mstep: {k:3d}  \\33[32mloss: {fall(k):8.5f}  \\33[33mmemory: 3.1GiB  \\33[34mtps: {round($tok / took):,}\\33[0m", file=sys.stderr', because="own-trainer.md, torchtitan")
lines("thousands", "Rates with a k, steps with commas", r'Step {step} :: objective {loss} :: {toks_per_s} tok/s', 'f"Step {k:,} :: objective {fall(k):+.4f} :: {$tok / took / 1000:.3f}k tok/s"',
      p=draw(tok=draws.randrange(400000, 900000)), because="own-trainer.md, Patterns: numbers as 12.3k and 1,234.5")
lines("dict-lines", "Dictionaries without a step, one for each step, as the Trainer prints them", r"{row}'loss': {loss}, 'grad_norm': {grad_norm}, 'learning_rate': {lr}",
      '{"loss": round(fall(k), 4), "grad_norm": round(rng.uniform(0.8, 1.9), 4), "learning_rate": $lr, "epoch": round(k / STEPS, 3)}',
      accept=lambda p: [LEARNS, f"loss.last <= {0.7 * p.top:.3f}", "outcome.duration_s <= 40 s"], because="own-trainer.md, Patterns: {row}")
add("healthy", "boxes", "Tables of several lines for each update, as a reinforcement learning library prints them", p := draw(), r'''
for k in range(1, STEPS + 1):
    took = work($dt)
    say("-" * 36 + f"\n| time/              |             |\n|    iterations      | {k:<11} |\n|    fps             | {$tok / took:<11.1f} |")
    say(f"| train/             |             |\n|    loss            | {fall(k):<11.5f} |\n" + "-" * 36)
''', stdout=r'iterations +\| {step}|fps +\| {toks_per_s}|\| +loss +\| {loss}', accept=[least(p, 0.8), LEARNS], rows=3 * p.n,
    because="own-trainer.md, Patterns: a line without a step completes the line before it")
lines("json-lines", "JSON lines with nested numbers of a diffusion transformer, in microseconds of no interest", r'"step": {step}, .*"denoise": {loss}, .*"img_tok_s": {toks_per_s}',
      'json.dumps({"lvl": "info", "step": k, "t": {"us": int(took * 1e6)}, "denoise": round(fall(k, 0.1, 1.0), 6), "ema": 0.9999, "img_tok_s": round($tok / took, 1)})')
rows("lightning-gaps", "Rows of validation, empty but for its loss, stand between the rows of training", "epoch,step,loss,lr,toks_per_s,val_loss", "0, k, fall(k), $lr, $tok / took, ''", p=(p := draw(seconds=(8, 9))),
     then="if k % 30 == 0:\n    row(series, 0, k, '', '', '', fall(k))", metrics={"extra": {"val_loss": "nat"}}, accept=lambda p: [least(p, 0.8), "val_loss.last < val_loss.first"],
     rows=p.n + p.n // 30, because="own-trainer.md, Lightning")

# --- starts, ends, noise ---------------------------------------------------------------------------------------------
lines("resumed-5000", "A resumed run counts its steps from 5,001 on", r'resumed@{step} loss={loss} rate={toks_per_s}', 'f"resumed@{5000 + k} loss={fall(k):.4f} rate={$tok / took:.1f}"', because="trainer-contract.md, Starting: --resume goes on")
rows("handled-traceback", "A broken sample's traceback is printed and the sample left out", STEP, CELLS, then='''
if k == 70:
    try:
        raise OSError("truncated JPEG in shard 17")
    except OSError:
        import traceback
        traceback.print_exc()
        say("sample left out, going on", file=sys.stderr)
''', because="findings.md, crashed: the trainer ended before its time, which this one does not")
lines("memory-retried", "A batch that does not fit is split once, after a warning that memory ran out", r'<{step}> ce {loss} // {toks_per_s}', 'f"<{k}> ce {fall(k):.4f} // {$tok / took:.1f}"',
      before='say("WARNING: CUDA out of memory while probing batch size 256; trying 128", file=sys.stderr)', because="findings.md, oom: memory ran out: at which step; here at none")
lines("quick-exit", "The trainer skips the interpreter's tear-down by os._exit(0)", r'q {step} {loss} {toks_per_s}$', 'f"q {k} {fall(k):.4f} {$tok / took:.1f}"', after="sys.stdout.flush()\nos._exit(0)", because="exit-codes.md; exit code 0")
lines("atexit-writes", "Weights are written for two seconds after the last step, by atexit", r'zz{step} hits@1-loss={loss} {toks_per_s}/s', 'f"zz{k} hits@1-loss={fall(k):.4f} {$tok / took:.1f}/s"',
      before='import atexit\natexit.register(lambda: (time.sleep(2), say("weights written")))', because="validation.md, Statistics: the end is the last step's row")
lines("helpers-that-end", "Two loader processes run beside a recommender and are ended before it ends", r'hit {step} ndcg-loss {loss} ev/s {toks_per_s}', 'f"hit {k} ndcg-loss {fall(k):.4f} ev/s {$tok / took:.1f}"',
      before='import subprocess\nhelpers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)]', after="for helper in helpers:\n    helper.terminate()\n    helper.wait()",
      because="findings.md, leftover-process: none is left")
rows("memory-plateau", "Memory rises while caches fill and is flat from a third on", STEP + ",host_mem_mib", CELLS + ", 900 + 300 * min(1, 3 * k / STEPS) + rng.uniform(-1, 1)", because="findings.md, memory-growth: without a plateau")
SETUP = r'''
OUT.mkdir(parents=True, exist_ok=True)
(OUT / "env.json").write_text(json.dumps({"requested": {"batch_size": 24, "seq_len": 80, "accum": 1, "dtype": "auto", "device": None},
    "effective": {"batch_size": 24, "seq_len": 80, "accum": 1, "dtype": "fp32", "device": "cpu"}, "world_size": 1, "tokens_per_step": 1920}))
'''
rows("auto-settings", "Requests of auto and null left the choice to the trainer, and the rest is as asked", STEP, CELLS, p=draw(tok=1920), before=SETUP, metrics={"env": "env.json"},
     accept=lambda p: [least(p, 0.8), LEARNS, "effective.batch_size == 24"], because="trainer-contract.md, env.json: a request of null or auto is not a deviation")
rows("final-scalars", "A word error rate in metrics.json, and five criteria on several metrics", STEP + ",step_time_s", CELLS + ", took", metrics={"metrics": "final.json"},
     after='(OUT / "final.json").write_text(json.dumps({"wer": 0.1873, "status": "done"}))\n', phase={"log_contains": ["weights: 12,345,678"]}, before='say("weights: 12,345,678")',
     accept=lambda p: [least(p, 0.8), "metrics.wer <= 0.25", f"step_time_s.mean <= {p.dt * 1.3:.4f} s", f"steps.done >= {p.n}", "loss.last <= 0.8 * loss.first", "startup.first_step_s <= 30 s"],
     because="runbook-reference.md, Criteria: metrics.<key>")

# --- several runs ----------------------------------------------------------------------------------------------------
SHORT = dict(seconds=(4, 4.5), step=(0.03, 0.04))
for name, what, phases in [
    ("ab-equal", "Two equal sides of an A/B: not decidable or no difference, and the declared side stays", lambda p: [{"id": "fused", "kind": "ab", "steps": p.n, "repeats": 2,
        "arms": {"plain": {"args": {"lr": 0.001}}, "brisk": {"args": {"lr": 0.002}}}, "choose": {"highest": "toks_per_s.mean"}, "accept": [least(p, 0.75)]}]),
    ("sweep-rates", "A sweep of the learning rate, whose arms learn differently well", lambda p: [{"id": "lr", "kind": "sweep", "steps": p.n, "repeats": 2, "over": {"args.lr": [0.001, 0.004]},
        "choose": {"lowest": "loss.last"}, "accept": [least(p, 0.75), "loss.last < loss.first"]}]),
    ("three-repeats", "Three repeats of one configuration with other seeds", lambda p: [{"id": "thrice", "kind": "train", "steps": p.n, "repeats": 3, "args": {"lr": 0.003}, "accept": [least(p, 0.8)]}]),
    ("phase-against-phase", "The second phase is held against the first, which only observes", lambda p: [{"id": "look", "kind": "train", "steps": p.n, "observe": True, "args": {"lr": 0.001}},
        {"id": "judge", "kind": "train", "steps": p.n, "needs": ["look"], "args": {"lr": 0.002}, "accept": [least(p, 0.7), "toks_per_s.mean >= 0.8 * look.toks_per_s.mean"]}]),
    ("gate-then-train", "A command counts the shards before the training run, and both must hold", lambda p: [{"id": "shards", "kind": "command", "run": ["{python}", "count.py"],
        "stdout": r"shards (?P<shards>\d+)", "accept": ["metrics.shards >= 12"]}, {"id": "fit", "kind": "train", "steps": p.n, "needs": ["shards"], "args": {"lr": 0.002}, "accept": [least(p, 0.8)]}]),
    ("trial-args", "A learning rate that suits the short run is given by trial_args, and is obeyed", lambda p: [{"id": "short", "kind": "train", "steps": p.n, "accept": [least(p, 0.8), "loss.last < loss.first"]}]),
]:
    word = f"v{draws.randrange(100, 999)}"
    p = draw(**SHORT) if name != "trial-args" else draw()
    lines(name, what, rf'{word} n{{step}} f={{loss}} y={{toks_per_s}}', f'f"{word} n{{k}} f={{fall(k) * (1 - 40 * lr):.5f}} y={{$tok / took:.1f}}"', p=p, phases=phases(p), plain=True,
          trainer={"trial_args": {"lr": 0.002}} if name == "trial-args" else None, before='lr = float(option("lr"))\nrng.seed(f"{time.time_ns()}")', because="statistics.md, Sweeps and A/Bs; runbook-reference.md, Phases",
          files={"count.py": 'print("shards 12 of 12, corrupt 0; shards 15 in all")\n'} if name == "gate-then-train" else None)
rows("buckets-equal-losses", "Two bucket sizes leave the same losses digit for digit, by right", STEP, CELLS, p=(p := draw(**SHORT)), plain=True, phases=[
    {"id": "buckets", "kind": "sweep", "steps": p.n, "repeats": 2, "over": {"env.BUCKET_CAP_MB": [8, 32]}, "choose": {"highest": "toks_per_s.mean"}, "accept": [least(p, 0.75)]}],
     because="findings.md, The thresholds: bucket sizes may be equal by right", before='say("buckets of", os.environ.get("BUCKET_CAP_MB"), "MB")')
add("healthy", "three-ranks", "Three ranks, of which one writes only its start and its end, and one more kinds of records", p := draw(), BEAT + r'''
for k in range(1, STEPS + 1):
    took = work($dt)
    if RANK < 2:
        pulse(k, "progress", loss=round(fall(k), 4), toks_per_s=$tok / took, step_time_s=took, compute_time_s=took * rng.uniform(0.79, 0.81))
    if RANK == 1 and k % 20 == 0:
        pulse(k, "beat")
    if series:
        row(series, k, fall(k), $lr, $tok / took)
pulse(STEPS, "done", status="done", why="")
''', csv="training.csv", metrics={"heartbeat": "heartbeat_rank{rank}.jsonl"}, nproc=3, plain=True, accept=[least(p, 0.75), LEARNS],
    because="validation.md, Findings: a rank that only writes boot is healthy")
