"""The settings of a command: their values, other values in their place, and what their names say of them."""

from __future__ import annotations

import pytest

from validator.model.arguments import changes_arithmetic, settings_in, shows_at_first, value_in, with_value

WORDS = ("train.py", "--steps", "{steps}", "--lr=1e-3", "--batch-size", "8", "model.dim=64", "--amp", "--seed", "-1")


def test_the_settings_of_a_command() -> None:
    assert settings_in(WORDS) == {
        **{"steps": "{steps}", "lr": "1e-3", "batch-size": "8", "model.dim": "64", "seed": "-1"}
    }
    assert value_in(WORDS, "batch_size") == "8"
    assert value_in((*WORDS, "--batch-size", "4"), "batch-size") == "4", "the last counts"
    assert value_in(WORDS, "width") is None


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
        *((one, True, False) for one in ("args.dtype", "args.n_head", "args.bf16")),
        ("args.attn-block-size", True, False),
        *((one, True, False) for one in ("args.min-lr", "args.lr_decay_iters", "args.weight-decay", "args.dropout")),
        *((one, True, False) for one in ("args.eval-batch-size", "args.max_seq_len", "args.lr_scheduler.warmup_steps")),
        *((one, False, False) for one in ("args.num_workers", "args.log-every", "args.save", "env.OMP_NUM_THREADS")),
    ],
)
def test_what_a_name_says(name: str, arithmetic: bool, at_first: bool) -> None:
    assert (changes_arithmetic(name), shows_at_first(name)) == (arithmetic, at_first)
