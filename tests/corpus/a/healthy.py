"""Trainers that deserve a GO."""
from gen import (GO, LR_C, STEP_S, Draft, Spec, aliases, case, contract, number, pace, prints, sig, sizes)

OK = {GO}


def H(klass):
    return case("healthy", klass)


# ------------------------------------------------------------------ steady, in every handwriting

def steady(name, seconds, share, **spec):
    def build(r):
        d = Draft(r, Spec(**pace(r, seconds), **sizes(r), cv=round(r.uniform(0.006, 0.019), 4), rho=round(r.uniform(0, 0.5), 2), **spec))
        d.rate_at_least(share).learns()
        return d.done(decisions=OK, why=f"steady; the bound is {round(100 * (1 / share - 1))} % away")
    build.__name__ = name
    return H("steady")(build)


steady("steady_contract", 9, 0.88, columns=contract(STEP_S, ("grad_norm", "{0.6 + 0.2 * loss:.3f}")))
steady("steady_headerless", 8.5, 0.8, style="csv-nohead", columns=contract())
steady("steady_plain_print", 9.5, 0.85, **prints("plain"))
steady("steady_titan_colors", 9, 0.75, **prints("titan"))
steady("steady_json_lines", 10, 0.89, **prints("json"))
steady("steady_thousands", 8, 0.7, **prints("logger"))
steady("steady_ktok", 9, 0.86, **prints("terse"))


@H("steady")
def steady_alias_csv(r):
    d = Draft(r, Spec(**pace(r, 10), **sizes(r), cv=0.01, columns=aliases(r), fname="metrics.csv"))
    d.rate_at_least(0.84).learns().also(f"steps.done == {d.spec.n}")
    return d.done(decisions=OK, why="steady, columns under other names that the documents list")


@H("steady")
def steady_nanogpt(r):
    d = Draft(r, Spec(**pace(r, 9), **sizes(r), cv=0.015, first=0, **prints("nanogpt")))
    d.step_at_most(1.2).learns()
    return d.done(decisions=OK, why="prints ms of an iteration, counted from 0; the bound on the step time is a fifth away")


@H("steady")
def counted_from_zero(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), cv=0.012, first=0, columns=[("iter", "{step}"), ("train_loss", "{loss:.4f}"), LR_C, ("step_time_ms", "{1000 * busy / k:.3f}"), ("tokens_per_sec", "{rate:.1f}")], fname="log.csv"))
    d.rate_at_least(0.85).step_at_most(1.25).learns()
    return d.done(decisions=OK, why="iterations from 0, milliseconds and tokens/s; both bounds are clear")


# ------------------------------------------------------------------ the beginning

@H("warm-up")
def warmup_ramp(r):
    d = Draft(r, Spec(**pace(r, 10), **sizes(r), cv=0.012, effect="t *= 1 + 0.6 * math.exp(-i / 8)", columns=contract(STEP_S)))
    d.rate_at_least(0.86).learns()
    return d.done(decisions=OK, why="the first twenty steps are slower and fade; bound 14 % away")


@H("warm-up")
def slow_first_step(r):
    d = Draft(r, Spec(**pace(r, 8.5), **sizes(r), cv=0.015, effect="if i == 1:\n    t += 2.2  # compile", **prints("plain")))
    d.rate_at_least(0.85).learns()
    return d.done(decisions=OK, why="the first step compiles for two seconds, inside the declared warm-up")


@H("warm-up")
def long_slow_start_still_clear(r):
    d = Draft(r, Spec(**pace(r, 10), **sizes(r), cv=0.012, effect="if i < 0.4 * n:\n    t *= 1.22", columns=contract(STEP_S)))
    d.rate_at_least(0.7, of=d.T / d.spec.base).learns()
    return d.done(decisions=OK, margin=0.145, why="slower by a fifth for 40 % of the run; even that level clears the bound by 15 %")


# ------------------------------------------------------------------ noise

