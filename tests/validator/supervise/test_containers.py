"""The end of a container whose engine does not do what it is asked, and names that are no container of ours."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from validator.model.plan import RunSpec
from validator.model.record import Outcome
from validator.model.runbook import TrainerMetrics
from validator.supervise.containers import container_name, named_container

_STUCK = """#!/bin/sh
case "$1" in
  run) step=0; while sleep 0.02; do step=$((step + 1)); echo "step $step loss 1.0"; done;;
  inspect) echo true;;
  *) exit 1;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(_STUCK)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def test_a_container_that_cannot_be_ended_is_no_normal_end(
    make_spec: Callable[..., RunSpec], supervised: Callable[..., Outcome], docker: Path
) -> None:
    spec = make_spec(
        (str(docker), "run", "--name", "{container}"),
        container={"engine": "docker", "passed": ()},
        metrics=TrainerMetrics(stdout="step {step} loss {loss}"),
        steps=20,
        stop="at_steps",
    )
    outcome = supervised(spec)
    assert not outcome.ok
    assert outcome.reason == "exited"
    assert "container validator-" in (outcome.last.detail or "")
    assert "could not be ended and may still hold the machine" in (outcome.last.detail or "")
    assert outcome.last.command[-1].endswith("-phase-r1-1")


@pytest.mark.parametrize(
    ("engine", "name", "ours"),
    [
        ("docker", "validator-0123456789ab-baseline-r1-1", True),
        ("docker", "validator-ffffffffffff-baseline-r1-1", False),
        ("docker", "postgres", False),
        ("docker", "--all", False),
        ("docker", "validator-0123456789ab-a b", False),
        ("sh", "validator-0123456789ab-baseline-r1-1", False),
    ],
)
def test_a_journal_names_containers_of_its_own_validation_alone(
    docker: Path, engine: str, name: str, ours: bool
) -> None:
    found = named_container(engine, name, token="0123456789abcdef0123456789abcdef")
    assert (found is not None) == ours


def test_names_are_what_engines_accept() -> None:
    token = "0123456789abcdef"
    assert container_name(token, "buckets/A b!/r1", 2) == "validator-0123456789ab-buckets-a-b-r1-2"
    assert len(container_name(token, "x" * 300, 1)) < 100
