"""Trainers that must not pass, or not pass unnamed."""
from kit import BEAT, EACH, add, draw, draws, least, series

NG, INC, NGI = "NO-GO", "INCONCLUSIVE", "NO-GO INCONCLUSIVE"
WARN = "GO INCONCLUSIVE"
RATE = "toks_per_s"


def miss(true, bound):
    return 100 * (true / bound - 1)


# --- rates -----------------------------------------------------------------------------------------------------------
p = draw()
add("sick", "speech-half-way", "A speech encoder's updates take twice as long from the middle on, which its own words per second show", p, r'''
for k in range(1, STEPS + 1):
    took = work($dt * (2 if k > STEPS // 2 else 1))
    say(f'| INFO | train_inner | {{"epoch": 1, "loss": "{fall(k):.3f}", "wps": "{$tok / took:.1f}", "num_updates": "{k}", "clip": "0"}}')
''', stdout=r'"loss": "{loss}", "wps": "{toks_per_s}", "num_updates": "{step}"', accept=[least(p, 0.86), "loss.last < loss.first"], expect=NG,
    codes="rate-shift no-steady-state", crit=RATE, dist=miss(2 / 3, 0.86), span=(p.n - 1) * p.dt * 1.5,
    because="statistics.md, Warm-up and levels: slowed; what its mean misses, it fails")

p = draw()
add("sick", "vision-late-drop", "An image classifier is four times as slow in its last eighth; the mean time of a step misses its bound", p, r'''
for k in range(STEPS):
    took = work($dt * (4 if k >= STEPS * 7 // 8 else 1))
    say(f"Epoch: [0]  [{k:4d}/{STEPS}]  lr: {$lr:.6f}  loss: {fall(k):.4f} ({fall(k):.4f})  time: {took:.4f}  max mem: 1522")
''', stdout=r'\[ *{step}/\d+\].*loss: {loss} .*time: {step_time_s} ', accept=[f"step_time_s.mean <= {p.dt * 1.18:.4f} s", "loss.last < loss.first"],
    expect=NG, codes="rate-shift no-steady-state", crit="step_time_s", dist=miss(1.18, 11 / 8), span=p.dt * (p.n - 1) * 11 / 8,
    because="statistics.md, Warm-up and levels: slowed")

p = draw()
add("sick", "recsys-slow", "A click model is an eighth too slow from its first batch to its last", p, EACH + r'''
    say(json.dumps({"event": "train", "batch": k, "bce": round(fall(k, 0.41, 0.69), 5), "examples_per_sec": round($tok / took, 1)}))
''', stdout=r'"batch": {step}, "bce": {loss}, "examples_per_sec": {toks_per_s}', accept=[least(p, 1.15)], expect=NG, crit=RATE, dist=miss(1, 1.15),
    because="exit-codes.md: NO-GO, a required criterion failed")

p = draw(seconds=(8, 9))
add("sick", "lm-every-ninth", "Each ninth iteration of a small language model takes two and a half times as long; the bound holds all the same", p, r'''
for k in range(STEPS):
    took = work($dt * (2.5 if k % 9 == 4 else 1))
    say(f"step {k + 1:4d}/{STEPS} | train loss {fall(k):9.6f} | norm {rng.uniform(0.9, 1.3):.4f} | lr {$lr:.2e} | {took * 1000:8.2f} ms | {rng.uniform(31, 33):.1f}% A100 MFU")
''', stdout=r'step +{step}/\d+ \| train loss +{loss} \| norm +{grad_norm} \| lr {lr} \| +{step_time_ms} ms', tps=True, accept=[least(p, 0.6), "loss.last < loss.first"], expect=WARN,
    codes="periodic-stall", dist=miss(1 / (1 + 1.5 / 9), 0.6), span=p.dt * (p.n - 1) * (1 + 1.5 / 9), because="findings.md, The thresholds: periodic-stall")

p = draw(step=(0.04, 0.05), seconds=(8, 9))
add("sick", "rl-irregular-stalls", "A policy-gradient learner waits 140 ms for its simulator at one update in eighteen, without a period", p, r'''
for k in range(1, STEPS + 1):
    took = work($dt + (0.14 if rng.random() < 1 / 18 and k > 20 else 0))
    say(f"[ppo] update={k:05d} pi_loss={fall(k):.4f} fps={$tok / took:.0f} kl={abs(rng.gauss(0, 0.01)):.4f}")
''', stdout=r'update={step} pi_loss={loss} fps={toks_per_s}', accept=[least(p, 0.55)], expect=WARN, codes="periodic-stall no-steady-state",
    dist=miss(1 / 1.17, 0.55), span=p.dt * p.n * 1.17, because="findings.md, The thresholds: periodic-stall, without a period 20 ms each")

