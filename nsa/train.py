"""`python -m nsa.train`, alone or under torchrun: train a language model and write the trainer contract's files.

The configuration is resolved and the output folder checked before torch is imported, so that a mistake is reported
at once. Exit codes are part of the contract (docs/trainer-contract.md); under torchrun, which turns any failure of
a worker into 1, the same information is in `metrics.json` as `status`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nsa.bytecode import keep_bytecode
from nsa.interrupt import answer_while_starting

if __name__ == "__main__":
    answer_while_starting()
    keep_bytecode()

from nsa.config import ConfigError, SetupError, UnreachableError
from nsa.outdir import claim_out
from nsa.resolve import Resolved, UsageExit, resolve

__all__ = ["EXIT_CODES", "main"]

BAD_USAGE = 2
UNREACHABLE = 5
EXIT_CODES = {
    "done": 0,
    "error": 1,
    "halted": 3,
    "anomaly": 4,
    "unreachable": UNREACHABLE,
    "interrupted": 130,
    "terminated": 143,
}


def _complain(error: ConfigError | SetupError) -> int:
    if os.environ.get("RANK", "0") == "0" or isinstance(error, SetupError):
        # A wrong setting is the same on every rank and one message is enough; a device or file may fail on one alone.
        for problem in error.problems if isinstance(error, ConfigError) else [str(error)]:
            print(f"nsa.train: {problem}", file=sys.stderr, flush=True)  # noqa: T201
    if isinstance(error, UnreachableError):
        return UNREACHABLE
    return EXIT_CODES["error"] if isinstance(error, SetupError) and error.midway else BAD_USAGE


def _run(resolved: Resolved) -> int:
    """Build and train; torch is imported here. Under torchrun an exception also goes to the agent's error file."""
    from nsa.assemble import open_run
    from nsa.loop import train

    def run_to_end() -> int:
        with open_run(resolved) as run:
            ending = train(run)
            run.say(f"[run] {ending.status}{': ' if ending.why else ''}{ending.why}")
            return EXIT_CODES[ending.status]

    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return run_to_end()
    from torch.distributed.elastic.multiprocessing.errors import record

    return int(record(run_to_end)() or 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Resolve, check the folder, train; returns the exit code."""
    try:
        resolved = resolve(argv)
    except UsageExit as text:
        print(text)  # noqa: T201
        return 0
    except ConfigError as error:
        return _complain(error)
    asked = resolved.config.train
    try:
        with contextlib.ExitStack() as held:
            if os.environ.get("RANK", "0") == "0":
                held.enter_context(claim_out(Path(asked.out), resume=asked.resume))
            return _run(resolved)
    except KeyboardInterrupt:  # a second Ctrl-C, or one before the first step
        print("nsa.train: interrupted at once; nothing more was saved", file=sys.stderr, flush=True)  # noqa: T201
        return EXIT_CODES["interrupted"]
    except (ConfigError, SetupError) as error:  # what only shows on this machine, with this number of processes
        return _complain(error)


if __name__ == "__main__":
    code = main()
    if "nsa.data" in sys.modules:
        from nsa.data.ending import leave

        leave(code)
    sys.exit(code)
