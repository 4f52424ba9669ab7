from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.validator.report import pieces, samples
from tests.validator.report.pages import parse
from validator.model.verdict import Artifact, Evidence, ValidationReport
from validator.report import html
from validator.report import html as templates
from validator.report.build_runs import config_table
from validator.report.html import render_html
from validator.report.specs import ChartData
from validator.report.timeline import MARKS

DECISIONS = {"go": "GO", "no_go": "NO-GO", "inconclusive": "INCONCLUSIVE", "in_progress": "IN PROGRESS"}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Every sample rendered once, with its charts."""
    reports = {name: getattr(samples, name)() for name in (*DECISIONS, "hostile")}
    return {name: render_html(report, samples.charts(report)) for name, report in reports.items()}


@pytest.mark.parametrize(("name", "word"), DECISIONS.items())
def test_the_banner_says_the_decision_in_a_word_a_shape_and_a_sentence(
    pages: dict[str, str], name: str, word: str
) -> None:
    root = parse(pages[name])
    banner = root.all("section", klass="banner")[0]
    assert banner.all("h1")[0].text == word
    assert getattr(samples, name)().why in banner.text
    assert len(banner.all("svg", klass="icon")) == 1
    assert root.all("title")[0].text.startswith(word)


def test_what_is_still_to_come_is_pending_and_not_a_failure_to_run(pages: dict[str, str]) -> None:
    root = parse(pages["in_progress"])
    assert "PENDING 1" in root.all("p", klass="counts")[0].text
    assert "PENDING" in root.all("section", klass="phase")[-1].all("h3")[0].text
    assert "PENDING" not in parse(pages["no_go"]).text


def test_each_decision_has_an_icon_of_its_own(pages: dict[str, str]) -> None:
    icons = {re.search(r'<svg class="icon".*?</svg>', pages[name], re.S)[0] for name in DECISIONS}  # type: ignore[index]
    assert len(icons) == len(DECISIONS)


def test_the_order_of_the_report(pages: dict[str, str]) -> None:
    headings = [h.attributes.get("id") for h in parse(pages["no_go"]).all("h2")]
    first, verdicts = ["values", "open", "about"], ["criteria", "findings", "recommended"]
    assert headings == [*first, *verdicts, "timeline", "phases", "since", "environment", "artifacts", "reading"]


def test_a_criterion_shows_observed_interval_bound_margin_and_evidence(pages: dict[str, str]) -> None:
    table = parse(pages["no_go"]).all("table", klass="criteria")[0]
    row = next(row for row in table.all("tr") if "toks_per_s.mean >= 39000" in row.text)
    cells = [cell.text for cell in row.all("td")]
    assert cells == ["FAIL", "yes", "12,840 tok/s", "[12,773, 12,907]", "39,000 tok/s", "-67.1 %"]
    why = next(row for row in table.all("tr", klass="why") if "whole interval lies below" in row.text)
    assert why.all("a")[0].attributes["href"] == "runs/baseline/r1/training.csv"


def test_signs_that_fonts_may_lack_are_drawn(pages: dict[str, str]) -> None:
    assert not set(MARKS) & set("".join(pages.values()))
    for name, path in (("go", MARKS["✓"]), ("no_go", MARKS["✕"])):
        assert f'<path d="{path}"/></svg></span>' in pages[name]


def test_vetoes_come_first_and_every_finding_says_what_to_do(pages: dict[str, str]) -> None:
    findings = parse(pages["no_go"]).all("article", klass="finding")
    assert [finding.all("code")[0].text for finding in findings] == ["config-ignored", "oom"]
    assert all("Next step:" in finding.text for finding in findings)
    assert "VETO" in findings[0].text


def test_settings_that_ran_otherwise_are_marked_and_unasked_ones_are_not(pages: dict[str, str]) -> None:
    root = parse(pages["no_go"])
    differing = [row.all("th")[0].text for row in root.all("tr", klass="differs")]
    assert differing == ["seq_len", "dtype"]
    unasked = next(row for row in root.all("tr") if row.text.startswith("n_layers"))
    assert "not requested" in unasked.text
    same = next(row for row in root.all("tr") if [c.text for c in row.children][:3] == ["steps", "300", "300"])
    assert same.all("td")[-1].text == "yes", "a flag's text and its number are the same setting"


def test_the_page_s_marks_agree_with_the_judgement() -> None:
    asked = {"seq_len": 512, "ffn_dim": None, "prefill": "auto", "lr": "3e-4", "tie": "on", "out": "runs/a", "lost": 1}
    ran = {"seq_len": 128, "ffn_dim": 256, "prefill": "batched", "lr": 3e-4, "tie": True, "out": "/x/runs/a"}
    rows = {row.key: row.verdict for row in config_table(asked, ran).rows}
    assert rows == {
        "seq_len": "differs",
        "ffn_dim": "left to the trainer",
        "prefill": "left to the trainer",
        "lr": "yes",
        "tie": "yes",
        "out": "yes",
        "lost": "not recorded",
    }


def test_the_machine_is_named_at_the_top(pages: dict[str, str]) -> None:
    facts = {div.all("dt")[0].text: div.all("dd")[0].text for div in parse(pages["go"]).all("dl")[0].all("div")}
    assert facts["Machine"] == "node7: 2 × NVIDIA A100 80GB PCIe; AMD EPYC 7B13, 2 cores"
    assert facts["Duration"] == "8 min 51 s"


def test_evidence_is_shown_once(pages: dict[str, str]) -> None:
    evidence = (Evidence(path="a.csv", text="n = 40"), Evidence(path="a.csv", text="n = 40"))
    phase = pieces.baseline(criteria=(pieces.verdict("b.1", "loss.last < 3", evidence=evidence),))
    report = samples.go().model_copy(update={"phases": (phase,)})
    assert parse(render_html(report, ChartData())).text.count("n = 40") == 1


def test_the_exact_command_can_be_pasted(pages: dict[str, str]) -> None:
    codes = parse(pages["go"]).all("code")
    code = next(c for c in codes if c.text.startswith("OMP_NUM_THREADS=1"))
    show = f"{sys.executable} -c 'import sys, os; print(os.environ[\"OMP_NUM_THREADS\"], sys.argv[-1])' "
    line = "".join(code.parts).replace("python ", show)
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert ran.stdout == "1 /data/a folder\n"


def test_every_chart_has_a_heading_a_sentence_and_a_table(pages: dict[str, str]) -> None:
    figures = parse(pages["go"]).all("figure", klass="chart")
    assert figures
    ids = {element.attributes.get("id") for element in parse(pages["go"]).all()}
    for figure in figures:
        assert (figure.all("h3") + figure.all("h4"))[0].text
        assert figure.all("svg")[0].attributes["aria-hidden"] == "true"
        assert len(figure.all("figcaption")[0].text) > 30
        assert figure.all("table")[0].all("tbody")[0].all("tr")
        assert figure.attributes["aria-labelledby"] in ids
        assert figure.attributes["aria-describedby"] in ids


def test_nothing_is_fetched_and_nothing_runs_but_the_page_s_own_script(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        root = parse(page)
        fetched = [
            e
            for e in root.all()
            if e.tag in ("img", "iframe", "object", "embed", "link", "audio", "video", "base", "form")
        ]
        assert not fetched, name
        assert not [e for e in root.all() if any(key.startswith("on") for key in e.attributes)], name
        assert not [e for e in root.all() if "style" in e.attributes], "the policy forbids inline style attributes"
        assert not [e for e in root.all() if "src" in e.attributes or "xlink:href" in e.attributes], name
        assert len(root.all("script")) == 1
        assert len(root.all("style")) == 1
        assert "url(http" not in page
        assert "@import" not in page


def test_the_policy_allows_exactly_the_inlined_style_and_script(pages: dict[str, str]) -> None:
    page = pages["go"]
    policy = next(m for m in parse(page).all("meta") if "http-equiv" in m.attributes).attributes["content"]
    assert "default-src 'none'" in policy
    for tag in ("style", "script"):
        inlined = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(inlined[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_links_lead_into_the_page_or_into_the_run_folder_only(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        root = parse(page)
        ids = {element.attributes["id"] for element in root.all() if "id" in element.attributes}
        for a in root.all("a"):
            href = a.attributes["href"]
            if href.startswith("#"):
                assert href[1:] in ids, (name, href)
            else:
                assert not re.match(r"(?i)[a-z][a-z0-9+.-]*:|/|\\|~", href), (name, href)
                assert ".." not in href.split("/"), (name, href)


def test_ids_are_unique(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        counts = Counter(e.attributes["id"] for e in parse(page).all() if "id" in e.attributes)
        assert not [key for key, count in counts.items() if count > 1], name


def test_hostile_text_stays_text(pages: dict[str, str]) -> None:
    page = pages["hostile"]
    root = parse(page)
    assert "<script>alert(1)</script>" in root.all("main")[0].text
    assert "49" not in [td.text for td in root.all("td")]
    assert "{{ 7*7 }}" in root.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]", page)
    page.encode("utf-8")


def test_headings_descend_without_gaps(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        levels = [int(e.tag[1]) for e in parse(page).all() if re.fullmatch(r"h[1-6]", e.tag)]
        assert levels[0] == 1, name
        assert levels.count(1) == 1, name
        assert all(after <= before + 1 for before, after in pairwise(levels)), (name, levels)


def test_landmarks_tables_and_keyboard(pages: dict[str, str]) -> None:
    root = parse(pages["no_go"])
    assert len(root.all("main")) == 1
    assert root.all("nav")[0].attributes["aria-label"]
    assert root.all("html")[0].attributes["lang"] == "en"
    assert root.all("a")[0].attributes["href"] == "#criteria", "the first stop of the keyboard skips the navigation"
    for table in root.all("table"):
        assert table.all("caption")[0].text
        assert all(th.attributes.get("scope") for th in table.all("th"))
    names = [section.attributes["aria-labelledby"] for section in root.all("section")]
    assert len(set(names)) == len(names)
    headings = {h.attributes["id"]: h.text for h in root.all() if h.tag in ("h1", "h2", "h3") and "id" in h.attributes}
    boxes = [box.attributes["aria-label"] for box in root.all(role="region")]
    assert not set(boxes) & {headings[name] for name in names}, "two landmarks of one name cannot be told apart"
    for box in root.all("div", klass="scroll"):
        assert box.attributes["tabindex"] == "0"
        assert box.attributes["aria-label"]


def test_a_report_without_runs_checks_or_environment(pages: dict[str, str]) -> None:
    report = samples.in_progress().model_copy(update={"phases": (), "environment": {}, "findings": ()})
    root = parse(render_html(report, ChartData()))
    assert "No snapshot of the machine was taken." in root.text
    assert "Required criteria: none" in root.text


def test_long_series_many_runs_and_many_files_stay_below_the_limit() -> None:
    report = samples.go()
    base = report.phases[2]
    phases = tuple(base.model_copy(update={"id": f"p{i}", "runs": (pieces.run_report(f"p{i}"),)}) for i in range(40))
    files = tuple(Artifact(path=f"runs/x/file{i}.json", bytes=i, sha256="0" * 64) for i in range(5000))
    big: ValidationReport = report.model_copy(update={"phases": phases, "artifacts": files})
    page = render_html(big, samples.charts(big, steps=600))
    assert len(page.encode()) <= 1.5e6
    assert "4,600 more files listed in result.json." in parse(page).text


def test_a_cache_that_cannot_be_used_costs_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from jinja2 import FileSystemBytecodeCache

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    wanted = render_html(samples.trivial(1), ChartData())
    for broken in ("load_bytecode", "dump_bytecode", "_get_default_cache_dir"):
        templates.environment.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(FileSystemBytecodeCache, broken, full)
            assert render_html(samples.trivial(1), ChartData()) == wanted
    templates.environment.cache_clear()


def test_trivial_phases_need_no_chart_renderer_and_no_numbers_library() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from tests.validator.report import samples as s;"
        "from validator.report.html import render_html; from validator.report.specs import ChartData;"
        "page = render_html(s.trivial(10), ChartData()); assert page.count('step_9') > 3;"
        "print([m for m in ('vl_convert', 'numpy', 'scipy', 'rich', 'psutil') if m in sys.modules])"
    )
    root = str(Path(__file__).parents[3])
    ran = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_page_without_room_leaves_out_charts_before_the_details_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    report = samples.go()
    monkeypatch.setattr(html, "MAX_DRAWN", 30_000)
    whole = render_html(report, samples.charts(report))
    assert "Not drawn, to keep the report small" in whole
    monkeypatch.setattr(html, "MAX_BYTES", len(whole.encode()) - 1)
    root = parse(render_html(report, samples.charts(report)))
    assert "more charts are left out to keep this report small" in root.text
    assert all(figure.all("svg") for figure in root.all("figure", klass="chart"))
    assert len(root.all("details", klass="run")) == len(parse(whole).all("details", klass="run"))


def test_names_in_a_sentence_are_set_as_code_and_nothing_else_becomes_markup() -> None:
    made = templates.environment().from_string("{{ text|sentence }}")
    assert made.render(text="ask `validator compare` <b>") == "ask <code>validator compare</code> &lt;b&gt;"
    assert made.render(text="`<script>x</script>`") == "<code>&lt;script&gt;x&lt;/script&gt;</code>"
    assert made.render(text="one ` alone, and\n`over\nlines`") == "one ` alone, and\n`over\nlines`"
