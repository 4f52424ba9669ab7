"""Preflight: is this the machine that the runbook was written for, and is it fit to be measured on?"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from validator.model.runbook import PreflightPhase, Runbook
from validator.model.verdict import Check
from validator.startup import inline_argv
from validator.system.checks import git_checks, host_checks, package_checks
from validator.system.gpu_checks import gpu_checks
from validator.system.gpu_facts import GpuReport
from validator.system.host import read_host
from validator.system.nvml import read_gpus
from validator.system.path_checks import path_checks
from validator.system.snapshot import Capture, start_captures
from validator.system.software import PackageError, git_facts, package_versions, requirement
from validator.system.sysfs import read_paths
from validator.system.xid import read_xids

_COLLECT_ENV = "import runpy; runpy.run_module('torch.utils.collect_env', run_name='__main__', alter_sys=True)"


def preflight(
    phase: PreflightPhase, *, runbook: Runbook, run_dir: Path, python: str = sys.executable
) -> tuple[Check, ...]:
    """Every check of the phase, in the order of the report; starts the slow captures in the background.

    Args:
        run_dir: folder of the validation; its disk counts, and captures go to its `preflight/`.
        python: the trainer's interpreter, whose packages are checked.
    """
    hardware = runbook.hardware
    outside = runbook.trainer.container is None  # an image's packages are its own business
    versions = package_versions(python, [*package_names(phase), "torch"]) if outside else {}
    checks = [
        *git_checks(phase, git_facts(repository_of(runbook))),
        *(package_checks(phase, versions, python=python, gpus=hardware.gpus) if outside else ()),
        *host_checks(hardware, read_host(run_dir)),
    ]
    gpus = read_gpus() if hardware.gpus > 0 else GpuReport()
    if hardware.gpus > 0:
        checks += gpu_checks(hardware, gpus, read_xids())
    used = gpus.gpus[: hardware.gpus]
    paths = read_paths(tuple(gpu.pci_bus_id or "" for gpu in used))
    links = all(gpu.nvlinks_active for gpu in used)
    checks += path_checks(paths, gpus=len(used), links=links, cluster=runbook.cluster is not None)
    start_captures(_captures(python, torch=versions.get("torch") is not None), run_dir / "preflight")
    return tuple(checks)


def repository_of(runbook: Runbook) -> Path:
    """Where the trainer's repository is looked for: in its working directory."""
    folder = Path(runbook.trainer.folder or ".")
    return folder if folder.is_dir() else Path.cwd()


def package_names(phase: PreflightPhase) -> list[str]:
    """The packages that the phase requires, without their bounds."""
    names: list[str] = []
    for text in phase.packages:
        try:
            names.append(requirement(text)[0])
        except PackageError:
            continue  # `package_checks` reports it
    return names


def _captures(python: str, *, torch: bool) -> list[Capture]:
    captures: list[Capture] = []
    smi = shutil.which("nvidia-smi")
    if smi is not None:
        captures.append(Capture("nvidia_smi.xml", (smi, "-q", "-x")))
        captures.append(Capture("topology.txt", (smi, "topo", "-m")))
    if torch:
        captures.append(Capture("collect_env.txt", inline_argv(python, _COLLECT_ENV)))
    return captures


def missing_hardware(runbook: Runbook) -> str | None:
    """What this machine lacks so that the runbook cannot run at all, as a sentence; None when nothing is missing.

    Only the number of GPUs counts here. A GPU of another kind is a failed check of preflight, not missing hardware.
    """
    hardware = runbook.hardware
    if hardware.gpus == 0:
        return None
    report = read_gpus()
    found = len(report.gpus)
    if found >= hardware.gpus:
        return None
    wanted = f"{hardware.gpus} GPU{'s' if hardware.gpus > 1 else ''}"
    if hardware.name is not None:
        wanted += f" ({hardware.name})"
    have = "none" if found == 0 else f"only {found}: {', '.join(gpu.name for gpu in report.gpus)}"
    why = f" ({report.why_none})" if report.why_none else ""
    hidden = f"; {report.hidden} more are hidden by CUDA_VISIBLE_DEVICES" if report.hidden and found else ""
    return (
        f"runbook {runbook.name} needs {wanted}, and this machine has {have}{why}{hidden}; "
        "run it where they are, or choose a runbook for this machine (validator list)"
    )
