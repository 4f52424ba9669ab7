"""The parts of a runbook except its phases: criteria, hardware, trainer, defaults, watchdog.

Field descriptions are the text of `docs/runbook-reference.md`, so keep them exact.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from validator.model.budget import found_in
from validator.model.findings import FindingCode
from validator.model.launching import Argument as Argument
from validator.model.launching import Container, Launcher, Paths, Stop
from validator.model.metrics import BUNDLED_METRICS, MetricsField
from validator.model.pattern import PatternError, compiled
from validator.model.units import Duration, Flag, Frozen, Reads, Size
from validator.model.units import Identifier as Identifier

Setting = str | int | float | bool
"""A value that a runbook may give to an environment variable or a trainer argument."""

Count = Annotated[int, Field(strict=True)]
"""A whole number written as one: `true` and `"300"` are mistakes, not 1 and 300."""


class Criterion(Frozen, defer_build=False):
    """One acceptance criterion. As plain text it is required."""

    expr: str = Field(description="`metric.statistic operator value [unit]`, see the grammar of criteria.")
    required: Flag = Field(True, description="Whether failing it makes the decision NO-GO.")
    why: str | None = Field(None, description="Why the bound is what it is; shown beside the verdict.")
    without_last_go: Literal["inconclusive", "skip"] = Field(
        "inconclusive",
        description="What a criterion that names `last_go` is where there is no last GO to compare with: "
        "`inconclusive`, which is no GO, or `skip`, and then the other criteria decide alone.",
    )


def _criterion(value: Any) -> Any:
    return {"expr": value} if isinstance(value, str) else value


CriterionField = Annotated[Criterion, Reads(_criterion, written=str | Criterion)]


class Hardware(Frozen):
    """What the runbook was written for. Preflight checks it; a machine without the GPUs ends in exit 4."""

    gpus: Annotated[Count, WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "all"}]})] = Field(
        0,
        ge=0,
        description="GPUs needed; 0 means that the runbook runs on the CPU, `all` as many as the machine has when the "
        "runbook is read.",
    )
    name: str | None = Field(None, description="Regular expression that every GPU's name must contain.")
    interconnect: Literal["pcie", "nvlink", "any"] = Field("any", description="Interconnect of the GPUs.")
    gpu_memory: Size | None = Field(None, description="Minimum memory of each GPU.")
    gpu_clock: Count | None = Field(None, ge=1, description="Clock in MHz that each GPU must be allowed to reach.")
    gpu_power: Count | None = Field(None, ge=1, description="Power limit in W that each GPU must have at least.")
    cpu_cores: Count | None = Field(None, ge=1, description="Minimum CPU cores that this process may use.")
    memory: Size | None = Field(None, description="Minimum host memory available at the start.")
    disk_free: Size | None = Field(None, description="Minimum free space where results are written.")
    price_per_gpu_hour: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Price of an hour of one GPU; gives `cost.per_million_tokens` and `cost.planned_run` of phases of "
        "one config. A phase has as many GPUs as ranks, or all of `gpus` where no number of ranks is known.",
    )
    currency: str = Field(
        "",
        pattern=r"^[A-Za-z]{0,12}$",
        description="Currency of the price in letters, such as USD; shown, and checked where a criterion writes one.",
    )

    @field_validator("name")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                compiled(value)
            except PatternError as error:
                raise ValueError(f"name {value!r} is not a regular expression: {error}") from error
        return value

    def fits(self, gpu: str) -> bool:
        """Whether a GPU of this name is of the declared kind; any is where none is declared."""
        return self.name is None or found_in(self.name, gpu)


class Trainer(Frozen):
    """The program under validation. Leave it out for the bundled one."""

    command: tuple[Argument, ...] = Field(
        ("-m", "nsa.train"),
        description="What the launcher is given: a script, or `-m` and a module, with its arguments. With "
        "`launcher: plain` the program itself.",
    )
    launcher: Launcher | None = Field(
        None,
        description="What starts the ranks; default is torchrun where `nproc` is 1 or more, and python where it is 0. "
        "python and plain start one process, which may start ranks itself: `nproc` is their number then, and 0, "
        "unknown, where the runbook does not say.",
    )
    launcher_args: tuple[Argument, ...] = Field(
        (), description="Further arguments of the launcher, before the command; of python, options such as `-u`."
    )
    python: str | None = Field(
        None,
        description="The trainer's Python, or its virtual environment's folder, relative to the runbook; default is "
        "validator's own. With `container` the name of a Python in the image, by default `python`.",
    )
    args: dict[str, Setting] = Field(
        default_factory=lambda: dict[str, Setting](steps="{steps}", out="{out}"),
        description="Passed as `--key value`; true becomes `--key`, false leaves it out. Placeholders are filled in. "
        "What is given here replaces both defaults, but the bundled trainer always gets them. Each default is left out "
        "where the command holds its placeholder itself, and `out` also where every metric is read from what the "
        "trainer prints, or by a reader, and `steps` with `stop: at_steps`.",
    )
    trial_args: dict[str, Setting] = Field(
        default_factory=dict,
        description="Further arguments for the short runs of a validation alone, such as a learning rate that warms up "
        "within them; the recommended command leaves them out.",
    )
    metrics: MetricsField = Field(
        BUNDLED_METRICS,
        description="Where its measurements are read from; default, for any trainer, `training.csv`, "
        "`heartbeat_rank{rank}.jsonl`, `env.json` and `metrics.json`. Where it is given, only those that it names: a "
        "reader (`nanogpt`), a list of them, or a mapping as below.",
    )
    tokens_per_step: Count | None = Field(
        None,
        ge=1,
        description="Tokens of an optimizer step, all ranks and micro-batches together. With it, `toks_per_s` is "
        "checked against the validator's own clock, and follows from the time of a step where the trainer writes no "
        "rate. Phases that train on another number set their own.",
    )
    planned_tokens: Count | None = Field(
        None, ge=1, description="Tokens of the long run that is decided about; gives `cost.planned_run`."
    )
    planned_steps: Count | None = Field(
        None, ge=1, description="The same in optimizer steps, each of the tokens that a step of the phase has."
    )
    workdir: str | None = Field(
        None,
        description="The trainer's working directory, relative to the runbook; default, and that of all other runs, "
        "is where `validator` was started.",
    )
    env_file: Paths = Field(
        (),
        description="Files of `KEY=VALUE` lines, relative to the runbook, for the environment of every run; what the "
        "runbook sets wins, of two files the later one.",
    )
    container: Container | None = Field(
        None,
        description="A container for the trainer, tests, probes and the data-loader smoke test. The run folder and the "
        "working directory are mounted under their own paths; the variables of a run are passed by name.",
    )
    stop: Stop = Field(
        "trainer",
        description="What ends a run. `trainer`: it does, by the number of steps that it is given. `at_steps`: it has "
        "no such setting, and validator ends it with SIGTERM once the steps are written, which is a normal end. Rows "
        "behind them do not count. Until its next row comes it may end by itself, and then its exit code counts. Where "
        "they are all that it does (`max_steps`, give or take a tenth), it has 10 s for that; where it idles then, the "
        "watchdog says that it hangs.",
    )
    max_steps: Count | None = Field(
        None,
        ge=1,
        description="Steps that it does at most, however many a phase has: by its data, or by a length of its own. A "
        "phase with more is an error. `init` writes it where it saw that length.",
    )
    cwd: str | None = Field(
        None, description="The same, relative to where `validator` was started. Give one of the two."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_args(cls, data: Any) -> Any:
        """A command that contains `{steps}` or `{out}` is not given `--steps` or `--out` as well.

        Nor is `--out` given to a trainer that only prints, or that a reader knows: most reject an option of no meaning.
        """
        if not isinstance(data, dict) or "args" in data or not isinstance(data.get("command"), (list, tuple)):
            return data
        command, metrics = " ".join(str(word) for word in data["command"]), data.get("metrics")
        named = isinstance(metrics, (str, list, tuple)) or (isinstance(metrics, dict) and "reader" in metrics)
        prints = named or (isinstance(metrics, dict) and set(metrics) == {"stdout"})
        left_out = {"out": prints, "steps": data.get("stop") == "at_steps"}
        missing = [name for name in ("steps", "out") if f"{{{name}}}" not in command and not left_out[name]]
        return {**data, "args": {name: f"{{{name}}}" for name in missing}}

    @model_validator(mode="after")
    def _one_length(self) -> "Trainer":
        if self.planned_tokens is not None and self.planned_steps is not None:
            raise ValueError("planned_tokens and planned_steps both say how long the run is; remove one of the two")
        return self

    @model_validator(mode="after")
    def _one_workdir(self) -> "Trainer":
        if self.workdir is not None and self.cwd is not None:
            raise ValueError("workdir and cwd are both given; keep workdir, which is relative to the runbook")
        return self

    @property
    def folder(self) -> str | None:
        """The working directory as the plan has it; None where it is that of `validator`."""
        return self.cwd if self.workdir is None else self.workdir

    @property
    def bundled(self) -> bool:
        """Whether this is the bundled trainer; a module of that name in a folder of the user's own is the user's."""
        return self.command == ("-m", "nsa.train") and self.workdir is None


class Watchdog(Frozen, defer_build=False):
    """When a run is stopped before its time. Slow is not stalled: predicted progress and activity decide."""

    first_step: Duration = Field(900.0, description="Longest silence before the first step (compilation, data).")
    stall: Duration = Field(180.0, description="Minimum silence after the first step that counts as a stall.")
    stall_factor: float = Field(
        10.0,
        gt=1,
        description="Silence in multiples of the observed step time; the longer of both limits applies.",
    )
    interval: Duration = Field(5.0, gt=0, description="Interval at which the run's files are read.")
    frozen_rows: Count = Field(
        4,
        ge=2,
        description="Consecutive rows with a rate of zero or less, or of one step, that stop the run: of the table, or "
        "whole printed lines. One that adds a value to its step is no repetition.",
    )
    gates: Flag | None = Field(
        None,
        description="Whether `gate_entropy_mean`, `gate_max_gate` and `gate_collapse_frac` are those of NSA's gates, "
        "so that the limits below apply, in rows and in heartbeats alike; default: where one of the limits is set, and "
        "where env.json says that `effective.attention` is `nsa`.",
    )
    gate_entropy_min: float = Field(0.2, description="`gate_entropy_mean` below this counts as a collapse.")
    gate_max: float = Field(0.9, description="`gate_max_gate` above this counts as a collapse.")
    gate_collapse_frac: float = Field(0.5, description="`gate_collapse_frac` above this counts as a collapse.")
    gate_strikes: Count = Field(
        3,
        ge=1,
        description="Consecutive records of one file with a collapse, or with a `grad_norm` of 0, that stop the run. "
        "Zeros of a norm that was never above 0.01 may be rounded: they stop no run whose loss falls, or has fewer "
        "than 12 records that are not all the same.",
    )
    halt: Flag = Field(True, description="Write `.HALT` and stop the run; false only records the anomaly.")

    @model_validator(mode="before")
    @classmethod
    def _limits_mean_gates(cls, data: Any) -> Any:
        """A limit on gates implies that the trainer writes NSA's gates."""
        limits = {"gate_entropy_min", "gate_max", "gate_collapse_frac"}
        if not isinstance(data, dict) or "gates" in data or not limits & data.keys():
            return data
        return {**data, "gates": True}