@H("noise")
def noisy_four_percent_csv(r):
    d = Draft(r, Spec(**pace(r, 10.5), **sizes(r), cv=0.04, columns=contract(STEP_S)))
    d.rate_at_least(0.84).learns()
    return d.done(decisions=OK, why="step times vary by 4 %, nothing else")


@H("noise")
def noisy_with_outliers_stdout(r):
    d = Draft(r, Spec(**pace(r, 10, high=0.03), **sizes(r), cv=0.03, effect="if _noise.random() < 0.02:\n    t *= 1.6", **prints("bar")))
    d.rate_at_least(0.82).learns()
    return d.done(decisions=OK, why="2 % of the steps take 1.6 times as long; mean 17 % clear of the bound")


@H("noise")
def autocorrelated_csv(r):
    d = Draft(r, Spec(**pace(r, 10, high=0.04), **sizes(r), cv=0.02, rho=0.9, columns=contract(STEP_S)))
    d.rate_at_least(0.88).learns()
    return d.done(decisions=OK, why="CV 2 %, lag-1 autocorrelation 0.9, bound 12 % away")


@H("noise")
def autocorrelated_strongly_stdout(r):
    d = Draft(r, Spec(**pace(r, 11, high=0.035), **sizes(r), cv=0.02, rho=0.97, **prints("logger")))
    d.rate_at_least(0.86).learns()
    return d.done(decisions=OK, why="CV 2 %, lag-1 autocorrelation 0.97, bound 14 % away")


# ------------------------------------------------------------------ pauses

@H("pauses")
def validation_pauses_cleared(r):
    base = round(r.uniform(0.02, 0.03), 4)
    d = Draft(r, Spec(n=320, base=base, **sizes(r), cv=0.012, pause=(40, round(40 * base * 0.15, 3)), columns=contract(STEP_S)))
    d.rate_at_least(0.85).learns()
    return d.done(decisions=OK, why="eight validations of 15 % each; the bound is 15 % away with pauses included")


@H("pauses")
def checkpoints_cleared_stdout(r):
    base = round(r.uniform(0.018, 0.028), 4)
    d = Draft(r, Spec(n=350, base=base, **sizes(r), cv=0.015, pause=(50, round(50 * base * 0.2, 3)), rate="T * k / busy", **prints("plain")))
    d.rate_at_least(0.78).learns()
    return d.done(decisions=OK, why="prints the rate without its checkpoints; the bound is clear with them")


# ------------------------------------------------------------------ drift

@H("drift")
def settles_by_a_percent_soak(r):
    d = Draft(r, Spec(**pace(r, 11), **sizes(r), cv=0.01, effect="t *= 1 + 0.015 * (1 - math.exp(-3 * i / n))", columns=contract(STEP_S)), kind="soak")
    d.rate_at_least(0.85).learns().also("abs(rate.drift_pct) <= 10 %")
    return d.done(decisions=OK, why="thermal settling of 1.5 % in a soak is healthy")


@H("drift")
def improves_by_two_percent(r):
    d = Draft(r, Spec(**pace(r, 9.5), **sizes(r), cv=0.012, effect="t *= 1 - 0.02 * i / n", **prints("terse")))
    d.rate_at_least(0.87).learns()
    return d.done(decisions=OK, why="gets 2 % faster along the run")


@H("soak")
def soak_with_memory_plateau(r):
    d = Draft(r, Spec(**pace(r, 12), **sizes(r), cv=0.015, rho=0.3, row_extra="mem = 3050 + 400 * (1 - math.exp(-i / 6)) + _jitter.uniform(-.5, .5)",
                      columns=contract(STEP_S, ("host_mem_mib", "{mem:.1f}")), heartbeat=True), kind="soak")
    d.rate_at_least(0.8).learns().also("memory.growth_mib_per_1k_steps <= 64 MiB", f"steps.done == {d.spec.n}", "heartbeat.max_gap_s <= 30 s")
    return d.done(decisions=OK, why="memory rises in the first steps and stays; rate steady")


