"""The kind `burnin`: which device it names for what, and what it makes of records that anybody may have written."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.validator.kinds.machines import CARDS, found, judged, machine
from validator.ingest.burnin import read_burnin
from validator.ingest.read_log import ReadLog
from validator.ingest.result_builder import ResultBuilder
from validator.model.nodes import NodeRecord
from validator.model.runbook import TrainerMetrics
from validator.model.verdict import PhaseReport

ROUNDS = 48
Edit = Callable[[int, list[dict[str, Any]]], None]


def nothing(rank: int, lines: list[dict[str, Any]]) -> None:
    """A healthy device."""


def device(rank: int, *, gpu: bool = True) -> list[dict[str, Any]]:
    """What a rank writes whose rate varies by half a percent."""
    noise = random.Random(rank)
    facts: dict[str, Any] = {"rank": rank, "type": "cuda" if gpu else "cpu"}
    facts |= {"name": "NVIDIA H200", "uuid": CARDS[rank], "index": rank} if gpu else {}
    head = {"device": facts, "answer": {"bits": "8983468723", "unlike_on_cpu": 0}}
    name = "bf16" if gpu else "fp32"
    rounds = [
        {
            "round": at,
            "t": 1000.0 + 2 * at,
            "products": {name: {"products": 900, "tflops": 700 * noise.gauss(1, 0.005), "wrong": 0}},
            "memory": {"pattern": "0x55", "gb_s": 3000.0, "wrong": 0},
            "collective": {"name": "all_gather", "wrong": 0},
        }
        for at in range(ROUNDS)
    ]
    return [head, *rounds, {"done": True}]


def burned(
    folder: Path,
    edit: Edit = nothing,
    *,
    gpus: int = 2,
    mask: int = 4,
    hot: float = 65.0,
    facts: dict[str, Any] | None = None,
    **phase: Any,
) -> PhaseReport:
    """A burn-in of so many GPUs, or of two CPU workers, changed by `edit`; `facts` are those of the machine."""
    write = left_by(edit, gpus=gpus, mask=mask, hot=hot)
    return judged(folder, {"kind": "burnin", **phase}, write, gpus=gpus, facts=facts)


def left_by(edit: Edit = nothing, *, gpus: int = 2, mask: int = 4, hot: float = 65.0) -> Callable[[Path], None]:
    """Writes the records and samples of a burn-in."""

    def write(out: Path) -> None:
        for rank in range(gpus or 2):
            lines = device(rank, gpu=gpus > 0)
            edit(rank, lines)
            if lines:
                (out / f"burnin_rank{rank}.jsonl").write_text("\n".join(json.dumps(one) for one in lines) + "\n")
        names = ("power_w", "temperature_c", "sm_clock_mhz", "throttle_mask")
        columns = [f"gpu{gpu}_{name}" for gpu in range(gpus) for name in names]
        rows = [
            [1000.0 + 2 * at, *[v for gpu in range(gpus) for v in (690, hot, 1500, mask if gpu else 4)]]
            for at in range(ROUNDS)
        ]
        if gpus:
            text = "\n".join(",".join(map(str, row)) for row in (["ts", *columns], *rows))
            (out / "logs" / "telemetry.csv").write_text(text + "\n")

    return write


def scale(factor: float, *, rank: int = 1, start: int = 0) -> Edit:
    """One device's rate from a round on."""

    def edit(at: int, lines: list[dict[str, Any]]) -> None:
        for one in lines[1 + start : -1] if at == rank else ():
            one["products"]["bf16"]["tflops"] *= factor

    return edit


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_healthy_gpus_pass_whatever_their_number(tmp_path: Path, gpus: int) -> None:
    report = burned(tmp_path, gpus=gpus, accept=["burnin.errors == 0", "burnin.temperature_c <= 85"])
    assert report.status == "PASS", report.message
    assert "right in every bit" in found(report, "right")[1]
    scalars = {name: one.value for name, one in report.runs[0].scalars.items()}
    assert (scalars["burnin.errors"], scalars["burnin.temperature_c"], scalars["burnin.throttled_pct"]) == (0, 65, 0)
    assert scalars["burnin.tflops"] == pytest.approx(700, rel=0.01)
    assert ("burnin.slowest_share" in scalars) == (gpus > 1)
    assert len(report.runs[0].tables[0].rows) == gpus


