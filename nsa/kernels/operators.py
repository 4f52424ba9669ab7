"""Torch operators from annotated functions, on every release of torch from 2.6 on.

``torch.library.custom_op`` reads a schema off annotations, but not every release understands the same ones: 2.6 knows
``typing.List[int]`` and refuses ``list[int]``. Here the schema is written out. And its first call imports torch's
compiler, which takes three seconds of a trainer's start; these operators ask for it only where it is there already.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = ["operator"]

# Annotations are strings, since every module here imports them from __future__.
_SCHEMA_TYPES = {
    "Tensor": "Tensor",
    "list[Tensor]": "Tensor[]",
    "list[int]": "int[]",
    "int": "int",
    "float": "float",
    "bool": "bool",
}
_SCHEMA_RESULTS = {
    "Tensor": "Tensor",
    "list[Tensor]": "Tensor[]",
    "tuple[Tensor, Tensor]": "(Tensor, Tensor)",
    "None": "()",
}


def _schema(function: Callable[..., Any], mutates_args: Collection[str]) -> str:
    signature = inspect.signature(function)
    words = []
    for number, (name, parameter) in enumerate(signature.parameters.items()):
        kind = _SCHEMA_TYPES[parameter.annotation]
        words.append(f"{kind}(a{number}!) {name}" if name in mutates_args else f"{kind} {name}")
    return f"({', '.join(words)}) -> {_SCHEMA_RESULTS[signature.return_annotation]}"


def _unseen_by_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which the compiler calls and does not trace. What is not imported traces nothing."""
    hidden: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        nonlocal hidden
        if "torch._dynamo" not in sys.modules:
            return function(*args)
        if hidden is None:
            hidden = torch.compiler.disable(function)
        return hidden(*args)

    return call


def _counts_writes(function: Callable[..., Any], written: Collection[int]) -> Callable[..., Any]:
    """``function``, after which autograd knows that the arguments at positions ``written`` have changed."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        result = function(*args)
        for number in written:
            if not args[number].is_inference():  # such a tensor counts no versions
                torch.autograd.graph.increment_version(args[number])
        return result

    return call


def operator(name: str, *, mutates_args: Collection[str] = ()) -> Callable[[Callable[..., Any]], OpOverload[..., Any]]:
    """Make a function the operator ``name`` (``namespace::name``); ``mutates_args`` are tensors that it writes to.

    Its results share no memory with its arguments. ``torch.library.register_fake(name)`` and ``register_autograd``
    add the rest. Raises KeyError for an annotation that is no type of an operator here.
    """

    def define(function: Callable[..., Any]) -> OpOverload[..., Any]:
        torch.library.define(name, _schema(function, mutates_args), tags=(torch.Tag.pt2_compliant_tag,))
        names = list(inspect.signature(function).parameters)
        call = _unseen_by_compiler(function)
        if mutates_args:
            call = _counts_writes(call, [names.index(name) for name in mutates_args])
        torch.library.impl(name, "default", call)
        namespace, _, short = name.partition("::")
        overload: OpOverload[..., Any] = getattr(getattr(torch.ops, namespace), short).default
        return overload

    return define
