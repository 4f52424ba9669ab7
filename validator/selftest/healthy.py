"""Runs with nothing wrong, none of which may be accused of anything."""

from __future__ import annotations

from typing import Any

from validator.model.plan import RunSpec
from validator.model.settings import flat_name
from validator.selftest.case import Case
from validator.selftest.figures import by_phase, sweep
from validator.selftest.live import run_book, tests
from validator.selftest.machinery import sampled
from validator.selftest.runbooks import book, train
from validator.selftest.scene import Play, one, scene
from validator.selftest.sheet import Sheet, falling, scatter

__all__ = ["HEALTHY"]

_LOW = ["toks_per_s.mean >= 1", "loss.last < loss.first"]


def _case(name: str, title: str, play: Play | Sheet, **more: Any) -> Case:
    return Case(f"healthy-{name}", title, "healthy", "GO", one(play) if isinstance(play, Sheet) else play, **more)


def _live(*, nproc: int = 0, phases: tuple[Any, ...] = (), **args: Any) -> Play:
    return run_book(book(*phases, nproc=nproc, args={key.replace("_", "-"): value for key, value in args.items()}))


def _by_length(spec: RunSpec) -> Sheet:
    length = int({flat_name(key): value for key, value in spec.requested.items()}["seq_len"])
    return Sheet(rates=scatter(900.0 * (512 / length) ** 0.1), config={"seq_len": length})


_SPIKE = [loss * (2.0 if 90 <= i < 93 else 1.0) for i, loss in enumerate(falling())]
_SMALL = [loss * x for loss, x in zip(falling(first=0.5, last=0.01), scatter(1.0, share=0.3, seed=5), strict=True)]
_NOISE = scatter(1.0, share=0.015, seed=9)
_WARM = [*(20_000.0 * (1 + i / 8) for i in range(8)), *scatter(40_000.0, 112)]
_GATES = {"gate_entropy_mean": scatter(0.8), "gate_max_gate": scatter(0.5), "gate_collapse_frac": [0.1] * 120}
_SAW = {"host_mem_mib": [4000.0 + 40.0 * (i % 8) for i in range(120)]}
_PLATEAU = {"gpu_mem_reserved_mib": [49_000.0 - 9_000.0 * 0.8**i for i in range(120)]}
_CHATTER = "".join(f"[{i}] step {i} of ???? {{eta}} 50% faster x \x1b[2K\r {i:x}\n" for i in range(3000))
_AUDIT = '{"schema_version": 1, "summary": ["cmp, sel and win run the Triton kernels"]}'
_PASSING = "def test_parity():\n    assert 1 + 1 == 2\n"
_SCALING = book(train(nproc=2, accept=_LOW), train("single", nproc=1, accept=_LOW, scaling_against="baseline"))

HEALTHY: tuple[Case, ...] = (
    _case("process", "one process, with real processes", _live()),
    _case("pair", "two ranks under torchrun", _live(nproc=2), torch=True, about_s=12),
    _case("sparse-log", "a row every five steps", _live(log_every=5, phases=(train(steps=300),))),
    _case("tests", "tests that pass", tests(_PASSING)),
    _case(
        "several-phases",
        "a command, a baseline and a soak",
        _live(phases=({"id": "words", "kind": "command", "run": "echo ready"}, train(), train("soak", kind="soak"))),
        about_s=6,
    ),
    _case("slow-start", "the first step takes two seconds", _live(pace=0.01, at=1, fault="slow-start"), about_s=6),
    _case("run", "two ranks", Sheet()),
    _case("eight-ranks", "eight ranks", one(Sheet(), book(nproc=8))),
    _case("warm-up", "the rate rises for eight steps, then holds", Sheet(rates=_WARM)),
    _case("noise", "a rate that scatters by 1.5 %", Sheet(rates=[40_000.0 * x for x in _NOISE])),
    _case("spike", "a loss that doubles at step 90 and recovers", Sheet(losses=_SPIKE)),
    _case("small-loss", "a loss near zero that scatters by a third", Sheet(losses=_SMALL)),
    _case("settling", "1.5 % slower once it is warm", Sheet(rates=[*scatter(40_600.0, 40), *scatter(40_000.0, 80)])),
    _case("gates", "gates that use all branches", Sheet(columns=_GATES)),
    _case("memory-plateau", "memory that levels off below the GPU's size", Sheet(columns=_PLATEAU)),
    _case("memory-saw", "host memory that goes up and down", Sheet(columns=_SAW)),
    _case("resumed", "another process goes on after step 60", Sheet(resumed_at=60)),
    _case("chatter", "a log full of words that mean nothing", Sheet(stdout=_CHATTER)),
    _case("uneven-ranks", "rank 1 is two percent slower", Sheet(rank_fields={0: {"compute_time_s": 0.0954}})),
    _case("fused", "the fused optimizer, steady", Sheet(config={"opt_fused": "on"})),
    _case(
        "compression",
        "bf16 compression of fp32 gradients",
        one(Sheet(config={"ddp_compress": "bf16"}), book(args={"ddp-compress": "bf16"})),
    ),
    _case(
        "audit",
        "an audit that names its backends",
        one(Sheet(files={"sdpa_audit.json": _AUDIT}), book(train(env={"NSA_SDPA_AUDIT": 1}))),
    ),
    _case("busy-gpu", "the GPU is busy for 97 % of the time", sampled(Sheet(), gpu_pct=97.0)),
    _case(
        "scaling",
        "two processes at 96 % of a lone one's rate each",
        by_phase(_SCALING, {"baseline": Sheet(rates=scatter(845.0)), "single": Sheet(rates=scatter(440.0))}),
    ),
    _case(
        "lengths",
        "time per token grows slowly with the length",
        scene(book(*(train(f"s{n}", args={"seq-len": n}, nproc=1, accept=_LOW) for n in (512, 2048))), _by_length),
    ),
    _case(
        "sweep",
        "one bucket size is five percent faster",
        sweep(
            {
                mb: Sheet(rates=scatter(rate), config={"ddp_bucket_mb": mb})
                for mb, rate in ((25, 42_000.0), (50, 40_000.0))
            },
            over="env.NSA_DDP_BUCKET_MB",
        ),
    ),
)
