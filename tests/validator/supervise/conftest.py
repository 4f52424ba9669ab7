"""Fixtures of the supervisor's tests: a run folder, and run specs around one-file programs."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.validator.supervise.tools import SHORT, TRAINER_FILES
from validator.model.plan import RunSpec
from validator.model.record import Outcome
from validator.runs.journal import Journal
from validator.supervise.attempt import AttemptContext
from validator.supervise.guardian import Guardian
from validator.supervise.supervisor import supervise
from validator.supervise.wait import CancelToken


@pytest.fixture
def make_spec(tmp_path: Path) -> Callable[..., RunSpec]:
    """Build a spec around a program's text (written to a file) or an argv."""

    def make(program: str | tuple[str, ...], **changes: Any) -> RunSpec:
        if isinstance(program, str):
            path = tmp_path / "program.py"
            path.write_text(program, encoding="utf-8")
            program = (sys.executable, "-S", str(path))
        out = changes.pop("out", "runs/phase/r1")
        values = {
            "id": "phase/r1",
            "phase": "phase",
            "kind": "train",
            "launcher": "python",
            "argv": program,
            "env": {"OUT": str(tmp_path / "run" / out)},
            "out": out,
            "timeout_s": 20.0,
            "metrics": TRAINER_FILES,
            **changes,
        }
        return RunSpec.model_validate(values)

    return make


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An empty run folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def journal(run_dir: Path) -> Iterator[Journal]:
    """The run folder's journal."""
    with Journal.open(run_dir / "journal.jsonl") as opened:
        yield opened


@pytest.fixture
def supervised(run_dir: Path, journal: Journal) -> Callable[..., Outcome]:
    """Run a spec to its end with short patience."""

    def run(spec: RunSpec, **options: Any) -> Outcome:
        options = {"token": secrets.token_hex(8), "grace": SHORT, **options}
        with ExitStack() as stack:
            if "guardian" not in options:
                options["guardian"] = stack.enter_context(Guardian.start(token=options["token"]))
            if "cancel" not in options:
                options["cancel"] = stack.enter_context(closing(CancelToken()))
            return supervise(spec, AttemptContext(run_dir, journal, **options))

    return run
