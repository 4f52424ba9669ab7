"""The runbook that is written is a sound one, whatever was seen, and never one that could end in GO as it is."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import yaml

from tests.validator.report import samples
from validator.init.command import TrainerCommand
from validator.init.draft import draft, lengths_of, yaml_text
from validator.init.launch import CommandLaunch
from validator.init.length import printed_total, total_of_epochs
from validator.init.reading import TrialReading
from validator.init.settings import with_placeholders
from validator.init.watched import WatchedCommand, _TrialWatch
from validator.init.work import last_run, with_more_rows, with_soak, with_tokens_line
from validator.kinds.registry import load, loads
from validator.model.expression import open_reference
from validator.model.result import Result, Series, SourceFile
from validator.model.settings import timeout_of
from validator.model.training_phases import SoakPhase, TrainPhase
from validator.supervise.wait import CancelToken

UNITS = {"loss": "nat", "step_time_s": "s", "toks_per_s": "tok/s", "samples_per_s": ""}


def reading(*names: str, stride: int = 1) -> TrialReading:
    source = SourceFile(path="logs/stdout.log", sha256="0" * 64, bytes=1)
    steps = np.arange(stride, 12 * stride + 1, stride, dtype=np.int64)
    values = np.linspace(3.0, 2.0, len(steps))
    series = {name: Series(name, UNITS[name], steps, values, source) for name in names}
    nothing: dict[str, dict[str, float]] = {key: {} for key in ("rank_series", "scalars", "requested", "effective")}
    result = Result(run="r", series=series, environment={}, irregularities=(), sources=(), **nothing)
    groups = " ".join(f"{name} {{{name}}}" for name in names)
    return TrialReading({"stdout": f"step {{step}} {groups}"}, "what it prints", result)


def watched(
    line: str, found: TrialReading | None, *, gpus: int = 0, step_s: float | None = 0.1, nproc: int = 0
) -> WatchedCommand:
    words = tuple(line.split())
    made, ours = with_placeholders(words)
    launch = CommandLaunch("torchrun" if nproc else "python", words, nproc=nproc, env={"A": "1:2"})
    command = TrainerCommand(("python", *words), launch, made, ours)
    return WatchedCommand(command, found, 6.0, step_s, gpus)


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize(
    "found",
    [
        reading("loss", "step_time_s"),
        reading("loss", "toks_per_s", "step_time_s"),
        reading("loss", "samples_per_s"),
        reading("loss", stride=10),
        reading("step_time_s"),
        None,
    ],
    ids=lambda one: "-".join(one.series) if one else "nothing",
)
def test_it_passes_check_and_waits_for_its_bounds(found: TrialReading | None, gpus: int, tmp_path: Path) -> None:
    line = 'train.py --max_iters 100000 --out_dir=o --note it\'s-"so" --json {{x}} yes 1e3 a:b'
    path = tmp_path / "made.yaml"
    path.write_text(draft(watched(line, found, gpus=gpus, nproc=gpus), name="made", base=tmp_path))
    loaded = load(path)
    assert any(" is open, so the decision cannot be GO" in warning.message for warning in loaded.warnings)
    command = loaded.runbook.trainer.command
    assert command[:4] == ("train.py", "--max_iters", "{steps}", "--out_dir={out}")
    assert command[4:] == ("--note", 'it\'s-"so"', "--json", "{{{{x}}}}", "yes", "1e3", "a:b")
    assert loaded.runbook.defaults.nproc == gpus
    assert loaded.runbook.defaults.env == {"A": "1:2"}
    assert [phase.id for phase in loaded.runbook.phases] == ["baseline", "soak"]


@pytest.mark.parametrize("text", [".", "..", "../a", ".5", "-.5", "1_0", "0x1f", "0o17", "1:20", "2020-01-01", "no"])
def test_a_text_stays_a_text(text: str) -> None:
    assert yaml.safe_load(yaml_text(text)) == text
    assert yaml_text(text) == text or text[-1] != "."


def test_without_a_length_or_a_folder_it_is_still_sound() -> None:
    text = draft(watched("train.py", reading("loss", "step_time_s")), name="made", base=Path("/"))
    book = loads(text)
    assert book.trainer.args == {}
    assert "No setting of the length in steps is known" in text
    assert "No setting of the output folder is known" in text


def test_each_bound_on_what_is_fast_is_open() -> None:
    tree = yaml.safe_load(draft(watched("train.py", reading("loss", "toks_per_s")), name="made", base=Path("/")))
    accept = tree["phases"][0]["accept"]
    assert "toks_per_s.mean >= ? tok/s" in accept
    assert sum(open_reference(one) is not None for one in accept if isinstance(one, str)) == 1


def test_a_loss_alone_is_bounded_by_the_time_of_its_steps_too() -> None:
    tree = yaml.safe_load(draft(watched("train.py", reading("loss")), name="made", base=Path("/")))
    assert "step_time_s.mean <= ? s" in tree["phases"][0]["accept"]
    assert "step_time_s.mean <= 1.1 * baseline.step_time_s.mean" in tree["phases"][1]["accept"]


def test_a_trainer_without_a_loss_is_declared_to_have_none() -> None:
    """accelerate's scripts without tracking print nothing but a bar; without this no run of them could be GO."""
    text = draft(watched("train.py", reading("step_time_s")), name="made", base=Path("/"))
    assert loads(text).trainer.metrics.no_loss
    assert "loss." not in text
    source = SourceFile(path="losses.csv", sha256="0" * 64, bytes=1)
    steps = np.arange(1, 13)
    own = {name: Series(name, "", steps, np.linspace(1, 2, 12), source) for name in ("loss_d", "loss_g")}
    opposed = reading("loss")
    opposed = replace(opposed, metrics={"csv": "losses.csv"}, result=replace(opposed.result, series=own))
    text = draft(watched("train.py --out_dir o", opposed), name="made", base=Path("/"))
    assert loads(text).trainer.metrics.no_loss, "a criterion on its loss made the runbook invalid, and none was written"
    assert "no_loss" not in draft(watched("train.py", reading("loss", "step_time_s")), name="made", base=Path("/"))


