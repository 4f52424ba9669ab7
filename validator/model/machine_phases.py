"""The phases that measure the machine by programs of their own: their keys, and the numbers of their criteria.

Field descriptions are the text of `docs/runbook-reference.md`, so keep them exact. Annotations are no texts, as in
`phases`.
"""

from typing import ClassVar, Literal

from pydantic import Field

from validator.model.catalogue import BURNIN, COLLECTIVE, TOOLS, Scalar
from validator.model.parts import Argument, Hardware, Trainer
from validator.model.phases import ProcessPhase
from validator.model.units import Duration, Size


class StoragePhase(ProcessPhase):
    """How fast is the disk that data are read from and checkpoints are written to?

    By fio where it is installed, else by a loop that does the same. The folder is left as it was.
    """

    scalars = (
        Scalar("storage.write_mb_s", "MB/s", "sequential write of 1 MiB blocks with fsync at the end"),
        Scalar("storage.read_mb_s", "MB/s", "sequential read of 1 MiB blocks, past the page cache"),
        Scalar(
            "storage.random_read_iops", "1/s", "reads of 4 KiB at random places by eight threads, past the page cache"
        ),
        Scalar("storage.random_read_p99_ms", "ms", "99th percentile of the time of such a read"),
        Scalar("storage.checkpoint_s", "s", "slowest of three files of the size `checkpoint`, with fsync"),
        Scalar("storage.checkpoint_mb_s", "MB/s", "the same as a rate"),
    )
    filled: ClassVar[tuple[str, ...]] = ("path",)
    of_machine = True

    kind: Literal["storage"]
    path: Argument = Field("{out}", description="Folder to measure; it must exist. Default is the folder of the run.")
    size: Size = Field(4 * 2**30, description="File that is written and read; larger than the cache of the disk.")
    checkpoint: Size = Field(2**30, description="File that is written as a checkpoint is.")
    random_for: Duration = Field(10.0, gt=0, description="How long is read at random places.")


class NetworkPhase(ProcessPhase):
    """How long does each collective take, by its size?

    NCCL between the GPUs of the machine; without GPUs two processes by gloo. With one GPU there is nothing to measure.
    """

    scalars = COLLECTIVE
    of_machine = True

    kind: Literal["network"]
    max_size: Size | None = Field(
        None, description="Largest buffer; by default 4 GiB on GPUs, 4 MiB elsewhere, as far as memory allows."
    )
    max_late: Duration = Field(
        0.005, gt=0, description="How much later than the first a rank may begin a collective; more fails the phase."
    )

    def obstacle(self, name: str, hardware: Hardware, trainer: Trainer) -> tuple[str, str] | None:
        if name.startswith("collective.") and name != "collective.errors" and hardware.gpus == 1:
            return "it needs two GPUs, and hardware.gpus is 1", "set hardware.gpus, or drop the criterion"
        return None


class ToolsPhase(ProcessPhase):
    """What do nccl-tests, nvbandwidth, ib_write_bw and `dcgmi diag` say, as far as they are installed?"""

    scalars = TOOLS
    of_machine = True

    kind: Literal["tools"]

    def obstacle(self, name: str, hardware: Hardware, trainer: Trainer) -> tuple[str, str] | None:
        if name.startswith(("nccl_tests.", "nvbandwidth.", "dcgm.")) and hardware.gpus == 0:
            return "its tool runs on GPUs, and hardware.gpus is 0", "set hardware.gpus, or drop the criterion"
        return None


class BurninPhase(ProcessPhase):
    """Does every device give right answers, at a steady rate, at full load for a time?

    One process on each GPU; without GPUs two processes share the cores. Matrix products near the power limit, patterns
    in memory and collectives, all with answers that are known to the last bit.
    """

    scalars = BURNIN
    of_machine = True

    kind: Literal["burnin"]
    lasts: Duration | None = Field(
        None, gt=0, description="Time under load; by default 2 minutes on GPUs, 20 s elsewhere."
    )
    max_slower: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Share by which a GPU may be slower than the others, or slower at the end than at the start, with "
        "its whole interval; more fails the phase. GPUs of one kind differ by several percent at their power limit.",
    )
