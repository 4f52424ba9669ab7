"""Whether a changed run did something else: equal digits, rounding, noise, coarse digits, step times."""

from __future__ import annotations

import random

import pytest

from validator.stats.effect import contrast_losses, contrast_times, rows_needed


def losses(n: int = 6, *, seed: int = 1, digits: int | None = 4, scale: float = 1.0) -> dict[int, float]:
    """Losses that fall and scatter, as a trainer with this seed writes them."""
    noise = random.Random(seed)
    raw = {step: scale * (4 - 0.1 * step + 0.05 * noise.gauss(0, 1)) for step in range(1, n + 1)}
    return raw if digits is None else {step: round(value, digits) for step, value in raw.items()}


def shifted(run: dict[int, float], by: float, *, after: int = 0) -> dict[int, float]:
    """The same with losses that lie apart behind step `after`."""
    return {step: round(value + by * (step > after), 9) for step, value in run.items()}


A = losses()


@pytest.mark.parametrize("digits", [3, 4, None])
def test_equal_digits_are_the_same_run(digits: int | None) -> None:
    run = losses(digits=digits)
    assert contrast_losses([run, run], run).outcome == "same"


@pytest.mark.parametrize("other", [losses(seed=2), shifted(A, 0.01), shifted(A, 0.002, after=2)])
def test_other_losses_are_another_run(other: dict[int, float]) -> None:
    assert contrast_losses([A, A], other).outcome == "different"
    assert contrast_losses([A, A], other, after_update=True).outcome == "different"


def test_a_loss_that_is_no_longer_finite_is_another_run() -> None:
    assert contrast_losses([A, A], {**A, 5: float("nan")}).outcome == "different"
    assert contrast_losses([{**A, 5: float("nan")}] * 2, A).outcome == "open"


def test_few_digits_say_nothing_until_there_are_many_rows() -> None:
    few, many = losses(6, digits=2), losses(30, digits=2)
    assert contrast_losses([few, few], few).outcome == "open"
    assert "so few digits" in contrast_losses([few, few], few).why
    assert contrast_losses([many, many], many).outcome == "same"
    flat = dict.fromkeys(range(1, 31), 0.69)
    assert contrast_losses([flat, flat], flat).outcome == "open", "a loss that never moves"


@pytest.mark.parametrize("seed", range(20))
def test_losses_of_few_digits_get_the_rows_that_tell_runs_apart(seed: int) -> None:
    """A bar that prints 7.79 had six rows: an ignored batch size was not decided, and forbade no GO."""
    rows = rows_needed([*losses(12, seed=seed, digits=2).values()], 6, 40)
    assert rows > 6
    run = losses(rows, seed=seed + 100, digits=2)
    assert contrast_losses([run, run], run).outcome == "same"
    assert rows_needed([*losses(12, seed=seed, digits=6).values()], 6, 40) == 6
    assert rows_needed([*losses(12, seed=seed, digits=1).values()], 6, 40) == 40
    assert rows_needed([2.0], 6, 40) == 6, "too few to know their scatter"


def test_few_rows_say_nothing() -> None:
    short = losses(4)
    assert contrast_losses([short, short], short).outcome == "open"
    assert contrast_losses([losses(2), losses(2)], losses(2, seed=5)).outcome == "open"
    apart = {step + 100: value for step, value in A.items()}
    assert contrast_losses([A, A], apart).outcome == "open", "no step in common"


def test_a_learning_rate_needs_rows_behind_the_first_updates_and_enough_digits() -> None:
    five = losses(5)
    assert contrast_losses([five, five], five, after_update=True).outcome == "open"
    assert contrast_losses([A, A], A, after_update=True).outcome == "same"
    coarse = losses(30, digits=2)
    assert contrast_losses([coarse, coarse], coarse, after_update=True).outcome == "open"


def test_one_last_digit_is_rounding_and_no_proof() -> None:
    """A trainer that sums in another order each time agrees with itself by luck, and then differs by a digit."""
    assert contrast_losses([A, A], {**A, 6: round(A[6] + 1e-4, 4)}).outcome == "open"
    half = {step: 10.8125 + 0.0625 * (step % 3) for step in range(1, 7)}  # a loss that was a bfloat16
    assert contrast_losses([half, half], {**half, 6: half[6] + 0.0625}).outcome == "open"


def test_runs_that_differ_by_rounding_show_a_change_that_is_much_larger() -> None:
    """As on a GPU without deterministic kernels: some millionths, which grow with the steps."""
    run = losses(digits=None)
    again = {step: value * (1 + 1e-6 * 2**step) for step, value in run.items()}
    third = {step: value * (1 - 1e-6 * 2**step) for step, value in run.items()}
    assert contrast_losses([run, again], third).outcome == "open"
    found = contrast_losses([run, again], losses(seed=3, digits=None))
    assert (found.outcome, found.repeatable) == ("different", False)
    assert contrast_losses([run, again], shifted(run, 0.02, after=2), after_update=True).outcome == "different"


def test_runs_without_a_seed_never_decide() -> None:
    """Losses of other data: whether the setting is obeyed or not, no answer may be given."""
    for seed in range(300):
        one, two, other = (losses(seed=3 * seed + n, digits=None) for n in range(3))
        found = contrast_losses([one, two], other)
        assert (found.outcome, found.repeatable) == ("open", False)


def test_step_times_decide_only_where_every_step_is_clearly_faster_or_slower() -> None:
    declared = [[1.0, 1.02, 0.99, 1.1], [1.01, 1.0, 1.05, 1.2]]
    assert contrast_times(declared, [0.5, 0.55, 0.52]) is not None
    assert contrast_times(declared, [2.0, 2.1, 2.2]) is not None
    assert contrast_times(declared, [0.5, 0.55, 0.9]) is None, "one of them is not"
    assert contrast_times(declared, [0.8, 0.8, 0.8]) is None, "as on a machine that others use"
    assert contrast_times(declared, [0.5, 0.5]) is None, "too few"
    assert contrast_times([[1.0, 1.0, 1.0], []], [0.5, 0.5, 0.5]) is None
    assert contrast_times([[0.0, 1.0, 1.0]] * 2, [0.5, 0.5, 0.5]) is None, "rows that came at once"


def test_a_bar_that_prints_other_steps_in_each_run_is_told_so() -> None:
    """Drawn by time it shows other steps each time, and more of them were asked for."""
    runs = [{first + 7 * i: 2.0 - 0.01234 * i for i in range(40)} for first in (1, 3, 5)]
    found = contrast_losses(runs[:2], runs[2])
    assert (found.outcome, found.others) == ("open", True)
    assert "each prints others" in found.why
    assert not contrast_losses([{1: 2.0}, {1: 2.0}], {1: 2.0}).others
