"""Clients of an engine: programs that are asked something within a limit of time, and those that hold agents."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence

from validator.engine.base import Channel
from validator.engine.trouble import explained
from validator.errors import Unable

ANSWER_S = 15.0
"""Longest wait for an answer. Without its configuration, or without a controller, Slurm's own is a minute."""


def ask(command: Sequence[str], *, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; it gets nothing to read.

    Raises:
        Unable: when it is not installed, or does not end within ANSWER_S.
    """
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_S,
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise _no_program(command[0], error) from error
    except subprocess.TimeoutExpired as error:
        reason = explained((error.stderr or b"").decode(errors="replace"))
        raise Unable(
            f"`{' '.join(command[:3])}` does not answer within {ANSWER_S:.0f} s: {reason or 'it says nothing'}"
        ) from error
    texts = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *texts)


def hold(commands: Iterable[tuple[Sequence[str], tuple[str, ...], Mapping[str, str]]]) -> tuple[Channel, ...]:
    """Start clients, each given as command, nodes and environment. All start, or none is left.

    Raises:
        Unable: when a program is not installed, or cannot be started.
    """
    channels: list[Channel] = []
    for command, nodes, environment in commands:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the channel
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            for channel in channels:
                channel.close()
            errors.close()
            raise _no_program(command[0], error) from error
        channels.append(Channel(process, nodes, errors))
    return tuple(channels)


def _no_program(name: str, error: OSError) -> Unable:
    if isinstance(error, FileNotFoundError):
        return Unable(f"cluster needs the program {name}, which is not on PATH; install it, or run where it is")
    return Unable(f"{name} cannot be started: {error.strerror or error}")
