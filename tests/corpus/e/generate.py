"""Writes every case as a folder: python generate.py DIR, or --labels"""

import sys
from pathlib import Path

import healthy  # noqa: F401  each fills CASES
import sick  # noqa: F401
from build import CASES, SEED, write


def generate(root: Path) -> None:
    for name, spec in CASES.items():
        write(root / name, spec)


if __name__ == "__main__":
    if sys.argv[1] == "--labels":
        print(*(f"{c['kind']:7} {name:35} {'/'.join(c['expect']):23} {' '.join(c['codes']) or '-'}: {c['what']}" for name, c in CASES.items()), sep="\n")
    else:
        generate(Path(sys.argv[1]))
        print(f"{len(CASES)} cases, seed {SEED}")
