"""From the configuration asked for to the one that runs: choices left open are made, impossible ones are taken back.

Every difference between the two is visible: both are written to env.json, and what was asked for but is not done
also gives a note, which is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from nsa.config import Config, ConfigError, replace_flat
from nsa.data import Tokenizer
from nsa.graphs import why_no_graph
from nsa.model import default_ffn_dim
from nsa.parallel import World, effective_compression
from nsa.resolve import Resolved

__all__ = ["Effective", "settle_config"]


@dataclass(frozen=True)
class Effective:
    """The configuration that runs, and a sentence for each request that is not met as asked."""

    config: Config
    notes: tuple[str, ...]

    @property
    def param_dtype(self) -> torch.dtype:
        """Type of weights and gradients."""
        return torch.bfloat16 if self.config.train.param_dtype == "bf16" else torch.float32

    @property
    def autocast(self) -> bool:
        """Whether the forward pass runs under bf16 autocast."""
        return self.config.train.dtype == "bf16"


def _accumulation(resolved: Resolved, world: World) -> int:
    data = resolved.config.data
    if data.global_batch_size is None:
        return data.accum
    per_micro = data.batch_size * world.size
    accum, rest = divmod(data.global_batch_size, per_micro)
    if rest:
        raise ConfigError(
            [
                f"global_batch_size={data.global_batch_size} is not a multiple of batch_size={data.batch_size} × "
                f"{world.size} processes = {per_micro}: choose a multiple of {per_micro}"
            ]
        )
    if resolved.sources["accum"] != "default" and accum != data.accum:
        raise ConfigError(
            [
                f"accum={data.accum} contradicts global_batch_size={data.global_batch_size}, which needs accum={accum} "
                f"with batch_size={data.batch_size} on {world.size} processes: leave one of them out"
            ]
        )
    return accum


def _stream_lanes(config: Config, world: World) -> int | None:
    """Parts of a streamed dataset: as many as there are processes, or a multiple that was asked for."""
    lanes = config.data.stream_lanes
    if config.data.data != "fineweb_edu":
        return lanes
    if lanes is not None and lanes % world.size:
        raise ConfigError(
            [
                f"stream_lanes={lanes} is not a multiple of the {world.size} processes, each of which reads lanes of "
                f"its own: choose a multiple of {world.size}, or another number of processes"
            ]
        )
    return lanes or world.size


def _vocabulary(config: Config, tokenizer: Tokenizer) -> int:
    asked = config.model.vocab_size
    if asked is None:
        return tokenizer.padded_vocab_size
    if asked < tokenizer.vocab_size:
        raise ConfigError(
            [f"vocab_size={asked} is smaller than the {tokenizer.vocab_size} ids of tokenizer={tokenizer.name}"]
        )
    return asked


def _prefill(config: Config, world: World, *, autocast: bool) -> str:
    """The implementation the attention will choose, asked with tensors of the run's shape but no memory."""
    if config.model.attention != "nsa":
        return config.model.prefill
    from nsa.attention.dispatch import choose_impl
    from nsa.attention.geometry import Geometry

    m = config.model
    dtype = torch.bfloat16 if autocast else torch.float32
    token = torch.empty((), device=world.device, dtype=dtype)
    heads = ((m.n_heads, m.d_k), *((m.n_kv_groups, m.d_k), (m.n_kv_groups, m.d_v)) * 3)
    streams = tuple(token.expand(config.data.batch_size, config.data.seq_len, *shape) for shape in heads)
    geometry = Geometry(l=m.l_cmp, d=m.d_cmp, l_sel=m.l_sel, n_sel=m.n_sel, w=m.w)
    return choose_impl(m.prefill, streams, geometry=geometry, compressed=m.phi != "avg")


def _why_no_fsdp(world: World) -> str | None:
    """None if the model can be cut into parts, else the reason in words."""
    if not world.backend:
        return "no process group to shard the model over"
    if not world.on_cuda and not hasattr(torch.cpu.Stream, "record_event"):
        return f"torch {torch.__version__} shards on a GPU only; install a newer one"
    return None


def _parallel(config: Config, world: World) -> tuple[str, list[str]]:
    """How processes share the model, with a note where it is not as requested."""
    no_fsdp = _why_no_fsdp(world) if config.ddp.parallel == "fsdp" else None
    if no_fsdp:
        return "ddp", [f"[fsdp] requested, effective ddp: {no_fsdp}"]
    return config.ddp.parallel, []


def _why_no_ddp(parallel: str, world: World, *, cuda_graph: bool) -> str | None:
    """None if the model will be wrapped for DDP, else the reason in words."""
    if parallel == "fsdp":
        return "fsdp has no such thing"
    if world.backend is None:
        return "no process group"
    return "micro-batches are replayed from a graph" if cuda_graph else None


