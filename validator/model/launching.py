"""How a trainer is started: by which launcher."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

Launcher = Literal["python", "torchrun", "accelerate", "deepspeed", "mpirun", "plain"]
"""What starts the trainer. `plain` is the trainer's own command, without Python."""

STARTING_RANKS = frozenset({"torchrun", "accelerate", "deepspeed", "mpirun"})
"""Launchers that start `nproc` ranks; under the others a trainer starts its ranks itself."""

Stop = Literal["trainer", "at_steps"]
"""What ends a run: the trainer itself, or validator once the steps are done."""


def steps_before(first: int, stride: int, *, warmup_steps: int) -> int:
    """Steps that an earlier run had done, by the first row and the distance of the next: a trainer that continues one
    counts on."""
    return first - stride if first > max(stride, warmup_steps) else 0


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, (int, float)) else value


Argument = Annotated[str, BeforeValidator(_as_text, json_schema_input_type=str | int | float | bool)]
"""One argument of a command line; numbers may be written without quotes."""


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Paths = Annotated[tuple[str, ...], BeforeValidator(_listed, json_schema_input_type=str | list[str])]
"""One path, or several."""
