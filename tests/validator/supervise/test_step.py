"""A run across nodes, each of them this machine: what is started where, how it ends, and that nothing is left."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.validator.supervise.tools import Make, Run, eventually, marked, runs
from validator.model.cluster import Allocation, Node
from validator.model.nodes import Step
from validator.model.record import Outcome
from validator.supervise import step as step_module
from validator.supervise.launch import Place, prepare_step
from validator.supervise.monitor import Progress
from validator.supervise.nodes import live_text, read_records
from validator.supervise.wait import CancelToken

NODES = ("n1", "n2", "n3")
TOLD = ("{node_rank}", "{group}", "{master_addr}:{port}", "{node_out}")
"""What a program of these tests is told."""


def place(*names: str, **changes: Any) -> Place:
    nodes = tuple(Node(name=name, address="127.0.0.1") for name in names)
    return Place(Allocation(engine="local", nodes=nodes, owned=False), names, **{"lost_s": 3.0, **changes})


@pytest.fixture
def across(make_spec: Make, supervised: Run) -> Run:
    """Run a program on groups of n1, n2, n3; it is told its rank, group, meeting point and folder."""

    def run(program: str, groups: tuple[tuple[int, ...], ...] = ((0, 1, 2),), **options: Any) -> Outcome:
        spec = {"watchdog": options.pop("watchdog", None), "timeout_s": options.pop("timeout_s", 30.0)}
        argv = (sys.executable, "-S", "-c", program, *TOLD)
        return supervised(make_spec(argv, groups=groups, **spec), place=place(*NODES), **options)

    return run


def folders(out: Path) -> tuple[Path, ...]:
    """Where the nodes of one group write."""
    return out, out / "nodes" / "n2", out / "nodes" / "n3"


SAY = "import sys, pathlib; pathlib.Path(sys.argv[4], 'said').write_text(' '.join(sys.argv[1:4]))"
# Whoever sees the file sees the number: a test that kills at once had found it empty.
PID = (
    "import os, sys, pathlib, time; written = pathlib.Path(sys.argv[4], 'pid.new'); "
    "written.write_text(str(os.getpid())); written.rename(written.with_name('pid')); "
)


def test_every_node_of_a_group_starts_with_its_rank_and_the_same_meeting_point(across: Run, run_dir: Path) -> None:
    outcome = across(SAY)
    assert outcome.ok, outcome.last.detail
    said = [(folder / "said").read_text().split() for folder in folders(run_dir / "runs/phase/r1")]
    assert [words[0] for words in said] == ["0", "1", "2"]
    assert len({words[2] for words in said}) == 1
    assert said[0][2].startswith("127.0.0.1:")


def test_groups_have_folders_and_meeting_points_of_their_own(across: Run, run_dir: Path) -> None:
    outcome = across(SAY, ((0,), (1, 2)))
    assert outcome.ok, outcome.last.detail
    out = run_dir / "runs/phase/r1"
    alone = (out / "g0" / "said").read_text().split()
    first, second = ((out / "g1" / name / "said").read_text().split() for name in (".", "nodes/n3"))
    assert [alone[:2], first[:2], second[:2]] == [["0", "g0"], ["0", "g1"], ["1", "g1"]]
    assert alone[2] != first[2] == second[2]


def test_a_rank_that_fails_is_named_by_its_node_and_ends_the_others(across: Run, run_dir: Path) -> None:
    program = PID + "time.sleep(0.2); print('a fan is broken', file=sys.stderr); r = sys.argv[1]; "
    outcome = across(program + "sys.exit(7) if r == '1' else time.sleep(60)", timeout_s=40.0)
    assert (outcome.reason, outcome.rc) == ("exited", 7)
    assert outcome.last.detail is not None
    assert outcome.last.detail.startswith("n2: exited with code 7")
    assert outcome.duration_s < 30
    assert_nothing_left(run_dir)


def kill_when_up(run_dir: Path, node: str, number: int) -> threading.Thread:
    """Once every node's program runs, send the signal to the agent of one of them."""

    def work() -> None:
        places = folders(run_dir / "runs/phase/r1")
        assert eventually(lambda: all((place / "pid").is_file() for place in places), within_s=25)
        program = int((places[NODES.index(node)] / "pid").read_text())
        os.kill(parent_of(program), number)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def assert_nothing_left(run_dir: Path) -> None:
    pids = [int(path.read_text()) for path in run_dir.rglob("pid")]
    assert pids
    assert eventually(lambda: not any(map(runs, pids)), within_s=15), [pid for pid in pids if runs(pid)]


