"""A double of docker and podman: a service that starts containers, and a client that waits for one.

As with the real ones, a container is a child of the service, has the variables alone that its client names, outlives a
client that is killed, and is ended by its name. `engine_double.py service STATE` is the service, and
`engine_double.py client STATE …` what a file called `docker` starts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

OPTIONS = ("--name", "--label", "--user", "--userns", "--mount", "--workdir", "--env", "--gpus")


def service(state: Path) -> None:
    """Start what clients ask for, and write down how it ends, until the folder is gone."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    (state / "ready").touch()
    while state.is_dir():
        for request in state.glob("*.request"):
            wanted = json.loads(request.read_text())
            request.unlink()
            name = wanted["name"]
            out, err = (os.open(f"/proc/{wanted['pid']}/fd/{fd}", os.O_WRONLY | os.O_APPEND) for fd in (1, 2))
            running[name] = subprocess.Popen(
                wanted["argv"],
                env=wanted["env"],
                cwd=wanted["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            os.close(out)
            os.close(err)
            (state / f"{name}.pid").write_text(str(running[name].pid))
        for name, process in list(running.items()):
            if process.poll() is not None:
                rc = process.returncode
                (state / f"{name}.pid").unlink(missing_ok=True)
                (state / f"{name}.rc").write_text(str(rc if rc >= 0 else 128 - rc))
                del running[name]
        time.sleep(0.01)


def run(state: Path, words: list[str]) -> int:
    """Ask for a container and stay until it ends; SIGTERM is passed on."""
    given: dict[str, list[str]] = {option: [] for option in OPTIONS}
    while words[0].startswith("-"):
        option = words.pop(0)
        if option not in ("--rm", "--init"):
            given[option].append(words.pop(0))
    words.pop(0)  # the image
    (name,) = given["--name"]
    for mount in given["--mount"]:
        source = dict(part.partition("=")[::2] for part in mount.split(","))["source"]
        assert Path(source).exists(), mount
    hidden = os.environ.get("ENGINE_HIDES", "").split()
    env = {one: os.environ[one] for one in given["--env"] if one in os.environ and one not in hidden}
    (state / f"{name}.argv").write_text(json.dumps(sys.argv))
    signal.signal(signal.SIGTERM, lambda *_: signalled(state, name, signal.SIGTERM))
    request = {"pid": os.getpid(), "name": name, "argv": words, "cwd": given["--workdir"][0], "env": env}
    part = state / f"{name}.part"
    part.write_text(json.dumps({**request, "env": {"PATH": os.environ["PATH"], **env}}))
    part.rename(state / f"{name}.request")
    while not (state / f"{name}.rc").exists():
        time.sleep(0.02)
    return int((state / f"{name}.rc").read_text() or 0)


def signalled(state: Path, name: str, number: int) -> bool:
    """Send a signal to the container's processes."""
    try:
        os.killpg(int((state / f"{name}.pid").read_text()), number)
    except (OSError, ValueError):
        return False
    return True


def client(state: Path, words: list[str]) -> int:
    with (state / "calls").open("a") as calls:
        calls.write(" ".join(words) + "\n")
    command = words.pop(0)
    if command == "run":
        return run(state, words)
    parser = argparse.ArgumentParser()
    parser.add_argument("--signal", default="KILL")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--format")
    parser.add_argument("name")
    given = parser.parse_args(words)
    if command == "kill":
        return 0 if signalled(state, given.name, signal.Signals[f"SIG{given.signal}"]) else 1
    if command == "top":
        return 0 if signalled(state, given.name, 0) else 1
    if command == "rm":
        return 0 if signalled(state, given.name, signal.SIGKILL) else 1
    assert command == "inspect", command
    print("true" if signalled(state, given.name, 0) else "false")
    return 0


if __name__ == "__main__":
    place = Path(sys.argv[2])
    sys.exit(service(place) if sys.argv[1] == "service" else client(place, sys.argv[3:]))