def test_a_wrong_element_is_named_with_its_gpu_round_and_place(tmp_path: Path) -> None:
    def edit(rank: int, lines: list[dict[str, Any]]) -> None:
        if rank == 1:
            again = [{"row": 7, "column": 5, "found": 3.0, "right": 2.0}]
            lines[20]["products"]["bf16"] |= {"wrong": 1, "again": again}

    report = burned(tmp_path, edit)
    status, message = found(report, "right")
    assert status == "FAIL"
    assert "GPU 1: 1 wrong answer, first round 19, 1 element of the bf16 product, at [7, 5] 3 in place of 2" in message
    assert "GPU 0" not in message
    assert CARDS[1] in report.criteria[1].evidence[0].text
    assert report.runs[0].scalars["burnin.gemm_errors"].value == 1


@pytest.mark.parametrize(
    ("part", "row", "said"),
    [
        (
            "memory",
            {"pattern": "0xAA", "wrong": 2, "bytes_at": [16040]},
            "2 words of memory did not keep the pattern 0xAA",
        ),
        (
            "collective",
            {"name": "all_gather", "wrong": 3, "from": {"0": 3}},
            "3 elements of all_gather in what rank 0 sent",
        ),
    ],
)
def test_wrong_memory_and_collectives_are_errors_too(tmp_path: Path, part: str, row: dict[str, Any], said: str) -> None:
    def edit(rank: int, lines: list[dict[str, Any]]) -> None:
        if rank == 1:
            lines[5][part] = row

    report = burned(tmp_path, edit)
    assert found(report, "right")[0] == "FAIL"
    assert said in found(report, "right")[1]
    assert report.runs[0].scalars[f"burnin.{part}_errors"].value == row["wrong"]


def test_an_answer_that_differs_from_those_of_the_others_is_an_error(tmp_path: Path) -> None:
    def edit(rank: int, lines: list[dict[str, Any]]) -> None:
        if rank == 2:
            lines[0]["answer"]["bits"] = "1"

    status, message = found(burned(tmp_path, edit, gpus=4), "right")
    assert (status, message.partition(":")[0]) == ("FAIL", "GPU 2")


def test_of_two_answers_that_differ_the_cpu_decides_or_nobody(tmp_path: Path) -> None:
    def edit(rank: int, lines: list[dict[str, Any]]) -> None:
        lines[0]["answer"]["bits"] = str(rank)

    assert "answers differ between devices" in found(burned(tmp_path / "a", edit), "right")[1]

    def known(rank: int, lines: list[dict[str, Any]]) -> None:
        lines[0]["answer"]["unlike_on_cpu"] = rank

    assert found(burned(tmp_path / "b", known), "right")[1].startswith("GPU 1: 1 wrong answer")


def test_a_slow_gpu_fails_with_its_interval_and_a_little_slower_one_does_not(tmp_path: Path) -> None:
    report = burned(tmp_path / "a", scale(0.8), gpus=4)
    status, message = found(report, "even")
    assert status == "FAIL"
    assert "GPU 1 is the slowest: -2" in message or "GPU 1 is the slowest: -1" in message
    assert "[-" in message
    assert "the median of the others" in message
    assert report.runs[0].scalars["burnin.slowest_share"].value == pytest.approx(0.8, abs=0.01)
    assert found(burned(tmp_path / "b", scale(0.95), gpus=4), "even")[0] == "PASS"
    assert found(burned(tmp_path / "c", scale(0.95), gpus=4, max_slower=0.03), "even")[0] == "FAIL"
    assert found(burned(tmp_path / "d", scale(0.8)), "even")[0] == "FAIL", "of two the slower is named"


def test_a_gpu_that_loses_its_rate_fails_and_one_that_settles_does_not(tmp_path: Path) -> None:
    status, message = found(burned(tmp_path / "a", scale(0.8, start=24)), "steady")
    assert status == "FAIL"
    assert message.startswith("GPU 1 lost most: ")
    assert "65 °C at most" in message
    assert found(burned(tmp_path / "b", scale(0.97, start=8)), "steady")[0] == "PASS"


def test_a_gpu_that_slows_itself_down_for_heat_is_named(tmp_path: Path) -> None:
    status, message = found(burned(tmp_path, mask=0x40, hot=94.0), "cool")
    assert (status, message.partition(".")[0]) == (
        "FAIL",
        "GPU 1 slowed itself down in 100 % of the samples: hardware thermal slowdown",
    )
    assert "94 °C" in message


