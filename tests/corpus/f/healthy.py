"""Trainers that are unusual and yet fine."""

from generate import RANKS, case


def well(name, what, because, **more):
    case("healthy", name, what, because, **more)


TIMES = ["step_time_s.mean <= @s1.3 s", "loss.last < loss.first"]
CLOCKS, LINES, LEVELS = "own-trainer.md: Patterns", "own-trainer.md: From lines of text", "statistics.md: Warm-up and levels"
SEEN = "validation.md: Statistics, And what it must not see"
FILES = "trainer-contract.md: Files"


def add():
    well("pottery_boxes", "every step drawn as a box of three lines", LINES,
         emit='say(f"┌─ firing {k:>4} ─────────┐\\n│ glaze loss {loss:9.4f} │\\n│ kiln {gap * 1e3:8.2f} ms      │\\n└──────────────────────┘")',
         pat=r"firing +{step} |glaze loss +{loss} |kiln +{step_time_ms} ms")
    well("birdsong_bar", "a bar drawn with carriage returns, a second bar of an evaluation between", LINES,
         emit='''
         fill = "█" * (k * 20 // N)
         say(f"\\r{100 * k // N:3d}%|{fill:<20}| {k}/{N} [{hms(el)}, {1 / gap:.3f}it/s, loss={loss:.4f}]", end="")
         if k % 40 == 0:
             for e in range(1, 8):
                 say(f"\\r{e * 14}%|##  | {e}/7 [0:00:00, 900.0it/s, loss=9.9999]", end="")
         ''', pat=r"\| {step}/{steps_total} \[[\d:]+, {steps_per_s}it/s, loss={loss}\]", tail='say("")', check=dict(rows=None, rising=True))
    well("ledger_jsonl", "JSON lines with keys in German and Unix milliseconds as the only clock", CLOCKS,
         emit='say(json.dumps(dict(schritt=k, verlust=round(loss, 5), zeitmarke=int(time.time() * 1000), stimmung="heiter")))',
         pat=r'"schritt": {step}, "verlust": {loss}, "zeitmarke": {timestamp},')
    well("kv_semicolons", "key=value with semicolons, step time in ms, gradient norm printed as 0.000 while the loss falls", SEEN,
         emit='say(f"t={k};J={loss:.5f};|g|=0.000;dt_ms={gap * 1000:.3f};host=lab-7")',
         pat=r"t={step};J={loss};\|g\|={grad_norm};dt_ms={step_time_ms};")
    well("prose_es", "free prose in Spanish, two sentences per step", LINES,
         emit='say(f"Terminé el paso {k}; me llevó {own:.4f} segundos.")\nsay(f"   La pérdida ahora es de {loss:.4f}, creo que vamos bien.")',
         pat=r"Terminé el paso {step}; me llevó {step_time_s} segundos|La pérdida ahora es de {loss},", accept=TIMES, declare=False)
    well("prose_ja_kana", "Japanese lines with full-width punctuation and a rate in thousands", CLOCKS,
         emit='say(f"【学習】第{k}歩:損失は{loss:.4f}、毎秒{TPS / gap / 1000:.4f}k字、順調です。")',
         pat="第{step}歩:損失は{loss}、毎秒{ktoks_per_s}k字")
    well("arabic_log", "Arabic words around plain digits, running seconds", CLOCKS,
         emit='say(f"الخطوة {k} الخسارة {loss:.4f} الزمن {el:.3f}")', pat="الخطوة {step} الخسارة {loss} الزمن {elapsed_s}")
    well("pipe_table", "a Markdown table with its header again every 25 steps", LINES,
         emit='''
         if k % 25 == 1:
             say("| step | nll | tokens/s | note |\\n|-----:|----:|---------:|------|")
         say(f"| {k} | {loss:.4f} | {TPS / gap:,.1f} | {'warm' if k < 9 else ''} |")
         ''', pat=r"^\| {step} \| {loss} \| {toks_per_s} \|")
    well("tsv_every_seven", "a line every seven steps, with the mean step time since the line before", CLOCKS,
         head='t0 = [time.perf_counter(), 0]', emit='''
         if k % 7 == 0 or k in (1, N):
             say(k, f"{loss:.4f}", f"{(now - t0[0]) / (k - t0[1]):.5f}", sep="\\t")
             t0[:] = [now, k]
         ''', pat=r"^{step}\t{loss}\t{step_time_s}$", secs=(10, 12), d=(20, 30), check=dict(rows=None))
    well("interval_every_four", "a line every four steps with the seconds since the line before", CLOCKS, head="t0 = [time.perf_counter()]",
         emit='''
         if k % 4 == 0 or k == N:
             say(f"<{k}> cost:{loss:.4f} [+{(now - t0[0]):.4f}s]")
             t0[0] = now
         ''', pat=r"^<{step}> cost:{loss} \[\+{interval_s}s\]", d=(20, 30), secs=(10, 11), check=dict(rows=None))
    well("log_of_days", "a running clock that began days ago, as a resumed job prints it, in whole seconds", CLOCKS,
         emit='''
         s = int(el) + 2 * 86400 + 19320
         say(f"[up {s // 86400} days, {hms(s % 86400)}] it {k} => {loss:.4f}")
         ''', pat=r"\[up {elapsed_s}\] it {step} => {loss}", secs=(15, 16), accept=["step_time_s.mean <= @s1.6 s", "loss.last < loss.first"])
    well("minutes_only", "running time in decimal minutes", CLOCKS, emit='say(f"min {el / 60:.6f} | upd {k} | obj {loss:.5f}")',
         pat=r"min {elapsed_min} \| upd {step} \| obj {loss}")
    well("mean_so_far", "a mean step time over the whole run so far, under its right name", CLOCKS,
         emit='say(f"#{k} avg_step={el / k:.6f}s err={loss:.4f}")', pat=r"^#{step} avg_step={mean_step_time_s}s err={loss}")
    well("mean_rate_so_far", "a mean of steps per second so far, with a compile pause in the first step", CLOCKS,
         time="2.0 if k == 1 else D * rt.uniform(.98, 1.02)", emit='say(f"{k:05d} speed(avg)={k / el:.5f}/s E={loss:.4f}")',
         pat=r"^{step} speed\(avg\)={mean_steps_per_s}/s E={loss}")
    well("cpu_and_wall", "prints the processor's time, which is not read, beside the step's wall time", LINES,
         emit='say(f"step {k} cpu {time.process_time():.4f} wall {own:.4f} xent {loss:.4f}")',
         pat=r"step {step} cpu [\d.]+ wall {step_time_s} xent {loss}")
    well("tokens_counter", "tokens seen so far beside the date and time, no rate of its own", CLOCKS,
         emit='''
         t = time.time()
         say(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(t)) + f",{int(t % 1 * 1000):03d} seen {k * TPS:_} tokens; step {k}; ce {loss:.4f}")
         ''', pat=r"^{timestamp} seen {tokens_seen} tokens; step {step}; ce {loss}")
    well("samples_rate", "an image trainer with samples per second and no tokens at all", CLOCKS, declare=False, tps=32,
         emit='say(f"batch {k}: {TPS / gap:.2f} img/s, focal {loss:.4f}, lr 0.0020")',
         pat=r"batch {step}: {samples_per_s} img/s, focal {loss}, lr {lr}", accept=["samples_per_s.mean >= @r0.75", "loss.last < loss.first"])
    well("stderr_logging", "everything on standard error, by the logging module", "runbook-reference.md: trainer.metrics, stdout",
         head='import logging\nlogging.basicConfig(format="%(asctime)s %(name)s[%(process)d] %(levelname)s %(message)s")\nlog = logging.getLogger("quark")',
         emit='log.warning("epoch-less step=%d hinge=%.4f took=%.2fms", k, loss, gap * 1e3)', pat=r"step={step} hinge={loss} took={step_time_ms}ms",
         check=dict(stderr=True))
    well("rainbow", "colors in every field", "runbook-reference.md: trainer.metrics, stdout",
         emit='say(f"\\x1b[36mstep\\x1b[0m \\x1b[1m{k}\\x1b[0m \\x1b[31mloss\\x1b[0m {loss:.4f} \\x1b[32m{1000 * gap:.2f}\\x1b[0mms")',
         pat=r"step {step} loss {loss} {step_time_ms}ms", check=dict(rows=None))
    well("said_twice", "two log handlers print each line twice", "own-trainer.md: Patterns, Lines of one step are one row",
         emit='line = f"[trainer] pas {k} perte {loss:.4f} durée {gap:.4f}"\nsay(line)\nsay(line)',
         pat=r"pas {step} perte {loss} durée {step_time_s}", check=dict(rows=None))
    well("five_lines_a_step", "a YAML-like block of five lines per step", LINES,
         emit='say(f"- step: {k}\\n  loss: {loss:.5f}\\n  lr: {3e-4 * (1 - k / N):.3e}\\n  tok_s: {TPS / gap:.0f}\\n  mood: fine")',
         pat=r"^- step: {step}|^  loss: {loss}|^  lr: {lr}|^  tok_s: {toks_per_s}", check=dict(rows=None))
    well("row_only", "a bare number of milliseconds and a loss per line, no step anywhere", "own-trainer.md: Patterns, {row}",
         emit='say(f"{gap * 1000:.3f} {loss:.4f}")', pat=r"^{row}{step_time_ms} {loss}$")
    well("epochs_restart", "steps start again in each epoch", "own-trainer.md: Patterns, {epoch}",
         emit='E = max(1, N // 5)\nsay(f"Ep {(k - 1) // E + 1} [{(k - 1) % E + 1}/{E}] {gap * 1e3:.1f}ms/step - dice_loss: {loss:.4f}")',
         pat=r"Ep {epoch} \[{step}/{steps_per_epoch}\] {step_time_ms}ms/step - dice_loss: {loss}")
    well("resumed_prints", "a resumed run whose steps begin at 5001", "own-trainer.md: Trainers that many have",
         emit='say(f"@{5000 + k} ppl-loss {loss:.4f} {TPS / gap:.1f}tps")', pat=r"^@{step} ppl-loss {loss} {toks_per_s}tps")
    well("resumed_csv", "a resumed run that writes a CSV from step 12001 on, with columns of its own", "own-trainer.md: Trainers that many have",
         head='os.makedirs(OUT, exist_ok=True)\nf = open(OUT + "/curve.csv", "w", buffering=1)\nf.write("wallclock,iteration,train_loss,tokens_per_sec,moon\\n")',
         emit='f.write(f"{el:.3f},{12000 + k},{loss:.5f},{TPS / gap:.1f},{k % 28}\\n")', csv="curve.csv", secs=(12, 13))
    well("capitals_csv", "a CSV with names in capitals and an extra column that a criterion names",
        "runbook-reference.md: Series, These names are read too",
         head='os.makedirs(OUT, exist_ok=True)\nf = open(OUT + "/T.csv", "w", buffering=1)\nf.write("STEP,LOSS,LR,TOKS_PER_S,bleu\\n")',
         emit='f.write(f"{k},{loss:.5f},1e-3,{TPS / gap:.1f},{20 + 10 * k / N:.3f}\\n")', metrics=dict(csv="T.csv", extra={"bleu": "points"}),
         accept=["toks_per_s.mean >= @r0.8", "bleu.last >= 25 points"], secs=(12, 13), check=dict(csv="T.csv"))
    well("bare_csv", "a CSV without a header", "runbook-reference.md: trainer.metrics, csv",
         head='os.makedirs(OUT, exist_ok=True)\nf = open(OUT + "/log.txt", "w", buffering=1)',
         emit='f.write(f"{k},{loss:.5f},{1e-3 * min(1, k / 20):.6f},{TPS / gap:.1f}\\n")', csv="log.txt", secs=(12, 13), check=dict(rows=None))
    well("compile_pause", "four seconds of compilation before the first step, told in many lines", "statistics.md: Warm-up and levels",
         time="4.0 if k == 1 else D * rt.uniform(.97, 1.03)", head='say("lowering graph ... 212 ops")\nsay("autotune: 31 candidates")',
         emit='say(f"tick {k:4d} | L = {loss:8.4f} | {own * 1e6:.0f} us | {TPS / own:.1f} tok/s")',
         pat=r"tick +{step} \| L = +{loss} \| \d+ us \| {toks_per_s} tok/s")
    well("slow_first_eighth", "the first eighth of the run takes three times as long", LEVELS, warm=12,
         time="D * (3 if k <= N // 8 else 1) * rt.uniform(.98, 1.02)", emit='say(f"k={k} f={loss:.4f} s={gap:.5f}")',
         pat="k={step} f={loss} s={step_time_s}", accept=["toks_per_s.mean >= @r0.7 tok/s", "loss.last < loss.first"])
    well("evals_declared", "an evaluation every 20 steps, declared, and the rate with them clears its bound",
        "writing-a-runbook.md: When a phase fails; validation.md: One honest rate",
         rest="0.3 if k % 20 == 0 else 0", during='say(f"validating on fold {k // 20} ...")', more=dict(pause_every=20), warm=10,
         emit='say(f"sweep {k} energy {loss:.4f} in {own:.4f}")', pat="sweep {step} energy {loss} in {step_time_s}", secs=(11, 12))
    well("saves_undeclared", "a checkpoint every 30 steps, not declared; the true rate with them clears its bound by a fifth",
        "validation.md: One honest rate",
         rest="0.35 if k % 30 == 0 else 0", during='say(f"checkpoint written: model_{k}.bin")',
         emit='say(f"update={k} nll={loss:.4f} tps={TPS / gap:.1f}")',
         pat="update={step} nll={loss} tps={toks_per_s}", secs=(11, 12), d=(25, 40))
    well("long_goodbye", "three seconds of saving behind the last step", "validation.md: One honest rate, The end is the last step's row",
         emit='say(f"itr {k} / {N}: mae={loss:.4f} ({gap:.4f} sec)")', tail='say("writing weights ...")\ntime.sleep(3)\nsay("bye")',
         pat=r"itr {step} / \d+: mae={loss} \({step_time_s} sec\)")
    well("spike_recovers", "the loss jumps to five times its level twice and comes back", "findings.md: How sure the rules on curves are, spike",
         loss="(L0 * (.25 + .75 / (1 + k / 30)) + rng.gauss(0, .012 * L0)) * (5 if k in (N // 2, N // 2 + 1, N * 2 // 3) else 1)",
         emit='say(f"[{k}] mse:{loss:.4f} ms:{gap * 1e3:.2f}")', pat=r"^\[{step}\] mse:{loss} ms:{step_time_ms}")
    well("harder_lessons", "a curriculum raises the loss in the middle; it falls below its old minimum afterwards",
        "findings.md: The thresholds, diverging",
         loss="L0 * (1.2 - k / N) * (1.35 if N * .4 < k < N * .6 else 1) + rng.gauss(0, .01 * L0)",
         emit='say(f"lesson {1 + (k > N * .4) + (k >= N * .6)} step {k} loss {loss:.4f} rate {TPS / gap:.1f}")',
         pat=r"lesson \d step {step} loss {loss} rate {toks_per_s}")
    well("rising_by_design", "the loss rises to the end by curriculum, and the runbook accepts it", "findings.md: Answering a finding",
         loss="L0 * (.4 + .6 * abs(k / N - .5)) * (1 + .6 * (k > N * .7)) + rng.gauss(0, .01 * L0)", more=dict(accept_findings=["diverging"]),
         accept=["toks_per_s.mean >= @r0.8 tok/s"], emit='say(f"stage-step {k}: {loss:.4f} ({TPS / gap:.1f}/s)")',
         pat=r"stage-step {step}: {loss} \({toks_per_s}/s\)", check=dict(rising=True))
    well("negative_flow", "a normalizing flow with a likelihood that goes from 2 to -7", "findings.md: How sure the rules on curves are, negative",
         loss="2 - 9 * (1 - math.exp(-3 * k / N)) + rng.gauss(0, .1)", emit='say(f"flow {k} bpd {loss:+.4f} t {gap:.4f}")',
         pat=r"flow {step} bpd \+?{loss} t {step_time_s}", accept=["step_time_s.mean <= @s1.25 s", "loss.last <= -4"])
    well("tiny_losses", "losses from 1e-2 to 1e-5 in scientific notation", "findings.md: How sure the rules on curves are, near zero",
         loss="1e-2 * math.exp(-6 * k / N) * rng.uniform(.9, 1.1)", emit='say(f"residual({k}) = {loss:.3e} ; {1 / gap:.3f} Hz")',
         pat=r"residual\({step}\) = {loss} ; {steps_per_s} Hz")
    well("hinge_zeros", "a hinge loss that starts at 0 and comes back to it again and again", "findings.md: The thresholds, zero-loss",
         loss="0.0 if k % 3 != 1 else .4 + .2 * rng.random()", emit='say(f"triplet {k} margin-loss {loss:.4f} {gap * 1e3:.2f} ms")',
         pat=r"triplet {step} margin-loss {loss} {step_time_ms} ms", more=dict(accept_findings=["zero-loss"]), accept=TIMES[:1],
         check=dict(rising=True))
    well("huge_losses", "a squared error in millions with thousands separators", "own-trainer.md: Patterns",
         loss="(L0 * (.25 + .75 / (1 + k / 30)) + rng.gauss(0, .012 * L0)) * 1e6", emit='say(f"Iter {k} SSE {loss:,.1f} speed {TPS / gap:_.1f}")',
         pat="Iter {step} SSE {loss} speed {toks_per_s}")
    well("heavy_tails", "step times with the tail of Student's t, a fat one now and then", "findings.md: How sure the rules on curves are",
         time="D * max(.6, 1 + .04 * rt.gauss(0, 1) / math.sqrt(sum(rt.gauss(0, 1) ** 2 for _ in range(3)) / 3))",
         emit='say(f"n {k:>5}  l {loss:>8.4f}  d {gap:>7.4f}")', pat=r"n +{step} +l +{loss} +d +{step_time_s}",
         accept=["toks_per_s.mean >= @r0.75 tok/s", "loss.last < loss.first"], secs=(10, 12))
    well("wandering_pace", "autocorrelated step times", "statistics.md: Calibration",
        prep="x = [0.0]\ndef walk(r):\n    x[0] = .8 * x[0] + r.gauss(0, .02)\n    return 1 + x[0]",
         time="D * walk(rt)", emit='say(f"~{k}~ {loss:.4f} ~ {TPS / gap:.2f} ~")', pat=r"^~{step}~ {loss} ~ {toks_per_s} ~",
         accept=["toks_per_s.mean >= @r0.75 tok/s", "loss.last < loss.first"])
    well("clock_set_back", "the wall clock in the log is set back by an hour half-way; the step's own time is printed too",
        "findings.md: All findings, clock-jump",
         emit='''
         t = time.time() - (3600 if k > N // 2 else 0)
         stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(t)) + f",{int(t % 1 * 1000):03d}"
         say(f"{stamp} run#1 s{k} c{loss:.4f} {gap:.4f}s")
         ''', pat=r"^{timestamp} run#1 s{step} c{loss} {step_time_s}s$")
    well("handled_traceback", "warnings and a traceback that was handled, on standard error", "validation.md: Self-proof, hostile log text",
         head='import traceback, warnings', emit='''
         say(f"go {k} dist {loss:.4f} cost {gap:.4f}")
         if k == N // 3:
             warnings.warn("lookup table is being rebuilt")
             try:
                 {}["shard-7"]
             except KeyError:
                 traceback.print_exc()
                 say("shard-7 is missing, going on with shard-8", file=sys.stderr)
         ''', pat="go {step} dist {loss} cost {step_time_s}")
    well("leaves_by_os_exit", "ends through os._exit(0) from a thread", "runbook-reference.md: Ids, PHASE.exit",
         head="import threading", emit='say(f"({k}, {loss:.4f}, {gap:.5f})")',
         tail="threading.Timer(.3, lambda: os._exit(0)).start()\ntime.sleep(20)",
         pat=r"^\({step}, {loss}, {step_time_s}\)")
    well("child_does_it", "a parent passes on what a child process prints, with a prefix", "own-trainer.md: With torchrun, nproc: 0",
         head='''if "--child" not in sys.argv:
    import subprocess
    child = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--child"], stdout=subprocess.PIPE, text=True)
    for line in child.stdout:
        say("[worker-0] " + line.rstrip())
    sys.exit(child.wait())''', emit='say(f"mb {k} w2v {loss:.4f} {own * 1e3:.3f}")', pat=r"\[worker-0\] mb {step} w2v {loss} {step_time_ms}")
    well("lr_to_zero", "a learning rate that begins at 0 and ends at 0", "findings.md: All findings, zero-grad (throughout)",
         emit='say(f"epoch 0 it {k} lr {1e-3 * math.sin(math.pi * (k - 1) / (N - 1)):.3e} nce {loss:.4f} q {TPS / gap:.1f}")',
         pat=r"it {step} lr {lr} nce {loss} q {toks_per_s}")
    well("many_criteria", "criteria on the loss, the norm, a validation loss and the rate together", "runbook-reference.md: Criteria",
         emit='say(f"s={k} l={loss:.4f} g={1 + .2 * rng.random():.4f} r={TPS / gap:.1f}" + (f" heldout={loss + .1:.4f}" if k % 10 == 0 else ""))',
         pat=r"s={step} l={loss} g={grad_norm} r={toks_per_s}(?: heldout={val_loss})?",
         accept=["toks_per_s.mean >= @r0.75 tok/s", "loss.last < 0.6 * loss.first", "grad_norm.max <= 2", "val_loss.min < loss.first",
         "steps.done >= 60"])
    well("three_repeats", "three short runs", "runbook-reference.md: defaults, repeats", secs=(5, 6), defaults=dict(repeats=3),
         emit='say(f"<step n={k} loss={loss:.4f} dur={gap:.5f}/>")', pat=r"<step n={step} loss={loss} dur={step_time_s}/>")
    ab = dict(emit='say(f"b {k} {loss:.4f} {TPS / gap:.2f}")', pat="^b {step} {loss} {toks_per_s}", secs=(3.4, 4), d=(25, 35), warm=12)
    well("ab_faster", "an A/B whose second arm is a third faster, behind a gate", "statistics.md: Sweeps and A/Bs", **ab,
         time="D * (.66 if opt('--fuse', '0') == '1' else 1) * rt.uniform(.98, 1.02)", prep="opt = globals().get('opt', lambda name, other: other)",
         phases=lambda gate: [gate, dict(id="duel", kind="ab", steps=gate["steps"], repeats=2, required=False,
                                         arms=dict(plain={"args": {"fuse": 0}}, fused={"args": {"fuse": 1}}),
                                         choose=dict(highest="toks_per_s.mean"))])
    well("sweep_honest", "a sweep over a bucket size that costs four per cent, behind a gate", "validation.md: Comparing", **ab,
         time="D * (1.04 if opt('--bucket', '8') == '4' else 1) * rt.uniform(.98, 1.02)",
         prep="opt = globals().get('opt', lambda name, other: other)",
         phases=lambda gate: [gate, dict(id="buckets", kind="sweep", steps=gate["steps"], repeats=2, over={"args.bucket": [4, 8]},
                                         choose=dict(highest="toks_per_s.mean"))])
    well("speed_up_early", "becomes faster within its first tenth, and stays there", "findings.md: The thresholds, rate-shift",
         time="D * (1.6 if k <= N // 10 else 1) * rt.uniform(.98, 1.02)", emit='say(f"{el:9.3f}s  step={k}  bce={loss:.4f}")',
         pat="^ *{elapsed_s}s  step={step}  bce={loss}", accept=["toks_per_s.mean >= @r0.75 tok/s", "loss.last < loss.first"])
    well("soak_steady", "a soak that holds its rate, with memory on a plateau", "findings.md: All findings, memory-growth",
         emit='say(f"hb {k} w {loss:.4f} dt {gap:.4f} rss {400 + 80 * (1 - math.exp(-k / 12)) + rng.random():.2f}")', secs=(13, 14),
         pat="hb {step} w {loss} dt {step_time_s} rss {host_mem_mib}", more=dict(kind="soak"), accept=["toks_per_s.mean >= @r0.8 tok/s",
         "host_mem_mib.max <= 600 MiB"])
    well("command_then_train", "a command with a number, a run, and a second run held against the first", "runbook-reference.md: Criteria", secs=(6,
        7),
         emit='say(f"ROUND {k} LOSS {loss:.4f} RATE {TPS / gap:.1f}")', pat="ROUND {step} LOSS {loss} RATE {toks_per_s}",
         phases=lambda gate: [dict(id="words", kind="command", run="echo 'score 0.91' | cat", stdout="score (?P<score>[0-9.]+)",
         accept=["metrics.score >= 0.8"]),
                              dict(gate, id="first"), dict(gate, id="second", needs=["first"],
                              accept=["toks_per_s.mean >= 0.8 * first.toks_per_s.mean"])])
    well("preflight_modest", "a preflight with modest wishes, and a phase that is only looked at", "writing-a-runbook.md: What carries a GO",
        secs=(6, 7),
         emit='say(f"{k}) loss {loss:.4f}; {gap:.4f} s")', pat=r"^{step}\) loss {loss}; {step_time_s} s", top=dict(hardware=dict(gpus=0,
         cpu_cores=1, memory="100 MiB")),
         phases=lambda gate: [dict(id="machine", kind="preflight"), gate, dict(id="look", kind="train", steps=60, observe=True)])
    well("three_workers", "three plain processes with heartbeats, all alike", "own-trainer.md: With torchrun, nproc: 0",
         code=RANKS, args=dict(world=3, wait="pass", own=".8", change="pass"), csv="training.csv", secs=(12, 13),
         metrics=dict(heartbeat="heartbeat_rank{rank}.jsonl"))
    well("honest_env", "env.json with a choice left to the trainer (auto) and a config that was obeyed", FILES, tps=4 * 2 * 128,
         head='''os.makedirs(OUT, exist_ok=True)
asked = dict(seq_len=128, batch_size=4, accum=2, lr=3e-4, dtype="auto", steps=N)
with open(OUT + "/facts.json", "w") as facts:
    json.dump(dict(schema_version=1, requested=asked, effective=dict(asked, dtype="fp32"), world_size=1, tokens_per_step=TPS), facts)''',
         emit='say(f"{k}|{loss:.4f}|{gap:.5f}")', pat=r"^{step}\|{loss}\|{step_time_s}$", metrics=dict(env="facts.json"))
    well("edge_near", "the true rate is seven per cent above its bound", "statistics.md: Interval over runs", expect="GO INCONCLUSIVE", near=True,
         emit='say(f"near {k}: {loss:.4f} at {TPS / gap:.1f}")', pat="near {step}: {loss} at {toks_per_s}",
         accept=["toks_per_s.mean >= @r0.935 tok/s"], secs=(8, 9))
    well("not_every_line", "optional fields: the learning rate now and then, words in between", LINES,
         emit='''
         say(f"step {k}" + (f" lr={1e-4:.1e}" if k % 9 == 0 else "") + f" took {gap:.4f} loss={loss:.4f}")
         if k % 31 == 0:
             say("~ tea break for the logger, not for the trainer ~")
         ''', pat=r"^step {step}(?: lr={lr})? took {step_time_s} loss={loss}")
