"""The trainer's one configuration: typed, nested in sections, frozen, with every leaf name unique.

Each leaf has one flat name (`seq_len`, `lr`, …) that is the same on the command line, in the environment
(`NSA_SEQ_LEN`) and in `env.json`. `nsa.resolve` fills it from its four layers; nothing else in the package reads
the environment for settings. This module does not import torch, so that a wrong flag is answered at once.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "Config",
    "ConfigError",
    "DataConfig",
    "DdpConfig",
    "FieldSpec",
    "ModelConfig",
    "OptimConfig",
    "Range",
    "SetupError",
    "TelemetryConfig",
    "TrainConfig",
    "UnreachableError",
    "check",
    "field_specs",
    "flatten",
    "replace_flat",
]


class ConfigError(ValueError):
    """One or more settings are wrong. `problems` holds one sentence each, naming field, value and fix."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class SetupError(RuntimeError):
    """The run cannot start here as configured: a file, device, package or checkpoint is not what it must be.

    The message names the setting and the fix; it is printed without a traceback. `midway` is set where a run that was
    already training ends by it.
    """

    midway = False


class UnreachableError(SetupError):
    """A data source somewhere else gave no answer in time: the same command may work later, or from elsewhere."""


@dataclass(frozen=True)
class Range:
    """A bound on a number, with the words an error uses for it. NaN and infinities lie in no range."""

    text: str
    holds: Callable[[float], bool]

    def objection(self, value: float) -> str | None:
        """What `value` must be instead, or None if it is within."""
        if value in (math.inf, -math.inf):
            return "must be a finite number"
        return None if self.holds(value) else f"must {self.text}"


LARGEST_INT = 2**31 - 1  # beyond it there is no shape and no count, only a slip of the keyboard and an overflow
YEAR_S = 365 * 86_400

POSITIVE = Range("be greater than 0", lambda value: value > 0)
NOT_NEGATIVE = Range("be 0 or greater", lambda value: value >= 0)
UNIT = Range("lie between 0 and 1", lambda value: 0 <= value <= 1)
BELOW_ONE = Range("lie between 0 and 1, 1 excluded", lambda value: 0 <= value < 1)
SEED = Range("lie between 0 and 2^63 - 1", lambda value: 0 <= value < 2**63)
SECONDS = Range(f"be greater than 0 and at most {YEAR_S} (a year)", lambda value: 0 < value <= YEAR_S)


