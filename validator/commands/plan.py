"""`validator plan`: what would be started."""

from __future__ import annotations

from validator.commands.common import AsJson, Only, Overrides, RunbookArgument, Skip, answer, example, reported


@example("validator plan ddp_2xa100 --only baseline")
def command(
    runbook: RunbookArgument,
    only: Only = None,
    skip: Skip = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show exactly what would be started: every run with its command, environment and budget."""
    from validator.kinds.registry import load
    from validator.plan import Eta, first_plan
    from validator.report.terminal.planned import plan_lines
    from validator.runbook import find
    from validator.secrets.masking import clean_plan

    with reported(as_json=as_json):
        loaded = load(find(runbook), overrides=tuple(set_ or ()))
        planned = clean_plan(first_plan(loaded.runbook, only=tuple(only or ()), skip=tuple(skip or ())))
    expected = Eta(planned).remaining(now_s=0.0)
    answer(lambda: planned.model_dump(mode="json"), plan_lines, loaded, planned, expected, as_json=as_json)
