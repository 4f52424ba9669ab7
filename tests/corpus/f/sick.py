"""Trainers that are sick by a sentence of the documents."""

from generate import RANKS, case

FIND, THRESH, IDS = "findings.md: All findings", "findings.md: The thresholds", "runbook-reference.md: Ids"
RATE, CLOCK = "validation.md: One honest rate", "validation.md: The validator's own clock judges every claim"
LEVELS = "statistics.md: Warm-up and levels"
SHIFT, MISS, VETO = "rate-shift no-steady-state", r"toks_per_s step_time", "INCONCLUSIVE NO-GO"
ONLY_RATE, LATE = ["toks_per_s.mean >= @r0.78 tok/s"], ["toks_per_s.mean >= @r1.35 tok/s", "loss.last < loss.first"]
OPEN = 'os.makedirs(OUT, exist_ok=True)\nf = open(OUT + "/{0}", "w", buffering=1)\nf.write("{1}\\n")'
NOISE = "D * rt.uniform(.98, 1.02)"


def ill(name, what, because, expect="NO-GO", codes="", crit="", **more):
    case("sick", name, what, because, expect=expect, codes=codes, crit=crit, **more)


def facts(asked, did="asked"):
    return f'''os.makedirs(OUT, exist_ok=True)
asked = {asked}
with open(OUT + "/env.json", "w") as out:
    json.dump(dict(requested=asked, effective={did}, world_size=1, tokens_per_step=TPS), out)'''


