"""Runs a validator over set b: see tests/corpus/runner.py for the arguments."""
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import generate  # noqa: E402
import runner  # noqa: E402

CASES = {case["label"]["name"]: case for case in generate.build()}


def named(label, said):
    if not label["codes"] and not label["criteria"] or said.codes() & set(label["codes"]):
        return True
    if label["need_code"] or said.decision == "REFUSED":
        return not label["need_code"]
    held = ("PASS", "INCONCLUSIVE", "NOT_RUN", "SKIPPED") if said.decision == "NO-GO" else ("PASS",)
    return runner.matches(label["criteria"], said.items(but=held))


if __name__ == "__main__":
    labels = [{**case["label"], "expect": case["label"]["decisions"]} for case in CASES.values()]
    runner.main(labels, lambda name, folder: generate.write(CASES[name], folder), named)
