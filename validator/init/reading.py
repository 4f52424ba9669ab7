"""What a trainer that is watched writes, read as a validation would read it, by each way that may fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from validator.documents import parse_json
from validator.files import Tree, reading_below
from validator.ingest import collect_run
from validator.ingest.clock import ARRIVALS_FILE
from validator.ingest.log_files import find_logs, log_lines
from validator.ingest.logs import inferred, recognized
from validator.ingest.readers.rows import as_number, leaves
from validator.ingest.table import names_in
from validator.ingest.text_logs import find_text_log, of_lowest_ranks, whole_name
from validator.model.metrics import FED_LOGS
from validator.model.plan import RunSpec
from validator.model.print_formats import Recipe
from validator.model.readers import READERS
from validator.model.result import Result, Series
from validator.model.runbook import TrainerMetrics
from validator.stats.spacing import is_of_steps
from validator.text import listed

_PRINT_READERS = ("nanogpt", "torchtitan", "megatron", "deepspeed", "llm.c", "hf-trainer")
_FILE_READERS = ("lightning", "jsonl", "tensorboard", "wandb-offline", "mlflow-local")
"""Names that `trainer.metrics.reader` takes, in the order in which they are preferred."""

_PACE = ("step_time_s", "toks_per_s", "samples_per_s")
_CORE = ("loss", "mean_reward", *_PACE)
_MAX_FILES = 20_000
_RECORD_SUFFIXES, _MAX_FIRST, _FIRST_RECORDS = (".jsonl", ".ndjson", ".json"), 1 << 16, 3
_MAX_LINE = 500
_OURS = (ARRIVALS_FILE, "logs/stdout.log", "logs/stderr.log")

TEXT_SUFFIXES = (".log", ".txt", ".out", ".err", "")
_MAX_TEXTS = 8
_VARIES = re.compile(
    r"\d{4}[-_.]?\d\d[-_.]?\d\d(?:[-_.T ]?\d\d[-_.:h]?\d\d(?:[-_.:m]?\d\d)?)?(?!\d)"
    r"|\d\d[-_.:]\d\d[-_.:]\d\d(?!\d)|\d{6,}"
)
"""In the name of a file: a date, the time of the day or a number that is another one in each run."""

_EPOCH = re.compile(r"epochs?(?:\\?\W|\\s\+)*\{step\}", re.IGNORECASE)
"""In a pattern: the step is the number of an epoch."""


@dataclass(frozen=True)
class TrialReading:
    """One way to read what the trainer writes: the mapping `trainer.metrics`, and what it gives.

    `source` says what is read in words; `guessed` that the pattern was made from the numbers alone.
    """

    metrics: Mapping[str, Any]
    source: str
    result: Result
    guessed: bool = False
    by_epochs: bool = False

    @property
    def series(self) -> Mapping[str, Series]:
        """The series that a row of a sample shows, and that bounds are about; without any, all that a file has."""
        core = {name: self.result.series[name] for name in _CORE if name in self.result.series}
        files = "csv" in self.metrics or "reader" in self.metrics
        return core or {name: one for name, one in self.result.series.items() if files and is_of_steps(name)}

    @property
    def has_loss(self) -> bool:
        """Whether the loss is known."""
        return "loss" in self.series

    @property
    def has_pace(self) -> bool:
        """Whether the trainer reports the time of a step or a rate; a reader's trainer may leave it to validator."""
        own = {name for name, one in self.series.items() if "reader" in self.metrics or not _by_arrival(one)}
        return not own.isdisjoint(_PACE)

    @property
    def complete(self) -> bool:
        """Whether the loss and the pace are known."""
        return self.has_loss and self.has_pace

    @property
    def settled(self) -> bool:
        """Whether no further file need be looked for: a bar shows less than its trainer may write to one."""
        return self.complete and not self.guessed and not self._is_bar

    @property
    def _is_bar(self) -> bool:
        return list(self.metrics.get("reader", ())) == ["tqdm"] and "log" not in self.metrics

    def says_more_than(self, bar: TrialReading) -> bool:
        """Whether a text file has about as many rows as the bar `bar`, and series that it lacks."""
        more = not self.result.series.keys() <= bar.result.series.keys()
        return bar._is_bar and "log" in self.metrics and self.complete and more and 2 * self.rows >= bar.rows

    @property
    def order(self) -> tuple[bool, bool, bool]:
        """Sorts the better ways before the others."""
        return self.guessed, not self.has_loss, not self.has_pace

    @property
    def rows(self) -> int:
        """Rows of the series that has the most."""
        return max((len(one.steps) for one in self.series.values()), default=0)

    @property
    def first_step(self) -> int | None:
        """The first step that is known."""
        return min((int(one.steps[0]) for one in self.series.values() if len(one.steps)), default=None)

    @property
    def last_step(self) -> int | None:
        """The last step that is known."""
        return max((int(one.steps[-1]) for one in self.series.values() if len(one.steps)), default=None)

    @property
    def stride(self) -> int:
        """Steps from row to row, as a rule."""
        strides = [int(np.median(np.diff(one.steps))) for one in self.series.values() if len(one.steps) > 2]
        return max(1, min(strides, default=1))

    def sample(self, most: int = 5) -> list[dict[str, float]]:
        """The last rows, each as step and values."""
        rows: dict[int, dict[str, float]] = {}
        for name, one in self.series.items():
            for step, value in zip(one.steps[-most:], one.values[-most:], strict=True):
                rows.setdefault(int(step), {"step": int(step)})[name] = float(value)
        return [rows[step] for step in sorted(rows)][-most:]


