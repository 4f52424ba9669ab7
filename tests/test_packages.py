"""What is in the two distributions that this repository builds, however they are built."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from email import message_from_string
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from validator.model.plan import RunSpec
from validator.plan.launchers import own_probe
from validator.system.packages import lacking

PROBE = pytest.importorskip("hatch_build", reason="hatchling builds the wheels: pip install hatchling").PROBE

ROOT = Path(__file__).parent.parent
FOLDERS = {"validator": ROOT, "nsa": ROOT / "nsa"}
BUILD = "import sys; from hatchling import build; print(getattr(build, 'build_' + sys.argv[1])(sys.argv[2]))"


def built(what: str, source: Path, to: Path) -> Path:
    """A wheel, editable wheel or sdist of the project in `source`, by the build backend alone."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(to)], cwd=source, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return to / done.stdout.split()[-1]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The wheel of `validator` or of `nsa`, built from the repository."""
    made: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in made:
            made[name] = built("wheel", FOLDERS[name], tmp_path_factory.mktemp(name))
        return made[name]

    return build


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def described(wheel: Path, file: str) -> str:
    """A file of the wheel's `.dist-info`."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(f".dist-info/{file}"))
        return archive.read(name).decode()


def metadata(wheel: Path) -> Message:
    return message_from_string(described(wheel, "METADATA"))


def required(wheel: Path, extra: str = "") -> dict[str, Requirement]:
    """What is installed with the distribution, by name; `extra` adds its own."""
    found = [Requirement(line) for line in metadata(wheel).get_all("Requires-Dist") or ()]
    return {one.name.lower(): one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})}


def files(folder: str, *, but: str = "") -> set[str]:
    """The files of a folder that are not ignored, relative to the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in listed.stdout.splitlines() if name != but and (ROOT / name).exists()}


def test_validators_wheel_has_no_trainer_and_needs_no_torch(wheel: Callable[[str], Path]) -> None:
    made = wheel("validator")
    data = {f"validator/_data/{name}" for name in files("runbooks") | files("templates")}
    assert names(made) == files("validator") | data | {f"validator/_data/nsa/{name}" for name in PROBE}
    assert not {"torch", "triton", "scipy", "training-validator-nsa"} & required(made).keys()
    assert "validator = validator.cli:main" in described(made, "entry_points.txt")


def test_the_trainers_wheel_is_the_folder_nsa_alone(wheel: Callable[[str], Path]) -> None:
    made = wheel("nsa")
    assert names(made) == files("nsa", but="nsa/pyproject.toml")
    assert required(made).keys() == {"torch", "numpy", "pyyaml", "pytest"}
    assert {"datasets", "pyarrow", "tiktoken"} <= required(made, "data").keys()


def test_the_extra_brings_the_trainer_of_the_same_version(wheel: Callable[[str], Path]) -> None:
    trainer = metadata(wheel("nsa"))
    wanted = required(wheel("validator"), "trainer")[trainer["Name"]]
    assert str(wanted.specifier) == f"=={trainer['Version']}"
    assert metadata(wheel("validator"))["Version"] == trainer["Version"]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_from_the_source_distribution_is_the_same(
    name: str, wheel: Callable[[str], Path], tmp_path: Path
) -> None:
    source = built("sdist", FOLDERS[name], tmp_path)
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(tmp_path)
    again = built("wheel", tmp_path / source.name.removesuffix(".tar.gz"), tmp_path)
    assert names(again) == names(wheel(name))
    assert metadata(again).items() == metadata(wheel(name)).items()


def test_an_editable_install_puts_no_folder_on_the_path(tmp_path: Path) -> None:
    """The repository has a package `nsa`, and folders such as `tests` that Python takes for packages as well."""
    made = built("editable", ROOT, tmp_path)
    with zipfile.ZipFile(made) as archive:
        written = {name: archive.read(name).decode() for name in names(made)}
    assert not any(line.startswith("/") for text in written.values() for line in text.splitlines())
    mapped = [found for text in written.values() for found in re.findall(r"map_module\('(\w+)'", text)]
    assert mapped == ["validator"]