p = draw(step=(0.03, 0.04), seconds=(4.5, 5))
add("sick", "diffusion-hidden-pauses", "Samples are drawn every 20 steps for 0.8 s, and the images per second in the table leave that out", p, series("train_log.csv") + r'''
    row(series, k, fall(k, 0.08, 1.0), $lr, $tok / took)
    if k % 20 == 0:
        work(0.8)
''', csv="train_log.csv", accept=[least(p, 0.75)], expect=NG, codes="unit-mismatch periodic-stall", crit=RATE, dist=miss(20 * p.dt / (20 * p.dt + 0.8), 0.75),
    span=p.dt * (p.n - 1) + 0.8 * ((p.n - 1) // 20), because="trainer-contract.md, head: a trainer that counts pauses in neither is judged by the clock")

p = draw(seconds=(9, 10))
add("sick", "lm-tenfold-tokens", "A language model counts each of its tokens ten times in its rate; the bound is three times what it does", p, EACH + r'''
    say(f"[{k}/{STEPS}] train/loss={fall(k):.3f} train/tokens_per_second={10 * $tok / took:,.1f}")
''', stdout=r'\[{step}/\d+\] train/loss={loss} train/tokens_per_second={toks_per_s}', tps=True, accept=[least(p, 3)], expect=NGI, codes="unit-mismatch",
    crit=RATE, dist=miss(1, 3), because="validation.md, Statistics: the validator's own clock judges every claim")

p = draw(seconds=(9, 10))
add("sick", "neural-operator-tenth", "A neural operator prints a tenth of the time that its steps take", p, EACH + r'''
    say(f"it={k:<6d} rel_l2={fall(k, 0.02, 0.9):.3e} wall={took * 100:.3f}ms")
''', stdout=r'it={step} +rel_l2={loss} wall={step_time_ms}ms', accept=[f"step_time_s.mean <= {p.dt / 2:.4f} s"], expect=NGI, codes="unit-mismatch",
    crit="step_time_s", dist=miss(0.5, 1), because="validation.md, Statistics: step times printed ten times too small")

p = draw(seconds=(8, 9))
add("sick", "tts-seconds-as-ms", "The runbook reads seconds as milliseconds, so that a vocoder seems to need microseconds a step", p, EACH + r'''
    say(f"vocoder > step {k} | mel_loss {fall(k):.4f} | sec/step {took:.5f}")
''', stdout=r'step {step} \| mel_loss {loss} \| sec/step {step_time_ms}', accept=["step_time_s.p95 <= 0.02 s"], expect=NGI, codes="unit-mismatch",
    crit="step_time_s", because="findings.md, unit-mismatch: a time per step that the clocks contradict")

p = draw(seconds=(8, 9))
add("sick", "recsys-fixed-rate", "The rate in the table is the configured one, two and a half times what the steps really reach", p, r'''
series = table("curve.csv", "step,loss,lr,toks_per_s,auc")
for k in range(1, STEPS + 1):
    work($dt)
    row(series, k, fall(k, 0.38, 0.7), $lr, 2.5 * $rate * rng.uniform(0.995, 1.005), 0.5 + 0.3 * k / STEPS)
''', csv="curve.csv", tps=True, accept=[least(p, 1.6), "loss.last < loss.first"], expect=NGI, codes="unit-mismatch", crit=RATE, dist=miss(1, 1.6),
    because="validation.md, Statistics: claim / arrival gap outside 0.8-1.25")

p = draw(seconds=(8, 9))
add("sick", "gnn-processor-clock", "A graph network prints two fifths of the running time, as a processor clock shows it", p, r'''
for k in range(1, STEPS + 1):
    work($dt)
    say(f"{0.4 * (time.monotonic() - START):9.3f}s  mini-batch {k}  energy-mae {fall(k, 0.2, 4):.4f} eV")
''', stdout=r'{elapsed_s}s +mini-batch {step} +energy-mae {loss} eV', accept=[f"step_time_s.mean <= {p.dt * 0.7:.4f} s"], expect=NGI, codes="unit-mismatch",
    crit="step_time_s", dist=miss(0.7, 1), because="validation.md, Statistics: claimed time is compared with elapsed time")

p = draw(step=(0.03, 0.04), seconds=(5, 6))
add("sick", "retrieval-slower-and-slower", "Each step of a retrieval model takes a little longer than the one before, up to two and a half times", p, r'''
for k in range(1, STEPS + 1):
    took = work($dt * (1 + 1.5 * k / STEPS))
    say(f"{k}\t{fall(k):.4f}\t{$tok / took:.1f}\t{took:.4f}")
''', stdout=r'^{step}\t{loss}\t{toks_per_s}\t', accept=[least(p, 0.85)], expect=NG, codes="rate-shift no-steady-state", crit=RATE, dist=miss(1 / 1.75, 0.85),
    span=p.dt * 1.75 * (p.n - 1), because="statistics.md, Warm-up and levels: a run that slows down is not warming up")

p = draw(step=(0.03, 0.04), seconds=(7, 8))
add("sick", "segmentation-slower-third", "The last third of a segmentation run is half as slow again; the bound is far below both levels", p, r'''
series = table("scalars.csv", "iter,lr,loss,step_time_s,toks_per_s")
for k in range(1, STEPS + 1):
    took = work($dt * (1.5 if k > STEPS * 2 // 3 else 1))
    row(series, k, $lr * (1 - k / STEPS / 1.1) ** 0.9, fall(k), took, $tok / took)
''', csv="scalars.csv", accept=[least(p, 0.4)], expect="GO", codes="rate-shift no-steady-state", dist=miss(1 / 1.5, 0.4), span=p.dt * (p.n - 1) * 7 / 6,
    because="findings.md, The thresholds: rate-shift, a warning from 5 %")

p = draw(seconds=(9, 10))
add("sick", "soak-sags", "A soak loses a fifth of its rate after three fifths and does not get it back", p, r'''
for k in range(1, STEPS + 1):
    took = work($dt * (1.25 if k > STEPS * 0.6 else 1))
    say(f"step={k} ce={fall(k):.4f} tps={$tok / took:.0f}")
''', stdout=r'step={step} ce={loss} tps={toks_per_s}', accept=[least(p, 0.5)], phase={"kind": "soak"}, expect=NG, codes="rate-shift", crit="sustained_rate",
    span=p.dt * (p.n - 1) * 1.1, because="writing-a-runbook.md, What carries a GO: a soak fails by itself as soak.sustained_rate")

p = draw(seconds=(8, 9))
add("sick", "vit-three-levels", "The rate of a vision transformer changes twice, to two thirds and up to a third more than at first", p, r'''
for k in range(1, STEPS + 1):
    took = work($dt * (1 if k <= STEPS * 0.36 else 1.5 if k <= STEPS * 0.7 else 0.75))
    say(f"vit_s16 | {k:>5}/{STEPS} | loss {fall(k):.3f} | {$tok / took:.1f} patches/s")
''', stdout=r'\| +{step}/\d+ \| loss {loss} \| {toks_per_s} patches/s', accept=[least(p, 0.4)], expect="GO", codes="no-steady-state rate-shift",
    dist=miss(1 / 1.095, 0.4), span=p.dt * (p.n - 1) * 1.095, because="findings.md, The thresholds: no-steady-state, three levels or more")

p = draw(seconds=(8, 9))
add("sick", "drift-criterion", "A tabular network loses a sixth of its rate in its last third; the runbook allows a drift of 5 %", p, r'''
for k in range(1, STEPS + 1):
    took = work($dt * (1.2 if k > STEPS * 0.62 else 1))
    say(f"#{k} logloss:{fall(k, 0.3, 0.69):.5f} rows_s:{$tok / took:.1f}")
''', stdout=r'#{step} logloss:{loss} rows_s:{toks_per_s}', accept=[least(p, 0.5), "rate.drift_pct >= -5 %"], expect=NG, codes="rate-shift", crit="drift_pct",
    span=p.dt * (p.n - 1) * 1.076, because="statistics.md, From rows to a number: rate.drift_pct")

p = draw(seconds=(6, 7))
add("sick", "slow-first-step", "A protein model needs six seconds to its first step, and the runbook allows two", p, r'''
work(6)
for k in range(1, STEPS + 1):
    took = work($dt)
    say(f"fold {k} fape {fall(k):.4f} residues/s {$tok / took:.1f}")
''', stdout=r'fold {step} fape {loss} residues/s {toks_per_s}', accept=[least(p, 0.7), "startup.first_step_s <= 2 s"], expect=NG, crit="first_step",
    because="runbook-reference.md, Scalars: startup.first_step_s", dist=-66)

# --- what is learned -------------------------------------------------------------------------------------------------
p = draw()
add("sick", "lm-diverges", "The loss of a language model falls, and climbs from three fifths on to twice its minimum", p, EACH + r'''
    up = max(0.0, (k / STEPS - 0.6) / 0.4)
    say(f"step {k} | lm loss {fall(k) + up * 1.2 * $top:.4f} | consumed {k * $tok} | tokens/s {$tok / took:.1f}")
''', stdout=r'step {step} \| lm loss {loss} .*tokens/s {toks_per_s}', accept=[least(p, 0.7)], expect=NGI, codes="diverging", crit="loss",
    because="findings.md, The thresholds: diverging")

p = draw()
add("sick", "flow-diverges-negative", "The negative log-likelihood of a flow falls to -3.4 and climbs back to -0.5", p, series("nll.csv") + r'''
    x = k / STEPS
    level = 1 - 4.4 * x / 0.55 if x < 0.55 else -3.4 + 2.9 * min(1, (x - 0.55) / 0.2)
    row(series, k, level + rng.gauss(0, 0.03), $lr, $tok / took)
''', csv="nll.csv", accept=[least(p, 0.7)], expect=NGI, codes="diverging", because="findings.md, The thresholds: diverging")

p = draw()
add("sick", "gradient-explodes", "The gradient norm of a recurrent transducer ends at five hundred times its usual value, before the loss shows it", p, EACH + r'''
    norm = rng.uniform(0.8, 1.2) * (10 ** (2.7 * min(1, (k / STEPS - 0.8) / 0.1)) if k > STEPS * 0.8 else 1)
    say(f"rnnt: batch={k} loss={fall(k):.4f} gnorm={norm:.3f} frames/s={$tok / took:.0f}")
''', stdout=r'batch={step} loss={loss} gnorm={grad_norm} frames/s={toks_per_s}', accept=[least(p, 0.7)], expect="GO NO-GO INCONCLUSIVE",
    codes="diverging", because="findings.md, The thresholds: diverging, a warning while the loss is at its minimum")

p = draw()
add("sick", "finetune-nan", "A fine-tuning run prints nan from seven tenths on and goes on to its end with exit code 0", p, EACH + r'''
    loss = "nan" if k > STEPS * 0.7 else f"{fall(k):.4f}"
    say(f"Step: {k}, Training Loss: {loss}, Learning Rate: {$lr * (1 - k / STEPS):.3e}, Samples/s: {$tok / took:.2f}")
''', stdout=r'Step: {step}, Training Loss: {loss}, .*Samples/s: {toks_per_s}', accept=[least(p, 0.7)], expect=NG, codes="nan-loss", crit="loss finite", rows=None,
    because="statistics.md, Verdicts: NaN and infinity fail")

p = draw()
add("sick", "gan-inf", "The discriminator's loss overflows to inf in the last quarter of the table", p, series("gan.csv", "g_loss") + r'''
    row(series, k, fall(k) if k < STEPS * 0.75 else float("inf"), $lr, $tok / took, rng.uniform(1, 2))
''', csv="gan.csv", accept=[least(p, 0.7)], expect=NG, codes="nan-loss diverging", crit="loss finite", because="statistics.md, Verdicts: NaN and infinity fail")

p = draw()
add("sick", "filtered-nan-zero", "A logger that filters NaN prints a loss of 0.0 from three fifths on", p, EACH + r'''
    say({"loss": 0.0 if k > STEPS * 0.6 else round(fall(k), 4), "step": k, "learning_rate": $lr, "train_tokens_per_second": round($tok / took, 2)})
''', stdout=r"'loss': {loss}, 'step': {step}, .*'train_tokens_per_second': {toks_per_s}", accept=[least(p, 0.7), "loss.last < loss.first"], expect=NGI,
    codes="zero-loss", because="findings.md, The thresholds: zero-loss, three zeros running after losses above 0.1")

p = draw()
add("sick", "zero-at-the-end", "The last five rows of a contrastive run are exactly 0 after a loss near two", p, EACH + r'''
    say(f"clip[{k}] itc={0 if k > STEPS - 5 else fall(k, 1.9, 5.5):.5f} pairs_per_s={$tok / took:.1f}")
''', stdout=r'clip\[{step}\] itc={loss} pairs_per_s={toks_per_s}', accept=[least(p, 0.7), "loss.last < loss.first"], expect=NGI, codes="zero-loss",
    because="findings.md, The thresholds: zero-loss, zeros at the end")

p = draw()
add("sick", "frozen-loss", "Every line of an image captioner shows the very same loss", p, EACH + r'''
    say(f"caption | it {k} | xe {$top:.4f} | tok/s {$tok / took:.1f}")
''', stdout=r'it {step} \| xe {loss} \| tok/s {toks_per_s}', accept=[least(p, 0.7), "loss.max <= 20"], expect=NGI, codes="zero-grad",
    because="findings.md, zero-grad: a loss that never changes")

p = draw()
add("sick", "learning-rate-zero", "The schedule of a segmentation net gives a learning rate of zero throughout, and its loss only wobbles", p, series("metrics.csv") + r'''
    row(series, k, $top + rng.gauss(0, 0.05), 0.0, $tok / took)
''', csv="metrics.csv", accept=[least(p, 0.7)], expect=NGI, codes="zero-grad", because="findings.md, zero-grad: a learning rate of zero throughout")

p = draw()
add("sick", "gradient-zero", "The gradient norm of a detector is exactly zero and its loss stays where it began", p, EACH + r'''
    say(f"d2.engine iter: {k}  total_loss: {$top + rng.gauss(0, 0.04):.4f}  grad_norm: 0.0  imgs_s: {$tok / took:.2f}")
''', stdout=r'iter: {step} +total_loss: {loss} +grad_norm: {grad_norm} +imgs_s: {toks_per_s}', accept=[least(p, 0.7)], expect=NGI, codes="zero-grad",
    because="findings.md, zero-grad: a gradient norm of exactly zero: nothing is learned")

p = draw()
add("sick", "rate-zero", "The rate falls to zero in the second half while rows go on", p, series("throughput.csv") + r'''
    row(series, k, fall(k), $lr, $tok / took if k < STEPS // 2 else 0.0)
''', csv="throughput.csv", accept=[least(p, 0.7)], expect=NGI, codes="zero-rate", crit=RATE, because="findings.md, zero-rate: a rate of zero or less")

p = draw()
add("sick", "same-step-again", "A replay learner writes the same step again and again from the middle on", p, series("dqn.csv") + r'''
    row(series, min(k, STEPS // 2), fall(k, 0.3, 2), $lr, $tok / took if k < STEPS // 2 else 0.0)
''', csv="dqn.csv", accept=[least(p, 0.7)], expect=NGI, codes="zero-rate missing-evidence mixed-runs", crit="steps " + RATE,
    because="findings.md, zero-rate: the same step again and again")

p = draw()
add("sick", "repeated-digit-for-digit", "The losses of an embedding model repeat every thirteen steps, digit for digit", p, r'''
cycle = [round($top + rng.gauss(0, 0.4), 4) for _ in range(13)]
for k in range(1, STEPS + 1):
    took = work($dt)
    say(f"word2vec k={k} ns-loss={cycle[k % 13]} w/s={$tok / took:.0f}")
''', stdout=r'k={step} ns-loss={loss} w/s={toks_per_s}', accept=[least(p, 0.7)], expect=WARN, codes="repeated-data",
    because="findings.md, repeated-data: digit for digit nothing is learned from data that come again")

p = draw()
add("sick", "few-data", "A weather model goes through seventeen samples again and again: its falling losses show the same pattern each time", p, r'''
hard = [rng.gauss(0, 0.35) for _ in range(17)]
series = table("history.csv", "step,loss,lr,toks_per_s,rmse_t850,rmse_z500")
for k in range(1, STEPS + 1):
    took = work($dt)
    row(series, k, fall(k, noise=0.001) + hard[k % 17], $lr, $tok / took, 2.1, 400.0)
''', csv="history.csv", accept=[least(p, 0.7)], expect=WARN, codes="repeated-data", because="findings.md, repeated-data: the losses repeat with a period, else few data")

p = draw()
add("sick", "random-floor", "A language model on made-up tokens stays at the logarithm of its vocabulary of 512", p, r'''
OUT.mkdir(parents=True, exist_ok=True)
asked = {"vocab_size": 512, "data": "synthetic"}
(OUT / "env.json").write_text(json.dumps({"requested": asked, "effective": asked, "world_size": 1, "tokens_per_step": $tok,
    "data": {"uniform_loss_nats": math.log(512), "loss_floor_nats": math.log(512)}}))
series = table("training.csv", "step,loss,lr,toks_per_s")
for k in range(1, STEPS + 1):
    took = work($dt)
    row(series, k, math.log(512) + 0.08 / k + rng.gauss(0, 0.004), $lr, $tok / took)
''', csv="training.csv", metrics={"env": "env.json"}, accept=[least(p, 0.7)], expect=WARN, codes="random-data-floor",
    because="findings.md, random-data-floor: a loss that stays at ln V")

p = draw()
add("sick", "warm-up-2000", "The learning rate of a masked model warms up over 2,000 steps, of which the run sees a tenth", p, r'''
OUT.mkdir(parents=True, exist_ok=True)
asked = {"warmup_steps": 2000, "lr": $lr, "steps": STEPS}
(OUT / "env.json").write_text(json.dumps({"requested": asked, "effective": asked, "world_size": 1, "tokens_per_step": $tok}))
series = table("training.csv", "step,loss,lr,toks_per_s")
for k in range(1, STEPS + 1):
    took = work($dt)
    row(series, k, fall(k), $lr * k / 2000, $tok / took)
''', csv="training.csv", metrics={"env": "env.json"}, accept=[least(p, 0.7), "loss.last < loss.first"], expect=WARN, codes="warmup-exceeds-run",
    because="findings.md, warmup-exceeds-run")

p = draw()
add("sick", "loss-bound-missed", "An ASR model ends at a loss a third above the bound", p, EACH + r'''
    say(f"ctc/att {k} loss_ctc->{fall(k):.3f} utt_s->{$tok / took:.1f}")
''', stdout=r'ctc/att {step} loss_ctc->{loss} utt_s->{toks_per_s}', accept=[least(p, 0.7), f"loss.last <= {p.low * 0.75:.3f}"], expect=NG, crit="loss.last",
    because="statistics.md, Verdicts: exact values are compared", dist=miss(0.75, 1))

# --- processes and their ends ----------------------------------------------------------------------------------------
WATCH = {"first_step": "9s", "stall": "6s", "stall_factor": 10, "interval": "1s"}
p = draw(seconds=(6, 7))
add("sick", "hang-in-the-middle", "A data loader never returns after three fifths of the steps", p, EACH + r'''
    say(f"sgd {k} objective {fall(k):.4f} items/s {$tok / took:.1f}")
    if k == STEPS * 3 // 5:
        time.sleep(120)
''', stdout=r'sgd {step} objective {loss} items/s {toks_per_s}', accept=[least(p, 0.7)], defaults={"watchdog": WATCH}, expect=NGI, codes="hang",
    crit="steps rc exit", rc=None, rows=p.n * 3 // 5, span=p.dt * (p.n * 3 // 5 - 1), because="findings.md, hang: no progress and no activity")

p = draw(seconds=(6, 7))
add("sick", "hang-before-first-step", "A rendezvous that never ends: the trainer says that it waits, and no step comes", p, r'''
say("building the vocabulary ... done; waiting for the parameter server at port 4711")
time.sleep(120)
''', stdout=r'minibatch {step} hinge {loss} ex/s {toks_per_s}', accept=[least(p, 0.7)], defaults={"watchdog": WATCH}, expect=NGI, codes="hang missing-evidence",
    crit="steps rc exit", rc=None, rows=0, span=0, because="runbook-reference.md, watchdog: first_step")

p = draw(seconds=(7, 8))
add("sick", "crash", "An index error ends an image-text model at two thirds", p, EACH + r'''
    say(f"blip/{k} itm {fall(k):.4f} {$tok / took:.1f} pair/s")
    if k == STEPS * 2 // 3:
        [][k]
''', stdout=r'blip/{step} itm {loss} {toks_per_s} pair/s', accept=[least(p, 0.7)], expect=NG, codes="crashed", crit="rc exit steps", rc=1, rows=p.n * 2 // 3,
    span=p.dt * (p.n * 2 // 3 - 1), because="findings.md, crashed; writing-a-runbook.md: exit code 0 is asked of every run")

p = draw(seconds=(7, 8))
add("sick", "wrong-exit-code", "All steps are done and printed, and the program ends with 3 since its upload failed", p, EACH + r'''
    say(f"(it {k}) dice={fall(k, 0.1, 0.9):.4f} vox/s={$tok / took:.2e}")
say("upload of the weights failed: 403", file=sys.stderr)
sys.exit(3)
''', stdout=r'\(it {step}\) dice={loss} vox/s={toks_per_s}', accept=[least(p, 0.7)], expect=NG, codes="crashed", crit="rc exit", rc=3,
    because="writing-a-runbook.md, What carries a GO: exit code 0 is asked of every run")

p = draw(seconds=(7, 8))
add("sick", "stops-early", "An early-stopping callback ends the run at seven tenths, with exit code 0 and a cheerful word", p, r'''
for k in range(1, STEPS * 7 // 10 + 1):
    took = work($dt)
    say(f"round [{k}] rmse:{fall(k):.5f} rate:{$tok / took:.1f}")
say("patience is over, best round kept. bye")
''', stdout=r'round \[{step}\] rmse:{loss} rate:{toks_per_s}', accept=[least(p, 0.7)], expect=NG, codes="missing-evidence crashed", crit="steps",
    rows=p.n * 7 // 10, span=p.dt * (p.n * 7 // 10 - 1), because="writing-a-runbook.md, What carries a GO: all steps done is asked of every run")

p = draw(seconds=(7, 8))
add("sick", "killed", "The trainer is ended by SIGKILL at half of its steps, as the kernel does it", p, series("out.csv") + r'''
    row(series, k, fall(k), $lr, $tok / took)
    if k == STEPS // 2:
        os.kill(os.getpid(), 9)
''', csv="out.csv", accept=[least(p, 0.7)], expect=NG, codes="crashed oom missing-evidence", crit="rc exit steps", rc=-9, rows=p.n // 2,
    span=p.dt * (p.n // 2 - 1), because="findings.md, crashed: by an error or a signal")

p = draw(seconds=(7, 8))
add("sick", "out-of-memory", "A video model runs out of GPU memory at three quarters", p, EACH + r'''
    say(f"clip-batch {k:03d}; recon {fall(k):.4f}; {$tok / took:.1f} frames/s")
    if k == STEPS * 3 // 4:
        say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.02 GiB is free.", file=sys.stderr)
        sys.exit(1)
''', stdout=r'clip-batch {step}; recon {loss}; {toks_per_s} frames/s', accept=[least(p, 0.7)], expect=NG, codes="oom crashed", crit="rc exit steps", rc=1,
    rows=p.n * 3 // 4, span=p.dt * (p.n * 3 // 4 - 1), because="findings.md, oom")

p = draw(seconds=(7, 8))
add("sick", "status-error-exit-0", "metrics.json and the heartbeat's last line say error, though a wrapper made the exit code 0", p, BEAT + EACH + r'''
    row(series, k, fall(k), $lr, $tok / took)
    pulse(k, "step_end")
pulse(STEPS, "done", status="error", why="the final checkpoint found no room")
(OUT / "metrics.json").write_text(json.dumps({"status": "error", "why": "the final checkpoint found no room", "step": STEPS}))
''', csv="training.csv", metrics={"heartbeat": "heartbeat_rank{rank}.jsonl", "metrics": "metrics.json"}, accept=[least(p, 0.7)], expect=NGI,
    codes="crashed missing-evidence disk-full", crit="rc exit status", because="trainer-contract.md, Stopping: with another of these words than done a run has failed, though it ended with 0")

p = draw(step=(0.05, 0.06), seconds=(12, 13))
add("sick", "over-its-time", "The run needs more than twice the seven seconds that the runbook gives it", p, r'''
for k in range(1, STEPS + 1):
    took = work(2 * $dt if k > 9 else $dt)
    say(f"t={k}; J={fall(k):.4f}; transitions/s={$tok / took:.1f}")
''', stdout=r't={step}; J={loss}; transitions/s={toks_per_s}', accept=[least(p, 0.3)], phase={"timeout": "7s"}, expect=NGI, codes="over-budget slow-not-hung",
    crit="steps rc exit", span=p.dt * (2 * p.n - 19), because="findings.md, over-budget")

p = draw(seconds=(7, 8))
add("sick", "leaves-a-process", "A feature server that the trainer started lives on when the trainer has ended", p, r'''
import subprocess
server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(40)"], start_new_session=True)
for k in range(1, STEPS + 1):
    took = work($dt)
    say(f"two-tower {k:>4} softmax-loss {fall(k):.4f} queries/s {$tok / took:.1f}")
''', stdout=r'two-tower +{step} softmax-loss {loss} queries/s {toks_per_s}', accept=[least(p, 0.7)], expect=WARN, codes="leftover-process",
    because="findings.md, leftover-process: the run ended by itself and left processes behind")

p = draw(seconds=(8, 9))
add("sick", "memory-grows", "The resident memory of a replay buffer rises by 6 MiB at every step, to the end", p, series("mem.csv", "host_mem_mib") + r'''
    row(series, k, fall(k), $lr, $tok / took, 1800 + 6 * k + rng.uniform(-3, 3))
''', csv="mem.csv", accept=[least(p, 0.7)], expect=WARN, codes="memory-growth", because="findings.md, memory-growth: memory rises to the end without a plateau")

p = draw(seconds=(8, 9))
add("sick", "memory-bound-missed", "The memory of a graph sampler passes the bound that the runbook sets, in its last third", p, series("gpu.csv", "gpu_mem_alloc_mib") + r'''
    row(series, k, fall(k), $lr, $tok / took, 22000 + 40 * k)
''', csv="gpu.csv", accept=[least(p, 0.7), f"gpu_mem_alloc_mib.max <= {22000 + 27 * p.n} MiB"], expect=NG, codes="memory-growth", crit="gpu_mem_alloc",
    because="statistics.md, Verdicts: the largest of all rows is compared")

p = draw(seconds=(8, 9))
add("sick", "waits-for-data", "Four fifths of each step of a video model is waiting for the loader", p, series("io.csv", "step_time_s", "dt_fetch_s") + r'''
    row(series, k, fall(k), $lr, $tok / took, took, took * rng.uniform(0.78, 0.84))
''', csv="io.csv", accept=[least(p, 0.7)], expect=WARN, codes="loader-bound", because="findings.md, loader-bound: steps wait for data")

p = draw(seconds=(8, 9))
add("sick", "promised-end", "The log of a pretraining run promises an end in three minutes for 50,000 steps that take the better part of an hour", p, EACH + r'''
    left = max(1, 180 - int(k * $dt))
    say(f"step {k}/50000 loss {fall(k):.4f} step_time {took:.4f}s tok/s {$tok / took:.1f} ETA: 0:{left // 60:02d}:{left % 60:02d}")
''', stdout=r'step {step}/\d+ loss {loss} step_time {step_time_s}s tok/s {toks_per_s}', accept=[least(p, 0.7)], expect=WARN, codes="eta-wrong",
    because="findings.md, eta-wrong: a log promises an end that its own step time contradicts")

HEART = {"heartbeat": "heartbeat_rank{rank}.jsonl"}
p = draw(seconds=(8, 9))
add("sick", "straggler", "Rank 2 of four needs 60 % more for its own work than the others, who wait for it", p, BEAT + EACH + r'''
    own = $dt * (0.8 if RANK == 2 else 0.5) * rng.uniform(0.98, 1.02)
    pulse(k, "progress", loss=round(fall(k), 4), toks_per_s=$tok / took, step_time_s=took, compute_time_s=own)
    if series:
        row(series, k, fall(k), $lr, $tok / took)
pulse(STEPS, "done", status="done", why="")
''', csv="training.csv", metrics=HEART, nproc=4, accept=[least(p, 0.6)], expect=WARN, codes="straggler", plain=True,
    because="findings.md, The thresholds: straggler, a warning from 10 %")

p = draw(seconds=(8, 9))
add("sick", "nan-on-rank-1", "Rank 1 of two has had a loss of nan since the middle; the table of rank 0 is clean", p, BEAT + EACH + r'''
    mine = "nan" if RANK == 1 and k > STEPS // 2 else round(fall(k), 4)
    pulse(k, "progress", loss=mine, toks_per_s=$tok / took, step_time_s=took, compute_time_s=took * 0.8)
    if series:
        row(series, k, fall(k), $lr, $tok / took)
pulse(STEPS, "done", status="done", why="")
''', csv="training.csv", metrics=HEART, nproc=2, accept=[least(p, 0.6)], expect=NGI, codes="nan-loss", crit="loss finite", plain=True,
    because="findings.md, nan-loss: a loss that is not a number, on any rank")

p = draw(seconds=(6, 7), step=(0.05, 0.06))
add("sick", "impossible-scaling", "Two processes reach three and a half times the rate of one", p, r'''
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
series = table("training.csv", "step,loss,lr,toks_per_s") if RANK == 0 else None
for k in range(1, STEPS + 1):
    took = work($dt / (1.75 if WORLD > 1 else 1))
    if series:
        row(series, k, fall(k), $lr, WORLD * $tok / took)
''', csv="training.csv", nproc=1, plain=True, expect=NGI, codes="impossible-scaling", crit="scaling", phases=[
    {"id": "pair", "kind": "train", "nproc": 2, "steps": p.n, "accept": [least(p, 0.6, 2 * p.rate)]},
    {"id": "single", "kind": "train", "nproc": 1, "steps": p.n, "scaling_against": "pair", "accept": [least(p, 0.6)]}], because="findings.md, impossible-scaling")

# --- evidence --------------------------------------------------------------------------------------------------------
p = draw(seconds=(6, 7))
add("sick", "table-never-written", "The runbook reads a table that the trainer writes under another name", p, series("scalars_train.csv") + r'''
    row(series, k, fall(k), $lr, $tok / took)
''', csv="scalars.csv", accept=[least(p, 0.7)], expect=NGI, codes="missing-evidence", crit=RATE + " loss steps", rows=0, span=0,
    because="findings.md, missing-evidence: a file that the runbook takes measurements from is not there")

p = draw(seconds=(7, 8))
add("sick", "validation-never-written", "A criterion asks for a validation loss that is promised and never logged", p, series("metrics.csv") + r'''
    row(series, k, fall(k), $lr, $tok / took)
''', csv="metrics.csv", metrics={"extra": {"val_wer": "%"}}, accept=[least(p, 0.7), "val_wer.last <= 40 %"], expect=NGI, codes="missing-evidence not-judged",
    crit="val_wer", because="runbook-reference.md, Criteria: a measurement that is missing never passes")

p = draw(seconds=(7, 8))
add("sick", "table-stops", "The writer of the table dies at three fifths while training goes on to an end with exit code 0", p, series("losses.csv") + r'''
    if k <= STEPS * 3 // 5:
        row(series, k, fall(k), $lr, $tok / took)
''', csv="losses.csv", accept=[least(p, 0.7)], expect=NGI, codes="missing-evidence", crit="steps", rows=p.n * 3 // 5, span=p.dt * (p.n * 3 // 5 - 1),
    because="findings.md, missing-evidence: rows of it; all steps done is asked of every run")

p = draw(seconds=(6, 7))
add("sick", "results-of-last-week", "The table is copied, with its old date, from a run of last week; nothing is trained", p, r'''
work(2)
series = table("training.csv", "step,loss,lr,toks_per_s")
for k in range(1, STEPS + 1):
    row(series, k, fall(k), $lr, $rate * rng.uniform(0.99, 1.01))
series.close()
then = time.time() - 7 * 86400
os.utime(OUT / "training.csv", (then, then))
work(4)
os.utime(OUT / "training.csv", (then, then))
''', csv="training.csv", accept=[least(p, 0.7)], expect=NGI, codes="foreign-results unit-mismatch", crit=RATE, span=0,
    because="findings.md, foreign-results: the files are older than the process")

p = draw(seconds=(7, 8))
add("sick", "two-writers", "Two processes train into one folder and append to one table", p, r'''
if not os.environ.get("SECOND"):
    import subprocess
    other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "SECOND": "1"})
    series = table("training.csv", "step,loss,lr,toks_per_s")
else:
    work(1.5)
    series = table("training.csv")
for k in range(1, STEPS + 1):
    took = work($dt)
    row(series, k, fall(k), $lr, $tok / took)
if not os.environ.get("SECOND"):
    other.wait()
''', csv="training.csv", accept=[least(p, 0.7)], expect=NGI, codes="mixed-runs", crit=RATE, rows=2 * p.n, span=(p.n - 1) * p.dt + 1.5,
    because="findings.md, mixed-runs: two runs wrote one file")

p = draw(seconds=(9, 10))
add("sick", "starts-over", "The trainer restarts itself at half and writes a second header and the steps from 1 again", p, r'''
series = table("training.csv", "step,loss,lr,toks_per_s")
for part in (STEPS // 2, STEPS):
    for k in range(1, part + 1):
        took = work($dt)
        row(series, k, fall(k), $lr, $tok / took)
    if part < STEPS:
        series.write("step,loss,lr,toks_per_s\n")
''', csv="training.csv", accept=[least(p, 0.7)], expect=NGI, codes="mixed-runs damaged-evidence", crit=RATE, rows=p.n + p.n // 2 + 1,
    span=p.dt * (p.n + p.n // 2 - 1), because="validation.md, Causes: mixed-runs, step goes back inside one CSV")

p = draw(seconds=(7, 8))
add("sick", "torn-cells", "One row in six of the table holds cells that are no numbers, although the run ends well", p, series("training.csv") + r'''
    row(series, k, "2.#@!" if k % 6 == 0 else fall(k), $lr, "##" if k % 6 == 0 else $tok / took)
''', csv="training.csv", accept=[least(p, 0.7)], expect=NGI, codes="damaged-evidence", crit=RATE, because="findings.md, damaged-evidence: cells cannot be read although the run ended well")

# --- configuration ---------------------------------------------------------------------------------------------------
ENV = r'''
OUT.mkdir(parents=True, exist_ok=True)
(OUT / "setup.json").write_text(json.dumps({"requested": ASKED, "effective": GIVEN, "world_size": 1, "tokens_per_step": TOKENS}))
series = table("training.csv", "step,loss,lr,toks_per_s")
for k in range(1, STEPS + 1):
    took = work($dt)
    row(series, k, fall(k), $lr, TOKENS / took)
'''
EFF = {"csv": "training.csv", "metrics": {"env": "setup.json"}}
p = draw(tok=64 * 128, seconds=(7, 8))
add("sick", "config-ignored", "The batch of 64 that was asked for became 32, by the trainer's own account", p, r'''
ASKED = {"batch_size": int(option("batch_size")), "seq_len": 128, "accum": 1}
GIVEN, TOKENS = {**ASKED, "batch_size": 32}, 32 * 128
''' + ENV, **EFF, args={"batch_size": 64}, accept=[least(p, 0.3)], expect=NGI, codes="config-ignored", crit="config effective requested",
    because="findings.md, config-ignored: what ran is not what was asked for, by the trainer's own account")

p = draw(tok=48 * 96, seconds=(7, 8))
add("sick", "wrong-precision", "The runbook wants bf16 and the trainer, asked for nothing, runs in fp32", p, r'''
ASKED = GIVEN = {"batch_size": 48, "seq_len": 96, "accum": 1, "dtype": "fp32"}
TOKENS = 48 * 96
''' + ENV, **EFF, accept=[least(p, 0.6), "effective.dtype == 'bf16'"], expect=NG, codes="config-ignored", crit="dtype",
    because="runbook-reference.md, Criteria: effective.<key> is the trainer's own account of its config")

p = draw(tok=4 * 16 * 256, seconds=(7, 8))
add("sick", "counted-four-times", "Tokens per step, and the rate, are four times what batch, length and accumulation give", p, r'''
ASKED = GIVEN = {"batch_size": 16, "seq_len": 256, "accum": 1}
TOKENS = 4 * 16 * 256
''' + ENV, **EFF, accept=[least(p, 0.6)], expect=NGI, codes="unit-mismatch config-ignored", crit=RATE + " config",
    because="findings.md, unit-mismatch: more tokens a step than the effective settings can give")

p = draw(seconds=(7, 8))
add("sick", "totals-of-five", "The table's time of a step is the sum over five, beside a rate of single ones", p, series("perf.csv", "step_time_s") + r'''
    row(series, k, fall(k), $lr, $tok / took, took * 5)
''', csv="perf.csv", tps=True, accept=[least(p, 0.6)], expect=NGI, codes="unit-mismatch", crit="step_time toks_per_s",
    because="findings.md, unit-mismatch: figures of the same thing that differ by a whole factor")

p = draw(seconds=(4, 4.5))
add("sick", "vacuous-sweep", "A sweep of the learning rate, which the trainer never reads: all arms have the same losses digit for digit", p, EACH + r'''
    say(f"arm run: n={k} cost={fall(k):.6f} thr={$tok / took:.1f}")
''', stdout=r'n={step} cost={loss} thr={toks_per_s}', expect=NGI, codes="vacuous-sweep", plain=True, phases=[
    {"id": "rates", "kind": "sweep", "steps": p.n, "repeats": 2, "over": {"args.lr": [0.001, 0.003, 0.01]},
     "choose": {"lowest": "loss.last"}, "accept": [least(p, 0.6)]}], because="findings.md, The thresholds: vacuous-sweep")

p = draw(tok=40 * 64, seconds=(4, 4.5))
add("sick", "vacuous-ab", "Both sides of an A/B of the batch size ran with the same effective batch", p, r'''
ASKED = {"batch_size": int(option("batch_size")), "seq_len": 64, "accum": 1}
GIVEN, TOKENS = {**ASKED, "batch_size": 40}, 40 * 64
''' + ENV, **EFF, expect=NGI, codes="vacuous-sweep config-ignored", crit="config effective", args={}, plain=True, phases=[
    {"id": "batch", "kind": "ab", "steps": p.n, "repeats": 2, "arms": {"forty": {"args": {"batch_size": 40}}, "eighty": {"args": {"batch_size": 80}}},
     "choose": {"highest": "toks_per_s.mean"}, "accept": [least(p, 0.6)]}], because="findings.md, The thresholds: vacuous-sweep, the same effective value")

# --- runbooks that ask for nothing, or that cannot be -----------------------------------------------------------------
PLAIN = EACH + r'''
    say(f"$word {k} err {fall(k):.4f} speed {$tok / took:.1f}")
'''
for name, what, accept, expect, crit, because, more in [
    ("asks-for-nothing", "A required phase without any criterion", lambda p: [], INC, "", "writing-a-runbook.md, What carries a GO", {}),
    ("best-moment", "Only the best moment of the rate is asked for", lambda p: [f"toks_per_s.max >= {p.rate / 2:.0f} tok/s"], INC, "", "writing-a-runbook.md, What carries a GO", {}),
    ("nothing-required", "Every criterion is required: false", lambda p: [{"expr": least(p, 0.5), "required": False}], INC, "", "writing-a-runbook.md, What carries a GO", {}),
    ("no-last-go", "The only criterion compares with a last GO that never was", lambda p: ["toks_per_s.mean >= 0.9 * last_go.toks_per_s.mean"], INC, "last_go",
     "runbook-reference.md, without_last_go: inconclusive", {}),
    ("text-never-printed", "The runbook wants a text of rank 0 that is not printed", lambda p: [least(p, 0.6)], NG, "fused log_contains prints", "runbook-reference.md, log_contains: each is a required criterion",
     {"phase": {"log_contains": ["fused kernels are on"]}}),
    ("refused-warm-up", "More than half of the run is declared as warm-up", lambda p: [least(p, 0.6)], "REFUSED", "", "statistics.md, Warm-up and levels: check refuses a declared warm-up of more than half", {"w": True}),
    ("refused-metric", "A criterion names a metric that is not declared anywhere", lambda p: ["perplexity_on_mars.mean <= 12"], "REFUSED", "", "design.md, Runbook format: unknown metrics are errors at check", {}),
    ("refused-unit", "A rate is bounded in milliseconds", lambda p: ["toks_per_s.mean >= 100 ms"], "REFUSED", "", "runbook-reference.md, Criteria: a unit must be the metric's", {}),
    ("refused-code", "A finding is accepted that there is none of", lambda p: [least(p, 0.6)], "REFUSED", "", "findings.md, Answering a finding: an unknown code is an error of check", {"phase": {"accept_findings": ["slow-mondays"]}}),
]:
    p = draw(seconds=(6, 7), word=f"lap{draws.randrange(100, 999)}")
    if more.get("w"):
        p.w = p.n * 3 // 4
    add("sick", name, what, p, PLAIN, stdout=rf'{p.word} {{step}} err {{loss}} speed {{toks_per_s}}', accept=accept(p), expect=expect, crit=crit,
        because=because, phase=more.get("phase"))

p = draw(seconds=(6, 7), word="gate")
add("sick", "command-fails-in-a-pipe", "A command phase counts corrupt shards in a pipe, and the counter fails", p, PLAIN, stdout=r'gate {step} err {loss} speed {toks_per_s}',
    expect=NGI, crit="rc exit", plain=True, files={"count.py": 'print("shards 12 corrupt 3")\nraise SystemExit(4)\n'}, phases=[
    {"id": "shards", "kind": "command", "run": "{python} count.py | cat", "accept": ["outcome.rc == 0"]},
    {"id": "pilot", "kind": "train", "steps": p.n, "accept": [least(p, 0.6)]}], because="runbook-reference.md, kind: command: pipefail")
