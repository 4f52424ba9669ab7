"""Runs a validator over set c: see tests/corpus/runner.py for the arguments."""
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import generate  # noqa: E402
import runner  # noqa: E402


def named(label, said):
    # an info is no cause, unless nothing else speaks of the label's code
    return (said.decision == "REFUSED" or said.codes("veto", "warning") & set(label["codes"])
            or runner.matches(label["criteria"], said.items(required=False), re.I)
            or runner.matches(label["why_patterns"], [f"{said.why} {said.output}"], re.I))


if __name__ == "__main__":
    labels = [{**label, "expect": label["decisions"]} for _, _, label in generate.CASES]
    runner.main(labels, lambda name, folder: generate.materialise(folder, name), named)
