"""A bisection carried out: both ends measured, the search run trial by trial, the answer written."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from validator.bisect.answer import bisection
from validator.bisect.search import BudgetSpent, Explanation, NoDifference, search
from validator.bisect.side import End, differences, read_end
from validator.bisect.trials import Ends, Trial, Trials, measured_rate, trial_spec
from validator.files import Tree
from validator.folder import FolderError, utc_now
from validator.model.base import Frozen
from validator.model.bisection import Bisection, BisectionOutcome
from validator.model.runbook import Runbook

if TYPE_CHECKING:
    from validator.execute.cancel import CancelToken
    from validator.execute.guardian import Guardian
    from validator.execute.journal import Journal

__all__ = ["Request", "bisect", "resume"]

Tell = Callable[[str], None]


class Interrupted(Exception):
    """The user asked to stop; what has been run is kept."""


@dataclass(frozen=True)
class Request:
    """What the user asked for. None leaves it to what the good end declares."""

    good: Path
    bad: Path
    phase: str | None = None
    metric: str = "toks_per_s"
    statistic: Literal["mean", "p50"] = "mean"
    steps: int | None = None
    warmup_steps: int | None = None
    timeout_s: float = 600.0
    max_runs: int = 24
    repeats: int = 3
    parent: Path = Path("reports")
    lock: bool = True


class Header(Frozen):
    """request.json: written once at the start, so that the bisection can be taken up again."""

    schema_version: int = 1
    good: End
    bad: End
    metric: str
    statistic: Literal["mean", "p50"] = "mean"
    steps: int
    warmup_steps: int
    timeout_s: float
    max_runs: int
    repeats: int
    started: str
    cwd: str
    python: str = Field(default_factory=lambda: sys.executable)


def bisect(request: Request, *, tell: Tell) -> Bisection:
    """Find the few settings that make `bad` differ from `good`.

    Raises:
        FolderError: when an end cannot be read, or the two do not differ.
        Unable: when the machine is held by another validation, or the disk refuses.
    """
    good, bad = read_end(request.good, phase=request.phase), read_end(request.bad, phase=request.phase)
    if not differences(good, bad):
        raise FolderError(f"{good.name} and {bad.name} do not differ in any setting, so there is nothing to search")
    steps = good.steps if request.steps is None else request.steps
    warmup = min(good.warmup_steps, steps // 4) if request.warmup_steps is None else request.warmup_steps
    if warmup >= steps:
        raise FolderError(f"--warmup-steps {warmup} leaves nothing of {steps} steps; give fewer, or more --steps")
    header = Header(
        good=good,
        bad=bad,
        metric=request.metric,
        statistic=request.statistic,
        steps=steps,
        warmup_steps=warmup,
        timeout_s=request.timeout_s,
        max_runs=request.max_runs,
        repeats=request.repeats,
        started=utc_now(),
        cwd=str(Path.cwd()),
    )
    root = request.parent.resolve() / _name(header.started)
    with _disk(root, "validator bisect GOOD BAD"):
        root.mkdir(parents=True)
        told = header.model_copy(update={"good": _without_secrets(good), "bad": _without_secrets(bad)})
        (root / "request.json").write_text(told.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return _carry_out(header, root, lock=request.lock, tell=tell)


def _without_secrets(end: End) -> End:
    from validator.observe.redact import redact, redact_env

    args = {key: redact(value) if isinstance(value, str) else value for key, value in end.args.items()}
    env = redact_env({key: str(value) for key, value in end.env.items()})
    kept = {key: value if env[key] == str(value) else env[key] for key, value in end.env.items()}
    return end.model_copy(update={"args": args, "env": kept})


def _with_secrets(end: End) -> End:
    """With what was redacted taken from the environment again.

    Raises:
        FolderError: when it is not there.
    """
    from validator.observe.redact import REDACTED

    env = dict(end.env)
    for key, value in end.env.items():
        if REDACTED in str(value):
            if key not in os.environ:
                raise FolderError(f"{key} was a secret and is not stored; set it in the environment to resume")
            env[key] = os.environ[key]
    secret = next((key for key, value in end.args.items() if REDACTED in str(value)), None)
    if secret is not None:
        raise FolderError(f"the argument {secret} was a secret and is not stored; begin anew with GOOD and BAD")
    return end.model_copy(update={"env": env})


def _name(started: str) -> str:
    stamp = re.sub(r"[-:]|\.\d+", "", started)
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:24] or "host"
    return f"{stamp}-bisect-{host}-{secrets.token_hex(2)}"


def resume(root: Path, *, lock: bool = True, tell: Tell) -> Bisection:
    """Go on with a bisection that was interrupted; no run that has ended is repeated.

    Raises:
        FolderError: when `root` is no folder of a bisection.
        Unable: when the machine is held by another validation, or the disk refuses.
    """
    try:
        with Tree(root) as tree:
            header = Header.model_validate_json(tree.read("request.json"))
    except (OSError, ValueError) as error:
        raise FolderError(f"{root} is no folder of a bisection: request.json cannot be read") from error
    header = header.model_copy(update={"good": _with_secrets(header.good), "bad": _with_secrets(header.bad)})
    here = Path.cwd()
    try:
        os.chdir(header.cwd)
    except (OSError, ValueError) as error:
        raise FolderError(f"{header.cwd!r}, where the bisection was started, is no folder any more") from error
    try:
        return _carry_out(header, root.resolve() if root.is_absolute() else here / root, lock=lock, tell=tell)
    finally:
        os.chdir(here)


@contextmanager
def _disk(root: Path, command: str) -> Iterator[None]:
    from validator.stages.session import disk_errors

    with disk_errors(root, command=command):
        yield


def _carry_out(header: Header, root: Path, *, lock: bool, tell: Tell) -> Bisection:
    from validator.execute.cancel import CancelToken, cancel_on_signals
    from validator.execute.guardian import Guardian
    from validator.execute.journal import Journal, JournalBusy, read
    from validator.observe.redact import redact
    from validator.stages.session import Unable, locked, require_hardware

    machine = Runbook.model_validate(
        {"schema": 1, "name": "bisect", "hardware": header.good.hardware, "phases": [{"id": "p", "kind": "preflight"}]}
    )
    require_hardware(machine)
    token, cancel = secrets.token_hex(16), CancelToken()
    with ExitStack() as stack:
        stack.callback(cancel.close)
        stack.enter_context(locked(machine, enabled=lock)).name(root)
        stack.enter_context(_disk(root, f"validator bisect --resume {root}"))
        try:
            journal = stack.enter_context(Journal.open(root / "journal.jsonl", redact=redact))
        except JournalBusy as error:
            raise Unable(f"{root.name} is being worked on by another process; wait for it or stop it") from error
        earlier = read(root / "journal.jsonl")
        _end_leftovers([str(event.fields["marker"]) for event in earlier if event.fields.get("marker")])
        journal.append("resumed" if earlier else "started", marker=token)
        stack.enter_context(cancel_on_signals(cancel))
        guardian = stack.enter_context(Guardian.start(token=token, report=root / "guardian.txt"))
        lab = _Lab(header, root, journal, guardian, cancel, token, tell)
        trials = Trials(
            names=tuple(differences(header.good, header.bad)),
            metric=header.metric,
            statistic=header.statistic,
            run_cv=header.good.run_cv,
            budget=header.max_runs,
            start=lab.run,
            done=[_trial(event.fields["trial"]) for event in earlier if event.event == "trial_ended"],
        )
        answer = _answer(header, root, trials, tell)
        journal.append("finished" if answer.outcome != "interrupted" else "interrupted", outcome=answer.outcome)
        (root / "bisect.json").write_text(answer.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return answer


def _end_leftovers(markers: list[str]) -> None:
    from validator.execute.tree import end_marked

    for marker in markers:
        end_marked(marker)


def _trial(fields: dict[str, Any]) -> Trial:
    return Trial(**{**fields, "names": frozenset(fields["names"])})


@dataclass(frozen=True)
class _Lab:
    """Where trials are carried out."""

    header: Header
    root: Path
    journal: Journal
    guardian: Guardian
    cancel: CancelToken
    token: str
    tell: Tell

    def run(self, number: int, names: frozenset[str]) -> Trial:
        """One short run of a combination, to its end or its time limit."""
        from validator.collect import collect_run
        from validator.execute.supervisor import supervise
        from validator.stages.secrets import clean_result, clean_spec, mask_of

        header = self.header
        spec = trial_spec(
            header.good,
            header.bad,
            names,
            number=number,
            steps=header.steps,
            warmup_steps=header.warmup_steps,
            timeout_s=header.timeout_s,
            run_dir=self.root,
        )
        self.tell(f"run {number} of at most {header.max_runs}: {_named(names, differences(header.good, header.bad))}")
        mask = mask_of(spec)
        outcome = supervise(
            spec,
            run_dir=self.root,
            journal=self.journal,
            token=self.token,
            cancel=self.cancel,
            guardian=self.guardian,
            redact=mask.sentence,
            mask=mask.block,
            told=clean_spec(spec),
        )
        if self.cancel.requested or outcome.reason == "interrupted":
            raise Interrupted
        result = clean_result(collect_run(spec, run_dir=self.root, outcome=outcome))
        value, half, why = measured_rate(
            result, outcome, metric=header.metric, statistic=header.statistic, warmup_steps=header.warmup_steps
        )
        trial = Trial(number, names, value, half, why, outcome.duration_s)
        fields = {**trial.__dict__, "names": sorted(names)}
        self.journal.append("trial_ended", trial=fields)
        shown = f"{header.metric} {value:.4g}" if value is not None else f"no value: {why}"
        self.tell(f"  {shown} in {outcome.duration_s:.0f} s")
        return trial


def _named(names: frozenset[str], all_names: dict[str, Any]) -> str:
    if not names:
        return "good as it is"
    if len(names) == len(all_names):
        return "all settings from bad"
    return f"from bad: {', '.join(name for name in all_names if name in names)}"


def _answer(header: Header, root: Path, trials: Trials, tell: Tell) -> Bisection:
    """Measure both ends, search between them, and put what came of it into words."""
    found: Explanation | None = None
    outcome: BisectionOutcome = "explained"
    why = ""
    try:
        trials.ends, why = _ends(header, trials)
        if trials.ends is None:
            outcome = "no_difference"
        else:
            found = search(trials.names, trials.ask, repeats=header.repeats)
            outcome = "explained" if found.complete else "budget_spent"
    except NoDifference as problem:
        outcome, why = "not_in_settings", str(problem)
    except BudgetSpent:
        outcome, why = "budget_spent", f"{header.max_runs} runs were not enough to measure both ends"
    except Interrupted:
        outcome, why = "interrupted", "stopped by the user"
    good, bad = _without_secrets(header.good), _without_secrets(header.bad)
    return bisection(
        good, bad, differences(header.good, header.bad), trials, found, outcome=outcome, why=why, folder=root
    )


def _ends(header: Header, trials: Trials) -> tuple[Ends | None, str]:
    """Both ends, run until they can be told apart or `repeats` is reached; (None, why) when they cannot.

    They are taken in turns, so that a drift of the machine hits both.
    """
    whole = frozenset(trials.names)
    least = max(header.good.min_effect, 0.05)
    for _ in range(header.repeats):
        good, bad = trials.next(frozenset()), trials.next(whole)
        if all(trial.value is None for trial in good):
            return None, f"good itself does not run: {good[-1].why}"
        if any(trial.value is None for trial in bad):
            return Ends(trials.estimate(good), None, works=True), ""
        ends = Ends(trials.estimate(good), trials.estimate(bad), works=False)
        assert ends.good is not None, "good has a value"
        assert ends.bad is not None, "bad has a value"
        ratio = ends.bad.point / ends.good.point
        overlap = _overlap(ends)
        if not overlap and abs(ratio - 1.0) >= least:
            return ends, ""
    return None, (
        f"good and bad cannot be told apart after {header.repeats} runs each: {header.metric} differs by "
        f"{100 * (ratio - 1):+.1f} %, and at least {100 * least:g} % is needed; try more --steps or --repeats"
    )


def _overlap(ends: Ends) -> bool:
    """Whether the intervals of good and bad have values in common."""
    first = ends.good.interval() if ends.good is not None else None
    second = ends.bad.interval() if ends.bad is not None else None
    return first is None or second is None or (first[0] <= second[1] and second[0] <= first[1])
