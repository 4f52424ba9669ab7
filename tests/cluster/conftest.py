"""Several machines on one: a Slurm with four nodes, and four hosts behind ssh.

Both are started once per worker; between tests they are brought back to a state as new. `tests/cluster/hosts.py` ends
all processes with the test run, even a killed one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.sites import InJob, OverSlurm, OverSsh, Site
from tests.cluster.slurm import Slurm
from tests.cluster.ssh import SshHosts


@pytest.fixture(scope="session")
def _slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def slurm(_slurm: Slurm) -> Iterator[Slurm]:
    """Slurm with four idle nodes and no job."""
    yield _slurm
    _slurm.clear()


@pytest.fixture(scope="session")
def _sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    hosts = SshHosts(tmp_path_factory.mktemp("ssh"))
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()


@pytest.fixture
def sshd(_sshd: SshHosts) -> Iterator[SshHosts]:
    """Four hosts that `ssh n1` … `ssh n4` reach."""
    yield _sshd
    _sshd.clear()


@pytest.fixture
def site_of(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Site]]:
    """Where a validation runs, by its name: `local`, `ssh`, `slurm` (it allocates), or `job` (it is in a job)."""
    made: list[Site] = []

    def make(name: str) -> Site:
        if name == "local":
            made.append(Site(tmp_path))
        elif name == "ssh":
            made.append(OverSsh(tmp_path, request.getfixturevalue("sshd")))
        else:
            made.append((InJob if name == "job" else OverSlurm)(tmp_path, request.getfixturevalue("slurm")))
        return made[-1]

    yield make
    for site in made:
        site.close()
