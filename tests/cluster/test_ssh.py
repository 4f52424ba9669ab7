"""What ssh says about commands on other hosts: 255 for too much, and nothing ends with its client."""

from __future__ import annotations

import signal

import pytest

from tests.cluster.ssh import SshHosts
from tests.processes import wait_until

pytestmark = pytest.mark.long  # what ssh itself does; what the engine makes of it is tested beside the engine


def test_255_is_a_lost_host_and_a_killed_command(sshd: SshHosts) -> None:
    assert sshd.on("n1", "exit 7").returncode == 7
    assert sshd.on("n1", "kill -KILL $$").returncode == 255
    sshd.kill_node("n1")
    assert sshd.on("n1", "exit 7").returncode == 255


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_outlives_its_client(sshd: SshHosts, number: signal.Signals) -> None:
    client = sshd.begin("ssh", "n1", "exec sleep 600")
    wait_until(lambda: sshd.processes("n1") == [["sleep", "600"]], "the command")
    client.send_signal(number)
    assert client.wait(timeout=10) == (255 if number == signal.SIGTERM else -9)
    sshd.on("n1", "sleep 0.5")
    assert sshd.processes("n1") == [["sleep", "600"]]


def test_a_command_that_watches_its_standard_input_ends_with_its_client(sshd: SshHosts) -> None:
    client = sshd.begin("ssh", "n1", "sleep 600 & cat; kill %1")
    wait_until(lambda: ["sleep", "600"] in sshd.processes("n1"), "the command")
    client.kill()
    wait_until(lambda: sshd.processes("n1") == [], "the end of the command")


def test_a_silent_host_is_noticed_by_its_clients_alone(sshd: SshHosts) -> None:
    client = sshd.begin("ssh", "-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2", "n2", "sleep 600")
    wait_until(lambda: ["sleep", "600"] in sshd.processes("n2"), "the command")
    sshd.silence_node("n2")
    assert client.wait(timeout=20) == 255
    late = sshd.run("ssh", "-o", "ConnectTimeout=1", "n2", "true")
    assert (late.returncode, "timed out" in late.stderr) == (255, True)
    assert sshd.on("n3", "true").returncode == 0
