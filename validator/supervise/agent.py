"""The agent: the program on a node that starts its part of a run, watches it, and says what happened.

The step (`validator.supervise.step`) speaks to it by its standard input, and it answers by its standard output, in
lines of JSON that `docs/adr/0075-one-agent-a-node.md` lists. Whatever ends the head ends its standard input as well:
then the processes of this node are ended in order, and if the agent itself is killed its guardian ends them.
"""

from __future__ import annotations

import base64
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from validator.engine.base import node_name
from validator.model.nodes import Ended, Live, NodeRecord, Step
from validator.model.plan import RunSpec
from validator.model.runbook import Runbook
from validator.supervise.capture import LogCap, compact, logs_below, trim_while_written
from validator.supervise.dump import StallEvidence, last_stacks, remove_pipes, save_evidence
from validator.supervise.guardian import Guardian
from validator.supervise.head import GrownFiles, Head
from validator.supervise.launch import Launch, free_port, run_environment, start
from validator.supervise.outcome_text import describe_exit, is_full, says_no_room, words_of
from validator.supervise.termination import Grace, ProcessTree, Stopped, clear_leftovers, stop
from validator.supervise.wait import CancelToken, Waiter, cancel_on_signals
from validator.system.nvml import Gpus
from validator.system.sampler import Sampler

_T = TypeVar("_T")

if TYPE_CHECKING:
    from validator.supervise.monitor import Monitor

_FIRST_LINE_S = 60.0
_BEAT_S = 1.0
_SCAN_S = 2.0
_LAST_WORDS_S = 10.0
_SCHEDULERS = ("SLURM_", "PMI_", "PMIX_")
_KEPT = frozenset({"SLURM_CONF", "SLURM_JOB_ID"})
"""Of an agent's own step: a trainer with the rest takes itself for a rank that Slurm has started."""

_PLACEHOLDER = re.compile(r"(?<!\$)\{(master_addr|port|node_rank|nnodes|group|node_out)\}")


def main() -> int:
    """Carry out this node's part of one run. Returns 0 where the head has heard how it ended."""
    node = node_name() or socket.gethostname()
    head = Head(node)
    with closing(CancelToken()) as cancel, cancel_on_signals(cancel):
        step = _first_line(head, cancel)
        if step is None:
            return 1
        record = Agent(node, step, head, cancel).carry_out()
    head.say("record", **record.model_dump(mode="json", exclude={"node"}))
    return 0 if head.flush(within_s=_LAST_WORDS_S) else 1


def _first_line(head: Head, cancel: CancelToken) -> Step | None:
    until = time.monotonic() + _FIRST_LINE_S
    while not head.gone and time.monotonic() < until and not cancel.requested:
        head.wait(0.5)
        for line in head.commands():
            if line.pop("do", None) == "step":
                return Step.model_validate(line)
    return None