def _opt(default: Any, help_text: str, *, within: Range | None = None, fixed: bool = False) -> Any:
    """A leaf: `fixed` says that a resumed run must have the same value, for it shapes weights or sample order."""
    return field(default=default, metadata={"help": help_text, "within": within, "fixed": fixed})


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the network. l_sel, n_sel and w are named as in arXiv 2502.11089.

    Its l and d are l_cmp and d_cmp here: torchrun takes --l or --d as an abbreviation of one of its own flags.
    """

    attention: Literal["nsa", "dense"] = _opt(
        "nsa", "nsa, or dense: full causal attention of the same shape", fixed=True
    )
    vocab_size: int | None = _opt(
        None, "rows of the embedding; empty: the tokenizer's padded size", within=POSITIVE, fixed=True
    )
    dim: int = _opt(768, "width of the residual stream", within=POSITIVE, fixed=True)
    n_layers: int = _opt(12, "number of blocks", within=POSITIVE, fixed=True)
    n_heads: int = _opt(12, "query heads", within=POSITIVE, fixed=True)
    n_kv_groups: int = _opt(2, "key/value groups; divides n_heads", within=POSITIVE, fixed=True)
    d_k: int = _opt(64, "width of a query or key head; even", within=POSITIVE, fixed=True)
    d_v: int = _opt(64, "width of a value head", within=POSITIVE, fixed=True)
    ffn_dim: int | None = _opt(
        None, "width of the SwiGLU layer; empty: 8/3 of dim, rounded up to 64", within=POSITIVE, fixed=True
    )
    l_cmp: int = _opt(32, "tokens in a compression block (the paper's l)", within=POSITIVE, fixed=True)
    d_cmp: int = _opt(
        16, "stride of compression blocks (the paper's d); divides l_cmp and l_sel", within=POSITIVE, fixed=True
    )
    l_sel: int = _opt(64, "tokens in a selection block; at least l_cmp", within=POSITIVE, fixed=True)
    n_sel: int = _opt(16, "blocks selected per query, the three forced ones included", within=POSITIVE, fixed=True)
    w: int = _opt(512, "tokens in the sliding window", within=POSITIVE, fixed=True)
    phi: Literal["avg", "conv", "mlp"] = _opt("avg", "how a block is compressed", fixed=True)
    gate: Literal["sigmoid", "softmax"] = _opt("sigmoid", "how the three branches are weighted", fixed=True)
    gate_hidden: int | None = _opt(
        None, "hidden width of the gate; empty: the attention module's choice", within=POSITIVE, fixed=True
    )
    rope_base: float = _opt(10_000.0, "base of the rotary angles", within=POSITIVE, fixed=True)
    norm_eps: float = _opt(1e-5, "epsilon of RMSNorm", within=POSITIVE, fixed=True)
    init_std: float = _opt(0.02, "standard deviation of the initial weights", within=POSITIVE)
    tie_embeddings: bool = _opt(False, "share the embedding with the output layer", fixed=True)
    prefill: Literal["auto", "sequential", "batched", "triton"] = _opt("auto", "implementation of the attention")
    sel_ranges: Literal["v1", "v2"] = _opt("v2", "v1: per-row loop; v2: vectorized")
    query_chunk: int | None = _opt(
        None, "queries handled at once by the batched path; empty: its own choice", within=POSITIVE
    )


@dataclass(frozen=True)
class DataConfig:
    """What the model is trained on and in which portions."""

    data: Literal["synthetic", "uniform", "local", "fineweb_edu"] = _opt(
        "synthetic",
        "synthetic: learnable, floor known; uniform: speed only; local: files; fineweb_edu: hub_dataset, streamed",
        fixed=True,
    )
    data_path: str | None = _opt(None, "file, folder or glob pattern for data=local")
    data_glob: str | None = _opt(
        None, "pattern below a folder; empty: every known text suffix, recursively", fixed=True
    )
    text_field: str = _opt("text", "key of the text in JSONL and parquet records", fixed=True)
    data_limit_mib: float | None = _opt(
        None, "stop reading files after this much text, MiB; empty: read all", within=POSITIVE, fixed=True
    )
    hub_dataset: str = _opt(
        "HuggingFaceFW/fineweb-edu", "data=fineweb_edu: a dataset of the hub, or a folder laid out like one", fixed=True
    )
    hub_name: str | None = _opt(
        None, "its configuration; empty: sample-10BT of FineWeb-Edu, the only one of any other", fixed=True
    )
    hub_split: str = _opt("train", "its split; what is held out for validation is taken from the same one", fixed=True)
    hub_revision: str | None = _opt(None, "branch, tag or commit of it; empty: the newest", fixed=True)
    stream_lanes: int | None = _opt(
        None, "parts a stream is cut into, a multiple of the processes; empty: one each", within=POSITIVE, fixed=True
    )
    tokenizer: Literal["byte", "gpt2"] = _opt("byte", "byte, or gpt2 (needs tiktoken)", fixed=True)
    tokenizer_file: str | None = _opt(
        None, "tokenizer=gpt2: a .tiktoken file with its vocabulary; empty: tiktoken's own, fetched once and cached"
    )
    seq_len: int = _opt(2048, "tokens per sequence", within=POSITIVE, fixed=True)
    batch_size: int = _opt(1, "sequences per rank and micro-batch", within=POSITIVE)
    accum: int = _opt(1, "micro-batches per optimizer step", within=POSITIVE)
    global_batch_size: int | None = _opt(
        None, "sequences per step over all ranks; accum then follows from it", within=POSITIVE, fixed=True
    )
    val_fraction: float = _opt(
        0.02, "share of documents held out of training (local, fineweb_edu)", within=BELOW_ONE, fixed=True
    )
    val_every: int = _opt(0, "steps between validations; 0: never", within=NOT_NEGATIVE)
    val_batches: int = _opt(8, "batches per rank in a validation", within=POSITIVE)
    prefetch_batches: int = _opt(4, "micro-batches prepared ahead by the loader thread; 0: none", within=NOT_NEGATIVE)
    loader_timeout_s: float = _opt(120.0, "longest wait for a batch before the run ends with an error", within=SECONDS)


@dataclass(frozen=True)
class OptimConfig:
    """AdamW and its schedule."""

    lr: float = _opt(2e-4, "peak learning rate", within=POSITIVE)
    min_lr_ratio: float = _opt(0.1, "last learning rate over the peak", within=UNIT)
    warmup_steps: int = _opt(0, "steps of linear warm-up", within=NOT_NEGATIVE)
    schedule: Literal["cosine", "linear", "constant"] = _opt("cosine", "shape after the warm-up")
    weight_decay: float = _opt(0.01, "decay of matrices; norms and biases are spared", within=NOT_NEGATIVE)
    beta1: float = _opt(0.9, "AdamW's first momentum", within=BELOW_ONE)
    beta2: float = _opt(0.95, "AdamW's second momentum", within=BELOW_ONE)
    adam_eps: float = _opt(1e-8, "AdamW's epsilon", within=POSITIVE)
    grad_clip: float = _opt(1.0, "largest gradient norm; 0: no clipping", within=NOT_NEGATIVE)
    opt_fused: Literal["auto", "on", "off"] = _opt("auto", "fused AdamW; auto: on CUDA")


@dataclass(frozen=True)
class TrainConfig:
    """The run itself."""

    out: str = _opt("out", "folder for everything the run writes")
    steps: int = _opt(300, "optimizer steps in all", within=POSITIVE)
    seed: int = _opt(1337, "seed of weights and sample order", within=SEED, fixed=True)
    dtype: Literal["bf16", "fp32"] = _opt("bf16", "compute type; bf16 runs under autocast")
    param_dtype: Literal["fp32", "bf16"] = _opt("fp32", "type of the weights and of their gradients", fixed=True)
    device: Literal["auto", "cpu", "cuda"] = _opt("auto", "auto: CUDA where present")
    threads: int | None = _opt(None, "CPU threads per process; empty: torch's choice", within=POSITIVE)
    grad_checkpointing: bool = _opt(False, "recompute each block in the backward pass")
    compile: bool = _opt(False, "torch.compile every block")
    cuda_graph: bool = _opt(
        False, "replay each micro-batch's forward and backward from a CUDA graph; for small batches on one GPU"
    )
    deterministic: bool = _opt(False, "deterministic algorithms only")
    gc_every: int = _opt(0, "steps between Python garbage collections; 0: Python's own schedule", within=NOT_NEGATIVE)
    save_every: int = _opt(
        0, "steps between checkpoints; 0: only on SIGTERM and, with save_final, at the end", within=NOT_NEGATIVE
    )
    save_final: bool = _opt(False, "write a checkpoint after the last step")
    keep_checkpoints: int = _opt(2, "checkpoints kept; older ones are deleted", within=POSITIVE)
    resume: bool = _opt(False, "resume from the newest valid checkpoint in out")


@dataclass(frozen=True)
class DdpConfig:
    """Data parallelism under torchrun."""

    parallel: Literal["ddp", "fsdp"] = _opt(
        "ddp", "ddp: a whole model on each device; fsdp: weights, gradients and optimizer state in parts"
    )
    ddp_compress: Literal["off", "bf16", "fp16"] = _opt("off", "type in which gradients are reduced")
    ddp_bucket_mb: float = _opt(25.0, "size of a gradient bucket, MiB", within=POSITIVE)
    ddp_static_graph: bool = _opt(False, "DDP assumes that every step uses the same graph")
    ddp_find_unused: bool = _opt(False, "let DDP search for parameters without gradient")
    ddp_timeout_s: float = _opt(600.0, "longest wait in a collective before the run ends with an error", within=SECONDS)


@dataclass(frozen=True)
class TelemetryConfig:
    """Which files are written besides the model."""

    log_every: int = _opt(1, "steps per row of training.csv", within=POSITIVE)
    heartbeat_s: float = _opt(5.0, "seconds between the beats of the background thread", within=SECONDS)
    aux_stats: bool = _opt(True, "gate and selection statistics")
    tensorboard: bool = _opt(False, "also write scalars for TensorBoard into tb/ (needs the tensorboard package)")
    nvtx: bool = _opt(False, "named ranges around branches and steps, for torch.profiler and NVTX tools")
    profile_steps: int = _opt(0, "steps traced by torch.profiler into trace/, from the fifth on", within=NOT_NEGATIVE)
    sdpa_audit: bool = _opt(False, "profile the second step and write which kernels each branch ran")
    sdpa: Literal["auto", "flash_only", "no_flash"] = _opt("auto", "backends that scaled_dot_product_attention may use")
    aux_every: int = _opt(10, "logged steps between two sets of gate and selection statistics", within=POSITIVE)


@dataclass(frozen=True)
class Config:
    """The whole resolved configuration; sections group the leaves, whose names are unique over all sections."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    ddp: DdpConfig = field(default_factory=DdpConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)


