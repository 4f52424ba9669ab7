"""Whether the rate keeps its level: where it steps, drifts or passes through a slow stretch, and beside what."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.validator.diagnose.cases import healthy, of_folder, of_run
from tests.validator.ingest.folders import START_S, write_arrivals, write_csv
from validator.model.result import SourceFile
from validator.model.verdict import Finding

N = 240


def times(*, cv: float = 0.01, seed: int = 3) -> list[float]:
    """Seconds of each step, with noise."""
    noise = random.Random(seed)
    return [2.0 * (1 + cv * noise.gauss(0, 1)) for _ in range(N)]


def found(
    tmp_path: Path, seconds: Sequence[float], *, effective: Mapping[str, Any] | None = None, **columns: Any
) -> dict[str, Finding]:
    """What a run with these times per step shows."""
    rates = [4096 / one for one in seconds]
    losses = [4 + 2 / (i + 1) for i in range(N)]
    folder = healthy(tmp_path / "r", rates=rates, losses=losses, effective=effective, **columns)
    return of_run(folder, steps=N)


def printed(tmp_path: Path, seconds: Sequence[float], columns: str, row: Callable[[int], str]) -> dict[str, Finding]:
    """What a run shows that only prints, with a sample of the machine's `columns` in the middle of each step."""
    folder = tmp_path / "r"
    write_csv(folder, [4096 / one for one in seconds], losses=[4 + 2 / (i + 1) for i in range(N)])
    write_arrivals(folder, seconds)
    ends = list(accumulate(seconds, initial=3.0))
    rows = [f"{START_S + (a + b) / 2},{row(i)}" for i, (a, b) in enumerate(pairwise(ends))]
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs/telemetry.csv").write_text("\n".join((f"ts,{columns}", *rows)) + "\n")
    return of_run(folder, steps=N)


CPU = "host_cpu_pct,host_other_cpu_pct"
LOG = SourceFile(path="log", sha256="", bytes=0)


def alone(tmp_path: Path, seconds: Sequence[float], said: Mapping[int, str] | None = None) -> dict[str, Finding]:
    """What a log by itself shows; `said` are lines in front of the rows of these steps."""
    lines = []
    for step, one in enumerate(seconds, 1):
        lines += [(said or {})[step]] if step in (said or {}) else []
        lines.append(f"step {step} loss {4 + 2 / step:.4f} time {1e3 * one:.2f}ms")
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    return of_folder(tmp_path / "train.log")


@pytest.mark.parametrize("cv", [0.01, 0.05])
def test_a_slow_start_and_noise_are_no_stalls_and_no_shifts(tmp_path: Path, cv: float) -> None:
    seconds = [s * (1 + 2 * 0.8**i) for i, s in enumerate(times(cv=cv))]
    assert {"periodic-stall", "rate-shift"}.isdisjoint(found(tmp_path, seconds))


@pytest.mark.parametrize(("at", "factor"), [(0.5, 2.0), (0.6, 1.5), (0.55, 1.25), (0.62, 0.5), (0.3, 1.06)])
def test_a_step_of_the_rate_is_named_with_its_place_and_size(tmp_path: Path, at: float, factor: float) -> None:
    """A rate that halves half-way was taken for warm-up."""
    first = int(at * N)
    finding = found(tmp_path, [s * (factor if i >= first else 1) for i, s in enumerate(times())])["rate-shift"]
    assert finding.severity == "warning"
    change = float(finding.message.partition("changes by ")[2].partition(" %")[0])
    assert change == pytest.approx(100 * (1 / factor - 1), abs=1.0)
    near = range(first - 3, first + 6)
    assert any(f"From step {step} on" in finding.message for step in near), finding.message


def test_thermal_settling_and_a_speed_up_at_the_start_are_healthy(tmp_path: Path) -> None:
    settled = [s * (1.02 if i > 80 else 1) for i, s in enumerate(times(cv=0.004))]
    assert "rate-shift" not in found(tmp_path / "a", settled)
    early = [s * (1.3 if i < 40 else 1) for i, s in enumerate(times())]
    assert "rate-shift" not in found(tmp_path / "b", early)


def test_what_moved_with_the_rate_is_named(tmp_path: Path) -> None:
    """A loader that slows down takes the rate with it."""
    seconds = [s + (0.4 if i >= 120 else 0) for i, s in enumerate(times())]
    fetch = [0.01 + (0.4 if i >= 120 else 0) + 1e-4 * (i % 3) for i in range(N)]
    message = found(tmp_path, seconds, dt_fetch_s=fetch)["rate-shift"].message
    assert "At the same step: dt_fetch_s 0.0101 → 0.4101 s" in message


def test_a_rate_that_falls_at_once_and_recovers_slowly_looks_throttled(tmp_path: Path) -> None:
    seconds = [s * (1 + 0.4 * (220 - i) / 100 if 120 <= i < 220 else 1) for i, s in enumerate(times())]
    assert "as hardware does that throttles; no clocks were recorded" in found(tmp_path, seconds)["rate-shift"].message


