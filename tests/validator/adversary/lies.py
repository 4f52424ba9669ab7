"""Ways in which a trainer's files may say what did not happen, as damage to the folder that a healthy run left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.validator.adversary.court import lines, rewritten

Damage = Callable[[Path], None]


def column(name: str, change: Callable[[int, float], object]) -> Damage:
    """A column of the table, each cell made anew from its row's number, from 1, and its value."""

    def changed(rows: list[str]) -> list[str]:
        at = rows[0].split(",").index(name)
        kept = [rows[0]]
        for number, row in enumerate(rows[1:], start=1):
            cells = row.split(",")
            cells[at] = str(change(number, float(cells[at])))
            kept.append(",".join(cells))
        return kept

    return rewritten("training.csv", changed)


def both(*damages: Damage) -> Damage:
    """One after the other."""

    def damage(out: Path) -> None:
        for one in damages:
            one(out)

    return damage


def faster(factor: float) -> Damage:
    """A rate and a time per step that agree with each other, and with no clock."""
    return both(
        column("toks_per_s", lambda _, value: value * factor), column("step_time_s", lambda _, value: value / factor)
    )


def beats(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Damage:
    """Every record of every heartbeat, changed."""

    def damage(out: Path) -> None:
        for path in out.glob("heartbeat_rank*.jsonl"):
            records = [change(json.loads(line)) for line in lines(path)]
            path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")

    return damage


def dated(shift_s: float) -> Damage:
    """Heartbeats by a clock that is off."""
    return beats(lambda record: {**record, "ts": record["ts"] + shift_s})


def one_for_all(out: Path) -> None:
    """Rank 0's heartbeat, written once more for rank 1."""
    text = (out / "heartbeat_rank0.jsonl").read_text(encoding="utf-8")
    (out / "heartbeat_rank1.jsonl").write_text(text.replace('"rank": 0', '"rank": 1'), encoding="utf-8")


def sampled(*utilization: float, throttled: bool = False) -> Damage:
    """The machine's samples beside a run: utilization of each GPU in percent, and whether the first was throttled."""
    mask = 0x40 if throttled else 0
    head = ",".join(("ts", "gpu0_throttle_mask", *(f"gpu{index}_util_pct" for index in range(len(utilization)))))

    def damage(out: Path) -> None:
        began_s = time.time() - 20.0  # runs end as they are written
        rows = (",".join(map(str, (f"{began_s + 0.1 * i:.3f}", mask, *utilization))) for i in range(220))
        (out / "logs" / "telemetry.csv").write_text("\n".join((head, *rows)) + "\n", encoding="utf-8")

    return damage
