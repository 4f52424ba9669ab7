"""Runs a validator over set f: see tests/corpus/runner.py for the arguments."""
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import generate  # noqa: E402
import runner  # noqa: E402


def named(label, said):
    if not label["codes"] and not label["criteria"]:
        return said.decision in label["expect"]
    left = said.items(required=False, but=("PASS",), checks=True)
    return said.codes() & set(label["codes"]) or runner.matches(label["criteria"], left)


if __name__ == "__main__":
    cases = {case["label"]["name"]: case for case in generate.collect()}
    runner.main([case["label"] for case in cases.values()], lambda name, folder: generate.write_case(cases[name], folder), named)
