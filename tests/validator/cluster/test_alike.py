"""In what the nodes of a cluster differ, and which one is the odd one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.report.fleets import facts, record
from validator.cluster.alike import Difference, differences
from validator.model.nodes import NodeRecord


def _changed(number: int, changes: dict[str, Any]) -> NodeRecord:
    return record(number, known=facts(number, **changes))


def _found(*records: NodeRecord) -> dict[str, Difference]:
    return {one.what: one for one in differences(records)}


def _gpus(number: int, **changes: Any) -> dict[str, Any]:
    gpus = facts(number)["gpus"]
    return {**gpus, "gpu6": {**gpus["gpu6"], **changes}}


def test_equal_nodes_do_not_differ_though_their_gpus_have_serial_numbers_and_clocks_a_little_skew() -> None:
    assert _found(*(record(number, clock_offset_s=0.2 * number) for number in range(4))) == {}


@pytest.mark.parametrize(
    ("changes", "what", "value", "decides"),
    [
        ({"gpu_driver": {"driver": "560.35.03"}}, "the driver", "560.35.03", True),
        ({"packages": {"torch": "2.12.0", "nvidia-nccl-cu12": "2.27.5"}}, "torch", "2.12.0", True),
        ({"packages": {"torch": "2.13.0"}}, "package nvidia-nccl-cu12", "none", False),
        ({"mounts": {"/data": "nfs4", "/scratch": "lustre"}}, "mount /scratch", "lustre", False),
        ({"system": "Linux 5.15.0 x86_64"}, "the kernel", "Linux 5.15.0 x86_64", False),
        (
            {"gpus": _gpus(2, vbios="96.00.74.00.01")},
            "the GPUs' firmware",
            "7 x 96.00.89.00.01, 1 x 96.00.74.00.01",
            False,
        ),
        ({"gpus": _gpus(2, power_limit_w=500.0)}, "the power limit in W", "7 x 700, 1 x 500", False),
        ({"memory": {"total_gib": 1007.0}}, "memory", "1007 GiB", False),
    ],
)
def test_the_odd_node_is_named_with_its_value(changes: dict[str, Any], what: str, value: str, decides: bool) -> None:
    found = _found(record(0), record(1), _changed(2, changes), record(3))
    assert list(found) == [what]
    assert (found[what].odd, found[what].values["n002"], found[what].decides) == (("n002",), value, decides)


def test_of_two_nodes_neither_is_the_odd_one() -> None:
    found = _found(record(0), _changed(1, {"python": {"version": "3.12.1"}}))["Python"]
    assert found.odd == ()
    assert set(found.values) == {"n000", "n001"}


def test_a_clock_that_is_off_by_seconds_is_found_though_the_node_left_no_facts() -> None:
    found = _found(record(0), record(1), record(2, known={}, clock_offset_s=-3.0), record(3))
    assert found["the clock, beside the head's"].odd == ("n002",)
