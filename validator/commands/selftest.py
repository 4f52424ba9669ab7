"""`validator selftest`: injected faults and healthy runs with known answers."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from validator.commands.common import AsJson, answer, example, fail
from validator.errors import ExitCode
from validator.text import nearest

if TYPE_CHECKING:
    from validator.selftest.case import Case, CaseOutcome


@example("validator selftest", "validator selftest --only 'sigkill-*' --keep out/selftest")
def command(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this case, or those that match a pattern (nan, 'healthy-*')."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the cases and run none.")] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the files of all cases in a new or empty folder.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", min=1, max=64, help="Cases at a time.")] = None,
    as_json: AsJson = False,
) -> None:
    """Inject known faults and check that verdict and cause come out right; exit code 1 if any does not."""
    from validator.selftest.cases import CASES
    from validator.selftest.run import CaseProgress, case_lines, has_torch, run_selftest, selftest_lines

    cases = _chosen(CASES, only, as_json=as_json)
    left_out = [case.name for case in cases if case.torch] if not (only or list_ or has_torch()) else []
    cases = [case for case in cases if case.name not in left_out]
    if list_:
        answer(lambda: [_case_json(case) for case in cases], case_lines, cases, as_json=as_json)
        return
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise fail(f"--keep {keep}: the folder exists and is not empty; name a new one", as_json=as_json)
    progress = CaseProgress()
    try:
        done = run_selftest(cases, jobs=jobs, keep=keep, on_outcome=progress.report)
    except OSError as error:
        raise fail(
            f"the cases cannot be run: {error.strerror or error}", code=ExitCode.UNABLE, as_json=as_json
        ) from None
    finally:
        progress.close()
    folder = None if done.folder is None else str(done.folder)
    head = {"schema_version": 1, "ok": done.ok, "duration_s": done.duration_s, "folder": folder, "left_out": left_out}
    shown = {**head, "cases": [_outcome_json(one) for one in done.outcomes]}
    answer(lambda: shown, selftest_lines, done, left_out, as_json=as_json)
    raise typer.Exit(ExitCode.GO if done.ok else ExitCode.NO_GO)


def _chosen(cases: Sequence[Case], only: Sequence[str] | None, *, as_json: bool) -> list[Case]:
    """The cases that any of the names or patterns matches, in their own order."""
    names = [case.name for case in cases]
    for pattern in only or ():
        if not fnmatch.filter(names, pattern):
            hint = nearest(pattern, names, "`validator selftest --list` names them", cutoff=0.6)
            raise fail(f"--only {pattern}: there is no such case; {hint}", as_json=as_json)
    return [case for case in cases if not only or any(fnmatch.fnmatch(case.name, pattern) for pattern in only)]


def _case_json(case: Case) -> dict[str, Any]:
    expected = {"expected": case.expect, "expected_codes": list(case.codes), "needs_torch": case.torch}
    return {"name": case.name, "title": case.title, "group": case.group, **expected}


def _outcome_json(outcome: CaseOutcome) -> dict[str, Any]:
    found = {"decision": outcome.decision, "codes": list(outcome.codes), "wrong": list(outcome.wrong)}
    folder = None if outcome.folder is None else str(outcome.folder)
    return {**_case_json(outcome.case), "ok": outcome.ok, **found, "duration_s": outcome.duration_s, "folder": folder}
