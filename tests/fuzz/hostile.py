"""Hostile folders: whatever lies in a folder, a command ends soon, in a sentence, and touches nothing outside it.

Each case makes a folder from a seed, runs one command on it in a forked worker, and looks at what became of it: no
traceback, no hang, no more memory than a limit, nothing outside the folder changed, and nothing of what lies outside
quoted in what was written or printed.
"""

from __future__ import annotations

import gc
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.fuzz.folders import Whole
from tests.fuzz.tricks import CANARY, EXPECTED, NEIGHBOR, spoil
from validator.documents import unpack

__all__ = ["COMMANDS", "HostileCase", "Place", "import_everything", "play_hostile"]

LIMIT_S = 30.0
LIMIT_BYTES = 2**30
WATCH_S = 10.0
_SCRIPT = b"<script>alert(1)"
_TRACEBACK = "Traceback (most recent call last)"

MACHINE_BYTES = 2**32
"""Data of a command, so that one that takes all it can get does not take the machine's."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "report": ("report", "{run}"),
    "share": ("report", "{run}", "--share", "--out", "{out}/shared"),
    "inspect": ("inspect", "{trainer}"),
    "inspect --json": ("inspect", "{trainer}", "--json"),
    "compare": ("compare", "{whole}", "{run}"),
    "compare trainers": ("compare", "{run}/runs/baseline/r1", "{whole}/runs/baseline/r1"),
    "history": ("history", "{reports}"),
    "baseline": ("baseline", "{run}", "--allow-not-go"),
    "compare --json": ("compare", "{run}", "{reports}/{neighbor}", "--json"),
    "bisect": ("bisect", "{whole}", "{run}", "--out", "{out}"),
    "bisect trainers": ("bisect", "{whole}/runs/baseline/r1", "{trainer}", "--out", "{out}"),
    "bisect --resume": ("bisect", "--resume", "{run}/bisection", "--no-lock"),
    "watch": ("watch", "{trainer}", "--halt", "--interval", "1s"),
    "resume": ("run", "--resume", "{run}", "--no-lock"),
    "export": ("export", "{run}", "--to", "otel", "--uri", "http://127.0.0.1:9"),
    "serve": ("serve", "{reports}", "{out}"),
    "report of a neighbor": ("report", "{reports}/{neighbor}"),
}
"""What is run on a hostile folder, by a name; the words are filled in."""

_IMPORTED = (
    *("validator.pipeline.validate", "validator.commands.app", "validator.bisect.work", "validator.pipeline.write"),
    *("validator.report.html", "validator.report.terminal.summary", "validator.history.page"),
    *("validator.ingest", "validator.judge", "validator.diagnose", "validator.compare", "validator.baseline"),
    *("validator.secrets.pseudonyms", "validator.pipeline.inspect", "validator.supervise.watch"),
    *("validator.startup", "validator.history.store", "validator.commands.report", "validator.commands.inspect"),
    *(f"validator.commands.{name}" for name in ("compare", "baseline", "bisect", "export", "history", "watch", "run")),
    "tests.fuzz.service",
    *("pydantic.type_adapter", "typer._click.decorators"),
)


@dataclass(frozen=True)
class HostileCase:
    """What became of one command on one folder. `problem` is None when all is well."""

    seed: int
    command: str
    done: tuple[str, ...]
    problem: str | None
    code: int | None = None
    seconds: float = 0.0
    mib: int = 0


class Place:
    """A sound validation, and what lies outside every hostile folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.whole = Whole(folder / "whole").root
        from validator.pipeline.write import rerender
        from validator.runs.folder import RunFolder

        rerender(RunFolder.open(self.whole))
        self.outside = folder / "outside"
        (self.outside / "inner").mkdir(parents=True)
        for name in ("secret.txt", "inner/stderr.log", *sorted(EXPECTED)):
            (self.outside / name).write_text(f"{CANARY}\nRuntimeError: {CANARY}\n", encoding="utf-8")
        self.request = _request(self.whole)

    def look_outside(self) -> dict[str, tuple[int, ...]]:
        """Everything outside, by what changes when somebody writes to it; of the files nobody may read, when they were
        read as well."""
        looks = {}
        for root in (self.outside, self.whole):
            for path in root.rglob("*"):
                seen = path.lstat()
                read = seen.st_atime_ns if root == self.outside and path.is_file() else 0
                changed = 0 if path.is_dir() else seen.st_ctime_ns
                looks[str(path)] = (seen.st_mode, seen.st_size, seen.st_ino, changed, read)
        return looks

    def forget_reads(self) -> None:
        """Set back when the files outside were read: a mount with relatime notes the next time, and only that."""
        for path in self.outside.rglob("*"):
            if path.is_file():
                os.utime(path, (0, path.lstat().st_mtime))


