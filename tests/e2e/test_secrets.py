"""Credentials reach the trainer and nothing that is written: over twenty kinds are planted, and every file searched."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.folders import result_of, run_folder
from tests.processes import start_validator, wait_until

TRAINER = """
import argparse, base64, json, os, sys
from pathlib import Path
parser = argparse.ArgumentParser()
for name in ("steps", "out", "hub", "api-key", "data", "tokens", "word-of-mouth"):
    parser.add_argument("--" + name)
args = parser.parse_args()
assert args.api_key == "zq03-argument" and "zq01" in args.hub and os.environ["HF_TOKEN"] == "zq05-huggingface"
out = Path(args.out)
out.mkdir(parents=True, exist_ok=True)
rows = [f"{step},{2 - step / 100},0.1,100" for step in range(1, 51)]
(out / "training.csv").write_text("step,loss,lr,toks_per_s\\n" + "\\n".join(rows) + "\\n")
config = {"hub": args.hub, "api_key": args.api_key, "data": args.data, "tokens": args.tokens}
(out / ("checkpoint-" + args.api_key)).mkdir()
(out / ("checkpoint-" + args.api_key) / (os.environ["HF_TOKEN"] + ".txt")).write_text("1")
(out / "encoded.txt").write_text(base64.b64encode(b"me:" + os.environ["HF_TOKEN"].encode()).decode())
(out / "env.json").write_text(json.dumps({"schema_version": 1, "requested": config, "effective": config}))
sys.stderr.write("step 3\\n" + os.environ["PLAINLY"] + " and " + args.word_of_mouth + "\\n")
if os.environ.get("DIE"):
    sys.exit(f"RuntimeError: cannot log in with password=zq20-in-a-log at https://u:zq21-in-a-log@host/")
"""

RUNBOOK = """\
schema: 1
name: secretive
secrets: [PLAINLY, word-of-mouth]
trainer:
  command: ["{trainer}"]
  args:
    steps: "{{steps}}"
    out: "{{out}}"
    hub: "https://user:zq01-url-password@host/x?token=zq02-query"
    api-key: zq03-argument
    data: "s3://bucket/x?X-Amz-Signature=zq04-signed"
    tokens: 5000
    word-of-mouth: zq25-declared
  metrics: {{csv: training.csv, env: env.json}}
defaults:
  nproc: 0
  timeout: 60s
  warmup_steps: 5
  env:
    {{HF_TOKEN: zq05-huggingface, MY_PASSWORD: zq06-password, DB_DSN: "postgres://u:zq07-dsn@db/x", PLAIN: visible,
      PLAINLY: zq24-declared}}
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
    """Every line below the folder that holds a planted secret."""
    found = []
    for path in sorted(folder.rglob("*")):
        found += [f"name {path}"] if "zq" in path.name else []
        if path.is_file():
            lines = path.read_bytes().decode("utf-8", "replace").splitlines()
            found += [f"{path.name}: {line[max(0, line.find('zq') - 60) :][:120]}" for line in lines if "zq" in line]
    return found


def test_no_secret_is_written(cli, runbook: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workdir / "gate").touch()
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    done = cli("run", str(runbook), *OVERRIDES)
    folder = run_folder(workdir)
    assert _planted(folder) == []
    assert "zq" not in done.out + done.err
    encoded = (folder / "runs/train/r1/encoded.txt").read_text()
    assert "[redacted]" in encoded
    assert len(encoded) < 20, "what is left is what stands beside the secret"
    result = result_of(workdir)
    assert "[redacted].txt" in " ".join(one["path"] for one in result["artifacts"])
    statuses = {phase["id"]: phase["status"] for phase in result["phases"]}
    assert (statuses["shell"], statuses["words"], statuses["train"]) == ("PASS", "PASS", "PASS"), done.err
    assert result["phases"][2]["runs"][0]["requested"]["tokens"] == "5000", "what is no secret stays"
    assert "HF_TOKEN" not in result["recommended"]["env"], "sourcing it would take a user's own token away"
    assert "host" in result["phases"][3]["message"], "the log is quoted, without its secrets"
    again = cli("report", str(folder))
    assert again.rc == done.rc
    assert _planted(folder) == []
    assert {phase["id"]: phase["status"] for phase in result_of(workdir)["phases"]} == statuses


