"""Credentials reach the trainer and nothing that is written: twenty-three are planted, and the folder searched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.folders import result_of, run_folder

TRAINER = """
import argparse, json, os, sys
from pathlib import Path
parser = argparse.ArgumentParser()
for name in ("steps", "out", "hub", "api-key", "data", "tokens"):
    parser.add_argument("--" + name)
args = parser.parse_args()
assert args.api_key == "zq03-argument" and "zq01" in args.hub and os.environ["HF_TOKEN"] == "zq05-huggingface"
out = Path(args.out)
out.mkdir(parents=True, exist_ok=True)
rows = [f"{step},{2 - step / 100},0.1,100" for step in range(1, 51)]
(out / "training.csv").write_text("step,loss,lr,toks_per_s\\n" + "\\n".join(rows) + "\\n")
config = {"hub": args.hub, "api_key": args.api_key, "data": args.data, "tokens": args.tokens}
(out / "env.json").write_text(json.dumps({"schema_version": 1, "requested": config, "effective": config}))
sys.stderr.write("step 3\\n")
if os.environ.get("DIE"):
    sys.exit(f"RuntimeError: cannot log in with password=zq20-in-a-log at https://u:zq21-in-a-log@host/")
"""

RUNBOOK = """\
schema: 1
name: secretive
trainer:
  command: ["{trainer}"]
  args:
    steps: "{{steps}}"
    out: "{{out}}"
    hub: "https://user:zq01-url-password@host/x?token=zq02-query"
    api-key: zq03-argument
    data: "s3://bucket/x?X-Amz-Signature=zq04-signed"
    tokens: 5000
  metrics: {{csv: training.csv, env: env.json}}
defaults:
  nproc: 0
  timeout: 60s
  warmup_steps: 5
  env: {{HF_TOKEN: zq05-huggingface, MY_PASSWORD: zq06-password, DB_DSN: "postgres://u:zq07-dsn@db/x", PLAIN: visible}}
phases:
  - id: shell
    kind: command
    run: "true --token zq08-flag -H 'Authorization: Bearer zq09bearer1234' --password=zq10-equals; echo tokens=42"
    stdout: 'tokens=(?P<tokens>\\d+)'
    accept: [metrics.tokens == 42]
  - id: words
    kind: command
    run: ["true", --secret, zq11-word, "api_key=zq12-word"]
    env: {{AWS_SECRET_ACCESS_KEY: zq13-aws}}
  - {{id: train, kind: train, steps: 50, env: {{SIGNING_KEY: zq14-phase}}, accept: [loss.last < loss.first]}}
  - {{id: die, kind: train, steps: 50, required: false, env: {{DIE: 1}}}}
  - id: last
    kind: command
    run: "test -e {gate} || sleep 60"
"""

ENVIRONMENT = {
    "WANDB_API_KEY": "zq15-wandb",
    "NCCL_AUTH_TOKEN": "zq16-kept-prefix",
    "HF_HUB_URL": "https://zq17-token@hub/",
    "TORCH_SESSION_COOKIE": "zq18-cookie",
    "CUDA_LICENSE": "hf_zq19abcdefghijklmnopqrstuv",
}
OVERRIDES = ("--set", "defaults.env.CLI_SECRET=zq22-override", "--set", "trainer.args.data=s3://b/x?sig=zq23-override")


@pytest.fixture
def runbook(workdir: Path) -> Path:
    trainer = workdir / "trainer.py"
    trainer.write_text(TRAINER, encoding="utf-8")
    path = workdir / "secretive.yaml"
    path.write_text(RUNBOOK.format(trainer=trainer, gate=workdir / "gate"), encoding="utf-8")
    return path


def _planted(folder: Path) -> list[str]:
    """Every line below the folder that holds a planted secret, but for the logs of the trainer itself."""
    found = []
    for path in sorted(folder.rglob("*")):
        own = path.relative_to(folder).parts[:1] == ("runs",) and path.name in ("stderr.log", "env.json")
        if path.is_file() and not own:
            lines = path.read_bytes().decode("utf-8", "replace").splitlines()
            found += [f"{path.name}: {line[max(0, line.find('zq') - 60) :][:120]}" for line in lines if "zq" in line]
    return found


def test_no_secret_is_written(cli, runbook: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workdir / "gate").touch()
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, "-m", "validator", "run", str(runbook), *OVERRIDES],
        cwd=workdir,
        env={**os.environ, "XDG_RUNTIME_DIR": str(workdir), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    folder = run_folder(workdir)
    assert _planted(folder) == []
    assert "zq" not in done.stdout + done.stderr
    result = result_of(workdir)
    statuses = {phase["id"]: phase["status"] for phase in result["phases"]}
    assert (statuses["shell"], statuses["words"], statuses["train"]) == ("PASS", "PASS", "PASS"), done.stderr
    assert result["phases"][2]["runs"][0]["requested"]["tokens"] == "5000", "what is no secret stays"
    assert "HF_TOKEN" not in result["recommended"]["env"], "sourcing it would take a user's own token away"
    assert "host" in result["phases"][3]["message"], "the log is quoted, without its secrets"
    again = cli("report", str(folder))
    assert again.rc == done.returncode
    assert _planted(folder) == []
    assert {phase["id"]: phase["status"] for phase in result_of(workdir)["phases"]} == statuses


def test_the_plan_shows_no_secret(cli, runbook: Path) -> None:
    for arguments in (("plan", str(runbook)), ("plan", str(runbook), "--json")):
        answer = cli(*arguments, *OVERRIDES)
        assert answer.rc == 0
        assert "zq" not in answer.out
        assert "visible" in answer.out


def test_a_resumed_validation_asks_for_what_is_not_stored(cli, runbook: Path, workdir: Path, tmp_path: Path) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-m", "validator", "run", str(runbook), *OVERRIDES, "--only", "train", "--only", "last"],
        cwd=workdir,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "runtime")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not any((workdir / "reports").glob("*/runs/last/r1/logs/stdout.log")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    (workdir / "gate").touch()
    folder = run_folder(workdir)
    refused = cli("run", "--resume", str(folder))
    assert refused.rc == 2
    assert "--set defaults.env.CLI_SECRET=VALUE" in refused.err
    strange = cli("run", "--resume", str(folder), *OVERRIDES, "--set", "train.steps=3")
    assert strange.rc == 2
    assert "train.steps" in strange.err
    done = cli("run", "--resume", str(folder), *OVERRIDES)
    statuses = {phase["id"]: phase["status"] for phase in result_of(workdir)["phases"]}
    assert (done.rc, statuses["train"], statuses["last"]) == (3, "PASS", "PASS"), done.err
    assert _planted(folder) == []
    header = json.loads((folder / "run.json").read_text())
    assert header["runbook"]["trainer"]["args"]["api-key"] == "[redacted]"
