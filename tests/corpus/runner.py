"""Runs a validator over one set's cases and compares what it says with their labels. Each set's `run.py` calls `main`:

python run.py --cases DIR --validator COMMAND [--jobs N] [--only NAME ...] [--kind sick|healthy] [--out FILE]
python run.py --list [--kind sick|healthy]

A case that stays undecided because other programs use the machine is `crowded`: it runs once more, without the others.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 150
DECISIONS = {0: "GO", 1: "NO-GO", 2: "REFUSED", 3: "INCONCLUSIVE", 4: "MACHINE", 130: "INTERRUPTED"}

Label = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the validator said of one case: its exit code as a decision, its result.json and all that it printed."""

    decision: str
    result: dict[str, Any]
    output: str

    @property
    def why(self) -> str:
        return str(self.result.get("why", ""))

    def codes(self, *severities: str) -> set[str]:
        """Codes of the findings of these severities; of all where none is given."""
        found = self.result.get("findings", [])
        return {one["code"] for one in found if not severities or one["severity"] in severities}

    def items(
        self, *, required: bool = True, but: Iterable[str] = ("PASS", "SKIPPED"), checks: bool = False
    ) -> list[str]:
        """Id and text of the required criteria, or of all and of the checks, whose status is none of `but`."""
        parts = ("criteria", "checks") if checks else ("criteria",)
        found = [one for phase in self.result.get("phases", []) for part in parts for one in phase.get(part) or []]
        return [
            f"{one.get('id') or one.get('name') or ''} {one.get('text') or ''}".strip()
            for one in found
            if str(one.get("status", "")).upper() not in but and (one.get("required", True) or not required)
        ]


def matches(patterns: Iterable[str], texts: Iterable[str], flags: int = 0) -> bool:
    """Whether any of the expressions is found in any of the texts."""
    return any(re.search(pattern, text, flags) for text in texts for pattern in patterns)


Named = Callable[[Label, Answer], bool]
"""Whether what the validator said names the cause that the label gives."""
Write = Callable[[str, Path], None]
"""Writes the case of this name into the folder, which it makes."""


def main(labels: Iterable[Label], write: Write, named: Named) -> None:
    """Run the cases that the command line chooses.

    A label holds `name`, `kind` (sick or healthy) and `expect` (the decisions that are right).
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, help="each case gets a folder of its own here, emptied first")
    parser.add_argument("--validator", help="the executable, arguments allowed")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--kind", choices=["sick", "healthy"])
    parser.add_argument("--list", action="store_true", help="print the labels as JSON and run nothing")
    parser.add_argument("--out", type=Path, default=Path("results.json"))
    given = parser.parse_args()
    chosen = {one["name"]: one for one in labels if given.kind in (None, one["kind"])}
    if unknown := set(given.only or ()) - set(chosen):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if given.list:
        print(json.dumps(list(chosen.values()), indent=1, ensure_ascii=False))
        return
    if not given.cases or not given.validator:
        parser.error("--cases and --validator are needed")
    command = shlex.split(given.validator)
    command[0] = str(Path(command[0]).absolute()) if os.sep in command[0] else command[0]

    def run(label: Label) -> dict[str, Any]:
        folder = given.cases.resolve() / label["name"]
        shutil.rmtree(folder, ignore_errors=True)
        write(label["name"], folder)
        begun = time.monotonic()
        row = scored(label, answer(command, folder), named)
        row["seconds"] = round(time.monotonic() - begun, 1)
        print(line(row), flush=True)
        return row

    with ThreadPoolExecutor(given.jobs) as pool:
        rows = list(pool.map(run, [chosen[name] for name in given.only or chosen]))
    rows = [run(chosen[row["name"]]) if row["crowded"] else row for row in rows]
    given.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for kind in ("sick", "healthy"):
        print(summary(kind, [row for row in rows if row["kind"] == kind]))


def answer(command: list[str], folder: Path) -> Answer:
    """Validate the case in `folder`, with XDG folders of its own: no history and no lock is shared between cases."""
    outer = ("GITHUB_STEP_SUMMARY", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    env = {name: value for name, value in os.environ.items() if name not in outer} | {"NO_COLOR": "1"}
    before = set(folder.glob("reports/*/result.json"))
    console = folder / "console.txt"
    with tempfile.TemporaryDirectory(prefix="xdg-", ignore_cleanup_errors=True) as home, console.open("wb") as log:
        for name in ("RUNTIME_DIR", "CONFIG_HOME", "DATA_HOME", "STATE_HOME", "CACHE_HOME"):
            (Path(home) / name).mkdir(mode=0o700)
            env[f"XDG_{name}"] = str(Path(home) / name)
        process = subprocess.Popen(
            [*command, "run", "runbook.yaml", "--out", "reports"],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        decision = wait(process)
    found = max(set(folder.glob("reports/*/result.json")) - before, key=lambda path: path.stat().st_mtime, default=None)
    result = json.loads(found.read_text(encoding="utf-8")) if found else {}
    return Answer(decision, result, console.read_text(encoding="utf-8", errors="replace"))


def wait(process: subprocess.Popen[bytes]) -> str:
    """The exit code as a decision. Past the limit the validator gets 50 s to stop its own runs."""
    try:
        code = process.wait(LIMIT_S)
        return DECISIONS.get(code, f"exit {code}")
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(50)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "TIMEOUT"


def scored(label: Label, said: Answer, named: Named) -> dict[str, Any]:
    right = said.decision in label["expect"]
    return {
        "name": label["name"],
        "kind": label["kind"],
        "decision": said.decision,
        "expect": label["expect"],
        "right": right,
        "named": label["kind"] == "healthy" or bool(named(label, said)),
        "crowded": not right and said.decision == "INCONCLUSIVE" and "busy-host" in said.codes("warning"),
        "findings": [{name: one[name] for name in ("code", "severity")} for one in said.result.get("findings", [])],
        "open": said.items(required=False),
        "why": said.why,
        "output": "" if right and said.result else said.output[-1500:],
    }


def line(row: dict[str, Any]) -> str:
    mark = "BAD" if not row["right"] else "ok" if row["named"] else "??"
    findings = " ".join(f"{one['code']}({one['severity']})" for one in row["findings"] if one["severity"] != "info")
    decision = f"{row['decision']:12} of {'/'.join(row['expect']):22}"
    return f"{mark:3} {row['name']:36} {decision} {row['seconds']:6.1f} s  {findings or '-'}  {'; '.join(row['open'])}"


def summary(kind: str, rows: list[dict[str, Any]]) -> str:
    go = [row["name"] for row in rows if row["decision"] == "GO"]
    wrong = [row["name"] for row in rows if not row["right"]]
    vetoed = [row["name"] for row in rows if any(one["severity"] == "veto" for one in row["findings"])]
    unnamed = [row["name"] for row in rows if not row["named"]]
    return f"{kind} {len(rows)}: GO {len(go)}, not as expected {wrong}, not named {unnamed}, with a veto {len(vetoed)}"
