"""How a run starts: what it changes of its settings is said, what it cannot do is refused before the first row."""

from __future__ import annotations

import json
import os
import py_compile
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nsa.conftest import Train

ROOT = Path(__file__).parents[2]


def test_effective_configuration_says_what_was_changed(tmp_path: Path, train: Train, capsys: Any) -> None:
    train(tmp_path, "--steps", "2", "--prefill", "triton", "--warmup-steps", "50", "--global-batch-size", "8")
    env = json.loads((tmp_path / "env.json").read_text())
    requested, effective = env["requested"], env["effective"]
    assert (requested["prefill"], effective["prefill"]) == ("triton", "batched")
    assert (requested["accum"], effective["accum"]) == (1, 4)
    assert effective["vocab_size"] == 264
    said = capsys.readouterr().out
    assert "[nsa] prefill requested triton, effective batched" in said
    assert "warmup_steps=50 is not shorter than steps=2" in said
    assert set(env["notes"]) == {line for line in said.splitlines() if line.startswith(("[nsa]", "[optim]"))}


def test_a_single_process_says_what_of_ddp_it_leaves_out(tmp_path: Path, train: Train, capsys: Any) -> None:
    train(tmp_path, "--steps", "1", "--ddp-compress", "bf16", "--ddp-static-graph", "--ddp-find-unused")
    effective = json.loads((tmp_path / "env.json").read_text())["effective"]
    assert (effective["ddp_compress"], effective["ddp_static_graph"], effective["ddp_find_unused"]) == (
        "off",
        False,
        False,
    )
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[ddp]")]
    assert said == [
        "[ddp] gradient compression requested bf16, effective off: a single process reduces nothing",
        "[ddp] static_graph requested, effective off: no process group",
        "[ddp] find_unused requested, effective off: no process group",
    ]


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--global-batch-size", "3"], "global_batch_size=3 is not a multiple of batch_size=2 × 1 processes = 2"),
        (["--global-batch-size", "8", "--accum", "3"], "accum=3 contradicts global_batch_size=8, which needs accum=4"),
        (["--vocab-size", "100"], "vocab_size=100 is smaller than the 257 ids"),
    ],
)
def test_what_shows_only_at_start_is_bad_usage_too(
    tmp_path: Path, train: Train, capsys: Any, extra: list[str], said: str
) -> None:
    assert train(tmp_path, *extra) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "training.csv").exists()


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--tensorboard"], "tensorboard=true needs the tensorboard package"),
        (["--device", "cuda"], "device=cuda but torch sees no CUDA device"),
        (["--data", "local", "--data-path", "nowhere/at/all"], "data_path=nowhere/at/all: no file matches"),
    ],
)
def test_what_this_machine_lacks_is_said_without_a_traceback(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch, capsys: Any, extra: list[str], said: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert train(tmp_path, "--steps", "2", *extra) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "training.csv").exists()


def test_an_out_that_cannot_be_is_said(
    tmp_path: Path, train: Train, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert train(tmp_path / "file" / "below") == 2
    assert f"out={tmp_path / 'file' / 'below'} cannot be created: Not a directory" in capsys.readouterr().err
    monkeypatch.setattr("nsa.outdir.os.access", lambda path, mode: False)  # the superuser may write anywhere
    assert train(tmp_path / "folder") == 2
    assert "cannot be written to" in capsys.readouterr().err


def test_a_folder_with_another_runs_rows_is_refused(tmp_path: Path, train: Train, capsys: Any) -> None:
    assert train(tmp_path, "--steps", "2") == 0
    before = (tmp_path / "training.csv").read_bytes()
    assert train(tmp_path, "--steps", "2") == 2
    assert f"{tmp_path / 'training.csv'} holds another run's rows" in capsys.readouterr().err
    assert (tmp_path / "training.csv").read_bytes() == before


@pytest.mark.parametrize("ddp", [False, True], ids=["one process", "DDP"])
def test_a_start_that_compiles_nothing_imports_no_compiler(tmp_path: Path, tiny: list[str], ddp: bool) -> None:
    """torch's compiler takes longer to import than all of this package; its AdamW alone would ask for it, and DDP."""
    script = (
        "import sys; from nsa.train import main; sys.exit(main(sys.argv[1:]) or 10 * ('torch._dynamo' in sys.modules))"
    )
    settings = ["--out", str(tmp_path), "--steps", "2", "--save-final"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    world = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if ddp else {}
    done = subprocess.run(
        [sys.executable, "-c", script, *tiny, *settings], env=os.environ | world, timeout=120, check=False
    )
    assert done.returncode == 0
    assert json.loads((tmp_path / "env.json").read_text())["world_size"] == 1


def test_ddp_without_the_compiler_is_ddp(tmp_path: Path) -> None:
    """What is asked of the compiler beside the mode imports it; what was made before that trains as ever."""
    script = f"""
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from nsa.compiler import without_compiler
dist.init_process_group("gloo", init_method="file://{tmp_path / "store"}", rank=0, world_size=1)
with without_compiler():
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
ddp(torch.ones(1, 2)).sum().backward()
assert ddp.module.weight.grad is not None and "torch._dynamo" not in sys.modules
with without_compiler():
    assert torch._dynamo.is_compiling() is False
assert torch._dynamo is sys.modules["torch._dynamo"]
with without_compiler():
    assert torch._dynamo is sys.modules["torch._dynamo"]
DistributedDataParallel(torch.nn.Linear(2, 2))(torch.ones(1, 2)).sum().backward()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_ranks_that_do_not_find_each_other_are_said(
    tmp_path: Path, train: Train, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert train(tmp_path, "--steps", "2") == 2
    said = capsys.readouterr().err
    assert "rank 0 of WORLD_SIZE=2 found no process group (ddp_timeout_s=600)" in said
    assert "MASTER_ADDR expected, but not set; start all ranks by torchrun" in said
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert train(tmp_path, "--steps", "2", "--ddp-timeout-s", "1") == 2
    assert "rank 0 of WORLD_SIZE=2 found no process group (ddp_timeout_s=1)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("own", "setting", "kept"),
    [
        (False, {"PYTHONDONTWRITEBYTECODE": "1"}, True),
        (True, {"PYTHONDONTWRITEBYTECODE": "1"}, False),
        (False, {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "mine"}, False),
        (False, {}, False),
    ],
    ids=["an image without", "torch has its own", "the user's cache", "Python may write"],
)
def test_bytecode_is_kept_where_torch_has_none(tmp_path: Path, own: bool, setting: dict[str, str], kept: bool) -> None:
    torch = tmp_path / "site" / "torch" / "__init__.py"
    torch.parent.mkdir(parents=True)
    torch.write_text("word = 1\n")
    if own:
        py_compile.compile(str(torch))
    before = set(torch.parent.rglob("*.pyc"))
    env = os.environ | setting | {"PYTHONPATH": f"{torch.parents[1]}:{ROOT}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    code = "from nsa.bytecode import keep_bytecode; keep_bytecode(); import torch"
    subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, check=True)
    cached = list((tmp_path / "cache" / "nsa" / "bytecode").rglob("site/torch/*.pyc"))
    assert bool(cached) == kept
    written_beside = set(torch.parent.rglob("*.pyc")) - before
    assert bool(written_beside) == (not setting), "only what Python itself may write"
