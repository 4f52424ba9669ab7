"""What a trainer writes: its own account, its table, its heartbeats, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from validator.files import is_file, open_file
from validator.ingest import logs
from validator.ingest import result_builder as derived
from validator.ingest.accounts import flat, open_scalars, read_json_object, scalar
from validator.ingest.at_steps import Asked, asked_of, cut_behind
from validator.ingest.clock import ARRIVALS_FILE, jumps_in_rows, longest_s, read_arrivals
from validator.ingest.heartbeat import Heartbeat, find_heartbeats, read_loader
from validator.ingest.instruments import read_instruments
from validator.ingest.log_files import LogFiles
from validator.ingest.named import (
    printed_table,
    read_known_files,
    read_named,
    time_by_arrivals,
    time_means_by_arrivals,
)
from validator.ingest.other_programs import log_folders
from validator.ingest.ranks import fill_from_rank_0, read_heartbeats, reading
from validator.ingest.read_log import CLOCK_SLACK_S, age_before, printable
from validator.ingest.result_builder import ResultBuilder
from validator.ingest.table import StepTable, names_in, read_table
from validator.ingest.telemetry import (
    StepTimes,
    disturbed_somewhere,
    read_samples,
    read_telemetry,
    times_of_arrivals,
    with_steps,
)
from validator.model.catalogue import METRICS
from validator.model.columns import OF_VALIDATION
from validator.model.loss_parts import is_opposed
from validator.model.print_formats import Recipe
from validator.model.result import Halt, InvalidWindow, PrintedFormat, RankProgress, Samples
from validator.times import unix_seconds

_MOST_RANKS = 2**20
_ACCOUNT = ("requested", "effective")
_BY_STEP = ("k_stats.csv", "val.csv")
"""Tables by step beside the training log: selection statistics, validation loss."""

_OF_VALIDATION = frozenset(OF_VALIDATION)
_NO_LOG = (*_BY_STEP, "fallback_counters.csv")


def read_training(state: ResultBuilder, found: LogFiles) -> None:
    """All that a trainer writes, then what follows from it."""
    _read_arrivals(state)
    _read_env(state)
    _read_metrics(state)
    paths = find_heartbeats(state.out, state.metrics.heartbeat) if state.metrics.heartbeat is not None else {}
    with reading(paths, root=state.read_log.root, limit_s=longest_s(state.duration_s)) as heartbeats:
        _read_csv(state)
        read_heartbeats(state, paths, heartbeats)
    _read_stdout(state, found)
    read_named(state, found)
    if state.lenient and not state.series:
        read_known_files(state, found)
    if state.lenient and not state.series:
        _read_inferred(state)
    fill_from_rank_0(state)
    _read_evaluations(state, found)
    asked = _derive(state)
    _read_halt(state)
    _read_further(state)
    cut_behind(state, asked.last)
    if state.lenient and not state.series:
        state.read_log.note(
            "missing-file",
            "nothing is measured here: no training.csv or other table by step, no heartbeat, no log in a known print "
            "format, no numbers that rise like steps and fall like a loss (give --stdout PATTERN or --runbook FILE; "
            "`validator init -- COMMAND` shows what to write)",
            found.main or state.out,
        )


def _read_env(state: ResultBuilder) -> None:
    path = state.declared(state.metrics.env, "environment file")
    read = read_json_object(path, state.read_log, what="the environment file") if path else None
    if path is None or read is None:
        return
    content, source = read
    state.requested, state.effective = (flat(content.get(name)) for name in _ACCOUNT)
    for name, account in zip(_ACCOUNT, (state.requested, state.effective), strict=True):
        state.scalars |= open_scalars(name, account or {}, source.path)
    state.env = {key: value for key, value in content.items() if key not in _ACCOUNT}
    written_s = state.env.get("time_unix_s")
    if not isinstance(written_s, (int, float)):
        written_s = unix_seconds(state.env.get("time"))
    if written_s is not None and state.started_s is not None and written_s < state.started_s - CLOCK_SLACK_S:
        state.read_log.note(
            "foreign-results",
            f"the environment file says it was written {state.started_s - written_s:.0f} s before this run was started",
            path,
        )
    world = state.env.get("world_size")
    if isinstance(world, int) and not isinstance(world, bool) and 1 <= world <= _MOST_RANKS:
        if state.world_size is not None and world != state.world_size:
            state.read_log.note(
                "world-size", f"the trainer ran with {world} ranks where {state.world_size} were started", path
            )
        state.world_size = world
    elif world is not None:
        state.read_log.note("world-size", f"world_size {world!r} in the environment file is invalid", path)


def _read_metrics(state: ResultBuilder) -> None:
    path = state.declared(state.metrics.metrics, "final metrics")
    read = read_json_object(path, state.read_log, what="the final metrics") if path else None
    if read is not None:
        content, source = read
        state.scalars |= open_scalars("metrics", flat(content) or {}, source.path)


def _read_csv(state: ResultBuilder) -> None:
    path, series = state.declared(state.metrics.csv, "training log"), state.metrics.series_of
    of_folder = state.metrics.csv is not None  # a log that is named is read, and not the table beside it
    if path is None and state.lenient and of_folder and (path := _other_table(state)) is not None:
        series = {column: name for name, column in (names_in(path) or {}).items()}
    table = read_table(path, state.read_log, ended=state.ended, series=series) if path else None
    if table is not None:
        state.add_table(table)


def _other_table(state: ResultBuilder) -> Path | None:
    """The one table by step in a folder that nothing was declared of, whatever its trainer calls it."""
    found = [
        path
        for path in sorted(state.out.glob("*.csv"))
        if is_file(path) and path.name not in _NO_LOG and names_in(path) is not None
    ]
    return found[0] if len(found) == 1 else None


def _read_stdout(state: ResultBuilder, found: LogFiles) -> None:
    if state.metrics.stdout is None:
        if state.lenient and not state.series:
            _read_known_format(state)
        return
    table = printed_table(state, found, state.metrics.stdout)
    if table is not None:
        state.add_printed(table)


def _read_known_format(state: ResultBuilder) -> None:
    """The log that has most rows of a print format that many trainers have; nothing where no log has one."""
    shown: tuple[Path, Recipe, StepTable] | None = None
    for in_words in (False, True):  # a library prints its steps without a loss, which the trainer itself prints
        known = logs.recognized(state.texts or (), in_words=in_words)
        if known is None:
            continue
        path, recipe = known
        table = logs.series(
            path, recipe.pattern, state.read_log, longest=True, known=True, arrivals=state.evidence.arrivals
        )
        if table is not None and table.columns and (shown is None or "loss" in table.columns):
            shown = path, recipe, table
        if shown is not None and not {"loss", "mean_reward"}.isdisjoint(shown[2].columns):
            break
    if shown is None:
        return
    path, recipe, table = shown
    # A library's bar, and lines of its user.
    if not _shows_learning(table) and _read_inferred(state, above=2 * table.rows):
        return
    state.evidence.printed = PrintedFormat(state.read_log.name(path), recipe.name, recipe.pattern, recipe.about)
    state.add_printed(table)


def _shows_learning(table: StepTable) -> bool:
    """Whether it has a loss, the parts of one, or what an agent earns."""
    return not {"loss", "mean_reward"}.isdisjoint(table.columns) or any(map(is_opposed, table.columns))


def _read_inferred(state: ResultBuilder, *, above: int = 0) -> bool:
    """The first log in which numbers rise like steps and fall like a loss, where none is in a known format; whether
    there is one, with more rows than `above`."""
    for path in state.texts or ():
        pattern = logs.inferred(path)
        table = None
        if pattern is not None:
            table = logs.series(
                path, pattern, state.read_log, longest=True, known=True, arrivals=state.evidence.arrivals
            )
        if pattern is None or table is None or not table.columns or table.rows <= above:
            continue
        counted = "{row}" in pattern
        what = "a loss, each a step" if counted else "numbers that rise like steps and fall like a loss"
        what = what if "{loss}" in pattern else "a number that rises like steps, and parts of a loss"
        about = f"no known print format; the pattern was made from the numbers: {pattern}"
        state.evidence.printed = PrintedFormat(state.read_log.name(path), what, pattern, about)
        state.add_printed(table)
        return True
    return False


def _read_evaluations(state: ResultBuilder, found: LogFiles) -> None:
    """The loss of a validation that the log alone names, beside steps of a table or of heartbeats."""
    loss = state.series.get("loss")
    printed = found.main if state.texts is None else next(iter(state.texts), None)
    known = not _OF_VALIDATION.isdisjoint(state.series) or is_file(state.out / "val.csv")
    if loss is None or not loss.steps.size or printed is None or known or state.evidence.places is not None:
        return
    table = logs.evaluations(printed, state.read_log, last=int(loss.steps.max()))
    if table is not None:
        state.add_table(table)


def _tokens_per_step(state: ResultBuilder) -> float | None:
    if state.tokens_declared is not None:
        return float(state.tokens_declared)
    for account in (state.env, state.effective):
        value = (account or {}).get("tokens_per_step")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            return float(value)
    return None


def _read_arrivals(state: ResultBuilder) -> None:
    path = state.out / ARRIVALS_FILE
    state.evidence.arrivals = read_arrivals(path, state.read_log, out=state.out) if is_file(path) else {}


def _derive(state: ResultBuilder) -> Asked:
    if state.world_size is None and (state.texts is None or len(state.heartbeats) > 1):
        state.world_size = max(state.heartbeats, default=0) + 1
    own = state.series.get("toks_per_s_per_rank")
    if own is not None and "toks_per_s" not in state.series and state.world_size is not None:
        state.series["toks_per_s"] = derived.series_from("toks_per_s", own, own.steps, own.values * state.world_size)
    first = state.heartbeats.get(min(state.heartbeats)) if state.heartbeats else None
    asked = asked_of(state, derived.steps_done(state.series, first, state.evidence.places))
    cut_behind(state, asked.last)
    if first is None and not {"toks_per_s", "step_time_s"} & state.series.keys():
        time_by_arrivals(state)
    elif first is None:
        time_means_by_arrivals(state)
    state.evidence.tokens_per_step = tokens = _tokens_per_step(state)
    written = dict(state.series)
    for name, made in derived.step_times(state.series, first, tokens, duration_s=state.duration_s).items():
        state.series[name] = made
        state.evidence.derived.append(name)
    cut_behind(state, asked.last)
    if (rate := state.series.get("toks_per_s")) is not None and state.world_size is not None:
        own = derived.series_from("toks_per_s_per_rank", rate, rate.steps, rate.values / state.world_size)
        state.series["toks_per_s_per_rank"] = own
    state.evidence.world_size = state.world_size
    state.scalars |= scalar("steps.done", asked.done)
    if first is not None and state.started_s is not None:
        start_s = derived.first_step_s(first, started_s=state.started_s)
        state.scalars |= scalar("startup.first_step_s", start_s, first.source.path)
    elif (seen := derived.first_arrival(state.evidence.arrivals)) is not None:
        state.scalars |= scalar("startup.first_step_s", *seen)
    _derive_invalid_windows(state, first, jumps_in_rows(written, tokens, limit_s=longest_s(state.duration_s)))
    score = derived.straggler_score(state.rank_series, warmup_steps=state.warmup_steps)
    state.scalars |= scalar("straggler.score", score)
    _derive_gaps(state, asked.last)
    return asked


def _derive_invalid_windows(state: ResultBuilder, first: Heartbeat | None, jumps: list[InvalidWindow]) -> None:
    """Windows in which nothing may be measured: the clock was set (`jumps` in rows), or something disturbed a GPU.

    `first` is the lowest rank's heartbeat, which gives the time at which each step ended; without one the arrival of
    each step's row does.
    """
    windows = [window for heartbeat in state.heartbeats.values() for window in heartbeat.jumps] + jumps
    telemetry = state.out / "logs" / "telemetry.csv"
    samples = read_samples(telemetry, state.read_log) if is_file(telemetry) else None
    if first is not None:
        state.evidence.step_times_s, state.evidence.resumed_s = first.step_times_s, first.resumed_s
    if samples is not None:
        arrived = times_of_arrivals(state.evidence.arrivals, started_s=state.started_s)
        ended = arrived if first is None else first.step_times_s
        samples = with_steps(samples, ended)
        machine, throttled = read_telemetry(samples, telemetry, ended, state.read_log)
        machine = {name: one for name, one in machine.items() if name not in state.series}
        state.evidence.derived += (name for name in machine if name in METRICS)
        state.series |= machine
        windows += throttled or disturbed_somewhere(samples, telemetry, ended, state.series, state.read_log)
        state.evidence.node_samples = dict(_on_other_nodes(state, telemetry, ended))
    state.evidence.samples = samples
    state.evidence.invalid_windows = windows


def _on_other_nodes(state: ResultBuilder, first: Path, ended: StepTimes | None) -> Iterator[tuple[str, Samples]]:
    """Node to its samples, of each but that of rank 0, whose file is `first`."""
    for name, folder in log_folders(state.out, state.evidence.nodes, groups=1):
        path = folder / first.name
        samples = read_samples(path, state.read_log) if path != first and is_file(path) else None
        if samples is not None:
            yield name, with_steps(samples, ended)


def _derive_gaps(state: ResultBuilder, last: int | None) -> None:
    """Silence counts to the end of an attempt that did not end well; after a good end it is only teardown."""
    outcome = state.outcome
    ended_s = None
    if outcome is not None and not outcome.ok and state.started_s is not None:
        ended_s = state.started_s + outcome.duration_s
    marks, gaps = {}, {}
    for rank, heartbeat in state.heartbeats.items():
        gap_s = heartbeat.gaps.until(ended_s)
        if gap_s is not None:
            gaps[rank] = gap_s
        marks[rank] = RankProgress(
            path=heartbeat.source.path,
            pid=heartbeat.pids[-1] if heartbeat.pids else None,
            first_ts=heartbeat.gaps.first,
            last_ts=heartbeat.gaps.last,
            first_step=heartbeat.first_step,
            last_step=heartbeat.last_step if last is None else min(heartbeat.last_step, last),
            last_progress_ts=heartbeat.last_progress_s,
            last_msg=heartbeat.last_msg,
            done=heartbeat.done or (last is not None and heartbeat.last_step >= last),
        )
    state.evidence.heartbeats = marks
    if gaps:
        worst = max(gaps, key=lambda rank: gaps[rank])
        state.scalars |= scalar("heartbeat.max_gap_s", gaps[worst], state.heartbeats[worst].source.path)


def _read_halt(state: ResultBuilder) -> None:
    path = state.out / ".HALT"
    if not is_file(path):
        return
    began_s = state.started_s
    if began_s is None:
        firsts = [h.gaps.first for h in state.heartbeats.values() if h.gaps.first is not None]
        began_s = min(firsts) if firsts else None
    age_s = age_before(path, began_s)
    if age_s is not None:
        state.read_log.note("stale-halt", f".HALT is {age_s:.0f} s older than the start of this run", path)
    anomaly = _short_text(state.out / ".anomaly_type") or None
    state.evidence.halt = Halt(state.read_log.name(path), _short_text(path), anomaly, stale=age_s is not None)


def _short_text(path: Path) -> str:
    try:
        with open_file(path) as handle:
            return printable(handle.read(2000).decode("utf-8", "replace"))
    except OSError:
        return ""


def _read_further(state: ResultBuilder) -> None:
    """Contract files beyond the usual three: their columns become series `<stem>.<column>` where they go by step."""
    for path in (state.out / name for name in _BY_STEP):
        table = read_table(path, state.read_log, ended=state.ended) if is_file(path) else None
        if table is not None:
            state.add_table(table, prefix=f"{path.stem}.")
    read_instruments(state)
    scalars, state.evidence.loader_error = read_loader(state.out, state.metrics.heartbeat, state.read_log)
    state.scalars |= scalars
    state.scalars |= derived.bus_bandwidth(state.scalars, state.env or {}, world_size=state.world_size)
    _read_memory_dumps(state)


def _read_memory_dumps(state: ResultBuilder) -> None:
    """What the trainer's `mem_<tag>.json` say of the device's size."""
    for tag in ("stepN", "step1", "boot"):
        path = state.out / f"mem_{tag}.json"
        read = read_json_object(path, state.read_log, what="memory dump") if is_file(path) else None
        total = read[0].get("gpu_mem_total_mib") if read is not None else None
        if isinstance(total, (int, float)) and total > 0:
            state.evidence.gpu_mem_total_mib = float(total)
            return
