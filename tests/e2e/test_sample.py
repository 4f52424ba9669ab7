"""The committed sample of a validation: small, whole, and fit for strangers."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from validator.pipeline.share import MAX_BYTES

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "reports").glob("sample-*"))

NAMES = {
    "a GPU's UUID": r"\b(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    "a PCI address": r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b",
    "a MAC address": r"(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])",
    "an IP address": r"(?<![\w.=-])(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}(?![\w.-])",
    "a mail address": r"[\w.+-]{1,64}@[\w-]{1,63}\.(?:com|org|net|io|ai|edu)\b",
    "an absolute path": r"(?:^|[\s\"'=(,])/(?:home|root|tmp|usr|opt|var|work|workspace|scratch|data|mnt|srv|etc)\b",
    "a token": r"\b(?:hf_|ghp_|sk-)[A-Za-z0-9]{16,}",
}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_a_sample_names_nobody_and_stays_small(sample: Path) -> None:
    files = [path for path in sample.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES, "a sample is a shared copy, and as small as those"
    for path in files:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = data.decode("utf-8")
        for what, pattern in NAMES.items():
            found = re.search(pattern, text, re.M | re.I)
            assert found is None, f"{path.relative_to(sample)} holds {what}: {found[0] if found else ''}"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_a_sample_is_a_decision_with_its_evidence(sample: Path) -> None:
    result = json.loads((sample / "result.json").read_text(encoding="utf-8"))
    assert result["decision"] == "GO"
    assert result["environment"]["host"] == "host1"
    for artifact in result["artifacts"]:
        assert (sample / artifact["path"]).is_file(), artifact["path"]
    for name in ("report.html", "report.md", "junit.xml", "recommended.env", "journal.jsonl", "share.json"):
        assert (sample / name).stat().st_size > 0, name


def test_there_is_a_sample() -> None:
    assert SAMPLES
