"""The healthy: unusual, and yet fine."""

from functools import partial

from build import case

H = partial(case, "healthy")
RATE, WARM, OWN = "statistics.md: From rows to a number", "statistics.md: Warm-up and levels", "own-trainer.md: Trainers that many have"
TEXT, NOT_SEEN, CURVES = "own-trainer.md: Patterns", "validation.md: Statistics, And what it must not see", "findings.md: How sure the rules on curves are"
VERDICT, ANSWER, SWEEPS = "statistics.md: Verdicts", "findings.md: Answering a finding", "statistics.md: Sweeps and A/Bs"

# --- formats of frameworks, one plain run each
H("nanogpt_compile_pause", "nanoGPT's lines; the first iteration compiles for two seconds.", WARM, form="nanogpt", first=0, dt="B * (1 + 0.02 * clk.gauss(0, 1)) + (2.0 if k == 1 else 0)", setup="say('compiling the model... (takes a ~minute)')")
H("hf_dicts_without_steps", "The Hugging Face Trainer's dictionaries, one a step and no number on them.", TEXT + " ({row})", form="hf")
H("lightning_with_val_rows", "Lightning's metrics.csv, with rows that hold only a validation loss.", OWN + " (Lightning)", form="lightning", first=0, metrics={"extra": {"val_loss": "nat"}}, accept=["val_loss.last <= 20 nat", "loss.last < loss.first"], emit="table.write(f'{k // SPE},{s},{loss:.5f},{tps:.2f},\\n')\nif k % 30 == 0:\n    table.write(f'{k // SPE},{s},,,{loss + 0.1:.5f}\\n')", lr="3e-4")
H("megatron_resumed_at_5000", "Megatron's lines of a run that goes on from a checkpoint: iterations begin at 5001.", "trainer-contract.md: Starting (--resume goes on from the newest checkpoint)", form="megatron", first=5001, setup="say('  successfully loaded checkpoint from checkpoints/ [ t 0, p 0 ] at iteration 5000')", loss="2.31 + 0.4 * k ** -0.4 + 0.008 * rng.gauss(0, 1)")
H("deepspeed_lines", "DeepSpeed's printed lines with time per iteration.", OWN + " (DeepSpeed)", form="deepspeed")
H("torchtitan_colors_on_stderr", "torchtitan: colors, standard error, thousands separators, the rate of one GPU.", OWN + " (torchtitan)", form="titan")
H("speedrun_clock_stands_still", "A speed run whose clock stands still during validation; the rate with the pauses clears its bound.", OWN + " (modded-nanogpt)", form="modded", pause="0.35 if k % 20 == 0 else 0.0", talk="say(f'step:{s}/{N} val_loss:{loss + 0.05:.4f} train_time:{trained * 1e3:.0f}ms step_avg:0.00ms')", bound=0.75, b=0.04, n=150)
H("keras_bar_with_carriage_returns", "Keras' bar: carriage returns, and steps that begin again in each epoch.", OWN + " (Keras)", form="keras", spe=40, n=160, b=0.05)
H("llmc_running_average", "llm.c's lines, with a running average that is left out.", OWN + " (llm.c)", form="llmc")
H("fairseq_json_behind_a_prefix", "fairseq's JSON of strings behind a date and pipes.", TEXT, form="fairseq")
H("tqdm_with_evaluation_bars", "A bar with carriage returns, and bars of an evaluation that count by themselves.", TEXT + " ({steps_total})", form="tqdm", pause="0.12 if k % 50 == 0 else 0.0", talk="say(''.join(f'\\rEvaluating: {i}/8 [00:0{i // 3}<00:01, 9.1it/s]' for i in range(1, 9)))", bound=0.75)
H("japanese_loguru", "loguru's prefix, Japanese text, rates such as 12.3k.", TEXT, form="loguru")
H("gan_with_epochs", "A GAN's lines: epochs, batches from 0, the discriminator's loss.", TEXT + " ({epoch})", form="gan", spe=50, n=150, b=0.05)
H("torchtune_per_gpu", "torchtune's lines of a fine-tuning run, the rate per GPU.", OWN, form="torchtune", setup="say('INFO:torchtune.utils:Model is initialized with precision torch.bfloat16.')")
H("nemo_from_zero", "NeMo-like lines whose steps count from 0.", OWN + " (steps may be counted from 0)", form="nemo", first=0)
H("detectron_last_time", "detectron2's lines; the time of the last step is taken, not the median.", TEXT, form="d2")
H("speech_frames", "Speech recognition: frames per second with thousands commas.", TEXT + " (1,234.5)", form="frames")
H("headerless_table", "A CSV of four columns without a header.", "own-trainer.md (a headerless one is read too)", form="bare")
H("names_and_units_of_its_own", "Columns global_step, train_loss, step_time_ms and ktoks_per_s.", OWN + " (names and units need not be the contract's)", form="wide")
H("unix_milliseconds_and_tokens_seen", "JSON lines with Unix milliseconds and the tokens since the start.", TEXT + " (timestamp, tokens_seen)", form="unixms")
H("coarse_clock", "Only a running time in whole seconds is printed.", TEXT + " (rows are put together where the clock is coarse)", form="hms", bound=0.6, n=240, b=0.05)
H("mean_of_the_whole_run", "Only the mean time of a step over the run so far is printed.", TEXT + " (mean_step_time_s)", form="mean", bound=0.7)
H("intervals_in_greek", "Lines in Greek letters with the time since the line before.", TEXT + " (interval_s)", form="interval")
H("tabs_and_no_words", "Four columns between tabs on standard output.", TEXT, form="tsv")

