"""The guardian: a tiny process that outlives a killed runner and ends what the runner had started.

Nothing in a process can run after SIGKILL, so another process must clean up. The guardian holds the read end of a pipe
whose write end only the runner has. End of file without a goodbye means that the runner is gone: every process that
carries the run token, or that the runner named, gets SIGTERM, some seconds, and SIGKILL.

The file is also the program that is executed, by path, in an interpreter without site packages: it starts in about
15 ms while the runner continues, and imports nothing but the standard library's smallest modules.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False  # `typing` would double the start-up time of the program
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable
    from pathlib import Path


_GOODBYE = b"bye"
SEPARATOR = "\x1f"
_ENGINE_S = 30.0
_TOKEN_PREFIX = b"\0VALIDATOR_RUN_TOKEN="


class Guardian:
    """The runner's end. Start one per validation, before the first process that it is to guard."""

    def __init__(self, *, token: str, grace_s: float, report: Path | None) -> None:
        self._token = token
        self._grace_s = grace_s
        self._report = report
        self._containers: dict[str, str] = {}
        self._release: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._write_fd = -1
        self._start()

    @classmethod
    def start(cls, *, token: str, grace_s: float = 35.0, report: Path | None = None) -> Guardian:
        """Start guarding everything that carries `token`.

        `grace_s` is the time between SIGTERM and SIGKILL; torchrun needs 30 s to end its workers itself. When the
        guardian had to act it writes what it ended to `report`.
        """
        return cls(token=token, grace_s=grace_s, report=report)

    @property
    def pid(self) -> int:
        """The guardian's pid."""
        return self._process.pid if self._process else -1

    def name(self, processes: Iterable[tuple[int, int]]) -> None:
        """Name processes (pid, start time in ticks) that may have lost the token. Never blocks, never fails."""
        lines = [b"%d %d\n" % pair for pair in processes]
        for first in range(0, len(lines), 100):  # below 4096 bytes a write to a pipe is whole or nothing
            self._send(b"".join(lines[first : first + 100]))

    def name_container(self, program: str, name: str) -> None:
        """Name a container, and the engine's program, that does not end with the processes."""
        self._containers[name] = program
        self._send(f"container {name} {program}\n".encode())

    def forget_container(self, name: str) -> None:
        """A container has been ended."""
        self._containers.pop(name, None)
        self._send(f"container {name}\n".encode())

    def name_release(self, words: Iterable[str]) -> None:
        """Name the command that gives back what was rented for the validation: it is run once everything has ended."""
        words = tuple(words)
        if words or self._release:
            self._release = words
            self._send(f"release {SEPARATOR.join(self._release)}\n".encode())

    def ensure(self) -> bool:
        """Whether the guardian was alive; if not, a new one has been started."""
        if self._process is not None and self._process.poll() is None:
            return True
        if self._write_fd >= 0:
            os.close(self._write_fd)
        self._start()
        return False

    def close(self) -> None:
        """Say goodbye: nothing is left to guard. Closing twice is harmless."""
        if self._process is None:
            return
        self._send(_GOODBYE + b"\n")
        os.close(self._write_fd)
        self._write_fd = -1
        try:
            self._process.wait(timeout=2.0)
        except Exception:  # noqa: BLE001 -- it was stopped by a signal and cannot answer
            self._process.kill()
            self._process.wait()
        self._process = None

    def __enter__(self) -> Guardian:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self) -> None:
        import subprocess

        read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        environment = {key: value for key, value in os.environ.items() if key != "VALIDATOR_RUN_TOKEN"}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(self._grace_s), str(self._report or "")],
                stdin=read_fd,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(read_fd)
        self._send(self._token.encode() + b"\n")
        for name, program in self._containers.items():
            self._send(f"container {name} {program}\n".encode())
        self.name_release(self._release)

    def _send(self, data: bytes) -> None:
        try:
            os.write(self._write_fd, data)
        except OSError:
            return  # a guardian that died is noticed by `ensure`; it must not stop a validation


# ---- the program -------------------------------------------------------------------------------------------------


def _start_ticks(pid: int) -> int | None:
    """Start time of a living process, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 -- pathlib costs more than the whole program
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19]) if len(fields) > 19 and fields[0] not in (b"Z", b"X") else None


def _marked(needle: bytes) -> set[int]:
    found = set()
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
                    if needle in b"\0" + file.read() + b"\0" and _start_ticks(int(name)) is not None:
                        found.add(int(name))
            except OSError:
                continue
    return found


def _remaining(needle: bytes, named: dict[int, int]) -> set[int]:
    return _marked(needle) | {pid for pid, ticks in named.items() if _start_ticks(pid) == ticks}


def _send_all(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def _call(program: str, *words: str) -> bool:
    """Run a command of an engine; whether it ended well, within some time."""
    try:
        quiet = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)]
        pid = os.posix_spawnp(program, [program, *words], dict(os.environ), file_actions=quiet)
    except OSError:
        return False
    until = time.monotonic() + _ENGINE_S
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _end(needle: bytes, named: dict[int, int], grace_s: float, containers: dict[str, str]) -> tuple[set[int], set[int]]:
    """SIGTERM, patience, SIGKILL until two consecutive looks find nothing. Returns (found, killed)."""
    found = _remaining(needle, named)
    living = {name for name, program in containers.items() if _call(program, "kill", "--signal", "TERM", name)}
    _send_all(found, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while time.monotonic() < until and (living or _remaining(needle, named)):
        time.sleep(0.1)
        living = {name for name in living if _call(containers[name], "top", name)}  # it fails where nothing runs
    for name, program in containers.items():
        _call(program, "kill", name)
        _call(program, "rm", "--force", name)
    killed: set[int] = set()
    quiet = 0
    until = time.monotonic() + 60.0
    while quiet < 2 and time.monotonic() < until:
        left = _remaining(needle, named)
        quiet = 0 if left else quiet + 1
        killed |= left
        _send_all(left, signal.SIGKILL)
        time.sleep(0.05)
    return found | killed, killed


def _main(grace_s: float, report: str) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    token, named, buffer = b"", {}, b""
    containers: dict[str, str] = {}
    release: list[str] = []
    while True:
        data = os.read(0, 65536)
        buffer += data
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            if line == _GOODBYE:
                return 0
            if not token:
                token = line
            elif line.startswith(b"container "):
                name, _, program = line.decode("utf-8", "surrogateescape")[10:].partition(" ")
                containers[name] = program
            elif line.startswith(b"release "):
                release = line.decode("utf-8", "surrogateescape")[8:].split(SEPARATOR)
            else:
                pid, _, ticks = line.partition(b" ")
                named[int(pid)] = int(ticks)
        if not data:
            break
    if not token:
        return 0
    began = time.time()
    containers = {name: program for name, program in containers.items() if program}
    found, killed = _end(_TOKEN_PREFIX + token + b"\0", named, grace_s, containers)
    if release and release[0]:
        _call(*release)
    if report:
        text = f'{{"schema_version": 1, "time": {began:.3f}, "why": "the runner was gone without a goodbye", '
        text += f'"found": {sorted(found)}, "killed": {sorted(killed)}, '
        text += f'"containers": [{", ".join(chr(34) + name + chr(34) for name in sorted(containers))}]}}\n'
        with open(report + ".part", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
        os.replace(report + ".part", report)  # noqa: PTH105
    return 0


if __name__ == "__main__":
    sys.exit(_main(float(sys.argv[1]), sys.argv[2]))
