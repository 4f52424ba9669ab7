"""What a kind of phase is, and what is common to those that start processes and to those that train.

A kind's file loads nothing slow, for `check` loads those of every kind that a runbook names: what it needs to plan, to
read and to judge its runs is handed to it. What it defines are named tuples, which take a fifth of the time of data
classes to make; evidence of a run stays a data class, for it is masked as one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

from validator.model.phases import PhaseBase, ProcessPhase
from validator.model.runbook import Runbook, Setting
from validator.model.settings import args_of, flat_name, repeats_of, setting_text
from validator.model.training_phases import TrainingPhase
from validator.runbook.build import Built
from validator.runbook.document import Path as Place
from validator.runbook.problems import Problem

if TYPE_CHECKING:
    from pathlib import Path

    from validator.cluster.search import Search
    from validator.ingest.result_builder import ResultBuilder
    from validator.model.cluster import Groups
    from validator.model.launching import ProbeModule
    from validator.model.plan import Role, RunSpec, Started
    from validator.model.record import Outcome, PhaseRecord, RunRecord, ValidationRecord
    from validator.model.remedy import Remedy
    from validator.model.result import Result, RunEvidence
    from validator.model.verdict import Check, SettingEffect
    from validator.stats.measure import RunMeasurement

E = TypeVar("E")

Words = tuple[str, str]
"""What is wrong, and what to write instead."""


class Site(NamedTuple):
    """A phase in the runbook that is checked."""

    built: Built
    runbook: Runbook
    place: int

    def path(self, *keys: str | int) -> Place:
        """The path of something in the phase."""
        return ("phases", self.place, *keys)

    def problem(self, message: str, fix: str, *keys: str | int, key: bool = False) -> Problem:
        """A problem at the value of `keys` in the phase, or at the last key itself."""
        return self.built.problem(self.path(*keys), message, fix, key=key)


# What a kind plans.

_MAX_NAME_CHARS = 80


def safe_name(text: str) -> str:
    """The name of an arm, fit for a folder; two that would be alike once made safe get different ones."""
    safe = re.sub(r"[^A-Za-z0-9._=,+-]", "_", text)  # `path/to a` becomes `path_to_a`
    if safe == text and 0 < len(safe) <= _MAX_NAME_CHARS and not safe.startswith("."):
        return safe
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{safe[:_MAX_NAME_CHARS].lstrip('.')}-{digest}"


class PlannedArm(NamedTuple):
    """One configuration of a phase; without a name where the phase has only one."""

    name: str | None = None
    env: Mapping[str, Setting] = {}
    args: Mapping[str, Setting] = {}

    @property
    def settings(self) -> dict[str, Setting]:
        """What distinguishes it: `env.NAME` or `args.NAME` to value."""
        return {**{f"env.{k}": v for k, v in self.env.items()}, **{f"args.{k}": v for k, v in self.args.items()}}


class Planner(Protocol):
    """What makes the runs of a phase: it knows their folders, their environment and what placeholders mean there."""

    @property
    def runbook(self) -> Runbook: ...

    @property
    def run_dir(self) -> Path: ...

    @property
    def python(self) -> str: ...

    @property
    def groups(self) -> Groups: ...

    @property
    def nodes(self) -> int: ...

    def among(self, groups: Groups) -> Planner:
        """The same on other groups of nodes."""

    def values(self, phase: PhaseBase, *parts: str, nproc: int = 0) -> dict[str, object]:
        """What each placeholder means in the run `parts` of the phase; `out` is its folder."""

    def process(
        self,
        phase: PhaseBase,
        argv: Sequence[str],
        *,
        part: str = "r1",
        launcher: Started = "python",
        role: Role = "measure",
        nproc: int = 0,
        timeout_s: float | None = None,
        retries: int | None = None,
        stdout: str | None = None,
    ) -> RunSpec:
        """A run of any program, `argv` as it is started; by default with the time and the retries of the phase."""

    def training(
        self,
        phase: TrainingPhase,
        arm: PlannedArm,
        *,
        repeat: int,
        role: Role = "measure",
        command: Sequence[str] | None = None,
    ) -> RunSpec:
        """A run of the trainer as one arm of the phase; `command` is what starts it in place of `trainer.command`."""

    def probe(self, nproc: int, values: Mapping[str, object], module: ProbeModule = "probe") -> tuple[str, ...]:
        """What starts probes in `nproc` processes; 0 starts one without torchrun. Their arguments may follow."""

    def flags(
        self, phase: TrainingPhase, values: Mapping[str, object], *, without: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """The trainer's arguments in a run of the phase, as words of a command."""


