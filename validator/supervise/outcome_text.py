"""How an attempt ended, as a sentence for people, with the last words of the rank that failed first."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from validator.documents import parse_json
from validator.files import open_file, reading_below
from validator.model.record import LastWords

_TAIL_BYTES = 65536
_RECORD_BYTES = 1 << 20
_WORDS = 300
_FULL_BYTES = 64 << 10
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_PREFIX = re.compile(
    r"""\s*(?:
      \[?(?:rank|Rank|default|worker|local_rank)[\s_=]?(?P<rank>\d{1,9})\]?\s*[:|>]?     # torchrun, pytorch
    | (?P<number>\d{1,9}):\s(?=\S|\s)                                            # srun --label
    | \[\d{1,9},(?P<mpi>\d{1,9})\]<\w+>:?                                               # mpirun
    | \(\w+\ pid=\d+[^)]*\)                                                     # ray
    | \[?\d{4}[-/]\d\d[-/]\d\d[T\s,]*[\d:]+[.,]?\d*Z?\]?                          # dates
    | \[?\d\d:\d\d:\d\d[.,]?\d*\]?
    | [EWIF]\d{4}\ [\d:.]+\ +\d+\ [^\]]*\]                                        # glog
    | \[?(?:ERROR|CRITICAL|FATAL|WARNING|INFO)\]?:?(?=\s)
    | (?:[\w.]+\s)?[-|]\s
    )""",
    re.VERBOSE,
)
"""What launchers and loggers write in front of a line."""

_ERROR_LINE = re.compile(
    r"(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Timeout)\b(?::|\s*$).*"
    r"|Fatal Python error: .*|Segmentation fault.*|terminate called after throwing .*"
)
_SECONDARY = re.compile(
    r"ChildFailedError|CalledProcessError|SignalException|ProcessRaisedException|ProcessExitedException|SystemExit"
    r"|DistBackendError|DistNetworkError|DistStoreError|BrokenPipeError|ConnectionResetError|RendezvousConnectionError"
    r"|Connection closed by peer|Connection reset by peer|exited with (?:exit ?)?code|non-zero exit status"
)
"""What says only that another process, or another rank, had failed."""

_EMPTY_WORDS = re.compile(
    r"[\W_]*$|exit ?code\s*:|error_file\s*:|traceback\s*:|time\s*:|host\s*:|rank\s*:|Root Cause"
    r"|Failures?:|<NO_OTHER_FAILURES>|.*\bFAILED$|(?:process )?exited with (?:exit ?)?code \d+\.?$"
)
"""Lines of a launcher's summary that say nothing of the cause."""

_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|\bENOSPC\b")
_PORT_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)


def describe_exit(rc: int, *, words: LastWords | None, step: int | None, oom_kills: int = 0) -> str:
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
    return text if words is None else f"{text}: {words}"


def words_of(rc: int, *, out: Path) -> LastWords | None:
    """The last words of a run that failed; None where it did not, or said nothing."""
    if rc != 0:
        with suppress(OSError), reading_below(out):
            return last_words(out)
    return None


def last_words(out: Path) -> LastWords | None:
    """The exception of the rank that failed first: from torchrun's error record, else from the end of a log.

    Prefixes of launchers and loggers are left out, and what only says that another process failed comes last.
    """
    recorded = _first_error(out)
    if recorded is not None and not _SECONDARY.search(recorded[1]):
        return LastWords(rank=recorded[0], text=recorded[1])
    found: list[tuple[bool, LastWords]] = []
    endings: dict[int | None, LastWords] = {}
    for who, path in _logs(out):
        lines = [_unprefixed(line) for line in tail_of(path).splitlines() if line.strip()]
        error = _exception(lines)
        if error is not None:
            rank = who if error[0] is None else error[0]
            found.append((bool(_SECONDARY.search(error[1])), LastWords(rank=rank, text=_clean(error[1]))))
        elif who not in endings:
            last = next((text for _, text in reversed(lines) if not _EMPTY_WORDS.match(text.strip())), None)
            if last is not None:
                endings[who] = LastWords(rank=who, text=_clean(last))
    if recorded is not None:
        found.append((True, LastWords(rank=recorded[0], text=recorded[1])))
    found.sort(key=lambda one: one[0])  # stable: ranks in order, then the launcher
    if found and not found[0][0]:
        return found[0][1]
    # A rank that ends with a sentence, as for a wrong argument, has no exception; its launcher has one for it.
    ending = endings.pop(None, None) or (next(iter(endings.values()), None) if found else None)
    return ending or (found[0][1] if found else None)


