"""Dates and durations as trainers print them, in seconds."""

from __future__ import annotations

import re
from datetime import datetime, timezone

# 1h2m | 1h 2m 3s | 1m23.5s | 3s455ms | 455ms
_IN_UNITS = r"\d+[dD] ?\d+h|\d+h ?\d+m(?: ?\d+s)?|\d+m ?\d+(?:\.\d+)?s|\d+s\d+ms|\d+ms(?![a-zA-Z])"
CLOCK = rf"\d+(?: days?, |:)\d{{1,2}}(?::\d\d){{0,2}}(?:\.\d+)?|{_IN_UNITS}"  # 4:03 | 1:02:03.5 | 2 days, 1:02:03
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_ZONE = r"(?:Z|[-+]\d\d:?\d\d(?![\d:]))"  # Z | +02:00 | -0530
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?:(?i:{'|'.join(_MONTHS)})[a-z]{{0,6}})"
_WEEKDAY = r"(?:(?i:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6},? +)"
# Mar 4 | Wed, 4 Mar 2026 | March 4, 2026 | 04/Mar/2026 | 2026年3月4日
_IN_WORDS = (
    rf"{_WEEKDAY}?(?:{_MONTH} +\d{{1,2}}(?:,? +\d{{4}})?|\d{{1,2}}[ /-]{_MONTH}[ /,-]{{1,2}}\d{{4}})"
    r"|\d{4}年\d{1,2}月\d{1,2}日"
)
# 2026-03-04 | 20260304 | 26-03-04 | 04-03-2026 | 04.03.2026 | 03/04/2026 | 03/04/26 | 03/04 | 03-04 | 0304, as behind
# the letter of absl: I0304 05:06:07
_DAY = (
    rf"(?:\d{{4}}[-/]?\d\d[-/]?\d\d|\d\d-\d\d-(?:\d{{4}}|\d\d)|\d\d\.\d\d\.(?:\d{{4}}|\d\d)"
    rf"|\d\d/\d\d/(?:\d{{4}}|\d\d)|\d\d[/-]\d\d|\d{{4}}|{_IN_WORDS})"
)
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
# 05:06:07 | behind a day also 05:06.07 | Wed Mar 4 05:06:07 2026 | 20260304-050607
_HALF = r"(?: ?[aApP][mM](?![A-Za-z]))"
_DATED = re.compile(rf"({_DAY})[T ,:]+({_TIME}|\d\d:\d\d\.\d\d(?!\d))({_HALF})?({_ZONE})?")
_YEAR_LAST = re.compile(rf"({_WEEKDAY}{_MONTH} +\d{{1,2}}) +({_TIME})(?: [A-Z]{{3,4}})? (\d{{4}})")
_COMPACT = re.compile(r"(\d{8})[-_](\d\d)(\d\d)(\d\d)")
MOMENT = (
    rf"{_WEEKDAY}{_MONTH} +\d{{1,2}} +{_TIME}(?: [A-Z]{{3,4}})? \d{{4}}"
    rf"|{_DAY}(?:[T ,]+|(?<=[a-z][/-]\d{{4}}):){_TIME}{_HALF}?{_ZONE}?|\d{{4}}-\d\d-\d\d \d\d:\d\d\.\d\d(?!\d)"
    rf"|20\d{{6}}[-_](?:[01]\d|2[0-3])[0-5]\d[0-5]\d(?!\d)|(?<![\d:]){_TIME}(?![\d:])"
)
"""What a group for a date matches: a date with a time, or a time of the day by itself."""

MOMENT_IN_WORDS = rf"(?:{_IN_WORDS})[T ,:]+\d\d:\d\d|20\d{{6}}[-_](?:[01]\d|2[0-3])[0-5]\d[0-5]\d(?!\d)"
"""How one with the name of a month begins, or one without a sign between its numbers."""


def seconds_of(text: str) -> float | None:
    """A duration or a time of the day in seconds, a date with a time in Unix seconds (UTC where no zone is given); None
    for anything else. In `03/04/2026` the month comes first, in `04-03-2026` and `04.03.2026` the day, unless the month
    is above 12."""
    if re.fullmatch(_IN_UNITS, text):
        return sum(float(count) * _UNITS_S[unit.lower()] for count, unit in re.findall(r"([\d.]+)(ms|[dDhms])", text))
    if re.fullmatch(CLOCK, text) or re.fullmatch(_TIME, text):
        text = text.replace(",", ".") if "day" not in text else text
        days, _, rest = text.rpartition(" days, " if " days, " in text else " day, ")
        parts = [float(part) for part in rest.split(":")]
        if len(parts) == 4:
            return ((parts[0] * 24 + parts[1]) * 60 + parts[2]) * 60 + parts[3]
        return (float(days) * 86400 if days else 0.0) + sum(60.0**i * part for i, part in enumerate(reversed(parts)))
    found = _DATED.fullmatch(text)
    if found is None and (other := _YEAR_LAST.fullmatch(text)) is not None:
        found = _DATED.fullmatch(f"{other[1]} {other[3]} {other[2]}")
    elif found is None and (other := _COMPACT.fullmatch(text)) is not None:
        found = _DATED.fullmatch(f"{other[1]} {other[2]}:{other[3]}:{other[4]}")
    if found is None:
        return None
    day, clock, half, zone = found.groups(default="")
    clock = clock if clock[5] == ":" else f"{clock[:5]}:{clock[6:]}"
    whole, _, fraction = clock.replace(",", ".").partition(".")
    try:
        moment = datetime.strptime(f"{_day(day)} {whole}", "%Y%m%d %H:%M:%S")
    except ValueError:
        return None
    after_noon_s = 0.0 if not half else 43200.0 * ((half[-2] in "pP") - (moment.hour == 12))
    return moment.replace(tzinfo=timezone.utc).timestamp() + after_noon_s + float(f"0.{fraction or 0}") - _ahead_s(zone)


def _day(text: str) -> str:
    """A day as `YYYYMMDD`, of the year 2000 where a logger omits it."""
    named = re.search(_MONTH, text)
    if named is not None and (numbers := re.findall(r"\d+", text)):
        day, year = numbers[0], numbers[1] if len(numbers) > 1 else "2000"
        return f"{year}{_MONTHS.index(named[0][:3].lower()) + 1:02}{int(day):02}"
    if "年" in text:
        return "".join(f"{int(part):02}" for part in re.findall(r"\d+", text))
    parts = re.split("[-/.]", text)
    if len(parts[0]) >= 4 and len(text) > 4:
        return "".join(parts)
    if len(parts) < 3:
        return f"2000{''.join(parts)}"
    if "-" in text and len(parts[2]) == 2:
        return f"20{''.join(parts)}"
    month, day, year = parts if "/" in text else (parts[1], parts[0], parts[2])
    month, day = (day, month) if int(month) > 12 else (month, day)
    return f"{year if len(year) == 4 else f'20{year}'}{month}{day}"


def _ahead_s(zone: str) -> float:
    """Seconds that the clocks of a zone (`Z`, `+02:00`, `-0530`) are ahead of UTC."""
    digits = zone.lstrip("+-Z").replace(":", "")
    return 0.0 if not digits else (-60.0 if zone[0] == "-" else 60.0) * (60 * int(digits[:2]) + int(digits[2:]))
