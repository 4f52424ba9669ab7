"""One-file trainers for the supervisor's tests, each with one vice. They know the file contract and nothing else."""

from __future__ import annotations

TRAINER = """
import json, os, signal, sys, threading, time
out = os.environ["OUT"]
rank = int(os.environ.get("RANK", "0"))
started = time.time()

def row(step, loss=2.0, rate=100.0, **more):
    with open(out + "/training.csv", "a") as file:
        if file.tell() == 0:
            file.write(",".join(["step", "loss", "lr", "toks_per_s", *more]) + "\\n")
        file.write(",".join(map(str, [step, loss, 0.1, rate, *more.values()])) + "\\n")

def beat(step, msg="beat"):
    with open(out + f"/heartbeat_rank{rank}.jsonl", "a") as file:
        line = {"ts": time.time(), "iso": "", "pid": os.getpid(), "rank": rank, "step": step, "msg": msg}
        file.write(json.dumps(line) + "\\n")

def burn(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
"""
"""Prelude of every program."""


def trainer(body: str) -> str:
    return TRAINER + body


HEALTHY = trainer("""
for step in range(1, 11):
    time.sleep(0.03); row(step, 3.0 / step); beat(step, "progress")
""")

STALLS_WHILE_BEATING = trainer("""
for step in range(1, 6):
    time.sleep(0.03); row(step); beat(step)
while True:
    time.sleep(0.2); beat(5)
""")

SLOW_BUT_BUSY = trainer("""
for step in range(1, 6):
    time.sleep(0.03); row(step)
burn(1.5)
row(6)
""")

NEVER_STARTS = trainer("""
beat(0, "boot")
time.sleep(60)
""")

IGNORES_SIGTERM = trainer("""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
row(1)
time.sleep(60)
""")

DUMPS_STACKS = trainer("""
import faulthandler
file = open(out + f"/stackdump_{int(started)}.txt", "w")
faulthandler.register(signal.SIGUSR1, file=file)
def stuck_in_a_collective():
    time.sleep(60)
row(1); row(2)
stuck_in_a_collective()
""")

HONORS_HALT = trainer("""
for step in range(1, 1000):
    time.sleep(0.03); row(step, float("nan") if step >= 3 else 2.0)
    if os.path.exists(out + "/.HALT"):
        sys.exit(3)
""")

DOUBLE_FORK = trainer("""
pid_file = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(pid_file + ".part", "w") as file:
            file.write(str(os.getpid()))
        os.rename(pid_file + ".part", pid_file)
        time.sleep(60)
    os._exit(0)
os.wait()
while not os.path.exists(pid_file):
    time.sleep(0.01)
""")
"""Leaves a grandchild in a session of its own that ignores SIGTERM."""
