"""Ways to damage a text: of bytes, of lines, and of whole files. Every mutation follows from its seed."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

__all__ = ["mutate_bytes", "mutate_file"]

_JUNK = (
    *(b"\0" * 16, b"\n", b"\r\n", b",,,,", b"nan", b"-inf", b"1e400", b'"', b"{", b"}}", b"[[[[", b"\xff\xfe"),
    *(b"step,loss\n", b"null", b"-0", b"<script>", b"\x1b[2J", b"\xe2\x80\xae", b"99999999999999999999", b": ", b"- "),
    *(b"&a *a", b"!!python/object", b"'", b"\t", b"#", b"|\n", b"true", b"0x1F", b"1_0", b"\xf0\x9f\x92\xa5"),
    *(b'"seq_len": -1', b'"world_size": 0', b'"world_size": 1e99', b'"tokens_per_step": NaN', b"0 steps remaining"),
    *(b"ETA 1e9 h", b"ETA 99:99:99", b"speedup 0x\nspeedup 9x", b"step 0/0 eta 5 h"),
)


def _span(draw: random.Random, size: int) -> tuple[int, int]:
    low = draw.randrange(size + 1)
    return low, min(size, low + draw.choice((1, 1, 3, 10, 80, 1000)))


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """One mutation of a text."""
    low, high = _span(draw, len(data))
    way = draw.choice(
        ("insert", "replace", "delete", "cut", "head", "flip", "double", "lines", "lines", "swap", "line")
    )
    if way == "insert":
        return data[:low] + draw.choice(_JUNK) + data[low:]
    if way == "replace":
        return data[:low] + draw.choice(_JUNK) + data[high:]
    if way == "delete":
        return data[:low] + data[high:]
    if way == "cut":
        return data[:low]
    if way == "head":
        return data[low:]
    if way == "flip":
        return data[:low] + bytes(draw.randrange(256) for _ in range(high - low)) + data[high:]
    if way == "double":
        return data + data[low:high] if draw.random() < 0.5 else data[:high] + data[low:]
    return _mutate_lines(data, way, draw)


def _mutate_lines(data: bytes, way: str, draw: random.Random) -> bytes:
    lines = data.split(b"\n")
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    if way == "swap":
        lines[one], lines[other] = lines[other], lines[one]
    elif way == "line":
        lines[one] = draw.choice((lines[other], lines[one] * 2, lines[one][::-1], draw.choice(_JUNK), b""))
    else:
        low, high = sorted((one, other))
        del lines[low : min(high, low + draw.choice((1, 1, 5, 50)))]
    return b"\n".join(lines)


def mutate_file(path: Path, draw: random.Random, *, names: Sequence[str]) -> None:
    """Damage a file, or put something else in its place."""
    way = draw.random()
    if not path.is_file() or path.is_symlink() or path.stat().st_size > 2**26:
        return
    if way < 0.04:
        path.unlink()
    elif way < 0.06:
        path.unlink()
        path.mkdir()
    elif way < 0.08:
        path.write_bytes(b"")
    elif way < 0.1:
        path.unlink()
        path.symlink_to(draw.choice(("/dev/null", "/etc/hostname", str(path), "nowhere")))
    elif way < 0.12:
        other = path.with_name(Path(draw.choice(list(names))).name)
        if other.is_file() and other != path:
            shutil.copyfile(other, path)
    elif way < 0.14:
        then = draw.uniform(0, 2e9)
        os.utime(path, (then, then))
    else:
        data = path.read_bytes()
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            data = mutate_bytes(data, draw)
        path.write_bytes(data)
