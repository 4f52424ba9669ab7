"""How long `validator inspect` takes on a very long run, and how much memory it needs.

    python -m benchmarks.reading                     one million rows, eight ranks, a million lines each
    python -m benchmarks.reading --steps 100000      a tenth of it
    python -m benchmarks.reading --folder DIR        keep the generated run there and use it again
    python -m benchmarks.reading --lines 30000       printed logs of so many lines, one in each of six formats

The memory is the largest sum of resident sizes over the command and all its descendants, looked at ten times a second;
libraries that they share are counted in each.
Lines are those of a trainer with every field of the contract: a progress record of about 400 bytes per step, each
hundredth with the statistics of the gates, a beat each thousandth.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

_START_S = 1_760_000_000.0


def write_table(folder: Path, steps: int) -> None:
    """training.csv with twelve columns."""
    noise = random.Random(1)
    with (folder / "training.csv").open("w") as file:
        file.write("step,loss,lr,toks_per_s,step_time_s,compute_time_s,grad_norm,dt_fetch_s,tokens,wall_s,")
        file.write("host_mem_mib,gpu_mem_alloc_mib\n")
        for step in range(1, steps + 1):
            time_s = 0.1 * (1 + 0.01 * noise.random())
            file.write(
                f"{step},{2 + 9 / (1 + step / 5e4):.6f},0.0002,{32768 / time_s:.2f},{time_s:.6f},{0.95 * time_s:.6f},"
                f"{0.8 + 0.1 * noise.random():.5f},0.00012,{step * 32768},{0.1 * step:.3f},8123.5,49123.25\n"
            )


def write_heartbeat(order: tuple[Path, int, int]) -> None:
    """heartbeat_rank{R}.jsonl with `steps` lines."""
    folder, rank, steps = order
    noise = random.Random(rank)
    gates = ', "gate_entropy_mean": 0.81, "gate_entropy_min": 0.7, "gate_max_gate": 0.5, "gate_collapse_frac": 0.01'
    with (folder / f"heartbeat_rank{rank}.jsonl").open("w") as file:
        for step in range(steps):
            time_s = 0.1 * (1 + 0.01 * noise.random())
            head = f'{{"ts": {_START_S + 0.1005 * step:.3f}, "iso": "2025-10-09T08:53:20.123Z", "pid": {4000 + rank}, '
            head += f'"rank": {rank}, "step": {step}, "msg": '
            if step == 0 or step % 1000 == 999:
                file.write(head + ('"boot"' if step == 0 else '"beat"') + ', "gpu_mem_alloc": 49123.25}\n')
                continue
            file.write(
                f'{head}"progress", "gpu_mem_alloc": 49123.25, "gpu_mem_reserved": 52100.0, '
                f'"loss": {2 + 9 / (1 + step / 5e4):.6f}, "lr": 0.0002, "toks_per_s": {32768 / time_s:.2f}, '
                f'"step_time_s": {time_s:.6f}, "compute_time_s": {0.95 * time_s:.6f}, "grad_norm": {time_s:.5f}, '
                f'"dt_fetch_s": 0.00012, "fetch_p50_ms": 0.1, "fetch_p95_ms": 0.153{"" if step % 100 else gates}}}\n'
            )


def generate(folder: Path, *, steps: int, ranks: int) -> None:
    """The run's folder."""
    folder.mkdir(parents=True)
    account = {"seq_len": 2048, "batch_size": 2, "accum": 1, "steps": steps}
    told = {"schema_version": 1, "world_size": ranks, "tokens_per_step": 2048 * 2 * ranks}
    (folder / "env.json").write_text(json.dumps({**told, "requested": account, "effective": account}))
    write_table(folder, steps)
    with multiprocessing.Pool(os.cpu_count()) as pool:
        pool.map(write_heartbeat, [(folder, rank, steps) for rank in range(ranks)])


