"""`python -m validator.runbook > docs/runbook-reference.md` brings the reference up to date."""

from __future__ import annotations

import sys

from validator.runbook.reference import reference_markdown

if __name__ == "__main__":
    sys.stdout.write(reference_markdown())
