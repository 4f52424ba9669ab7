"""TLS by given certificates: what is refused and why, that cookies are for encrypted connections, and slow clients."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlencode

import pytest

from validator.errors import UserError
from validator.service import serve
from validator.service.app import make_app
from validator.service.index import RunIndex
from validator.service.serve import tls_context
from validator.service.tokens import Tokens

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, which makes the certificates")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of localhost and its key."""
    return make_pair(tmp_path_factory.mktemp("tls"))


def make_pair(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    named = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    subprocess.run((*made, *named, "-keyout", key, "-out", cert), check=True, capture_output=True, timeout=60)
    key.chmod(0o600)
    return cert, key


def test_what_cannot_be_used_names_the_file_and_the_fix(pair: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = pair
    assert tls_context(None, None) is None
    for half in ((cert, None), (None, key)):
        with pytest.raises(UserError, match="give both"):
            tls_context(*half)
    with pytest.raises(UserError, match=r"--tls-cert .*none and .*No such file"):
        tls_context(tmp_path / "none", key)
    with pytest.raises(UserError, match=r"--tls-key .*none cannot be read: .*No such file"):
        tls_context(cert, tmp_path / "none")
    other = tmp_path / "other"
    other.mkdir()
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ("openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked), check=True, timeout=60
    )
    locked.chmod(0o600)
    (tmp_path / "text.pem").write_text("no certificate\n", encoding="utf-8")
    (tmp_path / "text.pem").chmod(0o600)
    for first, second in ((cert, make_pair(other)[1]), (cert, locked), (tmp_path / "text.pem", key), (key, cert)):
        second.chmod(0o600)
        with pytest.raises(
            UserError, match=r"must be a certificate and its key without a passphrase.*openssl x509 -in"
        ):
            tls_context(first, second)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(pair: tuple[Path, Path], tmp_path: Path, mode: int) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(pair[1].read_bytes())
    key.chmod(mode)
    with pytest.raises(UserError, match="chmod 600"):
        tls_context(pair[0], key)


def test_pages_are_encrypted_and_handshakes_end(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_HANDSHAKE_S", 1.0)
    (tmp_path / "reports").mkdir()
    tokens = Tokens(tmp_path / "config" / "tokens.json")
    text = tokens.add("me", "read")
    server = serve.make_server(
        make_app(RunIndex(tmp_path / "reports", tmp_path / "index.sqlite"), tokens), tls_context(*pair)
    )
    with serve.bound("127.0.0.1", 0) as made:
        port = made.getsockname()[1]
        running = threading.Thread(target=server.run, kwargs={"sockets": [made]})
        running.start()
        try:
            silent = socket.create_connection(("127.0.0.1", port), timeout=10)
            trusted = ssl.create_default_context(cafile=str(pair[0]))
            asking = http.client.HTTPSConnection("localhost", port, context=trusted, timeout=10)
            form = {"content-type": "application/x-www-form-urlencoded"}
            asking.request("POST", "/login", urlencode({"token": text}), form)
            answer = asking.getresponse()
            assert answer.status == 303
            assert "Secure" in str(answer.headers["set-cookie"])
            asking.close()
            old = ssl.create_default_context(cafile=str(pair[0]))
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            old.set_ciphers("AES128-SHA:@SECLEVEL=0")
            with pytest.raises(ssl.SSLError):
                http.client.HTTPSConnection("localhost", port, context=old, timeout=10).connect()
            with silent:
                assert silent.recv(1) == b"", "who says nothing is left"
        finally:
            server.should_exit = True
            running.join(timeout=20)
