"""Two ends with the same settings: what else differs between them, and the commands that search their commits."""

from __future__ import annotations

import shlex
from pathlib import Path

from validator.model.runbook import TrainingPhase
from validator.pipeline.evaluate import stored_report
from validator.pipeline.inspect import facts_of, repeated
from validator.runs.folder import RunFolder, is_run_folder
from validator.text import listed

_REPEATS = 4
"""Runs of each commit: as few as show that one is not 5 % worse where runs vary by 2 %."""


def elsewhere(good: Path, bad: Path, *, phase: str | None = None) -> tuple[str, tuple[str, ...]]:
    """What two ends without a differing setting differ in, as a sentence, and the commands that search their commits.

    Args:
        phase: the phase that is compared; the first that trains by default.
    """
    same = f"{good} and {bad} do not differ in any setting"
    if not (is_run_folder(good) and is_run_folder(bad)):
        return f"{same}; `validator compare` of two run folders lists what else differs", ()
    facts = [facts_of(stored_report(RunFolder.open(one)).environment) for one in (good, bad)]
    names = [name for name in dict.fromkeys((*facts[0], *facts[1])) if facts[0].get(name) != facts[1].get(name)]
    if not names:
        return f"{same}, commit or fact of the machine that is recorded", ()
    commits = [one.get("git.sha") for one in facts]
    between = " → ".join(str(one)[:12] for one in commits)
    shown = [f"{name} ({between})" if name == "git.sha" else name for name in names]
    others = "" if len(names) == 1 else "; `validator compare` lists their values"
    known = [one for one in commits if one]
    search = _search(good, phase, (known[0], known[1])) if "git.sha" in names and len(known) == 2 else ()
    return f"{same}, but in {listed(shown, most=8)}{others}", search


def _search(good: Path, phase: str | None, commits: tuple[str, str]) -> tuple[str, ...]:
    """`git bisect` with a run of the phase at each commit; one that is not decided is skipped."""
    header = RunFolder.open(good).header
    training = (one.id for one in header.runbook.phases if isinstance(one, TrainingPhase))
    name = phase or next(training, None)
    wanted = {name: _REPEATS} if name else {}
    steps = (
        *(() if header.cwd == str(Path.cwd()) else (f"cd {shlex.quote(header.cwd)}",)),
        "d=$(mktemp -d)",
        f'{repeated(header, wanted)} --out "$d"',
        f'validator compare {shlex.quote(str(good.resolve()))} "$d"/*/ --not-worse-than 5%',
        "c=$?",
        "[ $c -le 1 ] || c=125",
        "exit $c",
    )
    return f"git bisect start {commits[1]} {commits[0]}", f"git bisect run sh -c {shlex.quote('; '.join(steps))}"
