"""The base that every value crossing a layer shares: frozen, closed, and comparable."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

__all__ = ["Frozen", "PathBelow", "RunId"]


def _below(path: str) -> str:
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise ValueError(f"the path {path!r} does not lie below the run folder")
    return path


PathBelow = Annotated[str, AfterValidator(_below)]
"""A path relative to the run folder that does not leave it; whoever reads a journal has not written it."""

RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$")]
"""Name of a run folder. It becomes part of other paths, and of the text of runbooks."""


class Frozen(BaseModel):
    """An immutable model that rejects unknown fields, so that a misspelled key is never lost in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, defer_build=True)
