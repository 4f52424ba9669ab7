"""Machines of one class may be compared, others not."""

from __future__ import annotations

from validator.model.machine import machine_class, sound_snapshot

H200 = {"name": "NVIDIA H200", "nvlinks_active": 18}
BRIDGELESS = {"name": "NVIDIA A100 80GB PCIe", "nvlinks_active": 0}


def test_the_class_is_what_bears_on_speed() -> None:
    assert machine_class({"gpus": {"gpu0": H200}, "host": "one"}) == "1 x NVIDIA H200"
    assert machine_class({"gpus": {"gpu0": H200, "gpu1": H200}, "host": "two"}) == "2 x NVIDIA H200, NVLink"
    assert machine_class({"gpus": {"gpu0": BRIDGELESS, "gpu1": BRIDGELESS}}) == "2 x NVIDIA A100 80GB PCIe, PCIe"


def test_one_card_without_a_link_makes_the_machine_one_without() -> None:
    mixed = {"gpu0": H200, "gpu1": {**H200, "nvlinks_active": 0}}
    assert machine_class({"gpus": mixed}) == "2 x NVIDIA H200, PCIe"


def test_without_gpus_the_processor_counts() -> None:
    cpu = {"model": "AMD EPYC 9654", "cores_logical": 96, "cores_usable": 2.0}
    assert machine_class({"cpu": cpu, "gpus": {}}) == "CPU, 2 cores, AMD EPYC 9654"


def test_nothing_known_is_said_and_never_guessed() -> None:
    assert machine_class({}) == "unknown"
    assert machine_class({"gpus": None, "cpu": None}) == "unknown"
    assert machine_class({"cpu": {"model": "AMD EPYC 9654", "cores_usable": "two"}}) == "CPU, AMD EPYC 9654"


def test_sections_of_a_snapshot_that_are_none_are_left_out() -> None:
    """Whoever reads a received folder's environment.json asks them for their parts."""
    found = {"host": "a", "cpu": "fast", "gpus": {"gpu0": H200, "gpu1": 1.5}, "disk": None, "resumed": [1]}
    assert sound_snapshot(found) == {"host": "a", "gpus": {"gpu0": H200}}
    assert sound_snapshot([1]) == sound_snapshot({"gpus": 1.5}) == {}
