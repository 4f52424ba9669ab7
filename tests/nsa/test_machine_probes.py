"""The burn-in's devices and the collectives: every answer is known, and a wrong bit is found where it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from nsa import burnin, collectives
from nsa.parallel import World

if TYPE_CHECKING:
    from tests.nsa.ranks import RankServer

CPU = torch.device("cpu")
ALONE = World(0, 0, 1, CPU, None)


def records(folder: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"burnin_rank{rank}.jsonl").read_text().splitlines()]


def test_products_are_exact_and_the_cpu_agrees() -> None:
    found, unlike, bits = burnin.products(CPU, 96)
    assert (unlike, {one.name for one in found}) == (0, {"fp32", "fp64"})
    assert [one.run(0.0)["wrong"] for one in found] == [0, 0]
    assert burnin.products(CPU, 96)[2] == bits, "the same on every machine"


def test_the_types_of_a_gpu_hold_every_sum() -> None:
    """8192 products of the largest values, in the middle of the distribution: far from where a type ends."""
    a, b = burnin._whole_numbers(512)
    assert int(a.abs().max()) <= burnin._LARGEST
    assert a.to(torch.bfloat16).to(torch.int8).equal(a)
    spread = float((a[:64].double() @ b[:, :64].double()).std()) * 4  # by the square root of 8192 over 512
    assert 10 * spread < 2**24
    small = burnin._LARGEST // burnin._LARGEST_FP16
    low = torch.div(a, small, rounding_mode="trunc").double(), torch.div(b, small, rounding_mode="trunc").double()
    assert 10 * 4 * float((low[0][:64] @ low[1][:, :64]).std()) < 65504


def test_a_wrong_element_is_counted_and_found() -> None:
    one = burnin.products(CPU, 32)[0][0]
    one.right[3, 5] += 1
    row = one.run(0.0)
    assert row["wrong"] == row["products"]
    assert row["again"] == [{"row": 3, "column": 5, "found": float(one.out[3, 5]), "right": float(one.right[3, 5])}]


def test_a_flipped_bit_of_memory_is_found_at_its_byte() -> None:
    memory = burnin.Memory.filled(CPU, 8 * 8 * 1000)
    memory.words[2005] ^= 1 << 17
    assert [memory.visit(part)["wrong"] for part in (0, 1)] == [0, 0]
    row = memory.visit(2)
    assert (row["wrong"], row["bytes_at"]) == (1, [2005 * 8])
    rest = [memory.visit(part)["wrong"] for _ in range(6) for part in range(8)]
    assert sum(rest) == 0, "every pattern is written, kept and read"


def test_one_device_burns_in_alone() -> None:
    lines: list[dict[str, Any]] = []
    words = ["--seconds", "0.05", "--round-s", "0.02", "--size", "32", "--mib", "1"]
    burnin.burn(ALONE, burnin._parser().parse_args(words), lines.append)
    assert lines[0]["device"]["type"] == "cpu"
    assert lines[1]["collective"] == {}
    assert lines[1]["products"]["fp32"]["tflops"] > 0
    assert (lines[-1]["done"], lines[-1]["rounds"]) == (True, sum("products" in one for one in lines))


def test_two_devices_burn_in_together(tmp_path: Path, rank_server: RankServer) -> None:
    words = ["--device", "cpu", "--seconds", "1", "--round-s", "0.05", "--size", "32", "--mib", "1"]
    ranks = rank_server.start("nsa.burnin", [*words, "--out", str(tmp_path)])
    assert ranks.wait() == [0, 0], ranks.said
    first, second = records(tmp_path, 0), records(tmp_path, 1)
    assert first[0]["answer"] == second[0]["answer"]
    assert first[-1]["rounds"] == second[-1]["rounds"], "all ranks end in the same round"
    exchanged = [one["collective"]["name"] for one in first if "collective" in one]
    assert exchanged[:2] == ["all_reduce", "all_gather"]
    assert not any(one["collective"]["wrong"] for one in first + second if "collective" in one)


def test_collectives_are_timed_by_size_with_right_answers(tmp_path: Path, rank_server: RankServer) -> None:
    out = tmp_path / "c.json"
    words = ["--device", "cpu", "--max-bytes", "4096", "--repeats", "2", "--out", str(out)]
    ranks = rank_server.start("nsa.collectives", words)
    assert ranks.wait() == [0, 0], ranks.said
    record = json.loads(out.read_text())
    assert record["collectives"].keys() | record["skipped"].keys() == set(collectives.COLLECTIVES)
    for name, rows in record["collectives"].items():
        assert [row["bytes"] for row in rows] == [1024, 4096]
        for row in rows:
            share = collectives.COLLECTIVES[name][1](2)
            assert row["bus_gb_s"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9 * share)
            assert (len(row["late_s"]), row["wrong"]) == (2, {})
            assert min(row["late_s"]) >= 0
    assert [one["rank"] for one in record["devices"]] == [0, 1]


def test_a_wrong_part_is_charged_to_the_rank_that_sent_it() -> None:
    world = World(0, 0, 2, CPU, "gloo")
    plain = collectives._values(8, CPU)
    found = torch.cat([plain, plain * 2])
    assert collectives._by_sender(found, lambda: None, plain, world) == {}
    found[9] += 1
    assert collectives._by_sender(found, lambda: None, plain, world) == {1: 1}
