"""The words of each launcher: what starts a trainer's ranks, and what a person would type for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from validator.model.launching import Container, Launcher, ProbeModule
from validator.model.runbook import Trainer
from validator.startup import shipped

_TORCHRUN = "torch.distributed.run"
_ACCELERATE_KINDS = frozenset(
    {"cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_parallelism_config", "config_file"}
)
"""Options that say what accelerate is to launch; without one of them several processes are its `--multi_gpu`."""


def trainer_python(trainer: Trainer, *, own: str) -> str:
    """The interpreter that starts the trainer; `own`, validator's, where the runbook names none.

    A folder is a virtual environment. In a container the name is one of the image's, and is not looked up here.
    """
    if trainer.container is not None:
        return trainer.python or "python"
    if trainer.python is None:
        return own
    folder = Path(trainer.python)
    return str(folder / "bin" / "python") if folder.is_dir() else trainer.python


def torchrun(python: str, nproc: int, out: str, *, nodes: int = 0, module: str = _TORCHRUN) -> tuple[str, ...]:
    """What starts `nproc` processes by torchrun, each with logs of its own; on each of `nodes` of a cluster.

    `module` is torchrun, or what takes its options.
    """
    across = ("--nnodes", "{nnodes}", "--node-rank", "{node_rank}") if nodes else ()
    return (
        *(python, "-m", module, *across),
        *("--nproc-per-node", str(nproc)),
        *("--master-addr", _meeting(nodes), "--master-port", "{port}"),
        *("--log-dir", f"{_logs(out, nodes)}/logs/ranks", "--redirects", "3"),
    )


def _meeting(nodes: int) -> str:
    return "{master_addr}" if nodes else "127.0.0.1"


def _logs(out: str, nodes: int) -> str:
    return "{node_out}" if nodes else out


def launched(
    launcher: Launcher,
    command: Sequence[str],
    *,
    args: Sequence[str],
    python: str,
    nproc: int,
    out: str,
    nodes: int = 0,
    bundled: bool = False,
) -> tuple[str, ...]:
    """The whole command of a run but the trainer's arguments: the launcher, its `args`, the trainer's `command`.

    On each of several `nodes` of a cluster `nproc` are its own ranks; placeholders are left for its agent. The
    `bundled` trainer has a torchrun of its own, whose ranks share one import of torch.
    """
    ranks = str(nproc)
    match launcher:
        case "plain":
            return tuple(command)
        case "python":
            return (python, *args, *command)
        case "torchrun":
            module = "nsa.launch" if bundled else _TORCHRUN
            return (*torchrun(python, nproc, out, nodes=nodes, module=module), *args, *command)
        case "accelerate":
            several = max(1, nodes)
            own: tuple[str, ...] = ("--num_processes", str(nproc * several), "--num_machines", str(several))
            own += ("--machine_rank", "{node_rank}") if nodes else ()
            own += ("--main_process_ip", _meeting(nodes), "--main_process_port", "{port}")
            own += ("--log_dir", f"{_logs(out, nodes)}/logs/ranks", "--tee", "3")
            return (python, "-m", "accelerate.commands.launch", *own, *_several(args, nproc * several), *args, *command)
        case "deepspeed":
            own = ("--num_gpus", ranks, "--master_addr", "127.0.0.1", "--master_port", "{port}")
            return (python, "-m", "deepspeed.launcher.runner", *own, *args, *_module(command))
        case "mpirun":
            return ("mpirun", "-np", ranks, *args, python, *command)


def typed(trainer: Trainer, launcher: Launcher, command: Sequence[str], *, nproc: int) -> tuple[str, ...]:
    """The same as a person types it, without ports and log folders."""
    if trainer.container is not None:
        own = trainer.model_copy(update={"container": None})
        return (*_entered(trainer.container), *typed(own, launcher, command, nproc=nproc))
    args = trainer.launcher_args
    python = "python" if trainer.python is None else trainer_python(trainer, own="python")
    own_bin = None if trainer.python is None or "/" not in python else str(Path(python).parent)

    def program(name: str) -> str:
        return name if own_bin is None else f"{own_bin}/{name}"

    match launcher:
        case "plain":
            return tuple(command)
        case "python":
            return (python, *args, *command)
        case "torchrun":
            return (program("torchrun"), f"--nproc-per-node={nproc}", *args, *command)
        case "accelerate":
            words = (program("accelerate"), "launch", f"--num_processes={nproc}", "--num_machines=1")
            return (*words, *_several(args, nproc), *args, *command)
        case "deepspeed":
            return (program("deepspeed"), f"--num_gpus={nproc}", *args, *_module(command))
        case "mpirun":
            return ("mpirun", "-np", str(nproc), *args, python, *command)


def _entered(container: Container) -> tuple[str, ...]:
    words = {"apptainer": ("apptainer", "exec"), "enroot": ("enroot", "start")}
    start = words.get(container.engine, (container.engine, "run", "--rm"))
    return (*start, *container.args, container.image)


def _several(args: Sequence[str], nproc: int) -> tuple[str, ...]:
    given = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in args if word.startswith("-")}
    return ("--multi_gpu",) if nproc > 1 and not given & _ACCELERATE_KINDS else ()


def _module(command: Sequence[str]) -> tuple[str, ...]:
    """deepspeed has another name for `-m`."""
    return ("--module", *command[1:]) if command[:1] == ("-m",) or command[:1] == ["-m"] else tuple(command)


# The probes are validator's own program, in whatever Python has the trainer's torch.

_OWN_NSA = (
    "import importlib.util as u, runpy, sys; place = sys.argv.pop(1); "
    "s = u.spec_from_file_location('nsa', place + '/__init__.py', submodule_search_locations=[place]); "
    "m = sys.modules['nsa'] = u.module_from_spec(s); s.loader.exec_module(m); "
    "runpy.run_module('nsa.{module}', run_name='__main__', alter_sys=True)"
)
"""The package `nsa` by its folder: that environment may have another of the name, or none, and is not searched."""


def own_probe(python: str, nproc: int, out: str, *, nodes: int = 0, module: ProbeModule = "probe") -> tuple[str, ...]:
    """What starts a program that comes along to probe the machine; its arguments may follow.

    Args:
        python: the trainer's, which has torch.
        nproc: processes under torchrun, on each node; 0 starts one without it.
        module: which of them.
    """
    code = (python, "-c", _OWN_NSA.replace("{module}", module), str(shipped("nsa")))
    return (*torchrun(python, nproc, out, nodes=nodes), "--no-python", *code) if nproc else code
