"""Cases of settings, learning and pace: what the figures of one or several runs show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validator.model.plan import RunSpec
from validator.selftest.case import Case, Expected, Group
from validator.selftest.damaged import edited
from validator.selftest.runbooks import ACCEPT, ALL_FILES, book, train
from validator.selftest.scene import Play, one, scene
from validator.selftest.sheet import Sheet, falling, scatter

__all__ = ["FIGURES"]

_LOW = ["toks_per_s.mean >= 1", "loss.last < loss.first"]
_BUCKET = "env.NSA_DDP_BUCKET_MB"


def by_phase(text: str, sheets: Mapping[str, Sheet]) -> Play:
    """Each phase's runs left what its sheet says."""
    return scene(text, lambda spec: sheets[spec.phase])


def sweep(sheets: Mapping[object, Sheet], *, over: str, **choose: Any) -> Play:
    """A sweep over one setting, four repeats; each repeat is of another seed."""
    phase = {
        "id": "sweep",
        "kind": "sweep",
        "steps": 120,
        "over": {over: list(sheets)},
        "repeats": 4,
        "accept": ["loss.last < loss.first"],
        "choose": {"highest": "toks_per_s.mean", **choose},
    }

    def sheet_of(spec: RunSpec) -> Sheet:
        own = sheets[spec.settings[over]]
        level = sum(own.rates) / len(own.rates)
        off = (1.0, 1.002, 0.998, 1.001)[spec.repeat - 1]
        return Sheet(
            rates=scatter(level * off, seed=spec.repeat + 7 * list(sheets).index(spec.settings[over])),
            config=own.config,
            facts=own.facts,
        )

    return scene(book(phase), sheet_of)


def _case(
    name: str, title: str, group: Group, expect: Expected, sheet: Sheet | Play, *codes: str, text: str | None = None
) -> Case:
    play = one(sheet, text) if isinstance(sheet, Sheet) else sheet
    return Case(name, title, group, expect, play, codes)


def _asks(accept: list[str] | None = None, args: Mapping[str, Any] | None = None) -> str:
    """The baseline alone, with further arguments asked for."""
    return book(train(accept=accept or list(ACCEPT)), args=args)


_THREE_LENGTHS = book(
    *(train(f"s{n}", args={"seq-len": n}, nproc=1, accept=_LOW) for n in (512, 1024, 2048)), metrics=ALL_FILES
)
_LENGTHS = {
    f"s{n}": Sheet(rates=scatter(rate), config={"seq_len": n}) for n, rate in ((512, 260.0), (1024, 66.0), (2048, 17.0))
}
_NO_ACCOUNT = book(
    *(train(f"s{n}", args={"seq-len": n, "batch-size": 1}, nproc=1, accept=_LOW) for n in (1024, 2048)),
    metrics={"csv": "training.csv"},
)
_SCALING = book(train(nproc=2, accept=_LOW), train("single", nproc=1, accept=_LOW, scaling_against="baseline"))
_TWO_CONFIGS = book(train("production", accept=_LOW, args={"accum": 2}), train("custom", accept=_LOW))

_ONE_FAILED = """\
<testsuite>
  <testcase name="test_causality"/>
  <testcase name="test_selection_v2_equivalence[gaps]"><failure message="differs"/></testcase>
</testsuite>
"""

_GAVE_UP = """\
W1121 20:57:19.645000 5148 torch/_dynamo/convert_frame.py:1994] [28/8] torch._dynamo hit config.recompile_limit (8)
W1121 20:57:19.645000 5148 torch/_dynamo/convert_frame.py:1994] [28/8]    function: 'forward' (model.py:80)
"""

_RATE = ["toks_per_s.mean >= 1000"]

