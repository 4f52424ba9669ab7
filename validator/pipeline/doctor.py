"""What this machine can validate: one look at interpreter, packages, GPUs, disk, locks and tools."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from validator.engine.look import look
from validator.errors import ExitCode, UserError
from validator.kinds.registry import load
from validator.model.cluster import Cluster
from validator.model.runbook import PreflightPhase, Runbook
from validator.model.verdict import Check
from validator.plan import first_plan
from validator.report.terminal.lines import paint, wrap
from validator.runbook import RunbookError, available, find
from validator.supervise.lock import holders
from validator.system.checks import host_checks, package_checks
from validator.system.gpu_checks import gpu_checks
from validator.system.gpu_facts import GpuReport
from validator.system.host import HostFacts, read_host
from validator.system.nvml import read_gpus
from validator.system.packages import lacking, no_bundled_trainer
from validator.system.preflight import missing_hardware, package_names
from validator.system.software import package_versions
from validator.text import format_size, one_line

_MIN_FREE_BYTES = 1 << 30
_OLDEST_PYTHON = (3, 10)


@dataclass(frozen=True)
class Capability:
    """One line of the examination. `ok` is None for what is good to have and not there; `fix` says how to get it."""

    name: str
    value: str
    ok: bool | None = True
    fix: str = ""


@dataclass(frozen=True)
class Fitness:
    """Whether a bundled runbook can run here.

    `ready`; `unfit`: it would run, and its preflight would fail; `impossible`: it would end in exit code 4 at once.
    """

    runbook: str
    state: Literal["ready", "unfit", "impossible"]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Examination:
    """Everything that `validator doctor` shows; `runbook` is the one whose nodes were looked at."""

    facts: tuple[Capability, ...]
    runbooks: tuple[Fitness, ...]
    nodes: tuple[Capability, ...] = ()
    runbook: str = ""

    @property
    def exit_code(self) -> int:
        """0 when some bundled runbook can run here, or all nodes that were looked at answer; 4 otherwise."""
        if self.nodes:
            return ExitCode.UNABLE if any(one.ok is False for one in self.nodes) else ExitCode.GO
        return ExitCode.GO if any(one.state == "ready" for one in self.runbooks) else ExitCode.UNABLE

    def as_dict(self) -> dict[str, Any]:
        """The JSON that `doctor --json` prints."""
        return {"schema_version": 1, **asdict(self), "exit_code": self.exit_code}


def cluster_of(name: str, *, overrides: tuple[str, ...] = ()) -> Cluster:
    """The nodes that a runbook declares.

    Raises:
        RunbookError: with every mistake of the runbook.
        UserError: when it declares none.
    """
    cluster = load(find(name), overrides=overrides).runbook.cluster
    if cluster is None:
        raise UserError(f"{name} has no cluster; `validator doctor` without it looks at this machine")
    return cluster


def examine(*, reports: Path, cluster: Cluster | None = None, runbook: str = "") -> Examination:
    """Look at the machine. Nothing is started but small questions, and nothing is changed.

    Args:
        reports: the folder that would receive run folders; its disk counts.
        cluster: nodes to look at as well, as far as that is possible without an allocation.
        runbook: what the user calls the runbook that names them.
    """
    host, gpus = read_host(reports), read_gpus()
    versions = package_versions(sys.executable, _PACKAGES)
    facts = (
        *_software(versions),
        *_bytecode(_folder_of("torch")),
        *_hardware(host, gpus),
        *_locks(),
        *_tools(torch=versions["torch"] is not None, gpus=bool(gpus.gpus)),
    )
    nodes = tuple(Capability(one.name, one.value, one.ok, one.fix) for one in look(cluster)) if cluster else ()
    return Examination(facts, tuple(_runbooks(host, gpus)), nodes, runbook)


_PACKAGES = ("torch", "triton", "pytest", "nvidia-ml-py")


def _software(versions: Mapping[str, str | None]) -> Iterator[Capability]:
    python = ".".join(map(str, sys.version_info[:3]))
    new_enough = sys.version_info[:2] >= _OLDEST_PYTHON
    yield Capability(
        "Python", f"{python} ({sys.executable})", new_enough, "" if new_enough else "install Python 3.10 or later"
    )
    install = f"{sys.executable} -m pip install"
    wants = {
        "torch": "the bundled trainer needs it, and so does torchrun where the runbook names no other Python",
        "pytest": "phases of kind pytest need it",
        "triton": "the bundled trainer's GPU kernels need it",
    }
    for name, why in wants.items():
        version = versions[name]
        missing = False if name == "pytest" else None
        yield Capability(
            name,
            version or "not installed",
            True if version else missing,
            "" if version else f"{why}: {install} {name}",
        )
    absent = no_bundled_trainer()
    value = "not installed" if absent else "installed"
    yield Capability("Bundled trainer", value, None if absent else True, absent or "")


def _folder_of(package: str) -> Path | None:
    found = importlib.util.find_spec(package)
    return Path(found.origin).parent if found is not None and found.origin else None


def _bytecode(torch: Path | None) -> Iterator[Capability]:
    """Said only where something is wrong: `torch`, its folder, has no bytecode, and no process leaves any there."""
    if torch is None or sys.pycache_prefix is not None or any(torch.glob("__pycache__/*.pyc")):
        return
    if not sys.dont_write_bytecode and os.access(torch, os.W_OK):
        return  # the first start writes it
    why = "PYTHONDONTWRITEBYTECODE is set" if sys.dont_write_bytecode else "its folder cannot be written to"
    fix = f"{sys.executable} -m compileall -q {torch}"
    yield Capability(
        "Bytecode",
        f"torch has none, and {why}",
        None,
        f"each process compiles torch's sources again, 1 to 3 s of every start: {fix}",
    )


def _hardware(host: HostFacts, report: GpuReport) -> Iterator[Capability]:
    yield Capability("CPU", f"{host.usable_cores:g} of {host.cores_logical} cores usable, {host.cpu_model}")
    memory = host.memory_usable_bytes
    yield Capability("Memory", "not known" if memory is None else f"{format_size(memory)} available")
    if report.gpus:
        names = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in report.gpus)
        yield Capability("GPUs", f"{names} (driver {report.driver or 'not known'})")
    else:
        yield Capability(
            "GPUs", f"none: {report.why_none or 'NVML names none'}", None, "runbooks for the CPU run all the same"
        )
    enough, writable = host.disk_free_bytes >= _MIN_FREE_BYTES, os.access(host.disk_path, os.W_OK)
    fix = "" if enough else "free space, or write results elsewhere with --out"
    fix = fix if writable else "this folder cannot be written to; write results elsewhere with --out"
    yield Capability("Disk", f"{format_size(host.disk_free_bytes)} free at {host.disk_path}", enough and writable, fix)


def _locks() -> Iterator[Capability]:
    try:
        held = holders()
    except OSError as error:
        yield Capability("Locks", f"cannot be read: {error}", False, "set XDG_RUNTIME_DIR to a folder of your own")
        return
    for name, holder in held.items():
        where = f", writing to {holder['run_dir']}" if holder.get("run_dir") else ""
        yield Capability(
            "Locks",
            f"{name} is held by process {holder.get('pid')} since {holder.get('since')}{where}",
            None,
            "wait for it, or stop it",
        )
    if not held:
        yield Capability("Locks", "no validation is running")


def _tools(*, torch: bool, gpus: bool) -> Iterator[Capability]:
    """What a run uses where it is there; each says what is missing without it."""
    torchrun = "as python -m torch.distributed.run" if torch else None
    yield _tool("torchrun", torchrun, "runs of several processes need it: install torch")
    yield _tool("git", shutil.which("git"), "the report cannot name the commit without it")
    yield _tool(
        "py-spy",
        _program("py-spy"),
        f"stacks of trainers without handlers need it: {sys.executable} -m pip install py-spy",
    )
    yield _tool("nsys", shutil.which("nsys"), "timelines of GPU kernels need it: install NVIDIA Nsight Systems")
    if gpus:
        yield _tool("nvidia-smi", shutil.which("nvidia-smi"), "the topology of the GPUs is recorded with it")


def _tool(name: str, found: str | None, without: str) -> Capability:
    return Capability(name, found or "not found", True if found else None, "" if found else without)


def _program(name: str) -> str | None:
    """A program on the path, or beside the interpreter, where a virtual environment that is not active has it."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(beside) if os.access(beside, os.X_OK) else None)


