"""A trainer that shows nothing but a progress bar, and the supervisor that watches it, both by a clock of their own."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from tests.validator.ingest.folders import outcome, spec
from validator.ingest import collect_run
from validator.model.metrics import TrainerMetrics
from validator.model.recipes import RECIPES
from validator.model.record import RunRecord
from validator.supervise.follow import RunFollower
from validator.supervise.monitor import ArrivalStamps

METRICS = TrainerMetrics(stdout=next(one.pattern for one in RECIPES if one.name == "Hugging Face Trainer"))
START_S = 4.37
"""When the bar is made, in seconds after the launch."""

Write = tuple[float, str]
"""A moment, in seconds after the launch, and what is written then."""


def times(n: int = 600, *, each: float = 0.044, cv: float = 0.03) -> list[float]:
    """Seconds of each step."""
    return (each * (1 + cv * np.random.default_rng(3).standard_normal(n))).tolist()


def paused(seconds: Sequence[float], every: int, pause: float) -> list[float]:
    return [one + (pause if i % every == 0 else 0.0) for i, one in enumerate(seconds, 1)]


def writes(seconds: Sequence[float], *, by: int = 1) -> list[Write]:
    """What tqdm writes, and when: a bar at most every tenth of a second, and at least so many steps apart as it has
    learned to wait. The trainer calls it every `by` steps."""
    total, shown, drawn, waits = len(seconds), 0, START_S, 0.0
    learned = used = 0.0
    made = [(START_S, _bar(0, total, 0.0))]
    for step, now in enumerate(accumulate(seconds, initial=START_S)):
        if step == 0 or step % by or step - shown < waits or now - drawn < 0.1:
            continue
        made.append((now, _bar(step, total, now - START_S)))
        learned, used = 0.3 * (step - shown) * 0.1 / (now - drawn) + 0.7 * learned, 0.3 + 0.7 * used
        shown, drawn, waits = step, now, learned / used
    end = START_S + sum(seconds) + 0.02
    return [*made, (end, _bar(total, total, end - START_S)), (end, "\n")]


def _bar(step: int, total: int, elapsed: float) -> str:
    clock = f"{int(elapsed) // 60:02}:{int(elapsed) % 60:02}"
    return f"\r{100 * step // total:3}%|####      | {step}/{total} [{clock}<00:10, 22.80it/s]"


def with_losses(made: Iterable[Write]) -> Iterator[Write]:
    """As the Trainer of Hugging Face: now and then a dictionary on standard output, for which the bar is cleared."""
    for number, (now, text) in enumerate(made):
        yield now, text
        step = re.search(r" (\d+)/", text)
        if number % 20 == 10 and step is not None:
            yield now, "\r" + 60 * " " + "\r"
            yield now, f"{{'loss': {4 - number / 100}, 'learning_rate': 1e-4, 'epoch': {int(step[1]) / 300:.2f}}}\n"
            yield now, text


def in_blocks(made: Iterable[Write], size: int = 4096) -> list[Write]:
    """The same through a pipe with a buffer: all that fits at once, and the rest at the end."""
    sent, held, now = [], "", 0.0
    for now, text in made:
        held += text
        while len(held) >= size:
            sent.append((now, held[:size]))
            held = held[size:]
    return [*sent, (now, held)]


def polled(made: Iterable[Write], period: float) -> list[Write]:
    """The same through a program that looks for news once in a while."""
    sent: dict[float, str] = {}
    for now, text in made:
        due = period * (now // period + 1)
        sent[due] = sent.get(due, "") + text
    return list(sent.items())


def watched(folder: Path, made: Iterable[Write], *, look_s: float = 1.0, metrics: TrainerMetrics = METRICS) -> Path:
    """The run's folder, with the log and the stamps of a supervisor that is told of each write at once.

    Dictionaries go to standard output, all else to standard error.
    """
    log = folder / "logs" / "stderr.log"
    log.parent.mkdir(parents=True)
    (folder / "logs" / "stdout.log").write_text("")
    log.write_text("loading\n")
    stamps, follower = ArrivalStamps(folder, started=0.0), RunFollower(out=folder, metrics=metrics)

    def look(now: float) -> None:
        stamps.watch(follower.stamped())
        stamps.notice(now)
        stamps.settle(follower.look(now=now), follower.read_to())

    look(looked := 1.0)
    for now, text in made:
        if stamps.due < now:
            stamps.notice(stamps.due)  # what grew while no stamp was due
        while looked + look_s < now:
            look(looked := looked + look_s)
        with (log.with_name("stdout.log") if text.startswith("{") else log).open("a") as file:
            file.write(text)
        stamps.notice(now)
    stamps.notice(now + 0.1, always=True)
    look(now + 0.2)
    stamps.close()
    return folder


def record_of(folder: Path, *, ended: bool = True, **changes: Any) -> RunRecord:
    """The run in this folder, as the validator reads it while it runs or when it has `ended`."""
    own = spec(out=folder.name, **{"metrics": METRICS, "nproc": 1, "steps": 600, "warmup_steps": 20, **changes})
    done = outcome(duration_s=1e3) if ended else None
    return RunRecord(own, outcome(duration_s=1e3), collect_run(own, run_dir=folder.parent, outcome=done))


def real(seconds: Sequence[float], make: Callable[..., Any]) -> list[Write]:
    """What tqdm itself, `make`, writes at these times."""
    now, made = [START_S], []

    class File(io.StringIO):
        def write(self, text: str) -> int:
            made.append((now[0], text))
            return len(text)

    bar = make(total=len(seconds), file=File(), ncols=None, ascii=True)
    made.clear()
    bar._time = lambda: now[0]
    bar.start_t = bar.last_print_t = START_S
    for one in seconds:
        now[0] += one
        bar.update()
    now[0] += 0.02
    bar.close()
    return [one for one in made if one[1]]