# --- curves
H("policy_gradient_negative", "Reinforcement learning: the loss is negative and small, the return rises.", NOT_SEEN, form="rl", loss="-0.02 - 0.05 * (1 - math.exp(-k / 50)) + 0.006 * rng.gauss(0, 1)", accept=["loss.max <= 1"])
H("diffusion_near_zero", "Diffusion: a loss near 0.03 with noise of a third of it.", CURVES + " (near zero, noise 30 %)", form="json", loss="abs(0.03 * (1 + 3 * k ** -0.7) * (1 + 0.3 * rng.gauss(0, 1))) + 1e-4", accept=["loss.max <= 1"])
H("norms_print_as_zero", "Norms are printed as 0.000, while the loss falls.", NOT_SEEN + " (gradient norm 0.000)", form="fairseq", norm="2e-5 * (1 + 0.1 * rng.gauss(0, 1))")
H("contrastive_plateau", "A contrastive loss that stays at ln 512 for a third of the run, and then falls.", NOT_SEEN, form="frames", loss="(6.238 if k < N / 3 else 2.6 + 3.638 * math.exp(-(k - N / 3) / 25)) + 0.01 * rng.gauss(0, 1)")
H("spike_that_recovers", "The loss doubles at step 90, and is back twelve steps later.", CURVES + " (spike)", form="ups", loss="1.9 + 2 * k ** -0.4 + 0.015 * rng.gauss(0, 1) + (2.2 * math.exp(-(k - 90) / 3) if k >= 90 else 0)", n=170, b=0.05)
H("curriculum_answered", "Longer sequences from half-way on raise the loss by two thirds, and the runbook says that this is meant.", ANSWER, form="csv", loss="(1.6 + 2.5 * k ** -0.4 if k < N / 2 else 2.9 + 0.8 * (k - N / 2 + 1) ** -0.4) + 0.01 * rng.gauss(0, 1)", phase={"accept_findings": ["diverging"]}, accept=["loss.max <= 8 nat"])
H("curriculum_small_step", "Harder data from half-way on raise the loss by a tenth.", CURVES + " (a quarter of its magnitude)", form="ktoks", loss="(2.0 + 2.2 * k ** -0.5) * (1.08 if k > N / 2 else 1) + 0.01 * rng.gauss(0, 1)")
H("hinge_of_zeros_answered", "A hinge loss that is 0 from the start in most rows, as the runbook says.", ANSWER, form="torchtune", loss="max(0.0, 0.3 * rng.gauss(-0.5, 1))", phase={"accept_findings": ["zero-loss"]}, accept=["loss.max <= 5"])
H("distillation_to_thousandths", "A loss that falls from 0.4 to 0.002.", CURVES, form="json", loss="(0.4 * math.exp(-k / 25) + 0.002) * (1 + 0.04 * rng.gauss(0, 1))", accept=["loss.last <= 0.1"])
H("adversarial_equilibrium", "The adversarial loss that is read moves around 1.38 without falling, as it should.", CURVES + " (plateau)", form="gan", spe=45, n=135, b=0.055, loss="1.386 + 0.06 * rng.gauss(0, 1)", accept=["loss.max <= 3", "loss.min >= 0.5"])