def test_no_bound_is_written_that_no_machine_was_seen_to_meet() -> None:
    """Single steps of a healthy trainer on a CPU vary by tens of per cent; steadiness is judged by findings."""
    assert ".cv" not in draft(watched("train.py", reading("loss", "step_time_s")), name="made", base=Path("/"))


@pytest.mark.parametrize(
    ("shown", "total"),
    [
        ("Epoch: [0][ %d/500] loss 2.0", None),
        ("Epoch 0:  3%%|#  | %d/500 [00:01<00:20]", None),
        ("step %d of 600 | 0.4 s", 600),
        (" 3%%|#   | %d/75 [00:01<00:20,  1.2it/s]", 75),
        ("11/%d/2026 10:00 step loss", None),
        ("step %d loss 2.0 3/4", None),
        ("batch %d/7", None),
    ],
)
def test_a_trainer_that_says_how_long_it_is_runs_no_longer(shown: str, total: int | None, tmp_path: Path) -> None:
    """A healthy one that did its 75 steps had not done 180 of 180."""
    log = tmp_path / "logs" / "stdout.log"
    log.parent.mkdir()
    log.write_text("".join(shown % step + "\n" for step in range(1, 13)))
    assert printed_total(reading("loss"), tmp_path) == total
    lengths = lengths_of(replace(watched("t.py", reading("loss")), total=total))
    assert lengths.baseline == min(1200, total or 1200)
    assert (lengths.soak is None) == (total is not None)
    assert lengths_of(replace(watched("t.py --max_iters 200", reading("loss")), total=75)).baseline == 200