def test_an_agent_that_is_killed_is_a_lost_node_and_its_guardian_ends_what_ran_there(
    across: Run, run_dir: Path
) -> None:
    thread = kill_when_up(run_dir, "n2", signal.SIGKILL)
    outcome = across(PID + "time.sleep(60)", timeout_s=60.0)
    thread.join()
    assert outcome.reason == "node_lost", outcome.last.detail
    assert outcome.last.detail is not None
    assert outcome.last.detail.startswith("n2 was lost")
    assert_nothing_left(run_dir)
    records = read_records(run_dir / "runs/phase/r1")
    assert records is not None
    assert [one.ended for one in records.nodes] == ["stopped", "lost", "stopped"]


def test_an_agent_that_others_stop_is_no_good_end(across: Run, run_dir: Path) -> None:
    thread = kill_when_up(run_dir, "n2", signal.SIGTERM)
    outcome = across(PID + "time.sleep(60)", timeout_s=60.0)
    thread.join()
    assert (outcome.ok, outcome.reason) == (False, "infrastructure")
    assert outcome.last.detail is not None
    assert "was stopped, not by validator" in outcome.last.detail
    assert_nothing_left(run_dir)


def test_a_silent_agent_is_a_lost_node(across: Run, run_dir: Path) -> None:
    thread = kill_when_up(run_dir, "n3", signal.SIGSTOP)
    outcome = across(PID + "time.sleep(60)", timeout_s=60.0)
    thread.join()
    assert outcome.reason == "node_lost"
    assert outcome.last.detail is not None
    assert "n3 was lost: it answered no more" in outcome.last.detail
    frozen = int((run_dir / "runs/phase/r1/nodes/n3/pid").read_text())
    if runs(frozen):  # a machine that comes back finds its head gone
        os.kill(parent_of(frozen), signal.SIGCONT)
    assert_nothing_left(run_dir)


def test_a_timeout_stops_every_node(across: Run, run_dir: Path) -> None:
    outcome = across(PID + "time.sleep(60)", timeout_s=4.0)
    assert outcome.reason == "timeout"
    records = read_records(run_dir / "runs/phase/r1")
    assert records is not None
    assert {one.ended for one in records.nodes} == {"stopped"}
    assert_nothing_left(run_dir)


def step_in(folder: Path, make_spec: Make, program: str, **changes: Any) -> tuple[subprocess.Popen[bytes], str]:
    """The step alone, and the mark of its run."""
    spec = make_spec(
        (sys.executable, "-S", "-c", program, "{node_rank}", "{group}", "{master_addr}:{port}", "{node_out}"),
        groups=((0, 1, 2),),
    )
    token = secrets.token_hex(8)
    launch = prepare_step(spec, place(*NODES), run_dir=folder, token=token, grace_s=1.0)
    path = launch.out / "step.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return subprocess.Popen(launch.argv, env=launch.environment, start_new_session=True), token


def test_nothing_is_left_on_any_node_when_the_head_is_killed(run_dir: Path, make_spec: Make) -> None:
    step, token = step_in(run_dir, make_spec, PID + "time.sleep(60)")
    places = folders(run_dir / "runs/phase/r1")
    assert eventually(lambda: all((place / "pid").is_file() for place in places), within_s=25)
    step.kill()
    step.wait()
    assert_nothing_left(run_dir)
    assert eventually(lambda: not any(marked(f"{token}.{node}") for node in NODES))


def test_what_a_node_writes_comes_to_the_head_where_no_folder_is_shared(
    tmp_path: Path, run_dir: Path, make_spec: Make
) -> None:
    there = tmp_path / "there"
    program = SAY + "; print('x' * 300_000); pathlib.Path(sys.argv[4], 'model.pt').write_text('heavy')"
    step, _ = step_in(run_dir, make_spec, program, out=str(there), probe=str(tmp_path / "absent"))
    assert step.wait(timeout=60) == 0
    out = run_dir / "runs/phase/r1"
    for here, far in zip(folders(out), folders(there), strict=True):
        assert (here / "said").read_text() == (far / "said").read_text()
        assert (here / "logs/stdout.log").read_bytes() == b"x" * 300_000 + b"\n"
        assert (far / "model.pt").exists()
        assert not (here / "model.pt").exists()


