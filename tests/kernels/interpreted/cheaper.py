"""What Triton's interpreter does again and again to no effect, done once: these kernels run in a third of the time.

Triton of any version: what a version does not have, or does in another way, is left as it is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter

__all__ = ["make_cheaper"]


def make_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, until the test ends."""
    _patch_the_language_once(monkeypatch)
    _leave_out_sums_that_nobody_reads(monkeypatch)
    _remember_the_types_of_numpy(monkeypatch)
    _remember_what_types_are_made_of(monkeypatch)


def _patch_the_language_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch replaces the functions of ``triton.language``, and so does every call of one ``@triton.jit`` function by
    another, which finds them replaced: what a module sees is now replaced once in a launch."""
    if not hasattr(interpreter, "_patch_lang"):
        return
    patch, call = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[str] = set()

    def patch_once(fn: Any) -> Any:
        if fn.__module__ in patched:
            return None  # a launch keeps what is returned, but it is always the first to patch
        patched.add(fn.__module__)
        return patch(fn)

    def launch(self: Any, *args: Any, **options: Any) -> None:
        patched.clear()
        call(self, *args, **options)

    monkeypatch.setattr(interpreter, "_patch_lang", patch_once)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch)


def _leave_out_sums_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sum, difference and product of integers is also taken in 64 bits and compared with the bounds of its type,
    for an assertion that is made in debug mode only; without that, this is left out as well."""
    options = interpreter.interpreter_builder.options
    if getattr(options, "sanitize_overflow", False) and not getattr(options, "debug", True):
        silent = dataclasses.replace(options, sanitize_overflow=False)
        monkeypatch.setattr(interpreter.interpreter_builder, "options", silent)


def _remember_the_types_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The type of numpy that stands for one of Triton is looked up in a table that is made anew for each look."""
    if not hasattr(interpreter, "_get_np_dtype"):
        return
    find = interpreter._get_np_dtype
    found: dict[str, Any] = {}

    def remembered(of: Any) -> Any:
        name = of.scalar.name
        if name not in found:
            found[name] = find(of)
        return found[name]

    monkeypatch.setattr(interpreter, "_get_np_dtype", remembered)


def _remember_what_types_are_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation makes a tensor and the type of a block for it, whose shape is checked and written out each time:
    what depends on nothing but names and shapes is kept from the first of a kind."""
    make_block, make_tensor = tl.block_type.__init__, tl.tensor.__init__
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    tensors: dict[str, dict[str, Any]] = {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(getattr(size, "value", size) for size in shape))
        if key in blocks:
            vars(self).update(blocks[key], element_ty=element_ty)
            return
        make_block(self, element_ty, shape)
        if vars(self).keys() == {"element_ty", "shape", "numel", "name"}:
            blocks[key] = {name: vars(self)[name] for name in ("shape", "numel", "name")}

    def tensor(self: Any, handle: Any, type: Any) -> None:
        if type.name in tensors:
            vars(self).update(tensors[type.name], handle=handle, type=type, dtype=type.scalar)
            return
        make_tensor(self, handle, type)
        if vars(self).keys() == {"handle", "type", "dtype", "shape", "numel"}:
            tensors[type.name] = {name: vars(self)[name] for name in ("shape", "numel")}

    monkeypatch.setattr(tl.block_type, "__init__", block)
    monkeypatch.setattr(tl.tensor, "__init__", tensor)
