"""Runs a validator over set a: see tests/corpus/runner.py for the arguments."""
import os
import re
import sys
import time
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import gen  # noqa: E402
import runner  # noqa: E402


def write(name, folder):
    for path, text in gen.make(name)["files"].items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, newline="")
        if "/" in path:                                   # leftovers of an earlier day
            old = time.time() - 86400
            os.utime(file, (old, old))


def labels():
    for label in (gen.make(name)["label"] for name in gen.CASES):
        yield {**label, "expect": [word.replace("_", "-") for word in label["decisions"]]}


def named(label, said):
    why = said.why + (" " + said.output if said.decision == "REFUSED" else "")
    return (said.codes("veto", "warning") & set(label["codes"]) or runner.matches(label["criteria"], said.items())
            or label["why_re"] and said.decision != "GO" and re.search(label["why_re"], why))


if __name__ == "__main__":
    runner.main(labels(), write, named)
