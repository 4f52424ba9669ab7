"""Settings resolve once, from four layers, and every mistake is answered with the nearest valid name."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from nsa.config import Config, ConfigError, check, field_specs, flatten, replace_flat
from nsa.resolve import UsageExit, config_names, resolve
from nsa.settings_table import settings_table


def problems(argv: list[str], env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(argv, env or {})
    return caught.value.problems


def test_later_layers_win_and_each_value_knows_its_source(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: {seq_len: 100, accum: 3}\noptim: {lr: 1e-3}\n")
    resolved = resolve(["--config", str(path), "--lr", "0.5"], {"NSA_ACCUM": "5", "NSA_LR": "0.1"})
    flat = resolved.requested
    assert (flat["seq_len"], flat["accum"], flat["lr"], flat["steps"]) == (100, 5, 0.5, 300)
    sources = {n: resolved.sources[n] for n in ("seq_len", "accum", "lr", "steps")}
    assert sources == {
        "seq_len": "yaml mine.yaml",
        "accum": "env NSA_ACCUM",
        "lr": "command line",
        "steps": "default",
    }


@pytest.mark.parametrize("argv", [["--seq-len", "7"], ["--seq_len", "7"], ["--seq-len=7"], ["--seq_len=7"]])
def test_dashes_underscores_and_equals_sign_mean_the_same(argv: list[str]) -> None:
    assert resolve(argv, {}).config.data.seq_len == 7


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--compile"], True),
        (["--compile", "--lr", "1"], True),
        (["--compile", "false"], False),
        (["--compile=1"], True),
        (["--no-compile"], False),
        (["--no_compile"], False),
    ],
)
def test_boolean_flags(argv: list[str], expected: bool) -> None:
    assert resolve(argv, {}).config.train.compile is expected


def test_unknown_flag_names_the_nearest_and_does_not_blame_its_value() -> None:
    assert problems(["--sqe-len", "7"]) == ["unknown flag --sqe-len; did you mean --seq-len?"]


def test_unknown_variable_names_the_nearest() -> None:
    (said,) = problems([], {"NSA_SEQLEN": "7"})
    assert "NSA_SEQLEN" in said
    assert "did you mean NSA_SEQ_LEN?" in said


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("data: {seq_len: many, lr: 1}\nmodle: {dim: 3}\noptim: {lrr: 1}\nsteps: 5\n")
    said = "\n".join(problems(["--config", str(path)]))
    assert "seq_len=many" in said
    assert "`data.lr`; it belongs under `optim:`" in said
    assert "`modle`; did you mean model?" in said
    assert "`optim.lrr`; did you mean lr?" in said
    assert "`steps`; it belongs under `train:`" in said
    path.write_text("1: 2\n")
    assert "unknown section `1`" in problems(["--config", str(path)])[0]


def test_a_section_or_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    for text, place in (
        ("data: {accum: 2}\ndata: {seq_len: 8}\n", "line 2"),
        ("data: {accum: 2, accum: 3}\n", "line 1"),
    ):
        path.write_text(text)
        (said,) = problems(["--config", str(path)])
        assert "stands twice" in said
        assert place in said
    path.write_text("data: &d {accum: 2}\noptim: {lr: 1.0}\n")
    assert resolve(["--config", str(path)], {}).config.data.accum == 2


@pytest.mark.parametrize("text", ["? [data]\n: 1\n", "data: {? {seq_len: 1} : 2}\n"])
def test_a_key_that_is_no_word_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    (said,) = problems(["--config", str(path)])
    assert "cannot be read as YAML" in said
    assert "unhashable key" in said


def test_mistakes_of_all_layers_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("data: {seq_len: many}\n")
    said = problems(["--config", str(path), "--stpes", "3", "--lr", "fast"], {"NSA_ACUM": "2", "NSA_NVTX": "perhaps"})
    assert [text.partition(" ")[0] for text in said] == [
        "unknown",
        "lr=fast",
        "unknown",
        "nvtx=perhaps",
        "seq_len=many",
    ]
    assert [text.partition(":")[0] for text in problems(["--config", "tiny_gpu", "--lr", "fast"])] == [
        "lr=fast (--lr)",
        "config=tiny_gpu",
    ]


def test_numbers_that_yaml_reads_as_text_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("optim: {lr: 3e-4}\ntrain: {steps: 50_000}\n")
    config = resolve(["--config", str(path)], {}).config
    assert (config.optim.lr, config.train.steps) == (3e-4, 50_000)


@pytest.mark.parametrize(
    ("variable", "value", "field", "expected"),
    [
        ("NSA_PREFILL_BATCHED", "1", "prefill", "batched"),
        ("NSA_PREFILL_BATCHED", "0", "prefill", "sequential"),
        ("NSA_SEL_RANGES_V2", "0", "sel_ranges", "v1"),
        ("NSA_DISABLE_AUX_STATS", "1", "aux_stats", False),
        ("NSA_DDP_COMPRESS", "bf16", "ddp_compress", "bf16"),
        ("NSA_DDP_COMPRESS", "0", "ddp_compress", "off"),
        ("NSA_DDP_BUCKET_MB", "50", "ddp_bucket_mb", 50.0),
        ("NSA_DDP_STATIC_GRAPH", "1", "ddp_static_graph", True),
        ("NSA_DDP_FIND_UNUSED", "0", "ddp_find_unused", False),
        ("NSA_TB_DISABLE", "1", "tensorboard", False),
        ("NSA_NVTX", "1", "nvtx", True),
        ("NSA_SDPA_AUDIT", "1", "sdpa_audit", True),
        ("NSA_SDPA_FLASH_ONLY", "1", "sdpa", "flash_only"),
        ("NSA_SDPA_NO_FLASH", "1", "sdpa", "no_flash"),
        ("NSA_OPT_FUSED", "1", "opt_fused", "on"),
        ("NSA_SEQ_LEN", "4096", "seq_len", 4096),
    ],
)
def test_variables_of_the_earlier_system(variable: str, value: str, field: str, expected: object) -> None:
    resolved = resolve([], {variable: value})
    assert resolved.requested[field] == expected
    assert resolved.sources[field] == f"env {variable}"


def test_plain_variable_wins_over_an_alias() -> None:
    env = {"NSA_PREFILL": "triton", "NSA_PREFILL_BATCHED": "0"}
    assert resolve([], env).config.model.prefill == "triton"


def test_an_alias_that_is_no_switch_is_refused() -> None:
    assert problems([], {"NSA_PREFILL_BATCHED": "maybe"}) == ["NSA_PREFILL_BATCHED=maybe: expected 1 or 0"]


def test_aliases_that_contradict_each_other_are_refused() -> None:
    env = {"NSA_SDPA_FLASH_ONLY": "1", "NSA_SDPA_NO_FLASH": "1"}
    assert problems([], env) == ["NSA_SDPA_NO_FLASH contradicts NSA_SDPA_FLASH_ONLY: unset one of them"]
    assert resolve([], env | {"NSA_SDPA_NO_FLASH": "0"}).config.telemetry.sdpa == "flash_only"


def test_config_is_named_by_flag_or_variable() -> None:
    assert resolve([], {"CONFIG": "configs/tiny_cpu.yaml"}).config_file.name == "tiny_cpu.yaml"
    assert resolve(["--config", "showcase"], {"CONFIG": "tiny_cpu"}).config_file.name == "showcase.yaml"
    assert "did you mean tiny_cpu?" in problems(["--config", "tiny_gpu"])[0]


def test_every_packaged_configuration_resolves() -> None:
    assert len(config_names()) >= 8
    for name in config_names():
        resolve(["--config", name], {})


def test_the_production_configuration_is_the_documented_one() -> None:
    flat = resolve(["--config", "m7c_125m_2xa100_production"], {}).requested
    expected = {
        "dim": 768,
        "n_layers": 12,
        "n_heads": 12,
        "n_kv_groups": 2,
        "d_k": 64,
        "d_v": 64,
        "seq_len": 2048,
        "batch_size": 2,
        "accum": 2,
        "dtype": "bf16",
        "grad_checkpointing": True,
        "lr": 2e-4,
        "schedule": "cosine",
        "warmup_steps": 2000,
        "weight_decay": 0.01,
        "grad_clip": 1.0,
        "seed": 1337,
    }
    assert {name: flat[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_heads": 6, "n_kv_groups": 4}, "n_heads=6 is not a multiple of n_kv_groups=4"),
        ({"d_cmp": 24}, "d_cmp=24 does not divide l_cmp=32"),
        ({"l_cmp": 128, "l_sel": 64}, "l_cmp=128 exceeds l_sel=64"),
        ({"n_sel": 2}, "n_sel=2: at least 3"),
        ({"d_k": 7}, "d_k=7 is odd"),
        ({"steps": 0}, "steps=0: must be greater than 0"),
        ({"steps": 2**31}, "steps=2147483648: must be at most 2147483647"),
        ({"seed": 2**63}, "seed=9223372036854775808: must lie between 0 and"),
        ({"lr": math.inf}, "lr=inf: must be a finite number"),
        ({"beta1": 1.0}, "beta1=1.0: must lie between 0 and 1, 1 excluded"),
        ({"ddp_timeout_s": 1e30}, r"ddp_timeout_s=1e\+30: must be greater than 0 and at most 31536000"),
        ({"heartbeat_s": math.inf}, "heartbeat_s=inf: must be a finite number"),
        ({"val_fraction": 1.5}, "val_fraction=1.5: must lie between 0 and 1"),
        ({"data": "local"}, "data=local needs data_path"),
        ({"data_path": "x"}, "data=synthetic reads no files"),
        ({"data": "fineweb_edu", "prefetch_batches": 0}, "loader_timeout_s bounds no wait for the hub"),
        ({"param_dtype": "bf16", "dtype": "fp32"}, "param_dtype=bf16 with dtype=fp32"),
    ],
)
def test_contradictions_are_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        check(replace_flat(Config(), **changes))


def test_not_a_number_is_out_of_range() -> None:
    assert problems(["--lr", "nan"]) == ["lr=nan: must be greater than 0"]


def test_flat_names_cover_every_leaf_and_round_trip() -> None:
    flat = flatten(Config())
    assert set(flat) == set(field_specs())
    assert replace_flat(Config(), **flat) == Config()


def test_help_lists_every_setting_and_configuration() -> None:
    with pytest.raises(UsageExit) as caught:
        resolve(["--help"], {})
    text = str(caught.value)
    for name in field_specs():
        assert f"--{name.replace('_', '-')} " in text
    for name in config_names():
        assert name in text
    assert max(map(len, text.splitlines())) <= 100


def test_bad_usage_is_answered_without_importing_torch(tmp_path: Path) -> None:
    (tmp_path / ".HALT").touch()
    script = (
        "import sys\nfrom nsa.train import main\n"
        f"codes = [main(['--bogus']), main(['--out', {str(tmp_path)!r}]), main(['--help'])]\n"
        "print(codes, 'torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert "[2, 2, 0] False" in done.stderr
    assert "remove it (rm " in done.stderr


def test_the_settings_page_is_the_one_that_is_generated() -> None:
    page = Path(__file__).parents[2] / "docs" / "trainer-settings.md"
    assert page.read_text(encoding="utf-8") == settings_table(), (
        "run: python -m nsa.settings_table > docs/trainer-settings.md"
    )
