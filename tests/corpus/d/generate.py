"""generate.py DIR: writes every case as a folder (train.py or more files, runbook.yaml, label.json)."""
import sys

import healthy  # noqa: F401  (adds its cases, as sick does)
import kit
import sick  # noqa: F401


def labels():
    lines = [f"{label['kind']:7} {label['name']:28} {'/'.join(label['expect']):17} "
             f"{','.join(label['codes'] + ['~' + c for c in label['criteria']]) or '-'}: {label['what']}" for label, _, _ in kit.CASES]
    return "\n".join(sorted(lines, reverse=True)) + "\n"


if __name__ == "__main__":
    if sys.argv[1] == "--labels":
        print(labels(), end="")
    else:
        kit.write(sys.argv[1])
