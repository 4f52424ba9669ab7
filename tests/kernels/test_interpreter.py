"""The kernels against the oracle on the CPU, in a process of their own: the interpreter must be chosen before Triton is
imported, and must not leak into other tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import triton
from packaging.version import Version

FILES = {"checkers": 4, "decode": 23, "hopper": 4, "kernels": 20}
"""Of the folder ``interpreted``, and how many tests each holds at least: one that is not collected is no pass."""
INTERPRETED = Path(__file__).parent / "interpreted"


def test_every_interpreted_file_is_run() -> None:
    assert {path.name for path in INTERPRETED.glob("test_*.py")} == {f"test_{name}.py" for name in FILES}


@pytest.mark.skipif(
    Version(triton.__version__) < Version("3.3"), reason="the interpreter of Triton 3.2 corrupts memory"
)
@pytest.mark.timeout(900)  # a minute alone, several on a machine shared with other suites
@pytest.mark.parametrize("name", FILES)
def test_kernels_agree_with_the_oracle_when_interpreted(name: str) -> None:
    file = INTERPRETED / f"test_{name}.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", str(file)]
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=env, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed, run.stdout[-2000:]
    assert int(passed[1]) >= FILES[name], f"some tests were not collected:\n{run.stdout[-2000:]}"
    assert "skipped" not in run.stdout