def test_the_number_of_epochs_is_a_length_where_a_step_is_an_epoch(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "stdout.log"
    log.parent.mkdir()
    log.write_text("".join(f"epoch {step}/30 loss 2.0\n" for step in range(1, 13)))
    assert printed_total(reading("loss"), tmp_path) is None
    assert printed_total(replace(reading("loss"), by_epochs=True), tmp_path) == 30


_WLM = "epoch +{epoch} .* +{step}/ *{steps_per_epoch} batches .* loss +{loss}"


@pytest.mark.parametrize(
    ("pattern", "shown", "epochs", "total"),
    [
        (_WLM, "| epoch 1 | %d/   60 batches | loss 2.0", 5, 299),
        (_WLM, "Epoch 1/5 | epoch 1 | %d/60 batches | loss 2.0", None, 299),
        (_WLM, "| epoch 1 | %d/60 batches | loss 2.0", None, None),
        ("{row}Train Epoch: \\d+ .* Loss: {loss}", "Train Epoch: 1 [%d0/1000 (1%%)] Loss: 2.0", 1, 99),
        ("{row}Train Epoch: \\d+ .* Loss: {loss}", "Train Epoch: 1 [%d0/1000 (1%%)] Loss: 2.0", 3, 297),
        ("{row}loss {loss}", "loss 2.%d", 3, None),
        ("step {step} loss {loss}", "epoch 1/5 step %d loss 2.0", 5, None),
    ],
)
def test_epochs_of_a_printed_length_say_how_long_a_trainer_is(
    pattern: str, shown: str, epochs: int | None, total: int | None, tmp_path: Path
) -> None:
    """A healthy one that did its 5 epochs of 60 batches had not done 3,200 steps."""
    log = tmp_path / "logs" / "stdout.log"
    log.parent.mkdir()
    log.write_text("".join(shown % step + "\n" for step in range(1, 13)))
    found = replace(reading("loss"), metrics={"stdout": pattern})
    assert total_of_epochs(found, tmp_path, epochs) == total
    assert total_of_epochs(replace(found, by_epochs=True), tmp_path, epochs) is None


@pytest.mark.parametrize(("first", "total"), [(1, 400), (0, 396)])
def test_an_epoch_that_was_seen_to_its_end_says_where_the_last_row_is(first: int, total: int, tmp_path: Path) -> None:
    """394 steps were asked of a trainer of 400, since its last row might have been one stride before the end."""
    log = tmp_path / "logs" / "stdout.log"
    log.parent.mkdir()
    rows = range(5 * first, 80 + first, 5) if first else range(0, 80, 4)
    log.write_text("".join(f"| epoch {n} | {row}/ 80 batches | loss 2.0\n" for n in (1, 2) for row in rows))
    found = replace(reading("loss", stride=6), metrics={"stdout": _WLM})
    assert total_of_epochs(found, tmp_path, 5) == total


@pytest.mark.parametrize(
    ("config", "printed", "total"),
    [
        ("c.yaml", "", None),
        ("c.yaml:train:\n  max_epochs: 5  # of all\n", "", 299),
        ("c.json:{'trainer': {'num_epochs': 5}}", "", 299),
        ("c.toml:[train]\nn_epochs = 5\n", "", 299),
        ("c.py:train_cfg = dict(by_epoch=True, max_epochs=5, val_interval=1)\n", "", 299),
        ("c.yaml:# max_epochs: 5\nepochs_of_warmup: 5\n", "", None),
        ("c.yaml:pretrain: {max_epochs: 5}\ntune: {num_epochs: 9}\n", "", None),
        ("c.yaml:max_epochs: 9\n", "  Num Epochs = 5\n", 299),
        ("c.yaml:max_epochs: 9\n", "train_cfg = dict(by_epoch=True, max_epochs=5)\n", 299),
        ("c.yaml:max_epochs: 9\n", "Epoch 1/5\n", 299),
    ],
)
def test_the_epochs_of_a_config_limit_the_steps(
    config: str, printed: str, total: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init` asked a trainer whose config says `max_epochs: 5` for more steps than these have."""
    monkeypatch.chdir(tmp_path)
    name, _, text = config.partition(":")
    Path(name).write_text(text.replace("'", '"'))
    log = tmp_path / "logs" / "stdout.log"
    log.parent.mkdir()
    log.write_text(printed + "".join(f"| epoch 1 | {row}/60 batches | loss 2.0\n" for row in range(1, 13)))
    command = watched(f"t.py --config {name} --max_steps 5000", None).command
    assert command.configs == (Path(name),)
    found = replace(reading("loss"), metrics={"stdout": _WLM})
    assert total_of_epochs(found, tmp_path, command.epochs, command.configs) == total


@pytest.mark.parametrize(
    ("line", "epochs", "ended", "most"),
    [
        ("t.py", 5, True, 12),
        ("t.py", 5, False, 299),
        ("t.py --max_steps 12", 5, True, 299),  # which it was given
        ("t.py --max_steps 5000", 5, True, 12),
        ("t.py", 0, True, 12),
        ("t.py", 0, False, None),
    ],
)
def test_what_a_trainer_did_to_its_own_end_counts_before_an_estimate(
    line: str, epochs: int, ended: bool, most: int | None, tmp_path: Path
) -> None:
    """394 steps were asked of a trainer that had done 400."""
    log = tmp_path / "logs" / "stdout.log"
    log.parent.mkdir()
    of = f"Epoch 1/{epochs} | " if epochs else ""
    log.write_text("".join(f"{of}epoch 1 | {row}/60 batches | loss 2.0\n" for row in range(1, 13)))
    seen = replace(reading("loss"), metrics={"stdout": _WLM})
    command = watched(line, None).command
    steps = 1000 if command.length is None else command.length.count
    watch = SimpleNamespace(command=command, run_dir=tmp_path, spec=SimpleNamespace(out="", steps=steps))
    assert _TrialWatch.most(cast("Any", watch), seen, ended=ended) == most


def test_an_estimate_below_what_a_trainer_did_to_its_own_end_gives_way(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "stdout.log"
    log.parent.mkdir()
    log.write_text("".join(f"Epoch 1/1 | epoch 1 | {row}/12 batches | loss 2.0\n" for row in range(1, 13)))
    seen = replace(reading("loss"), metrics={"stdout": _WLM})
    watch = SimpleNamespace(
        command=watched("t.py", None).command, run_dir=tmp_path, spec=SimpleNamespace(out="", steps=1000)
    )
    assert total_of_epochs(seen, tmp_path, None) == 11
    assert _TrialWatch.most(cast("Any", watch), seen, ended=True) == 12


@pytest.mark.parametrize("line", ["t.py", "t.py --max_iters 5000 --out_dir o"])
def test_no_more_is_asked_for_than_a_trainer_did_to_its_own_end(line: str) -> None:
    lengths = lengths_of(replace(watched(line, reading("loss")), total=2000, most=75))
    assert (lengths.baseline, lengths.soak) == (75, None)
    assert lengths_of(replace(watched(line, reading("loss")), most=75), steps=100).baseline == 100


@pytest.mark.parametrize(
    ("line", "changes", "known"),
    [("t.py", {}, False), ("t.py", {"most": 75}, True), ("t.py", {"total": 75}, True), ("t.py --steps 9", {}, True)],
)
def test_steps_that_are_a_guess_are_written_as_one(line: str, changes: dict[str, int], known: bool) -> None:
    seen = replace(watched(line, reading("loss")), **changes)
    assert seen.length_known is known
    phases = loads(draft(seen, name="made", base=Path("/"))).phases
    assert [phase.steps_open for phase in phases] == [not known] * len(phases)  # type: ignore[union-attr]
    (phase,) = loads(draft(seen, name="made", base=Path("/"), steps=40, soak=False)).phases
    assert phase.steps_open is False, "somebody asked for these"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("line", "epochs"),
    [
        ("t.py --epochs 5", 5),
        ("t.py --num-epochs=5", 5),
        ("t.py --num_train_epochs 5.0", 5),
        ("-m t trainer.max_epochs=5", 5),
        ("t.py epochs=5", 5),
        ("t.py --n_epochs 5 --epoch 1", 5),
        ("t.py --epochs -1", None),
        ("t.py --eval.epoch 5", None),
        ("t.py", None),
    ],
)
def test_the_epochs_that_a_command_asks_for(line: str, epochs: int | None) -> None:
    assert watched(line, None).command.epochs == epochs


def test_a_pace_that_only_validator_saw_leaves_room_for_the_trainers_own() -> None:
    found = reading("loss", "step_time_s")
    assert found.has_pace
    times = found.result.series["step_time_s"]
    seen = replace(times, source=times.source.model_copy(update={"path": "arrivals.jsonl"}))
    by_arrival = replace(found, result=replace(found.result, series={**found.result.series, "step_time_s": seen}))
    assert not by_arrival.has_pace
    assert replace(by_arrival, metrics={"reader": ["lightning"]}).has_pace, "which has no other"


@pytest.mark.parametrize(
    ("line", "step_s", "stride", "baseline", "soak"),
    [
        ("t.py --max_iters 1000000", 0.1, 1, 1200, 9000),
        ("t.py --max_iters 600", 0.1, 1, 600, None),
        ("t.py --max_iters 2000", 0.1, 1, 1200, 2000),
        ("t.py", 30.0, 1, 50, 100),
        ("t.py", 0.1, 100, 3000, 9000),
        ("t.py", None, 1, 300, 3000),
    ],
)
def test_lengths_follow_from_the_time_of_a_step(
    line: str, step_s: float | None, stride: int, baseline: int, soak: int | None
) -> None:
    found = lengths_of(watched(line, reading("loss", stride=stride), step_s=step_s))
    assert (found.baseline, found.soak) == (baseline, soak)
    assert found.warmup <= baseline // 4
    assert found.timeout_s >= 2 * max(baseline, soak or 0) * (step_s or 0)


def test_where_nothing_is_recognized_it_says_what_is_missing(tmp_path: Path) -> None:
    seen = replace(
        watched("t.py", None), lines=("a 1", "b 2"), printed=4, outside=("runs/x/events.out.tfevents.1.vm.0",)
    )
    few, events = seen.hints()
    assert few == "it printed 4 lines, and 10 are needed: give it longer (--seconds 5m)"
    assert "metrics: tensorboard" in events
    few, _ = replace(seen, ended=True).hints()
    assert few == "it printed 4 lines, and 10 are needed: it ended by itself, so give it more to do"
    assert not list(replace(seen, printed=40, outside=()).hints())
    assert not list(replace(seen, reading=reading("loss")).hints())


def test_a_watch_ends_at_its_time_however_long_a_look_takes() -> None:
    """One of 45 s took 63 s: after a slow look the next was due much later, and the time was asked for only then."""
    resting = SimpleNamespace(cancel=CancelToken(), seconds=45.0, next_s=math.inf)
    for elapsed_s, over in ((44.0, False), (45.0, True)):
        _TrialWatch.look(cast("Any", resting), cast("Any", SimpleNamespace(elapsed_s=elapsed_s)))
        assert resting.cancel.requested is over


def test_a_watch_asks_for_the_end_once_though_several_things_say_that_it_is_over() -> None:
    """A second request is one that waits for nothing: the command counted as interrupted by its user."""
    over = SimpleNamespace(
        **{"cancel": CancelToken(), "seconds": 45.0, "next_s": 0.0, "logs_s": math.inf, "before": {}, "steps": []},
        feed=SimpleNamespace(take=lambda: None),
        best=lambda: SimpleNamespace(last_step=5, complete=False, settled=False),
        _enough=lambda *_: True,
        _writes_outside=lambda _: True,
    )
    for _ in range(2):
        _TrialWatch.look(cast("Any", over), cast("Any", SimpleNamespace(elapsed_s=50.0)))
        over.seconds, over.next_s = math.inf, 0.0
    assert (over.cancel.requested, over.cancel.urgent) == (True, False)
    over.cancel = CancelToken()
    _TrialWatch.look(cast("Any", over), cast("Any", SimpleNamespace(elapsed_s=44.0)))
    assert (over.cancel.requested, over.cancel.urgent) == (True, False)


def test_of_several_run_folders_the_last_counts(tmp_path: Path) -> None:
    for name in ("20261123T060000Z-a", "20261123T070000Z-a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    page = tmp_path / "index.html"
    first, last = sorted(path for path in tmp_path.iterdir())
    page.touch()
    assert last_run([last, first, page]) == last
    assert last_run([first, tmp_path / "train.py"]) is None
    assert last_run([page]) is None


@pytest.mark.parametrize(
    ("line", "nproc", "said"),
    [
        ("train.py --batch_size 8 --block_size=512", 0, "4096 | batch_size 8 × block_size 512"),
        ("train.py --bs 4 --seq-len 256 --grad-accum 2", 2, "4096 | bs 4 × seq-len 256 × grad-accum 2 × ranks 2"),
        (
            "train.py --micro-batch-size 1 --global-batch-size 16 --seq-length 128",
            2,
            "2048 | global-batch-size 16 × seq-length 128",
        ),
        ("train.py --batch_size 8", 0, "12288 | "),
    ],
)
@pytest.mark.parametrize("rate", ["toks_per_s", "step_time_s"])
def test_it_asks_for_the_tokens_of_a_step_with_a_guess(rate: str, line: str, nproc: int, said: str) -> None:
    """Of a trainer that prints tokens per second nobody was asked, and nothing confirmed its rate."""
    text = draft(watched(line, reading("loss", rate), nproc=nproc), name="made", base=Path("/"))
    (asked,) = [one for one in text.splitlines() if "tokens_per_step" in one]
    count, _, guess = said.partition(" | ")
    assert asked.startswith(f"  # tokens_per_step: {count} ")
    assert asked.endswith(f"; a guess: {guess}" if guess else "too")
    assert ("the printed rate is checked" in asked) is (rate == "toks_per_s")
    uncommented = text.replace(asked, asked.replace("# tokens", "tokens", 1))
    assert loads(uncommented).trainer.tokens_per_step == int(count)


def test_a_soak_that_is_added_has_time_enough() -> None:
    """Where the command's own length left none, the timeout is that of the baseline."""
    seen = replace(watched("train.py --max_iters 2000", reading("loss", "step_time_s")), total=2000, step_s=0.06)
    text = draft(seen, name="made", base=Path("/"), soak=False)
    run = SimpleNamespace(outcome={"duration_s": 120.0}, metrics={"loss": None, "step_time_s": None})
    report = cast("Any", SimpleNamespace(phases=[SimpleNamespace(id="baseline", runs=[run])]))
    made = loads(with_soak(text, loads(text), report)[0])
    soak = made.phases[1]
    assert isinstance(soak, SoakPhase)
    assert soak.steps == 15_000
    assert timeout_of(made, soak) >= 3 * 15_000 * 0.06 > made.defaults.timeout


@pytest.mark.parametrize(
    ("limit", "soak", "longer"), [(None, 3600, 1300), (2000, 2000, 1300), (900, None, 900), (600, None, 600)]
)
def test_no_phase_is_longer_than_the_trainer(limit: int | None, soak: int | None, longer: int) -> None:
    """A healthy trainer of 200 steps was NO-GO for a soak of 16,000 that `init --from-run` had added."""
    seen = replace(watched("train.py", reading("loss", "toks_per_s")), step_s=0.25, total=limit, limit=limit)
    text = draft(seen, name="made", base=Path("/"), steps=600, soak=False)
    assert loads(text).trainer.max_steps == limit
    rate = SimpleNamespace(n=28, mean=1000.0, ci_low=100.0, ci_high=1900.0)
    run = SimpleNamespace(outcome={"duration_s": 150.0}, metrics={"loss": None, "toks_per_s": rate})
    report = cast("Any", SimpleNamespace(phases=[SimpleNamespace(id="baseline", runs=[run])]))
    made, baseline, _ = with_more_rows(text, loads(text), report)
    assert baseline == longer
    (phase,) = loads(made).phases
    assert isinstance(phase, TrainPhase)
    assert phase.steps_open is (limit is None)  # where nothing says how many it does
    made, said = with_soak(made, loads(text), report, baseline=baseline)
    assert [phase.steps for phase in loads(made).phases] == [longer, *([soak] if soak else [])]  # type: ignore[union-attr]
    assert any("max_steps" in one for one in said) is (soak is None)


@pytest.mark.parametrize(
    ("line", "steps", "limit", "steps_open"),
    [
        ("train.py", None, None, [True, True]),
        ("train.py", 2000, None, [False, True]),  # `run --steps N` says how long the baseline is, and no more
        ("train.py", None, 9000, [False, False]),
        ("train.py --max_iters 9000", None, None, [False, False]),
    ],
)
def test_a_soak_whose_steps_go_to_nobody_is_a_guess(
    line: str, steps: int | None, limit: int | None, steps_open: list[bool]
) -> None:
    seen = replace(watched(line, reading("loss", "step_time_s")), step_s=0.06, total=limit, limit=limit)
    text = draft(seen, name="made", base=Path("/"), steps=steps, soak=False)
    run = SimpleNamespace(outcome={"duration_s": 120.0}, metrics={"loss": None, "step_time_s": None})
    report = cast("Any", SimpleNamespace(phases=[SimpleNamespace(id="baseline", runs=[run])]))
    made, _ = with_soak(text, loads(text), report)
    assert [phase.steps_open for phase in loads(made).phases] == steps_open  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("n", "half", "steps"),
    [(28, 900.0, 1300), (28, 60.0, 1300), (28, 40.0, 600), (60, 900.0, 600), (5, 900.0, 2400)],
)
def test_rows_that_vary_make_the_baseline_longer(n: int, half: float, steps: int) -> None:
    """28 rows of a healthy run, 770 to 1,190 tok/s, had an interval of 17 to 1,968: no soak compares with that."""
    seen = replace(watched("train.py --steps 5000", reading("loss", "toks_per_s")), step_s=0.25)
    text = draft(seen, name="made", base=Path("/"), steps=600, soak=False)
    rate = SimpleNamespace(n=n, mean=1000.0, ci_low=1000.0 - half, ci_high=1000.0 + half)
    run = SimpleNamespace(outcome={"duration_s": 150.0}, metrics={"loss": None, "toks_per_s": rate})
    report = cast("Any", SimpleNamespace(phases=[SimpleNamespace(id="baseline", runs=[run])]))
    made, baseline, said = with_more_rows(text, loads(text), report)
    assert baseline == steps
    assert (said != ()) is (made != text) is (steps > 600)
    book = loads(with_soak(made, loads(text), report, baseline=baseline)[0])
    phase, soak = book.phases
    assert isinstance(phase, TrainPhase)
    assert isinstance(soak, SoakPhase)
    assert phase.steps == steps
    assert soak.steps == max(3600, 2 * steps)
    assert timeout_of(book, phase) >= 3 * steps * 0.25


def test_a_runbook_from_a_run_asks_for_the_tokens_of_a_step() -> None:
    text = """
schema: 1
name: a
trainer:
  command: [train.py, --batch-size, "2", --seq-len, "64"]
  metrics: {stdout: "step {step} loss {loss} {toks_per_s}"}
defaults: {nproc: 0}
phases:
  - {id: baseline, kind: train, steps: 50, accept: [loss.last < 3]}
"""
    made = with_tokens_line(text, loads(text), samples.go())
    assert "trainer:\n  # tokens_per_step: 128 " in made
    assert loads(made) == loads(text)
    assert with_tokens_line(made, loads(made), samples.go()) == made
