"""Pages and API: what they show, and that nothing which others wrote acts on a reader or reaches a file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.validator.history.folders import make_run
from tests.validator.service.serving import client, make_running
from validator.model.verdict import ValidationReport
from validator.report.html import report_script
from validator.report.templates import policy_hash
from validator.service import pages
from validator.service.api import ENDPOINTS

EVIL = '"><script>alert(1)</script>{{7*7}}'


def evil_run(reports: Path, number: int) -> Path:
    """A run folder whose every text is an attack."""
    folder = make_run(reports, number)
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    found["why"] = found["runbook"]["name"] = found["runbook"]["title"] = EVIL
    found["run_id"] = EVIL if number else found["run_id"]  # such a result is listed, and shown no further
    found["environment"] |= {"host": EVIL, "git": {"branch": EVIL}}
    found["environment"]["gpus"]["gpu0"]["name"] = EVIL
    (folder / "result.json").write_text(json.dumps(found), encoding="utf-8")
    (folder / "a<img src=x onerror=alert(1)>.log").write_text(EVIL, encoding="utf-8")
    return folder.rename(folder.with_name(f'{"xy"[number]}"><script>alert(2)<script>'))


def test_pages_list_filter_and_link_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [make_run(tmp_path / "reports", number, scale=1.0 if number < 6 else 0.9) for number in range(12)]
    asking = client(tmp_path / "reports")
    past = asking.get("/past").text
    assert past.count('<span class="status good">') == 12
    assert f'href="/runs/{folders[0].name}/"' in past
    group = asking.get("/past?runbook=smoke-cpu&machine=2 x NVIDIA H200, NVLink").text
    assert "worse by 10 %" in group
    assert "No run matches" in asking.get("/past?branch=none").text
    assert "Runs 1 to 12 of 12" in past
    assert asking.get("/past?page=0").status_code == 400
    monkeypatch.setattr(pages, "PAGE", 5)
    second = asking.get("/past?decision=GO&page=2").text
    assert "Runs 6 to 10 of 12" in second
    assert re.findall(r'href="(/past\?[^"]*)" rel="(\w+)"', second) == [
        ("/past?decision=GO&amp;page=1", "prev"), ("/past?decision=GO&amp;page=3", "next"),
    ]  # fmt: skip
    assert 'value="GO" selected' in second
    assert folders[-1].name in asking.get("/fleet").text
    run = asking.get(f"/runs/{folders[0].name}/").text
    assert '<h1 id="decision">GO</h1>' in run
    assert asking.get(f"/runs/{folders[0].name}").headers["location"] == f"/runs/{folders[0].name}/"


def test_what_others_wrote_is_text_on_every_page(tmp_path: Path) -> None:
    folder = evil_run(tmp_path / "reports", 0)
    evil_run(tmp_path / "reports", 1)
    _, journal = make_running(tmp_path / "reports", title='"</title><script>alert(3)</script>"')
    asking = client(tmp_path / "reports")
    quoted = "x%22%3E%3Cscript%3Ealert(2)%3Cscript%3E"
    with journal:
        for path in ("/", "/past", "/fleet", "/compare", f"/runs/{quoted}/", f"/past?runbook={EVIL}", "/badge/x.svg"):
            answer = asking.get(path)
            assert answer.status_code == 200, path
            assert "<script>alert" not in answer.text, path
            assert "<img" not in answer.text, path
            assert "<script>" not in answer.text, path
        shown = asking.get(f"/runs/{quoted}/").text
        assert asking.get("/runs/y" + quoted[1:] + "/").status_code == 200
        assert "&lt;script&gt;alert(1)&lt;/script&gt;{{7*7}}" in shown, "as text"
        assert "a&lt;img src=x onerror=alert(1)&gt;.log" in shown
    assert folder.is_dir()
    metrics = asking.get("/metrics").text
    assert r'runbook="\"><script>' in metrics, "Prometheus' own escapes"


def test_an_address_leads_to_no_other_file(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    folder = make_run(reports, 0)
    make_run(tmp_path, 1).rename(tmp_path / "outside")
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe.log")
    asking = client(reports)
    for path in (
        "/runs/%2e%2e/",
        "/runs/..%2foutside/",
        "/runs/{run}/..%2f..%2fsecret.txt",
        "/runs/{run}/%2e%2e/%2e%2e/secret.txt",
        "/runs/{run}//etc/passwd",
        "/runs/{run}/link.txt",
        "/runs/{run}/folder",
        "/runs/{run}/pipe.log",
        "/runs/{run}/%00",
        "/runs/%00/",
        "/stop/..%2foutside",
        "/api/v1/runs/..%2foutside/result",
        "/api/v1/compare?a=../outside&b={run}",
        "/static/..%2f..%2fpyproject.toml",
        "/static/report.css",
    ):
        answer = asking.get(path.replace("{run}", folder.name))
        assert answer.status_code in (404, 409), path
        assert "secret" not in answer.text.replace("secret.txt", ""), path


def test_files_are_text_or_downloads_and_the_report_runs_our_script_alone(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "reports", 0)
    (folder / "report.html").write_text("<html><body class=x><script>alert(1)</script>It", encoding="utf-8")
    (folder / "other.html").write_text("<script>alert(1)</script>", encoding="utf-8")
    (folder / "model.pt").write_bytes(b"\0" * 600_000)
    asking = client(tmp_path / "reports")
    report = asking.get(f"/runs/{folder.name}/report.html")
    policy = report.headers["content-security-policy"]
    assert f"script-src '{policy_hash(report_script())}';" in policy
    assert "connect-src" not in policy
    assert "default-src 'none'" in policy
    assert report.text.startswith('<html><body class=x><nav class="service-bar"')
    assert asking.get(f"/runs/{folder.name}/result.json").headers["content-type"] == "text/plain; charset=utf-8"
    for name in ("other.html", "model.pt"):
        answer = asking.get(f"/runs/{folder.name}/{name}")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in answer.headers["content-security-policy"]
        assert answer.content == (folder / name).read_bytes()


def test_the_api_answers_by_the_models_that_it_describes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "reports", 0)
    make_run(tmp_path / "reports", 1, decision="NO_GO")
    asking = client(tmp_path / "reports")
    found = asking.get("/api/v1/runs?decision=GO&limit=5").json()
    assert (found["total"], [run["folder"] for run in found["runs"]]) == (1, [folder.name])
    assert asking.get(f"/api/v1/runs/{folder.name}").json()["decision"] == "GO"
    assert asking.get("/api/v1/running").json() == {"running": []}
    ValidationReport.model_validate(asking.get(f"/api/v1/runs/{folder.name}/result").json())
    for wrong in ("limit=0", "limit=x", "offset=-1", "limit=99999", "offset=99999999999999999999", "limit=²"):
        answer = asking.get(f"/api/v1/runs?{wrong}")
        assert (answer.status_code, list(answer.json())) == (400, ["error"])
    assert asking.get("/api/v1/compare").status_code == 400
    assert asking.get(f"/api/v1/compare?a={folder.name}&b=none").status_code == 404
    assert asking.get("/api/v1/none").json() == {"error": "Not Found"}
    described = asking.get("/api/v1/openapi.json").json()
    operations = {(path, method) for path, found in described["paths"].items() for method in found}
    assert operations == {(one.path, one.method) for one in ENDPOINTS}
    text = json.dumps(described)
    for name in {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in described["components"]["schemas"], name


def test_metrics_and_badge_show_the_latest_decision(tmp_path: Path) -> None:
    make_run(tmp_path / "reports", 0)
    make_run(tmp_path / "reports", 1, decision="NO_GO")
    asking = client(tmp_path / "reports")
    lines = asking.get("/metrics").text.splitlines()
    labels = 'host="host",machine="2 x NVIDIA H200, NVLink",runbook="smoke-cpu"'
    assert f'validator_decision{{decision="NO_GO",{labels}}} 1.0' in lines
    assert f'validator_decision{{decision="GO",{labels}}} 0.0' in lines
    badge = asking.get("/badge/smoke-cpu.svg")
    assert badge.headers["content-type"] == "image/svg+xml"
    assert "NO-GO" in badge.text
    assert "NO RUN" in asking.get("/badge/none.svg").text


def test_an_interrupted_run_replaces_no_decision(tmp_path: Path) -> None:
    make_run(tmp_path / "reports", 0)
    make_run(tmp_path / "reports", 1, decision="INCONCLUSIVE", exit_code=130)
    asking = client(tmp_path / "reports")
    lines = [line for line in asking.get("/metrics").text.splitlines() if line.startswith("validator_decision{")]
    assert [line.endswith(" 1.0") for line in lines] == ['decision="GO"' in line for line in lines]
    assert "INCONCLUSIVE" not in asking.get("/badge/smoke-cpu.svg").text
    assert "0001" not in asking.get("/fleet").text
    past = asking.get("/past").text
    assert "INTERRUPTED" in past
    assert "INCONCLUSIVE" not in past
    make_run(tmp_path / "reports", 2, decision="NO_GO", exit_code=130)
    again = client(tmp_path / "reports")
    assert "NO-GO" in again.get("/badge/smoke-cpu.svg").text, "what had failed by then fails after a resume, too"
