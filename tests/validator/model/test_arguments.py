"""The settings of a command: their values, other values in their place, and what their names say of them."""

from __future__ import annotations

import pytest

from validator.model.arguments import (
    changes_arithmetic,
    is_learning_rate,
    may_show_at_first,
    must_show_at_first,
    settings_in,
    shows_at_first,
    stated_tokens,
    undashed_in,
    value_in,
    with_value,
)

WORDS = ("train.py", "--steps", "{steps}", "--lr=1e-3", "--batch-size", "8", "model.dim=64", "--amp", "--seed", "-1")


def test_the_settings_of_a_command() -> None:
    assert settings_in(WORDS) == {
        **{"steps": "{steps}", "lr": "1e-3", "batch-size": "8", "model.dim": "64", "seed": "-1"}
    }
    assert value_in(WORDS, "batch_size") == "8"
    assert value_in((*WORDS, "--batch-size", "4"), "batch-size") == "4", "the last counts"
    assert value_in(WORDS, "width") is None


def test_options_of_one_dash_are_settings() -> None:
    words = ["t.py", "-u", "--dummy", "-b", "256", "-j4", "-lr", "0.1", "-x=3", "--shift", "-1", "-v", "-1", "--fast"]
    assert settings_in(words) == {"b": "256", "j": "4", "lr": "0.1", "x": "3", "shift": "-1", "v": "-1"}
    assert with_value(words, "b", "128") == tuple(" ".join(words).replace("256", "128").split())
    assert with_value(("t.py", "-b256"), "b", "8") == ("t.py", "-b8")
    stated = stated_tokens(settings_in(["t.py", "-b", "8", "--seq-len", "32"]))
    assert stated is not None
    assert stated.tokens == 256


def test_names_in_capitals_need_no_dashes_where_one_has_a_section() -> None:
    """The options of yacs: a value in capitals is no name."""
    line = "t.py --config-file c.yaml --resume DATASETS.TRAIN COCO SOLVER.IMS_PER_BATCH 16 SEED 3 OUTPUT_DIR out"
    words = line.split()
    assert settings_in(words) == {
        **{"config-file": "c.yaml", "DATASETS.TRAIN": "COCO", "SOLVER.IMS_PER_BATCH": "16"},
        **{"SEED": "3", "OUTPUT_DIR": "out"},
    }
    assert undashed_in(words) == {4, 6, 8, 10}
    assert " ".join(with_value(words, "SOLVER.IMS_PER_BATCH", "8")) == line.replace("16", "8")
    assert with_value(words, "SOLVER.BASE_LR", "0.1")[-2:] == ("SOLVER.BASE_LR", "0.1")
    assert settings_in(["t.py", "SEED", "3", "A", "B", "train.py", "-a", "RESNET", "4"]) == {"a": "RESNET"}, (
        "words alone are none"
    )
    assert settings_in(["t.py", "--cfg-options", "data.batch=8", "lr=1"])["data.batch"] == "8"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("batch_size", ("--batch-size", "2")),
        ("lr", ("--lr=2",)),
        ("model.dim", ("model.dim=2",)),
    ],
)
def test_another_value_is_put_in_place(name: str, expected: tuple[str, ...]) -> None:
    made = with_value(WORDS, name, "2")
    assert len(made) == len(WORDS)
    assert " ".join(expected) in " ".join(made)
    assert sum(a != b for a, b in zip(made, WORDS, strict=True)) == 1


def test_a_setting_given_twice_is_changed_twice() -> None:
    """Which of the two counts is the trainer's affair."""
    assert with_value(("--lr", "1", "--lr", "2"), "lr", "3") == ("--lr", "3", "--lr", "3")


@pytest.mark.parametrize(
    ("words", "added"),
    [
        (("t.py", "--max_iters={steps}", "--b", "1"), "--width=9"),
        (("t.py", "max_steps={steps}"), "width=9"),
        (("t.py", "--steps", "{steps}", "x=1"), "--width 9"),
        (("t.py",), "--width 9"),
    ],
)
def test_a_setting_that_is_not_there_is_written_as_the_others_are(words: tuple[str, ...], added: str) -> None:
    assert " ".join(with_value(words, "width", "9")) == f"{' '.join(words)} {added}"


