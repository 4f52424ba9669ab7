"""A small runner for the fault tests: supervises one program, so that the tests can kill it, or press Ctrl-C on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from validator.execute.cancel import CancelToken, cancel_on_signals
from validator.execute.guardian import Guardian
from validator.execute.journal import Journal
from validator.execute.stop import Grace
from validator.execute.supervisor import supervise
from validator.model.plan import RunSpec


def main(arguments: list[str]) -> int:
    """`runner.py RUN_DIR TOKEN SPEC_JSON`; prints the reason of the outcome, exit code 0 when the run was ok."""
    run_dir, token, spec = Path(arguments[0]), arguments[1], RunSpec.model_validate(json.loads(arguments[2]))
    cancel = CancelToken()
    with (
        Journal.open(run_dir / "journal.jsonl") as journal,
        Guardian.start(token=token, grace_s=2.0, report=run_dir / "guardian.json") as guardian,
        cancel_on_signals(cancel),
    ):
        outcome = supervise(
            spec,
            run_dir=run_dir,
            journal=journal,
            token=token,
            cancel=cancel,
            guardian=guardian,
            grace=Grace(term_s=2.0, halt_s=0.5, leftover_s=0.5, kill_s=3.0, stacks_s=1.0),
        )
    print(outcome.reason, outcome.rc, flush=True)
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
