"""What every test may rely on."""

from __future__ import annotations

import os
import signal
import sys

import pytest

# Several workers share few cores, and each test's tensors are small: threads would only wait for each other. In the way
# that torchrun does it, and like there an outer setting wins.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hundreds of tests start the command line or a trainer; where a machine keeps Python from writing its bytecode down,
# each of these processes would compile the whole project again, a quarter of the time that it takes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts the tests in the background hands SIGINT on as ignored, and nohup SIGHUP; every process that a
# test starts would inherit that: Ctrl-C and a closed terminal could not be tested there.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that may take longest begin first, so that no worker is left alone with one of them at the end."""

    def allowed_s(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return float(marker.args[0]) if marker and marker.args else 0.0

    items.sort(key=allowed_s, reverse=True)
