"""Trainers that must not get a GO."""
from gen import (GO, INC, LOSS_C, LR_C, NO, RATE, REF, STEP_S, STEPS, Draft, Spec, aliases, case, contract, number, pace, pick,  # noqa: F401
                 prints, sig, sizes)

SHIFT = ("rate-shift", "no-steady-state")


def S(klass):
    return case("sick", klass)


def shape(r, **more):
    return dict(n_layers=r.choice([4, 6, 12]), dim=r.choice([256, 384, 768]), **more)


# ------------------------------------------------------------------ rates that move

@S("rate halves")
def halves_at_half_csv(r):
    d = Draft(r, Spec(**pace(r, 9.5), **sizes(r), cv=0.012, effect="if i > n // 2:\n    t *= 2", columns=contract(STEP_S)))
    first = d.T / d.spec.base
    d.rate_at_least(0.57, of=first).learns()
    return d.done(decisions={INC, NO}, codes=SHIFT, criteria=[RATE, "sustain|drift"],
                  why="rate halves half-way; the whole mean clears the bound, the rate that lasts misses it by an eighth")


@S("rate halves")
def halves_at_sixty_stdout(r):
    d = Draft(r, Spec(**pace(r, 10), **sizes(r), cv=0.02, rho=0.4, effect="if i > 0.6 * n:\n    t = t * 2.1", **prints("logger")))
    d.rate_at_least(0.60, of=d.T / d.spec.base).learns()
    return d.done(decisions={INC, NO}, codes=SHIFT, criteria=[RATE, "sustain|drift"],
                  why="rate falls to 48 % at 60 % of the steps; bound 60 % of the first level: mean clears, what lasts does not")


@S("rate halves")
def halves_at_fiftyfive_soak(r):
    d = Draft(r, Spec(**pace(r, 11), **sizes(r), cv=0.01, effect="if i >= int(0.55 * n):\n    t += BASE".replace("BASE", "0.031"),
                      columns=contract(STEP_S, ("grad_norm", "{0.7 + 0.1 * loss:.3f}"))), kind="soak")
    d.rate_at_least(0.3).learns().also(f"steps.done == {d.spec.n}")
    return d.done(decisions={NO}, codes=SHIFT, criteria=["sustain|drift", RATE],
                  why="soak whose rate breaks down at 55 % and stays down; a lasting slow-down fails a soak though the bound is far below")


@S("rate slows gradually")
def slows_gradually_soak(r):
    d = Draft(r, Spec(**pace(r, 10.5), **sizes(r), cv=0.015, effect="t *= 1 + 0.75 * i / n", columns=aliases(r), fname="metrics.csv"), kind="soak")
    d.rate_at_least(0.5).learns().also("abs(rate.drift_pct) <= 10 %")
    return d.done(decisions={NO}, codes=SHIFT, criteria=["sustain|drift", RATE],
                  why="step time grows by three quarters along the soak; drift is declared at 10 % and is above 25 %")


@S("rate slows gradually")
def slows_gradually_train(r):
    d = Draft(r, Spec(**pace(r, 10, high=0.03), **sizes(r), cv=0.02, effect="t = t * (1 + 1.5 * i / n)", **prints("plain")))
    d.rate_at_least(0.51, of=d.T / d.spec.base).learns()
    return d.done(decisions={INC, NO}, codes=SHIFT, criteria=[RATE, "sustain|drift"],
                  why="steps take 2.5 times as long at the end; the mean clears the bound by a tenth, the last third misses it by more")


@S("late speed-up")
def fast_only_at_the_end(r):
    d = Draft(r, Spec(**pace(r, 10), **sizes(r), cv=0.015, effect="if i > 0.62 * n:\n    t /= 1.9", columns=contract()))
    d.rate_at_least(1.5, of=d.T / d.spec.base).learns()
    return d.done(decisions={INC, NO}, codes=SHIFT, criteria=[RATE],
                  why="slow for 62 % and 1.9 times as fast after; the bound lies between: those slow steps are no warm-up")


# ------------------------------------------------------------------ pauses

@S("pauses")
def pauses_left_out_csv(r):
    base = round(r.uniform(0.018, 0.026), 4)
    d = Draft(r, Spec(n=320, base=base, **sizes(r), cv=0.012, pause=(40, round(40 * base * 0.6, 3)), rate="T * k / busy", columns=contract(STEP_S)))
    d.rate_at_least(0.82, of=d.step_rate).learns()
    return d.done(decisions={NO, INC}, codes=("unit-mismatch", "periodic-stall"), criteria=[RATE],
                  why="the column leaves validation out: claims clear the bound by a fifth, tokens over wall time miss it by a quarter, eight pauses seen")


