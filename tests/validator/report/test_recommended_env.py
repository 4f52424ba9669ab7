from __future__ import annotations

import subprocess
from pathlib import Path

from tests.validator.report import samples
from validator.model.verdict import Recommendation
from validator.report.exports import render_recommended_env


def sourced(text: str, folder: Path, name: str) -> str:
    """What a POSIX shell sees in a variable after sourcing the file; nothing else may be printed."""
    file = folder / "recommended.env"
    file.write_text(text, encoding="utf-8", errors="backslashreplace")
    command = ["sh", "-euc", f'. "$1"; printf %s "${{{name}-unset}}"', "sh", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert ran.stderr == ""
    return ran.stdout


def test_a_shell_reads_back_every_value(tmp_path: Path) -> None:
    report = samples.go()
    text = render_recommended_env(report)
    for name, value in report.recommended.env.items():
        assert sourced(text, tmp_path, name) == value


def test_hostile_values_and_comments_run_nothing(tmp_path: Path) -> None:
    attack = "$(touch pwned) `touch pwned`; touch pwned\ntouch pwned\n'\"\\"
    recommended = Recommendation(env={"GOOD": attack, "BAD NAME; touch pwned": "x"}, because=(attack,), command=attack)
    report = samples.go().model_copy(update={"recommended": recommended, "why": attack})
    assert sourced(render_recommended_env(report), tmp_path, "GOOD") == attack
    assert not (tmp_path / "pwned").exists()


def test_it_says_where_it_comes_from_and_why() -> None:
    text = render_recommended_env(samples.go())
    assert "20250827T140311Z-smoke-cpu-node7-3f9a" in text
    assert "13,130 tok/s against 12,838" in text
    assert "# Decision: GO." in text


def test_without_a_choice_it_sets_nothing() -> None:
    text = render_recommended_env(samples.no_go())
    assert "export" not in text
    assert "No setting was chosen" in text
