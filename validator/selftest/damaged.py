"""Cases of evidence that is damaged, missing, or somebody else's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from validator.selftest.case import Case
from validator.selftest.runbooks import book, train
from validator.selftest.scene import one
from validator.selftest.sheet import Sheet, scatter

__all__ = ["DAMAGED"]

Damage = Callable[[Path], None]


def edited(name: str, edit: Callable[[list[bytes]], list[bytes]]) -> Damage:
    """Change a file's lines."""

    def damage(out: Path) -> None:
        path = out / name
        path.write_bytes(b"\n".join(edit(path.read_bytes().split(b"\n"))))

    return damage


def _garbage(lines: list[bytes]) -> list[bytes]:
    return [*lines[:40], b"\xff\xfe\x07garbage", b"41,,,", *lines[42:60], b"step 60 loss=3 ok", *lines[61:]]


def _not_numbers(lines: list[bytes]) -> list[bytes]:
    def cells(line: bytes, value: bytes) -> bytes:
        parts = line.split(b",")
        return b",".join([*parts[:3], value, value, *parts[5:]])

    return [*lines[:50], cells(lines[50], b"nan"), cells(lines[51], b"inf"), *lines[52:]]


def _second_header(lines: list[bytes]) -> list[bytes]:
    return [*lines[:60], lines[0], *lines[1:]]


def _step_back(lines: list[bytes]) -> list[bytes]:
    return [*lines[:60], *lines[30:]]


def _nul_bytes(lines: list[bytes]) -> list[bytes]:
    return [*lines[:70], b"\0" * 512, *lines[72:]]


def _cut(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-2], lines[-2][: len(lines[-2]) // 2]]


def _no_json(lines: list[bytes]) -> list[bytes]:
    return [*lines[:30], lines[30][:20] + lines[31], *lines[32:]]


def _other_rank(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b'"rank": 1', b'"rank": 0') for line in lines]


def old(*names: str, by_s: float = 86_400.0) -> Damage:
    """Files from before the start."""

    def damage(out: Path) -> None:
        for name in names:
            path = out / name
            if not path.exists():
                path.write_text("asked for by somebody, long ago", encoding="utf-8")
            then = time.time() - by_s
            os.utime(path, (then, then))

    return damage


_REFUSED = Sheet(
    rates=(),
    without=("training.csv", "heartbeat_rank0.jsonl", "heartbeat_rank1.jsonl", "metrics.json"),
    rc=2,
    detail="exited with code 2",
    stderr="error: .HALT is left from an earlier run; remove it\n",
    damage=old(".HALT"),
)


def _file(name: str, title: str, sheet: Sheet, *codes: str) -> Case:
    return Case(name, title, "files", "INCONCLUSIVE", one(sheet), codes)


_CSV, _BEAT = "training.csv", "heartbeat_rank1.jsonl"

DAMAGED: tuple[Case, ...] = (
    _file("table-with-garbage", "rows that are none", Sheet(damage=edited(_CSV, _garbage)), "damaged-evidence"),
    Case(
        "table-with-nan-and-inf",
        "a rate that is NaN, then infinite",
        *("files", "NO_GO", one(Sheet(damage=edited(_CSV, _not_numbers)))),
        codes=("damaged-evidence",),
    ),
    _file(
        "table-with-two-headers", "a second run in one table", Sheet(damage=edited(_CSV, _second_header)), "mixed-runs"
    ),
    _file("step-going-back", "step 30 follows step 59", Sheet(damage=edited(_CSV, _step_back)), "mixed-runs"),
    _file(
        "table-with-nul-bytes", "what a power cut leaves", Sheet(damage=edited(_CSV, _nul_bytes)), "damaged-evidence"
    ),
    _file(
        "heartbeat-cut-mid-line",
        "the last heartbeat is half a line although the run ended well",
        Sheet(damage=edited(_BEAT, _cut)),
        "damaged-evidence",
    ),
    _file(
        "heartbeat-with-garbage", "two lines torn into one", Sheet(damage=edited(_BEAT, _no_json)), "damaged-evidence"
    ),
    _file(
        "heartbeat-of-another-rank",
        "rank 0 wrote rank 1's file",
        Sheet(damage=edited(_BEAT, _other_rank)),
        "foreign-results",
    ),
    Case(
        "clock-set-back",
        "the wall clock is set back by an hour",
        *("files", "GO", one(Sheet(jump_s=(70, -3600.0)))),
        codes=("clock-jump",),
    ),
    Case(
        "clock-set-forth",
        "the wall clock is set forth by a day",
        *("files", "GO", one(Sheet(jump_s=(70, 86_400.0)))),
        codes=("clock-jump",),
    ),
    Case(
        "no-arrival-stamps",
        "a folder without the supervisor's stamps",
        *("files", "GO", one(Sheet(without=("arrivals.jsonl",)))),
        codes=("clock-unverified",),
    ),
    _file("results-of-yesterday", "the table is older than the process", Sheet(damage=old(_CSV)), "foreign-results"),
    _file("missing-rank", "rank 1 wrote no heartbeat", Sheet(without=(_BEAT,)), "missing-evidence"),
    _file("missing-account", "no env.json", Sheet(without=("env.json",)), "missing-evidence", "config-unknown"),
    _file("missing-metrics", "no metrics.json", Sheet(without=("metrics.json",)), "missing-evidence"),
    Case(
        "account-that-is-no-json",
        "env.json is cut in the middle",
        *("files", "INCONCLUSIVE", one(Sheet(damage=edited("env.json", lambda lines: [lines[0][:200]])))),
        codes=("damaged-evidence",),
    ),
    Case("stale-halt", "a .HALT of yesterday stops the run", "files", "NO_GO", one(_REFUSED), ("stale-halt",)),
    Case(
        "wrong-world-size",
        "two ranks were started, the trainer ran as one",
        *("settings", "INCONCLUSIVE", one(Sheet(ranks=1))),
        codes=("config-ignored",),
    ),
    Case(
        "length-ignored-in-silence",
        "no effective config, but rate × step time betrays a fourth of the tokens",
        "settings",
        "INCONCLUSIVE",
        one(
            Sheet(rates=scatter(40_000.0), config={"seq_len": 512}),
            book(
                train(accept=["toks_per_s.mean >= 1000", "loss.last < loss.first"]),
                metrics={"csv": "training.csv"},
                args={"seq-len": 2048, "batch-size": 1},
            ),
        ),
        ("config-ignored", "config-unknown"),
    ),
)