def _request(whole: Path) -> str:
    """What `validator bisect` writes of a bisection before it starts one."""
    from validator.bisect.side import read_end
    from validator.bisect.work import BisectHeader

    end = read_end(whole)
    header = BisectHeader(
        good=end,
        bad=end.model_copy(update={"args": {**end.args, "lr": 0.5}}),
        metric="toks_per_s",
        steps=20,
        warmup_steps=2,
        timeout_s=5.0,
        max_runs=2,
        repeats=1,
        started="2026-01-01T00:00:00.000Z",
        cwd=str(whole),
    )
    return header.model_dump_json(indent=2)


def import_everything() -> None:
    """What the commands import, once, before workers are forked."""
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()  # a collection in a forked worker would copy every page that it looks at


def play_hostile(place: Place, scratch: Path, seed: int, *, by_process: bool = False) -> HostileCase:
    """Make the folder of a seed, run its command, and see."""
    draw = random.Random(seed)
    command = draw.choice(sorted(COMMANDS))
    _clear(scratch)
    run = scratch / "reports" / place.whole.name
    shutil.copytree(place.whole, run, symlinks=True)
    if command in ("history", "compare --json", "report of a neighbor") or draw.random() < 0.2:
        shutil.copytree(place.whole, run.with_name(NEIGHBOR))
    if command.startswith("bisect") and not by_process:  # there it would start what it is to compare
        _set_apart(place, run)
    done = spoil(place, run, draw, unfinished=command == "resume", also=command == "bisect --resume")
    out = scratch / "out"
    out.mkdir()
    filled = {"run": run, "trainer": run / "runs/baseline/r1", "whole": place.whole, "reports": run.parent, "out": out}
    words = [word.format(**filled, neighbor=NEIGHBOR) for word in COMMANDS[command]]
    place.forget_reads()
    before, outside = _names_around(run), place.look_outside()
    code, seconds, mib, text = _run(words, scratch, by_process=by_process)
    problem = (
        _judged(code, seconds, mib, text)
        or _touched(outside, place.look_outside())
        or _leaked(scratch, text)
        or _wrote_around(before, _names_around(run))
    )
    return HostileCase(seed, command, tuple(done), problem, code, seconds, mib)


