"""What a command that starts nothing must not import: seconds of start-up for a list of options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "nsa", "scipy", "numpy", "vl_convert", "jinja2", "pytest", "psutil", "pynvml", "email", "zipfile")
PROBE = """
import sys
from validator.cli import app
try:
    app({arguments!r}, prog_name="validator")
except SystemExit as ended:
    code = ended.code
loaded = sorted({{name.partition(".")[0] for name in sys.modules}} & set({heavy!r}))
print(code, loaded, file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["check", "smoke_cpu"], ["run", "--help"]])
def test_nothing_heavy_is_imported(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(arguments=arguments, heavy=HEAVY)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr.splitlines()[-1] == "0 []", done.stderr
