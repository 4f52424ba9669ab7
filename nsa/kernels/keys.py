"""One cache key per kernel, whatever is launched first.

Triton finds a compiled kernel by a hash of its source and of the functions it calls, and computes that hash at the
kernel's first launch. A helper that two kernels share is read when the first of them is hashed, and what the second
one's hash then holds differs from what it would have held alone. Two processes that launch in another order, one that
trains and one that compiles ahead, would not find each other's kernels. So all are hashed here, in one order.
"""

from __future__ import annotations

from nsa.kernels import (
    backward,
    compress,
    decode,
    decode_append,
    decode_branches,
    decode_partial,
    decode_select,
    decode_tiles,
    forward,
    index,
    resident,
    select,
    selected,
    tiles,
)
from nsa.kernels.hopper import rows

__all__ = ["MODULES", "settle_cache_keys"]

MODULES = (
    tiles, compress, forward, select, index, selected, backward,
    decode_append, decode_tiles, decode_partial, decode_branches, decode_select, decode, resident, rows,
)  # fmt: skip
"""Every module that defines a kernel, in the order of hashing: callees come before their callers."""


def settle_cache_keys() -> None:
    """Compute the key of every kernel and helper, ordered by module and name; later launches use what is there."""
    for module in MODULES:
        for _, function in sorted(vars(module).items()):
            # Only Triton's functions have one, and they do not where its interpreter runs them.
            if hasattr(type(function), "cache_key"):
                _ = function.cache_key
