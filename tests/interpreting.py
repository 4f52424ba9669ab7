"""What Triton's interpreter needs to work with every NumPy."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["mend_indices"]


def mend_indices() -> None:
    """Let a scalar of the interpreter, an array of one number, be an index, for the rest of this process.

    Triton before 3.7 converts the array itself, of which NumPy warns since 1.25 and which it refuses since 2.4.
    """
    from triton.runtime import interpreter  # here: whether it interprets is decided when Triton is imported

    patch = getattr(interpreter, "_patch_lang_tensor", None)
    if patch is None:
        return

    def index(tensor: Any) -> int:
        return int(tensor.handle.data.item())

    def mended(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        if scope:
            scope[0].set_attr(tensor, "__index__", index)
        else:
            tensor.__index__ = index

    if len(inspect.signature(patch).parameters) <= 2:
        interpreter._patch_lang_tensor = mended