class Defaults(Frozen):
    """Values for every phase that does not set its own."""

    nproc: Count = Field(
        1,
        ge=0,
        description="Ranks that the launcher starts; 0 runs the trainer by python alone, which may start workers "
        "itself. With `launcher: python` or `plain` the ranks that the trainer starts itself, by default 0: unknown.",
    )
    timeout: Duration = Field(1800.0, gt=0, description="Longest time of one run.")
    warmup_steps: Count = Field(20, ge=0, description="Steps that never count as steady.")
    pause_every: Count | None = Field(
        None,
        ge=1,
        description="Steps from one pause (validation, checkpoint) to the next in the long run that is decided about. "
        "A run with fewer than three pauses is judged by it.",
    )
    repeats: Count = Field(1, ge=1, description="Runs of each arm.")
    retries: Count = Field(
        0,
        ge=0,
        le=3,
        description="Further attempts, on another master port, after a stall or a failure of the infrastructure.",
    )
    env: dict[str, Setting] = Field(default_factory=dict, description="Added to the environment of every run.")
    args: dict[str, Setting] = Field(default_factory=dict, description="Added to the arguments of the trainer.")
    watchdog: Watchdog = Field(default_factory=Watchdog, description="When a run is stopped before its time.")
    min_effect: float = Field(0.02, gt=0, lt=1, description="Smallest relative difference that is worth a decision.")
    run_cv: float = Field(
        0.02,
        ge=0,
        lt=1,
        description="Variation between runs (standard deviation over mean) assumed of rates and times "
        "until four repeats measure it.",
    )
    accept_findings: tuple[FindingCode, ...] = Field(
        (), description="Codes of findings that are right for every phase; they become information and forbid no GO."
    )
    extend: Flag = Field(
        True,
        description="Whether a train phase or a soak with an open required criterion is extended once by further runs.",
    )


class Choose(Frozen):
    """How the arms of a sweep or an A/B are compared. "Inconclusive" and "no difference" are answers."""

    highest: str | None = Field(None, description="`metric.statistic` to maximize.")
    lowest: str | None = Field(None, description="`metric.statistic` to minimize.")
    tie: str | None = Field(
        None,
        description="`metric.statistic` whose lower value is recommended when the arms do not differ; of the declared "
        "arm it must be significantly lower.",
    )
    prefer: str | None = Field(None, description="Arm that is recommended when it is not worse (A/B).")
    adopt: Flag = Field(False, description="Whether later phases run with the recommended arm.")
    min_effect: float | None = Field(
        None, gt=0, lt=1, description="Smallest relative difference that is worth a decision."
    )

    @model_validator(mode="after")
    def _one_direction(self) -> "Choose":
        if (self.highest is None) == (self.lowest is None):
            raise ValueError("choose needs exactly one of `highest` and `lowest`; write highest: toks_per_s.mean")
        return self


class Arm(Frozen):
    """One side of an A/B."""

    env: dict[str, Setting] = Field(default_factory=dict, description="Added to the environment.")
    args: dict[str, Setting] = Field(default_factory=dict, description="Added to the arguments of the trainer.")