_B64, _HEX = "Ab9+/" * 3, "0123456789abcdef" * 2
INHERITED = {
    "AWS access key": ("AWS_ACCESS_KEY_ID", "AKIAZQ01XABCDEFGHIJK", "AKIAZQ01X"),
    "AWS secret key": ("AWS_SECRET_ACCESS_KEY", f"zq02x{_B64}", "zq02x"),
    "GitHub token, classic": ("GITHUB_TOKEN", "ghp_zq03xABCDEFGHIJKLMNOPQRSTUVWXYZ01", "zq03x"),
    "GitHub token, fine-grained": ("RELEASE_BOT", "github_pat_zq04x_ABCDEFGHIJKLMNOPQRSTUV", "zq04x"),
    "Hugging Face": ("HF_TOKEN", "hf_zq05xABCDEFGHIJKLMNOPQRSTUV", "zq05x"),
    "Weights & Biases": ("WANDB_API_KEY", _HEX + "feedface", "feedface"),
    "sk- key": ("OPENAI_API_KEY", "sk-proj-zq06xABCDEFGHIJKLMNOP", "zq06x"),
    "Slack bot": ("CHAT", "xoxb-123456789012-zq07xABCDEF", "zq07x"),
    "Google API key": ("MAPS", "AIzazq08x" + "A1" * 15, "zq08x"),
    "npm": ("NPM", "npm_zq09xABCDEFGHIJKLMNOPQRSTUVWXYZ0", "zq09x"),
    "Azure connection string": (
        "STORAGE",
        f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey=zq10x{_B64}==;EndpointSuffix=core.example",
        "zq10x",
    ),
    "database address": ("DATABASE_URL", "postgres://me:zq11xpass@db.example/x", "zq11x"),
    "JWT": ("SESSION", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ6cTEyeCJ9.zq12xsignature", "zq12x"),
    "private key": (
        "DEPLOY_PRIVATE_KEY",
        f"-----BEGIN PRIVATE KEY-----\nMIIEzq13x{_B64}{_B64}\n-----END PRIVATE KEY-----",
        "zq13x",
    ),
    "Kaggle": ("KAGGLE_KEY", "deadbeef" * 4, "deadbeef"),
    "NVIDIA NGC": ("REGISTRY", "nvapi-zq14xABCDEFGHIJKLMNOPQRSTUV", "zq14x"),
    "package index": ("PIP_INDEX_URL", "https://__token__:pypi-zq15xABCDEFGHIJKLMN@index.example/simple", "zq15x"),
    "Sentry": ("SENTRY_DSN", "https://zq16xabcdef@sentry.example/1", "zq16x"),
    "webhook": ("HOOK", "https://hooks.slack.com/services/T0/B0/zq17xABCDEFGH", "zq17x"),
    "signed address": ("DATA", "https://b.example/x?X-Amz-Credential=zq18xabc&X-Amz-Signature=zq19xdef", "zq18x"),
    "password": ("DB_PASSWORD", "zq20x correct horse", "zq20x"),
}
ON_THE_COMMAND_LINE = ("zq21x", "zq22x", "zq23x", "zq24x", "zq25x")
SPOKEN = {
    "netrc": "machine host.example login me password zq26xabc",
    "kaggle.json": '{"username": "me", "key": "' + "cafebabe" * 4 + '"}',
    "cookie": "Cookie: session_id=zq27xabc; path=/",
    "bearer header": "> authorization: Bearer zq28xabcdef",
    "credentials of a login": "curl -u me:zq29xabc https://host.example",
}
ECHO = """
import json, os, pathlib, sys
names = json.loads(os.environ["NAMES"])
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True, exist_ok=True)
said = [f"value {os.environ[name]} end" for name in names] + [f"{name}={os.environ[name]}" for name in names]
said += json.loads(os.environ["SAID"]) + sys.argv
for stream in (sys.stdout, sys.stderr):
    print("figure tokens: 42", *said, sep="\\n", file=stream)
(out / "notes.txt").write_text("\\n".join(said))
(out / "env.json").write_text(json.dumps({"schema_version": 1, "env": {name: os.environ[name] for name in names}}))
(out / "heartbeat_rank0.jsonl").write_text(json.dumps({"ts": 1.0, "rank": 0, "step": 1, "msg": said[0]}) + "\\n")
rows = [f"{step},{2 - step / 100},0.1,100" for step in range(1, 51)]
(out / "training.csv").write_text("step,loss,lr,toks_per_s\\n" + "\\n".join(rows) + "\\n")
sys.exit(os.environ[names[0]] if os.environ.get("DIE") else 0)
"""
ECHOED = """\
schema: 1
name: echo
hardware: {{gpus: 0, disk_free: 1 MiB}}
trainer:
  command: ["{trainer}"]
  args: {{steps: "{{steps}}", out: "{{out}}", api-key: zq21xargument, login: "https://me:zq22xuser@host.example"}}
defaults: {{nproc: 0, timeout: 60s, warmup_steps: 5}}
phases:
  - {{id: preflight, kind: preflight}}
  - id: shell
    kind: command
    run: "{python} {trainer} --out $PWD/own --password zq23xword --token=zq24xequals -H 'X-Api-Key: zq25xheader'"
    stdout: 'tokens: (?P<tokens>\\d+)'
    accept: [metrics.tokens == 42]
  - {{id: train, kind: train, steps: 50, accept: [loss.last < loss.first]}}
  - {{id: ranks, kind: train, nproc: 1, steps: 50, accept: [loss.last < loss.first]}}
  - {{id: die, kind: train, steps: 50, required: false, env: {{DIE: 1}}}}
"""


def _told(folder: Path, needles: list[str]) -> list[str]:
    """Which needles are in which files below a folder, whatever the files are."""
    texts = [(path, path.read_bytes().lower()) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [f"{path.name}: {one}" for path, text in texts for one in needles if one.lower().encode() in text]


def test_a_program_may_repeat_what_it_was_given(cli, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = workdir / "echo.py"
    trainer.write_text(ECHO, encoding="utf-8")
    runbook = workdir / "echo.yaml"
    runbook.write_text(ECHOED.format(trainer=trainer, python=sys.executable), encoding="utf-8")
    remote = "https://me:zq30xremote@git.example/x.git"
    for words in (["init", "-q"], ["remote", "add", "origin", remote]):
        subprocess.run(["git", *words], cwd=workdir, check=True)
    for name, value, _ in INHERITED.values():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NAMES", json.dumps([name for name, _, _ in INHERITED.values()]))
    monkeypatch.setenv("SAID", json.dumps(list(SPOKEN.values())))
    done = cli("run", str(runbook))
    statuses = {phase["id"]: phase["status"] for phase in result_of(workdir)["phases"]}
    expected = {"preflight": "PASS", "shell": "PASS", "train": "PASS", "ranks": "PASS", "die": "FAIL"}
    assert statuses == expected, done.err
    inherited = [needle for _, _, needle in INHERITED.values()]
    spoken = ["zq19x", "cafebabe", "zq26x", "zq27x", "zq28x", "zq29x"]
    needles = [*inherited, *spoken, *ON_THE_COMMAND_LINE, "zq30x"]
    assert len(set(needles)) == 33
    own = (workdir / "own" / "notes.txt").read_text()
    reached = [needle for needle in needles if needle in own]
    assert set(needles) - set(reached) == {"zq21x", "zq22x", "zq30x"}, "the others did reach the program in the shell"
    reports = workdir / "reports"
    assert _told(reports, needles) == []
    assert "value [redacted] end" in next(reports.glob("*/runs/train/r1/logs/stdout.log")).read_text()
    assert "value [redacted] end" in next(reports.glob("*/runs/ranks/r1/logs/ranks/**/stdout.log")).read_text()
    shared = cli("report", str(run_folder(workdir)), "--share")
    history = cli("history")
    assert (shared.rc, history.rc) == (done.rc, 0), shared.err + history.err
    assert _told(reports, needles) == []
    said = "".join(one.out + one.err for one in (done, shared, history)).lower()
    assert [needle for needle in needles if needle.lower() in said] == []


def test_the_plan_shows_no_secret(cli, runbook: Path) -> None:
    for arguments in (("plan", str(runbook)), ("plan", str(runbook), "--json")):
        answer = cli(*arguments, *OVERRIDES)
        assert answer.rc == 0
        assert "zq" not in answer.out
        assert "visible" in answer.out


def test_a_batch_file_that_holds_what_was_given_is_its_owners_alone(cli, workdir: Path) -> None:
    phase = "{id: nodes, kind: train, steps: 50}"
    text = f"schema: 1\nname: job\ncluster: {{engine: slurm, nodes: 2}}\ndefaults: {{nproc: 1}}\nphases: [{phase}]\n"
    (workdir / "job.yaml").write_text(text, encoding="utf-8")
    done = cli("submit", "job.yaml", "--set", "defaults.env.HF_TOKEN=zq31-batch")
    assert done.rc == 0, done.err
    file = workdir / "reports" / "job.sbatch"
    assert "zq31-batch" in file.read_text(), "the job needs it"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_resumed_validation_asks_for_what_is_not_stored(cli, runbook: Path, workdir: Path, tmp_path: Path) -> None:
    words = ("run", str(runbook), *OVERRIDES, "--only", "train", "--only", "last")
    own = {"XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    runner = start_validator(*words, cwd=workdir, env=own, start_new_session=True, **streams)
    last = "*/runs/last/r1/logs/stdout.log"
    wait_until(lambda: any((workdir / "reports").glob(last)), "the last phase")
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