def test_a_power_cap_is_noted_and_fails_nothing(tmp_path: Path) -> None:
    status, message = found(burned(tmp_path, mask=4), "cool")
    assert status == "PASS"
    assert "690 W and 1,500 MHz on average; none slowed itself down" in message


@pytest.mark.parametrize("keep", [0, 20])
def test_a_device_that_did_not_come_to_the_end_is_no_pass(tmp_path: Path, keep: int) -> None:
    def edit(rank: int, lines: list[dict[str, Any]]) -> None:
        if rank == 1:
            del lines[keep:]

    report = burned(tmp_path, edit, accept=["burnin.errors == 0"])
    assert found(report, "right")[0] == "INCONCLUSIVE"
    assert report.status == "INCONCLUSIVE"
    assert "burnin.errors" not in report.runs[0].scalars


def test_workers_of_a_cpu_decide_by_their_answers_alone(tmp_path: Path) -> None:
    def edit(rank: int, lines: list[dict[str, Any]]) -> None:
        for one in lines[1:-1] if rank else ():
            one["products"]["fp32"]["tflops"] *= 0.5

    report = burned(tmp_path, edit, gpus=0)
    assert report.status == "PASS"
    assert found(report, "even")[0] == "FAIL"
    assert found(report, "even")[1].startswith("CPU worker 1 is the slowest")
    assert found(report, "cool") == ("SKIPPED", "No GPU: temperature, clocks, power and throttling are not looked at.")
    assert not any(one.required for one in report.criteria if one.status != "PASS")


HOSTILE: list[Any] = [
    None,
    [],
    3,
    "x",
    {},
    {"round": "a"},
    {"round": 1, "products": [1], "memory": 3, "collective": []},
]


@pytest.mark.parametrize("bad", HOSTILE)
def test_no_record_raises(tmp_path: Path, bad: Any) -> None:
    def edit(rank: int, lines: list[dict[str, Any]]) -> None:
        lines[0 if rank else 3] = bad
        lines[7]["products"]["bf16"]["tflops"] = 1e300
        lines[8]["products"]["bf16"]["wrong"] = "many"
        lines[9]["products"]["bf16"]["tflops"] = -1.0

    assert burned(tmp_path, edit).status in ("PASS", "FAIL", "INCONCLUSIVE")


def test_lines_that_are_no_json_are_left_out(tmp_path: Path) -> None:
    def write(out: Path) -> None:
        (out / "burnin_rank0.jsonl").write_bytes(b"\xff\xfe{\n{}\n")

    assert found(judged(tmp_path, {"kind": "burnin"}, write, gpus=1), "right")[0] == "INCONCLUSIVE"


SAMPLED = ("power_w", "temperature_c", "sm_clock_mhz", "throttle_mask", "util_pct", "processes", "foreign_processes")


def beside(*, load: float, since: int = 0, idle: bool = False) -> Callable[[Path], None]:
    """One H200 that holds the rate of a real one under load of another program, which the driver lists from a sample
    on, and which may be idle; the first ten samples are from before the burn-in's process."""

    def write(out: Path) -> None:
        lines = device(0)
        scale(load / 700, rank=0)(0, lines)
        (out / "burnin_rank0.jsonl").write_text("\n".join(json.dumps(one) for one in lines) + "\n")
        header = ",".join(("ts", *(f"gpu0_{name}" for name in SAMPLED)))
        rows = [header]
        for at in range(-10, ROUNDS):
            other, own = int(at + 10 >= since), int(at >= 0)
            used = 100 if own or (other and not idle) else 0
            rows.append(f"{1000.0 + 2 * at},690,58,1709,4,{used},{own + other},{other}")
        (out / "logs" / "telemetry.csv").write_text("\n".join(rows) + "\n")
        who = {"ts": 980.0, "gpu": 0, "pid": 4808, "name": "python3", "used_mib": 1002}
        (out / "logs" / "gpu_processes.jsonl").write_text(json.dumps(who) + "\n")

    return write


def test_one_gpu_beside_another_program_is_no_pass_and_the_program_is_named(tmp_path: Path) -> None:
    report = judged(tmp_path, {"kind": "burnin"}, beside(load=373), gpus=1)
    status, message = found(report, "rate")
    assert (report.status, status) == ("FAIL", "FAIL")
    assert message.startswith("GPU 0 held 373")
    assert "52.2 % of its public bound" in message
    assert "Meanwhile another program used GPU 0: pid 4808 (python3, 1002 MiB)." in message


