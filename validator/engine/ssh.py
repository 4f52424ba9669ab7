"""Machines without a scheduler: one OpenSSH client a host, which needs nothing but its own configuration."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from validator.engine.base import NODE_VARIABLE, Channel, Engine
from validator.engine.clients import ask, hold
from validator.engine.trouble import explained
from validator.errors import Unable
from validator.model.cluster import Allocation, Cluster, Node, SshOptions

# Of several values of an option ssh takes the first: the runbook may replace what stands behind its own.
_ALWAYS = ("-T", "-o", "BatchMode=yes")
_UNLESS_GIVEN = (
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
    *("-o", "ControlPath=none"),  # a connection that is shared ends many agents at once
    *("-o", "ClearAllForwardings=yes"),
)


class Ssh(Engine):
    """Hosts of the runbook, in its order."""

    def allocate(self, cluster: Cluster, *, name: str, cancelled: Callable[[], bool]) -> Allocation:
        """The first hosts; whether they answer is seen at the start of a run."""
        if cluster.ssh is None:
            raise Unable("cluster.ssh is missing; list the hosts: ssh: {hosts: [10.0.0.1, ...]}")
        options = cluster.ssh
        nodes = tuple(Node(name=host, address=_address(options, host)) for host in options.hosts[: cluster.count])
        return Allocation(engine="ssh", nodes=nodes, owned=False, options=options)

    def start(
        self, allocation: Allocation, nodes: Sequence[str], argv: Sequence[str], *, environment: Mapping[str, str]
    ) -> tuple[Channel, ...]:
        """One client a host. The host's own environment is the agent's."""
        options = _options(allocation)
        if options.python and argv[0] == sys.executable:
            argv = (options.python, *argv[1:])
        return hold((_command(options, node, argv), (node,), environment) for node in nodes)


def _options(allocation: Allocation) -> SshOptions:
    if not isinstance(allocation.options, SshOptions):
        raise Unable("the allocation does not say how ssh reaches its hosts; start the validation again")
    return allocation.options


def _client(options: SshOptions) -> tuple[str, ...]:
    login = ("-l", options.user) if options.user else ()
    return ("ssh", *_ALWAYS, *options.args, *login, *_UNLESS_GIVEN)


def _command(options: SshOptions, host: str, argv: Sequence[str]) -> tuple[str, ...]:
    """`exec` leaves no shell between the server and the agent, which would keep its standard input open."""
    return (*_client(options), "--", host, "exec " + shlex.join(("env", f"{NODE_VARIABLE}={host}", *argv)))


def _address(options: SshOptions, host: str) -> str:
    """By which the other nodes reach a host: as declared, or what ssh's own configuration makes of its name."""
    if host in options.addresses:
        return options.addresses[host]
    done = ask((*_client(options), "-G", "--", host), environment=os.environ)
    name = next((line[9:] for line in done.stdout.splitlines() if line.startswith("hostname ")), None)
    if done.returncode != 0 or not name:
        raise Unable(f"cluster.ssh.hosts: ssh does not accept {host}: {explained(done.stderr)}")
    return name


ENGINE = Ssh()
