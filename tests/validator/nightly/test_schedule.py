"""Unit files and crontab lines: right by the tools that read them, and nothing of anybody else's is touched."""

from __future__ import annotations

import stat
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.crontab import use_own_crontab
from validator.commands.nightly import command
from validator.nightly.schedule import (
    Cron,
    ScheduleError,
    Systemd,
    cron_line,
    holder,
    place,
    service,
    timer,
    unschedule,
)
from validator.nightly.settings import Nightly, NightlyError, at_the_same_time, changed_job, load, names, save


def job(**changes: Any) -> Nightly:
    given: dict[str, Any] = {
        "name": "ddp",
        "runbook": "ddp_2xa100",
        "at": "2:05",
        "out": "/data/reports",
        "state": "/data/state",
        "cwd": "/data/50% full",
        "python": "/opt/a venv/bin/python",
    }
    return Nightly(**{**given, **changes})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def crontab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use_own_crontab(tmp_path, monkeypatch)


def test_a_crontab_line_starts_the_job_at_its_time_on_its_days() -> None:
    assert cron_line(job()).startswith("5 2 * * * ")
    assert cron_line(job(days=("sun", "mon"))).startswith("5 2 * * 1,0 ")
    words = cron_line(job())
    assert f"cd {job().path.parent} && '/opt/a venv/bin/python' -m validator nightly run" in words
    assert words.endswith("# validator-nightly:ddp")


def test_another_job_at_the_same_time_is_named(home: Path) -> None:
    for name, at, days in (("same", "02:05", ()), ("later", "02:06", ()), ("weekend", "02:05", ("sat",))):
        save(job(name=name, at=at, days=days))
    (home / "config" / "validator" / "nightly" / "damaged.json").write_text("{}", encoding="utf-8")
    assert list(at_the_same_time(job())) == ["same", "weekend"]
    assert list(at_the_same_time(job(name="same", days=("mon",)))) == []
    assert list(at_the_same_time(job(days=("mon",)))) == ["same"]


def test_a_percent_sign_is_no_line_break_to_cron() -> None:
    assert "\\%" in cron_line(job(python="/opt/50%/python"))


@pytest.mark.parametrize("name", ["a\n* * * * * touch planted", "a\rb", "a\x00b", "a\x1b[2J"])
def test_a_path_with_a_line_break_gets_into_no_schedule(
    monkeypatch: pytest.MonkeyPatch, crontab: Path, name: str
) -> None:
    monkeypatch.setattr("validator.nightly.settings.config_dir", lambda: Path("/home") / name)
    for write in (cron_line, lambda job: service(job, system=False), Cron().install):
        with pytest.raises(ScheduleError, match="control character"):
            write(job())


def test_cron_keeps_every_other_line(crontab: Path) -> None:
    others = "MAILTO=me\n# validator-nightly:ddp is a comment of mine\n0 1 * * * backup # validator-nightly:ddp2\n"
    crontab.write_text(others, encoding="utf-8")
    cron = Cron()
    cron.install(job())
    cron.install(job(at="03:00"))
    lines = crontab.read_text(encoding="utf-8")
    assert lines.startswith(others)
    assert [line.split()[:2] for line in lines[len(others) :].splitlines()] == [["0", "3"]]
    assert cron.status("ddp") == "cron, at 0 3 * * * (minute hour day month weekday)"
    assert cron.remove("ddp")
    assert crontab.read_text(encoding="utf-8") == others
    assert not cron.remove("ddp")


@pytest.mark.parametrize(
    ("now", "days", "expected"),
    [
        ("2026-11-23T02:04:59", (), "2026-11-23T02:05"),
        ("2026-11-23T02:05:00", (), "2026-11-24T02:05"),
        ("2026-11-23T02:05:00", ("mon",), "2026-11-30T02:05"),
        ("2026-11-27T12:00:00", ("mon", "sun"), "2026-11-29T02:05"),
    ],
)
def test_the_next_start_is_the_next_time_on_one_of_its_days(now: str, days: tuple[str, ...], expected: str) -> None:
    assert job(days=days).next_start(now=datetime.fromisoformat(now)) == datetime.fromisoformat(expected)