def readings(spec: RunSpec, *, run_dir: Path, elsewhere: Iterable[Path] = ()) -> list[TrialReading]:
    """Every way that gives rows, the best first. Text logs are read where nothing else says all.

    `elsewhere` are logs that the trainer writes outside its output folder, of which that holds copies.
    """
    found: list[TrialReading] = []
    for candidates in (_candidates(run_dir / spec.out), _in_text_logs(run_dir / spec.out, elsewhere)):
        for metrics, source, guessed, by_epochs in candidates:
            reading = _read(spec, metrics, source, run_dir=run_dir, guessed=guessed, by_epochs=by_epochs)
            if reading.rows:
                found.append(reading)
        if any(one.settled for one in found):
            break
    found.sort(key=lambda one: one.order)  # stable: the preferred ones first
    fuller = next((one for one in found[1:] if not one.guessed and one.says_more_than(found[0])), None)
    if fuller is not None:
        found = [fuller, *(one for one in found if one is not fuller)]
    return _joined(spec, found, run_dir=run_dir)


def _by_arrival(series: Series) -> bool:
    return Path(series.source.path).name == ARRIVALS_FILE


def _read(
    spec: RunSpec, metrics: Mapping[str, Any], source: str, *, run_dir: Path, guessed: bool, by_epochs: bool
) -> TrialReading:
    copied = {"log": _copied(metrics["log"])} if "log" in metrics else {}
    declared = spec.model_copy(update={"metrics": TrainerMetrics.model_validate({**metrics, **copied})})
    return TrialReading(metrics, source, collect_run(declared, run_dir=run_dir, outcome=None), guessed, by_epochs)


def _joined(spec: RunSpec, found: list[TrialReading], *, run_dir: Path) -> list[TrialReading]:
    """The best one completed by another where it lacks the loss or the pace."""
    best = found[0] if found else None
    if best is None or best.complete:
        return found
    for other in found[1:]:
        adds = (other.has_loss and not best.has_loss) or (other.has_pace and not best.has_pace)
        both = _merged(best.metrics, other.metrics) if adds and not other.guessed else None
        if both is not None:
            source = f"{best.source}, and {other.source}"
            joined = _read(spec, both, source, run_dir=run_dir, guessed=best.guessed, by_epochs=best.by_epochs)
            if joined.complete:
                return [joined, *found]
    return found


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any] | None:
    """Both ways in one mapping; None where both need the same key."""
    if set(one) & set(other) - {"reader"} or {"log"} & (set(one) | set(other)):
        return None
    merged = {**one, **other}
    if "reader" in one and "reader" in other:
        merged["reader"] = [*one["reader"], *other["reader"]]
    return merged


_Candidate = tuple[dict[str, Any], str, bool, bool]