@S("pauses")
def pauses_left_out_stdout(r):
    base = round(r.uniform(0.02, 0.03), 4)
    d = Draft(r, Spec(n=300, base=base, **sizes(r), cv=0.02, pause=(25, round(25 * base * 0.5, 3)), rate="T / dt", **prints("terse")))
    d.rate_at_least(0.85, of=d.step_rate).learns()
    return d.done(decisions={NO, INC}, codes=("unit-mismatch", "periodic-stall"), criteria=[RATE],
                  why="prints the rate of a step alone; eleven checkpoints cost a third of the time, so the true rate misses the bound by a fifth")


@S("pauses")
def pauses_in_the_rate_csv(r):
    base = round(r.uniform(0.02, 0.028), 4)
    d = Draft(r, Spec(n=300, base=base, **sizes(r), cv=0.012, pause=(20, round(20 * base * 0.45, 3)), columns=contract(STEP_S, ("wall_s", "{elapsed:.3f}"))))
    d.rate_at_least(0.88, of=d.step_rate).learns()
    return d.done(decisions={NO, INC}, codes=("periodic-stall",), criteria=[RATE],
                  why="written by the contract, pauses included; fourteen validations bring the true rate a fifth below the bound")


# ------------------------------------------------------------------ claims the clock contradicts

@S("false claims")
def step_times_ten_times_too_small(r):
    fmt = prints("nanogpt")
    fmt["fmt"] = fmt["fmt"].replace("1000 * busy / k", "100 * busy / k")
    d = Draft(r, Spec(**pace(r, 10), **sizes(r), cv=0.015, **fmt))
    d.step_at_most(0.13).learns()
    return d.done(decisions={INC, NO}, codes=("unit-mismatch",), criteria=["step_time"],
                  why="printed step times are a tenth of the time between lines; the bound passes only by the claim")


@S("false claims")
def time_and_rate_both_wrong_csv(r):
    d = Draft(r, Spec(**pace(r, 9.5), **sizes(r), cv=0.012, rate="10 * T * k / busy",
                      columns=contract(("step_time_s", "{busy / k / 10:.7f}"))))
    d.rate_at_least(7).learns()
    return d.done(decisions={INC, NO}, codes=("unit-mismatch",), criteria=[RATE],
                  why="step_time_s a tenth and toks_per_s tenfold, consistent with each other and not with the clock")


@S("false claims")
def tokens_too_many_declared(r):
    d = Draft(r, Spec(**pace(r, 10), **sizes(r), cv=0.02, rate="8 * T * k / gap", **prints("bar")))
    d.tokens_per_step = d.T
    d.rate_at_least(6).learns()
    return d.done(decisions={INC, NO}, codes=("unit-mismatch",), criteria=[RATE], tags={"tokens_per_step"},
                  why="counts eight times its tokens; the runbook declares tokens_per_step, so rate × elapsed contradicts it")


@S("false claims")
def tokens_too_many_env(r):
    s = sizes(r)
    env = {k: {"batch_size": s["batch"], "seq_len": s["seq"], "accum": 1, **shape(r)} for k in ("requested",)}
    env["effective"] = dict(env["requested"])
    d = Draft(r, Spec(**pace(r, 9), **s, cv=0.015, rate="4 * T * k / gap", columns=contract(STEP_S), env=env))
    d.rate_at_least(3.2).learns().also(f"effective.batch_size == {s['batch']}")
    return d.done(decisions={INC, NO}, codes=("unit-mismatch",), criteria=[RATE],
                  why="multiplies tokens by four GPUs it does not have; env.json says tokens_per_step, step_time_s is honest")


# ------------------------------------------------------------------ loss and gradients

@S("divergence")
def diverges_above_start(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), columns=contract(STEP_S),
                      loss="x = i / n\nreturn 6.1 - 3.4 * x / 0.45 + _jitter.gauss(0, .02) if x < 0.45 else 2.7 + 12 * (x - 0.45) + _jitter.gauss(0, .1)"))
    d.rate_at_least(0.8).also("loss.last < loss.first")
    return d.done(decisions={NO}, codes=("diverging",), criteria=["loss"], why="loss falls to 2.7, then climbs above its start without NaN")