# --- time
H("logs_every_fifth_step", "Rows come every five steps, with means since the row before.", OWN + " (a row every so many steps)", form="megatron", every=5, n=220, b=0.045)
H("table_every_fourth_step", "A table with a row for four steps.", OWN + " (a row every so many steps)", form="csv", every=4, n=240, b=0.04)
H("declared_validation_pauses", "A validation of 0.4 s every 25 steps, declared in the runbook; the rate with it clears the bound.", RATE + " (pause_every)", form="csv", pause="0.4 if k % 25 == 0 else 0.0", phase={"pause_every": 25}, cols=[("step_time_s", "f'{took:.5f}'")], bound=0.78, n=160, b=0.045)
H("checkpoints_that_cost_little", "Checkpoints of 0.3 s every 30 steps; rate and bound include them.", RATE, form="torchtune", pause="0.3 if k % 30 == 0 else 0.0", talk="say(f'INFO: Saving checkpoint of step {s} to ckpt-{s:06d}')", bound=0.75, n=180, b=0.04)
H("allocator_warms_up", "The first fifth of the run is up to half as slow again, and fades.", WARM, form="csv", dt="B * (1 + 0.5 * math.exp(-k / 8) + 0.015 * clk.gauss(0, 1))", bound=0.8)
H("heavy_tails", "Step times with the heavy tails of Student's t.", "statistics.md: Calibration (heavy tails)", form="nemo", dt="B * (1 + 0.02 * max(-4, min(12, clk.gauss(0, 1) / math.sqrt(sum(clk.gauss(0, 1) ** 2 for _ in range(3)) / 3))))")
H("slow_waves", "Step times that wander slowly by a few per cent.", "statistics.md: Calibration (autocorrelation)", form="interval", dt="B * (1 + 0.025 * math.sin(k / 9) + 0.015 * math.sin(k / 23 + 1) + 0.01 * clk.gauss(0, 1))")
H("clock_set_back", "The wall clock is set back by an hour in the middle; the log's dates go back.", "findings.md: All findings (clock-jump)", form="logging", before="if k == N // 2:\n    SHIFT = -3600.0", bound=0.7)
H("cards_settle_by_two_percent", "A soak that settles by one and a half per cent as the cards warm up.", "validation.md: Findings (1-2 % of thermal settling is healthy)", form="csv", dt="B * (1.015 - 0.015 * math.exp(-k / 60) + 0.008 * clk.gauss(0, 1))", phase={"kind": "soak", "id": "soak"}, n=260, b=0.045)
H("bound_five_percent_away", "A steady run whose bound is five per cent away.", VERDICT, "near", form="json", bound=0.95, dt="B * (1 + 0.01 * clk.gauss(0, 1))")
H("step_time_six_percent_away", "A steady run whose bound on the step time is six per cent away.", VERDICT, "near", form="nemo", bound=0.94, dt="B * (1 + 0.01 * clk.gauss(0, 1))")

# --- processes, files, exits
H("handled_traceback", "A read fails and is tried again: a traceback and warnings in the log, and all is well.", VERDICT, form="fairseq", before="if k in (40, 41):\n    import traceback\n    try:\n        raise ConnectionResetError('104, connection reset by peer: s3 read')\n    except OSError:\n        say(traceback.format_exc() + 'WARNING: read failed, attempt 2 of 5', file=sys.stderr)")
H("leaves_by_os_exit", "The process leaves by os._exit(0), as some do to skip slow destructors.", VERDICT, form="ktoks", end="sys.stdout.flush()\nos._exit(0)")
H("last_line_without_newline", "The table's last row has no end of line.", "trainer-contract.md (a last line may be cut short)", form="bare", end="table.close()\ntext = (OUT / 'log.csv').read_text()\n(OUT / 'log.csv').open('r+').truncate(len(text) - 1)")
H("loader_workers", "Two loader processes work beside the trainer and end with it.", VERDICT, form="mean", bound=0.7, setup="import subprocess\nworkers = [subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE) for _ in range(2)]", end="for worker in workers:\n    worker.stdin.close()\n    worker.wait()")
H("memory_rises_to_a_plateau", "Memory rises over the first forty steps and then stays.", "validation.md: Phases (memory plateau)", cols=[("host_mem_mib", "f'{2100 + 700 * (1 - math.exp(-k / 9)) + rng.gauss(0, 2):.1f}'")], accept=["memory.growth_mib_per_1k_steps <= 400 MiB", "host_mem_mib.max <= 4000 MiB"], n=200, b=0.042)
H("torchrun_two_ranks", "Two ranks under torchrun with heartbeats, one two per cent slower.", "own-trainer.md: With torchrun", ranks=2, nproc=2, work="B * (1.02 if r else 1.0)", n=150)
H("workers_without_launcher", "Three worker processes that the trainer starts itself, each with a heartbeat.", "own-trainer.md (a heartbeat per rank)", ranks=3, work="B", accept=["straggler.score >= 0.8", "loss.last < loss.first"], n=150)
H("real_data_in_time", "A data phase: the first batch after one and a half seconds of ten that are allowed.", "runbook-reference.md: kind data", ranks=1, first_batch="1.5", phase={"kind": "data", "id": "data", "first_batch": "10s", "smoke": []})
H("final_scalars_and_dtype", "A final accuracy in metrics.json, and the effective dtype, are asked for.", "runbook-reference.md: Criteria", metrics={"metrics": "metrics.json"}, env="{'world_size': 1, 'tokens_per_step': TOK, 'requested': {'dtype': 'bf16', 'attention': 'auto'}, 'effective': {'dtype': 'bf16', 'attention': 'flash'}}", end="(OUT / 'metrics.json').write_text(json.dumps({'status': 'done', 'eval_acc': 0.913, 'step': N, 'steps_requested': N}))", accept=["effective.dtype == 'bf16'", "metrics.eval_acc >= 0.8", "loss.last < loss.first"])
H("many_criteria", "Criteria on rate, step time, loss, norm and learning rate at once.", VERDICT, cols=[("grad_norm", "f'{norm:.4f}'"), ("step_time_s", "f'{took:.5f}'")], accept=["step_time_s.p95 <= 0.3 s", "grad_norm.max <= 50", "lr.max <= 0.1", "loss.last <= 0.9 * loss.first", {"expr": "loss.last <= 0.001", "required": False}])

