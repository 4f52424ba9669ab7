"""TLS by given certificates; most installations leave it to a reverse proxy."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

from validator.errors import UserError


class TlsError(UserError):
    """A certificate or a key that cannot be used; the message names the file and the fix."""


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What connections are encrypted by; None where neither file is given.

    Args:
        cert: the certificate in PEM, followed by those between it and its root.
        key: its private key in PEM, without a passphrase, which nobody but its owner may read: of root also its group.

    Raises:
        TlsError: when a file is missing, open to others, or not what it has to be.
    """
    if cert is None or key is None:
        if cert is None and key is None:
            return None
        raise TlsError("--tls-cert and --tls-key belong together: give both, or neither")
    option, path = "--tls-key", key
    try:
        with key.open("rb") as file:
            status = os.fstat(file.fileno())
        option, path = "--tls-cert", cert
        cert.open("rb").close()
    except OSError as error:
        raise TlsError(f"{option} {path} cannot be read: {error.strerror}") from error
    if stat.S_IMODE(status.st_mode) & (0o037 if status.st_uid == 0 else 0o077):
        raise TlsError(f"--tls-key {key} is open to other users; chmod 600 {key}")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key, password="")  # OpenSSL would ask the terminal for a passphrase
    except (ssl.SSLError, OSError) as error:
        raise TlsError(
            f"--tls-cert {cert} and --tls-key {key} are not a certificate and its key without a passphrase, both in "
            f"PEM ({error.strerror}); see `openssl x509 -in {cert}` and `openssl pkey -in {key}`"
        ) from error
    return context
