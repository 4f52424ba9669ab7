"""What all tests on a GPU rely on: kernels that are compiled already."""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session", autouse=True)
def _compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile what the chosen tests launch, side by side; one after another in the tests it takes most of their time.

    The compiling processes are forked, which a process that has asked torch for a GPU cannot do: another one does it.
    Of the processes of `pytest -n` the first one has it done, and the others wait for that.
    """
    here = tmp_path_factory.getbasetemp()
    here = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here
    with (here / "compiled").open("a+") as done:
        fcntl.flock(done, fcntl.LOCK_EX)
        if not os.fstat(done.fileno()).st_size:
            _compile(request)
            done.write("all")


def _compile(request: pytest.FixtureRequest) -> None:
    modules = {item.module for item in request.session.items if isinstance(item, pytest.Function)}
    shapes = [shape for module in modules for shape in getattr(module, "PROBLEMS", ())]
    steps = [shape for module in modules for shape in getattr(module, "STEPS", ())]
    command = [sys.executable, str(Path(__file__).with_name("compile_all.py"))]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, input=pickle.dumps((shapes, steps)), env=env, cwd=ROOT, check=True)


@pytest.fixture
def on_hopper() -> None:
    """Asked for by tests of Hopper's own kernels."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("not a Hopper GPU")
