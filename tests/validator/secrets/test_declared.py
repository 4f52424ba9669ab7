"""A secret by its value: under an ordinary name, as a part of another value, and where it must stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from validator.errors import FolderError
from validator.kinds.registry import load
from validator.pipeline.resume_state import clean_loaded, with_secrets
from validator.plan import first_plan, make_plan
from validator.runbook.load import LoadedRunbook
from validator.runs.folder import RunFolder
from validator.runs.journal import Journal
from validator.secrets.declared import declare_secrets_of
from validator.secrets.masking import Mask, clean_plan
from validator.secrets.redact import declare_secrets, redact, redact_output

SECRET = "pwd-Zx81kQ77vv"
BOOK = """\
schema: 1
name: leaky
description: it uses pwd-Zx81kQ77vv
trainer:
  command: [train.py, --dsn=x-pwd-Zx81kQ77vv-y]
  env_file: [some.env]
  trial_args: {{token: trial-secret-1}}
  metrics: {{stdout: 'step {{step}} loss {{loss}}'}}
defaults: {{nproc: 0, env: {{INNER: pwd-Zx81kQ77vv, URL: "http://h/?x=pwd-Zx81kQ77vv"}}}}
phases:
  - {{id: {phase}, kind: train, steps: 60, args: {{place: /data/pwd-Zx81kQ77vv/x}}, accept: [loss.last < loss.first]}}
  - {{id: shell, kind: command, run: "echo pwd-Zx81kQ77vv {{{{brace-}}}}-secret"}}
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test declares is no secret of the next one."""
    yield
    declare_secrets(())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.env").write_text(f"DB_PASSWORD={SECRET}\nOTHER_PASSWORD={{brace-}}-secret\nLEAK={SECRET}\n")
    return tmp_path


def read(folder: Path, text: str = "", *, phase: str = "train", overrides: tuple[str, ...] = ()) -> LoadedRunbook:
    (folder / "book.yaml").write_text(text or BOOK.format(phase=phase))
    return load(folder / "book.yaml", overrides=overrides)


def stored(loaded: LoadedRunbook, folder: Path) -> RunFolder:
    clean = clean_loaded(loaded)
    return RunFolder.create(clean, parent=folder / "reports", python="python", only=(), skip=())


def written(made: RunFolder) -> str:
    return "".join(path.read_text() for path in made.root.iterdir())


def test_a_value_is_withheld_wherever_a_run_is_described(folder: Path) -> None:
    loaded = read(folder, overrides=(f"train.env.GIVEN={SECRET}",))
    plan = clean_plan(first_plan(loaded.runbook)).model_dump_json()
    made = stored(loaded, folder)
    with Journal.open(made.root / "journal.jsonl", redact=redact) as journal:
        journal.append(
            "noted", text=f"postgres-{SECRET}", quoted="base64 cHdkLVp4ODFrUTc3dnY=", shown="{brace-}-secret"
        )
    for text in (plan, written(made)):
        assert "Zx81" not in text
        assert "cHdkLVp4ODFrUTc3" not in text
        assert "brace-" not in text
        assert "trial-secret" not in text
    assert "/data/[redacted]/x" in plan, "what is around it stays"
    assert Mask().block(f"it says {SECRET}\n".encode()) == b"it says [redacted]\n"
    assert redact_output(f"it says {SECRET}") == "it says [redacted]"


def test_a_secret_of_the_shell_alone_is_withheld(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "some.env").write_text(f"LEAK={SECRET}\n")
    loaded = read(folder)
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    assert "Zx81" not in written(stored(loaded, folder))


def test_what_is_judged_stays_whole(folder: Path) -> None:
    (folder / "some.env").write_text("A_SECRET=training\nB_SECRET=loss.first\nC_SECRET=interrupted\n")
    declare_secrets_of(read(folder, phase="training").runbook)
    for text in ("training/r1", "loss.last < loss.first", "interrupted"):
        assert redact(text) == text


def test_a_resumed_validation_has_its_values_again_and_withholds_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "some.env").write_text(f"LEAK={SECRET}\n")
    loaded = read(folder)
    with monkeypatch.context() as shell:
        shell.setenv("DB_PASSWORD", SECRET)
        made = stored(loaded, folder)
    declare_secrets(())
    again = with_secrets(made, ())
    assert again == loaded.runbook
    assert "Zx81" not in clean_plan(make_plan(again, run_dir=folder)).model_dump_json()


def test_a_runbook_that_changed_beside_its_secrets_is_refused(folder: Path) -> None:
    made = stored(read(folder), folder)
    read(folder, BOOK.format(phase="train").replace("/data/", "/other/"))
    with pytest.raises(FolderError, match="has changed since"):
        with_secrets(made, ())
