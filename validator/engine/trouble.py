"""What clients of an engine write to standard error, and what to do about it."""

from __future__ import annotations

import re

_NOISE = re.compile(r"lacks support for cpu binding|^\s*$")
_FIXES = (
    (
        r"No module named '?validator",
        "validator is not installed for that Python: run `pip install training-validator` there, "
        "or name another one in cluster.ssh.python",
    ),
    (
        r"(?:exec|execve|env|sh|bash)\b.*(?:No such file|not found)",
        "there is no such Python on that node: install validator at the same path on all nodes, "
        "or name another one in cluster.ssh.python",
    ),
    (
        r"Permission denied|Host key verification failed|Too many authentication",
        "try `ssh HOST true` without a password: it needs a key in an agent or a file, and a known host key",
    ),
    (
        r"Could not resolve|Connection refused|Connection timed out|No route to host|Network is unreachable",
        "check the host in cluster.ssh.hosts, and that its ssh server answers",
    ),
    (
        r"configuration source|slurm\.conf|Unable to contact slurm controller",
        "check SLURM_CONF, and that `scontrol ping` answers on this machine",
    ),
    (r"nodes are busy|temporarily disabled", "another step of the job holds these nodes: end it (`squeue -s`)"),
)


def known_fix(errors: str) -> str | None:
    """What to do about a standard error; None where it is not known."""
    return next((fix for pattern, fix in _FIXES if re.search(pattern, errors)), None)


def explained(errors: str) -> str:
    """The last lines of a standard error, with the fix of the first one that is known."""
    lines = [line.strip() for line in errors.splitlines() if not _NOISE.search(line)]
    return "; ".join(filter(None, [*(line[:300] for line in lines[-4:]), known_fix(errors)]))
