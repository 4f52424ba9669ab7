"""The base that every value crossing a layer shares: frozen, closed, and comparable."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Frozen"]


class Frozen(BaseModel):
    """An immutable model that rejects unknown fields, so that a misspelled key is never lost in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, defer_build=True)