_SETTINGS = (
    _case(
        "account-without-config",
        "the trainer does not tell what it ran",
        *("settings", "GO", Sheet(tell=False), "config-unknown"),
    ),
    _case(
        "same-rate-at-twice-the-length",
        "847 tokens/s at 1,024 and at 2,048: the length never reached the model",
        "settings",
        "INCONCLUSIVE",
        by_phase(
            _NO_ACCOUNT,
            {
                n: Sheet(rates=scatter(847.0, seed=i), config={"seq_len": 1024})
                for i, n in enumerate(("s1024", "s2048"))
            },
        ),
        "config-ignored",
    ),
    _case(
        "compression-of-nothing",
        "bf16 compression of gradients that are bf16 already",
        "settings",
        "GO",
        Sheet(config={"ddp_compress": "bf16"}, facts={"weight_dtype": "bfloat16"}),
        "noop-compression",
        text=_asks(args={"ddp-compress": "bf16"}),
    ),
    _case(
        "compiler-that-gave-up",
        "torch.compile met its limit of variants and runs the model uncompiled",
        *("settings", "GO", Sheet(stderr=_GAVE_UP), "uncompiled"),
    ),
    _case(
        "warm-up-longer-than-the-run",
        "2,000 steps of warm-up in a run of 120",
        *("settings", "GO", Sheet(config={"warmup_steps": 2000}), "warmup-exceeds-run"),
    ),
    _case(
        "sequential-prefill",
        "a Python loop over 2,048 positions",
        *("settings", "GO", Sheet(config={"prefill": "sequential"}), "host-bound"),
    ),
    _case(
        "sweep-of-one-bucket",
        "0.97 MiB of gradients fit the smallest bucket that is tried",
        "settings",
        "GO",
        sweep(
            {mb: Sheet(config={"ddp_bucket_mb": mb}, facts={"grad_bytes": 1_017_118}) for mb in (25, 50)},
            over=_BUCKET,
        ),
        "vacuous-sweep",
    ),
    _case(
        "sweep-that-never-arrived",
        "every arm ran with the same value",
        "settings",
        "GO",
        sweep({mb: Sheet(config={"ddp_bucket_mb": 25}) for mb in (25, 50)}, over=_BUCKET),
        "vacuous-sweep",
    ),
    _case(
        "one-setting-to-blame",
        "23 tokens/s against 847, and one setting differs",
        "settings",
        "GO",
        by_phase(
            _TWO_CONFIGS,
            {"production": Sheet(rates=scatter(23.0), config={"accum": 2}), "custom": Sheet(rates=scatter(847.0))},
        ),
        "setting-to-blame",
    ),
    _case(
        "silent-audit",
        "an audit of attention backends that reported nothing",
        "settings",
        "GO",
        one(Sheet(), book(train(env={"NSA_SDPA_AUDIT": 1}))),
        "silent-audit",
    ),
    _case(
        "selection-mismatch",
        "parity of the two selections fails on one pattern",
        "settings",
        "NO_GO",
        one(
            Sheet(
                rc=1,
                files={"junit.xml": _ONE_FAILED},
            ),
            book({"id": "sanity", "kind": "pytest", "targets": ["nsa.parity"]}),
        ),
        "selection-mismatch",
    ),
)

_LEARNING = (
    _case(
        "loss-of-guessing",
        "the loss stays at ln 256 = 5.545",
        "learning",
        "NO_GO",
        Sheet(losses=[5.548 - 0.001 * (i % 3) for i in range(120)], config={"vocab_size": 256}),
        "random-data-floor",
        text=_asks(["loss.last < 0.9 * loss.first"]),
    ),
    _case(
        "dead-parameter",
        "a gate never gets a gradient",
        *("learning", "GO", Sheet(facts={"dead_parameters": ["layers.3.gate.weight"]}), "dead-parameter"),
    ),
    _case(
        "fused-optimizer-unstable",
        "594, 656, then 177 tokens/s with the fused optimizer",
        "learning",
        "GO",
        Sheet(
            rates=[*scatter(594.0, 50), *scatter(656.0, 40, seed=2), *scatter(177.0, 30, seed=3)],
            config={"opt_fused": "on"},
        ),
        "fused-unstable",
        "no-steady-state",
        text=_asks(_LOW),
    ),
)

_CURVES = (
    _case(
        "loss-that-diverges",
        "the loss falls to 4.2 and ends at 10.3, no NaN anywhere",
        *("learning", "INCONCLUSIVE", Sheet(losses=[*falling(80, last=4.2), *(4.2 + 6.1 * i / 39 for i in range(40))])),
        "diverging",
        text=_asks(_RATE),
    ),
    _case(
        "loss-that-becomes-zero",
        "a logger that leaves out NaN prints 0.0 from step 81 on",
        *("learning", "INCONCLUSIVE", Sheet(losses=[*falling(80), *[0.0] * 40])),
        "zero-loss",
    ),
    _case(
        "zero-loss-that-is-meant",
        "the runbook accepts a loss of 0",
        *("learning", "GO", Sheet(losses=[*falling(80), *[0.0] * 40])),
        "zero-loss",
        text=book(train(accept_findings=["zero-loss"])),
    ),
    _case(
        "norm-that-is-not-measured",
        "the gradient norm is printed as 0.000 while the loss falls",
        *("learning", "GO", Sheet(columns={"grad_norm": [0.0] * 120})),
        "zero-grad",
    ),
    _case(
        "batches-that-come-again",
        "the same eight losses to the end",
        *("learning", "GO", Sheet(losses=[*falling(40), *([6.9, 7.1, 6.8, 7.3, 7.0, 7.2, 6.7, 7.4] * 10)])),
        "repeated-data",
    ),
    _case(
        "sweep-of-a-learning-rate-that-is-ignored",
        "two learning rates, by the trainer's own account, and one curve",
        *("learning", "INCONCLUSIVE", sweep({lr: Sheet(config={"lr": lr}) for lr in (1e-4, 2e-4)}, over="args.lr")),
        "vacuous-sweep",
    ),
)