def test_a_slower_level_holds_no_stalls_of_its_own_making(tmp_path: Path) -> None:
    """Rows of a level that is slower and scatters more were counted from the median of the whole run."""
    noise = random.Random(5)
    seconds = [2.0 + (abs(noise.gauss(0.25, 0.15)) if i > 180 else 0.002 * noise.gauss(0, 1)) for i in range(N)]
    shown = alone(tmp_path, seconds)
    assert shown["rate-shift"].severity == "warning"
    assert "periodic-stall" not in shown


def levels(*parts: tuple[int, float], cv: float = 0.004) -> list[float]:
    noise = random.Random(7)
    return [mean * (1 + cv * noise.gauss(0, 1)) for rows, mean in parts for _ in range(rows)]


def test_levels_at_equal_distances_are_a_schedule(tmp_path: Path) -> None:
    even = levels((80, 1.0), (80, 1.4), (80, 1.8))
    finding = alone(tmp_path / "a", even)
    assert "rate-shift" not in finding
    assert finding["no-steady-state"].severity == "info"
    assert "changes every 80 steps or so" in finding["no-steady-state"].message
    assert found(tmp_path / "b", even)["no-steady-state"].severity == "warning"
    odd = levels((110, 1.0), (40, 1.4), (90, 1.8))
    assert alone(tmp_path / "c", odd)["no-steady-state"].severity == "warning"
    ramp = [1 + 0.8 * i / N for i in range(N)]
    assert alone(tmp_path / "d", ramp)["no-steady-state"].severity == "warning"


def test_a_drift_is_said_once(tmp_path: Path) -> None:
    shown = found(tmp_path, levels((100, 1.0), (80, 0.9), (60, 2.4)))
    assert "rate-shift" not in shown
    assert "In its last tenth a step takes 140 % more than in its first" in shown["no-steady-state"].message


def test_a_small_gain_to_the_end_costs_nobody_anything(tmp_path: Path) -> None:
    gain = levels((100, 1.0), (80, 0.97), (60, 0.93))
    assert alone(tmp_path / "a", gain)["no-steady-state"].severity == "info"
    assert alone(tmp_path / "b", levels((150, 1.0), (90, 0.9)))["rate-shift"].severity == "info"
    assert alone(tmp_path / "c", levels((150, 1.0), (90, 0.6)))["rate-shift"].severity == "warning"
    loss = levels((100, 0.93), (80, 0.97), (60, 1.0))
    assert alone(tmp_path / "d", loss)["no-steady-state"].severity == "warning"


def test_a_slow_stretch_that_passes_is_information_in_a_log_by_itself(tmp_path: Path) -> None:
    passing = levels((120, 1.0), (10, 1.6), (110, 1.0))
    assert alone(tmp_path / "a", passing)["rate-shift"].severity == "info"
    lasting = levels((120, 1.0), (60, 1.6), (60, 1.0))
    assert alone(tmp_path / "b", lasting)["rate-shift"].severity == "warning"


def test_a_handful_of_rows_is_no_drift_of_a_log_by_itself(tmp_path: Path) -> None:
    assert alone(tmp_path, [1.0, 0.9, 1.6, 1.5, 1.7])["no-steady-state"].severity == "info"