@dataclass(frozen=True)
class FieldSpec:
    """One leaf: flat name, section, accepted type, default and help text.

    `kind` is bool, int, float or str; `choices` is set for a field of fixed words; `fixed` fields may not change when
    a run is resumed.
    """

    name: str
    section: str
    kind: type
    optional: bool
    choices: tuple[str, ...]
    default: Any
    help: str
    within: Range | None
    fixed: bool

    @property
    def type_text(self) -> str:
        """The accepted values in words, for messages and tables."""
        text = " | ".join(self.choices) if self.choices else self.kind.__name__
        return f"{text} | none" if self.optional else text


def _unwrap(annotation: Any) -> tuple[type, bool, tuple[str, ...]]:
    """Split an annotation into base type, whether None is allowed, and the words of a Literal."""
    optional = False
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        members = [a for a in typing.get_args(annotation) if a is not type(None)]
        optional, annotation = True, members[0]
    if typing.get_origin(annotation) is Literal:
        return str, optional, typing.get_args(annotation)
    return annotation, optional, ()


def _specs() -> Iterator[FieldSpec]:
    for section, cls in typing.get_type_hints(Config).items():
        hints = typing.get_type_hints(cls)
        for leaf in dataclasses.fields(cls):
            kind, optional, choices = _unwrap(hints[leaf.name])
            yield FieldSpec(leaf.name, section, kind, optional, choices, leaf.default, **leaf.metadata)


