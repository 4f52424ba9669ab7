"""The one extension of a phase: runs that were added because a required criterion could not be decided."""

from __future__ import annotations

from pydantic import Field

from validator.model.base import Frozen

__all__ = ["Extension"]


class Extension(Frozen):
    """Which criteria were open, and how many runs there were before and after."""

    criteria: tuple[str, ...] = Field(description="Ids of the required criteria that were open.")
    runs_before: int
    runs_after: int
