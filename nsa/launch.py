"""`python -m nsa.launch [torchrun's options] -m nsa.train …`: torchrun, with one import of torch for all ranks.

torchrun imports torch and then starts ranks that each import it again: 1 to 6 s of every start, twice in a row. Here
the launcher imports all that the trainer needs, and the ranks are forked from it. Options, logs, error files, signals
and exit codes are those of torchrun, which does the rest (docs/adr/0079-ranks-forked-from-one-import.md).
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence

from nsa import train
from nsa.bytecode import keep_bytecode
from nsa.interrupt import answer_ctrl_c, answer_while_starting, leave_at_ctrl_c

__all__ = ["main"]

_TRAINER = ["-m", "nsa.train"]
_PR_SET_NAME = 15
_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def _one_thread_each(options: Sequence[str]) -> None:
    """What torchrun sets for several ranks: OpenMP reads it when torch is imported, which is before torchrun runs."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--nproc-per-node", "--nproc_per_node", default="1")
    if parser.parse_known_args(options)[0].nproc_per_node != "1":
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def _may_fork() -> bool:
    """Whether forked ranks can use CUDA: torchrun asks whether it is available, and NVML has to answer that."""
    import torch

    from nsa.warmup import capabilities

    return not torch.backends.cuda.is_built() or bool(capabilities())  # type: ignore[no-untyped-call]


def main(argv: Sequence[str] | None = None) -> int:
    """Start the ranks and wait for their end; raises torchrun's ChildFailedError where one failed."""
    words = list(sys.argv[1:] if argv is None else argv)
    at = next((i for i in range(len(words)) if words[i : i + 2] == _TRAINER), None)
    if at is None:
        print("nsa.launch: no -m nsa.train among its words: it starts only that, torchrun all else", file=sys.stderr)  # noqa: T201
        return 2
    options, arguments = words[:at], words[at + 2 :]
    _one_thread_each(options)
    keep_bytecode()
    from torch.distributed.run import main as torchrun

    import nsa.assemble
    import nsa.loop  # noqa: F401 - what the ranks need

    answer_ctrl_c()
    if _may_fork():
        os.environ[_BY_NVML] = "1"
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr] # the ranks' too, as by python -u
        options += ["--start-method", "fork", "--run-path", __file__]
    else:
        options += _TRAINER
    torchrun([*options, *arguments])
    return 0


def _train() -> int:
    """In a rank: `nsa.train` as if this process had been started for it."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):  # which torchrun answers in its own way
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The environment that others see is the launcher's, so a rank is told by its name.
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"pt_rank{os.environ['RANK']}".encode())
    os.environ.pop(_BY_NVML, None)  # a rank is to find out whether the driver works
    sys.argv[0] = train.__file__
    answer_while_starting()
    return train.main()


if __name__ == "__main__":
    if multiprocessing.parent_process() is not None:
        sys.exit(_train())
    leave_at_ctrl_c()
    code = main()
    from nsa.data.ending import leave  # the import of nsa.data is that of the trainer

    leave(code)
