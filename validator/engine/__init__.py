"""What starts processes on other nodes: Slurm by its own commands, OpenSSH, or this machine for each node."""

from __future__ import annotations

import importlib
from typing import cast

from validator.engine.base import Engine
from validator.model.cluster import EngineName


def engine_of(name: EngineName) -> Engine:
    """The engine of this name; its module is loaded now, so that others cost nothing."""
    return cast(Engine, importlib.import_module(f"validator.engine.{name}").ENGINE)
