"""Named ranges around the branches, for profilers; they cost one test of a flag when off.

Switched on by the trainer when it profiles. Each range is visible to ``torch.profiler`` and, on CUDA, to NVTX tools.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["set_spans", "span", "spans_enabled"]

_enabled = False
_OFF = contextlib.nullcontext()


def set_spans(enabled: bool) -> None:
    """Switch all ranges of this process on or off."""
    global _enabled
    _enabled = enabled


def spans_enabled() -> bool:
    """Whether ranges are recorded."""
    return _enabled


def span(name: str) -> contextlib.AbstractContextManager[None]:
    """A context that marks a range called ``name`` while ranges are on."""
    return _marked(name) if _enabled else _OFF


@contextlib.contextmanager
def _marked(name: str) -> Iterator[None]:
    nvtx = torch.cuda.is_available()
    if nvtx:
        torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        if nvtx:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
