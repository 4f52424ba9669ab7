"""What every phase has, and the models of kinds that most runbooks name: keys, and the numbers of their criteria.

`schemas` lists the models of all kinds; what a kind does is in `validator/kinds`. Field descriptions are the text of
`docs/runbook-reference.md`, so keep them exact. Annotations are no texts here: pydantic would evaluate those of a base
again for every kind, at every start.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from validator.model.catalogue import OUTCOME, PROBE, TESTS, Scalar
from validator.model.cluster import On
from validator.model.findings import FindingCode
from validator.model.parts import (
    Argument,
    Count,
    CriterionField,
    Hardware,
    Identifier,
    Setting,
    Trainer,
)
from validator.model.remedy import MAX_REMEDIES, RemedyField
from validator.model.units import Duration, Flag, Frozen


class PhaseBase(Frozen):
    """What every phase has."""

    if TYPE_CHECKING:  # each kind declares it, as a literal behind its common keys
        kind: str

    scalars: ClassVar[tuple[Scalar, ...]] = ()
    """The numbers that the class adds to those of its bases."""

    filled: ClassVar[tuple[str, ...]] = ()
    """The keys that the class adds in which placeholders are filled in."""

    substitutes: ClassVar[Mapping[str, Any]] = {}
    """The required keys that the class adds: what `check` takes for one that is missing, to check the rest."""

    one_config: ClassVar[bool] = False
    """Whether all its runs are of the config that is to be trained: these give bounds, the history, and the command."""

    compared: ClassVar[bool] = False
    """Whether its rates are compared with those of another validation."""

    instrumented: ClassVar[bool] = False
    """Whether its rates mean nothing: its runs are slowed by what looks inside their steps, or are a few steps."""

    of_machine: ClassVar[bool] = False
    """Whether it measures the machine, so that what fails is a matter for who provides it."""

    on_cluster: ClassVar[On] = 1
    """Where it runs on a cluster, unless the runbook says it."""

    id: Identifier = Field(
        description="Name of the phase, unique in the runbook: lower-case letters, digits, underscores; a letter first."
    )
    title: str | None = Field(None, description="Heading in the report; default is the id.")
    why: str | None = Field(None, description="What the phase is for; shown in the report.")
    needs: tuple[Identifier, ...] = Field((), description="Phases that must have passed before this one runs.")
    accept: tuple[CriterionField, ...] = Field((), description="What must hold.")
    on: On | None = Field(
        None,
        description="Nodes of a cluster: `each` alone and all at the same time, disjoint `pairs` in rounds, `all` "
        "together, or a number: the first N together. By default `each` for a preflight, `all` for a phase that runs "
        "the trainer, 1 for others.",
    )
    required: Flag = Field(True, description="Whether the decision depends on this phase.")
    accept_findings: tuple[FindingCode, ...] = Field(
        (),
        description="Codes of findings that are right for this phase; they become information and forbid no GO. Added "
        "to those of `defaults`.",
    )
    observe: Flag = Field(
        False,
        description="Whether the phase intentionally has no required criterion. It carries no GO, and forbids none "
        "that others carry.",
    )
    expected: Duration | None = Field(
        None, description="How long the phase takes as a rule, all its runs together; for the remaining time shown."
    )

    @classmethod
    def known_scalars(cls) -> dict[str, Scalar]:
        """The numbers that criteria of such a phase may name, those of its bases first."""
        every = [scalar for base in reversed(cls.__mro__) for scalar in vars(base).get("scalars", ())]
        return {one.name: one for one in every if one.key is None or one.key in cls.model_fields}

    @classmethod
    def filled_keys(cls) -> tuple[str, ...]:
        """The keys in which placeholders are filled in, those of its bases first."""
        return tuple(key for base in reversed(cls.__mro__) for key in vars(base).get("filled", ()))

    @classmethod
    def every_substitute(cls) -> dict[str, Any]:
        """The substitutes of the class and its bases, by key."""
        return {key: value for base in cls.__mro__ for key, value in vars(base).get("substitutes", {}).items()}

    def unmeasured(self, name: str, hardware: Hardware, *, scalar: bool) -> tuple[str, str] | None:
        """Why the phase measures nothing called `name`, a scalar of some kind or not, and what to write; None where
        it may."""
        return None

    def obstacle(self, name: str, hardware: Hardware, trainer: Trainer) -> tuple[str, str] | None:
        """Why a scalar of the phase could not be known, as a clause, and what to write; None where it can be."""
        return None


class PreflightPhase(PhaseBase):
    """Is the machine what the runbook was written for, and healthy?"""

    scalars = PROBE
    of_machine = True
    on_cluster: ClassVar[On] = "each"

    kind: Literal["preflight"]
    packages: tuple[str, ...] = Field(
        (),
        description="Packages that the trainer's interpreter must have, with a bound if wanted: `torch>=2.6`.",
    )
    git_clean: Flag = Field(False, description="Whether uncommitted changes fail the phase instead of being noted.")
    git_branch: str | None = Field(None, description="Branch that must be checked out.")
    rounds: Count | None = Field(
        None,
        ge=1,
        description="With `on: pairs` on more than 16 nodes: most rounds of disjoint pairs; up to 16 every pair is "
        "measured.",
    )
    probe: Flag | None = Field(
        None,
        description="Whether to measure what the machine can do (matrix products, copies, transfers, all-reduce); "
        "by default where `hardware.gpus` is above 0.",
    )

    def probes(self, hardware: Hardware) -> bool:
        """Whether the phase runs the probes."""
        return hardware.gpus > 0 if self.probe is None else self.probe

    def unmeasured(self, name: str, hardware: Hardware, *, scalar: bool) -> tuple[str, str] | None:
        if scalar and self.probes(hardware):
            return None
        return (
            f"phase {self.id} is a preflight: it has checks, not measurements, so {name} can never be known",
            "declare what the machine must have under `hardware`, or name another phase; with probe: true "
            "it measures probe.gemm_tflops and the like",
        )

    def obstacle(self, name: str, hardware: Hardware, trainer: Trainer) -> tuple[str, str] | None:
        if name == "links.min_gb_s" and self.on != "pairs":
            return "it is measured by pairs of nodes", f"add on: pairs to {self.id}, on a cluster"
        on_gpu = ("probe.host_to_device_gb_s", "probe.device_to_host_gb_s", "probe.pcie_gen", "probe.pcie_width")
        if name in on_gpu and hardware.gpus == 0:
            return "it is measured on a GPU, and hardware.gpus is 0", "set hardware.gpus, or drop the criterion"
        if name.startswith(("probe.peer", "probe.all_reduce")) and hardware.gpus < 2:
            why = f"it needs two GPUs, and hardware.gpus is {hardware.gpus}"
            return why, "set hardware.gpus, or drop the criterion"
        return None


class ProcessPhase(PhaseBase):
    """A phase that starts processes."""

    scalars = OUTCOME
    filled: ClassVar[tuple[str, ...]] = ("env", "on_failure")

    timeout: Duration | None = Field(None, gt=0, description="Longest time of one run.")
    retries: Count | None = Field(
        None, ge=0, le=3, description="Further attempts after a stall or a failure of the infrastructure."
    )
    env: dict[str, Setting] = Field(default_factory=dict, description="Added to the environment.")
    on_failure: tuple[RemedyField, ...] = Field(
        (),
        max_length=MAX_REMEDIES,
        description="What is tried when the phase fails: each once, in order, until one helps.",
    )


class CommandPhase(ProcessPhase):
    """Any program. It passes with exit code 0 and with every criterion."""

    filled: ClassVar[tuple[str, ...]] = ("run",)
    substitutes: ClassVar[Mapping[str, Any]] = {"run": "true"}

    kind: Literal["command"]
    run: str | tuple[Argument, ...] = Field(
        description="A shell line, or a list of arguments started without a shell. A line is carried out by bash with "
        "`pipefail`, so that a program that fails in a pipe fails the phase (by sh where there is no bash)."
    )
    stdout: str | None = Field(
        None,
        description="Regular expression with named groups; each group's last match becomes `metrics.<group>`.",
    )


class PytestPhase(ProcessPhase):
    """Tests as a gate. At least one must pass, none may fail, and a skipped one is not a pass."""

    scalars = TESTS
    filled: ClassVar[tuple[str, ...]] = ("targets",)
    substitutes: ClassVar[Mapping[str, Any]] = {"targets": ["unknown"]}

    kind: Literal["pytest"]
    targets: tuple[Argument, ...] = Field(
        min_length=1, description="Paths or importable packages, as `pytest --pyargs` takes them."
    )
    keyword: str | None = Field(None, description="Selects tests as `pytest -k` does.")
    args: tuple[Argument, ...] = Field((), description="Further arguments for pytest.")
    allow_skipped: Flag = Field(False, description="Whether skipped tests are acceptable; they are still listed.")
