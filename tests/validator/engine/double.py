"""An agent for the tests of engines: it repeats what it reads, with the name of its node.

`double.py` prints a line of JSON about its start and then one for each line that it reads. What a line asks for:
`big N` a line with N bytes of data, `child` a process that sleeps, `burst N` that many short lines, `leave RC` the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from validator.engine.base import node_name
from validator.engine.lines import packed

NODE = node_name() or "unknown"


def say(**what: Any) -> None:
    data = packed(NODE, json.dumps({"node": NODE, **what}).encode())
    while data:
        data = data[os.write(1, data) :]


def main() -> int:
    variables = {name: value for name, value in os.environ.items() if name.startswith(("SLURM", "TEST_", "PMI"))}
    say(started=os.getpid(), cpus=os.environ.get("SLURM_CPUS_ON_NODE"), variables=variables, python=sys.executable)
    print(f"{NODE} is here", file=sys.stderr)
    for line in sys.stdin:
        asked, _, size = line.strip().partition(" ")
        if asked == "leave":
            return int(size)
        if asked == "big":
            say(data="x" * int(size))
        elif asked == "burst":
            for index in range(int(size)):
                say(index=index)
        elif asked == "child":
            say(child=subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
        else:
            say(read=line.strip())
    say(ended=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
