"""Everything a run writes about itself. The files, their columns and units: docs/trainer-contract.md."""

from __future__ import annotations

from nsa.telemetry.environment import write_env_json
from nsa.telemetry.files import AppendCsv, cut_csv_after, write_json, write_text
from nsa.telemetry.heartbeat import Heartbeat
from nsa.telemetry.memory import memory_now, write_memory_dump
from nsa.telemetry.signals import SignalDesk

__all__ = [
    "AppendCsv",
    "Heartbeat",
    "SignalDesk",
    "cut_csv_after",
    "memory_now",
    "write_env_json",
    "write_json",
    "write_memory_dump",
    "write_text",
]