def _runbooks(host: HostFacts, gpus: GpuReport) -> Iterator[Fitness]:
    for info in available():
        try:
            runbook = load(info.path).runbook
        except RunbookError as error:
            yield Fitness(info.name, "impossible", (str(error),))
            continue
        missing = missing_hardware(runbook)
        if missing is not None:
            yield Fitness(info.name, "impossible", (missing,))
            continue
        missing = lacking(first_plan(runbook).runs, runbook=runbook.name)
        if missing is not None:
            yield Fitness(info.name, "impossible", (missing,))
            continue
        failed = tuple(
            check.message for check in _checks(runbook, host, gpus) if check.required and check.status == "FAIL"
        )
        yield Fitness(info.name, "unfit" if failed else "ready", failed)


def _checks(runbook: Runbook, host: HostFacts, gpus: GpuReport) -> Sequence[Check]:
    """Preflight's checks of what does not change from one minute to the next: packages, sizes, kinds of GPU, health."""
    found: list[Check] = [*host_checks(runbook.hardware, host)]
    for phase in runbook.phases:
        if isinstance(phase, PreflightPhase):
            versions = package_versions(sys.executable, [*package_names(phase), "torch"])
            found += package_checks(phase, versions, python=sys.executable, gpus=runbook.hardware.gpus)
    return [*found, *gpu_checks(runbook.hardware, gpus, ())]