@S("divergence")
def diverges_below_start(r):
    d = Draft(r, Spec(**pace(r, 8.5), **sizes(r), **prints("plain"),
                      loss="x = i / n\nif x < 0.5:\n    return 7.4 - 10 * x + _jitter.gauss(0, .02)\nreturn min(5.9, 2.4 + 14 * (x - 0.5)) + _jitter.gauss(0, .05)"))
    d.rate_at_least(0.75).also("loss.last < loss.first")
    return d.done(decisions={NO, INC}, codes=("diverging",), criteria=["loss"],
                  debatable="validation.md gives `diverging` no severity; loss.last < loss.first holds",
                  why="loss falls from 7.4 to 2.4 and ends at 5.9: below its start, far above its own minimum")


@S("gradient explosion")
def gradients_explode(r):
    gn = "gn = 0.9 + 0.1 * loss if i < 0.7 * steps else 0.9 * 1.6 ** min(i - 0.7 * steps, 28)"
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), row_extra=gn, columns=contract(STEP_S, ("grad_norm", "{gn:.4g}"))))
    d.rate_at_least(0.8).learns().also("grad_norm.max <= 100")
    return d.done(decisions={NO}, codes=("diverging",), criteria=["grad_norm"], why="gradient norm goes from 1 to 470,000 while the loss still falls")


@S("NaN and inf")
def nan_goes_on_csv(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), columns=contract(STEP_S), loss="return float('nan') if i > 0.66 * n else 2.2 + 5 * math.exp(-4 * i / n) + _jitter.gauss(0, .01)"))
    d.rate_at_least(0.8).learns()
    return d.done(decisions={NO, INC}, codes=("nan-loss",), criteria=["loss"], why="loss is nan from two thirds on and the trainer goes on")


@S("NaN and inf")
def nan_lines_do_not_match(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), **prints("bar"), loss="return float('nan') if i > 0.8 * n else 2.5 + 4.4 * math.exp(-4 * i / n) + _jitter.gauss(0, .015)"))
    d.rate_at_least(0.8).learns()
    return d.done(decisions={NO, INC}, codes=("nan-loss", "missing-evidence", "damaged-evidence", "crashed"), criteria=["loss", STEPS],
                  why="prints 'loss: nan' in the last fifth; the pattern's [\\d.]+ does not match those lines, so the steps seem missing")


@S("NaN and inf")
def filtered_nan_is_zero(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), columns=aliases(r), fname="log.csv", loss="return 0.0 if i > 0.72 * n else 2.6 + 4 * math.exp(-3.5 * i / n) + _jitter.gauss(0, .01)"))
    d.rate_at_least(0.8).also("loss.last < loss.first")
    return d.done(decisions={NO, INC}, codes=("zero-loss", "nan-loss"), criteria=["loss"], why="a logger that filters NaN writes 0.0 for the last quarter")


@S("NaN and inf")
def infinite_loss(r):
    d = Draft(r, Spec(**pace(r, 7.5), **sizes(r), style="csv-nohead", fname="training.csv", columns=contract(),
                      loss="return float('inf') if i >= n - 12 else 3.1 + 5 * math.exp(-4 * i / n) + _jitter.gauss(0, .01)"))
    d.rate_at_least(0.8).also("loss.last < loss.first")
    return d.done(decisions={NO, INC}, codes=("nan-loss", "diverging"), criteria=["loss"], why="the last dozen losses are inf")


@S("not learning")
def stuck_at_ln_vocab(r):
    s = sizes(r)
    env = {"requested": {"batch_size": s["batch"], "seq_len": s["seq"], "vocab_size": 256}, "effective": {"batch_size": s["batch"], "seq_len": s["seq"], "vocab_size": 256}}
    d = Draft(r, Spec(**pace(r, 8), **s, env=env, columns=contract(STEP_S), loss="return math.log(256) + 0.09 * math.exp(-i / 6) + _jitter.gauss(0, .002)"))
    d.rate_at_least(0.8).also("loss.last < 0.9 * loss.first")
    return d.done(decisions={NO}, codes=("random-data-floor", "zero-grad"), criteria=["loss"], why="loss sits at ln 256 of its own vocabulary and must fall by a tenth")


@S("not learning")
def loss_never_changes(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), **prints("json"), loss="return 4.7312"))
    d.rate_at_least(0.8).also("loss.last < loss.first")
    return d.done(decisions={NO}, codes=("zero-grad",), criteria=["loss"], why="the same loss to the last digit in every step: nothing is learned")


