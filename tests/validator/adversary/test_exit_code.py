"""The exit code says what was decided, and only that."""

from __future__ import annotations

import re
import sys

import pytest

from validator import cli


@pytest.fixture(autouse=True)
def own_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """`main` replaces them, and how expressions are compiled, for good; here they are put back."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(re, "compile", re.compile)


def test_a_fault_of_the_program_is_no_decision(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python ends with 1 on an error that nobody expected, which a script would take for a NO-GO."""

    def broken(*_: object, **__: object) -> None:
        raise NameError("name 'render' is not defined")

    monkeypatch.setattr("validator.plan.first_plan", broken)
    monkeypatch.setattr(sys, "argv", ["validator", "plan", "smoke_cpu"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 4
    assert "NameError: name 'render' is not defined" in capfd.readouterr().err


def test_bad_usage_stays_bad_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["validator", "plan", "smoke_cpu", "--nonsense"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
