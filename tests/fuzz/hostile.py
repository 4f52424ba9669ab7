"""Hostile folders: whatever lies in a folder, a command ends soon, in a sentence, and touches nothing outside it.

Each case makes a folder from a seed, runs one command on it in a forked worker, and looks at what became of it: no
traceback, no hang, no more memory than a limit, nothing outside the folder changed, and nothing of what lies outside
quoted in what was written or printed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.fuzz.folders import Whole
from tests.fuzz.mutate import mutate_file

__all__ = ["COMMANDS", "HostileCase", "Place", "import_everything", "play_hostile"]

LIMIT_S = 30.0
LIMIT_BYTES = 2**30

CANARY = "canary-5e2f9c71"
"""What the files outside hold; found in anything that a command wrote or printed, it was read where it must not be."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "report": ("report", "{run}"),
    "share": ("report", "{run}", "--share", "--out", "{out}/shared"),
    "inspect": ("inspect", "{trainer}"),
    "inspect --json": ("inspect", "{trainer}", "--json"),
    "compare": ("compare", "{whole}", "{run}"),
    "compare trainers": ("compare", "{run}/runs/baseline/r1", "{whole}/runs/baseline/r1"),
    "history": ("history", "{reports}"),
    "baseline": ("baseline", "{run}", "--allow-not-go"),
    "bisect": ("bisect", "{whole}", "{run}", "--out", "{out}"),
    "watch": ("watch", "{trainer}", "--halt", "--interval", "1s"),
    "resume": ("run", "--resume", "{run}", "--no-lock"),
    "report of a neighbor": ("report", "{reports}/20991231T000000Z-selftest-own-0000"),
}
"""What is run on a hostile folder, by a name; the words are filled in."""

_IMPORTED = (
    *("validator.workflow", "validator.commands.app", "validator.bisect.work", "validator.report.write"),
    *("validator.report.html", "validator.report.terminal.summary", "validator.history.page", "validator.history.show"),
    *("validator.collect", "validator.judge", "validator.diagnose", "validator.compare", "validator.baseline"),
    *("validator.observe.pseudonyms", "validator.stages.inspecting", "validator.execute.watch", "scipy.stats"),
)