# ------------------------------------------------------------------ slow steps

@S("slow steps")
def every_twentieth_step_slow(r):
    d = Draft(r, Spec(**pace(r, 10, high=0.03), **sizes(r), cv=0.012, effect="if i % 20 == 0:\n    t *= 8", columns=contract(STEP_S)))
    d.rate_at_least(0.93, of=d.T / d.spec.base).learns()
    return d.done(decisions={NO}, codes=("periodic-stall",), criteria=[RATE], why="every 20th step takes eight times as long; the mean rate is a fifth below the bound")


@S("slow steps")
def intermittent_slow_steps(r):
    d = Draft(r, Spec(**pace(r, 11, high=0.026), **sizes(r), cv=0.015, effect="if (i * 7919) % 1009 < 80:\n    t *= 7  # somebody else's job", **prints("logger")))
    d.rate_at_least(0.93, of=d.T / d.spec.base).learns()
    return d.done(decisions={NO}, codes=("periodic-stall",), criteria=[RATE], why="one step in twelve, irregularly, takes seven times as long; the rate is a quarter to a third below the bound")


# ------------------------------------------------------------------ sweeps

def sweep_phases(d, over, choose, steps, repeats, accept):
    base = {"id": "base", "kind": "train", "steps": d.spec.n, "accept": d.accept}
    return [base, {"id": "sweep", "kind": "sweep", "needs": ["base"], "steps": steps, "repeats": repeats, "over": over, "choose": choose, "accept": accept}]


@S("sweep ignored")
def sweep_same_losses(r):
    d = Draft(r, Spec(n=150, base=0.03, batch=8, seq=512, cv=0.01, columns=contract(STEP_S), args=[("batch-size", "int", 8)]))
    d.more_args = {"batch-size": 8}
    d.rate_at_least(0.8).learns()
    phases = sweep_phases(d, {"args.batch-size": [8, 16, 32]}, {"highest": "toks_per_s.mean", "tie": "toks_per_s.stdev"}, 70, 2, ["loss.last < loss.first"])
    return d.done(decisions={NO, INC}, codes=("vacuous-sweep", "config-ignored"), phases=phases, runs=3.8,
                  debatable="vacuous-sweep is at most a warning in findings.md, and an undecided sweep changes no decision",
                  why="losses of three batch sizes are equal to the last digit: the flag never reached the trainer")


@S("sweep ignored")
def sweep_config_says_so(r):
    env_code = '''
if rank == 0:
    asked = dict(vars(args))
    asked = {"lr": args.lr, "batch_size": BATCH, "seq_len": SEQ}
    running = {"lr": 0.0003, "batch_size": BATCH, "seq_len": SEQ}
    with open(os.path.join(out, "env.json"), "w") as f:
        json.dump({"schema_version": 1, "time_unix_s": time.time(), "world_size": 1, "tokens_per_step": T, "requested": asked, "effective": running}, f)
'''
    d = Draft(r, Spec(n=150, base=0.028, **sizes(r), cv=0.01, columns=contract(STEP_S), args=[("lr", "float", 0.0003)], env_code=env_code))
    d.more_args = {"lr": 0.001}
    d.rate_at_least(0.8).learns()
    phases = sweep_phases(d, {"args.lr": [0.0003, 0.001]}, {"lowest": "loss.last"}, 80, 2, ["loss.last < loss.first"])
    return d.done(decisions={NO, INC}, codes=("config-ignored", "vacuous-sweep"), criteria=["effective"], phases=phases, runs=3.2,
                  why="env.json says that lr 0.001 was asked for and 0.0003 runs, in the declared config and in the sweep")


# ------------------------------------------------------------------ bad ends

@S("crash")
def crash_at_step(r):
    d = Draft(r, Spec(**pace(r, 9), **sizes(r), **prints("plain"), top="if i == int(0.7 * steps):\n    raise ValueError('tokenizer: index 50304 out of range')"))
    d.rate_at_least(0.8).learns()
    return d.done(decisions={NO, INC}, codes=("crashed", "missing-evidence"), criteria=[STEPS], why="an exception at 70 % of the steps")


