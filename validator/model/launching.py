"""How a trainer is started and ended: by which launcher, in which container, and by whom its end is decided.

Field descriptions are the text of `docs/runbook-reference.md`, so keep them exact.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from validator.model.units import Frozen, Reads

Launcher = Literal["python", "torchrun", "accelerate", "deepspeed", "mpirun", "plain"]
"""What starts the trainer. `plain` is the trainer's own command, without Python."""

STARTING_RANKS = frozenset({"torchrun", "accelerate", "deepspeed", "mpirun"})
"""Launchers that start `nproc` ranks; under the others a trainer starts its ranks itself."""

LOGGING_RANKS = frozenset({"torchrun", "accelerate"})
"""Launchers that are asked for a log of each rank; under the others all ranks print into one."""

ProbeModule = Literal["probe", "collectives", "burnin"]
"""Programs that come along and need nothing but torch."""

Engine = Literal["docker", "podman", "apptainer", "enroot"]

DETACHED = frozenset({"docker", "podman"})
"""Engines whose containers do not end with the client that started them: they have a name, and are ended by it."""

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


Argument = Annotated[str, Reads(_as_text, written=str | int | float | bool)]
"""One argument of a command line; numbers may be written without quotes."""


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Paths = Annotated[tuple[str, ...], Reads(_listed, written=str | list[str])]
"""One path, or several."""


class Container(Frozen):
    """The container that the trainer runs in."""

    engine: Engine = Field(description="The program that starts it, which must be on PATH.")
    image: str = Field(
        min_length=1,
        description="What the engine calls the image: a name with a tag or a digest, or the path of a `.sif` or "
        "`.sqsh` file.",
    )
    args: tuple[Argument, ...] = Field((), description="Further options of the engine, before the image.")