_SIGNS = {True: ("✓", "good"), None: ("–", "muted"), False: ("✕", "bad")}
_STATES = {
    "ready": ("✓", "good", "can run here"),
    "unfit": ("!", "warn", "its preflight would fail"),
    "impossible": ("✕", "bad", "cannot run here"),
}


def examination_lines(examined: Examination, *, width: int, color: bool) -> list[str]:
    """What `validator doctor` prints: this machine line by line, the bundled runbooks, and what to type next."""
    lines = _capability_lines("This machine", examined.facts, width=width, color=color)
    if examined.nodes:
        lines += ["", *_capability_lines("Nodes", examined.nodes, width=width, color=color)]
    lines += ["", paint("Bundled runbooks", "bold", color=color)]
    for one in examined.runbooks:
        sign, style, meaning = _STATES[one.state]
        lines.append(f"  {paint(sign, style, color=color)} {one_line(one.runbook)}: {meaning}")
        for reason in one.reasons:
            lines += wrap(reason, width=width, indent="      ")
    return [*lines, "", f"Next    {_next(examined)}"]


def _next(examined: Examination) -> str:
    """What to type next: about the runbook whose nodes were looked at, else about one that can run here."""
    if examined.nodes:
        name = shlex.quote(one_line(examined.runbook))
        mend = "mend what has a ✕ under Nodes, then: "
        return f"{mend}validator doctor {name}" if examined.exit_code else f"validator run {name}"
    ready = next((one.runbook for one in examined.runbooks if one.state == "ready"), None)
    return f"validator run {ready}" if ready else "validator check YOUR_RUNBOOK.yaml"


def _capability_lines(title: str, facts: Sequence[Capability], *, width: int, color: bool) -> list[str]:
    pad = max(len(fact.name) for fact in facts)
    lines = [paint(title, "bold", color=color)]
    for fact in facts:
        sign, style = _SIGNS[fact.ok]
        head = f"  {paint(sign, style, color=color)} {fact.name:<{pad}}  "
        value = wrap(fact.value + (f" → {fact.fix}" if fact.fix else ""), width=width - pad - 6)
        lines += [head + value[0], *(" " * (pad + 6) + rest for rest in value[1:])]
    return lines
