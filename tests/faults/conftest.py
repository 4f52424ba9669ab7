"""What tests of interrupted validations share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def quick_snapshot(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let preflight's `python -m torch.utils.collect_env` end at once.

    It takes seconds of a core at each start and each resumption of a validation whose trainer has no use for torch.
    """
    utils = tmp_path_factory.mktemp("torch") / "torch" / "utils"
    utils.mkdir(parents=True)
    for package in (utils.parent, utils):
        (package / "__init__.py").touch()
    (utils / "collect_env.py").write_text("print('Is debug build: False')\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(utils.parents[1]), prepend=os.pathsep)
