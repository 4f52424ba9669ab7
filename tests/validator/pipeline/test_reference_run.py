"""Which earlier validation is the one to compare with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from validator.kinds.registry import load
from validator.runs.folder import RunFolder, last_go

RUNBOOK = "schema: 1\nname: {name}\nphases:\n  - {{id: p, kind: preflight}}\n"
H200 = {"name": "NVIDIA H200", "nvlinks_active": 18}


class Reports:
    """Run folders made in order, each a second after the one before."""

    def __init__(self, root: Path) -> None:
        self.root, self.made = root, 0

    def add(
        self, *, decision: str | None = "GO", name: str = "ddp", gpus: int = 2, skip: tuple[str, ...] = (), **more: Any
    ) -> RunFolder:
        source = self.root / f"{name}.yaml"
        source.write_text(RUNBOOK.format(name=name), encoding="utf-8")
        folder = RunFolder.create(load(source), parent=self.root / "reports", python="python", only=(), skip=skip)
        self.made += 1
        header = json.loads((folder.root / "run.json").read_text(encoding="utf-8"))
        header |= {"started": f"2025-01-01T00:00:{self.made:02d}.000Z", **more}
        (folder.root / "run.json").write_text(json.dumps(header), encoding="utf-8")
        named = folder.root.with_name(f"20250101T0000{self.made:02d}Z-{folder.root.name[-9:]}")
        os.rename(folder.root, named)
        found = RunFolder.open(named)
        found.save_environment({"gpus": {f"gpu{n}": H200 for n in range(gpus)}})
        if decision is not None:
            (named / "result.json").write_text(json.dumps({"decision": decision}), encoding="utf-8")
        return found


def _last(folder: RunFolder) -> str | None:
    found = last_go(folder, folder.load_environment())
    return None if found is None else found.root.name


def test_the_newest_go_of_the_same_runbook_and_machine_is_taken(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    reports.add()
    wanted = reports.add()
    reports.add(decision="NO_GO")
    reports.add(decision=None)
    reports.add(name="other")
    reports.add(gpus=4)
    reports.add(skip=("p",))
    reports.add(overrides=["p.git_clean=true"])
    assert _last(reports.add()) == wanted.root.name


def test_nothing_comes_before_the_first_and_nothing_later_counts(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    first = reports.add()
    reports.add()
    assert _last(first) is None


def test_folders_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    wanted = reports.add()
    damaged, garbled = reports.add(), reports.add()
    (damaged.root / "run.json").write_text("{", encoding="utf-8")
    (garbled.root / "result.json").write_text("[1, 2", encoding="utf-8")
    (tmp_path / "reports" / "20250101T000099Z-notes").mkdir()
    assert _last(reports.add()) == wanted.root.name
