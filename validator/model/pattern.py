"""Regular expressions of a runbook: compiled with care, since anything may be written there."""

from __future__ import annotations

import re
import warnings

__all__ = ["PatternError", "compiled"]


class PatternError(ValueError):
    """A text is no regular expression, or one whose meaning is not settled; the message says why."""


def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, ready for use.

    Python warns of brackets and doubled signs within a set (`[[0-9]`, `[a--b]`), which later versions may read
    otherwise. A runbook has to mean the same everywhere, so that is refused here.

    Raises:
        PatternError: when it cannot be compiled, or not without such a warning.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        try:
            return re.compile(pattern)
        except FutureWarning as warning:
            raise PatternError(f"{warning}; write \\ before the second of the two signs") from warning
        except (re.error, OverflowError, RecursionError) as error:
            raise PatternError(f"{error}") from error