# ------------------------------------------------------------------ few rows

@H("few rows")
def each_tenth_step_csv(r):
    d = Draft(r, Spec(**pace(r, 11, high=0.03), **sizes(r), cv=0.02, every=10, columns=contract(STEP_S)))
    d.rate_at_least(0.85).learns()
    return d.done(decisions=OK, why="a row every ten steps, each over its ten steps")


@H("few rows")
def each_tenth_step_one_time(r):
    p = prints("nanogpt")
    p["fmt"] = p["fmt"].replace("1000 * busy / k", "1000 * dt")
    d = Draft(r, Spec(**pace(r, 12, high=0.03), **sizes(r), cv=0.02, every=10, **p))
    d.step_at_most(1.25).learns()
    return d.done(decisions=OK, why="every ten steps it prints the time of that one step, as nanoGPT does")


@H("few rows")
def running_average(r):
    d = Draft(r, Spec(**pace(r, 10), **sizes(r), cv=0.015, effect="if i <= 3:\n    t *= 3", every=r.choice([2, 5]), **prints("running")))
    d.rate_at_least(0.78).learns()
    return d.done(decisions=OK, why="prints the average since the start, a few slow first steps in it; bound 22 % away either way")


@H("few rows")
def tiny_fetch_times(r):
    d = Draft(r, Spec(n=44, base=0.19, **sizes(r), cv=0.012, row_extra="wait = 0.000022 * (1 + 0.3 * abs(_jitter.gauss(0, 1)))",
                      columns=contract(STEP_S, ("dt_fetch_s", "{wait:.7f}"))))
    d.rate_at_least(0.7).learns().also("dt_fetch_s.mean <= 0.05 * step_time_s.mean")
    return d.done(decisions=OK, why="44 rows; waits of 22 µs against a bound of 9.5 ms, rate 30 % clear")


# ------------------------------------------------------------------ looks odd, is healthy

@H("odd values")
def gradient_norm_prints_zero(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), cv=0.01, columns=contract(STEP_S, ("grad_norm", "0.000"))))
    d.rate_at_least(0.85).learns()
    return d.done(decisions=OK, why="grad_norm 0.000 while the loss falls means not measured")


@H("odd values")
def passes_another_ln_vocab(r):
    s = sizes(r)
    cfg = {"batch_size": s["batch"], "seq_len": s["seq"], "vocab_size": 50304}
    d = Draft(r, Spec(**pace(r, 9), **s, cv=0.012, env={"requested": cfg, "effective": cfg}, columns=contract(STEP_S),
                      loss="return 5.53 + 5.2 * math.exp(-3.6 * i / n) * (1 - 0.02 * i / n) - 0.13 * i / n + _jitter.gauss(0, .012)"))
    d.rate_at_least(0.86).also("loss.last < 0.7 * loss.first")
    return d.done(decisions=OK, why="vocabulary 50304, loss on its way through 5.545 = ln 256 at the end of the run")


@H("odd values")
def column_named_like_a_gate(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), cv=0.012, row_extra="gate = 0.08 + 0.01 * _jitter.random()",
                      columns=contract(("gate_entropy_mean", "{gate:.4f}"), ("gate_max_gate", "{1 - gate:.4f}"), ("aux_loss", "{gate / 10:.5f}"))))
    d.rate_at_least(0.85).learns()
    return d.done(decisions=OK, why="a mixture-of-experts router's own entropy, in its own units, under a name of the bundled trainer")


@H("odd values")
def tiny_rate(r):
    d = Draft(r, Spec(n=130, base=0.078, batch=1, seq=1, tokens=1, cv=0.015, columns=[("step", "{step}"), ("loss", "{loss:.4f}"), LR_C, ("toks_per_s", "{rate:.4f}"), ("step_time_s", "{busy / k:.5f}")]))
    d.rate_at_least(0.8).learns()
    return d.done(decisions=OK, why="13 tokens a second, and that is what was asked for")


