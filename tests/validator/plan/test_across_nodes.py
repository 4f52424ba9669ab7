"""What is planned for the nodes of a cluster: groups, commands with what agents fill in, and batch files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validator.plan.test_plan import book, train
from validator.errors import UserError
from validator.model.plan import RunSpec
from validator.plan import make_plan
from validator.plan.batch import batch_script

OUT = "/runs/one/runs/a/r1"
LOCAL = {"engine": "local", "nodes": 3, "spare": 1}


def spec_of(cluster: object = LOCAL, **phase: object) -> RunSpec:
    (run,) = make_plan(book(train(nproc=2, **phase), cluster=cluster), run_dir=Path("/runs/one"), python="/py").runs
    return run


def test_all_nodes_meet_in_one_group_with_their_ranks_together() -> None:
    run = spec_of()
    assert run.groups == ((0, 1, 2),)
    assert (run.nproc, run.out) == (6, "runs/a/r1")
    assert run.argv[:14] == (
        *("/py", "-m", "nsa.launch", "--nnodes", "{nnodes}", "--node-rank", "{node_rank}"),
        *("--nproc-per-node", "2", "--master-addr", "{master_addr}", "--master-port", "{port}", "--log-dir"),
    )
    assert run.argv[14] == "{node_out}/logs/ranks"
    assert OUT in run.argv


def test_each_node_alone_has_a_folder_of_its_own_and_spare_ones_take_part() -> None:
    run = spec_of(on="each")
    assert run.groups == ((0,), (1,), (2,), (3,))
    assert (run.nproc, run.argv[-1]) == (2, f"{OUT}/{{group}}")


def test_a_number_takes_the_first_nodes() -> None:
    assert spec_of(on=2).groups == ((0, 1),)


def test_without_a_cluster_nothing_is_left_to_agents() -> None:
    (run,) = make_plan(book(train(nproc=2)), run_dir=Path("/runs/one"), python="/py").runs
    assert run.groups == ()
    assert not any("{node" in word or "{master" in word for word in run.argv)


def test_a_trainer_that_starts_its_ranks_is_told_by_its_environment_where_they_meet() -> None:
    trainer = {"command": ["./train", "{out}", "{node_rank}/{nnodes}"], "launcher": "plain"}
    (run,) = make_plan(book(train(), cluster=LOCAL, trainer=trainer), run_dir=Path("/runs/one"), python="/py").runs
    assert run.argv[:3] == ("./train", OUT, "{node_rank}/{nnodes}")
    assert run.env["MASTER_ADDR"] == "{master_addr}"
    assert (run.env["NODE_RANK"], run.env["NNODES"]) == ("{node_rank}", "{nnodes}")


def test_accelerate_is_given_its_machine() -> None:
    trainer = {"command": ["train.py", "{out}"], "launcher": "accelerate"}
    (run,) = make_plan(
        book(train(nproc=2), cluster=LOCAL, trainer=trainer), run_dir=Path("/runs/one"), python="/py"
    ).runs
    words = " ".join(run.argv)
    assert "--num_processes 6 --num_machines 3 --machine_rank {node_rank}" in words
    assert "--main_process_ip {master_addr} --main_process_port {port}" in words


def test_a_batch_file_asks_for_every_node_and_resumes_after_a_requeue(tmp_path: Path) -> None:
    cluster = {"engine": "slurm", "nodes": 4, "spare": 1, "slurm": {"partition": "gpu", "args": ["--reservation=x"]}}
    text = batch_script(
        book(train(), cluster=cluster), tmp_path / "a b.yaml", overrides=("x=1 2",), out=tmp_path, requeue=True
    )
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert {"--nodes=5", "--partition=gpu", "--reservation=x", "--requeue", "--signal=B:TERM@120"} <= {*options}
    assert '--resume "$begun"' in text
    assert f"'{tmp_path}/a b.yaml' '--set=x=1 2' --out \"$folder\"" in text


@pytest.mark.parametrize("cluster", [None, LOCAL])
def test_a_batch_file_is_one_of_slurm(cluster: object, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a batch job is one of Slurm"):
        batch_script(book(train(), cluster=cluster), tmp_path / "x.yaml", overrides=(), out=tmp_path, requeue=True)
