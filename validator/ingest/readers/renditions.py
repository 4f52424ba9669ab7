"""Binary files of loggers as text: a copy of a run for others holds texts alone, and is judged like the run itself.

The first line of a rendition holds the flaws that were found while reading, each further one a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from validator.documents import parse_json
from validator.ingest.read_log import FaultLog
from validator.ingest.readers.mlflow import Database, SeveralRuns
from validator.ingest.readers.rows import LoggedRow, as_number
from validator.ingest.readers.tensorboard import EventFile
from validator.ingest.readers.wandb import WandbFile

SUFFIX = ".rows.jsonl"


def rendition(name: str, data: bytes) -> str | None:
    """The text of a binary file that a reader may read; None for any other, and for one without rows."""
    file = name.rpartition("/")[2]
    decoder: EventFile | WandbFile | Database
    if "tfevents" in file:
        decoder = EventFile()
    elif file.endswith(".wandb"):
        decoder = WandbFile()
    elif file.endswith((".db", ".sqlite", ".sqlite3")):
        decoder = Database()
    else:
        return None
    try:
        rows = list(decoder.rows(data)) if isinstance(decoder, Database) else list(decoder.feed(data))
    except SeveralRuns:
        return None
    if not isinstance(decoder, Database):
        decoder.close()
    if not rows:
        return None
    head = {"faults": [[kind, *seen] for kind, seen in decoder.faults.seen.items()]}
    lines = [{"step": r.step, "time_s": r.time_s, "keyed": r.keyed, "values": dict(r.values)} for r in rows]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (head, *lines))


class Rendition:
    """Reads what `rendition` made."""

    def __init__(self) -> None:
        self.faults = FaultLog()
        self._rest = b""
        self._at = 0

    def feed(self, data: bytes) -> Iterator[LoggedRow]:
        """The rows of the lines that end in these bytes."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        for raw in whole:
            self._at += len(raw) + 1
            try:
                line = parse_json(raw)
                if "faults" in line:
                    for kind, count, first, sample in line["faults"]:
                        self.faults.add(str(kind), int(first), str(sample), times=int(count))
                    continue
                values = {
                    str(key): number for key, one in line["values"].items() if (number := as_number(one)) is not None
                }
                yield LoggedRow(int(line["step"]), values, as_number(line["time_s"]), self._at, bool(line["keyed"]))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                self.faults.add("garbage-line", 0, repr(raw[:40]))

    def close(self) -> None:
        """A last line without an end is incomplete."""
        if self._rest.strip():
            self.faults.add("truncated-line", 0, repr(self._rest[:40]))