def _set_apart(place: Place, run: Path) -> None:
    """Another learning rate than the sound run's, in the journal and in the trainer's account, and a bisection."""
    journal = run / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"requested":{', '"requested":{"lr":0.5,'))
    (run / "bisection").mkdir()
    (run / "bisection/request.json").write_text(place.request)


def _names_around(run: Path) -> set[str]:
    """What lies beside the run folder, and beside the reports."""
    return {f"../{path.name}" for path in run.parent.parent.iterdir()} | {path.name for path in run.parent.iterdir()}


def _clear(scratch: Path) -> None:
    try:
        shutil.rmtree(scratch)
    except FileNotFoundError:
        pass
    except (OSError, RecursionError):
        subprocess.run(["rm", "-rf", "--", str(scratch)], check=True)  # Python's own way cannot go so deep
    scratch.mkdir(parents=True)


# how it is run


def _run(words: Sequence[str], scratch: Path, *, by_process: bool) -> tuple[int | None, float, int, str]:
    """As a user does, or in a copy of this process, which has everything imported, without the renderer of charts,
    and without starting a trainer: exit code (None when it had to be killed), seconds, MiB and what was printed."""
    said = scratch / "said"
    began = time.monotonic()
    interrupt_at = began + (WATCH_S if by_process and words[0] == "watch" else math.inf)  # else it waits for an end
    pid = os.fork()
    if pid == 0:
        _child(words, scratch, said, by_process=by_process)
    code, mib = None, 0
    try:
        while (ended := os.wait4(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() - began > LIMIT_S:
                break
            if time.monotonic() > interrupt_at:
                os.kill(pid, signal.SIGINT)
                interrupt_at = math.inf
            time.sleep(0.01)
        else:
            code, mib = os.waitstatus_to_exitcode(ended[1]), ended[2].ru_maxrss // 1024
    finally:
        with suppress(ProcessLookupError):  # whatever it has started is in its group
            os.killpg(pid, signal.SIGKILL)
        if code is None:
            os.wait4(pid, 0)
    return code, time.monotonic() - began, mib, said.read_text(errors="replace")


def _child(words: Sequence[str], scratch: Path, said: Path, *, by_process: bool) -> None:
    """Never returns."""
    code = 99
    try:
        os.setpgid(0, 0)
        os.chdir(scratch)
        fd = os.open(said, os.O_WRONLY | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (fd, 1), (fd, 2)):
            os.dup2(source, target)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (MACHINE_BYTES, MACHINE_BYTES))
        if words[0] == "serve":
            _ask_every_page(Path(words[1]), Path(words[2]))
            os._exit(0)
        if by_process:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's job in the background ignores it
            os.execv(sys.executable, [sys.executable, "-m", "validator", *words])
        _nothing_is_started()
        os.environ["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"  # nobody listens, and its library would try for ten seconds
        sys.argv = ["validator", *words]
        from validator.cli import main

        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 98
    except BaseException as error:
        os.write(2, f"{_TRACEBACK}: {type(error).__name__}: {error}\n".encode("utf-8", "replace"))
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _ask_every_page(reports: Path, out: Path) -> None:
    """What `validator serve` answers, whose own command would not end."""
    from tests.fuzz.service import every_page

    every_page(reports, out)


def _nothing_is_started() -> None:
    """What a folder says is to be run is its user's to run; here only what is read before that is tried."""
    from validator.bisect import work
    from validator.errors import FolderError
    from validator.pipeline import validate as workflow
    from validator.report import figure as svg
    from validator.supervise import watch

    def refuse(*_: Any, **__: Any) -> Any:
        raise FolderError("nothing is started here")

    looks = iter((True, True, False))
    workflow.run_phase = refuse
    work._carry_out = refuse
    watch._sleep = lambda *_: next(looks)
    svg._drawn = lambda spec: f'<svg xmlns="http://www.w3.org/2000/svg"><title>{len(spec)}</title></svg>'


# how it is judged


def _judged(code: int | None, seconds: float, mib: int, text: str) -> str | None:
    if code is None:
        return f"was still running after {seconds:.0f} s"
    if code not in (0, 1, 2, 3, 4, 130):
        return f"ended with exit code {code}: {text[-300:]}"
    if _TRACEBACK in text:
        return text[text.rindex(_TRACEBACK) :][-600:]
    return f"took {mib} MiB" if mib * 2**20 > LIMIT_BYTES else None


def _leaked(scratch: Path, text: str) -> str | None:
    if CANARY in text:
        return f"printed what lies outside: …{text[max(0, text.index(CANARY) - 200) : text.index(CANARY) + 20]}"
    if set(text) & set("\x1b\x07\x9b\u202e\x00"):
        return "printed characters that act on a terminal"
    for root, folders, names in os.walk(scratch):
        if "/d/d" in root or len(Path(root).parts) > len(scratch.parts) + 12:
            folders.clear()
        for name in names:
            path = Path(root, name)
            if path.is_symlink() or not path.is_file() or path.stat().st_size > 2**26:
                continue
            data = path.read_bytes()
            if path.suffix == ".gz" and path.is_relative_to(scratch / "out"):
                data = unpack(data)
            if CANARY.encode() in data:
                return f"wrote what lies outside into {path.relative_to(scratch)}"
            if path.suffix == ".html" and path.name.startswith(("report", "index")) and _SCRIPT in data:
                return f"wrote a script of the folder's into {path.relative_to(scratch)}"
    return None


def _wrote_around(before: set[str], after: set[str]) -> str | None:
    """Beside the run folder only what keeps track of all of them is written."""
    odd = after - before - {"index.html", ".history.json", "../said"}
    return f"wrote beside the folder: {sorted(odd)}" if odd else None


def _touched(before: dict[str, tuple[int, ...]], now: dict[str, tuple[int, ...]]) -> str | None:
    touched = sorted(path for path in {*now, *before} if now.get(path) != before.get(path))
    return f"read or changed outside: {touched[:3]}" if touched else None