def _candidates(out: Path) -> Iterator[_Candidate]:
    """Each way that may fit: `trainer.metrics`, what it reads, whether it is guessed, whether a row is an epoch."""
    with reading_below(out):
        logs = find_logs(out)
        grown = grown_files(out)
        named = {path: names_in(out / path) for path in grown if Path(path).suffix == ".csv"}
        events = [path for path in grown if ".tfevents." in path]
        known = recognized(logs.printed)
        beside = recognized(logs.printed, in_words=True) if known is not None and not _has_loss(known[1]) else None
        guess = None if known is not None else next(filter(None, map(inferred, logs.printed)), None)
    bar = known is not None and known[1].name in READERS["lightning"].recipes
    where = "what rank 0 prints" if logs.rank_out else "what it prints"
    for name in _PRINT_READERS:
        yield {"reader": [name]}, f"{where}, by the reader {name}", False, False
    for table, names in named.items():
        if names is not None:
            by_epochs = "epoch" in names.get("step", "").lower()
            yield {"csv": table} | ({"names": names} if names else {}), f"the table {table}", False, by_epochs
    for name in _FILE_READERS:
        # Event files that are not of one of its versions are another trainer's, who prints no bar of Lightning.
        if name == "lightning" and not bar and events and not any("version_" in path for path in events):
            continue
        yield {"reader": [name]}, f"the files that the reader {name} knows", False, False
    for path, recipe in filter(None, (beside, known)):
        yield _by_recipe(recipe), f"{where}, as lines of {recipe.name} ({path.name})", False, recipe.by_epochs
    if guess is not None:
        yield {"stdout": guess}, f"{where}: {_how(guess)}", True, _EPOCH.search(guess) is not None


def _has_loss(recipe: Recipe) -> bool:
    return "{loss}" in recipe.pattern


def _by_recipe(recipe: Recipe) -> dict[str, Any]:
    names = ((one.name, one.recipes) for one in READERS.values() if recipe.name in one.recipes)
    reader = next((name for name, recipes in names if len(recipes) == 1 or name == "table"), None)
    return {"stdout": recipe.pattern} if reader is None else {"reader": [reader]}


def _how(guess: str) -> str:
    if "{row}" in guess:
        return "each line that names a loss is a step"
    if "{loss}" not in guess:
        return "a number that rises like steps, and parts of a loss"
    before = guess.partition("{loss}")[0]
    named = re.findall(r"(?<![\\{\w])[A-Za-z][\w/-]+", before[before.rfind("}") + 1 :])
    return "numbers that rise like steps and fall like a loss" + (f" ({named[-1]})" if named else "")


def _in_text_logs(out: Path, elsewhere: Iterable[Path]) -> Iterator[_Candidate]:
    """The same for each text file that grew, the longest first, those of a validation by their names last."""
    full = {f"{FED_LOGS}/{path.name}": str(path) for path in elsewhere}
    grown = {path: size for path, (size, _) in grown_files(out).items() if Path(path).suffix in TEXT_SUFFIXES and size}
    whole = {whole_name(path) for path in grown} & grown.keys()
    last = {path: _OF_EVALUATION.search(Path(path).stem) is not None for path in whole}
    own = of_lowest_ranks(sorted(whole, key=lambda path: (last[path], -grown[path])))
    for path in own[:_MAX_TEXTS]:
        log = _VARIES.sub("*", full.get(path, path))
        with reading_below(out):
            known = recognized((out / path,))
            guess = None if known is not None else inferred(out / path)
        if known is not None:
            found = {"log": log, **_by_recipe(known[1])}
            yield found, f"the text file {log}, as lines of {known[1].name}", False, known[1].by_epochs
        elif guess is not None:
            yield {"log": log, "stdout": guess}, f"the text file {log}: {_how(guess)}", True, bool(_EPOCH.search(guess))


def logs_of(reading: TrialReading, out: Path) -> tuple[Path, ...]:
    """What the trainer prints, or the text log that is read in its place."""
    if "log" not in reading.metrics:
        return find_logs(out).printed
    return tuple(out / part for part in find_text_log(out, _copied(reading.metrics["log"])).parts)


def _copied(log: str) -> str:
    """Where a log is below the output folder: of an absolute path there is a copy."""
    return f"{FED_LOGS}/{Path(log).name}" if log.startswith("/") else log


def grown_files(folder: Path, before: Mapping[str, tuple[int, int]] | None = None) -> dict[str, tuple[int, int]]:
    """Regular files below a folder that are not as they were `before`, by relative path: size and time of change.

    Logs that validator itself keeps, hidden folders and environments are left out.
    """
    found: dict[str, tuple[int, int]] = {}
    try:
        with Tree(folder) as tree:
            for count, entry in enumerate(tree.walk()):
                path = entry.path
                parts = Path(path).parts
                if count > _MAX_FILES:
                    break
                hidden = any(part.startswith(".") or part in ("node_modules", "site-packages") for part in parts)
                if entry.kind != "file" or hidden or path in _OURS or path.startswith("logs/ranks/"):
                    continue
                now = entry.bytes, entry.mtime_ns
                if before is None or before.get(path) != now:
                    found[path] = now
    except OSError:
        return found
    return found


