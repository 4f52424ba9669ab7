"""Tricks of hostile folders: what somebody who means harm puts where a file is expected.

Every trick takes the place (a sound validation and what lies outside), a path, and the seed's draw. What an earlier
trick has made impossible may raise; the caller leaves it out.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import shutil
import socket
import sqlite3
import stat
import struct
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fuzz.mutate import mutate_file

if TYPE_CHECKING:
    from tests.fuzz.hostile import Place

__all__ = ["CANARY", "EXPECTED", "NEIGHBOR", "TRICKS", "spoil"]

CANARY = "canary-5e2f9c71"
"""What the files outside hold; found in anything that a command wrote or printed, it was read where it must not be."""

NEIGHBOR = "20991231T000000Z-selftest-own-0000"
"""A second run folder, beside the one that is spoiled."""

_LARGEST_EDITED = 2**24
"""A trick reads no larger file: an earlier one may have made it 10 GiB."""

_FILES = (
    *("run.json", "journal.jsonl", "environment.json", "result.json", "runbook.yaml", "last_go.json", "share.json"),
    *("report.html", "report.md", "guardian.txt", ".drawing", ".pinned", ".HALT", "runs", "runs/baseline"),
)
_TRAINER_FILES = (
    *("training.csv", "heartbeat_rank0.jsonl", "heartbeat_rank1.jsonl", "env.json", "metrics.json", "k_stats.csv"),
    *("sdpa_audit.json", "fallback_counters.csv", "trace/summary.json", "logs", "logs/stdout.log", "logs/stderr.log"),
    *("logs/telemetry.csv", "logs/foreign.csv", "junit.xml", "dump", "dump/stack.txt", "stackdump_1.txt", ".HALT"),
    *("logs/ranks/x/attempt_0/0/error.json", "logs/ranks/x/attempt_0/0/stdout.log", ".anomaly_type", "loader.json"),
    *("arrivals.jsonl", "config.yaml", "other.log", "new/deep/file.txt", "logs/ranks", "checkpoints/step_1.pt"),
)
EXPECTED = {Path(name).name for name in (*_FILES, *_TRAINER_FILES) if Path(name).suffix}
"""Names of files that commands look for; files outside bear them too."""

_NEIGHBORS = (
    *(NEIGHBOR, f"{NEIGHBOR}/result.json", f"{NEIGHBOR}/run.json", f"{NEIGHBOR}/.pinned", f"{NEIGHBOR}/journal.jsonl"),
    *("other", "other/result.json", "latest", "LATEST", "index.html", ".history.json", ".lock", "file.txt"),
)
"""What lies beside the run folder."""

_NAMES = (
    "a\nb",
    "a\x1b[2Jb",
    "\u202egnp.exe",
    "x" * 255,
    "hf_abcdefghijklmnopqrstuvwx.log",
    b"\xff\xfe.log",
    "; rm -rf",
)


def spoil(place: Place, run: Path, draw: random.Random, *, unfinished: bool, also: bool) -> list[str]:
    """Do one to three hostile things to a folder, and seal it again as whoever made it could.

    Args:
        unfinished: cut its journal, so that there is something to resume.
        also: a bisection lies in the folder, and is spoiled most of the time.
    """
    if unfinished:
        lines = (run / "journal.jsonl").read_text().splitlines(keepends=True)
        (run / "journal.jsonl").write_text("".join(lines[: draw.randrange(1, len(lines))]))
    done = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        trick = draw.choice(TRICKS)
        folder, names = draw.choices(
            (
                (run / "runs/baseline/r1", _TRAINER_FILES),
                (run, _FILES),
                (run.parent, _NEIGHBORS),
                (run / "bisection", ("request.json", "trials", "journal.jsonl", ".")),
            ),
            (55, 33, 12, 200 if also else 0),
        )[0]
        path = folder / draw.choice(names)
        if not Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(run.parent)):
            continue  # behind a link that an earlier trick has made
        with suppress(Exception):  # what another trick has made impossible is left out
            done.append(f"{trick.__name__[1:]} {os.path.relpath(path, run)}")
            trick(place, path, draw)
    if draw.random() < 0.7:
        with suppress(Exception):
            _seal(run)
    return done


def _root(path: Path) -> Path:
    """The run folder that a path lies in."""
    return next(folder for folder in path.parents if (folder / "runbook.yaml").exists())


def _is_small(path: Path) -> bool:
    """Whether a trick may read it whole."""
    return stat.S_ISREG(path.lstat().st_mode) and path.lstat().st_size <= _LARGEST_EDITED


def _gone(path: Path) -> Path:
    """Nothing lies there any more, and its folder does."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _link(place: Place, path: Path, draw: random.Random) -> None:
    targets = (
        *(place.outside / "secret.txt", place.outside, place.outside / "inner", *[place.outside / path.name] * 6),
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
    root = _root(path)
    _gone(root / "share.json").write_text(json.dumps({"packed": [str(path.relative_to(root))], "left_out": []}))
    _gone(path.with_name(f"{path.name}.gz")).write_bytes(_zeros())
    _gone(path)


def _packed_bomb(place: Place, path: Path, draw: random.Random) -> None:
    """A gigabyte of zeros, packed, under the name itself: nothing but `share.json` makes a file a packed one."""
    _gone(path).write_bytes(draw.choice((_zeros, _zipped))())


@cache
def _zeros() -> bytes:
    """A gigabyte in one member: a reader that unpacks the first one alone must stop as well."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, compresslevel=1) as file:
        for _ in range(64):
            file.write(bytes(2**24))
    return packed.getvalue()


@cache
def _zipped() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("../../outside/secret.txt", "data.csv", "arr_0.npy"):
            archive.writestr(name, bytes(2**27))
    return packed.getvalue()


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
    root = _root(path)
    if not _is_small(root / "run.json"):
        return
    header = json.loads((root / "run.json").read_text())
    header["runbook"]["trainer"]["metrics"]["stdout"] = r"(?P<step>(a+)+)$"
    (root / "run.json").write_text(json.dumps(header))
    line = "a" * 4000 + "!\n"
    _gone(root / "runs/baseline/r1/logs/stdout.log").write_text(line * draw.choice((1, 1000)))


def _long_line(place: Place, path: Path, draw: random.Random) -> None:
    unit = draw.choice(
        (b"a", b"/", b"-", b"1.", b"0:", b"\\", b'"', b"{", b"a=", b"\r", b"eyJ-", b"!/", b"f::|", b"a@")
    )
    _gone(path).write_bytes(unit * (4_000_000 // len(unit)))


def _many_lines(place: Place, path: Path, draw: random.Random) -> None:
    unit = draw.choice(
        (b"{", b"{}", b"[]", b"1,2", b"", b'"', b'{"ts":1}', b"Traceback", b"- a", b"a: &a", b"\xed\xa0\x80")
    )
    _gone(path).write_bytes((unit + b"\n") * (4_000_000 // (len(unit) + 1)))


def _aliases(place: Place, path: Path, draw: random.Random) -> None:
    """A YAML text whose aliases stand for a billion values, or for itself."""
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    text = draw.choice(("\n".join(["a0: &a0 [x]", *lines]), "a: &a [*a]", "a: &a {<<: *a}", "? [" * 5000))
    target = draw.choice((path, path.with_suffix(".yaml"), _root(path) / "runbook.yaml"))
    _gone(target).write_text(text)


def _index(place: Place, path: Path, draw: random.Random) -> None:
    """A database beside the run folders, as somebody else prepared it: opening one can delete files, or never end."""
    reports = _root(path).parent
    name = draw.choice((".history.sqlite", ".history.json"))
    database = _gone(reports / name)
    with closing(sqlite3.connect(database)) as made:
        made.execute("CREATE TABLE theirs (a)")
        endless = (
            "WITH RECURSIVE r(folder, stamp) AS (SELECT 1, 2 UNION ALL SELECT folder + 1, 2 FROM r) SELECT * FROM r"
        )
        made.execute(f"CREATE VIEW {draw.choice(('runs', 'points', 'other'))} AS {endless}")
        made.execute(f"PRAGMA user_version = {draw.choice((0, 1, 2))}")
        made.commit()
    if draw.random() < 0.5:  # a journal that names another file as its own, to be deleted when it was rolled back
        victim = os.fsencode(place.outside / "secret.txt")
        magic = bytes.fromhex("d9d505f920a163d7")
        pages = database.stat().st_size // 4096
        head = (magic + struct.pack(">5I", 0, 0, pages, 512, 4096)).ljust(512, b"\0")
        tail = struct.pack(">I", 2**18 + 1) + victim + struct.pack(">II", len(victim), sum(victim)) + magic
        (reports / f"{name}-journal").write_bytes(head + tail)


def _index_values(place: Place, path: Path, draw: random.Random) -> None:
    """The index of runs as `history` writes it, with one value that is no such value."""
    from validator.history.store import read_history

    reports = _root(path).parent
    read_history(reports)
    _wrong_type(place, reports / ".history.json", draw)


def _many(place: Place, path: Path, draw: random.Random) -> None:
    folder = path if path.is_dir() and not path.is_symlink() else path.parent
    for number in range(2000):
        _gone(folder / f"stackdump_{number}.txt").write_text("x")


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


TRICKS: tuple[Callable[[Place, Path, random.Random], None], ...] = (
    *(_link, _link, _link, _link_inside, _fifo, _fifo, _socket, _device, _sparse, _bomb, _deep, _deep, _damage),
    *(_huge_number, _huge_number, _wrong_type, _wrong_type, _wrong_type, _outward, _outward, _escapes, _slow_pattern),
    *(_long_line, _many_lines, _many, _deep_folders, _odd_name, _odd_name, _not_allowed, _folder_for_file),
    *(_packed_bomb, _aliases, _index, _index_values),
)


def _edit(path: Path, draw: random.Random, change: Callable[[Any], Any], *, only: type | None = None) -> None:
    """Change one value of a JSON file, or of one line of it."""
    if path.suffix not in (".json", ".jsonl") or not path.is_file():
        path = _root(path) / draw.choice(("run.json", "journal.jsonl", "environment.json", "result.json"))
    if not _is_small(path):
        return
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
    from validator.runs.replay import declared_digest

    if not all(_is_small(run / name) for name in ("run.json", "journal.jsonl")):
        return  # /dev/zero has no end
    lines = []
    for line in (run / "journal.jsonl").read_text().splitlines():
        event = json.loads(line)
        if "header" in event:
            event["header"] = declared_digest((run / "run.json").read_bytes())
        if isinstance(event.get("sources"), dict):
            for name in event["sources"]:
                if (run / name).is_file() and 0 < (run / name).stat().st_size < 2**26:
                    event["sources"][name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
        lines.append(json.dumps(event))
    (run / "journal.jsonl").write_text("\n".join(lines) + "\n")
