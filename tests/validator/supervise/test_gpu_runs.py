"""Runs on GPUs, with recorded answers of NVML: the wait for memory, and a collective that waits for a lost rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.validator.supervise import programs
from tests.validator.supervise.tools import Make, Run, watchdog
from tests.validator.system.answers import Card, FakeNvml
from validator.system.nvml import Gpus

SPINS = programs.TRAINER + "row(1); row(2); burn(30)"


class PlayedGpus(Gpus):
    """One GPU whose memory follows a list (the last value stays), at a fixed utilization."""

    def __init__(self, memory_mib: list[float], *, busy_pct: int = 0, memory_busy_pct: int = 0) -> None:
        super().__init__(FakeNvml(), {0: Card(utilization=(busy_pct, memory_busy_pct))})
        self._memory = memory_mib
        self.asked = 0

    def memory_used_mib(self) -> float:
        self.asked += 1
        return self._memory.pop(0) if len(self._memory) > 1 else self._memory[0]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[PlayedGpus], None]:
    """Let runs see the given GPUs."""

    def use(gpus: PlayedGpus) -> None:
        monkeypatch.setattr("validator.supervise.attempt.Gpus.open", lambda environment: gpus)

    return use


def test_after_a_stop_the_memory_of_the_gpus_is_awaited(
    play: Callable[[PlayedGpus], None], make_spec: Make, supervised: Run
) -> None:
    gpus = PlayedGpus([100.0, 9000.0, 120.0])  # before the run, just after its end, and given back
    play(gpus)
    assert supervised(make_spec(("sleep", "60"), timeout_s=0.2, watchdog=watchdog())).reason == "timeout"
    assert gpus.asked == 3


def test_memory_that_does_not_come_back_is_not_awaited_for_ever(
    play: Callable[[PlayedGpus], None], make_spec: Make, supervised: Run
) -> None:
    gpus = PlayedGpus([100.0, 9000.0])
    play(gpus)
    assert supervised(make_spec(("sleep", "60"), timeout_s=0.2, watchdog=watchdog())).reason == "timeout"
    assert gpus.asked > 2


def test_a_gpu_that_spins_without_moving_memory_is_no_sign_of_life(
    play: Callable[[PlayedGpus], None], make_spec: Make, supervised: Run, run_dir: Path
) -> None:
    """A rank that waits in a collective keeps its core and its GPU at full utilization."""
    play(PlayedGpus([0.0], busy_pct=100, memory_busy_pct=0))
    outcome = supervised(make_spec(SPINS, watchdog=watchdog()))
    assert outcome.reason == "stalled"
    assert "the GPUs spin without moving memory" in (outcome.last.detail or "")
    assert outcome.duration_s < 10
    machine = json.loads((run_dir / outcome.last.bundle[0]).read_text())
    assert machine["gpus"][0]["utilization_pct"] == 100


def test_a_gpu_that_works_is_given_time(play: Callable[[PlayedGpus], None], make_spec: Make, supervised: Run) -> None:
    play(PlayedGpus([0.0], busy_pct=100, memory_busy_pct=40))
    program = programs.TRAINER + "row(1); row(2); time.sleep(2.5); row(3)"
    assert supervised(make_spec(program, watchdog=watchdog())).ok
