"""The kind `preflight` on several nodes: what each of them counted under load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.validator.kinds.machines import explained, found, machine
from validator.model.plan import RunSpec
from validator.model.verdict import Finding, PhaseReport

RATES = {"gemm_bf16": {"value": 760.0, "best": 780.0}, "all_reduce": {"value": 400.0, "bytes": 2**30}}


def counted(folder: Path, *grown: dict[str, int] | None) -> tuple[PhaseReport, tuple[Finding, ...]]:
    """A preflight on each of so many nodes, and what their counters grew by; None: a node left none."""
    names = [f"n{number}" for number, _ in enumerate(grown, start=1)]

    def write(spec: RunSpec, out: Path) -> None:
        for group, after in enumerate(grown):
            logs = out / f"g{group}" / "logs"
            logs.mkdir(parents=True)
            (logs.parent / "probe.json").write_text(json.dumps({"rates": RATES, "ranks": [RATES, RATES]}))
            if after is not None:
                counts = {"seconds": 30.0, "before": {"GPU 0 pcie_replays": 7}, "after": after}
                (logs / "counters.json").write_text(json.dumps(counts))

    nodes = {name: machine(2) for name in names}
    return explained(folder, {"kind": "preflight", "on": "each"}, write, gpus=2, facts={}, nodes=nodes)


SOUND = {"GPU 0 pcie_replays": 9}


@pytest.mark.parametrize(
    ("grown", "status", "words"),
    [
        ((SOUND, SOUND, SOUND), "PASS", "No link or memory counted more errors than it may."),
        ((SOUND, SOUND, None), "PASS", "more errors than it may; nobody counted on n3."),
        ((None, None, None), "SKIPPED", "Nobody counted"),
        ((SOUND, {"GPU 1 ecc_uncorrected": 2}, SOUND), "FAIL", "n2, GPU 1 counted 2 ecc uncorrected under load"),
        ((SOUND, SOUND, {"mlx5_3:1 symbol_error": 4}), "FAIL", "n3, mlx5_3:1 counted 4 symbol error under load"),
    ],
)
def test_the_counters_of_every_node_are_read(
    tmp_path: Path, grown: tuple[dict[str, int] | None, ...], status: str, words: str
) -> None:
    report, findings = counted(tmp_path, *grown)
    assert found(report, "counters")[0] == status
    assert words in found(report, "counters")[1]
    (criterion,) = (one for one in report.criteria if one.id == "it.counters")
    assert criterion.required == ("ecc" in words), "grave errors alone decide"
    said = [one.message for one in findings if one.code == "unhealthy-gpu"]
    assert (status == "FAIL") == any(words in message for message in said)
    if status == "FAIL":
        node = words[1:2]
        assert any(f"g{int(node) - 1}/logs/counters.json" in str(one.path) for one in criterion.evidence)