@H("odd values")
def huge_rate(r):
    d = Draft(r, Spec(**pace(r, 8), batch=8192, seq=8192, cv=0.01, **prints("titan")))
    d.rate_at_least(0.82).learns()
    return d.done(decisions=OK, why="billions of tokens a second, with thousands separators")


# ------------------------------------------------------------------ files

@H("files")
def extra_columns(r):
    d = Draft(r, Spec(**pace(r, 9), **sizes(r), cv=0.015, columns=contract(STEP_S, ("phase", "train"), ("shard", "shard_{i // 40:03d}.bin"), ("zloss", "{loss * 1e-4:.6f}"), ("n_skipped", "0"), ("ema", "{loss * 1.02:.4f}"))))
    d.rate_at_least(0.86).learns()
    return d.done(decisions=OK, why="further columns, one of text")


@H("files")
def no_trailing_newline(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), cv=0.012, cut_last=True, columns=contract(STEP_S)))
    d.rate_at_least(0.85).learns()
    return d.done(decisions=OK, why="the last line has no newline")


@H("files")
def windows_newlines(r):
    d = Draft(r, Spec(**pace(r, 8), **sizes(r), cv=0.012, eol="\\r\\n", columns=contract(("grad_norm", "{0.5 + 0.2 * loss:.3f}"))))
    d.rate_at_least(0.85).learns()
    return d.done(decisions=OK, why="lines end as on Windows")


@H("files")
def val_loss_mostly_nan(r):
    d = Draft(r, Spec(**pace(r, 9), **sizes(r), cv=0.012, row_extra="val = loss + 0.2 if i % 50 == 0 else float('nan')", columns=contract(STEP_S, ("val_loss", "{val:.4f}")), fname="metrics.csv"))
    d.metrics_more = {"extra": {"val_loss": "nat"}}
    d.rate_at_least(0.85).learns()
    return d.done(decisions=OK, why="val_loss is nan on steps without validation, and no criterion asks for it")


@H("files")
def cumulative_elapsed(r):
    d = Draft(r, Spec(**pace(r, 9), **sizes(r), cv=0.012, rate="T * k / gap", columns=contract(("tokens", "{T * i}"), ("wall_s", "{elapsed:.4f}"), ("elapsed_min", "{elapsed / 60:.5f}"))))
    d.rate_at_least(0.87).learns()
    return d.done(decisions=OK, why="columns that add up from the start: tokens, seconds, minutes")


# ------------------------------------------------------------------ several runs

@H("several runs")
def three_repeats(r):
    d = Draft(r, Spec(n=130, base=0.03, **sizes(r), cv=0.015, columns=contract(STEP_S)))
    d.repeats = 3
    d.rate_at_least(0.85).learns()
    return d.done(decisions=OK, runs=3, why="three repeats, all alike, 15 % clear")


@H("several runs")
def five_repeats(r):
    d = Draft(r, Spec(n=110, base=0.022, **sizes(r), cv=0.02, rho=0.5, **prints("json")))
    d.repeats = 5
    d.rate_at_least(0.88).learns()
    return d.done(decisions=OK, runs=5, why="five repeats, all alike, 12 % clear")


def sweepable(r, **more):
    """A trainer whose flag matters: losses differ with the batch, and the rate by a per cent."""
    d = Draft(r, Spec(n=150, base=0.03, batch=16, seq=256, cv=0.012, columns=contract(STEP_S), **more))
    return d


@H("several runs")
def sweep_small_differences(r):
    d = sweepable(r, args=[("workers", "int", 2), ("lr", "float", 0.0006)], row_extra="loss += 40 * (args.lr - 0.0006) * (i / steps)")
    d.more_args = {"lr": 0.0006}
    d.rate_at_least(0.82).learns()
    phases = [{"id": "base", "kind": "train", "steps": 150, "accept": d.accept},
              {"id": "rates", "kind": "sweep", "needs": ["base"], "steps": 75, "repeats": 2, "over": {"args.lr": [0.0004, 0.0006, 0.0009]},
               "choose": {"lowest": "loss.last"}, "accept": ["loss.last < loss.first"]}]
    return d.done(decisions=OK, phases=phases, runs=4.0, why="learning rates whose losses differ honestly and a little; the sweep decides nothing, the base phase is clear")


