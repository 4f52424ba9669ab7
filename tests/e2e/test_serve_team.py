"""What docs/service_proxy.md shows: the unit, run by a double of its manager, and the configurations of proxies."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import python
from validator.nightly.schedule import serve_unit

PAGE = Path(__file__).parents[2] / "docs" / "service_proxy.md"


def shown(kind: str) -> str:
    """The one block of a kind on the page."""
    (block,) = re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(block)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def values(unit: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)


def words(value: str) -> list[str]:
    """What systemd makes of a quoted line: no path of these tests holds more than spaces, %, $ and quotes."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(value)]


@contextmanager
def started(unit: str, port: int, manager: socket.socket) -> Iterator[subprocess.Popen[str]]:
    """The unit's process after it has reported that it is ready; the manager's environment is almost empty."""
    environment = dict(one.split("=", 1) for value in values(unit, "Environment") for one in words(value))
    environment |= {"NOTIFY_SOCKET": manager.getsockname(), "HOME": "/none"}
    (command,), (folder,) = values(unit, "ExecStart"), values(unit, "WorkingDirectory")
    with subprocess.Popen(
        words(command), env=environment, cwd=folder.replace("%%", "%"), text=True, stderr=subprocess.PIPE
    ) as server:
        try:
            assert manager.recv(100) == b"READY=1"
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/runs", timeout=10) as answer:
                assert b'"runs"' in answer.read()
            yield server
        finally:
            server.kill()


def test_the_unit_starts_ends_and_starts_again(tmp_path: Path) -> None:
    home = tmp_path / 'of "50 %" $HOME'
    (home / "reports").mkdir(parents=True)
    port = free_port()
    own = {"XDG_CONFIG_HOME": str(home / "own"), "XDG_STATE_HOME": str(home / "own")}
    done = python("-m", "validator", "serve", "--listen", f"127.0.0.1:{port}", "--print-unit", cwd=home, env=own)
    assert done.returncode == 0, done.stderr
    unit = done.stdout
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        for _ in range(2):
            with started(unit, port, manager) as server:
                server.send_signal(signal.SIGTERM)
                assert server.wait(timeout=20) == 0
            with socket.create_server(("127.0.0.1", port)):
                pass  # it is free
    assert list((home / "own" / "validator" / "service").glob("*.sqlite")), "the unit names the user's folders"


def test_systemd_accepts_the_unit_and_its_stricter_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    strict = shown("ini")
    for uid, target in ((0, "multi-user.target"), (1000, "default.target")):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        unit = tmp_path / str(uid) / "validator.service"
        unit.parent.mkdir()
        unit.write_text(serve_unit(tmp_path / "50 %", ["--listen", "127.0.0.1:8700"]), encoding="utf-8")
        assert values(unit.read_text(encoding="utf-8"), "WantedBy") == [target]
        (unit.parent / "validator.service.d").mkdir()
        (unit.parent / "validator.service.d" / "strict.conf").write_text(strict, encoding="utf-8")
        done = subprocess.run(
            ("systemd-analyze", "verify", "--man=no", unit), capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")


def make_pair(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    named = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    subprocess.run((*made, *named, "-keyout", key, "-out", cert), check=True, capture_output=True, timeout=60)
    key.chmod(0o600)
    return cert, key


@pytest.mark.skipif(not (shutil.which("nginx") and shutil.which("openssl")), reason="needs nginx and openssl")
def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    cert, key = make_pair(tmp_path)
    server = shown("nginx").replace("/etc/ssl/gpu7.pem", str(cert)).replace("/etc/ssl/private/gpu7.key", str(key))
    server = server.replace("listen 443 ", "listen 8443 ")
    kept = (f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    logs, http = f"pid {tmp_path}/pid; error_log {tmp_path}/log;", " ".join(("access_log off;", *kept))
    (tmp_path / "nginx.conf").write_text(f"{logs} events {{}} http {{ {http}\n{server} }}\n", encoding="utf-8")
    done = subprocess.run(
        ("nginx", "-t", "-p", tmp_path, "-c", tmp_path / "nginx.conf"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("caddy") is None, reason="needs caddy")
def test_caddy_accepts_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "Caddyfile").write_text(shown("caddy"), encoding="utf-8")
    done = subprocess.run(
        ("caddy", "validate", "--adapter", "caddyfile", "--config", tmp_path / "Caddyfile"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
