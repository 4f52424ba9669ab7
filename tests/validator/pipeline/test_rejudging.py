"""What `validator report` says of a run folder that was changed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.kinds.registry import load
from validator.pipeline.write import report
from validator.runs.folder import RunFolder
from validator.runs.journal import Journal

BOOK = """\
schema: 1
name: mine
phases:
  - {id: a, kind: train, steps: 200, accept: [toks_per_s.mean >= 100]}
"""


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_an_edited_runbook_is_not_read_and_said_so(
    mark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "mine.yaml"
    source.write_text(mark + BOOK, encoding="utf-8")
    folder = RunFolder.create(load(source), parent=tmp_path / "reports", python="python", only=(), skip=())
    with Journal.open(folder.journal) as journal:
        journal.append("started", run_id=folder.header.run_id)
        journal.append("finished", finished=folder.header.started, duration_s=1.0)
    report(folder.root)
    assert "runbook.yaml" not in capsys.readouterr().err
    (folder.root / "runbook.yaml").write_text(BOOK.replace("100", "900"), encoding="utf-8")
    judged = report(folder.root).report
    assert "runbook.yaml was changed after the run and is not read" in capsys.readouterr().err
    assert all("900" not in one.text for one in judged.phases[0].criteria)