def test_a_node_cannot_write_outside_of_the_run(run_dir: Path, make_spec: Make) -> None:
    out = run_dir / "out"
    out.mkdir()
    (out / "away").symlink_to(run_dir)
    step_file = Step.model_construct(groups=(("n1",),))
    with closing(CancelToken()) as cancel:
        head = step_module.Run(step_file, out, cancel)
        node = head._nodes["n1"]
        for path in ("../taken", "/tmp/taken", "away/taken", "a/../../taken"):
            head._keep(node, {"path": path, "at": 0, "data": "eA=="})
        head._keep(node, {"path": "a/b", "at": 0, "data": "eA=="})
    assert sorted(path.name for path in run_dir.rglob("*") if path.is_file()) == ["b"]


def test_a_run_that_cannot_be_started_says_so(make_spec: Make, supervised: Run) -> None:
    spec = make_spec(("/absent/program",), groups=((0, 1),))
    outcome = supervised(spec, place=place("n1", "n2"))
    assert outcome.reason == "infrastructure"
    assert "nothing was started on n1, n2" in str(outcome.last.detail)
    assert "/absent/program" in str(outcome.last.detail)


def test_an_agent_that_begins_late_hears_every_line() -> None:
    program = (
        "from validator.supervise.head import Head; head = Head('n1'); head.wait(9); "
        "first = next(head.commands()); import sys; print([first, *head.commands()], file=sys.stderr)"
    )
    lines = b'{"do": "step"}\n{"do": "stop"}\n{"do": "kill"}\n'
    done = subprocess.run([sys.executable, "-c", program], input=lines, capture_output=True, timeout=60, check=True)
    assert done.stderr == b"[{'do': 'step'}, {'do': 'stop'}, {'do': 'kill'}]\n"


HELD = """
import sys, pathlib, time
out, gate = pathlib.Path(sys.argv[4]), pathlib.Path(sys.argv[4]).parent / "go"
wrote = [time.monotonic()]
with (out / "training.csv").open("w", buffering=1) as table:
    table.write("step,loss\\n")
    for step in range(1, 21):
        if step == 6 and sys.argv[2] == "g1":
            while not gate.exists():
                time.sleep(0.01)
            time.sleep(0.5)
        wrote.append(time.monotonic())
        table.write(f"{step},3.0\\n")
(out / "wrote").write_text(" ".join(map(str, wrote)))
"""
"""A trainer of 20 steps. In the second group it waits behind the fifth until it may go on, and half a second more."""


def test_nodes_that_train_alone_stamp_their_lines_and_show_how_far_they_are(across: Run, run_dir: Path) -> None:
    """Each by its own clock, from the start of the attempt; what is shown is led by the slowest node."""
    out, shown = run_dir / "runs/phase/r1", list[Progress]()

    def on_progress(one: Progress) -> None:
        shown.append(one)
        if one.nodes == "n2 at 5, n1 at 20":
            (out / "go").touch()

    outcome = across(HELD, ((0,), (1,)), on_progress=on_progress, timeout_s=90.0)
    ended = time.monotonic()
    assert outcome.ok, ({one.nodes for one in shown}, outcome.last.detail)
    assert {one.step for one in shown if one.nodes == "n2 at 5, n1 at 20"} == {5}
    assert not (out / "arrivals.jsonl").exists()
    for group in ("g0", "g1"):
        stamps = [json.loads(line) for line in (out / group / "arrivals.jsonl").read_text().splitlines()]
        assert stamps[-1]["step"] == 20
        assert 0 < stamps[0]["s"] <= stamps[-1]["s"] < outcome.duration_s
    (fifth,) = (one["s"] for one in stamps if one["step"] == 5)
    wrote = list(map(float, (out / "g1/wrote").read_text().split()))
    assert 0.49 < stamps[-1]["s"] - fifth < ended - wrote[5], "it was stamped before it was shown"
    assert live_text({f"n{number}": number for number in range(20)}).endswith("n7 at 7 … n19 at 19")
