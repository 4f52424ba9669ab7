"""Preflight's checks of host and software, each with what was observed, what was expected and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from validator.model.runbook import Hardware, PreflightPhase
from validator.model.units import format_size
from validator.model.verdict import Check, Evidence, Status
from validator.observe.host import HostFacts
from validator.observe.software import GitFacts, PackageError, requirement, satisfies

__all__ = ["check", "git_checks", "host_checks", "package_checks"]

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
    message: str = "",
    required: bool = True,
    where: str | None = None,
) -> Check:
    """One check. `ok` None means that it could not be made, which is never a pass."""
    status: Status = "SKIPPED" if ok is None else "PASS" if ok else "FAIL"
    evidence = (Evidence(path=ENVIRONMENT, where=where, text=observed),) if where is not None else ()
    return Check(
        id=check_id,
        title=title,
        status=status,
        required=required,
        observed=observed,
        expected=expected,
        message=message,
        evidence=evidence,
    )


def host_checks(hardware: Hardware, facts: HostFacts) -> Iterator[Check]:
    """Cores, load, memory and disk. What the runbook does not declare is recorded and never fails."""
    yield _cores(hardware, facts)
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


def _cores(hardware: Hardware, facts: HostFacts) -> Check:
    wanted, usable = hardware.cpu_cores, facts.usable_cores
    observed = f"{usable:g} of {facts.cores_logical} cores usable ({facts.cpu_model})"
    if wanted is None:
        return check("cpu_cores", "CPU cores", ok=True, required=False, observed=observed, where="cpu")
    cause = "a quota of the container" if facts.cores_quota is not None else "the machine or its CPU affinity"
    ok = usable >= wanted
    message = f"{usable:g} cores are usable."
    if not ok:
        message = (
            f"{usable:g} cores are usable, fewer than {wanted}; {cause} sets the limit: raise it, "
            "or use a larger machine."
        )
    return check(
        "cpu_cores", "CPU cores", ok=ok, observed=observed, expected=f"at least {wanted}", message=message, where="cpu"
    )


def _load(facts: HostFacts) -> Check:
    if facts.load_1m is None:
        return check(
            "load", "CPU load", ok=None, required=False, observed="not known", message="No load is known here."
        )
    share = facts.load_1m / max(1.0, facts.usable_cores)
    ok = share <= BUSY_SHARE
    message = "The processor is idle enough for timings."
    if not ok:
        message = f"Other programs keep {share:.0%} of the usable cores busy, so timings will vary; end them first."
    return check(
        "load",
        "CPU load",
        ok=ok,
        required=False,
        observed=f"load of {facts.load_1m:.2f} over the last minute",
        expected=f"at most {BUSY_SHARE * max(1.0, facts.usable_cores):g}",
        message=message,
        where="cpu.load_1m",
    )


def _size(check_id: str, title: str, *, wanted: int | None, found: int | None, fix: str) -> Check:
    observed = "not known" if found is None else format_size(found)
    if wanted is None:
        return check(check_id, title, ok=True, required=False, observed=observed, where=check_id)
    ok = found is not None and found >= wanted
    message = f"{observed} available."
    if not ok:
        message = f"{observed} available, less than {format_size(wanted)}; {fix}."
    return check(
        check_id,
        title,
        ok=ok,
        observed=observed,
        expected=f"at least {format_size(wanted)}",
        message=message,
        where=check_id,
    )


def git_checks(phase: PreflightPhase, facts: GitFacts) -> Iterator[Check]:
    """The working tree: which commit, on the branch that is declared, changed or not."""
    if facts.why_none is not None:
        required = phase.git_clean or phase.git_branch is not None
        message = f"No commit can be recorded: {facts.why_none}; start validator in the repository of the trainer."
        yield check(
            "git",
            "Git commit",
            ok=None if not required else False,
            required=required,
            observed=facts.why_none,
            message=message,
        )
        return
    short = facts.sha[:12] if facts.sha is not None else "no commit yet"
    state = f"{facts.changed} changed file{'s' if facts.changed != 1 else ''}" if facts.dirty else "no changes"
    observed = f"{short} on {facts.branch}, {state}"
    message = "The working tree is as committed."
    if facts.dirty:
        message = (
            f"{state[0].upper()}{state[1:]} in the working tree: the commit alone does not tell what ran; commit first."
        )
    expected = "no changes" if phase.git_clean else None
    ok = not (phase.git_clean and facts.dirty)
    yield check(
        "git",
        "Git commit",
        ok=ok,
        required=phase.git_clean,
        observed=observed,
        expected=expected,
        message=message,
        where="git",
    )
    if phase.git_branch is not None:
        ok = facts.branch == phase.git_branch
        message = "The declared branch is checked out."
        if not ok:
            message = f"{facts.branch} is checked out, not {phase.git_branch}; run git switch {phase.git_branch}."
        yield check(
            "git_branch",
            "Git branch",
            ok=ok,
            observed=str(facts.branch),
            expected=phase.git_branch,
            message=message,
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
        ok = not torch.endswith("+cpu")
        message = "torch is built for GPUs."
        if not ok:
            message = f"torch {torch} is built for the CPU alone; install a CUDA build of torch."
        yield check(
            "torch_cuda",
            "torch is built for GPUs",
            ok=ok,
            observed=torch,
            expected="a CUDA build",
            message=message,
            where="packages",
        )


def _package(text: str, versions: dict[str, str | None], python: str) -> Check:
    try:
        name, bound = requirement(text)
    except PackageError as error:
        return check(f"package_{text}", f"Package {text}", ok=False, observed="not readable", message=f"{error}.")
    version = versions.get(name)
    title, expected = f"Package {name}", bound or "installed"
    if version is None:
        message = f"{name} is not installed for {python}; run {python} -m pip install '{text}'."
        return check(f"package_{name}", title, ok=False, observed="not installed", expected=expected, message=message)
    ok = satisfies(version, bound)
    message = f"{name} {version} is installed."
    if not ok:
        message = f"{name} {version} does not meet {bound}; run {python} -m pip install '{text}'."
    return check(
        f"package_{name}", title, ok=ok, observed=version, expected=expected, message=message, where="packages"
    )
