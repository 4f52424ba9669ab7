"""Named ranges around the branches, for profilers; they cost one test of a flag when off.

Switched on by the trainer when it profiles. Each range is visible to ``torch.profiler`` and, on CUDA, to NVTX tools.

=====================  ==============================================================================================
``nsa.compress``       phi over the keys and values of the compressed branch
``nsa.cmp``            the compressed branch
``nsa.sel.ranges_v2``  from scores to the list of what the selected branch reads, without a loop over rows: merged
                       ranges (sequential prefill, decoding), chosen blocks (batched), chosen blocks and the queries of
                       each block (triton). ``nsa.sel.ranges_v1`` where a loop over rows makes the list.
``nsa.sel``            the selected branch; on the triton path its scored blocks, for the forced ones are read in
                       ``nsa.win``
``nsa.win``            the window; on the triton path also the forced blocks and the gated sum, one kernel for all
``nsa.gate``           the gated sum elsewhere
``nsa.*.backward``     the same in the backward pass; ``nsa.query.backward`` is the triton path's one kernel for the
                       queries' gradient in all branches
=====================  ==============================================================================================
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
    """A context that marks a range called ``name`` while ranges are on.

    Code that torch.compile traces has none: a range would end up outside of the fused kernels it is to mark, and the
    flag would be a guard that recompiles when a profile starts. Custom operators run untraced and keep their ranges.
    """
    # Asked first, so that the compiler drops the flag from what it guards.
    if torch.compiler.is_compiling() or not _enabled:
        return _OFF
    return _marked(name)


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