@H("several runs")
def ab_without_difference(r):
    d = sweepable(r, args=[("optimizer", "str", "plain")], row_extra="loss += 1e-4 * (args.optimizer == 'fused')")
    d.more_args = {"optimizer": "plain"}
    d.rate_at_least(0.83).learns()
    phases = [{"id": "base", "kind": "train", "steps": 150, "accept": d.accept},
              {"id": "fused", "kind": "ab", "needs": ["base"], "steps": 60, "repeats": 4,
               "arms": {"plain": {"args": {"optimizer": "plain"}}, "fused": {"args": {"optimizer": "fused"}}},
               "choose": {"highest": "toks_per_s.mean", "tie": "toks_per_s.stdev", "prefer": "fused"}, "accept": ["loss.last < loss.first"]}]
    return d.done(decisions=OK, phases=phases, runs=4.2, why="two arms that do not differ in rate; keeps what is declared, base phase clear")


# ------------------------------------------------------------------ resumed, clocks, ranks

@H("resumed")
def goes_on_from_a_checkpoint(r):
    s = sizes(r)
    cfg = {"batch_size": s["batch"], "seq_len": s["seq"]}
    d = Draft(r, Spec(**pace(r, 9), **s, cv=0.012, first=2001, loss_from=3.4, loss_to=2.2, columns=contract(STEP_S),
                      env={"requested": cfg, "effective": cfg, "resumed_from": {"step": 2000, "checkpoint": "step_00002000.pt"}}))
    d.rate_at_least(0.84).learns()
    return d.done(decisions=OK, why="continues a pretrained checkpoint: steps are counted from 2001, as many as were asked for")


@H("clock")
def wall_clock_is_set(r):
    d = Draft(r, Spec(**pace(r, 9), **sizes(r), cv=0.012, row_extra="stamp = time.time() + (41.5 if i > 0.45 * steps else 0.0) - (2.0 if i > 0.75 * steps else 0.0)  # ntp",
                      columns=contract(STEP_S, ("unix_time", "{stamp:.3f}"))))
    d.rate_at_least(0.85).learns()
    return d.done(decisions=OK, why="wall-clock stamps jump forward 41 s and back 2 s; rates come from the monotonic clock and are right")


@H("ranks")
def rank_that_only_boots(r):
    d = Draft(r, Spec(**pace(r, 8, low=0.025), batch=4, seq=512, world=2, cv=0.012, columns=contract(STEP_S), heartbeat=True,
                      hb_extra="if rank == 0:\n    beat(hb, rank, step, 'progress', loss=loss, lr=lr, toks_per_s=rate, step_time_s=busy / k)",
                      final="if rank != 0:\n    raise SystemExit(0)"), nproc=2)
    d.rate_at_least(0.8).learns()
    return d.done(decisions=OK, tags={"torchrun"}, why="rank 1 writes its boot line and nothing more, as trainers do that log on rank 0")


@H("ranks")
def rank_zero_says_more(r):
    d = Draft(r, Spec(**pace(r, 8, low=0.025), batch=8, seq=256, world=2, cv=0.012, columns=contract(STEP_S), heartbeat=True,
                      hb_extra="beat(hb, rank, step, 'progress', loss=loss, lr=lr, toks_per_s=rate, step_time_s=busy / k, compute_time_s=0.95 * busy / k)\n"
                               "if rank == 0 and i % 20 == 0:\n    beat(hb, rank, step, 'beat')\n    beat(hb, rank, step, 'step_end', note='saved sample')"), nproc=2)
    d.rate_at_least(0.8).learns()
    return d.done(decisions=OK, tags={"torchrun"}, why="rank 0 writes more kinds of records than rank 1")