def test_a_program_that_is_there_and_leaves_the_gpu_its_rate_fails_nothing(tmp_path: Path) -> None:
    report = judged(tmp_path, {"kind": "burnin"}, beside(load=740), gpus=1)
    assert report.status == "PASS", report.message


@pytest.mark.parametrize(("rate", "status"), [(738, "PASS"), (750, "PASS"), (540, "PASS"), (530, "FAIL")])
def test_the_rate_of_a_gpu_alone_is_compared_with_three_quarters_of_its_bound(
    tmp_path: Path, rate: float, status: str
) -> None:
    assert found(burned(tmp_path, scale(rate / 700, rank=0), gpus=1), "rate")[0] == status


def test_a_lowered_power_limit_lowers_what_a_gpu_must_hold_and_an_unknown_model_is_not_judged(tmp_path: Path) -> None:
    def limited(name: str, watts: float) -> tuple[str, str]:
        facts = machine(1, name)
        facts["gpus"]["gpu0"] |= {"power_limit_w": watts, "power_limit_default_w": 700.0}
        return found(burned(tmp_path / f"{name}{watts:g}", scale(450 / 700, rank=0), gpus=1, facts=facts), "rate")

    assert limited("NVIDIA H200", 700.0)[0] == "FAIL"
    assert limited("NVIDIA H200", 500.0)[0] == "PASS"
    assert limited("NVIDIA Unheard-of", 700.0) == ("SKIPPED", "NVIDIA H200: measured, no public bound.")


def test_ranks_of_several_nodes_are_named_by_node_and_have_the_samples_of_their_own(tmp_path: Path) -> None:
    """Two nodes of one GPU each: the second is hot, and the driver calls its GPU 1."""
    out = tmp_path / "run"
    for rank, (folder, gpu) in enumerate(((out / "logs", 0), (out / "nodes" / "n2" / "logs", 1))):
        folder.mkdir(parents=True)
        lines = device(rank)
        lines[0]["device"]["index"] = 0
        (out / f"burnin_rank{rank}.jsonl").write_text("\n".join(json.dumps(one) for one in lines) + "\n")
        rows = [f"ts,gpu{gpu}_temperature_c,gpu{gpu}_power_w,gpu{gpu}_throttle_mask"]
        rows += [f"{1000.0 + 2 * at},{60 + 30 * rank},690,0" for at in range(ROUNDS)]
        (folder / "telemetry.csv").write_text("\n".join(rows) + "\n")
    builder = ResultBuilder(run="it", out=out, read_log=ReadLog(tmp_path), metrics=TrainerMetrics())
    facts = {"group": 0, "host": "h", "ended": "exited", "rc": 0}
    builder.evidence.nodes = tuple(
        NodeRecord.model_validate({"node": f"n{at + 1}", "rank": at, **facts}) for at in (0, 1)
    )
    record = read_burnin(builder, planned=2)
    assert record is not None
    assert [one.label for one in record.devices] == ["n1, GPU 0", "n2, GPU 1"]
    assert [record.loads[rank].temperature_c for rank in (0, 1)] == [60.0, 90.0]
    assert record.whole
    assert not record._replace(planned=4).whole


def test_each_gpu_of_a_cluster_is_held_to_the_bound_of_its_own_node(tmp_path: Path) -> None:
    """Two nodes of two GPUs: beside three healthy ones n2's GPU 1 holds half, by itself or by its owner's limit."""

    def held(name: str, *, watts: float = 700.0, card: str = "NVIDIA H200") -> tuple[str, str]:
        facts = {"n1": machine(2), "n2": machine(2, card)}
        facts["n2"]["gpus"]["gpu1"] |= {"power_limit_w": watts, "power_limit_default_w": 700.0}

        def write(out: Path) -> None:
            for rank in range(4):
                lines = device(rank)
                lines[0]["device"]["index"] = rank % 2
                scale(0.5, rank=3)(rank, lines)
                (out / f"burnin_rank{rank}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")

        report = judged(tmp_path / name, {"kind": "burnin", "on": "all"}, write, gpus=2, facts={}, nodes=facts)
        return found(report, "rate")

    status, message = held("slow")
    assert (status, message.partition(" held")[0]) == ("FAIL", "n2, GPU 1")
    assert "of its public bound; look for other programs on it" in message
    assert held("limited", watts=300.0)[0] == "PASS"
    status, message = held("unknown", card="NVIDIA Unheard-of")
    assert status == "PASS"
    assert message.endswith("n2, GPU 0, n2, GPU 1: measured, no public bound.")
