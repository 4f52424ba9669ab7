from __future__ import annotations

import re

import pytest

from tests.validator.report.test_charts import contrast
from validator.startup import shipped


def colors(name: str) -> dict[str, str]:
    text = (shipped("templates") / name).read_text(encoding="utf-8")
    return dict(re.findall(r"--([a-z-]+):\s*(#[0-9a-f]{6})", text))


@pytest.mark.parametrize("theme", ["light.css", "dark.css"])
def test_text_has_enough_contrast_on_every_ground_it_stands_on(theme: str) -> None:
    found = colors(theme)
    grounds = ["page", "raised"]
    pairs = [(text, ground) for text in ("text", "muted", "link") for ground in grounds]
    pairs += [(tone, "page") for tone in ("good", "bad", "warn", "info")]
    pairs += [(tone, f"{tone}-tint") for tone in ("good", "bad", "warn", "info", "idle")]
    pairs += [(text, f"{tone}-tint") for text in ("text", "muted") for tone in ("good", "bad", "warn", "info")]
    pairs += [("text", "mark")]
    for text, ground in pairs:
        assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    assert contrast(found["focus"], found["page"]) >= 3


def test_both_themes_name_the_same_colors() -> None:
    assert colors("light.css").keys() == colors("dark.css").keys()
    used = set(re.findall(r"var\(--([a-z-]+)\)", (shipped("templates") / "report.css").read_text(encoding="utf-8")))
    assert used <= colors("light.css").keys()