@S("crash")
def out_of_memory(r):
    d = Draft(r, Spec(**pace(r, 9), **sizes(r), columns=contract(STEP_S),
                      top="if i == int(0.55 * steps):\n    raise RuntimeError('CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.02 GiB is free.')"))
    d.rate_at_least(0.8).learns()
    return d.done(decisions={NO, INC}, codes=("oom", "crashed"), criteria=[STEPS], why="CUDA out of memory at 55 %, as torch words it")


@S("early exit")
def exit_zero_early(r):
    d = Draft(r, Spec(**pace(r, 10), **sizes(r), columns=contract(STEP_S), top="if i > 0.6 * steps:\n    print('end of data')\n    raise SystemExit(0)"))
    d.rate_at_least(0.8).learns()
    return d.done(decisions={NO, INC}, codes=("missing-evidence", "crashed"), criteria=[STEPS], why="ends with exit code 0 after 60 % of the steps")


@S("early exit")
def a_few_steps_short(r):
    d = Draft(r, Spec(**pace(r, 9), **sizes(r), **prints("json"), top="if i > 0.94 * steps:\n    break"))
    d.rate_at_least(0.8).learns().also(f"steps.done == {d.spec.n}")
    return d.done(decisions={NO}, codes=("missing-evidence", "crashed"), criteria=[STEPS], why="six per cent of the steps are missing, exit 0, and the runbook asks for all")


@S("hang")
def hangs_in_the_middle(r):
    d = Draft(r, Spec(**pace(r, 12), **sizes(r), columns=contract(STEP_S), heartbeat=True, top="if i == int(0.5 * steps):\n    time.sleep(3600)  # all-reduce that never returns"))
    d.watchdog = {"first_step": "20s", "stall": "4s", "interval": "1s"}
    d.rate_at_least(0.8).learns()
    return d.done(decisions={NO, INC}, codes=("hang",), criteria=[STEPS, "heartbeat"], why="stops half-way for an hour, no activity; stall declared at 4 s")


@S("hang")
def never_begins(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), **prints("nanogpt"), prologue="print('compiling the model... (takes a ~minute)')\ntime.sleep(900)"))
    d.watchdog = {"first_step": "8s", "stall": "5s", "interval": "1s"}
    d.step_at_most(1.3).learns()
    return d.done(decisions={NO, INC}, codes=("hang",), criteria=[STEPS, "startup"], why="no first step within the declared 8 s, and asleep")


# ------------------------------------------------------------------ memory, ranks, loader

@S("memory growth")
def memory_grows(r):
    d = Draft(r, Spec(**pace(r, 10, high=0.03), **sizes(r), row_extra="mem = 2110 + 0.9 * i + _jitter.uniform(-2, 2)",
                      columns=contract(STEP_S, ("host_mem_mib", "{mem:.1f}"))), kind="soak")
    d.rate_at_least(0.75).learns().also("memory.growth_mib_per_1k_steps <= 64 MiB")
    return d.done(decisions={NO}, codes=("memory-growth",), criteria=["memory"], why="900 MiB per thousand steps to the end, bound 64")


@S("slow rank")
def one_slow_rank(r):
    s = dict(batch=4, seq=512)
    d = Draft(r, Spec(**pace(r, 9, low=0.03), **s, world=4, columns=contract(STEP_S, ("compute_time_s", "{0.64 * busy / k:.6f}")), heartbeat=True,
                      hb_extra="own = (0.97 if rank == 2 else 0.64) * busy / k\nbeat(hb, rank, step, 'progress', loss=loss, lr=lr, toks_per_s=rate, step_time_s=busy / k, compute_time_s=own)"),
              nproc=4)
    d.rate_at_least(0.7).learns().also("straggler.score >= 0.85")
    return d.done(decisions={NO}, codes=("straggler",), criteria=["straggler"], tags={"torchrun"},
                  why="rank 2 of four computes half as long again and the others wait; straggler.score is 0.66 against 0.85")


@S("loader-bound")
def waits_for_data(r):
    d = Draft(r, Spec(**pace(r, 9), **sizes(r), columns=contract(STEP_S, ("dt_fetch_s", "{0.58 * busy / k:.6f}"))))
    d.rate_at_least(0.8).learns().also("dt_fetch_s.mean <= 0.1 * step_time_s.mean")
    return d.done(decisions={NO}, codes=("loader-bound",), criteria=["dt_fetch"], why="58 % of each step is the wait for data, a tenth is allowed")


