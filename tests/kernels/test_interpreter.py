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

INTERPRETED = Path(__file__).parent / "interpreted"


@pytest.mark.skipif(
    Version(triton.__version__) < Version("3.3"), reason="the interpreter of Triton 3.2 corrupts memory"
)
@pytest.mark.timeout(900)  # half a minute alone, several on a machine shared with other suites
def test_kernels_agree_with_the_oracle_when_interpreted() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", str(INTERPRETED)]
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=env, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed, run.stdout[-2000:]
    assert int(passed[1]) >= 14, f"some tests were not collected:\n{run.stdout[-2000:]}"
    assert "skipped" not in run.stdout
