"""A disk that is limited from outside is measured as slow, fails its bound, and is named.

The kernel limits the writes of a control group where this process may make one; elsewhere each write of the program
takes its time. Neither is known to the program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.validator.kinds.machines import explained
from tests.validator.kinds.test_storage import MIB, disk  # noqa: F401 - a fixture

LIMIT = 30_000_000
"""Bytes a second."""

CHECKPOINT = 12 * MIB

DOUBLE = f"""
import os, time
write = os.writev

def writev(file, blocks):
    time.sleep(sum(map(len, blocks)) / {LIMIT})
    return write(file, blocks)

os.writev = writev
"""


class Limited(NamedTuple):
    """How a program is started so that its writes are limited."""

    words: Sequence[str]
    env: dict[str, str]


def control_group(folder: Path) -> tuple[Path, str] | None:
    """A group whose writes to the folder's disk are limited, and the file that takes a process in; None where the
    kernel or this process's rights do not allow it."""
    number = os.stat(folder).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    name = f"slow-disk-{uuid.uuid4().hex[:8]}"
    ways = (
        ("/sys/fs/cgroup/blkio", "blkio.throttle.write_bps_device", f"{device} {LIMIT}", "tasks"),
        ("/sys/fs/cgroup", "io.max", f"{device} wbps={LIMIT}", "cgroup.procs"),
    )
    for root, key, value, tasks in ways:
        group = Path(root) / name
        if not (Path(root) / "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
            (group / key).open("r+").close()  # in a folder that is no group it would be made
            (group / key).write_text(value)
            return group, tasks
        except OSError:
            with suppress(OSError):
                group.rmdir()
    return None


@pytest.fixture
def limited(disk: Path, tmp_path: Path) -> Iterator[Limited]:  # noqa: F811
    made = control_group(disk)
    if made is None:
        place = tmp_path / "double"
        place.mkdir()
        (place / "sitecustomize.py").write_text(DOUBLE)
        yield Limited((), {"PYTHONPATH": str(place)})
        return
    group, tasks = made
    yield Limited(("/bin/sh", "-c", f'echo $$ > {group / tasks}; exec "$@"', "sh"), {})
    group.rmdir()


def measured(folder: Path, record: Path, start: Limited) -> dict[str, Any]:
    """What the program of a run writes about a folder, without fio."""
    program = (sys.executable, "-c", "from validator.kinds.storage import main; main()")
    given = (str(folder), str(record), str(MIB), str(CHECKPOINT), "0.05")
    subprocess.run((*start.words, *program, *given), env={**os.environ, "PATH": "", **start.env}, check=True)
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def test_a_limited_disk_is_slow_fails_its_bound_and_is_named(tmp_path: Path, disk: Path, limited: Limited) -> None:  # noqa: F811
    found = measured(disk, tmp_path / "storage.json", limited)
    assert "problem" not in found
    assert found["checkpoint"]["mb_s"] < 1.5 * LIMIT / 1e6, found

    def left(spec: object, out: Path) -> None:
        (out / "storage.json").write_text(json.dumps(found))

    phase = {"kind": "storage", "path": str(disk), "accept": ["storage.checkpoint_mb_s >= 50 MB/s"]}
    report, findings = explained(tmp_path, phase, left, gpus=0)
    assert report.status == "FAIL"
    (slow,) = (one for one in findings if one.code == "disk-slow")
    assert "storage.checkpoint_mb_s >= 50 MB/s" in slow.message
    assert "io.max" in slow.command