# What a kind judges.


class Seen(NamedTuple):
    """Where a claim can be checked: a text, the file that holds it relative to the run folder, and the place in it."""

    text: str
    path: str | None = None
    where: str | None = None


class Found(NamedTuple):
    """What one run says about one implicit criterion."""

    status: Literal["PASS", "FAIL", "INCONCLUSIVE", "SKIPPED"]
    message: str
    observed: float | str | None = None
    bound: float | str | None = None
    evidence: tuple[Seen, ...] = ()
    unit: str = ""
    margin: float | None = None
    steps: int | None = None
    """What would decide it where it is open: so many steps of a run."""


class JudgedRun(NamedTuple):
    """A run as the rules see it: what was planned, how it ended, what was read and what was measured."""

    record: RunRecord
    measurement: RunMeasurement | None = None

    @property
    def spec(self) -> RunSpec:
        """As planned."""
        return self.record.spec

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs."""
        return self.record.outcome

    @property
    def result(self) -> Result | None:
        """What was read; None before it ran."""
        return self.record.result

    def scalar(self, name: str) -> Any:
        """The value of a scalar; None where it is not known."""
        found = None if self.result is None else self.result.scalars.get(name)
        return None if found is None else found.value

    def number(self, name: str) -> float | None:
        """The value of a scalar that is a number."""
        value = self.scalar(name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def scalar_source(self, name: str) -> str | None:
        """The file that a scalar was read from."""
        found = None if self.result is None else self.result.scalars.get(name)
        return None if found is None else found.source

    @property
    def evidence(self) -> RunEvidence:
        """What was read besides series and scalars; empty before it ran."""
        return self.record.evidence

    def own(self, kind: type[E]) -> E | None:
        """What the run's kind read, where it is of that class."""
        return self.evidence.own if isinstance(self.evidence.own, kind) else None

    def source(self, ending: str) -> str | None:
        """The file with that ending among those that were read."""
        sources = () if self.result is None else self.result.sources
        return next((source.path for source in sources if source.path.endswith(ending)), None)


Rule = Callable[[JudgedRun], Found]


def _always(runs: Sequence[JudgedRun]) -> bool:
    return True


class ImplicitCriterion(NamedTuple):
    """What a phase must satisfy although its runbook does not ask for it.

    Attributes:
        name: behind the phase's id: `baseline.exit`.
        text: what must hold.
        rule: judges one run; the worst run of the phase decides.
        role: runs that it is about; where the phase has none of another role than `measure`, the criterion is left out.
        required: whether it decides the phase, by the runs of the phase. A trainer that cannot report what the rule
            needs is recorded as such, and not failed for it.
        final: whether no further step of an interrupted run can undo its failure.
        whole: whether its rule is about all runs of the phase together, so that it is asked once.
    """

    name: str
    text: str
    rule: Rule
    role: Role = "measure"
    required: Callable[[Sequence[JudgedRun]], bool] = _always
    final: bool = False
    whole: bool = False


# What a kind is.

P = TypeVar("P", bound=PhaseBase)


