"""The report on the page of a GitHub Actions job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validator.report import samples
from validator.report.exports import LIMIT_BYTES, VARIABLE, append_step_summary, cut
from validator.report.markdown import render_markdown


def test_outside_of_a_job_nothing_is_written(tmp_path: Path) -> None:
    assert append_step_summary("# GO\n", {}) is None
    assert append_step_summary("# GO\n", {VARIABLE: ""}) is None
    assert not list(tmp_path.iterdir())


def test_it_is_appended_to_what_the_step_has_said_before(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    environment = {VARIABLE: str(path)}
    for expected in ("# GO\n", "# GO\n\n# GO\n"):
        assert append_step_summary("# GO\n", environment) == path
        assert path.read_text(encoding="utf-8") == expected
    path.write_text("a line without an end", encoding="utf-8")
    append_step_summary("# GO\n", environment)
    assert path.read_text(encoding="utf-8") == "a line without an end\n\n# GO\n"


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.9999])
@pytest.mark.parametrize("name", ["go", "no_go", "hostile"])
def test_what_is_cut_is_whole_and_says_so(name: str, share: float) -> None:
    whole = render_markdown(getattr(samples, name)())
    limit = int(share * len(whole.encode()))
    text = cut(whole, limit)
    assert len(text.encode()) <= limit
    assert text.count("<details>") == text.count("</details>")
    assert "The rest is left out" in text
    kept = text.split("\n\n_The rest is left out")[0]
    while kept.endswith("</details>"):
        kept = kept.removesuffix("</details>").rstrip("\n")
    assert whole.startswith(kept)
    assert text.startswith("# ")


def test_a_block_of_code_is_never_parted() -> None:
    text = "# GO\n\n````sh\n```\n\nx\n````\n\nend\n"
    for limit in range(120, 160):
        found = cut(text + "more\n" * 100, limit)
        assert found.count("````") in (0, 2)


def test_there_is_room_for_one_mebibyte_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("x" * (LIMIT_BYTES - 3000) + "\n", encoding="utf-8")
    append_step_summary(render_markdown(samples.no_go()), {VARIABLE: str(path)})
    assert LIMIT_BYTES - 3000 < path.stat().st_size <= LIMIT_BYTES
    assert path.read_text(encoding="utf-8").endswith("report.html in the run folder has all of it._\n")
    path.write_text("x" * LIMIT_BYTES, encoding="utf-8")
    assert append_step_summary("# GO\n", {VARIABLE: str(path)}) is None
    assert path.stat().st_size == LIMIT_BYTES