def first_lines(out: Path, most: int = 8) -> list[str]:
    """The first lines that were printed, or written to a text file, of the first log that has any; and its last ones
    where it has more."""
    texts = sorted(path for path, (size, _) in grown_files(out).items() if size and Path(path).suffix in TEXT_SUFFIXES)
    for path in (*find_logs(out).printed, *(out / one for one in texts[:_MAX_TEXTS])):
        lines = [text for _, text in log_lines(path) if text.strip() and "\0" not in text]
        if lines:
            return lines if len(lines) <= most else [*lines[: most // 2], "…", *lines[-most // 2 :]]
    return []


def count_lines(out: Path) -> int:
    """Lines that were printed, blank ones left out."""
    return sum(bool(text.strip()) for path in find_logs(out).printed for _, text in log_lines(path))


_NAMED_LOSS = re.compile(r"(?i)(?<![\w/])((?:[a-z]\w{0,20} )?[a-z_]*loss(?:[_ ][a-z]\w*)?)(?: *[:=|] *| +)[-+]?\d")


def what_is_missing(lines: Iterable[str]) -> str:
    """What lines lack that nothing could be read of, as a sentence with what to write; empty where nothing is known."""
    losses = dict.fromkeys(name for line in lines for name in _NAMED_LOSS.findall(line))
    if len(losses) < 2:
        return ""
    one, other, *_ = losses
    return (
        f"its lines hold several losses ({one}, {other}), and which of them a training lowers is for you to say: "
        f"stdout: 'step {{step}} .*{one}.*?{{loss}}'"
    )


_LOSS_KEY = re.compile(
    r"(?i)(?<![\w/.-])(?=[\w/.-]{0,80}?loss(?![a-z]|[_ -]?scal))([a-z][\w/.-]{0,80})[\"')]?"
    r"(?:\s{0,40}[:=|]\s{0,40}|\s{1,40})[\"']?"
    r"[-+]?(?:\.?\d|nan\b|inf)(?![\d.,]*\s?%)"
)
_OF_EVALUATION = re.compile(r"(?i)(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev|best|min)(?![a-z])")
_HAS_STEP = re.compile(r"(?i)(?<![a-z])step[\"']?\W{1,4}\d")
_MOST_LINES = 20_000


def unread_loss(reading: TrialReading, out: Path) -> str:
    """What stands beside a number, is called a loss and is read as none, as a sentence with what to write; empty where
    a loss is read, or there is no such thing."""
    if reading.has_loss:
        return ""
    for path in logs_of(reading, out):
        for _, line in islice(log_lines(path), _MOST_LINES):
            key = next((one for one in _LOSS_KEY.findall(line) if not _OF_EVALUATION.search(one)), None)
            if key is not None:
                start = r"step\W+{step}\b.*?" if _HAS_STEP.search(line) else "{row}.*?"
                return _naming(key, f"stdout: '{start}(?<![\\w/.-]){re.escape(key)}\\W*?{{loss}}'")
    for name in reading.result.series:
        if re.search(r"(?i)loss(?![a-z])", name) and not _OF_EVALUATION.search(name.replace("_", " ")):
            return _naming(name, f"names: {{loss: {name}}}, with the key as the trainer writes it")
    return ""


def unread_records(out: Path, outside: Iterable[str] = ()) -> str:
    """Which keys JSON lines have that were read as no steps, as a sentence with what to write; empty without any.

    `outside` are files of the working folder that the trainer wrote to.
    """
    for folder, path in (*((out, path) for path in grown_files(out)), *((Path.cwd(), path) for path in outside)):
        if Path(path).suffix not in _RECORD_SUFFIXES or Path(path).name == ARRIVALS_FILE:
            continue
        with suppress(OSError, ValueError), Tree(folder) as tree, tree.open(path) as file:
            lines = [line for _ in range(_FIRST_RECORDS) if (line := file.readline(_MAX_FIRST)).endswith(b"\n")]
            records = [one for line in lines if isinstance(one := parse_json(line), dict)]
            found = ([key for key, value in leaves(one) if as_number(value) is not None] for one in records)
            keys = max(found, key=len, default=[])  # a header has fewer, or none
            if keys:
                return (
                    f"{path} has lines with the keys {listed(keys, most=8)}, and none that is known to count steps; "
                    "write metrics: {reader: jsonl, names: {step: KEY, loss: KEY}}, or no_loss: true in place of a loss"
                )
    return ""


def _naming(key: str, fix: str) -> str:
    alone = key.lower() in ("loss", "train_loss", "training_loss")
    why = "no known form of line has it beside a step" if alone else "its name may be that of a part of the loss"
    return (
        f"{key} is read as no loss, for {why}; if a training lowers it, name it in trainer.metrics, in place of "
        f"no_loss: {fix}"
    )