class Kind(Generic[P]):
    """One kind of phase. What it does not override is what a phase does that starts nothing."""

    schema: type[P]
    """Its keys, and the numbers that its criteria may name."""

    must_ask = False
    """Whether a phase of the kind that asks for nothing forbids GO: a run of the declared config that nothing depends
    on looks like a proof and is none."""

    restricts: tuple[str, ...] = ()
    """Settings of the trainer that it restricts: one without effect is not a config that was ignored."""

    free: tuple[str, ...] = ()
    """What a remedy may change although the declared config must stay: `env.NAME`, `args.NAME` or `steps`."""

    looks = False
    """Whether it judges the machine, so that on a cluster the agent of each node looks at it and makes the checks."""

    looks_back = False
    """Whether it compares what it measures with the last GO though no criterion names it."""

    relies_on: tuple[str, ...] = ()
    """Files that its verdict rests on besides those of `trainer.metrics`."""

    asks_unwritten: tuple[tuple[str, ...], str] | None = None
    """Names of its implicit criteria, and what they ask: a line of the reference."""

    @property
    def name(self) -> str:
        """As a runbook names it."""
        return str(get_args(self.schema.model_fields["kind"].annotation)[0])

    def check(self, phase: P, site: Site) -> Iterator[Problem]:
        """Problems of a phase that only its kind can find."""
        yield from ()

    def asks(self, phase: P, runbook: Runbook) -> bool:
        """Whether a PASS can carry a GO though no criterion is written."""
        return False

    def env(self, phase: P) -> dict[str, Setting]:
        """What the environment of its runs must hold for the phase to be of this kind."""
        return {}

    def arms(self, phase: P) -> tuple[PlannedArm, ...]:
        """The configurations that it runs, in the order in which the first repeat runs them."""
        return (PlannedArm(),)

    def runs(self, phase: P, planner: Planner) -> Iterator[RunSpec]:
        """Its runs, in the order in which they are started."""
        yield from ()

    def checks(self, phase: P, *, runbook: Runbook, run_dir: Path, python: str) -> tuple[Check, ...]:
        """Checks of the machine, before any run; `python` is the trainer's interpreter."""
        return ()

    def further(self, phase: P, planner: Planner, runs: Sequence[RunRecord]) -> Iterator[RunSpec]:
        """What its runs on a cluster call for next; nothing once they say enough."""
        yield from ()

    def good_nodes(self, phase: P, runbook: Runbook, runs: Sequence[RunRecord]) -> tuple[str, ...]:
        """The nodes that later phases run on, the best first; empty where its runs say nothing of them."""
        return ()

    def searched(self, phase: P, runbook: Runbook, runs: Sequence[RunRecord]) -> Search | None:
        """The slow-node search as far as its runs have come; None where it makes none."""
        return None

    def sample_s(self, spec: RunSpec) -> float | None:
        """Seconds between samples of the machine during a run; None where it is over before a sample says anything."""
        return None if spec.steps is None else 1.0

    def read(self, spec: RunSpec, gathered: ResultBuilder, log: Path | None) -> None:
        """Add to what was read of a run; `log` is what it printed. Nothing in a folder raises."""

    def criteria(self, phase: P, runbook: Runbook) -> Iterator[ImplicitCriterion]:
        """What it must satisfy besides what every process or every run of a trainer must."""
        yield from ()

    def measured_criteria(self, record: PhaseRecord, validation: ValidationRecord) -> Iterator[ImplicitCriterion]:
        """The same as far as it depends on the machine, once the phase has runs."""
        yield from ()

    def effects(self, phase: P, runs: Sequence[RunRecord]) -> tuple[SettingEffect, ...]:
        """What the settings that it changes on purpose changed; empty for a kind that changes none."""
        return ()

    def out_of_reach(self, runs: Sequence[JudgedRun]) -> str | None:
        """Why the phase could not be carried out from this machine, so that it is skipped, and what that leaves
        unproven, as clauses; None where it could."""
        return None


Q = TypeVar("Q", bound=ProcessPhase)