_FILES = (
    *("run.json", "journal.jsonl", "environment.json", "result.json", "runbook.yaml", "last_go.json", "share.json"),
    *("report.html", "report.md", "guardian.txt", ".drawing", ".pinned", ".HALT", "runs", "runs/baseline"),
)
_TRAINER_FILES = (
    *("training.csv", "heartbeat_rank0.jsonl", "heartbeat_rank1.jsonl", "env.json", "metrics.json", "k_stats.csv"),
    *("sdpa_audit.json", "fallback_counters.csv", "trace/summary.json", "logs", "logs/stdout.log", "logs/stderr.log"),
    *("logs/telemetry.csv", "logs/foreign.csv", "junit.xml", "dump", "dump/stack.txt", "stackdump_1.txt", ".HALT"),
    *("logs/ranks/x/attempt_0/0/error.json", "logs/ranks/x/attempt_0/0/stdout.log", ".anomaly_type", "loader.json"),
    *("arrivals.jsonl", "config.yaml", "other.log", "new/deep/file.txt"),
)
_NAMES = (
    "a\nb",
    "a\x1b[2Jb",
    "\u202egnp.exe",
    "x" * 255,
    "hf_abcdefghijklmnopqrstuvwx.log",
    b"\xff\xfe.log",
    "; rm -rf",
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
        from validator.folder import RunFolder
        from validator.stages.reporting import rerender

        rerender(RunFolder.open(self.whole))
        self.outside = folder / "outside"
        (self.outside / "inner").mkdir(parents=True)
        for name in ("secret.txt", "inner/stderr.log", "training.csv", "result.json", "heartbeat_rank0.jsonl"):
            (self.outside / name).write_text(f"{CANARY}\nRuntimeError: {CANARY}\n", encoding="utf-8")
        self.before = self.look_outside()

    def look_outside(self) -> dict[str, tuple[int, int, str]]:
        """Everything outside: mode, time of change and content of each file."""
        return {
            str(path): (
                path.lstat().st_mode,
                path.lstat().st_mtime_ns if path.is_file() else 0,
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            )
            for path in sorted((*self.outside.rglob("*"), *self.whole.rglob("*")))
        }


def import_everything() -> None:
    """What the commands import, once, before workers are forked."""
    for name in _IMPORTED:
        import_module(name)


def play_hostile(place: Place, scratch: Path, seed: int, *, by_process: bool = False) -> HostileCase:
    """Make the folder of a seed, run its command, and see."""
    draw = random.Random(seed)
    command = draw.choice(sorted(COMMANDS))
    _clear(scratch)
    run = scratch / "reports" / place.whole.name
    shutil.copytree(place.whole, run, symlinks=True)
    if command == "report of a neighbor":
        shutil.copytree(place.whole, run.with_name("20991231T000000Z-selftest-own-0000"))
    done = _spoil(place, run, draw, unfinished=command == "resume")
    out = scratch / "out"
    out.mkdir()
    filled = {"run": run, "trainer": run / "runs/baseline/r1", "whole": place.whole, "reports": run.parent, "out": out}
    words = [word.format(**filled) for word in COMMANDS[command]]
    code, seconds, mib, text = (_by_process if by_process else _by_fork)(words, scratch)
    problem = _judged(code, seconds, mib, text) or _leaked(scratch, text) or _changed(place)
    return HostileCase(seed, command, tuple(done), problem, code, seconds, mib)


# what is done to a folder


def _spoil(place: Place, run: Path, draw: random.Random, *, unfinished: bool) -> list[str]:
    """Do one to three hostile things to a folder, and seal it again as whoever made it could."""
    if unfinished:
        lines = (run / "journal.jsonl").read_text().splitlines(keepends=True)
        (run / "journal.jsonl").write_text("".join(lines[: draw.randrange(1, len(lines))]))
    done = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        trick = draw.choice(_TRICKS)
        inside = draw.random() < 0.6
        path = run / ("runs/baseline/r1" if inside else "") / draw.choice(_TRAINER_FILES if inside else _FILES)
        # What another trick has made impossible is left out.
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError, StopIteration):
            done.append(f"{trick.__name__[1:]} {path.relative_to(run)}")
            trick(place, path, draw)
    if draw.random() < 0.7:
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            _seal(run)
    return done


