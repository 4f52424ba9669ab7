"""What the wheel holds beside `validator/`, runbooks and templates: the program that probes a machine.

Preflight starts it with the trainer's Python, which has torch. It is `nsa/probe.py` with the modules that it imports,
as data and not as a package: whoever installs the wheel has no package `nsa` from it.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROBE = (
    "__init__.py",
    "argument_types.py",
    "burnin.py",
    "collectives.py",
    "compiler.py",
    "config.py",
    "interrupt.py",
    "nccl_log.py",
    "parallel.py",
    "probe.py",
    "telemetry/__init__.py",
    "telemetry/environment.py",
    "telemetry/files.py",
    "telemetry/heartbeat.py",
    "telemetry/memory.py",
    "telemetry/signals.py",
)
"""Relative to `nsa/`."""


class ProbeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the probe to a wheel. An editable install finds it in the repository."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files and their places in the wheel."""
        if version != "editable":
            build_data["force_include"] |= {f"nsa/{name}": f"validator/_data/nsa/{name}" for name in PROBE}