def test_the_probe_in_validators_wheel_is_whole(wheel: Callable[[str], Path], tmp_path: Path) -> None:
    """In a folder with a package `nsa` of the trainer's own, which must not be taken for it."""
    with zipfile.ZipFile(wheel("validator")) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "work" / "nsa").mkdir(parents=True)
    (tmp_path / "work" / "nsa" / "__init__.py").write_text("raise SystemExit('the package of the trainer')\n")
    *start, _ = own_probe(sys.executable, 0, str(tmp_path))
    sizes = ["--device", "cpu", "--gemm-size", "32", "--mib", "1", "--repeats", "1", "--out", "probe.json"]
    done = subprocess.run(
        [*start, str(tmp_path / "validator" / "_data" / "nsa"), *sizes],
        cwd=tmp_path / "work",
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "gemm_bf16" in (tmp_path / "work" / "probe.json").read_text(encoding="utf-8")


# validator installed from its wheel alone, with what it requires and nothing else.


def environment(folder: Path) -> Path:
    """An empty virtual environment; returns its folder of packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    return next(folder.glob("lib/python3*/site-packages"))


def link_requirements(wanted: Requirement, to: Path) -> None:
    """Put an installed distribution, and what it requires, into another environment."""
    found = distribution(wanted.name)
    tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
    if all((to / top).exists() for top in tops):
        return
    for top in tops:
        if not (to / top).exists():
            (to / top).symlink_to(str(found.locate_file(top)))
    for line in found.requires or ():
        inner = Requirement(line)
        if inner.marker is None or inner.marker.evaluate({"extra": ""}):
            link_requirements(inner, to)


@dataclass(frozen=True)
class Installed:
    """validator in an environment of its own, without torch, used from a folder."""

    python: Path
    folder: Path

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.python), "-m", "validator", *arguments],
            cwd=self.folder,
            env={**self.env, "NO_COLOR": "1", "XDG_RUNTIME_DIR": str(self.folder), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    @property
    def env(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="session")
def site(wheel: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed") / "venv"
    packages = environment(folder)
    with zipfile.ZipFile(wheel("validator")) as archive:
        archive.extractall(packages)
    for one in required(wheel("validator")).values():
        link_requirements(one, packages)
    return folder


@pytest.fixture
def installed(site: Path, tmp_path: Path) -> Installed:
    (tmp_path / "work").mkdir()
    return Installed(site / "bin" / "python", tmp_path / "work")


def own_trainer(folder: Path) -> Path:
    """A virtual environment whose package `nsa` is a trainer of somebody else; returns its Python."""
    package = environment(folder) / "nsa"
    package.mkdir()
    says = "import os, sys; print('package nsa of', __file__, sys.path, os.environ.get('PYTHONPATH'), flush=True)\n"
    (package / "__init__.py").write_text(says, encoding="utf-8")
    (package / "train.py").write_text((ROOT / "tests" / "contract" / "line_trainer.py").read_text(encoding="utf-8"))
    return folder / "bin" / "python"


OWN = """\
schema: 1
name: own
hardware: {{cpu_cores: 1}}
trainer:
  python: {python}
  command: [-m, nsa.train]
  args: {{steps: "{{steps}}", out: "{{out}}"}}
  metrics: {{csv: training.csv, heartbeat: "heartbeat_rank{{rank}}.jsonl"}}
defaults: {{nproc: 0, timeout: 60s, warmup_steps: 10}}
phases:
  - {{id: preflight, kind: preflight}}
  - {{id: baseline, kind: train, steps: 300, accept: [loss.last < loss.first]}}
"""


def test_a_trainer_in_an_environment_of_its_own_is_validated(installed: Installed, site: Path, tmp_path: Path) -> None:
    python = own_trainer(tmp_path / "theirs")
    (installed.folder / "own.yaml").write_text(OWN.format(python=str(python.parents[1])), encoding="utf-8")
    installed("check", "own.yaml")
    installed("run", "own.yaml")
    run = next(path for path in (installed.folder / "reports").iterdir() if path.is_dir())
    log = (run / "runs" / "baseline" / "r1" / "logs" / "stdout.log").read_text(encoding="utf-8")
    assert f"package nsa of {python.parents[1]}" in log
    assert str(site) not in log
    assert str(ROOT) not in log
    assert "<svg" in (run / "report.html").read_text(encoding="utf-8")
    installed("report", str(run))
    assert "GO" in installed("history").stdout


def test_init_writes_a_runbook_for_a_trainer_in_an_environment_of_its_own(installed: Installed, tmp_path: Path) -> None:
    python = own_trainer(installed.folder / "theirs")
    given = ("--steps", "100000", "--out", "o")
    made = json.loads(installed("init", "--json", "--", str(python), "-m", "nsa.train", *given).stdout)
    assert made["command"] == ["-m", "nsa.train", "--steps", "{steps}", "--out", "{out}"]
    assert made["metrics"]["csv"] == "training.csv"
    text = (installed.folder / made["runbook"]).read_text(encoding="utf-8")
    assert "\n  python: theirs\n" in text
    assert "\n  workdir: .\n" in text
    elsewhere = Installed(installed.python, tmp_path)
    elsewhere("check", "work/train.yaml")
    short = ("--set", "baseline.steps=300", "--only", "baseline")
    elsewhere("run", "work/train.yaml", *short, code=3)  # its bounds are open
    run = next(path for path in (tmp_path / "reports").iterdir() if path.is_dir())
    log = (run / "runs" / "baseline" / "r1" / "logs" / "stdout.log").read_text(encoding="utf-8")
    assert f"package nsa of {python.parents[1]}" in log
    assert str(ROOT) not in log


@pytest.mark.parametrize("name", ["torch", "nsa", "scipy"])
def test_what_is_not_required_is_not_there(installed: Installed, name: str) -> None:
    done = subprocess.run([installed.python, "-c", f"import {name}"], env=installed.env, cwd=installed.folder)
    assert done.returncode == 1


def test_a_bundled_runbook_without_the_bundled_trainer_says_what_to_type(installed: Installed) -> None:
    line = f'{installed.python} -m pip install "training-validator[trainer]"'
    installed("check", "smoke_cpu")
    installed("plan", "smoke_cpu")
    refused = installed("run", "smoke_cpu", code=4).stderr
    assert line in refused
    assert "no nsa and no torch" in refused
    assert not (installed.folder / "reports").exists()
    assert line in " ".join(installed("list").stdout.split())
    without = [one["name"] for one in json.loads(installed("list", "--json").stdout) if one["missing"] is None]
    assert without == ["acceptance", "burnin_24h"], "they run no trainer"
    examined = json.loads(installed("doctor", "--json", code=4).stdout)
    assert line in next(one["fix"] for one in examined["facts"] if one["name"] == "Bundled trainer")
    assert line in next(one["reasons"][0] for one in examined["runbooks"] if one["runbook"] == "smoke_cpu")


def test_torchrun_without_torch_is_no_verdict_on_the_machine(installed: Installed) -> None:
    (installed.folder / "own.yaml").write_text(
        "schema: 1\nname: own\ntrainer: {command: [train.py]}\nphases: [{id: a, kind: train, steps: 9}]\n"
    )
    refused = installed("run", "own.yaml", code=4).stderr
    assert "phase a of runbook own needs torch" in refused
    assert "trainer.python" in refused
    assert "probe: false" not in refused
    (installed.folder / "probes.yaml").write_text(
        "schema: 1\nname: probes\ntrainer: {command: [train.py]}\nphases: [{id: a, kind: preflight, probe: true}]\n"
    )
    assert "set probe: false in it" in installed("run", "probes.yaml", code=4).stderr


def test_another_package_of_the_name_is_not_taken_for_the_bundled_trainer(installed: Installed) -> None:
    (installed.folder / "nsa").mkdir()
    (installed.folder / "nsa" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (installed.folder / "nsa" / "train.py").touch()
    refused = installed("run", "smoke_cpu", code=4).stderr
    assert "another package of the name nsa" in refused
    assert str(installed.folder / "nsa" / "__init__.py") in refused


def run_of(*argv: str, cwd: Path | None = None) -> RunSpec:
    place = None if cwd is None else str(cwd)
    return RunSpec(
        id="a/r1",
        phase="a",
        kind="train",
        launcher="python",
        argv=argv,
        env={},
        cwd=place,
        out="runs/a/r1",
        timeout_s=9,
    )


def test_nothing_is_asked_of_a_trainer_that_is_somebody_elses(tmp_path: Path) -> None:
    python = str(own_trainer(tmp_path / "theirs"))
    assert lacking([run_of(python, "-m", "nsa.train", cwd=tmp_path)], runbook="own") is None, (
        "it may train without torch"
    )
    assert lacking([run_of("docker", "run", "image", "python", "-m", "nsa.train")], runbook="own") is None
    assert lacking([run_of(str(tmp_path / "python"), "-m", "pytest")], runbook="own") is None, "it gives no answer"
    missing = lacking([run_of(python, "-m", "pytest", "--pyargs", "tests")], runbook="own")
    assert missing is not None
    assert f"{python} -m pip install pytest" in missing


def test_a_namespace_package_of_the_name_is_another(tmp_path: Path) -> None:
    (tmp_path / "nsa").mkdir()
    python = environment(tmp_path / "venv").parents[2] / "bin" / "python"
    missing = lacking([run_of(str(python), "-m", "nsa.train", cwd=tmp_path)], runbook="own")
    assert missing is not None
    assert "nsa has no nsa.train" in missing