def lines(name: str, count: int) -> Iterator[str]:
    """What a trainer prints, a line per step: known formats, words in no known format, and neither."""
    noise = random.Random(1)
    for step in range(1, count + 1):
        loss, took_s, norm = 2 + 8 / (1 + step / 3000) + noise.gauss(0, 0.05), noise.gauss(0.21, 0.004), noise.random()
        clock = f"{step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}"
        yield {
            "words": f"2026-11-03 {clock},123 INFO train: step {step} loss {loss:.4f} lr 3.00e-04 grad_norm {norm:.3f} "
            f"{1e3 * took_s:.1f} ms/step",
            "numbers": f"[{step:>7}] L={loss:.4f} | gn {norm:.3f} | {took_s:.3f}s/it | mem 31.2G | tok 65536",
            "records": f'{{"step": {step}, "loss": {loss:.4f}, "grad_norm": {norm:.3f}, "step_time": {took_s:.4f}}}',
            "Trainer": f"{{'loss': {loss:.4f}, 'grad_norm': {norm:.4f}, 'learning_rate': 3e-4, "
            f"'epoch': {step / 5e3:.3f}}}",
            "bar": f"Epoch 0: {100 * step // count:3}%|####  | {step}/{count} [{clock}<02:11, {1 / took_s:.2f}it/s, "
            f"loss={loss:.3f}, v_num=0]",
            "Megatron": f" [2026-11-03 {clock}] iteration {step:8}/{count:8} | consumed samples: {256 * step:12} | "
            f"elapsed time per iteration (ms): {1e3 * took_s:.1f} | learning rate: 3.000E-04 | lm loss: {loss:.6E} | "
            f"grad norm: {norm:.3f} | number of nan iterations:   0 |",
        }[name]


def resident_bytes(process: psutil.Process) -> int:
    """Resident size of a process and all below it, now."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_info().rss
        except psutil.Error:
            continue
    return total


def measure(folder: Path) -> tuple[float, float, float, int]:
    """Wall time in s, CPU time in s, peak memory in MiB, exit code of `validator inspect`."""
    before = os.times()
    began, peak = time.monotonic(), 0
    command = [sys.executable, "-m", "validator", "inspect", str(folder), "--json"]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watched = psutil.Process(started.pid)
    while started.poll() is None:
        try:
            peak = max(peak, resident_bytes(watched))
        except psutil.Error:
            break
        time.sleep(0.1)
    rc = started.wait()
    took_s, after = time.monotonic() - began, os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return took_s, cpu_s, peak / 2**20, rc


def measure_logs(count: int) -> None:
    """A line for each printed log."""
    with tempfile.TemporaryDirectory(prefix="validator-reading-") as folder:
        for name in ("words", "numbers", "records", "Trainer", "bar", "Megatron"):
            log = Path(folder, f"{name}.log")
            log.write_text("\n".join(lines(name, count)) + "\n")
            took_s, cpu_s, peak_mib, _ = measure(log)
            print(
                f"{name}: {count:,} lines, {log.stat().st_size / 1e6:.1f} MB: {took_s:.1f} s wall, "
                f"{cpu_s:.1f} s of CPU, {peak_mib:.0f} MiB at most"
            )


def main() -> None:
    """Generate, measure, and say it in a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--lines", type=int)
    args = parser.parse_args()
    if args.lines is not None:
        measure_logs(args.lines)
        return
    root = args.folder or Path(tempfile.mkdtemp(prefix="validator-reading-"))
    run = root / f"run-{args.steps}-{args.ranks}"
    try:
        if not run.exists():
            generate(run, steps=args.steps, ranks=args.ranks)
        size = sum(path.stat().st_size for path in run.iterdir())
        took_s, cpu_s, peak_mib, rc = measure(run)
        load = os.getloadavg()[0]
        print(
            f"{args.steps:,} rows, {args.ranks} heartbeats, {size / 2**30:.2f} GiB: {took_s:.1f} s wall, "
            f"{cpu_s:.1f} s of CPU, {peak_mib:.0f} MiB at most, exit code {rc}; {os.cpu_count()} CPUs, load {load:.1f}"
        )
    finally:
        if args.folder is None:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
