"""Runs a validator over set e: see tests/corpus/runner.py for the arguments."""
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import generate  # noqa: E402
import runner  # noqa: E402


def named(label, said):
    if not label["codes"] and not label["criteria"]:  # the decision itself says it
        return said.decision in label["expect"]
    return said.codes("veto", "warning") & set(label["codes"]) or runner.matches(label["criteria"], said.items())


if __name__ == "__main__":
    runner.main(generate.CASES.values(), lambda name, folder: generate.write(folder, generate.CASES[name]), named)
