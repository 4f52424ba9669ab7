"""What the ranks of a burn-in wrote: devices with their rates and wrong answers, and each GPU by the machine's samples.

Anybody may have written it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from validator.documents import number_at, parse_json
from validator.files import is_file
from validator.ingest.other_programs import log_folders
from validator.ingest.result_builder import ResultBuilder
from validator.ingest.telemetry import SLOWDOWN_BITS, read_samples
from validator.model.burnin import BurninRecord, Device, Load, RelativeChange
from validator.model.result import Samples, Series
from validator.stats.distributions import t_quantile
from validator.stats.means import ratio
from validator.text import listed, one_line, plural

_FEW = 4
_ERROR = 0.05
_HEADLINE = ("bf16", "fp32")


def read_burnin(gathered: ResultBuilder, *, planned: int) -> BurninRecord | None:
    """What was recorded, with the rate by round as series; None where no rank wrote anything.

    So many ranks are `planned`, numbered node by node.
    """
    nodes = _node_samples(gathered)
    per_node = max(1, planned // len(nodes))
    found = []
    for path in _records(gathered.out):
        one = _device(gathered, path, nodes, per_node)
        found += [] if one is None else [one]
    if not found:
        return None
    devices = sorted(_charged(found), key=lambda one: one.rank)
    _add_series(gathered, devices)
    loads = _loads([samples for _, samples in nodes], devices, per_node)
    return BurninRecord(tuple(devices), _slower(devices), _sag(devices), loads, planned)


def _records(out: Path) -> list[Path]:
    return sorted(out.glob("burnin_rank*.jsonl"))


def _parsed(line: bytes) -> Any:
    try:
        return parse_json(line)
    except ValueError:
        return None


def _device(gathered: ResultBuilder, path: Path, nodes: Sequence[_Node], per_node: int) -> Device | None:
    read = gathered.small_file(path, what="the record of a device")
    if read is None:
        return None
    lines = [one for line in read[0].splitlines() if isinstance(one := _parsed(line), Mapping)]
    if not lines:
        return None
    head, rounds = lines[0], [one for one in lines[1:] if "round" in one]
    facts = head.get("device")
    facts = facts if isinstance(facts, Mapping) else {}
    rank, index = int(number_at(facts, "rank") or 0), number_at(facts, "index")
    node, samples = nodes[rank // per_node] if 0 <= rank // per_node < len(nodes) else ("", None)
    gpu = None if index is None else _by_driver(int(index), samples)
    where = f"{node}, " if node and len(nodes) > 1 else ""
    rows = [(t, rate) for one in rounds if (t := number_at(one, "t")) and (rate := _headline(one)) is not None]
    errors, seen = _errors(rounds)
    unlike = int(number_at(head, "answer", "unlike_on_cpu") or 0)
    if unlike:
        errors["gemm"] += unlike
        seen = seen or f"{plural(unlike, 'element')} of the answer differ from the CPU's"
    answer = head.get("answer")
    bits = answer.get("bits") if isinstance(answer, Mapping) else None
    memory = [rate for one in rounds if (rate := number_at(one, "memory", "gb_s"))]
    name = one_line(facts.get("name") or "", limit=60)
    return Device(
        rank=rank,
        label=where + (f"GPU {gpu}" if gpu is not None else f"CPU worker {rank}"),
        source=read[1],
        gpu=gpu,
        identity=", ".join(filter(None, (name, one_line(facts.get("uuid") or "", limit=60)))),
        bits=one_line(bits, limit=60) if isinstance(bits, str) else None,
        rates=tuple(rate for _, rate in rows),
        times_s=tuple(t for t, _ in rows),
        memory_gb_s=statistics.median(memory) if memory else None,
        errors=errors,
        seen=seen,
        done=lines[-1].get("done") is True,
        node=node,
    )


def _headline(one: Mapping[str, Any]) -> float | None:
    rates = (number_at(one, "products", name, "tflops") for name in _HEADLINE)
    return next((rate for rate in rates if rate is not None and rate > 0), None)


def _errors(rounds: Sequence[Mapping[str, Any]]) -> tuple[Counter[str], str]:
    """Wrong answers by part, and the first of them in words. Those of a collective are by the rank that sent them."""
    errors: Counter[str] = Counter()
    seen = ""
    for one in rounds:
        parts = one.get("products")
        found = [
            (f"{name} product", "gemm", row) for name, row in (parts.items() if isinstance(parts, Mapping) else ())
        ]
        found += [("memory", "memory", one.get("memory")), ("collective", "collective", one.get("collective"))]
        for name, part, row in found:
            wrong = int(number_at(row, "wrong") or 0)
            if wrong > 0 and isinstance(row, Mapping):
                errors[part] += wrong
                seen = seen or f"round {int(number_at(one, 'round') or 0)}, {_words(name, row, wrong)}"
    return errors, seen


def _words(name: str, row: Mapping[str, Any], wrong: int) -> str:
    """A wrong answer in words: what, how much, and where, as far as the record says it."""
    if name == "memory":
        at, pattern = row.get("bytes_at"), one_line(row.get("pattern"), limit=20)
        where = f" at byte {int(at[0]):,}" if isinstance(at, list) and at and isinstance(at[0], int) else ""
        return f"{plural(wrong, 'word')} of memory did not keep the pattern {pattern}{where}"
    if name == "collective":
        sent = row.get("from")
        ranks = f" in what rank {listed(list(map(str, sent)))} sent" if isinstance(sent, Mapping) and sent else ""
        return f"{plural(wrong, 'element')} of {one_line(row.get('name'), limit=20)}{ranks}"
    again = row.get("again")
    text = f"{plural(wrong, 'element')} of the {one_line(name, limit=30)}"
    if not isinstance(again, list) or not again:
        return f"{text}, not wrong when it was repeated"
    values = [number_at(again[0], key) for key in ("row", "column", "found", "right")]
    if any(value is None for value in values):
        return text
    i, j, got, right = values
    return f"{text}, at [{i:.0f}, {j:.0f}] {got:g} in place of {right:g}"


def _charged(devices: Sequence[Device]) -> list[Device]:
    """With an error for each device whose answer differs from that of most; of two that differ for both."""
    answers = Counter(one.bits for one in devices if one.bits is not None)
    if len(answers) < 2:
        return list(devices)
    (most, count), (_, second) = answers.most_common(2)
    odd = {bits for bits in answers if bits != most or count == second}
    text = "its answer differs from that of most devices" if count > second else "answers differ between devices"
    return [
        one._replace(errors={**one.errors, "gemm": one.errors.get("gemm", 0) + 1}, seen=one.seen or text)
        if one.bits in odd
        else one
        for one in devices
    ]


# Rates, between devices and over time.


def _slower(devices: Sequence[Device]) -> dict[int, RelativeChange]:
    """Each device against the median of the others, part by part of the time."""
    known = [one for one in devices if len(one.blocks) >= _FEW]
    parts = min((len(one.blocks) for one in known), default=0)
    found: dict[int, RelativeChange] = {}
    for one in known if len(known) > 1 else ():
        others = [other.blocks for other in known if other is not one]
        away = [math.log(one.blocks[at] / statistics.median(each[at] for each in others)) for at in range(parts)]
        mean, error = statistics.fmean(away), statistics.stdev(away) / math.sqrt(parts)
        reach = t_quantile(1 - _ERROR / 2 / len(known), parts - 1) * error
        found[one.rank] = RelativeChange(math.expm1(mean), math.expm1(mean - reach), math.expm1(mean + reach))
    return found


def _sag(devices: Sequence[Device]) -> dict[int, RelativeChange]:
    """Each device's last third of the time against its first."""
    found: dict[int, RelativeChange] = {}
    for one in devices:
        third = len(one.blocks) // 3
        if third >= 2:
            last = ratio(one.blocks[-third:], one.blocks[:third])
            share = _ERROR / 2 / len(devices)
            found[one.rank] = RelativeChange(math.expm1(last.center), last.low(share), last.high(share))
    return found


