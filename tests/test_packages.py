"""What is in the two distributions that this repository builds, however they are built."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hatch_build import PROBE
from validator.plan.command import probe

pytest.importorskip("hatchling", reason="hatchling builds the wheels: pip install hatchling")

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
    *start, _ = probe(sys.executable, 0, str(tmp_path))
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
