"""The matrix products of Hopper's tensor cores as functions of CUDA C++, one for each width that a kernel needs."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["products"]


def _product(n: int, *, half: bool, registers: bool) -> str:
    """``d [64, n] (+)= a [64, 16] b [16, n]`` by a warpgroup; ``a`` in ``registers`` or, as ``b``, in shared memory."""
    count = n // 2
    accumulators = ", ".join(f"%{i}" for i in range(count))
    kind = "f16" if half else "bf16"
    taken = 4 if registers else 1
    a = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}" if registers else f"%{count}"
    b, scale, transposed = (f"%{count + taken + i}" for i in range(3))
    transposes = f"{transposed}" if registers else f"{transposed}, %{count + taken + 3}"
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    a_type = "const u32 (&a)[4]" if registers else "u64 a"
    a_input = ", ".join(f'"r"(a[{i}])' for i in range(4)) if registers else '"l"(a)'
    template = "int TB" if registers else "int TA, int TB"
    last = '"n"(TB)' if registers else '"n"(TA), "n"(TB)'
    return f"""
template <{template}> DEVICE void multiply(float (&d)[{count}], {a_type}, u64 b, int accumulate) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {scale}, 0;\\n"
                 "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} "
                 "{{{accumulators}}}, {a}, {b}, p, 1, 1, {transposes};\\n}}"
                 : {outputs}
                 : {a_input}, "l"(b), "r"(accumulate), {last});
}}"""


def products(widths: Iterable[int], *, half: bool) -> str:
    """``multiply<TA, TB>(d, a, b, accumulate)`` with both operands in shared memory and ``multiply<TB>`` with ``a`` in
    registers, for each width of ``d``, in float16 (``half``) or bfloat16. ``T`` is 1 for an operand that lies across.
    """
    return "\n".join(_product(n, half=half, registers=r) for n in sorted(set(widths)) for r in (False, True)) + "\n"
