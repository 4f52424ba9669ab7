"""Sets a seed in a Python process before its program begins: Python finds this file first on PYTHONPATH.

A phase of kind `settings` puts this folder there where it has a `seed`, for trainers that set none themselves. NumPy
and torch are seeded when they have been imported. It imports nothing of validator, for the Python is the trainer's,
and it runs the `sitecustomize` behind it on the path.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import random
import sys
from importlib.abc import MetaPathFinder
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is not loaded at every start
_SEED = int(os.environ.get("VALIDATOR_SEED", "0"))


class _SeedWhenImported(MetaPathFinder):
    """Seeds a library as soon as its module has run."""

    def __init__(self) -> None:
        self.left = {
            "numpy": lambda numpy: numpy.random.seed(_SEED % 2**32),
            "torch": lambda torch: torch.manual_seed(_SEED),
        }

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """The module as it is, with the seed set behind its end; None for any other module."""
        seed: Any = self.left.pop(fullname, None)
        spec: Any = None if seed is None else importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if seed is None or spec is None or spec.loader is None:
            return None
        run: Any = spec.loader.exec_module

        def run_and_seed(module: Any) -> None:
            run(module)
            seed(module)

        spec.loader.exec_module = run_and_seed
        return spec


def _run_the_next() -> None:
    """Run the `sitecustomize` that Python would have found without this one."""
    others = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


random.seed(_SEED)
sys.meta_path.insert(0, _SeedWhenImported())
_run_the_next()
