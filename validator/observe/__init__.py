"""Look at the machine: snapshot, preflight checks, what is missing, redaction. Nothing here changes anything."""

from __future__ import annotations

from validator.observe.preflight import missing_hardware, preflight
from validator.observe.redact import redact, redact_env
from validator.observe.snapshot import snapshot

__all__ = ["missing_hardware", "preflight", "redact", "redact_env", "snapshot"]