# The machine during the run.


_Node = tuple[str, "Samples | None"]
"""Its name, empty on a single machine, and its samples."""


def _node_samples(gathered: ResultBuilder) -> list[_Node]:
    """In the order of their ranks; the samples of the first are those of the run."""
    found = []
    for name, folder in log_folders(gathered.out, gathered.evidence.nodes, groups=1):
        path = folder / "telemetry.csv"
        found.append((name, read_samples(path, gathered.read_log) if is_file(path) else None))
    gathered.evidence.samples = found[0][1]
    return found


def _by_driver(index: int, samples: Samples | None) -> int:
    """The driver's number of the GPU that is the process's `index`th: CUDA_VISIBLE_DEVICES may hide some."""
    names = () if samples is None else samples.columns
    visible = [int(name[3:-8]) for name in names if name.startswith("gpu") and name.endswith("_power_w")]
    return visible[index] if index < len(visible) else index


def _loads(nodes: Sequence[Samples | None], devices: Sequence[Device], per_node: int) -> dict[int, Load]:
    """Each rank's GPU from the first round to the last."""
    every = [t for one in devices for t in one.times_s]
    found = {}
    for one in devices:
        samples = nodes[one.rank // per_node] if 0 <= one.rank // per_node < len(nodes) else None
        if samples is not None and one.gpu is not None and every:
            found[one.rank] = _gpu_load(samples, one.gpu, min(every), max(every))
    return found


def _gpu_load(samples: Samples, gpu: int, first_s: float, last_s: float) -> Load:
    inside = (samples.times_s >= first_s) & (samples.times_s <= last_s)

    def column(name: str) -> Any:
        values = samples.columns.get(f"gpu{gpu}_{name}", np.empty(0))
        values = values[inside] if values.size else values
        return values[np.isfinite(values)]

    hot, power, clock = (column(name) for name in ("temperature_c", "power_w", "sm_clock_mhz"))
    masks = column("throttle_mask").astype(np.int64)
    every_bit = sum(SLOWDOWN_BITS)
    return Load(
        float(hot.max()) if hot.size else None,
        float(power.mean()) if power.size else None,
        float(clock.mean()) if clock.size else None,
        float(((masks & every_bit) != 0).mean()) if masks.size else None,
        tuple(text for bit, text in SLOWDOWN_BITS.items() if (masks & bit).any()),
    )


def _add_series(gathered: ResultBuilder, devices: Sequence[Device]) -> None:
    """The rate by round: of each device, and of the slowest in each round for the chart."""
    rounds = min(len(one.rates) for one in devices)
    if not rounds:
        return
    steps = np.arange(1, rounds + 1, dtype=np.int64)
    rates = np.array([one.rates[:rounds] for one in devices])
    sources = gathered.read_log.sources
    unit = gathered.unit_of("burnin_tflops")
    for one, values in zip(devices, rates, strict=True):
        source = sources[one.source]
        gathered.rank_series[one.rank] = {
            "burnin_tflops": Series("burnin_tflops", unit, steps, values, source, one.rank)
        }
    first = sources[devices[0].source]
    gathered.series["burnin_tflops"] = Series("burnin_tflops", unit, steps, rates.min(axis=0), first)
