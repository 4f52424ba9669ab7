"""What is promised of old versions is held by any version: Python 3.10, torch 2.6 and the Triton that comes with it.

The rest of the promise is mypy's and ruff's, which read the code as Python 3.10 (pyproject.toml).
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
SOURCES = sorted(p for folder in ("validator", "nsa", "benchmarks", "tests") for p in (ROOT / folder).rglob("*.py"))

# What kernels find in `triton.language` of Triton 3.2, the oldest that torch brings along. A name that came later has
# to be looked up with a default where the module is imported: hashing a kernel reads every name in it.
IN_TRITON_3_2 = """
    abs add advance arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas atomic_max
    atomic_min atomic_or atomic_xchg atomic_xor bfloat16 broadcast broadcast_to cast cat cdiv ceil clamp const
    constexpr cos cumprod cumsum debug_barrier device_assert device_print div_rn dot dot_scaled dtype erf exp exp2
    expand_dims extra extra.cuda fdiv flip float16 float32 float64 floor fma full histogram inline_asm_elementwise
    int1 int16 int32 int64 int8 interleave join load log log2 make_block_ptr math math.abs math.ceil math.exp
    math.exp2 math.floor math.fma math.log math.log2 math.rsqrt math.sqrt max max_constancy max_contiguous maximum
    min minimum multiple_of num_programs permute program_id range ravel reduce reshape rsqrt sigmoid softmax sort
    split sqrt static_assert static_print static_range store sum tensor trans uint16 uint32 uint64 uint8 view where
    xor_sum zeros zeros_like
"""


def test_every_file_is_python_3_10() -> None:
    for path in SOURCES:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 10))


def test_the_tools_read_the_code_as_the_oldest_python() -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r'^(requires-python|target-version|python_version) = "(.+)"$', settings, re.MULTILINE) == [
        ("requires-python", ">=3.10"),
        ("target-version", "py310"),
        ("python_version", "3.10"),
    ]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_tool_is_pinned_once_for_each_python(python: str) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    here = Counter(p.name for p in pins if p.marker is None or p.marker.evaluate({"python_version": python}))
    assert here == Counter({p.name for p in pins})


def _chain(node: ast.expr) -> list[str]:
    """`a.b.c` as its names; empty for anything else."""
    if isinstance(node, ast.Attribute):
        before = _chain(node.value)
        return [*before, node.attr] if before else []
    return [node.id] if isinstance(node, ast.Name) else []


def test_the_kernels_use_of_triton_what_its_oldest_release_has() -> None:
    used: set[str] = set()
    for path in (ROOT / "nsa" / "kernels").glob("*.py"):
        chains = (_chain(n) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute))
        used |= {".".join(chain[1:]) for chain in chains if chain[:1] == ["tl"]}
    assert len(used) > 20
    assert not used - set(IN_TRITON_3_2.split())
