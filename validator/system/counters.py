"""What the links and memories of the machine have counted as errors, before and after a run: read twice, never between.

`counters.json` of a run holds both readings, so that errors under load are distinguished from older ones. Ports count
what `sysfs.py` lists, GPUs what NVML does.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from validator.files import Tree
from validator.system.nvml import Gpus
from validator.system.sysfs import SYS, read_ports

FILE = "counters.json"


class ErrorCounters:
    """The readings of one run."""

    def __init__(self, gpus: Gpus, *, sys: Path = SYS) -> None:
        self._gpus, self._sys = gpus, sys
        self._began = time.monotonic()
        self._before = self._read()

    def _read(self) -> dict[str, int]:
        """Counters of ports that are 0 are left out, as they are in `Port`."""
        ports = {f"{port.name} {name}": count for port in read_ports(self._sys) for name, count in port.errors.items()}
        return {**self._gpus.error_counters(), **ports}

    def write(self, folder: Path) -> None:
        """Both readings, where there is something to count and the folder is there."""
        after = self._read()
        if not (after or self._before) or not folder.is_dir():
            return
        seconds = round(time.monotonic() - self._began, 3)
        record = {"schema_version": 1, "seconds": seconds, "before": self._before, "after": after}
        with Tree(folder) as tree:
            tree.write(FILE, json.dumps(record, indent=1) + "\n", sync=False)
