"""What the logs of a run say beside its series: wanted texts, collectives that a stack waits in, errors of ranks."""

from __future__ import annotations

import re
from pathlib import Path

from validator.documents import parse_json
from validator.files import is_file, open_file, stat_file
from validator.ingest.log_files import MAX_FILES, TAIL_BYTES, LogFiles, log_lines
from validator.ingest.read_log import SMALL_BYTES, ReadLog, clean, printable
from validator.model.pattern import parse_number
from validator.model.result import CollectiveWait, LogHit, RankError

_COLLECTIVE = re.compile(
    r"\b(?:all_reduce|allreduce|all_gather(?:_into_tensor)?|reduce_scatter(?:_tensor)?|broadcast|barrier|all_to_all|"
    r"_verify_params_across_processes|monitored_barrier)\b"
)


def find_texts(files: tuple[Path, ...], texts: tuple[str, ...], read_log: ReadLog) -> dict[str, LogHit | None]:
    """Where each wanted text first appears."""
    found: dict[str, LogHit | None] = dict.fromkeys(texts)
    for path in files:
        missing = [text for text in texts if found[text] is None]
        if not missing:
            break
        try:
            for number, line in log_lines(path):
                for text in missing:
                    if found[text] is None and text in line:
                        found[text] = LogHit(read_log.name(path), number, text)
        except OSError:
            continue
    return found


def waiting_in(out: Path, read_log: ReadLog) -> list[CollectiveWait]:
    """Collectives that stack dumps show, one for each dump.

    Stacks are the trainer's own (`stackdump_*`) and those that were saved when the run was stopped (`dump/`).
    """
    found = []
    places = [out, *sorted(out.glob("nodes/*"))]
    wanted = ("stackdump_*", "dump/*.txt", "dump/*stack*")
    dumps = list(dict.fromkeys(path for place in places for name in wanted for path in sorted(place.glob(name))))
    for path in filter(is_file, dumps[:MAX_FILES]):
        try:
            if stat_file(path).st_size > SMALL_BYTES:
                continue
            for number, line in log_lines(path):
                match = _COLLECTIVE.search(line)
                if match is not None:
                    collective = match[0].rstrip("(").strip()
                    found.append(CollectiveWait(read_log.name(path), number, printable(line), collective))
                    break
        except OSError:
            continue
    return list({hit.path: hit for hit in found}.values())


def read_errors(logs: LogFiles, read_log: ReadLog) -> list[RankError]:
    """What ranks raised, from torchrun's `error.json`, the first in time first."""
    errors = []
    for rank, path in sorted(logs.rank_error.items()):
        try:
            with open_file(path) as file:
                content = parse_json(file.read(TAIL_BYTES))
        except (OSError, ValueError):
            continue
        message = content.get("message") if isinstance(content, dict) else None
        info = message.get("extraInfo") if isinstance(message, dict) else None
        text = message.get("message") if isinstance(message, dict) else message
        stamp = parse_number(str(info.get("timestamp"))) if isinstance(info, dict) else None
        errors.append(RankError(rank, read_log.name(path), printable(str(clean(text)), limit=500), stamp))
    return sorted(errors, key=lambda one: float("inf") if one.time_s is None else one.time_s)
