"""Where a trainer's measurements are, as a runbook says it: files, patterns, readers, and series of its own.

Field descriptions are the text of `docs/runbook-reference.md`, so keep them exact.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, field_validator, model_validator

from validator.model.catalogue import METRICS, Better, Metric, Statistic, Window
from validator.model.pattern import PatternError, line_pattern
from validator.model.readers import READERS, Reader, ReaderName, readers_of
from validator.model.units import Flag, Frozen, Identifier, Reads


class ExtraSeries(Frozen):
    """A further series that the trainer writes, with the facets that the catalogue gives its own. As text: its unit."""

    unit: str = Field("", description="Unit; shown, and checked where a criterion writes one.")
    window: Window = Field("whole", description="Steps that count: `steady` leaves out warm-up and gives an interval.")
    better: Better | None = Field(
        None, description="Direction that is good. `compare` compares two validations only by series that have one."
    )
    statistic: Statistic = Field("mean", description="What `compare` and `baseline` take of it.")
    headline: Flag = Field(
        False, description="Whether the verdict of `compare` rests on it, and `baseline` derives a bound from it."
    )
    chart: str | None = Field(
        None, description="Title of its chart; the default is its name. Under the title of another chart it joins that."
    )

    @model_validator(mode="after")
    def _has_direction(self) -> "ExtraSeries":
        if self.headline and self.better is None:
            raise ValueError("headline: true needs a direction; add better: higher or better: lower")
        return self

    def as_metric(self, name: str) -> Metric:
        """The series under its name, as the catalogue describes its own."""
        return Metric(
            name,
            self.unit,
            self.window,
            self.better,
            "declared by the runbook",
            statistic=self.statistic,
            headline=self.headline,
            chart=self.chart or name,
        )


def _extra_series(value: Any) -> Any:
    return {"unit": value} if isinstance(value, str) else value


def _as_written(series: ExtraSeries) -> Any:
    """Its unit alone where the runbook gives nothing else, as validations before stored it."""
    facets = series.model_dump(exclude_defaults=True)
    return series.unit if facets.keys() <= {"unit"} else facets


ExtraField = Annotated[ExtraSeries, Reads(_extra_series, written=str | ExtraSeries), PlainSerializer(_as_written)]


def _names_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


ReaderNames = Annotated[
    tuple[ReaderName, ...],
    Reads(_names_list, written=ReaderName | tuple[ReaderName, ...]),
]


FED_LOGS = "logs/trainer"
"""Folder below the output folder that holds this run's part of a log which the trainer writes elsewhere."""


