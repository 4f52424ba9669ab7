"""Several machines: what a runbook declares of them, and what was allocated.

Field descriptions of the first part are the text of `docs/runbook-reference.md`, so keep them exact.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from validator.model.launching import Argument
from validator.model.units import Duration, Frozen

EngineName = Literal["slurm", "ssh", "local"]

On = Literal["each", "pairs", "all"] | Annotated[int, Field(ge=1)]
"""The nodes of a phase: each alone and all at the same time, disjoint pairs in rounds, all together, or the first N."""


class SlurmOptions(Frozen):
    """What is asked of Slurm, where validator allocates: options of `salloc` and `sbatch`."""

    partition: str | None = Field(None, min_length=1, description="`--partition`.")
    account: str | None = Field(None, min_length=1, description="`--account`.")
    time: str | None = Field(None, min_length=1, description="`--time`: the limit of the whole allocation.")
    gres: str | None = Field(None, min_length=1, description="`--gres` of each node, such as `gpu:8`.")
    exclude: tuple[str, ...] = Field((), description="`--exclude`: nodes that are not wanted.")
    args: tuple[Argument, ...] = Field((), description="Further options, such as `--reservation=x`.")


class SshOptions(Frozen):
    """Machines without a scheduler. validator must be installed on each."""

    hosts: tuple[str, ...] = Field(
        min_length=1, description="Hosts as `ssh` takes them. The first ones are used, the others are spare."
    )
    user: str | None = Field(None, min_length=1, description="Login, where ssh's own config does not say it.")
    addresses: dict[str, str] = Field(
        default_factory=dict,
        description="Host to the address by which the other nodes reach it, where that is not the one that ssh uses.",
    )
    python: str | None = Field(
        None, description="Python that has validator, on each host; by default the path of the one that runs here."
    )
    args: tuple[Argument, ...] = Field((), description="Further options of `ssh`, such as `-F` and a file.")


class Cluster(Frozen):
    """The nodes of a validation. Without it everything runs on this machine."""

    engine: EngineName = Field(description="What starts processes on the nodes; `local` takes this machine for each.")
    nodes: int = Field(ge=1, le=4096, description="Nodes that the decision is about.")
    spare: int = Field(0, ge=0, le=64, description="Further nodes: all are vetted, the best ones are used.")
    wait: Duration = Field(600.0, gt=0, description="Longest wait for an allocation.")
    start: Duration = Field(60.0, gt=0, description="Longest wait for all nodes of a run to answer.")
    lost: Duration = Field(20.0, gt=0, description="Silence after which a node counts as lost.")
    slurm: SlurmOptions = Field(default_factory=SlurmOptions, description="For `engine: slurm`.")
    ssh: SshOptions | None = Field(None, description="For `engine: ssh`.")

    @property
    def count(self) -> int:
        """Nodes that are allocated."""
        return self.nodes + self.spare

    def request(self, name: str) -> Iterator[str]:
        """Options of `salloc` and `sbatch`: whole nodes, and no end of the job where one of them fails. Those of the
        runbook come last, and win."""
        yield from (f"--nodes={self.count}", f"--job-name={name}", "--exclusive", "--mem=0", "--no-kill")
        for option in ("partition", "account", "time", "gres"):
            if value := getattr(self.slurm, option):
                yield f"--{option}={value}"
        if self.slurm.exclude:
            yield f"--exclude={','.join(self.slurm.exclude)}"
        yield from self.slurm.args

    @model_validator(mode="after")
    def _hosts(self) -> "Cluster":
        if self.engine != "ssh":
            return self
        hosts = () if self.ssh is None else self.ssh.hosts
        if len(hosts) < self.count:
            raise ValueError(
                f"cluster has {len(hosts)} ssh hosts for {self.count} nodes; list them: ssh: {{hosts: [10.0.0.1, ...]}}"
            )
        if len(set(hosts)) != len(hosts):
            raise ValueError(f"cluster.ssh.hosts has a host twice: {list(hosts)}; list each once")
        return self


# What was allocated.


class Node(Frozen):
    """A node of an allocation: the engine's name for it, and the address by which other nodes reach it."""

    name: str
    address: str


class Allocation(Frozen):
    """Nodes that are ours until they are released, in the order of the engine.

    `job` is the scheduler's number of the job; `owned` says whether validator asked for it and must give it back.
    """

    engine: EngineName
    nodes: tuple[Node, ...]
    job: str | None = None
    owned: bool = True
    options: SlurmOptions | SshOptions | None = None


Groups = tuple[tuple[int, ...], ...]
"""Nodes by their index, in groups that work at the same time and know nothing of each other."""