@pytest.mark.parametrize(
    ("name", "arithmetic", "at_first"),
    [
        *((one, True, True) for one in ("args.training.seq_len", "args.lr", "env.NSA_BATCH_SIZE", "args.n-layers")),
        *((one, True, True) for one in ("args.learning_rate", "args.grad-accum", "args.hidden-size")),
        *((one, True, True) for one in ("args.batchsize", "args.seqlen", "env.NLAYERS", "args.learningrate")),
        ("args.block_size", True, True),
        *((one, True, True) for one in ("args.b", "args.bs")),
        *(
            (one, True, True)
            for one in ("args.lr0", "args.bptt", "args.d_model", "args.real_bsz", "args.tokens_per_batch")
        ),
        *(
            (one, True, True)
            for one in ("args.SOLVER.BASE_LR", "args.SOLVER.IMS_PER_BATCH", "args.data.samples_per_gpu")
        ),
        *((one, True, True) for one in ("args.global_batch_size", "args.ctx_len", "args.accumulate_grad_batches")),
        *(
            (one, False, False)
            for one in ("args.j", "args.p", "args.n", "args.g", "args.B", "env.B", "args.workers_per_gpu")
        ),
        *((one, True, False) for one in ("args.dtype", "args.n_head", "args.bf16")),
        ("args.attn-block-size", True, False),
        *((one, True, False) for one in ("args.min-lr", "args.lr_decay_iters", "args.weight-decay", "args.dropout")),
        *((one, True, False) for one in ("args.eval-batch-size", "args.max_seq_len", "args.lr_scheduler.warmup_steps")),
        *((one, False, False) for one in ("args.num_workers", "args.log-every", "args.save", "env.OMP_NUM_THREADS")),
    ],
)
def test_what_a_name_says(name: str, arithmetic: bool, at_first: bool) -> None:
    assert (changes_arithmetic(name), shows_at_first(name)) == (arithmetic, at_first)


PERHAPS = ("max-tokens", "update-freq", "micro_batch_size", "max_seq_len", "imgsz", "max_lr", "mbs", "max_duration")
NEVER = ("max_steps", "max_epochs", "eval_max_length", "max_new_tokens", "n_head", "warmup", "max_grad_norm", "j", "p")


def test_names_that_mean_work_in_some_trainers_are_worth_a_try_and_prove_nothing_alone() -> None:
    assert all(may_show_at_first(f"args.{one}") and not shows_at_first(f"args.{one}") for one in PERHAPS)
    assert not any(may_show_at_first(f"args.{one}") for one in NEVER)
    assert not any(must_show_at_first(f"args.{one}", ["t.py", f"--{one}", "4"]) for one in PERHAPS)
    rates = ("args.lr0", "args.max_lr", "args.lrf")
    assert [is_learning_rate(one) for one in rates] == [True, True, False]


@pytest.mark.parametrize(
    ("line", "name", "must"),
    [
        ("train.py d --max-tokens 4096 --max-update 100", "args.max-tokens", True),
        ("train.py dataset.max_tokens=4096 optimization.max_update=100", "args.dataset.max_tokens", True),
        ("train.py d --max-tokens 4096 --update-freq 2 --max-update 100", "args.update-freq", True),
        ("train.py d --max-tokens 4096 --batch-size 8 --max-update 100", "args.max-tokens", False),
        ("train.py d --max-tokens 4096 --max-steps 100", "args.max-tokens", False),
        ("train.py --batch-size 8", "args.batch-size", True),
    ],
)
def test_what_a_limit_of_tokens_is_follows_from_the_settings_beside_it(line: str, name: str, must: bool) -> None:
    assert must_show_at_first(name, line.split()) is must