class ProcessKind(Kind[Q]):
    """A kind that starts processes."""

    def check(self, phase: Q, site: Site) -> Iterator[Problem]:
        """Problems of the remedies."""
        seen: set[str] = set()
        for position, remedy in enumerate(phase.on_failure):
            if remedy.name in seen:
                message = f"on_failure of {phase.id} names {remedy.name} twice; each remedy is tried once"
                yield site.problem(message, "remove one of the two, or rename it", "on_failure", position)
            seen.add(remedy.name)
            for message, fix in self._misfits(phase, remedy):
                yield site.problem(message, fix, "on_failure", position)

    def _misfits(self, phase: Q, remedy: Remedy) -> Iterator[Words]:
        if remedy.steps is not None and (why := self.refuses_steps(phase, remedy, remedy.steps)) is not None:
            yield why
        if remedy.args and not isinstance(phase, TrainingPhase):
            yield f"remedy {remedy.name} sets args, but {phase.id} runs no trainer", "use env, or remove it"
        varied = {key.replace("-", "_") for key in self.varied(phase)}
        for key in remedy.settings:
            if key.replace("-", "_") in varied:
                message = f"remedy {remedy.name} sets {key}, in which the arms of {phase.id} differ"
                yield message, "remove it; the arms would be alike"

    def varied(self, phase: Q) -> Iterator[str]:
        """The settings in which its arms differ: `env.NAME` or `args.NAME`."""
        yield from ()

    def refuses_steps(self, phase: Q, remedy: Remedy, steps: int) -> Words | None:
        """Why a remedy may not run fewer steps; None where it may."""
        message = f"remedy {remedy.name} shortens {phase.id}, but only a profile says the same with fewer steps"
        return message, f"remove {remedy.name}, or its steps"


T = TypeVar("T", bound=TrainingPhase)


class TrainingKind(ProcessKind[T]):
    """A kind whose runs are runs of the trainer."""

    def asks(self, phase: T, runbook: Runbook) -> bool:
        """A text that rank 0 must print could be absent."""
        return bool(phase.log_contains)

    def runs(self, phase: T, planner: Planner) -> Iterator[RunSpec]:
        """Every arm, `repeats` times: forwards, backwards, forwards …, so that a drift hits every arm alike."""
        arms = self.arms(phase)
        for repeat in range(1, repeats_of(planner.runbook, phase) + 1):
            for arm in arms if repeat % 2 else arms[::-1]:
                yield planner.training(phase, arm, repeat=repeat)

    def check_env(self, phase: T, site: Site, settings: Mapping[str, str]) -> Iterator[Problem]:
        """What the kind needs in the environment may not be set otherwise by the phase, nor overruled by an argument.

        Args:
            settings: variable to the setting of the bundled trainer that it sets.
        """
        for name, value in self.env(phase).items():
            own = phase.env.get(name)
            if own is not None and setting_text(own) != setting_text(value):
                message = f"{name} is {setting_text(own)}, but a phase of kind {self.name} needs {setting_text(value)}"
                key = name.removeprefix("NSA_").lower()  # of the phase, if it has one: NSA_PROFILE_STEPS, profile_steps
                fix = f"set {key} of the phase" if key in self.schema.model_fields else f"remove {name}"
                yield site.problem(message, fix, "env", name, key=True)
        given = {flat_name(key): key for key in args_of(site.runbook, phase)} if site.runbook.trainer.bundled else {}
        for name, setting in settings.items():
            if setting in given:
                message = f"args.{given[setting]} overrules {name}, which phase {phase.id} needs as a {self.name}"
                where = _given_at(site, phase, given[setting])
                yield site.built.problem(where, message, f"remove {given[setting]} from args", key=True)


def _given_at(site: Site, phase: TrainingPhase, key: str) -> Place:
    if key in phase.args:
        return site.path("args", key)
    if key in site.runbook.defaults.args:
        return ("defaults", "args", key)
    return ("trainer", "trial_args" if key in site.runbook.trainer.trial_args else "args", key)
