"""`trainer_state.json` of the Trainer of Hugging Face: what it logged, with the step of each record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from validator.documents import parse_json
from validator.ingest.read_log import FaultLog
from validator.ingest.readers.rows import LoggedRow, record_row


class TrainerState:
    """The records of `log_history`; times are none in it."""

    def __init__(self) -> None:
        self.faults = FaultLog()

    def rows(self, data: bytes) -> Iterator[LoggedRow]:
        """The rows in the order of the training."""
        try:
            state: Any = parse_json(data)
            records = state["log_history"]
        except (ValueError, KeyError, TypeError):
            self.faults.add("garbage-line", 1, "it is no trainer_state.json with a log_history")
            return
        for record in records if isinstance(records, list) else []:
            row = record_row(record, end=len(data)) if isinstance(record, dict) else None
            if row is None:
                self.faults.add("missing-step", 1, str(record)[:60])
            elif "train_runtime" not in row.values and not row.values.keys() >= {"train_loss", "total_flos"}:
                # The last one is of the whole run.
                yield row


def finished_steps(data: bytes) -> int:
    """The step at which it was written; -1 where it does not say."""
    try:
        state: Any = parse_json(data)
    except ValueError:
        return -1
    step = state.get("global_step") if isinstance(state, dict) else None
    return step if isinstance(step, int) and not isinstance(step, bool) else -1
