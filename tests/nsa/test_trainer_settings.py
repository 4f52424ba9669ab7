"""A setting that is taken is a setting that acts: each one is followed to the thing it names."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import nsa.assemble
import nsa.parallel
from nsa.assemble import Run, open_run
from nsa.attention import spans
from nsa.config import ConfigError, DdpConfig, field_specs
from nsa.data import open_tokenizer
from nsa.effective import Effective, settle_config
from nsa.model import Block, LanguageModel
from nsa.optim import learning_rate
from nsa.parallel import ReduceHook, World, wrap_ddp
from nsa.resolve import resolve
from tests.nsa.conftest import TINY, Rows, Train
from tests.nsa.steps import at_step

pytestmark = pytest.mark.usefixtures("one_thread")


def seen(out: Path, settings: list[str], look: Callable[[Run], Any]) -> Any:
    """What `look` finds in a run of these settings that is open and has not begun."""
    with open_run(resolve([*TINY, "--out", str(out), *settings], {})) as run:
        return look(run)


def first_loss(run: Run) -> float:
    tokens = torch.arange(66).view(2, 33) % 50
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=run.effective.autocast):
        return float(run.bare_model(tokens[:, :-1], tokens[:, 1:]))


SHAPES = [
    *(
        "--attention dense",
        "--vocab-size 300",
        "--dim 48",
        "--n-layers 1",
        "--n-heads 2",
        "--n-kv-groups 4",
        "--d-k 16",
    ),
    *("--d-v 16", "--ffn-dim 32", "--l-cmp 4", "--d-cmp 8", "--l-sel 16", "--n-sel 4", "--w 3", "--phi mlp"),
    *("--gate softmax", "--gate-hidden 5", "--rope-base 50", "--norm-eps 0.1", "--init-std 0.1", "--tie-embeddings"),
    *("--seed 7", "--dtype bf16", "--dtype bf16 --param-dtype bf16"),
]


@pytest.fixture(scope="module")
def usual_loss(tmp_path_factory: pytest.TempPathFactory) -> float:
    threads = torch.get_num_threads()
    loss: float = seen(tmp_path_factory.mktemp("usual"), [], first_loss)
    torch.set_num_threads(threads)
    return loss


@pytest.mark.parametrize("setting", SHAPES)
def test_what_shapes_the_model_changes_its_loss(tmp_path: Path, setting: str, usual_loss: float) -> None:
    assert seen(tmp_path, setting.split(), first_loss) != usual_loss


def group(name: str) -> Callable[[Run], Any]:
    return lambda run: run.optimizer.param_groups[0][name]


def of_attention(name: str) -> Callable[[Run], Any]:
    return lambda run: {getattr(block.attention, name) for block in run.bare_model.blocks}


REACHED: list[tuple[str, Callable[[Run], Any], Any]] = [
    ("--prefill sequential", of_attention("prefill"), {"sequential"}),
    ("--sel-ranges v1", of_attention("sel_ranges"), {"v1"}),
    ("--query-chunk 5", of_attention("query_chunk"), {5}),
    ("--seq-len 24 --batch-size 3", lambda run: run.loader.next().shape, (3, 25)),
    ("--accum 3", lambda run: (run.micro_batches.accum, run.tokens_per_step), (3, 3 * 2 * 32)),
    ("--global-batch-size 8", lambda run: (run.micro_batches.accum, run.tokens_per_step), (4, 4 * 2 * 32)),
    ("--data uniform", lambda run: type(run.sources.train).__name__, "UniformSource"),
    ("--prefetch-batches 7", lambda run: run.loader._ready.maxsize, 7),
    ("--prefetch-batches 0", lambda run: run.loader._thread, None),
    ("--loader-timeout-s 3.5", lambda run: run.loader._timeout_s, 3.5),
    ("--weight-decay 0.3", group("weight_decay"), 0.3),
    ("--beta1 0.5 --beta2 0.6", group("betas"), (0.5, 0.6)),
    ("--adam-eps 1e-3", group("eps"), 1e-3),
    ("--opt-fused on", group("fused"), True),
    ("--opt-fused off", group("fused"), False),
    ("--threads 2", lambda run: torch.get_num_threads(), 2),
    ("--grad-checkpointing", lambda run: run.bare_model.grad_checkpointing, True),
    ("--no-grad-checkpointing", lambda run: run.bare_model.grad_checkpointing, False),
    ("--dtype bf16 --param-dtype bf16", lambda run: {p.dtype for p in run.bare_model.parameters()}, {torch.bfloat16}),
    ("--dtype bf16", lambda run: run.micro_batches.autocast, True),
    ("--log-every 4", lambda run: [n for n in range(2, 300) if run.recorder.is_logged(n)][:2], [4, 8]),
    ("--heartbeat-s 2.5", lambda run: run.heartbeat._beat_s, 2.5),
    ("--nvtx", lambda run: spans._enabled, True),
    ("--profile-steps 2", lambda run: [n for n in range(1, 20) if run.instruments.watches(n)], [5, 6]),
    ("--sdpa-audit", lambda run: [n for n in range(1, 20) if run.instruments.watches(n)], [2]),
]


@pytest.mark.parametrize(("setting", "look", "expected"), REACHED, ids=[setting for setting, _, _ in REACHED])
def test_a_setting_reaches_what_it_names(
    tmp_path: Path, setting: str, look: Callable[[Run], Any], expected: Any
) -> None:
    assert seen(tmp_path, setting.split(), look) == expected


@pytest.mark.parametrize(("setting", "times"), [("--compile", 2), ("--no-compile", 0)])
def test_every_block_is_compiled_where_that_is_asked_for(
    tmp_path: Path, setting: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Block] = []
    monkeypatch.setattr(Block, "compile", lambda block: compiled.append(block))
    seen(tmp_path, [setting], lambda run: None)
    assert len(set(compiled)) == times


CPU = World(0, 0, 2, torch.device("cpu"), "gloo")


def test_ddp_is_built_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def build(model: nn.Module, **kwargs: Any) -> Any:
        given.update(kwargs)
        return SimpleNamespace(register_comm_hook=lambda state, hook: None)

    monkeypatch.setattr(nsa.parallel, "DistributedDataParallel", build)
    for asked in (DdpConfig(ddp_bucket_mb=7.5, ddp_static_graph=True), DdpConfig(ddp_find_unused=True)):
        wrap_ddp(nn.Linear(2, 2), asked, CPU, ReduceHook(CPU, "off"))
        assert given["bucket_cap_mb"] == asked.ddp_bucket_mb
        assert given["static_graph"] is asked.ddp_static_graph
        assert given["find_unused_parameters"] is asked.ddp_find_unused


def settled(*settings: str) -> Effective:
    return settle_config(resolve([*TINY, *settings], {}), CPU, open_tokenizer("byte"))


def test_a_global_batch_is_shared_by_all_processes() -> None:
    assert settled("--global-batch-size", "12").config.data.accum == 3
    with pytest.raises(ConfigError, match="is not a multiple of batch_size=2 × 2 processes = 4"):
        settled("--global-batch-size", "6")


def test_rates_count_the_tokens_and_the_peak_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsa.assemble.peak_bf16_flops", lambda device: 1e12)
    config = settled("--accum", "3").config
    rates = nsa.assemble._rates(config, LanguageModel(config.model), CPU)
    assert (rates.tokens_per_step, rates.peak_flops) == (2 * 3 * 2 * 32, 2e12)


def test_a_static_graph_searches_for_nothing() -> None:
    effective = settled("--ddp-static-graph", "--ddp-find-unused")
    assert (effective.config.ddp.ddp_static_graph, effective.config.ddp.ddp_find_unused) == (True, False)
    assert any("find_unused requested, effective off: a static graph" in note for note in effective.notes)


@pytest.mark.parametrize(
    ("extra", "reductions"), [([], 4), (["--ddp-static-graph"], 4 + 2)], ids=["accumulating", "learning the graph"]
)
def test_only_the_last_micro_batch_of_a_step_is_reduced(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch, extra: list[str], reductions: int
) -> None:
    """The result would be the same with every one reduced; the network would be used `accum` times."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    last: list[bool] = []
    reduce = ReduceHook.__call__

    def counted(self: ReduceHook, bucket: Any) -> Any:
        last.append(bucket.is_last())
        return reduce(self, bucket)

    monkeypatch.setattr(ReduceHook, "__call__", counted)
    assert train(tmp_path, "--steps", "4", "--accum", "3", *extra) == 0
    assert sum(last) == reductions


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_rate_that_is_told_is_the_one_that_was_applied(
    tmp_path: Path, train: Train, rows: Rows, monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    applied: list[float] = []

    def listen(run: Run) -> None:
        step = run.optimizer.step

        def heard(*args: Any) -> Any:
            applied.extend({g["lr"] for g in run.optimizer.param_groups})
            return step(*args)

        monkeypatch.setattr(run.optimizer, "step", heard)

    at_step(monkeypatch, 1, listen)
    settings = ["--steps", "6", "--warmup-steps", "2", "--schedule", schedule, "--min-lr-ratio", "0.2"]
    assert train(tmp_path, *settings) == 0
    assert [float(r["lr"]) for r in rows(tmp_path / "training.csv")] == pytest.approx(applied, rel=1e-8)
    optim = resolve([*TINY, *settings], {}).config.optim
    assert applied == [learning_rate(optim, step, 6) for step in range(1, 7)]


# Whose effect other tests of the trainer are about.
ELSEWHERE = {
    "data_path",
    "data_glob",
    "text_field",
    "data_limit_mib",
    "hub_dataset",
    "hub_name",
    "hub_split",
    "hub_revision",
    "stream_lanes",
    "tokenizer",
    "tokenizer_file",
    "val_fraction",
    "val_every",
    "val_batches",
    "lr",
    "grad_clip",
    "out",
    "steps",
    "device",
    "cuda_graph",
    "deterministic",
    "gc_every",
    "save_every",
    "save_final",
    "keep_checkpoints",
    "resume",
    "parallel",
    "ddp_compress",
    "ddp_timeout_s",
    "aux_stats",
    "tensorboard",
    "sdpa",
    "aux_every",
}


def test_no_setting_is_left_out_here_or_elsewhere() -> None:
    here = " ".join(["--compile", *SHAPES, *(setting for setting, _, _ in REACHED)]).split()
    flags = {word.removeprefix("--").replace("-", "_") for word in here if word.startswith("--")}
    below = {"ddp_bucket_mb", "ddp_static_graph", "ddp_find_unused", "warmup_steps", "schedule", "min_lr_ratio"}
    assert set(field_specs()) - flags - below == ELSEWHERE