def _gone(path: Path) -> Path:
    """Nothing lies there any more, and its folder does."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _link(place: Place, path: Path, draw: random.Random) -> None:
    targets = (
        *(place.outside / "secret.txt", place.outside, place.outside / path.name, place.outside / "inner"),
        *("/dev/zero", "/dev/full", "/dev/stdin", "/proc/self/environ", "/etc", str(path), "nowhere", "..", "."),
    )
    _gone(path).symlink_to(draw.choice(targets))


def _link_inside(place: Place, path: Path, draw: random.Random) -> None:
    _gone(path).symlink_to(draw.choice(("training.csv", "env.json", "../r1", "journal.jsonl", "result.json")))


def _fifo(place: Place, path: Path, draw: random.Random) -> None:
    os.mkfifo(_gone(path))


def _socket(place: Place, path: Path, draw: random.Random) -> None:
    here = Path.cwd()
    _gone(path)
    os.chdir(path.parent)  # its address must be short
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


def _device(place: Place, path: Path, draw: random.Random) -> None:
    os.mknod(_gone(path), stat.S_IFCHR | 0o666, os.makedev(1, draw.choice((3, 5, 7, 8))))


def _sparse(place: Place, path: Path, draw: random.Random) -> None:
    with _gone(path).open("wb") as file:
        file.truncate(10 * 2**30)


def _bomb(place: Place, path: Path, draw: random.Random) -> None:
    """A gigabyte of zeros as a packed file of a shared copy."""
    root = next(folder for folder in path.parents if (folder / "runbook.yaml").exists())
    (root / "share.json").write_text(json.dumps({"packed": [str(path.relative_to(root))], "left_out": []}))
    _gone(path.with_name(f"{path.name}.gz")).write_bytes(_zeros())
    _gone(path)


def _zeros() -> bytes:
    block = gzip.compress(bytes(2**24), mtime=0)
    return block * 64


def _deep(place: Place, path: Path, draw: random.Random) -> None:
    depth = draw.choice((80, 990, 3000, 200_000))
    opening, closing = draw.choice((("[", "]"), ('{"a":', "}"), ("- ", ""), ('{"runs": [', "]}")))
    _gone(path).write_text(opening * depth + "1" + closing * depth)


def _huge_number(place: Place, path: Path, draw: random.Random) -> None:
    number = draw.choice(("9" * 5000, "1e999", "-1e308", "1" * 300, "18446744073709551616", "NaN"))
    _edit(path, draw, lambda value: f"\0{number}\0")


def _wrong_type(place: Place, path: Path, draw: random.Random) -> None:
    other = draw.choice((None, True, -1, "", [], {}, [[]], "\ud800", {"\udfff": "\ud83d"}, "x" * 100_000, 0.5))
    _edit(path, draw, lambda value: other)


def _outward(place: Place, path: Path, draw: random.Random) -> None:
    """A path that leads outside, in place of a text."""
    upward = "../" * draw.randrange(1, 9)
    target = draw.choice((str(place.outside), f"{upward}outside", f"{upward}outside/inner", "/etc", "/proc/self"))
    _edit(path, draw, lambda value: target, only=str)


def _escapes(place: Place, path: Path, draw: random.Random) -> None:
    text = draw.choice(("\x1b]0;x\x07\x1b[2J", "<script>alert(1)</script>", "\x9b2J", "\u202ea", "a\nb\n# c", "|a|`b`"))
    _edit(path, draw, lambda value: text, only=str)


def _slow_pattern(place: Place, path: Path, draw: random.Random) -> None:
    """A pattern that backtracks for ever, and a log for it."""
    root = next(folder for folder in path.parents if (folder / "runbook.yaml").exists())
    header = json.loads((root / "run.json").read_text())
    header["runbook"]["trainer"]["metrics"]["stdout"] = r"(?P<step>(a+)+)$"
    (root / "run.json").write_text(json.dumps(header))
    (root / "runs/baseline/r1/logs/stdout.log").write_text("a" * 4000 + "!\n")


def _long_line(place: Place, path: Path, draw: random.Random) -> None:
    _gone(path).write_bytes(draw.choice((b"a", b"/", b"-", b"1.", b"0:", b"\\", b'"', b"{", b"a=", b"\r")) * 4_000_000)


def _many(place: Place, path: Path, draw: random.Random) -> None:
    folder = path if path.is_dir() else path.parent
    for number in range(2000):
        (folder / f"stackdump_{number}.txt").write_text("x")


def _deep_folders(place: Place, path: Path, draw: random.Random) -> None:
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)


def _odd_name(place: Place, path: Path, draw: random.Random) -> None:
    name = draw.choice(_NAMES)
    target = os.fsencode(path.parent) + b"/" + (name if isinstance(name, bytes) else name.encode())
    if draw.random() < 0.5 and path.exists():
        os.rename(path, target)
    else:
        Path(os.fsdecode(target)).write_text(f"step 1 loss {CANARY[:6]}\n")


def _not_allowed(place: Place, path: Path, draw: random.Random) -> None:
    path.chmod(0)


def _folder_for_file(place: Place, path: Path, draw: random.Random) -> None:
    _gone(path).mkdir()


def _damage(place: Place, path: Path, draw: random.Random) -> None:
    mutate_file(path, draw, names=_TRAINER_FILES)


_TRICKS: tuple[Callable[[Place, Path, random.Random], None], ...] = (
    *(_link, _link, _link, _link_inside, _fifo, _fifo, _socket, _device, _sparse, _bomb, _deep, _deep, _damage),
    *(_huge_number, _huge_number, _wrong_type, _wrong_type, _wrong_type, _outward, _outward, _escapes, _slow_pattern),
    *(_long_line, _many, _deep_folders, _odd_name, _odd_name, _not_allowed, _folder_for_file),
)


def _edit(path: Path, draw: random.Random, change: Callable[[Any], Any], *, only: type | None = None) -> None:
    """Change one value of a JSON file, or of one line of it."""
    if path.suffix not in (".json", ".jsonl") or not path.is_file():
        root = next(folder for folder in path.parents if (folder / "runbook.yaml").exists())
        path = root / draw.choice(("run.json", "journal.jsonl", "environment.json", "result.json"))
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    at = draw.randrange(len(lines))
    value = json.loads(lines[at])
    places = [one for one in _places(value) if only is None or isinstance(one[0][one[1]], only)]
    if not places:
        return
    holder, key = draw.choice(places)
    holder[key] = change(holder[key])
    lines[at] = json.dumps(value).replace('"\\u0000', "").replace('\\u0000"', "")
    path.write_text("\n".join(lines) + "\n")


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    if isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            found += [(value, key), *_places(one)]
    return found


def _seal(run: Path) -> None:
    """Write the checksums that the journal holds anew: whoever sends a folder can."""
    from validator.stages.disk import declared_digest

    lines = []
    for line in (run / "journal.jsonl").read_text().splitlines():
        event = json.loads(line)
        if "header" in event:
            event["header"] = declared_digest((run / "run.json").read_bytes())
        if isinstance(event.get("sources"), dict):
            for name in event["sources"]:
                if (run / name).is_file() and (run / name).stat().st_size < 2**26:
                    event["sources"][name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
        lines.append(json.dumps(event))
    (run / "journal.jsonl").write_text("\n".join(lines) + "\n")


def _clear(scratch: Path) -> None:
    subprocess.run(["rm", "-rf", "--", str(scratch)], check=True)  # shutil's own way cannot go so deep
    scratch.mkdir(parents=True)


# how it is run


def _by_process(words: Sequence[str], scratch: Path) -> tuple[int | None, float, int, str]:
    """As a user does."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "validator", *words],
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return None, time.monotonic() - began, 0, ""
    return done.returncode, time.monotonic() - began, 0, done.stdout.decode("utf-8", "replace")


