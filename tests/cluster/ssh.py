"""Four hosts that one reaches by ssh: a server each on the loopback, with keys and configuration of the tests' own."""

from __future__ import annotations

import os
import pwd
import shlex
import socket
import subprocess
from pathlib import Path

from tests.cluster.hosts import NODES, Hosts, free_ports, need, which
from tests.processes import wait_until

PROGRAMS = ("sshd", "ssh", "ssh-keygen")
PACKAGES = "openssh-server openssh-client"

_SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
AllowUsers {user}
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
UseDNS no
MaxStartups 100
MaxSessions 100
Subsystem sftp internal-sftp
SetEnv VALIDATOR_TEST_NODE={node} HOME={folder}/{node}
"""

_CLIENT = """\
Host {nodes}
  HostName 127.0.0.1
  HostKeyAlias validator-test
  User {user}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  LogLevel ERROR
"""


class SshHosts(Hosts):
    """The hosts. All share this machine: `VALIDATOR_TEST_NODE` says to a command which host it runs on.

    Each has a home of its own, an empty folder: what a user's shell reads at its start is not part of a test. A command
    begins in the user's real home all the same.

    `options` are what `ssh` needs to reach them; with `env` a plain `ssh n1` does, as the first `ssh` on its path is
    a script that adds them.
    """

    def __init__(self, folder: Path) -> None:
        need(PROGRAMS, PACKAGES)
        path = f"{folder / 'bin'}:{os.environ.get('PATH', os.defpath)}"
        super().__init__(folder, {**os.environ, "PATH": path})
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.options = ["-F", str(folder / "config")]
        self._ports: dict[str, int] = {}

    def start(self) -> None:
        """Keys, configuration, and all servers, until each answers."""
        for name in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.folder / name)]
            subprocess.run(command, check=True)
        public = (self.folder / "host_key.pub").read_text(encoding="utf-8")
        (self.folder / "known_hosts").write_text(f"validator-test {public}", encoding="utf-8")
        self._ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        ports = "".join(f"Host {node}\n  Port {port}\n" for node, port in self._ports.items())
        common = _CLIENT.format(nodes=" ".join(NODES), user=self.user, folder=self.folder)
        (self.folder / "config").write_text(ports + common, encoding="utf-8")
        (self.folder / "bin").mkdir()
        for program in ("ssh", "scp", "sftp"):
            script = self.folder / "bin" / program
            script.write_text(f'#!/bin/sh\nexec {which(program)} {shlex.join(self.options)} "$@"\n', encoding="utf-8")
            script.chmod(0o755)
        if os.getuid() == 0:  # the service makes it, where there is one
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for node in NODES:
            self.restore_node(node)
        tried = self.on("n1", "true")
        assert tried.returncode == 0, f"{tried.stderr}\n{self._kept['n1'].log}"  # a locked account, for example

    def clear(self) -> None:
        """Between two tests: four hosts that answer, and no process of a command on any."""
        self.end_commands()
        for node in NODES:
            if self._kept[node].fallen() or len(self._kept[node].processes()) != 1:
                self.restore_node(node)

    def on(self, node: str, command: str) -> subprocess.CompletedProcess[str]:
        """Run a shell command on a host to its end."""
        return self.run("ssh", node, command)

    def restore_node(self, node: str) -> None:
        """The host starts, without any process of before, on the port that it had."""
        port, path = self._ports[node], self.folder / f"{node}.sshd_config"
        text = _SERVER.format(port=port, folder=self.folder, user=self.user, node=node)
        path.write_text(text, encoding="utf-8")
        (self.folder / node).mkdir(exist_ok=True)
        self._keep(node, str(which("sshd")), "-D", "-e", "-f", str(path))
        server = self._kept[node]
        wait_until(lambda: server.fallen() or _answers(port), f"sshd of {node}", every_s=0.01)
        assert not server.fallen(), server.log


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