class TrainerMetrics(Frozen):
    """Where a trainer's measurements are read from, relative to its output folder. A reader's name, or a list of them,
    may be written in place of the mapping."""

    reader: ReaderNames = Field(
        (),
        description="Readers that know what a trainer or a logger writes ([page](readers.md)). Of several, a series is "
        "that of the first that has it; `csv`, `heartbeat` and `stdout` come before all.",
    )
    files: dict[ReaderName, str] = Field(
        default_factory=dict,
        description="Which files a reader takes, where it finds more than one run's: reader to a path below the output "
        "folder, with `*` within a folder and `**/` for any folders.",
    )
    names: dict[Identifier, str] = Field(
        default_factory=dict,
        description="Keys under which files of a reader, or columns under which `csv`, hold a series by another name: "
        "`{loss: L/total}`, `{step: update, step_time_ms: update_msec}`.",
    )
    csv: str | None = Field(None, description="CSV of `step,loss,lr,toks_per_s,…`, with or without a header.")
    heartbeat: str | None = Field(None, description="JSON lines, one file per rank; `{rank}` is the rank.")
    env: str | None = Field(None, description="JSON with the environment and the requested and effective config.")
    metrics: str | None = Field(None, description="JSON with final scalars; referred to as `metrics.<key>`.")
    stdout: str | None = Field(
        None,
        description="Regular expression, searched in each line that rank 0 prints, colors left out. `{loss}` is short "
        "for a group of that name that matches any number; `{step}` is needed, or `{row}` where each line is one step. "
        "Standard error is searched where no line of standard output matches.",
    )
    log: str | None = Field(
        None,
        description="Text file in which the trainer logs what it does not print: `stdout` and readers of printed lines "
        "search it instead. A path below the output folder, or an absolute one, with `*` within a folder and `**/` for "
        "any folders. Of an absolute one what this run adds is copied, and lines of earlier runs count for nothing. Of "
        "a log for each rank (`rank0`) the lowest one is read; of a rotated one all parts.",
    )
    extra: dict[str, ExtraField] = Field(
        default_factory=dict,
        description="Further series that the trainer writes: name to unit, or to a mapping as below. A column or a "
        "heartbeat's field that the table of series lacks is declared here before a criterion names it; a group of "
        "`stdout` declares itself, and has a unit only here: letters, `%` and one `/`. What is declared is charted.",
    )
    no_loss: Flag = Field(
        False,
        description="The trainer reports no loss, so `PHASE.finite` is skipped where none is read, and a GO says that "
        "NaN or divergence would not be seen. One that is read is judged all the same.",
    )
    link_roots: tuple[str, ...] = Field(
        (),
        description="Folders to below which one of these files may be a link. It is followed while the run lasts and "
        "replaced by a copy when it has ended; any other link is not read.",
    )

    @property
    def series_of(self) -> dict[str, str]:
        """`names` the other way round: the series that a key or a column holds."""
        return {key: series for series, key in self.names.items()}

    @property
    def readers(self) -> tuple[Reader, ...]:
        """The readers that are named, in their order."""
        return readers_of(self.reader)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns for the lines that rank 0 prints: its own, then those of the readers."""
        return tuple(filter(None, (self.stdout, *(reader.pattern for reader in self.readers))))

    @property
    def log_below(self) -> str | None:
        """Where the text log is below the output folder; None where what is printed is read."""
        return f"{FED_LOGS}/*" if self.log is not None and self.log.startswith("/") else self.log

    @property
    def reads_log(self) -> bool:
        """Whether anything is read from what rank 0 prints, or logs as text."""
        return bool(self.patterns) or any(reader.two_streams for reader in self.readers)

    @model_validator(mode="after")
    def _files_of_readers(self) -> "TrainerMetrics":
        for name in self.files:
            if name not in self.reader:
                raise ValueError(f"files names {name}, which is no reader here; write reader: {name}, or remove it")
            if not READERS[name].files:
                raise ValueError(f"files names {name}, which reads what is printed; remove it")
        if self.names and self.csv is None and not any(READERS[name].files for name in self.reader):
            raise ValueError("names is for csv and readers of files, and none is here; write csv: FILE, or remove it")
        formats = {one.format for name in self.reader for one in READERS[name].files}
        if "step" in self.names and self.csv is None and not formats & {"csv", "jsonl"}:
            raise ValueError(
                f"names has step: {self.names['step']}, and files of {', '.join(self.reader)} count their steps "
                "themselves; remove it, or write reader: jsonl"
            )
        return self

    @property
    def declared(self) -> Mapping[str, Metric]:
        """The series of `extra` that the catalogue lacks, by name."""
        return {name: one.as_metric(name) for name, one in self.extra.items() if name not in METRICS}

    @model_validator(mode="after")
    def _log_is_searched(self) -> "TrainerMetrics":
        if self.log is not None and not self.reads_log:
            raise ValueError(
                f"log names {self.log!r}, and nothing says how it is read; add stdout: 'step {{step}} loss {{loss}}', "
                "or a reader of printed lines"
            )
        if self.log is not None and not self.log.startswith("/") and ".." in self.log.split("/"):
            raise ValueError(f"log {self.log!r} leaves the output folder; write an absolute path")
        return self

    @field_validator("stdout")
    @classmethod
    def _has_step(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            groups = line_pattern(value).names
        except PatternError as error:
            raise ValueError(f"stdout {value!r} is not a regular expression: {error}") from error
        if not {"step", "row"} & set(groups):
            raise ValueError(
                "stdout has no group named `step`; write {step} where the step is printed, or {row} where each line "
                "that matches is one step"
            )
        return value


def _metrics(value: Any) -> Any:
    """A reader's name, or a list of them, as the mapping that it is short for."""
    return {"reader": value} if isinstance(value, (str, list, tuple)) else value


MetricsField = Annotated[
    TrainerMetrics,
    Reads(_metrics, written=ReaderName | tuple[ReaderName, ...] | TrainerMetrics),
]


BUNDLED_METRICS = TrainerMetrics.model_construct(  # not validated, for that would build the model at every start
    csv="training.csv", heartbeat="heartbeat_rank{rank}.jsonl", env="env.json", metrics="metrics.json"
)
