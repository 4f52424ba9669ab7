"""Documentation pages as sessions: the files that they show, and the commands with what they print.

```python title="train.py"      a file, written into the session's folder
```console                      commands behind `$ `, each followed by its output; `...` stands for anything
<!-- elsewhere: why -->         before a block of commands that no test can run
<!-- needs: a, b -->            before a block that is run only where these packages are installed
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Command", "FileBlock", "Session", "matches", "play", "read_page"]

_BLOCK = re.compile(r"(?P<before>[^\n]*)\n```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class FileBlock:
    """A file that the reader is shown, and may make."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command, what the page says that it prints (None: nothing is said), and the line of the page it stands on."""

    words: str
    output: str | None
    line: int


@dataclass(frozen=True)
class Session:
    """What a reader who follows a page does, in order; why some of its commands are run nowhere, and the packages
    without which others are not."""

    steps: tuple[FileBlock | Command, ...]
    elsewhere: tuple[str, ...]
    absent: tuple[str, ...]


def read_page(path: Path) -> Session:
    """The session of a page."""
    text = "\n" + path.read_text(encoding="utf-8")
    steps: list[FileBlock | Command] = []
    elsewhere: list[str] = []
    absent: list[str] = []
    for block in _BLOCK.finditer(text):
        info, body = block["info"], block["body"]
        title = _TITLE.search(info)
        reason = re.fullmatch(r"<!-- elsewhere: (.+) -->", block["before"].strip())
        needs = re.fullmatch(r"<!-- needs: (.+) -->", block["before"].strip())
        if needs and not all(map(importlib.util.find_spec, needs[1].split(", "))):
            absent.append(needs[1])
            continue
        if title:
            steps.append(FileBlock(title[1], body))
        elif info.split()[:1] == ["console"] and reason:
            elsewhere.append(reason[1])
        elif info.split()[:1] == ["console"]:
            line = text.count("\n", 0, block.start("body"))
            steps += _commands(body, line)
    return Session(tuple(steps), tuple(elsewhere), tuple(absent))


def _commands(body: str, line: int) -> list[Command]:
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        count = next(place for place, text in enumerate(lines, start=1) if not text.endswith("\\"))
        found.append(("\n".join(lines[:count]), "\n".join(lines[count:])))
    silent = not any(output for _, output in found)
    return [Command(words, None if silent else output, line) for words, output in found]


def play(command: Command, folder: Path) -> tuple[int, str]:
    """Run a command as the reader's shell would; its exit code and what it printed, as a terminal mixes it."""
    tools = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }
    done = subprocess.run(
        ["bash", "-c", command.words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout


def matches(shown: str, printed: str) -> bool:
    """Whether what was printed is what is shown, `...` standing for anything, blanks at line ends apart."""
    wanted = "\n".join(line.rstrip() for line in shown.strip().splitlines())
    got = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    pattern = ".*".join(re.escape(part) for part in wanted.split("..."))
    return re.fullmatch(pattern, got, flags=re.DOTALL) is not None
