"""Preflight's checks of host and software, each with what was observed, what was expected and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from validator.model.runbook import Hardware, PreflightPhase
from validator.model.verdict import Check, Evidence, Status
from validator.system.host import HostFacts
from validator.system.software import GitFacts, PackageError, requirement, satisfies
from validator.text import format_percent, format_size

ENVIRONMENT = "environment.json"

BUSY_SHARE = 0.5
"""Load per usable core above which timings are not those of an idle machine."""


def check(
    check_id: str,
    title: str,
    *,
    ok: bool | None,
    observed: str,
    expected: str | None = None,
    good: str = "",
    bad: str = "",
    required: bool = True,
    where: str | None = None,
) -> Check:
    """One check, with the message `good` when it passes and `bad` otherwise.

    `ok` None means that it could not be made, which is never a pass. `where` is the key in environment.json.
    """
    status: Status = "SKIPPED" if ok is None else "PASS" if ok else "FAIL"
    return Check(
        id=check_id,
        title=title,
        status=status,
        required=required,
        observed=observed,
        expected=expected,
        message=good if ok else bad,
        evidence=(Evidence(path=ENVIRONMENT, where=where, text=observed),) if where is not None else (),
    )


def recorded(check_id: str, title: str, *, observed: str, where: str) -> Check:
    """What the runbook does not declare: it is recorded, and never fails."""
    return check(check_id, title, ok=True, required=False, observed=observed, where=where)


def host_checks(hardware: Hardware, facts: HostFacts) -> Iterator[Check]:
    """Cores, load, memory and disk. What the runbook does not declare is recorded and never fails."""
    yield _cores(hardware.cpu_cores, facts)
    yield _load(facts)
    yield _size(
        "memory",
        "Host memory",
        wanted=hardware.memory,
        found=facts.memory_usable_bytes,
        fix="end other programs, or lower hardware.memory",
    )
    yield _size(
        "disk",
        "Free disk space",
        wanted=hardware.disk_free,
        found=facts.disk_free_bytes,
        fix="free space, or write results elsewhere with --out",
    )


def _cores(wanted: int | None, facts: HostFacts) -> Check:
    usable = facts.usable_cores
    observed = f"{usable:g} of {facts.cores_logical} cores usable ({facts.cpu_model})"
    if wanted is None:
        return recorded("cpu_cores", "CPU cores", observed=observed, where="cpu")
    cause = "a quota of the container" if facts.cores_quota is not None else "the machine or its CPU affinity"
    return check(
        "cpu_cores",
        "CPU cores",
        ok=usable >= wanted,
        observed=observed,
        expected=f"at least {wanted}",
        good=f"Usable cores: {usable:g}.",
        bad=f"Usable cores: {usable:g}, fewer than {wanted}; {cause} sets the limit: raise it, "
        "or use a larger machine.",
        where="cpu",
    )


def _load(facts: HostFacts) -> Check:
    if facts.load_1m is None:
        message = "The load average is not available on this machine."
        return check("load", "CPU load", ok=None, required=False, observed="not known", bad=message)
    cores = max(1.0, facts.usable_cores)
    share = facts.load_1m / cores
    return check(
        "load",
        "CPU load",
        ok=share <= BUSY_SHARE,
        required=False,
        observed=f"load of {facts.load_1m:.2f} over the last minute",
        expected=f"at most {BUSY_SHARE * cores:g}",
        good="CPU load is low enough for timing.",
        bad=f"Other programs keep {format_percent(round(share, 2))} of the usable cores busy, "
        "so timings will vary; end them first.",
        where="cpu.load_1m",
    )


def _size(check_id: str, title: str, *, wanted: int | None, found: int | None, fix: str) -> Check:
    observed = "not known" if found is None else format_size(found)
    if wanted is None:
        return recorded(check_id, title, observed=observed, where=check_id)
    return check(
        check_id,
        title,
        ok=found is not None and found >= wanted,
        observed=observed,
        expected=f"at least {format_size(wanted)}",
        good=f"{observed} available.",
        bad=f"{observed} available, less than {format_size(wanted)}; {fix}.",
        where=check_id,
    )


def git_checks(phase: PreflightPhase, facts: GitFacts) -> Iterator[Check]:
    """The working tree: which commit, on the branch that is declared, changed or not."""
    if facts.why_none is not None:
        required = phase.git_clean or phase.git_branch is not None
        yield check(
            "git",
            "Git commit",
            ok=False if required else None,
            required=required,
            observed=facts.why_none,
            bad=f"No commit can be recorded: {facts.why_none}; start validator in the repository of the trainer.",
        )
        return
    short = facts.sha[:12] if facts.sha is not None else "no commit yet"
    state = f"{facts.changed} changed file{'s' if facts.changed != 1 else ''}" if facts.dirty else "no changes"
    changed = f"{state.capitalize()} in the working tree: the commit alone does not identify the code; commit first."
    yield check(
        "git",
        "Git commit",
        ok=not (phase.git_clean and facts.dirty),
        required=phase.git_clean,
        observed=f"{short} on {facts.branch}, {state}",
        expected="no changes" if phase.git_clean else None,
        good=changed if facts.dirty else "The working tree is as committed.",  # allowed, and worth knowing
        bad=changed,
        where="git",
    )
    if phase.git_branch is not None:
        yield check(
            "git_branch",
            "Git branch",
            ok=facts.branch == phase.git_branch,
            observed=str(facts.branch),
            expected=phase.git_branch,
            good="The declared branch is checked out.",
            bad=f"{facts.branch} is checked out, not {phase.git_branch}; run git switch {phase.git_branch}.",
            where="git.branch",
        )


def package_checks(
    phase: PreflightPhase, versions: dict[str, str | None], *, python: str, gpus: int
) -> Iterator[Check]:
    """Each declared package, in the trainer's interpreter; with GPUs also that torch is built for them."""
    for text in phase.packages:
        yield _package(text, versions, python)
    torch = versions.get("torch")
    if gpus > 0 and torch is not None:
        yield check(
            "torch_cuda",
            "torch is built for GPUs",
            ok=not torch.endswith("+cpu"),
            observed=torch,
            expected="a CUDA build",
            good="torch is built for GPUs.",
            bad=f"torch {torch} is built for the CPU alone; install a CUDA build of torch.",
            where="packages",
        )


def _package(text: str, versions: dict[str, str | None], python: str) -> Check:
    try:
        name, bound = requirement(text)
    except PackageError as error:
        return check(f"package_{text}", f"Package {text}", ok=False, observed="not readable", bad=f"{error}.")
    version = versions.get(name)
    fix = f"run {python} -m pip install '{text}'"
    wrong = f"is not installed for {python}" if version is None else f"{version} does not meet {bound}"
    return check(
        f"package_{name}",
        f"Package {name}",
        ok=version is not None and satisfies(version, bound),
        observed=version or "not installed",
        expected=bound or "installed",
        good=f"{name} {version} is installed.",
        bad=f"{name} {wrong}; {fix}.",
        where=None if version is None else "packages",
    )