_SPECS: dict[str, FieldSpec] = {}


def field_specs() -> dict[str, FieldSpec]:
    """Every leaf by flat name, in the order of declaration."""
    if not _SPECS:
        for spec in _specs():
            assert spec.name not in _SPECS, f"leaf name {spec.name} is used twice"
            _SPECS[spec.name] = spec
    return _SPECS


def flatten(config: Config) -> dict[str, Any]:
    """The configuration as one mapping of flat names, as in `requested` and `effective` of env.json."""
    return {name: getattr(getattr(config, s.section), name) for name, s in field_specs().items()}


def replace_flat(config: Config, **changes: Any) -> Config:
    """A copy with some leaves changed, each given by its flat name."""
    by_section: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        by_section.setdefault(field_specs()[name].section, {})[name] = value
    return dataclasses.replace(
        config, **{s: dataclasses.replace(getattr(config, s), **kv) for s, kv in by_section.items()}
    )


def _range_problems(config: Config) -> Iterator[str]:
    flat = flatten(config)
    for spec in field_specs().values():
        value = flat[spec.name]
        if spec.within is None or value is None:
            continue
        objection = spec.within.objection(value)
        if objection is None and spec.kind is int and spec.within is not SEED and value > LARGEST_INT:
            objection = f"must be at most {LARGEST_INT}"
        if objection:
            yield f"{spec.name}={value}: {objection}"


def _relation_problems(config: Config) -> Iterator[str]:
    m, data = config.model, config.data
    if m.n_heads % m.n_kv_groups:
        yield f"n_heads={m.n_heads} is not a multiple of n_kv_groups={m.n_kv_groups}: change one of them"
    if m.d_k % 2:
        yield f"d_k={m.d_k} is odd: rotary embedding needs an even width"
    if m.attention == "nsa":
        for name, value in (("l_cmp", m.l_cmp), ("l_sel", m.l_sel)):
            if value % m.d_cmp:
                yield f"d_cmp={m.d_cmp} does not divide {name}={value}: choose a stride that divides l_cmp and l_sel"
        if m.l_cmp > m.l_sel:
            yield f"l_cmp={m.l_cmp} exceeds l_sel={m.l_sel}: a compression block may not outgrow a selection block"
        if m.n_sel < 3:
            yield f"n_sel={m.n_sel}: at least 3, for the first block and the two local ones are always selected"
    if data.data == "local" and not data.data_path:
        yield "data=local needs data_path: name a text or JSONL file, a folder or a glob pattern"
    if data.data != "local" and data.data_path:
        instead = ", or name the folder as hub_dataset" if data.data == "fineweb_edu" else ""
        yield f"data_path={data.data_path} is given but data={data.data} reads no files: set data=local{instead}"
    if data.data == "fineweb_edu" and not data.prefetch_batches:
        yield (
            "prefetch_batches=0 with data=fineweb_edu: without the loader's thread loader_timeout_s bounds no wait for "
            "the hub; set it to 1 or more"
        )
    if data.tokenizer_file and data.tokenizer != "gpt2":
        yield f"tokenizer_file={data.tokenizer_file}: tokenizer={data.tokenizer} reads no file: set tokenizer=gpt2"
    if config.train.param_dtype == "bf16" and config.train.dtype == "fp32":
        yield "param_dtype=bf16 with dtype=fp32 computes nothing in fp32: set dtype=bf16 or param_dtype=fp32"


def check(config: Config) -> None:
    """Raise ConfigError naming every setting that is out of range or contradicts another."""
    problems = list(_range_problems(config))
    if not problems:
        problems = list(_relation_problems(config))
    if problems:
        raise ConfigError(problems)
