"""How an attempt ended, as a sentence for people, with the last words of the rank that failed first."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["describe_exit", "is_full", "last_words", "redact_words", "says_no_room", "says_port_in_use", "tail_of"]

_TAIL_BYTES = 16384
_WORDS = 300
_FULL_BYTES = 64 << 10
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_ERROR_LINE = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Timeout|Warning)\b.*")
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|\bENOSPC\b")
_PORT_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)


def describe_exit(rc: int, *, out: Path, step: int | None, oom_kills: int = 0) -> str:
    """`exited with code 1 after 5 steps: last words of rank 0: …`; a signal is called by its name."""
    after = "" if step is None else f" after {step} step{'' if step == 1 else 's'}"
    if rc < 0:
        try:
            name = signal.Signals(-rc).name
        except ValueError:
            name = f"signal {-rc}"
        text = f"was ended by {name}{after}"
    else:
        text = f"exited with code {rc}{after}"
    if oom_kills:
        text += f"; the kernel ended {oom_kills} process{'' if oom_kills == 1 else 'es'} of this machine to free memory"
    words = last_words(out) if rc != 0 else None
    return f"{text}: {words}" if words else text


def last_words(out: Path) -> str | None:
    """What the process that failed first said last: torchrun's error record, else the end of a log."""
    recorded = _first_error(out)
    if recorded is not None:
        rank, message = recorded
        return f"last words of rank {rank}: {message}"
    for who, path in _logs(out):
        lines = [line for line in tail_of(path).splitlines() if line.strip()]
        chosen = next((line for line in reversed(lines) if _ERROR_LINE.match(line.strip())), None)
        if chosen is None and who is not None:
            continue
        chosen = chosen or (lines[-1] if lines else None)
        if chosen:
            return f"last words{f' of rank {who}' if who is not None else ''}: {_clean(chosen)}"
    return None


def says_port_in_use(out: Path, port: int | None) -> bool:
    """Whether the launcher, or a rank, failed because somebody else had taken the master port meanwhile."""
    if port is None:
        return False
    texts = [tail_of(path) for _, path in _logs(out)]
    return any(_PORT_IN_USE.search(text) and str(port) in text for text in texts)


def is_full(folder: Path) -> bool:
    """Whether the disk of a folder has next to no room, or can hold no further file: a program that found none could
    not write down that it did."""
    try:
        found = os.statvfs(folder)
        return shutil.disk_usage(folder).free < _FULL_BYTES or (found.f_files > 0 and found.f_favail == 0)
    except OSError:
        return False


def says_no_room(out: Path) -> bool:
    """Whether the last lines of a log say that a disk had no room; the program may have removed what did not fit."""
    return any(_NO_ROOM.search(tail_of(path)) for _, path in _logs(out))


def redact_words(words: Iterable[str], redact: Callable[[str], str]) -> tuple[str, ...]:
    """The words of a command without secrets: also a secret that is the word after its flag (`--api-key …`)."""
    clean: list[str] = []
    before = ""
    for word in words:
        probe = f"{before} x"
        if before.startswith("--") and not word.startswith("-") and (told := redact(probe)) != probe:
            clean.append(told[len(before) + 1 :])
        else:
            clean.append(redact(word))
        before = word
    return tuple(clean)


def tail_of(path: Path) -> str:
    """The end of a text file without control sequences; empty when there is none."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
        return _CONTROL.sub("", file.read().decode("utf-8", "replace"))
    return ""


def _logs(out: Path) -> Iterator[tuple[int | None, Path]]:
    """Standard errors by rank, then the launcher's standard error and output."""
    for path in sorted(out.glob("logs/ranks/*/attempt_*/*/stderr.log")):
        if path.parent.name.isdigit():
            yield int(path.parent.name), path
    yield None, out / "logs" / "stderr.log"
    yield None, out / "logs" / "stdout.log"


def _first_error(out: Path) -> tuple[int, str] | None:
    """The earliest of torchrun's error.json files: (rank, message)."""
    found: list[tuple[float, int, str]] = []
    for path in out.glob("logs/ranks/*/attempt_*/*/error.json"):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            message = json.loads(path.read_text(encoding="utf-8", errors="replace"))["message"]
            extra = message.get("extraInfo", {}) if isinstance(message, dict) else {}
            text = str(message["message"] if isinstance(message, dict) else message)
            found.append((float(extra.get("timestamp", 0)), int(path.parent.name), _clean(text.strip())))
    if not found:
        return None
    _, rank, text = min(found)
    return rank, text


def _clean(text: str) -> str:
    line = " ".join(_CONTROL.sub("", text).split())
    return line if len(line) <= _WORDS else line[: _WORDS - 1] + "…"
