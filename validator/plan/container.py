"""The command line of a container: what an engine is given around the command of a run.

The run folder and the working directory are mounted under their own paths, so that paths mean the same inside. Secrets
stay out of the command line: variables are passed by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from validator.model.launching import Container

_ALWAYS = (
    *("VALIDATOR_RUN_TOKEN", "PYTHONFAULTHANDLER", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    *("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    "TORCH_FR_DUMP_TEMP_FILE",
)
"""What the supervisor sets; an engine passes those of them that are set."""


def passed_names(env: Iterable[str]) -> tuple[str, ...]:
    """The variables that are passed into the container of a run, `env` and what the supervisor adds."""
    return tuple(sorted({*env, *_ALWAYS}))


def contained(
    container: Container,
    argv: Sequence[str],
    *,
    passed: Sequence[str],
    run_dir: Path,
    workdir: str,
    read_only: Sequence[str] = (),
) -> tuple[str, ...]:
    """`argv` in a container.

    Args:
        passed: names of variables, whose values are those of the client.
        run_dir: the run folder; it is mounted, as `workdir` is.
        read_only: further folders to mount.
    """
    folders = [str(run_dir)]
    if not run_dir.is_relative_to(workdir):
        folders.append(workdir)
    else:
        folders = [workdir]
    match container.engine:
        case "apptainer":
            binds = [f"{one}:{one}" for one in folders] + [f"{one}:{one}:ro" for one in read_only]
            options = ("exec", "--cleanenv", *_each("--bind", binds), "--pwd", workdir)
            return (container.engine, *options, *container.args, container.image, *argv)
        case "enroot":
            mounts = _each("--mount", [f"{one}:{one}" for one in (*folders, *read_only)])
            enter = ("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", workdir)
            start = (container.engine, "start", *mounts, *_each("--env", passed))
            return (*start, *container.args, container.image, *enter, *argv)
    mounts = _each("--mount", [f"type=bind,source={one},target={one}" for one in folders])
    mounts += _each("--mount", [f"type=bind,source={one},target={one},readonly" for one in read_only])
    return (
        *(container.engine, "run", "--rm", "--init", "--name", "{container}", "--label", "validator"),
        *_user(container.engine),
        *(*mounts, "--workdir", workdir, *_each("--env", passed)),
        *(*container.args, container.image, *argv),
    )


def _each(option: str, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for value in values for word in (option, value))


def _user(engine: str) -> tuple[str, ...]:
    """The files that the trainer writes are the user's own."""
    uid = os.getuid()
    same = ("--user", f"{uid}:{os.getgid()}")
    # In a namespace of podman's own another user's numbers would be mapped to numbers that nobody here has.
    return ("--userns", "keep-id", *same) if engine == "podman" and uid else same