def _by_fork(words: Sequence[str], scratch: Path) -> tuple[int | None, float, int, str]:
    """In a copy of this process, which has everything imported, without the renderer of charts, and without starting
    a trainer: exit code (None when it had to be killed), seconds, MiB and what was printed."""
    said = scratch / "said"
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(words, scratch, said)
    try:
        while (ended := os.wait4(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() - began > LIMIT_S:
                os.kill(pid, signal.SIGKILL)
                os.wait4(pid, 0)
                return None, time.monotonic() - began, 0, said.read_text(errors="replace")
            time.sleep(0.005)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    _, status, used = ended
    text = said.read_text(errors="replace")
    return os.waitstatus_to_exitcode(status), time.monotonic() - began, used.ru_maxrss // 1024, text


def _child(words: Sequence[str], scratch: Path, said: Path) -> None:
    """Never returns."""
    code = 99
    try:
        os.chdir(scratch)
        fd = os.open(said, os.O_WRONLY | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (fd, 1), (fd, 2)):
            os.dup2(source, target)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _nothing_is_started()
        sys.argv = ["validator", *words]
        from validator.cli import main

        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 98
    except BaseException as error:
        os.write(2, f"Traceback: {type(error).__name__}: {error}\n".encode("utf-8", "replace"))
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _nothing_is_started() -> None:
    """What a folder says is to be run is its user's to run; here only what is read before that is tried."""
    from validator import workflow
    from validator.bisect import work
    from validator.execute import watch
    from validator.folder import FolderError
    from validator.report import svg

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
    if "Traceback" in text:
        return text[text.rindex("Traceback") :][-600:]
    return f"took {mib} MiB" if mib * 2**20 > LIMIT_BYTES else None


def _leaked(scratch: Path, text: str) -> str | None:
    if CANARY in text:
        return f"printed what lies outside: …{text[max(0, text.index(CANARY) - 200) : text.index(CANARY) + 20]}"
    if set(text) & set("\x1b\x07\x9b\u202e\x00"):
        return "printed characters that act on a terminal"
    for root, folders, names in os.walk(scratch):
        if root.count("/d/") or len(Path(root).parts) > len(scratch.parts) + 12:
            folders.clear()
        for name in names:
            path = Path(root, name)
            if path.is_symlink() or not path.is_file() or path.stat().st_size > 2**26:
                continue
            if CANARY.encode() in path.read_bytes():
                return f"wrote what lies outside into {path.relative_to(scratch)}"
    return None


def _changed(place: Place) -> str | None:
    now = place.look_outside()
    if now == place.before:
        return None
    changed = [path for path in {*now, *place.before} if now.get(path) != place.before.get(path)]
    place.before = now
    return f"changed outside: {changed[:3]}"