# --- phases
H("bucket_sweep_same_losses", "A sweep over bucket sizes with one seed: the losses are equal by right.", CURVES + " (bucket sizes and repeats with one seed may be equal by right)", n=70, b=0.04, env="{'world_size': 1, 'tokens_per_step': TOK, 'requested': {'bucket_mb': int(os.environ['BUCKET_MB'])}, 'effective': {'bucket_mb': int(os.environ['BUCKET_MB'])}}", phase={"kind": "sweep", "id": "buckets", "over": {"env.BUCKET_MB": [25, 100]}, "repeats": 2, "choose": {"highest": "toks_per_s.mean"}})
H("learning_rate_sweep", "A sweep over two learning rates that both learn, each at its own pace.", SWEEPS, n=70, b=0.045, argv={"lr": "0.001"}, loss="1.5 + 3 * k ** -(0.2 + 150 * float(args['lr'])) + 0.01 * rng.gauss(0, 1)", lr="float(args['lr'])", phase={"kind": "sweep", "id": "lr", "over": {"args.lr": [0.0005, 0.001]}, "repeats": 2, "choose": {"lowest": "loss.last"}})
H("attention_ab", "An A/B of two kernels; the new one is a quarter faster, and both clear the bound.", SWEEPS, n=66, b=0.05, form="json", dt="B * (0.8 if os.environ.get('ATTN') == 'flash' else 1.0) * (1 + 0.01 * clk.gauss(0, 1))", loss="2 + 2 * k ** -0.4 + 0.01 * rng.gauss(0, 1) + (1e-4 if os.environ.get('ATTN') == 'flash' else 0)", phase={"kind": "ab", "id": "attention", "arms": {"math": {"env": {"ATTN": "math"}}, "flash": {"env": {"ATTN": "flash"}}}, "repeats": 2, "choose": {"highest": "toks_per_s.mean"}})
H("three_repeats", "The same run three times, each with its own seconds.", "statistics.md: Interval over runs", form="deepspeed", n=110, b=0.045, phase={"repeats": 3})
H("share_of_another_phase", "A soak must hold seven tenths of the baseline's rate.", "runbook-reference.md: Criteria", form="loguru", n=120, b=0.045, phases=["MAIN", {"id": "soak", "kind": "soak", "steps": 200, "needs": ["baseline"], "accept": ["toks_per_s.mean >= 0.7 * baseline.toks_per_s.mean"]}])
H("first_night_without_last_go", "An absolute bound, and a share of the last GO that is skipped the first night.", "writing-a-runbook.md: Criteria", form="rl", accept=[{"expr": "toks_per_s.mean >= 0.9 * last_go.toks_per_s.mean", "without_last_go": "skip"}])
H("links_tests_then_training", "A bandwidth figure from a program, a test, and then the training, which needs both.", "runbook-reference.md: Phases", form="hf", files={"busbw.py": "print('# Avg bus bandwidth    : 231.7')\n", "parity/test_sum.py": "def test_sum():\n    assert sum([1, 2]) == 3\n"}, phase={"needs": ["links", "parity"]}, phases=[{"id": "links", "kind": "command", "run": ["{python}", "busbw.py"], "stdout": r"Avg bus bandwidth +: (?P<busbw>[\d.]+)", "accept": ["metrics.busbw >= 180"]}, {"id": "parity", "kind": "pytest", "targets": ["parity"]}, "MAIN"])
H("look_then_decide", "A phase that is there to be looked at, declared so, before the one that decides.", "writing-a-runbook.md: What carries a GO (observe)", form="tsv", n=130, phases=[{"id": "look", "kind": "train", "steps": 60, "observe": True}, "MAIN"])
H("kernel_line_present", "Rank 0 must say that the fused kernel is in use, and does.", "runbook-reference.md: log_contains", form="nanogpt", setup="say('fused attention enabled: 12 layers')", phase={"log_contains": ["fused attention enabled"]})
