"""Arms with the same losses digit for digit: no winner, and no GO where that cannot be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.validator.adversary.court import codes, finding, tried
from validator.model.arguments import changes_arithmetic
from validator.model.plan import RunSpec
from validator.model.verdict import ValidationReport
from validator.selftest.recorded_case import FakeRun, book, falling, scatter


def swept(tmp_path: Path, name: str, *, apart: float = 0.0, repeats: int = 2) -> ValidationReport:
    """A sweep of two values whose second arm is 10 % faster; its losses lie `apart` from the first one's."""
    phase: dict[str, Any] = {
        "id": "sweep",
        "kind": "sweep",
        "steps": 120,
        "over": {name: [1, 2]},
        "repeats": repeats,
        "choose": {"highest": "toks_per_s.mean"},
    }

    def fake(spec: RunSpec) -> FakeRun:
        second = spec.settings[name] == 2
        rates = scatter(44_000.0 if second else 40_000.0, seed=spec.repeat + 10 * second)
        config = {name.partition(".")[2].replace("-", "_"): spec.settings[name]}
        losses = [loss + apart * second + 0.01 * spec.repeat for loss in falling()]
        return FakeRun(rates=rates, losses=losses, config=config)

    return tried(tmp_path, fake, book(phase))


@pytest.mark.parametrize("name", ["args.lr", "args.micro-batch", "args.seed", "args.hidden-dim", "args.param_dtype"])
def test_arms_that_cannot_be_equal_and_are_decide_nothing(tmp_path: Path, name: str) -> None:
    """A trainer that ignores the setting, and says that it did not, gave a winner and a GO."""
    report = swept(tmp_path, name)
    assert (report.decision, codes(report, "veto")) == ("INCONCLUSIVE", {"vacuous-sweep"})
    (phase,) = report.phases
    assert (phase.comparison.outcome, phase.comparison.recommended) == ("vacuous", None)
    assert f"the same loss in all of 120 rows, digit for digit, although {name} differ" in (
        finding(report, "vacuous-sweep").message
    )


def test_arms_whose_losses_differ_are_compared(tmp_path: Path) -> None:
    assert "vacuous-sweep" not in codes(swept(tmp_path, "args.lr", apart=1e-4))


@pytest.mark.parametrize(
    ("name", "severity"), [("args.bucket-mb", None), ("args.workers", None), ("args.flavor", "info")]
)
def test_equal_losses_may_be_right(tmp_path: Path, name: str, severity: str | None) -> None:
    report = swept(tmp_path, name)
    assert codes(report, "veto", "warning") == set()
    assert codes(report, "info") & {"vacuous-sweep"} == ({"vacuous-sweep"} if severity else set())


@pytest.mark.parametrize(
    ("name", "yes"),
    [
        *((f"args.{one}", True) for one in ("batch-size", "learning_rate", "seq-len", "n_layers", "dtype", "seed")),
        *((f"args.{one}", False) for one in ("ddp-bucket-size-mb", "num_workers", "compile", "prefetch_batches")),
        ("env.NSA_SEED", True),
        ("env.NSA_DDP_BUCKET_MB", False),
    ],
)
def test_which_settings_change_the_arithmetic(name: str, yes: bool) -> None:
    assert changes_arithmetic(name) is yes