def _settle_ddp(config: Config, world: World, why_no_ddp: str | None) -> tuple[dict[str, Any], list[str]]:
    """The settings of the section `ddp` as they will be, with notes."""
    asked = config.ddp
    grad_dtype = torch.bfloat16 if config.train.param_dtype == "bf16" else torch.float32
    compress, said = effective_compression(asked.ddp_compress, world, grad_dtype)
    notes = [said] if said and compress == "off" else []
    static_graph, find_unused = asked.ddp_static_graph, asked.ddp_find_unused
    if why_no_ddp:
        flags = {"static_graph": static_graph, "find_unused": find_unused}
        notes += [f"[ddp] {name} requested, effective off: {why_no_ddp}" for name, on in flags.items() if on]
        static_graph = find_unused = False
    if find_unused and static_graph:
        find_unused = False
        notes.append("[ddp] find_unused requested, effective off: a static graph does not search every step")
    return {"ddp_compress": compress, "ddp_static_graph": static_graph, "ddp_find_unused": find_unused}, notes


def _settle_kernels(config: Config, world: World) -> tuple[dict[str, Any], list[str]]:
    """Prefill path, version of the ranges and restriction of torch's fused attention as they will be, with notes."""
    notes = []
    prefill = _prefill(config, world, autocast=config.train.dtype == "bf16")
    if config.model.prefill not in ("auto", prefill):
        notes.append(f"[nsa] prefill requested {config.model.prefill}, effective {prefill}: see fallback_counters.csv")
    sel_ranges = config.model.sel_ranges
    if sel_ranges == "v1" and prefill == "triton" and config.model.attention == "nsa":
        notes.append("[nsa] sel_ranges requested v1, effective v2: the fused kernels have no loop over rows")
        sel_ranges = "v2"
    sdpa = config.telemetry.sdpa
    if sdpa != "auto" and config.model.attention == "nsa":
        notes.append(f"[sdpa] {sdpa} requested, effective auto: no branch of nsa uses scaled_dot_product_attention")
        sdpa = "auto"
    return {"prefill": prefill, "sel_ranges": sel_ranges, "sdpa": sdpa}, notes


def _settle_graph(config: Config, world: World, *, parallel: str, prefill: str) -> tuple[bool, list[str]]:
    """Whether micro-batches are replayed from a CUDA graph, with a note where they were to be and are not."""
    if not config.train.cuda_graph:
        return False, []
    reason = why_no_graph(
        on_cuda=world.on_cuda,
        shared=world.size > 1 or parallel == "fsdp",
        attention=config.model.attention,
        prefill=prefill,
    )
    return reason is None, [f"[graph] cuda_graph requested, effective off: {reason}"] if reason else []


def settle_config(resolved: Resolved, world: World, tokenizer: Tokenizer) -> Effective:
    """Decide what was left open for this machine and number of processes.

    Raises ConfigError when the global batch does not divide or the vocabulary is too small.
    """
    config = resolved.config
    parallel, parallel_notes = _parallel(config, world)
    kernels, kernel_notes = _settle_kernels(config, world)
    cuda_graph, graph_notes = _settle_graph(config, world, parallel=parallel, prefill=kernels["prefill"])
    why_no_ddp = _why_no_ddp(parallel, world, cuda_graph=cuda_graph)
    ddp, ddp_notes = _settle_ddp(config, world, why_no_ddp)
    notes = [*parallel_notes, *ddp_notes, *kernel_notes, *graph_notes]
    if config.optim.warmup_steps >= config.train.steps:
        notes.append(
            f"[optim] warmup_steps={config.optim.warmup_steps} is not shorter than steps={config.train.steps}: the "
            "learning rate never reaches its peak"
        )
    accum = _accumulation(resolved, world)
    fused = {"auto": "on" if world.on_cuda else "off"}.get(config.optim.opt_fused, config.optim.opt_fused)
    effective = replace_flat(
        config,
        accum=accum,
        global_batch_size=accum * config.data.batch_size * world.size,
        vocab_size=_vocabulary(config, tokenizer),
        stream_lanes=_stream_lanes(config, world),
        ffn_dim=config.model.ffn_dim or default_ffn_dim(config.model.dim),
        device=world.device.type,
        threads=torch.get_num_threads(),
        gate_hidden=config.model.gate_hidden or max(config.model.dim // 8, 16),
        opt_fused=fused,
        cuda_graph=cuda_graph,
        **kernels,
        parallel=parallel,
        **ddp,
    )
    return Effective(effective, tuple(notes))
