"""Which sets of versions Triton's interpreter does not work with."""

from __future__ import annotations

import numpy as np
from packaging.version import Version

__all__ = ["why_not"]


def why_not(triton_version: str) -> str | None:
    """The reason why this Triton cannot interpret kernels here; None where it can."""
    if Version(triton_version) < Version("3.7") and Version(np.__version__) >= Version("2.4"):
        return "the interpreter of Triton before 3.7 needs NumPy before 2.4: it makes numbers of arrays of one"
    return None