@pytest.mark.parametrize(
    ("before", "others", "busy", "named"),
    [(0, 40, 99, True), (0, 40, 60, False), (0, 3, 99, False), (40, 40, 99, False)],
)
def test_a_rate_that_shifts_while_others_use_the_cpu(
    tmp_path: Path, before: int, others: int, busy: int, named: bool
) -> None:
    """From half of the run on other processes want the cores; a trainer that only prints has no heartbeats. Where they
    wanted as much before, the shift is not theirs: a rate that halved was laid to a machine that was busy all along."""
    seconds = [one * (1.3 if i >= N // 2 else 1.0) for i, one in enumerate(times())]

    def row(i: int) -> str:
        return f"{busy if i >= N // 2 or before else 55},{2 * (others if i >= N // 2 else before)}"

    found = printed(tmp_path, seconds, CPU, row)
    finding = found["rate-shift"]
    assert ("telemetry.host_other_cpu_pct" in finding.message) is (before == 0)
    assert ("Other programs used" in finding.message) is named
    assert ("busy-host" in found) is (named or before > 0), "one warning, and the shift names it as its cause"
    assert ("no clocks" in finding.message.lower()) is (before > 0)
    assert "the rate is 1,5" in finding.message
    assert "tok/s instead of 2,0" in finding.message
    assert finding.next_step.startswith("End the other programs") is named


@pytest.mark.parametrize(("since", "named"), [(0.5, True), (0.9, False), (0.1, False)])
def test_a_rate_that_shifts_when_another_program_takes_the_gpu(tmp_path: Path, since: float, named: bool) -> None:
    """A program used one of two GPUs; the next step was to look for clocks and to run three times as many steps. One
    that came long after the shift, or was there long before, does not explain it."""
    seconds = [one * (2.3 if i >= N // 2 else 1.0) for i, one in enumerate(times())]
    found = printed(tmp_path, seconds, "gpu1_foreign_processes", lambda i: f"{int(i > since * N)}")
    assert "gpu1 was used by another program in steps" in found["busy-gpu"].message
    assert ("Meanwhile gpu1 was used by another program." in found["rate-shift"].message) is named
    assert found["rate-shift"].next_step.startswith("End the other programs") is named
    assert "busy-host" not in found


@pytest.mark.parametrize(("before", "named"), [(3, True), (40, False)])
def test_a_rate_that_never_settles_while_others_use_the_cpu(tmp_path: Path, before: int, named: bool) -> None:
    """It falls in three steps, on a machine that is busy; only where others took less before is it theirs."""
    seconds = levels((60, 1.0), (60, 1.2), (60, 1.5), (60, 1.9))
    finding = printed(tmp_path, seconds, CPU, lambda i: f"99,{before if i < N // 2 else 40}")["no-steady-state"]
    assert ("Other programs used 40 %" in finding.message) is named
    assert finding.next_step.startswith("End the other programs") is named


@pytest.mark.parametrize(("others", "every", "known"), [(50, None, False), (0, None, True), (50, 3, True)])
def test_time_lost_without_a_period_beside_other_programs_is_theirs(
    tmp_path: Path, others: int, every: int | None, known: bool
) -> None:
    """A third of the steps takes twice as long or more: no GO has to say so where a full machine explains it."""
    chosen = random.Random(5)
    late = [i % every == 0 if every else chosen.random() < 0.3 for i in range(1, N + 1)]
    seconds = [one * (2.5 if slow else 1.0) for one, slow in zip(times(), late, strict=True)]
    shown = printed(tmp_path, seconds, CPU, lambda _: f"99,{others}")
    assert ("busy-host" in shown) is (others > 0)
    assert shown["periodic-stall"].costly is known, shown["periodic-stall"].message


@pytest.mark.parametrize(
    ("stretches", "code", "lost"),
    [
        (((120, 1.0), (120, 2.0)), "rate-shift", 0.5),
        (((216, 1.0), (24, 2.0)), "rate-shift", 0.5),
        (((120, 1.0), (60, 2.0), (60, 1.0)), "rate-shift", 0.2),
        (((120, 1.0), (120, 1.1)), "rate-shift", 0.09),
        (((150, 1.0), (90, 0.6)), "rate-shift", None),
        (((60, 1.0), (60, 1.2), (60, 1.5), (60, 2.0)), "no-steady-state", 0.5),
        (((60, 2.0), (60, 1.5), (60, 1.2), (60, 1.0)), "no-steady-state", None),
    ],
)
def test_a_rate_that_falls_for_good_costs_its_share_of_the_time(
    tmp_path: Path, stretches: tuple[tuple[int, float], ...], code: str, lost: float | None
) -> None:
    """A GO beside a rate that had halved said nothing of it: what a longer run loses counts, not what this one lost."""
    finding = found(tmp_path, levels(*stretches))[code]
    assert finding.lost == (None if lost is None else pytest.approx(lost, abs=0.01))
    assert finding.costly is ((lost or 0.0) > 0.25)


def test_a_fall_that_others_or_a_setting_explain_is_no_time_lost(tmp_path: Path) -> None:
    seconds = levels((120, 1.0), (120, 2.0))
    beside = printed(tmp_path / "a", seconds, CPU, lambda i: f"99,{60 if i >= N // 2 else 0}")["rate-shift"]
    longer = found(tmp_path / "b", seconds, seq_len=[512 if i < 120 else 1024 for i in range(N)])["rate-shift"]
    wait = found(tmp_path / "c", seconds, fetch_s=[0.1 if i < 120 else 1.1 for i in range(N)])["rate-shift"]
    assert "seq_len 512 → 1,024" in longer.message
    assert [one.costly for one in (beside, longer, wait)] == [False, False, True]


def test_a_rate_of_samples_alone_tells_time_too(tmp_path: Path) -> None:
    """A log whose samples per second halve half-way had no finding, for nothing else in it was a time."""
    noise = random.Random(7)
    log = tmp_path / "train.log"
    for late, shifts in ((510, False), (255, True)):
        rates = ((512 if i < 150 else late) * (1 + 0.01 * noise.gauss(0, 1)) for i in range(1, 301))
        rows = (f"step {i}/300 loss {3 - i / 200:.3f} {rate:.1f} samples/s" for i, rate in enumerate(rates, 1))
        log.write_text("\n".join(rows) + "\n")
        said = of_folder(log)
        assert ("rate-shift" in said) is shifts
        assert "not-judged" not in said
    assert "From step 150 on the rate is 25" in said["rate-shift"].message
    assert "samples/s instead of 51" in said["rate-shift"].message