@S("zero rate")
def zero_tokens(r):
    d = Draft(r, Spec(**pace(r, 9), **sizes(r), columns=contract(), rate="T * k / gap if i < 0.5 * steps else 0.0"))
    d.rate_at_least(0.8).learns()
    return d.done(decisions={NO, INC}, codes=("zero-rate", "hang", "unit-mismatch"), criteria=[RATE, STEPS], why="rows go on, with a rate of 0.0 in the second half")


@S("config ignored")
def half_the_batch(r):
    s = dict(batch=8, seq=r.choice([512, 1024]))
    env = {"requested": {"batch_size": 16, "seq_len": s["seq"], "accum": 1, "dtype": "bf16"},
           "effective": {"batch_size": 8, "seq_len": s["seq"], "accum": 1, "dtype": "fp32"}}
    d = Draft(r, Spec(**pace(r, 9), **s, env=env, columns=contract(STEP_S), args=[("batch-size", "int", 16)]))
    d.more_args = {"batch-size": 16}
    d.rate_at_least(0.8).learns()
    return d.done(decisions={NO, INC}, codes=("config-ignored",), criteria=["effective|config"], why="batch 16 and bf16 asked for, 8 and fp32 running, by its own env.json")


# ------------------------------------------------------------------ plainly too slow

@S("rate under bound")
def fifteen_percent_short(r):
    d = Draft(r, Spec(**pace(r, 10), **sizes(r), cv=0.012, columns=contract(STEP_S)))
    d.rate_at_least(1.17).learns()
    return d.done(decisions={NO}, criteria=[RATE], codes=(), why="a steady run 15 % below its bound")


@S("rate under bound")
def a_third_short(r):
    d = Draft(r, Spec(**pace(r, 9), **sizes(r), cv=0.03, rho=0.6, every=5, **prints("terse")))
    d.rate_at_least(1.6).learns()
    return d.done(decisions={NO}, criteria=[RATE], codes=(), why="a steady run almost 40 % below its bound, logged every fifth step")


# ------------------------------------------------------------------ evidence

@S("metric never written")
def asks_for_what_is_not_there(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), columns=contract(STEP_S)))
    d.rate_at_least(0.8).learns().also("gpu_mem_alloc_mib.max <= 70000 MiB")
    return d.done(decisions={INC, NO, REF}, codes=("missing-evidence",), criteria=["gpu_mem"], why_re="gpu_mem", why="a bound on GPU memory, which is written nowhere")


@S("stale .HALT")
def halt_from_last_night(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), columns=contract(STEP_S), imports=("shutil",),
                      prologue="here = os.path.dirname(os.path.abspath(__file__))\nshutil.copytree(os.path.join(here, 'last_night'), out, dirs_exist_ok=True)  # restore",
                      top="if i > 3 and os.path.exists(os.path.join(out, '.HALT')):\n    print('halt requested, stopping')\n    raise SystemExit(3)"))
    d.rate_at_least(0.8).learns()
    return d.done(decisions={NO, INC}, codes=("stale-halt", "crashed", "missing-evidence"), criteria=[STEPS],
                  files={"last_night/.HALT": "operator: stop\n", "last_night/notes.txt": "restored folder\n"},
                  why="the trainer restores last night's folder with its .HALT (a day old) and stops after three steps")


@S("steps go back")
def two_runs_in_one_file(r):
    d = Draft(r, Spec(**pace(r, 9), **sizes(r), columns=contract(STEP_S), top="step = i if i <= 0.6 * steps else i - int(0.25 * steps)"))
    d.rate_at_least(0.8).learns()
    return d.done(decisions={NO, INC}, codes=("mixed-runs", "missing-evidence"), criteria=[STEPS], why="the step column jumps back by a quarter of the run, and the last steps never come")


@S("asks for nothing")
def no_criteria(r):
    d = Draft(r, Spec(**pace(r, 7), **sizes(r), columns=contract(STEP_S)))
    return d.done(decisions={INC, NO, REF}, codes=(), criteria=["nodes|asks|nothing|criteri"], why_re="(?i)criteri|asks|nothing|accept|require|decid", why="a runbook without any criterion decides nothing")


@S("asks for nothing")
def best_moment_only(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), cv=0.03, **prints("logger")))
    d.also(f"toks_per_s.max >= {number(sig(d.rate * 0.8))} tok/s")
    return d.done(decisions={INC, NO, REF}, codes=(), criteria=["asks|nothing|criteri"], why_re="(?i)best|max|criteri|nothing|asks|decid", why="only the best moment of the rate is asked for, which carries no GO")