def _unprefixed(line: str) -> tuple[int | None, str]:
    """The rank that a line's prefix names, and the line without its prefixes."""
    rank: int | None = None
    while (match := _PREFIX.match(line)) is not None and match.end():
        named = match["rank"] or match["number"] or match["mpi"]
        rank = rank if named is None else int(named)
        line = line[match.end() :].removeprefix(" ")
    return rank, line


def _exception(lines: list[tuple[int | None, str]]) -> tuple[int | None, str] | None:
    """The exception that ended a log: of each rank the last one, of several ranks the first that is a cause."""
    ended: dict[int | None, str] = {}
    within: set[int | None] = set()
    for rank, text in lines:
        if text.startswith("Traceback (most recent call last)"):
            within.add(rank)
        elif rank in within and text[:1].strip() and text[0] not in "|+":
            within.discard(rank)  # behind the frames, which are indented, comes the exception
            _take(ended, rank, text.strip())
        elif _ERROR_LINE.match(text.strip()) and not text.startswith("  "):
            _take(ended, rank, text.strip())
    return min(ended.items(), key=lambda one: bool(_SECONDARY.search(one[1])), default=None)


def _take(ended: dict[int | None, str], rank: int | None, text: str) -> None:
    """Note an exception; one that only follows from another does not displace that one."""
    if rank not in ended or not _SECONDARY.search(text):
        ended[rank] = text


def says_port_in_use(out: Path, port: int | None) -> bool:
    """Whether the launcher, or a rank, failed because another program had taken the master port meanwhile."""
    if port is None:
        return False
    texts = _tails(out)
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
    return any(_NO_ROOM.search(text) for text in _tails(out))


def _tails(out: Path) -> list[str]:
    with suppress(OSError), reading_below(out):
        return [tail_of(path) for _, path in _logs(out)]
    return []


def tail_of(path: Path) -> str:
    """The end of a text file without control sequences; empty when there is none."""
    with suppress(OSError), open_file(path) as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
        return _CONTROL.sub("", file.read(_TAIL_BYTES).decode("utf-8", "replace"))
    return ""


def _logs(out: Path) -> Iterator[tuple[int | None, Path]]:
    """Standard errors by rank, then the launcher's standard error and output."""
    for path in sorted(out.glob("logs/ranks/*/attempt_*/*/stderr.log")):
        if path.parent.name.isdecimal():
            yield int(path.parent.name), path
    yield None, out / "logs" / "stderr.log"
    yield None, out / "logs" / "stdout.log"


def _first_error(out: Path) -> tuple[int, str] | None:
    """The earliest of torchrun's error.json files: (rank, message)."""
    found: list[tuple[float, int, str]] = []
    for path in out.glob("logs/ranks/*/attempt_*/*/error.json"):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            with open_file(path) as file:
                message = parse_json(file.read(_RECORD_BYTES))["message"]
            extra = message.get("extraInfo", {}) if isinstance(message, dict) else {}
            text = str(message["message"] if isinstance(message, dict) else message)
            found.append((float(extra.get("timestamp", 0)), int(path.parent.name), _clean(text.strip())))
    if not found:
        return None
    _, rank, text = min(found)
    return rank, text


def _clean(text: str) -> str:
    line = " ".join(_CONTROL.sub("", text).split()).strip("│┃ ")  # an error that a library frames
    return line if len(line) <= _WORDS else line[: _WORDS - 1] + "…"
