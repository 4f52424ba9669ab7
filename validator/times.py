"""Moments as ISO 8601 texts: written in UTC, read with any zone or none."""

from __future__ import annotations

from datetime import datetime, timezone


def utc_now() -> datetime:
    """The present moment in UTC."""
    return datetime.now(timezone.utc)


def iso_now(timespec: str = "milliseconds") -> str:
    """The present moment, `2026-11-22T10:36:10.123+00:00`; `timespec` is that of `datetime.isoformat`."""
    return utc_now().isoformat(timespec=timespec)


def parse_time(text: object) -> datetime | None:
    """The moment in UTC that an ISO 8601 text names; without a zone it is UTC. None when it cannot be read."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 knows no Z
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (ValueError, OverflowError):  # the second: in the first or last hours that a datetime can hold
        return None


def unix_seconds(text: object) -> float | None:
    """Seconds since 1970 of an ISO 8601 text; None when it cannot be read."""
    moment = parse_time(text)
    return None if moment is None else moment.timestamp()