def add():
    # ---- rates
    ill("creeping_heat", "every step is a little slower than the one before, to 2.4 times at the end", LEVELS, codes=SHIFT, crit=MISS,
        time=f"{NOISE} * (.7 + 1.0 * k / N)", emit='say(f"╔ {k:>4} ╦ {loss:8.4f} ╦ {TPS / gap:12.2f} ╗")',
        pat="╔ +{step} ╦ +{loss} ╦ +{toks_per_s} ╗", accept=LATE)
    ill("ends_below_bound", "the mean clears the bound, the level at which the run ends misses it by far",
        LEVELS + ", slowed: it passes only if its last level clears the bound",
        VETO, SHIFT, MISS, time=f"{NOISE} * (1.9 if k > N * .72 else 1)", accept=["toks_per_s.mean >= @r0.88 tok/s"], secs=(9, 11),
        emit='say(f"Schritt {k}: Fehler {loss:.4f}, Dauer {gap:.5f} s")', pat="Schritt {step}: Fehler {loss}, Dauer {step_time_s} s")
    ill("every_thirteenth", "each thirteenth step takes three times as long; the bound is met all the same", THRESH + ", periodic-stall", "GO",
        "periodic-stall",
        time=f"{NOISE} * (3.2 if k % 13 == 5 else 1)", emit='say(f"roll {k} ret-loss {loss:.4f} sps {1 / gap:.4f}")',
        pat="roll {step} ret-loss {loss} sps {steps_per_s}",
        accept=["toks_per_s.mean >= @r0.7 tok/s"])
    ill("now_and_then", "about one step in sixteen takes five times as long, without a period; the bound is met", THRESH + ", periodic-stall", "GO",
        "periodic-stall",
        time=f"{NOISE} * (5 if rt.random() < .06 else 1)", emit='say(f"frame {k} : {gap * 1e3:.3f}ms : {loss:.4f}")',
        pat="frame {step} : {step_time_ms}ms : {loss}",
        accept=["toks_per_s.mean >= @r0.65 tok/s"], secs=(10, 12))
    ill("hidden_pauses", "pauses of 0.9 s are left out of what it prints; the true rate misses the bound that the claim clears", RATE, VETO,
        "periodic-stall unit-mismatch", MISS, rest="0.9 if k % 25 == 0 else 0", emit='say(f"loop {k} huber {loss:.4f} tokps {TPS / own:.1f}")',
        d=(28, 36), secs=(5, 6),
        pat="loop {step} huber {loss} tokps {toks_per_s}", accept=LATE)
    ill("tenfold_rate", "claims ten times its tokens per second", CLOCK, VETO, "unit-mismatch", MISS,
        emit='say(f"{k:6d}: {loss:.4f} | {10 * TPS / gap:.0f} tok/sec")',
        pat=r"{step}: {loss} \| {toks_per_s} tok/sec", accept=["toks_per_s.mean >= @r4 tok/s"])
    ill("tenth_of_ms", "prints step times ten times too small, in Italian", CLOCK, VETO, "unit-mismatch", MISS,
        emit='say(f"iterazione n. {k}, durata {gap * 100:.3f} ms, errore {loss:.4f}")',
        pat="iterazione n. {step}, durata {step_time_ms} ms, errore {loss}",
        accept=["step_time_s.mean <= @s0.5 s"], declare=False)
    ill("slow_clock", "its running clock goes at a third of the true speed", CLOCK, VETO, "unit-mismatch", MISS,
        emit='say(f"T+{el / 3:.4f}s #{k} reward-loss {loss:.4f}")',
        pat=r"T\+{elapsed_s}s #{step} reward-loss {loss}", accept=["toks_per_s.mean >= @r1.6 tok/s"])
    ill("tokens_twice", "counts each token twice in its total, against the declared number", CLOCK, VETO, "unit-mismatch", MISS,
        emit='say(f"{time.time():.3f} tot={2 * k * TPS} k={k} bits={loss:.4f}")', pat="^{timestamp} tot={tokens_seen} k={step} bits={loss}",
        accept=["toks_per_s.mean >= @r1.4 tok/s"])
    ill("mean_hides_halving", "prints only the mean so far, behind which the pace halves at half-way", CLOCKS_DOC, codes=SHIFT, crit=MISS,
        time=f"{NOISE} * (2.2 if k > N * .5 else 1)", emit='say(f"avg {el / k * 1e3:.4f} ms after {k}; ce {loss:.4f}")',
        pat="avg {mean_step_time_ms} ms after {step}; ce {loss}",
        accept=["step_time_s.mean <= @s0.78 s"])
    ill("images_too_few", "two thirds of the images per second that are asked for", "own-trainer.md: Patterns, a series of its own",
        crit="samples_per_s", declare=False, tps=48,
        emit='say(f"lot {k} — {TPS / gap:.3f} images/s — perte {loss:.4f}")', pat="lot {step} — {samples_per_s} images/s — perte {loss}",
        accept=["samples_per_s.mean >= @r1.5"])
    ill("coarse_clock_slow", "a clock of whole seconds, and steps that take half as long again as allowed", CLOCKS_DOC, codes="", crit=MISS,
        secs=(14, 15),
        emit='say(f"[{hms(el)}] work unit {k} residual {loss:.4f}")', pat=r"\[{elapsed_s}\] work unit {step} residual {loss}",
        accept=["step_time_s.mean <= @s0.65 s"], declare=False)
    ill("soak_fades", "a soak that loses a third of its rate half-way and has no bound on the rate",
        "writing-a-runbook.md: What carries a GO, A soak fails by itself",
        codes=SHIFT, crit="sustained_rate", time=f"{NOISE} * (1.5 if k > N * .5 else 1)", emit='say(f"watch k={k} l={loss:.4f} d={gap:.5f}")',
        secs=(13, 14),
        pat="watch k={step} l={loss} d={step_time_s}", more=dict(kind="soak"), accept=["loss.last < loss.first"])
    ill("wall_between_dates", "the date stamps show pauses that its step times leave out; the criterion is on the wall",
        "runbook-reference.md: Series, wall_step_time_s",
        codes="periodic-stall unit-mismatch", crit="wall_step_time_s", rest="0.6 if k % 15 == 7 else 0", d=(28, 36), secs=(6, 7),
        emit='say(f"{time.time():.4f} step {k} own {own * 1e3:.3f} loss {loss:.4f}")', pat="^{timestamp} step {step} own {step_time_ms} loss {loss}",
        accept=["wall_step_time_s.mean <= @s0.75 s"])
    ill("slower_but_enough", "a fifth slower from the middle on, still well above its bound", THRESH + ", rate-shift", "GO", SHIFT,
        time=f"{NOISE} * (1.25 if k > N * .5 else 1)", emit='say(f"krok {k}, strata {loss:.4f}, czas {gap:.5f}")',
        pat="krok {step}, strata {loss}, czas {step_time_s}",
        accept=["toks_per_s.mean >= @r0.6 tok/s"], secs=(10, 11))
    # ---- losses
    ill("slowly_up_again", "from two thirds on the loss rises to nearly twice its minimum", THRESH + ", diverging", VETO, "diverging",
        accept=ONLY_RATE,
        loss="L0 * (1 - .7 * min(1, k / (N * .6)) + .4 * max(0, k / N - .66) * 3) + rng.gauss(0, .006 * L0)",
        emit='say(f"lap {k} nll {loss:.4f} {TPS / gap:.1f}")',
        pat="lap {step} nll {loss} {toks_per_s}")
    ill("critic_explodes", "a critic whose negative loss turns and grows to tens", THRESH + ", diverging", VETO, "diverging", accept=ONLY_RATE,
        loss="(-3 * k / N if k < N * .6 else -1.8 + 90 * (k / N - .6) ** 2) + rng.gauss(0, .04)",
        emit='say(f"D-loss {loss:.4f} | G-step {k} | {gap * 1e3:.2f} ms")',
        pat=r"D-loss {loss} \| G-step {step} \| {step_time_ms} ms", check=dict(rising=True))
    ill("norm_runs_away", "the gradient norm ends at some five hundred times its usual value",
        THRESH + ", diverging: a warning while the loss is at its minimum", "GO INCONCLUSIVE NO-GO", "diverging",
        emit='say(f"u{k} err {loss:.4f} gn {(.8 + .2 * rng.random()) * (1 if k < N * .85 else math.exp(7 * (k / N - .85) / .15)):.4f} s {gap:.5f}")', pat="u{step} err {loss} gn {grad_norm} s {step_time_s}",
        accept=ONLY_RATE)
    ill("inf_once", "one infinite loss, in a Japanese log", IDS + ", PHASE.finite", codes="nan-loss", crit="finite loss",
        emit='say(f"反復{k} 誤差{loss if k != N * 2 // 3 else math.inf:.4f} 所要{gap * 1e3:.2f}ミリ秒")', pat="反復{step} 誤差{loss} 所要{step_time_ms}ミリ秒")
    ill("narrow_pattern_nan", "a pattern of the user's own that is too narrow for the NaN that comes",
        "own-trainer.md: Patterns, one that is too narrow is widened", codes="nan-loss",
        crit="finite loss steps", emit='say(f"n={k} loss={loss if k < N * .8 else math.nan:.4f} t={gap:.4f}")', check=dict(rising=True, rows=None),
        pat=r"n=(?P<step>\d+) loss=(?P<loss>[\d.]+) t=(?P<step_time_s>[\d.]+)")
    ill("loss_goes_none", "prints None in place of a loss in the second half", "own-trainer.md: Patterns, None counts as not measured", VETO,
        "damaged-evidence missing-evidence not-judged", "loss",
        emit='say(f"it {k} loss {f"{loss:.4f}" if k < N // 2 else None} t {gap:.4f}")'.replace('f"{loss:.4f}"', "format(loss, '.4f')"),
        pat=r"it {step} loss (?P<loss>\S+) t {step_time_s}",
        check=dict(rising=True))
    ill("zero_at_the_end", "a logger's zeros in the last fifteen rows", THRESH + ", zero-loss", VETO, "zero-loss",
        emit='say(f"r:{k}/l:{0 if k > N - 15 else loss:.4f}/d:{gap:.5f}")',
        pat="r:{step}/l:{loss}/d:{step_time_s}")
    ill("five_zeros_inside", "five losses of exactly 0 in a row in the middle, then as before", THRESH + ", zero-loss", VETO, "zero-loss",
        emit='say(f"{k}\\t{0.0 if N // 2 < k <= N // 2 + 5 else loss:.5f}\\t{gap * 1000:.2f}")', pat=r"^{step}\t{loss}\t{step_time_ms}$")
    ill("same_loss_for_ever", "the loss never changes in a single digit", FIND + ", zero-grad", VETO, "zero-grad", loss="L0",
        emit='say(f"burst {k}: loss={loss:.4f}, {TPS / gap:.2f} tok/s")',
        pat="burst {step}: loss={loss}, {toks_per_s} tok/s", accept=ONLY_RATE, check=dict(rising=True))
    ill("zero_norm_flat", "a gradient norm of exactly zero beside a loss that only wobbles", FIND + ", zero-grad", VETO, "zero-grad",
        loss="L0 + rng.gauss(0, .02 * L0)", accept=ONLY_RATE,
        emit='say(f"stp={k} lss={loss:.4f} nrm=0.0 spd={TPS / gap:.2f}")', pat="stp={step} lss={loss} nrm={grad_norm} spd={toks_per_s}",
        check=dict(rising=True))
    ill("stuck_too_high", "learns nothing after a third, and ends above what was asked", "runbook-reference.md: Criteria", crit="loss",
        loss="L0 * max(.7, 1 - .9 * k / N) + rng.gauss(0, .01 * L0)",
        emit='say(f"{k}> {loss:.4f} ({gap:.4f})")', pat=r"^{step}> {loss} \({step_time_s}\)", accept=["toks_per_s.mean >= @r0.78 tok/s",
        "loss.last <= 0.5 * loss.first"])
    ill("seventeen_again", "the losses come again every 17 rows, digit for digit; nothing is learned", THRESH + ", repeated-data", "GO",
        "repeated-data",
        prep="tape = [round(3 + random.Random(n).uniform(-.4, .4), 4) for n in range(17)]", loss="tape[k % 17]", accept=ONLY_RATE,
        check=dict(rising=True),
        emit='say(f"#{k} {loss:.4f} {gap * 1e3:.2f}ms")', pat="^#{step} {loss} {step_time_ms}ms")
    ill("bytes_at_chance", "a loss that stays at ln 256 from beginning to end", FIND + ", random-data-floor", "GO", "random-data-floor",
        loss="math.log(256) + rng.gauss(0, .012)", accept=ONLY_RATE,
        head=facts("dict(vocab_size=256)"),
        emit='say(f"byte-lm {k} ce={loss:.4f} took={gap:.5f}")', pat="byte-lm {step} ce={loss} took={step_time_s}", metrics=dict(env="env.json"),
        check=dict(rising=True))
    ill("warms_for_ever", "a warm-up of 3,000 steps in the config of a run of two hundred", THRESH + ", warmup-exceeds-run", "GO",
        "warmup-exceeds-run",
        head=facts("dict(lr=.001, lr_warmup_steps=3000)"),
        emit='say(f"w {k} {loss:.4f} {k / 3e6:.3e} {gap:.5f}")', pat="^w {step} {loss} {lr} {step_time_s}", metrics=dict(env="env.json"))
    # ---- ends
    ill("done_but_seven", "does all its steps and ends with exit code 7", IDS + ", PHASE.exit", codes="crashed", crit="exit",
        emit='say(f"s {k}, {loss:.4f}, {gap:.4f}")',
        tail='say("upload of artifacts failed")\nsys.exit(7)', pat="^s {step}, {loss}, {step_time_s}", check=dict(rc=7))
    ill("early_and_proud", "stops at seven tenths by 'early stopping', exit code 0", IDS + ", PHASE.steps", codes="missing-evidence crashed",
        crit="steps", check=dict(part=.7), emit='''
        say(f"trial-step {k} val {loss:.4f} {TPS / gap:.1f}")
        if k == int(N * .7):
            say("early stopping: good enough")
            sys.exit(0)
        ''', pat="trial-step {step} val {loss} {toks_per_s}")
    dog = dict(watchdog=dict(first_step="15s", stall="4s", interval="1s"))
    ill("falls_silent", "stops in the middle and sleeps for ever", FIND + ", hang", codes="hang", crit="exit steps", defaults=dog, check=dict(cut=7,
        part=.5), secs=(7, 8),
        time=f"{NOISE} if k != N // 2 + 1 else 600", emit='say(f"turn {k} loss {loss:.4f} {own:.4f}")', pat="turn {step} loss {loss} {step_time_s}",
        accept=["loss.last < loss.first"])
    ill("never_begins", "waits for a data set that never comes, before the first step", "runbook-reference.md: watchdog, first_step",
        codes="hang over-budget", crit="exit steps",
        defaults=dict(watchdog=dict(first_step="5s", stall="4s", interval="1s")), head='say("waiting for shard 0 ...")\ntime.sleep(600)',
        check=dict(cut=5, part=0),
        emit='say(f"mini {k} {loss:.4f} {gap:.4f}")', pat="mini {step} {loss} {step_time_s}")
    ill("over_time", "needs twice the time that the runbook grants", FIND + ", over-budget", codes="over-budget", crit="exit steps", secs=(16, 17),
        defaults=dict(timeout="8s"),
        emit='say(f"chunk {k} kl {loss:.4f} {gap:.4f} s")', pat="chunk {step} kl {loss} {step_time_s} s")
    ill("one_of_three_dies", "of three repeats the second ends with a crash", IDS + ", PHASE.exit: every run", codes="crashed", crit="exit steps",
        secs=(5, 6), defaults=dict(repeats=3),
        trainer=dict(args={"turn": "{repeat}"}),
        emit='say(f"mix {k} {loss:.4f} {gap:.4f}")\nif opt("--turn", "1") == "2" and k == N // 2:\n    sys.exit("lost the connection to the label server")',
        pat="^mix {step} {loss} {step_time_s}")
    ill("leaves_a_ghost", "leaves a process of its own behind when it ends well", FIND + ", leftover-process", "GO", "leftover-process",
        emit='say(f"go {k} h {loss:.4f} {gap:.4f}")',
        tail='import subprocess\nsubprocess.Popen([sys.executable, "-c", "import time; time.sleep(45)"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)',
        pat="go {step} h {loss} {step_time_s}")
    ill("halts_quietly", "writes .HALT, does its last step and ends with 0", "trainer-contract.md: Stopping, a .HALT from its own time",
        codes="crashed stale-halt", crit="exit halt steps",
        head=OPEN.format("t.csv", "step,loss,lr,toks_per_s"),
        emit='f.write(f"{k},{loss:.5f},1e-3,{TPS / gap:.1f}\\n")\nif k == N - 3:\n    open(OUT + "/.HALT", "w").write("loss looked odd")',
        csv="t.csv", secs=(11, 12))
    ill("slow_to_start", "seven seconds of imports against three that are granted", "runbook-reference.md: Scalars, startup.first_step_s",
        crit="first_step", head='say("building the vocabulary ...")\ntime.sleep(7)',
        emit='say(f"w2v {k} {loss:.4f} {gap:.4f}")', pat="w2v {step} {loss} {step_time_s}", accept=["toks_per_s.mean >= @r0.78 tok/s",
        "startup.first_step_s <= 3 s"], secs=(6, 7))
    # ---- evidence
    ill("same_step_for_ever", "writes rows of one step and gets nowhere", FIND + ", zero-rate", codes="zero-rate", crit="exit steps halt", secs=(14,
        15), defaults=dict(watchdog=dict(interval="1s")), check=dict(rows=None),
        head=OPEN.format("run.csv", "step,loss,lr,toks_per_s"), emit='f.write(f"{min(k, N // 3)},{loss:.5f},1e-3,{TPS / gap:.1f}\\n")',
        csv="run.csv", accept=ONLY_RATE)
    ill("two_writers", "two copies of the trainer write one table", FIND + ", mixed-runs", VETO, "mixed-runs", "steps", secs=(11, 12),
        check=dict(rows=None),
        head='''os.makedirs(OUT, exist_ok=True)
if os.fork() == 0:
    time.sleep(2.5)
f = open(OUT + "/both.csv", "a", buffering=1)
if not f.tell():
    f.write("step,loss,lr,toks_per_s\\n")''',
        emit='f.write(f"{k},{loss:.5f},2e-4,{TPS / gap:.1f}\\n")', tail="try:\n    os.wait()\nexcept ChildProcessError:\n    pass", csv="both.csv",
        accept=ONLY_RATE)
    ill("yesterdays_table", "puts a table of last week into the folder and does nothing itself", FIND + ", foreign-results", VETO,
        "foreign-results missing-evidence", "steps toks_per_s", check=dict(rows=None), accept=ONLY_RATE,
        head='''os.makedirs(OUT, exist_ok=True)
old = OUT + "/old.csv"
with open(old, "w") as f:
    f.write("step,loss,lr,toks_per_s\\n")
    for k in range(1, N + 1):
        f.write(f"{k},{L0 / k ** .3:.4f},1e-3,{TPS / D * rng.uniform(.98, 1.02):.1f}\\n")
os.utime(old, (time.time() - 6e5,) * 2)''',
        emit="pass", csv="old.csv")
    ill("table_never_written", "the table that the runbook promises is never written", FIND + ", missing-evidence", VETO, "missing-evidence",
        "steps toks_per_s loss", head=OPEN.format("history.csv", "step,loss,toks_per_s"),
        emit='f.write(f"{k},{loss:.5f},{TPS / gap:.1f}\\n")', csv="metrics.csv", check=dict(csv="history.csv"))
    ill("validation_forgotten", "never writes the validation loss that a criterion is about",
        "runbook-reference.md: Criteria, A measurement that is missing is INCONCLUSIVE", VETO, "missing-evidence not-judged", "val_loss",
        emit='say(f"e1 s{k} loss {loss:.4f} rate {TPS / gap:.1f}")', pat="s{step} loss {loss} rate {toks_per_s}(?: val {val_loss})?",
        accept=["toks_per_s.mean >= @r0.78 tok/s", "val_loss.last <= 3"])
    ill("garbled_rows", "one row in eight of its table is cut or overwritten with rubbish", FIND + ", damaged-evidence", VETO, "damaged-evidence",
        head=OPEN.format("m.csv", "step,loss,lr,toks_per_s"), secs=(11, 12), check=dict(rows=None),
        emit='f.write(f"{k},{loss:.5f},1e-3,{TPS / gap:.1f}\\n" if k % 8 else f"{k},0x@@#,,~~{loss:.1f}??\\n")', csv="m.csv")
    ill("other_batch", "runs with a quarter of the batch that was asked for, by its own account", IDS + ", PHASE.config", codes="config-ignored",
        crit="config", tps=8 * 256,
        head=facts("dict(seq_len=256, batch_size=32, accum=1, lr=1e-3)", "dict(asked, batch_size=8)"),
        emit='say(f"nr {k} cost {loss:.4f} took {gap:.5f}")', pat="nr {step} cost {loss} took {step_time_s}", metrics=dict(env="env.json"))
    ill("ranks_of_one_hand", "one process writes the heartbeats of three", FIND + ", foreign-results", VETO, "foreign-results",
        head='''os.makedirs(OUT, exist_ok=True)
hearts = [open(f"{OUT}/heartbeat_rank{r}.jsonl", "w", buffering=1) for r in range(3)]
def beat(r, **more):
    hearts[r].write(json.dumps(dict(ts=time.time(), iso=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), pid=os.getpid(), rank=r, **more)) + "\\n")
for r in range(3):
    beat(r, step=0, msg="boot", world_size=3)''', emit='''
        for r in range(3):
            beat(r, step=k, msg="progress", loss=loss, step_time_s=gap, compute_time_s=.8 * gap)
        say(f"all {k} {loss:.4f} {gap:.5f}")
        ''', tail='for r in range(3):\n    beat(r, step=N, msg="done", status="done", why="end")', pat="^all {step} {loss} {step_time_s}",
        metrics=dict(heartbeat="heartbeat_rank{rank}.jsonl"))
    hearts = dict(code=RANKS, csv="training.csv", secs=(12, 13), metrics=dict(heartbeat="heartbeat_rank{rank}.jsonl"))
    ill("third_of_three_slow", "one of three workers takes half as long again for its own work", THRESH + ", straggler", "GO",
        "straggler", **hearts,
        args=dict(world=3, wait="pass", own="(.9 if r == 2 else .6)", change="pass"))
    ill("nan_on_worker_one", "worker 1 alone sees a loss of NaN from half-way on", FIND + ", nan-loss: on any rank", VETO, "nan-loss", "finite",
        **hearts,
        args=dict(world=2, wait="pass", own=".8", change='loss = "nan" if r == 1 and k > N // 2 else loss'))
    ill("worker_stops_talking", "the heartbeat of worker 2 breaks off at six tenths, and nobody minds",
        FIND + ", missing-evidence: the end of a heartbeat with steps", VETO, "missing-evidence hang", "exit steps", **hearts,
        args=dict(world=3, wait="pass", own=".8", change="if r == 2 and k > N * .6:\n                os._exit(0)"))
    ill("same_figures_twice", "two runs print the very same rates, digit for digit: they are computed, not measured",
        FIND + ", foreign-results: Two runs have the very same rates", VETO, "foreign-results", defaults=dict(repeats=2), secs=(7, 8),
        emit='say(f"plan {k} {loss:.4f} {TPS / dt:.3f}")', pat="plan {step} {loss} {toks_per_s}")
    ill("memory_climbs", "its memory rises to the end without a plateau", FIND + ", memory-growth", "GO", "memory-growth",
        emit='say(f"c{k} {loss:.4f} {gap:.4f}s mem={600 + 14 * k + 3 * rng.random():.1f}MiB")',
        pat="^c{step} {loss} {step_time_s}s mem={host_mem_mib}MiB", secs=(10, 11))
    ill("waits_for_data", "two thirds of each step are spent on waiting for the loader", FIND + ", loader-bound", "GO", "loader-bound",
        emit='say(f"bx {k} {loss:.4f} {gap:.5f} fetch {gap * .66:.5f}")', pat="bx {step} {loss} {step_time_s} fetch {dt_fetch_s}")
    ill("promises_too_much", "promises an end in minutes where its own step time says hours", THRESH + ", eta-wrong", "GO", "eta-wrong",
        emit='say(f"step {k}/900000 loss {loss:.4f} dt {gap:.4f} ETA 0:14:{59 - k % 50:02d}")',
        pat=r"step {step}/\d+ loss {loss} dt {step_time_s}")
    ill("router_collapses", "a mixture whose gates send everything through one branch", "runbook-reference.md: watchdog, gate_max", VETO,
        "gate-collapse", "exit steps", defaults=dict(watchdog=dict(gates=True, interval="1s")),
        emit='say(f"moe {k} {loss:.4f} {gap:.4f} g {min(.99, .4 + 1.2 * k / N):.4f}")', pat="moe {step} {loss} {step_time_s} g {gate_max_gate}",
        check=dict(rows=None))
    # ---- runbooks
    plain = dict(emit='say(f"v {k} {loss:.4f} {TPS / gap:.2f}")', pat="^v {step} {loss} {toks_per_s}")
    ill("rates_change_nothing", "a sweep over learning rates whose arms have the same losses digit for digit", THRESH + ", vacuous-sweep", VETO,
        "vacuous-sweep", **plain, secs=(4, 5), d=(28, 40),
        phases=lambda gate: [gate, dict(id="rates", kind="sweep", steps=gate["steps"], over={"args.lr": [0.001, 0.01, 0.1]},
        choose=dict(highest="toks_per_s.mean", adopt=True))])
    ill("asks_nothing", "a phase that asks for nothing", IDS + ", PHASE.asks", "INCONCLUSIVE", "", "asks", accept=[], **plain)
    ill("asks_best_moment", "a phase that asks for the best moment of the rate alone", "writing-a-runbook.md: What carries a GO", "INCONCLUSIVE",
        "", "asks", accept=["toks_per_s.max >= 1 tok/s"], **plain)
    ill("cores_of_a_castle", "the machine has not the cores that the runbook declares", "exit-codes.md: What ends a run, a preflight check fails",
        crit="cpu_cores", secs=(5, 6), top=dict(hardware=dict(gpus=0, cpu_cores=4096)),
        phases=lambda gate: [dict(id="machine", kind="preflight"), gate], **plain)
    ill("refused_warm_up", "more than half of the run is declared warm-up", "statistics.md: Warm-up and levels, check refuses", "REFUSED",
        phases=lambda gate: [dict(gate, warmup_steps=int(gate["steps"] * .6))], **plain)
    ill("refused_unknown_unit", "a rate against a bound in milliseconds", "runbook-reference.md: Criteria, A unit must be the metric's", "REFUSED",
        accept=["toks_per_s.mean >= 100 ms"], **plain)


CLOCKS_DOC = "own-trainer.md: Patterns"