class Agent:
    """One node's part of a run."""

    def __init__(self, node: str, step: Step, head: Head, cancel: CancelToken) -> None:
        self._node, self._step, self._head, self._cancel = node, step, head, cancel
        places = [
            (index, names.index(node), len(step.groups) > 1) for index, names in enumerate(step.groups) if node in names
        ]
        self.group, self.rank, several = places[0] if places else (-1, -1, False)
        self._base = Path(step.out) / f"g{self.group}" if several else Path(step.out)
        self._out = self._base if self.rank == 0 else self._base / "nodes" / node
        self._shared = Path(step.probe).exists()
        self._files = None if self._shared else GrownFiles(self._base, Path(step.out))
        self._endpoint: str | None = None
        self._began = 0.0
        """The start of the attempt, by this machine's monotonic clock."""
        self._monitor: Monitor | None = None
        self._stop: str | None = None
        self._kill = False
        self._next_beat = 0.0
        self._sampler: Sampler | None = None
        self._running = False
        self._about: dict[str, Any] | None = None
        """What evidence of a stall was asked for with."""
        self._reported = False

    def carry_out(self) -> NodeRecord:
        """The node's part; where the agent itself fails, as on a full disk, it says so before it leaves."""
        try:
            return self._work()
        except Exception as error:  # noqa: BLE001 -- silence would cost the head a limit, and say nothing
            why = f"{type(error).__name__}: {error}"
            return self._record(
                "lost" if self._running else "not_started",
                detail=f"its agent failed: {why}{self._no_room()}",
                disk_full=is_full(self._out),
            )

    def _work(self) -> NodeRecord:
        """Say hello, start with the others, and stay until nothing of the run is left here."""
        if self.group < 0:
            return self._record("not_started", detail=f"the agent of {self._node} is in no group of this run")
        try:
            os.chdir(self._step.cwd or "/")  # an engine starts agents anywhere
            (self._out / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return self._record("not_started", detail=f"cannot use {error.filename}: {error.strerror}")
        facts = self._facts() if self._step.checks is not None else {}
        self._head.say(
            "hello",
            port=free_port(),
            host=socket.gethostname(),
            shared=self._shared,
            facts=facts,
            time=time.time(),
        )
        while self._endpoint is None and not self._ended:
            self._head.wait(_BEAT_S / 2)
            self._pump()
        if self._ended:
            return self._unbegun()
        checks = self._while_beating(self._checks)
        if checks is None:
            return self._unbegun()
        began = time.monotonic()
        try:
            rc, stopped, ended = self._run()
        except OSError as error:
            if self._running:
                raise
            where = f" ({error.filename})" if isinstance(error.filename, str) else ""
            return self._record("not_started", detail=f"could not be started: {error.strerror or error}{where}")
        failed = ended == "exited" and rc != 0
        detail = self._why if ended == "stopped" else None
        if failed:
            detail = f"{describe_exit(rc, words=words_of(rc, out=self._out), step=None)}{self._no_room()}"
        record = self._record(
            ended,
            detail=detail,
            rc=rc,
            duration_s=round(time.monotonic() - began, 3),
            killed=stopped.killed,
            disk_full=failed and (is_full(self._out) or says_no_room(self._out)),
            checks=checks,
        )
        self._send_files(until=time.monotonic() + _LAST_WORDS_S)
        return record

    def _unbegun(self) -> NodeRecord:
        return self._record("not_started" if self._stop is None else "stopped", detail=self._why)

    @property
    def _ended(self) -> bool:
        return self._stop is not None or self._kill or self._head.gone or self._cancel.requested

    @property
    def _why(self) -> str:
        if self._stop is not None:
            return self._stop
        if self._cancel.requested:
            return f"the agent {self._cancel.why}"
        return "the head is gone" if self._head.gone else "killed at the head's request"

    def _record(self, ended: Ended, **known: Any) -> NodeRecord:
        return NodeRecord(node=self._node, group=self.group, rank=self.rank, ended=ended, shared=self._shared, **known)

    def _no_room(self) -> str:
        return "; no room was left on the node's disk" if is_full(self._out) else ""

    def _while_beating(self, work: Callable[[], _T]) -> _T | None:
        """What `work` returns, which may take long; None where this node's part has to end meanwhile."""
        aside = _aside(work)
        while not (aside.done() or self._ended):
            self._head.wait(0.05)
            self._pump()
        return None if self._ended else aside.result()

    def _facts(self) -> dict[str, Any]:
        from validator.system.snapshot import machine_facts  # loads psutil and NVML

        return machine_facts(self._out, trainer_python=self._step.python or sys.executable)

    def _checks(self) -> tuple[dict[str, Any], ...]:
        """What a preflight finds on this node."""
        asked = self._step.checks
        if asked is None:
            return ()
        from validator.kinds.registry import kind_of  # with what a kind plans and judges by

        runbook = Runbook.model_validate(asked["runbook"])
        phase = runbook.phase(str(asked["phase"]))
        python = self._step.python or sys.executable
        found = kind_of(phase.kind).checks(phase, runbook=runbook, run_dir=self._out, python=python)
        return tuple(check.model_dump(mode="json") for check in found)

    def _run(self) -> tuple[int, Stopped, Ended]:
        """Start the command and stay until nothing of it is left: exit code, what had to be killed, who ended it."""
        step, token = self._step, f"{self._step.token}.{self._node}"
        grace = Grace(term_s=step.grace_s)
        with ExitStack() as stack:
            guardian = stack.enter_context(Guardian.start(token=token, grace_s=step.grace_s))
            tree = ProcessTree(token=token, spare=(guardian.pid,))
            if step.sample_s is not None:
                path = self._out / "logs" / "telemetry.csv"
                self._sampler = stack.enter_context(Sampler(path, interval_s=step.sample_s, token=token))
            launch = self._launch(token)
            self._monitor = self._follower(tree)
            process = start(launch)
            self._running = True
            try:
                tree.watch(process.pid)
                with Waiter(process, self._cancel) as waiter:
                    self._stay(waiter, tree, launch)
                if process.poll() is None:
                    if (self._about or {}).get("reason") == "stalled":
                        last_stacks(tree, tree.scan(), within_s=grace.stacks_s)
                    stopped = stop(process, tree, launcher=step.launcher, grace=grace, urgent=self._urgent)
                    return process.returncode, stopped, "stopped"
                return process.returncode, clear_leftovers(process, tree, grace=grace, urgent=self._urgent), "exited"
            finally:
                if self._monitor is not None:
                    self._monitor.arrivals.close()
                tree.kill(within_s=grace.kill_s)
                for path in logs_below(self._out / "logs"):
                    compact(path, cap=LogCap())
                remove_pipes(self._out)

    def _follower(self, tree: ProcessTree) -> Monitor | None:
        """What stamps the lines of a trainer by this machine's clock, which is nearer to them than the head's."""
        if self._step.follow is None or self.rank:
            return None
        from validator.supervise.monitor import Monitor  # every reader of a trainer's files

        spec = RunSpec.model_validate({**self._step.follow, "watchdog": None, "groups": ()})
        return Monitor(spec, out=self._base, tree=tree, gpus=Gpus(), cap=LogCap(), started=self._began)

    def _stay(self, waiter: Waiter, tree: ProcessTree, launch: Launch) -> None:
        """Until the command has ended by itself, or must be ended."""
        next_look = time.monotonic() + 0.2
        saving: Future[tuple[Path, ...]] | None = None
        while not self._wait(waiter):
            self._pump()
            if self._ended:
                return
            if self._about is not None and saving is None:
                saving = _aside(partial(self._save_evidence, tree, launch))
            if saving is not None:
                self._report_evidence(saving)
                continue  # one thread at a time looks for processes
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + (_SCAN_S if self._monitor is None else _BEAT_S)
                self._look(tree)
        if self._monitor is not None:
            self._monitor.arrivals.notice(time.monotonic(), always=True)
        self._look(tree)

    def _look(self, tree: ProcessTree) -> None:
        """Read what is new, keep logs short, and say what the processes do."""
        if self._monitor is not None:
            self._monitor.look()
        else:
            tree.scan()
            for path in logs_below(self._out / "logs"):
                trim_while_written(path, cap=LogCap())
        live = Live(
            step=self._monitor.follower.step if self._monitor and len(self._step.groups) > 1 else None,
            cpu_s=tree.cpu_seconds(),
            gpus=self._sampler and self._sampler.use,
            stopped=tree.stopped(),
        )
        self._head.say("beat", **live.model_dump(mode="json", exclude_defaults=True))

    def _wait(self, waiter: Waiter) -> bool:
        """Sleep until the head says something, a line of the trainer arrives, or a moment later."""
        now, longest_s = time.monotonic(), 0.02 if self._head.waiting else _BEAT_S / 2
        also: tuple[int | None, ...] = (0,)
        if self._monitor is not None:
            arrivals = self._monitor.arrivals
            arrivals.notice(now)
            longest_s = min(longest_s, max(0.0, arrivals.due - now) or longest_s)
            also = (0, arrivals.fileno(now))
        return waiter.wait(longest_s, also=also)

    def _save_evidence(self, tree: ProcessTree, launch: Launch) -> tuple[Path, ...]:
        about = {**(self._about or {}), "node": self._node}
        gpus = Gpus.open(launch.environment)
        evidence = StallEvidence(self._out, gpus, about, str, stacks_s=Grace().stacks_s, trainers=self._base)
        return save_evidence(evidence, tree)

    def _report_evidence(self, saving: Future[tuple[Path, ...]]) -> None:
        """Send what was saved, and say what it is, once."""
        if self._reported or not saving.done():
            return
        self._reported = True
        self._send_files(until=time.monotonic() + _LAST_WORDS_S)
        self._head.say("stacks", files=[os.path.relpath(path, self._step.out) for path in saving.result()])

    def _launch(self, token: str) -> Launch:
        step = self._step
        host, _, port = (self._endpoint or "").rpartition(":")
        values = {
            "master_addr": host,
            "port": port,
            "node_rank": str(self.rank),
            "nnodes": str(len(step.groups[self.group])),
            "group": f"g{self.group}",
            "node_out": str(self._out),
        }

        def filled(text: str) -> str:
            return _PLACEHOLDER.sub(lambda found: values[found[1]], text)

        for name in [name for name in os.environ if name.startswith(_SCHEDULERS) and name not in _KEPT]:
            del os.environ[name]
        passed = {name: value for name, value in step.passed.items() if name not in os.environ}
        env = {**passed, **{name: filled(value) for name, value in step.env.items()}}
        return Launch(
            argv=tuple(map(filled, step.argv)),
            environment=run_environment(env, launcher=step.launcher, python=step.python, token=token, out=self._out),
            cwd=step.cwd,
            out=self._out,
            port=None,
            container=None,
            code={},
        )

    def _urgent(self) -> bool:
        """Whether nothing is waited for any more; asked often while the processes are ended."""
        self._pump()
        return self._kill or self._cancel.urgent

    def _pump(self) -> None:
        """Take in what the head says, and say that this node lives."""
        for line in self._head.commands():
            self._obey(line)
        now = time.monotonic()
        if now - self._head.heard > self._step.lost_s:
            self._head.gone = True
        if now >= self._next_beat:
            self._next_beat = now + _BEAT_S
            self._head.say("beat")
            self._send_files(until=now)

    def _obey(self, line: Mapping[str, Any]) -> None:
        wanted = line.get("nodes")
        if isinstance(wanted, list) and self._node not in wanted:
            return
        match line.get("do"):
            case "start":
                self._endpoint = str(line["endpoints"][str(self.group)])
                self._began = time.monotonic() - float(line.get("elapsed", 0.0))
            case "stop":
                self._stop = str(line.get("why", "stopped by the head"))
            case "kill":
                self._kill = True
            case "stacks":
                self._about = dict(line.get("about") or {})

    def _send_files(self, *, until: float) -> None:
        """What has grown, where the head does not see this folder; as much as it takes, and until then all of it."""
        if self._files is None:
            return
        for path, at, data in self._files.grown():
            self._head.say("file", path=path, at=at, data=base64.b64encode(data).decode())
            if not self._head.flush(within_s=max(0.0, until - time.monotonic())):
                return


def _aside(work: Callable[[], _T]) -> Future[_T]:
    """Work beside the head's lines, which are answered meanwhile."""
    found: Future[_T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # noqa: BLE001 -- raised again where the result is asked for
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found
