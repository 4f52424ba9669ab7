"""Reading what a run left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .conftest import Answer


def run_folder(workdir: Path) -> Path:
    """The only run folder below `reports/`."""
    (folder,) = (path for path in (workdir / "reports").iterdir() if (path / "run.json").is_file())
    return folder


def result_of(workdir: Path) -> dict[str, Any]:
    return json.loads((run_folder(workdir) / "result.json").read_text(encoding="utf-8"))


def decided(answer: Answer, workdir: Path, rc: int, decision: str) -> dict[str, Any]:
    """The result of a validation that has to end in this way."""
    result = result_of(workdir)
    assert (answer.rc, result["decision"]) == (rc, decision), answer.err + str(result["why"])
    return result


def criterion(result: dict[str, Any], text: str) -> dict[str, Any]:
    """The criterion whose id or text contains `text`."""
    found = [
        item for phase in result["phases"] for item in phase["criteria"] if text in item["text"] or text in item["id"]
    ]
    assert len(found) == 1, [(item["id"], item["text"]) for item in found]
    return found[0]
