"""The Dockerfile's shape: what it installs, as whom it runs, and that its build gets the files that it needs."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch

import pytest

from tests.e2e.conftest import REPOSITORY

DOCKERFILE = REPOSITORY / ".ci/Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Instruction and its arguments, comments left out and continued lines joined."""
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def arguments(name: str) -> list[str]:
    return [rest for word, rest in instructions() if word == name]


def test_it_begins_from_a_python_that_validator_supports() -> None:
    assert [word for word, _ in instructions()[:2]] == ["ARG", "FROM"]
    (base,) = re.findall(r"^BASE=python:3\.(\d+)-slim$", arguments("ARG")[0])
    assert arguments("FROM") == ["${BASE}"]
    assert f"Python :: 3.{base}" in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")


def test_it_runs_validator_alone_and_not_as_root() -> None:
    words = [word for word, _ in instructions()]
    assert arguments("USER") == ["root", "validator"]
    assert "RUN" not in words[len(words) - words[::-1].index("USER") :], "nothing is installed as that user"
    assert json.loads(arguments("ENTRYPOINT")[0]) == ["validator"]
    assert json.loads(arguments("CMD")[0]) == ["--help"]
    assert 'validator = "validator.cli:main"' in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")


def test_it_installs_pinned_versions_and_ends_where_torch_came_along() -> None:
    (install,) = (one for one in arguments("RUN") if "pip install" in one)
    steps = [step.strip() for step in install.split("&&")]
    assert steps[0].startswith("--mount=type=bind,source=.,target=/src python3 -m venv /opt/validator")
    assert "--constraint /src/constraints.txt /src" in steps[1]
    assert "validator check smoke_cpu" in steps
    assert "find_spec('torch') is not None" in steps[-1]
    assert not arguments("COPY"), "sources would stay in a layer"
    assert not arguments("ADD")


def kept(path: str) -> bool:
    """Whether the build gets a file: the last pattern that matches it or a folder above it decides."""
    text = (REPOSITORY / ".ci/Dockerfile.dockerignore").read_text(encoding="utf-8")
    found = True
    parts = path.split("/")
    above = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    for pattern in (line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")):
        plain = pattern.removeprefix("!")
        if any(fnmatch(one, plain.replace("**/", "*")) for one in above):
            found = pattern.startswith("!")
    return found


@pytest.mark.parametrize(
    "path", ["pyproject.toml", "README.md", "constraints.txt", "validator/cli.py", "runbooks/smoke_cpu.yaml"]
)
def test_the_build_gets_what_it_needs(path: str) -> None:
    assert (REPOSITORY / path).exists()
    assert kept(path)


@pytest.mark.parametrize(
    "path", ["reports/RUN/result.json", ".git/config", ".env", "tests/conftest.py", "validator/__pycache__/cli.pyc"]
)
def test_the_build_gets_nothing_else(path: str) -> None:
    assert not kept(path)
