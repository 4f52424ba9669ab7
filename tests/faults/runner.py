"""A small runner for the fault tests: supervises one program, so that the tests can kill it, or press Ctrl-C on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from validator.model.plan import RunSpec
from validator.runs.journal import Journal
from validator.supervise.attempt import AttemptContext
from validator.supervise.guardian import Guardian
from validator.supervise.supervisor import supervise
from validator.supervise.termination import Grace
from validator.supervise.wait import CancelToken, cancel_on_signals


def main(arguments: list[str]) -> int:
    """`runner.py RUN_DIR TOKEN SPEC_JSON`; prints the reason of the outcome, exit code 0 when the run was ok."""
    run_dir, token, spec = Path(arguments[0]), arguments[1], RunSpec.model_validate(json.loads(arguments[2]))
    cancel = CancelToken()
    with (
        Journal.open(run_dir / "journal.jsonl") as journal,
        Guardian.start(token=token, grace_s=2.0, report=run_dir / "guardian.json") as guardian,
        cancel_on_signals(cancel),
    ):
        context = AttemptContext(
            run_dir=run_dir,
            journal=journal,
            token=token,
            cancel=cancel,
            guardian=guardian,
            grace=Grace(term_s=10.0, halt_s=0.5, leftover_s=0.5, kill_s=3.0, stacks_s=1.0),
        )
        outcome = supervise(spec, context)
    print(outcome.reason, outcome.rc, flush=True)
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
