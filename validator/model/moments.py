"""Dates and durations as trainers print them, in seconds."""

from __future__ import annotations

import re
from datetime import datetime, timezone

CLOCK = r"\d+(?: days?, |:)\d{1,2}(?::\d\d){0,2}(?:\.\d+)?"  # 4:03 | 1:02:03.5 | 2 days, 1:02:03
_ZONE = r"(?:Z|[-+]\d\d:?\d\d(?![\d:]))"  # Z | +02:00 | -0530
# 2026-03-04 | 20260304 | 26-03-04 | 03/04/2026 | 03/04/26 | 03/04 | 0304, as behind the letter of absl: I0304 05:06:07
_DAY = r"(?:\d{4}[-/]?\d\d[-/]?\d\d|\d\d-\d\d-\d\d|\d\d/\d\d/(?:\d{4}|\d\d)|\d\d/\d\d|\d{4})"
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_DATED = re.compile(rf"({_DAY})[T ,]+({_TIME})({_ZONE})?")
MOMENT = rf"{_DAY}[T ,]+{_TIME}{_ZONE}?|(?<![\d:]){_TIME}(?![\d:])"
"""What a group for a date matches: a date with a time, or a time of the day by itself."""


def seconds_of(text: str) -> float | None:
    """A duration or a time of the day in seconds, a date with a time in Unix seconds (UTC where no zone is given); None
    for anything else. In `03/04/2026` the month comes first, unless it is above 12."""
    if re.fullmatch(CLOCK, text) or re.fullmatch(_TIME, text):
        text = text.replace(",", ".") if "day" not in text else text
        days, _, rest = text.rpartition(" days, " if " days, " in text else " day, ")
        parts = [float(part) for part in rest.split(":")]
        if len(parts) == 4:
            return ((parts[0] * 24 + parts[1]) * 60 + parts[2]) * 60 + parts[3]
        return (float(days) * 86400 if days else 0.0) + sum(60.0**i * part for i, part in enumerate(reversed(parts)))
    found = _DATED.fullmatch(text)
    if found is None:
        return None
    day, clock, zone = found.groups(default="")
    whole, _, fraction = clock.replace(",", ".").partition(".")
    try:
        moment = datetime.strptime(f"{_day(day)} {whole}", "%Y%m%d %H:%M:%S")
    except ValueError:
        return None
    return moment.replace(tzinfo=timezone.utc).timestamp() + float(f"0.{fraction or 0}") - _ahead_s(zone)


def _day(text: str) -> str:
    """A day as `YYYYMMDD`, of the year 2000 where a logger omits it."""
    parts = re.split("[-/]", text)
    if len(parts[0]) >= 4 and len(text) > 4:
        return "".join(parts)
    if len(parts) < 3:
        return f"2000{''.join(parts)}"
    if "-" in text:
        return f"20{''.join(parts)}"
    month, day, year = parts
    month, day = (day, month) if int(month) > 12 else (month, day)
    return f"{year if len(year) == 4 else f'20{year}'}{month}{day}"


def _ahead_s(zone: str) -> float:
    """Seconds that the clocks of a zone (`Z`, `+02:00`, `-0530`) are ahead of UTC."""
    digits = zone.lstrip("+-Z").replace(":", "")
    return 0.0 if not digits else (-60.0 if zone[0] == "-" else 60.0) * (60 * int(digits[:2]) + int(digits[2:]))
