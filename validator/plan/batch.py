"""A validation as a batch job of Slurm: the file that `sbatch` takes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from validator.errors import UserError
from validator.model.cluster import Cluster
from validator.model.runbook import Runbook

WARNED_S = 120
"""Seconds before its time limit at which the job is warned, so that the validation ends in order and can be resumed."""

_DEFAULT_TIME = "02:00:00"


def batch_script(runbook: Runbook, path: Path, *, overrides: Sequence[str], out: Path, requeue: bool) -> str:
    """A job on all nodes of the cluster, whose batch shell becomes the validation; after a requeue it resumes.

    Raises:
        UserError: when the runbook is not for Slurm.
    """
    cluster = runbook.cluster
    if cluster is None or cluster.engine != "slurm":
        found = "has no cluster" if cluster is None else f"has cluster.engine: {cluster.engine}"
        fix = "write cluster: {engine: slurm, nodes: 2}"
        raise UserError(f"runbook {runbook.name} {found}, and a batch job is one of Slurm; {fix}")
    validator = (sys.executable, "-m", "validator", "run")
    folder = f"{out.resolve()}/job-$SLURM_JOB_ID"
    new = shlex.join((*validator, str(path.resolve()), *(f"--set={one}" for one in overrides)))
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _sbatch_options(cluster, runbook.name, out=out, requeue=requeue)),
        "",
        "# After a requeue the validation continues; what it had measured on other nodes is measured again.",
        f'folder="{folder}"',
        'begun=$(ls -d "$folder"/*/ 2>/dev/null | head -n 1)',
        'if [ -n "$begun" ]; then',
        f'  exec {shlex.join(validator)} --resume "$begun"',
        "fi",
        f'exec {new} --out "$folder"',
    ]
    return "\n".join(lines) + "\n"


def _sbatch_options(cluster: Cluster, name: str, *, out: Path, requeue: bool) -> Iterator[str]:
    yield f"--output={out.resolve()}/job-%j.log"
    yield from ("--open-mode=append", f"--signal=B:TERM@{WARNED_S}")
    yield "--requeue" if requeue else "--no-requeue"
    if cluster.slurm.time is None:
        yield f"--time={_DEFAULT_TIME}"
    yield from cluster.request(name)
