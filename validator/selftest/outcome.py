"""Whether a case came out as it must: decision, exit code, causes, no traceback, no process left, evidence kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validator.selftest.case import Case, Played
from validator.selftest.stage import Stage

__all__ = ["Outcome", "judge", "read_result"]

_EXIT = {"GO": 0, "NO_GO": 1, "INCONCLUSIVE": 3, "UNABLE": 4}
_WRITTEN = ("result.json", "report.html", "report.md", "junit.xml", "journal.jsonl", "run.json", "runbook.yaml")


@dataclass(frozen=True)
class Outcome:
    """How a case came out. `wrong` holds a sentence for each expectation that was not met; none means that it is right.

    `codes` are those of all findings, `duration_s` the wall time, `folder` where its files were kept, if they were.
    """

    case: Case
    decision: str | None
    codes: tuple[str, ...]
    wrong: tuple[str, ...]
    duration_s: float
    folder: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether everything came out as it must."""
        return not self.wrong


def read_result(stage: Stage, rc: int, stderr: str) -> Played:
    """What the last command left in its run folder."""
    folder = stage.run_folder()
    result: Mapping[str, Any] | None = None
    if folder is not None and (folder / "result.json").is_file():
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return Played(rc, stderr, folder, result)


def judge(case: Case, stage: Stage, played: Played, *, duration_s: float) -> Outcome:
    """Hold what happened against what must have."""
    findings = played.result["findings"] if played.result is not None else []
    codes = tuple(dict.fromkeys(str(finding["code"]) for finding in findings))
    decision = None if played.result is None else str(played.result["decision"])
    wrong = (*played.amiss, *_verdict(case, played, decision), *_causes(case, codes, findings), *_kept(case, played))
    left = stage.left()
    if left:
        wrong += (f"processes were left: {', '.join(map(str, left))}",)
    return Outcome(case, decision or ("UNABLE" if played.rc == 4 else None), codes, wrong, round(duration_s, 2))


def _verdict(case: Case, played: Played, decision: str | None) -> Iterator[str]:
    if case.expect != "UNABLE" and decision != case.expect:
        yield f"decision {decision or 'none'}, expected {case.expect}: {_why(played)}"
    expected = _EXIT[case.expect] if case.rc is None else case.rc
    if played.rc != expected:
        yield f"exit code {played.rc}, expected {expected}"
    if "Traceback" in played.stderr:
        yield f"a traceback: {played.stderr.strip().splitlines()[-1][:200]}"


def _why(played: Played) -> str:
    if played.result is not None:
        return str(played.result["why"])[:300]
    last = played.stderr.strip().splitlines()
    return last[-1][:300] if last else "nothing was said"


def _causes(case: Case, codes: tuple[str, ...], findings: list[dict[str, Any]]) -> Iterator[str]:
    missing = [code for code in case.codes if code not in codes]
    if missing:
        yield f"not found: {', '.join(missing)}; found: {', '.join(codes) or 'nothing'}"
    if findings and (case.healthy or (case.expect == "GO" and not case.codes)):
        yield f"nothing is wrong, yet it says {findings[0]['code']}: {findings[0]['message'][:200]}"


def _kept(case: Case, played: Played) -> Iterator[str]:
    """Reports, every artifact that the result lists, and what the case must have left."""
    if played.result is None or played.folder is None:
        if case.expect != "UNABLE":
            yield "there is no result.json"
        return
    for name in _WRITTEN:
        if not (played.folder / name).is_file() or not (played.folder / name).stat().st_size:
            yield f"{name} is missing or empty"
    for artifact in played.result["artifacts"]:
        path = played.folder / str(artifact["path"])
        if not path.is_file():
            yield f"the artifact {artifact['path']} is listed and not there"
        elif artifact["sha256"] and hashlib.sha256(path.read_bytes()).hexdigest() != artifact["sha256"]:
            yield f"the artifact {artifact['path']} is not what was hashed"
    for pattern in case.evidence:
        if not any(path.is_file() and path.stat().st_size for path in played.folder.glob(pattern)):
            yield f"evidence is lost: nothing matches {pattern}"