_PACE = (
    _case(
        "pause-at-every-seventh-step",
        "half of a step's time is lost at every seventh step",
        *("pace", "GO", Sheet(rates=[rate / (1.5 if i % 7 == 6 else 1) for i, rate in enumerate(scatter(40_000.0))])),
        "periodic-stall",
    ),
    _case(
        "rate-that-steps-down",
        "a twelfth of the rate is lost half-way",
        *("pace", "GO", Sheet(rates=[*scatter(40_000.0, 60), *scatter(37_000.0, 60, seed=2)])),
        "rate-shift",
        text=_asks(["loss.last < loss.first"]),
    ),
    _case(
        "rank-that-only-boots",
        "rank 1 writes `boot` and no step",
        *("pace", "GO", Sheet(damage=edited("heartbeat_rank1.jsonl", lambda lines: [lines[0], b""]))),
        "not-judged",
    ),
    _case(
        "never-steady",
        "the rate rises from 229 to 696 tokens/s to the end",
        "pace",
        "GO",
        Sheet(rates=[229 + 467 * i / 119 for i in range(120)]),
        "no-steady-state",
        text=_asks(_LOW),
    ),
    _case(
        "impossible-scaling",
        "each process is 1.27 times as fast in a pair as alone",
        "pace",
        "INCONCLUSIVE",
        by_phase(_SCALING, {"baseline": Sheet(rates=scatter(847.0)), "single": Sheet(rates=scatter(334.0))}),
        "impossible-scaling",
    ),
    _case(
        "superlinear-in-length",
        "260 tokens/s at 512, 17 at 2,048",
        *("pace", "GO", by_phase(_THREE_LENGTHS, _LENGTHS), "superlinear-in-seq"),
    ),
    _case(
        "arms-that-do-not-differ",
        "two values whose means differ by less than the runs do",
        "pace",
        "GO",
        sweep(
            {
                mb: Sheet(rates=scatter(rate), config={"ddp_bucket_mb": mb})
                for mb, rate in ((25, 40_000.0), (50, 40_020.0))
            },
            over=_BUCKET,
        ),
        "not-significant",
    ),
    _case(
        "promise-of-an-end",
        "the log promises 73 h where step time × steps are 1,458 h",
        "pace",
        "GO",
        Sheet(rates=scatter(4096 / 105), stdout="ETA: ~73 h for 50,000 steps\n"),
        "eta-wrong",
        text=_asks(_LOW),
    ),
    _case(
        "rate-of-one-rank",
        "the rate is per rank where the global one is meant",
        *("pace", "INCONCLUSIVE", Sheet(facts={"tokens_per_step": 8192}), "unit-mismatch"),
    ),
    _case(
        "slow-not-hung",
        "105 s a step, logged every 20: stopped as hung, and only slow",
        "pace",
        "NO_GO",
        Sheet(
            rates=[4096 / 105] * 3,
            steps=(1, 20, 40),
            rc=-15,
            reason="timeout",
            detail="was still running at step 40 of 120 after its timeout of 1 min",
            without=("metrics.json",),
        ),
        "slow-not-hung",
        "over-budget",
        text=_asks(_LOW),
    ),
    _case(
        "slow-but-not-for-its-links",
        "157 MB of gradients in a step of 105 s are no reason",
        "pace",
        "NO_GO",
        Sheet(rates=scatter(39.0), facts={"grad_bytes": 157_000_000}),
        "not-comm-bound",
    ),
)

FIGURES: tuple[Case, ...] = (*_SETTINGS, *_LEARNING, *_CURVES, *_PACE)
