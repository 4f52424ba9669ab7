"""Trainer artifacts become series and scalars, each with the file it was read from.

Nothing here judges. What is damaged, missing or out of place is an irregularity of the result, never an exception.
"""

from __future__ import annotations

from validator.ingest.run import collect_dir, collect_run

__all__ = ["collect_dir", "collect_run"]
