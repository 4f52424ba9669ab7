"""Runs a validator over set d: see tests/corpus/runner.py for the arguments."""
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import generate  # noqa: E402, F401  (adds the cases)
import kit  # noqa: E402
import runner  # noqa: E402

CASES = {label["name"]: (label, book, files) for label, book, files in kit.CASES}


def named(label, said):
    if not label["codes"] and not label["criteria"]:
        return True
    return (said.codes("veto", "warning") & set(label["codes"])
            or runner.matches(label["criteria"], said.items(required=False, but=("PASS",))))


if __name__ == "__main__":
    labels = [label for label, _, _ in kit.CASES]
    runner.main(labels, lambda name, folder: kit.write_case(folder, *CASES[name]), named)