def test_a_job_is_changed_paused_and_placed_where_it_was(crontab: Path) -> None:
    assert place(job())[1].startswith("crontab: 5 2 ")
    place(changed_job(load("ddp"), at="3:30", days=("sun",)))
    assert crontab.read_text(encoding="utf-8").startswith("30 3 * * 0 ")
    assert unschedule("ddp") == ("cron",)
    assert holder("ddp") is None
    assert load("ddp").at == "03:30", "its settings stay"
    with pytest.raises(NightlyError, match="--at '99:00'"):
        changed_job(load("ddp"), at="99:00")


def test_the_first_line_of_an_empty_crontab(crontab: Path) -> None:
    assert Cron().status("ddp") is None
    Cron().install(job())
    assert len(crontab.read_text(encoding="utf-8").splitlines()) == 1


def test_a_crontab_that_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crontab: Path) -> None:
    program = tmp_path / "tools" / "crontab"
    program.write_text("#!/bin/sh\n[ \"$1\" = -l ] || { echo 'you are not allowed' >&2; exit 1; }\n", encoding="utf-8")
    with pytest.raises(ScheduleError, match="you are not allowed"):
        Cron().install(job())


def test_the_units_say_what_a_nightly_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/data/50% full")
    text = service(job(), system=True)
    assert "KillMode=control-group" in text
    assert "After=nvidia-persistenced.service" in text
    assert "Type=oneshot" in text
    assert 'ExecStart="/opt/a venv/bin/python" "-m" "validator" "nightly" "run"' in text
    assert "WorkingDirectory=/data/50%% full/validator/nightly\n" in text, "a trainer's modules are not in the way"
    assert "network-online" not in service(job(), system=False), "a user's manager has no such unit"
    assert "OnCalendar=*-*-* 02:05:00" in timer(job())
    assert "OnCalendar=Mon,Sun *-*-* 02:05:00" in timer(job(days=("sun", "mon")))
    assert "Persistent=true" in timer(job())


def test_systemd_is_asked_to_load_enable_and_disable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def run(command: tuple[str, ...], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="Sun 2026-11-22 02:05:00 UTC\n", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    systemd = Systemd(system=False, folder=tmp_path / "units")
    systemd.install(job())
    assert asked == [
        ("systemctl", "--user", "daemon-reload"),
        ("systemctl", "--user", "enable", "--now", "validator-nightly-ddp.timer"),
    ]
    assert systemd.status("ddp") == "systemd, next Sun 2026-11-22 02:05:00 UTC"
    assert systemd.remove("ddp")
    assert list((tmp_path / "units").iterdir()) == []
    assert systemd.status("ddp") is None
    assert not systemd.remove("ddp")


def test_settings_are_for_their_owner_alone_and_come_back_whole() -> None:
    wanted = job(notify=("slack://a/b/c",), keep_count=3)
    path = save(wanted)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load("ddp") == wanted == load(str(path))
    assert names() == ("ddp",)


def test_no_address_reaches_unit_or_crontab() -> None:
    told = job(notify=("slack://secret-token",), command="curl secret-token")
    assert "secret-token" not in cron_line(told) + service(told, system=True) + timer(told)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"at": "25:00"}, "--at '25:00' is no time of day"),
        ({"days": ("someday",)}, "--on 'someday' is no day"),
        ({"name": "a b"}, "--name 'a b'"),
    ],
)
def test_a_job_that_cannot_be_names_option_and_value(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        job(**changes)


def test_a_job_that_is_not_there_names_those_that_are() -> None:
    save(job())
    with pytest.raises(NightlyError, match=r"other is no nightly job .* installed are: ddp"):
        load("other")


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ((), ("OnCalendar=*-*-* 02:00:00", "ExecStart=", "# for cron:\n0 2 * * * cd ")),
        (("--cron",), ("0 2 * * * cd ",)),
    ],
)
def test_a_schedule_is_printed_where_there_is_neither_systemd_nor_cron(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no program at all
    done = CliRunner().invoke(command, ["install", "smoke_cpu", "--at", "02:00", "--print", *flags])
    assert done.exit_code == 0, done.output
    assert all(part in done.output for part in parts)
    assert not (tmp_path / "config").exists(), "nothing is written"
