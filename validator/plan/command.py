"""The words of a command and the variables beside it, with every placeholder but the port filled in."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from validator.model.plan import Launcher, RunSpec
from validator.model.runbook import PhaseBase, Runbook, Setting, TrainingPhase
from validator.model.settings import args_of, fill, flat_name, setting_text, sole_placeholder
from validator.startup import shipped

FLIGHT_RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""Keep the last collectives of each rank, so that a stall names the one that hangs. Older torch reads the second."""


def values_of(
    phase: PhaseBase,
    *,
    run_dir: Path,
    python: str,
    place: str,
    arm: str | None = None,
    repeat: int = 1,
    nproc: int = 0,
) -> dict[str, object]:
    """The value of each placeholder in one run."""
    folder = Path(os.path.abspath(run_dir))  # noqa: PTH100 - resolve() would follow links that people chose
    return {
        "steps": "",
        "out": folder / "runs" / place,
        "nproc": nproc,
        "run_dir": folder,
        "python": python,
        "stdlib": sysconfig.get_path("stdlib"),
        "phase": phase.id,
        "arm": arm or "",
        "repeat": repeat,
    }


def filled(value: Setting, values: Mapping[str, object]) -> Setting:
    """A setting with its placeholders filled in; a number that stands alone stays a number."""
    if not isinstance(value, str):
        return value
    name = sole_placeholder(value)
    if name is not None and isinstance(number := values.get(name), int):
        return number
    return fill(value, values)


def torchrun(python: str, nproc: int, out: str) -> tuple[str, ...]:
    """What starts `nproc` processes, each with logs of its own."""
    return (
        *(python, "-m", "torch.distributed.run"),
        *("--nproc-per-node", str(nproc)),
        *("--master-addr", "127.0.0.1", "--master-port", "{port}"),
        *("--log-dir", f"{out}/logs/ranks", "--redirects", "3"),
    )


_OWN_NSA = (
    "import importlib.util as util, runpy, sys; place = sys.argv.pop(1); "
    "spec = util.spec_from_file_location('nsa', place + '/__init__.py', submodule_search_locations=[place]); "
    "package = sys.modules['nsa'] = util.module_from_spec(spec); spec.loader.exec_module(package); "
    "runpy.run_module('nsa.probe', run_name='__main__', alter_sys=True)"
)
"""The package `nsa` by its folder: where the trainer's Python has another of that name, or none, is not looked at."""


def probe(python: str, nproc: int, out: str) -> tuple[str, ...]:
    """What starts the program that comes along to probe the machine; its arguments may follow.

    Args:
        python: the trainer's, which has torch.
        nproc: processes under torchrun; 0 starts one without it.
    """
    code = (python, "-c", _OWN_NSA, str(shipped("nsa")))
    return (*torchrun(python, nproc, out), "--no-python", *code) if nproc else code


def flags(arguments: Mapping[str, Setting]) -> Iterator[str]:
    """`--key value`; true is `--key` alone, false is left out. A key that brings its own dashes keeps them."""
    for key, value in arguments.items():
        flag = key if key.startswith("-") else f"--{key}"
        if value is True:
            yield flag
        elif value is not False:
            yield flag
            yield setting_text(value)


def environment(env: Mapping[str, Setting], values: Mapping[str, object], *, launcher: Launcher) -> dict[str, str]:
    """What is added to the environment. The flight recorder is on unless the user set its variables already."""
    added = {"PYTHONUNBUFFERED": "1"}
    if launcher == "torchrun":
        added.update((name, value) for name, value in FLIGHT_RECORDER.items() if name not in os.environ)
    added.update((name, fill(setting_text(value), values)) for name, value in env.items())
    return added


def launch_words(runbook: Runbook, phase: TrainingPhase, spec: RunSpec) -> tuple[str, ...]:
    """The command that a person would type to train with the settings of `spec`, on and on.

    What only the validation needs is left out: its log folder, the trial's arguments, and those that hold `{steps}` or
    `{out}`. In the trainer's own command these become STEPS and OUT, to be filled in.
    """
    declared = args_of(runbook, phase)
    spelled = {flat_name(key): key for key in declared}
    ours = {flat_name(key) for key, value in declared.items() if "{steps}" in str(value) or "{out}" in str(value)}
    ours |= {flat_name(key) for key in runbook.trainer.trial_args}
    arguments = {spelled.get(name, name): value for name, value in spec.requested.items() if name not in ours}
    launch = ("torchrun", f"--nproc-per-node={spec.nproc}") if spec.nproc else ("python",)
    command = (re.sub(r"\{(steps|out)\}", lambda name: name[1].upper(), word) for word in runbook.trainer.command)
    return (*launch, *command, *flags(arguments))
