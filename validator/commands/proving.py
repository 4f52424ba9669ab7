"""The command that proves validator itself on the user's machine: selftest."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from validator.commands.common import GO, NO_GO, UNABLE, USAGE, AsJson, example, fail, print_json

if TYPE_CHECKING:
    from validator.selftest import Outcome
    from validator.selftest.case import Case

__all__ = ["selftest"]


@example("validator selftest", "validator selftest --only 'sigkill-*' --keep out/selftest")
def selftest(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Play this case, or those that match a pattern (nan, 'healthy-*')."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the cases and play none.")] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep everything that the cases leave, in a new or empty folder.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", min=1, max=64, help="Cases at a time.")] = None,
    as_json: AsJson = False,
) -> None:
    """Bring about faults on purpose and check that verdict and cause come out right; exit code 1 if any does not."""
    from validator.selftest import CASES, run_selftest
    from validator.selftest.screen import Progress, print_cases, print_selftest

    cases = _chosen(CASES, only, as_json=as_json)
    if list_:
        if as_json:
            print_json([_case(case) for case in cases])
        else:
            print_cases(cases)
        return
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise fail(f"--keep {keep}: is there and not empty; name a new folder", USAGE, as_json=as_json)
    progress = Progress()
    try:
        done = run_selftest(cases, jobs=jobs, keep=keep, tell=progress.tell)
    except OSError as error:
        raise fail(f"the cases cannot be played: {error.strerror or error}", UNABLE, as_json=as_json) from None
    finally:
        progress.close()
    if as_json:
        folder = None if done.folder is None else str(done.folder)
        told = {"ok": done.ok, "duration_s": done.duration_s, "folder": folder}
        print_json({"schema_version": 1, **told, "cases": [_outcome(one) for one in done.outcomes]})
    else:
        print_selftest(done)
    raise typer.Exit(GO if done.ok else NO_GO)


def _chosen(cases: Sequence[Case], only: Sequence[str] | None, *, as_json: bool) -> list[Case]:
    """The cases that any of the names or patterns matches, in their own order."""
    names = [case.name for case in cases]
    for pattern in only or ():
        if not fnmatch.filter(names, pattern):
            near = difflib.get_close_matches(pattern, names, 1)
            hint = f"; did you mean {near[0]}?" if near else "; `validator selftest --list` names them"
            raise fail(f"--only {pattern}: there is no such case{hint}", USAGE, as_json=as_json)
    return [case for case in cases if not only or any(fnmatch.fnmatch(case.name, pattern) for pattern in only)]


def _case(case: Case) -> dict[str, Any]:
    expected = {"expected": case.expect, "expected_codes": list(case.codes), "needs_torch": case.torch}
    return {"name": case.name, "title": case.title, "group": case.group, **expected}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    found = {"decision": outcome.decision, "codes": list(outcome.codes), "wrong": list(outcome.wrong)}
    folder = None if outcome.folder is None else str(outcome.folder)
    return {**_case(outcome.case), "ok": outcome.ok, **found, "duration_s": outcome.duration_s, "folder": folder}
