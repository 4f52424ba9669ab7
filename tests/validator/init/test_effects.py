"""Which settings of a command the runbook tries by their effect, with which values, and how it writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.validator.init.test_draft import reading, watched
from validator.init.draft import draft
from validator.init.effects import settings_to_try
from validator.init.watched import WatchedCommand
from validator.kinds.registry import loads
from validator.model.result import StatedSetting

LOSS = reading("loss", "toks_per_s")


def seen(line: str, *, offered: tuple[str, ...] = (), env: dict[str, str] | None = None) -> WatchedCommand:
    """A command whose trainer prints a loss, and nothing of its config."""
    one = watched(line, LOSS)
    launch = replace(one.command.launch, env=env or {})
    return replace(one, command=replace(one.command, offered=offered, launch=launch))


def tried(one: WatchedCommand) -> dict[str, int | float]:
    return {other.key: other.value for other in settings_to_try(one).change}


def test_numbers_that_change_the_arithmetic_get_other_values() -> None:
    line = "t.py --batch-size 8 --accum=1 --lr 3e-4 --n-layers 3 --seq-len=2048 --max_iters 500 --out_dir o"
    assert tried(seen(line)) == {
        **{"args.batch-size": 4, "args.accum": 2, "args.lr": 0.0009, "args.n-layers": 6, "args.seq-len": 1024}
    }


def test_what_the_first_losses_need_not_show_is_not_tried() -> None:
    line = "t.py --seed 4 --warmup 10 --min-lr 1e-5 --weight-decay 0.1 --workers 4 --dropout 0.1 --eval-batch-size 4"
    assert tried(seen(f"{line} --dtype bf16 --precision 32 --save-every 10 --vocab-size 512 --lr 0")) == {}


def test_short_options_and_names_in_capitals_are_tried_where_their_meaning_is_beyond_doubt() -> None:
    """Numbers of workers, of processes, of a GPU, and how often it prints, are no arithmetic."""
    assert tried(seen("t.py -a resnet18 -b 256 --lr 0.1 -j 4 -p 10 -n 2 -g 1 -s 512")) == {
        "args.b": 128,
        "args.lr": 0.3,
    }
    assert tried(seen("t.py -b 0.9 -lr 0.1 -bs 16")) == {"args.lr": 0.3, "args.bs": 8}, "a batch is whole"
    line = "t.py --num-gpus 1 SOLVER.IMS_PER_BATCH 16 SOLVER.BASE_LR 0.02 DATALOADER.NUM_WORKERS 4 TEST.BATCH 4"
    assert tried(seen(line)) == {"args.SOLVER.IMS_PER_BATCH": 8, "args.SOLVER.BASE_LR": 0.06}


def test_what_may_be_work_is_tried_last() -> None:
    line = "t.py --max-tokens 4096 --imgsz 640 --micro_batch_size 4 --lr 0.1"
    found = settings_to_try(seen(line)).change
    assert [one.key for one in found] == ["args.lr", "args.max-tokens", "args.imgsz", "args.micro_batch_size"]
    assert [one.why.endswith("it may rightly change nothing") for one in found] == [False, True, True, True]
    of_fairseq = settings_to_try(seen("t.py --max-tokens 4096 --lr 0.1 --max-update 100")).change
    assert (of_fairseq[0].key, of_fairseq[0].why) == ("args.max-tokens", "4096 in the command, halved")


def test_variables_of_the_command_count_as_well() -> None:
    assert tried(seen("t.py", env={"NSA_SEQ_LEN": "512", "OMP_NUM_THREADS": "4"})) == {"env.NSA_SEQ_LEN": 256}


def test_a_trainer_that_reports_its_config_is_believed_and_one_that_prints_it_is_tried() -> None:
    one = seen("t.py --batch-size 8 --lr 0.1")
    assert LOSS.result.evidence.stated == ()
    evidence = replace(LOSS.result.evidence, stated=(StatedSetting("lr", "0.1", "stdout.log", 1, "lr = 0.1"),))
    printed = replace(LOSS, result=replace(LOSS.result, evidence=evidence))
    assert tried(replace(one, reading=printed)) == {"args.batch-size": 4, "args.lr": 0.3}
    reported = replace(LOSS, result=replace(LOSS.result, effective={"lr": 0.1}))
    assert tried(replace(one, reading=reported)) == {}
    assert tried(replace(one, reading=reading("step_time_s"))) == {}, "no loss"


FILES = {
    "c.toml": '[training]\nseq_len = 64 # short\nsteps = 10\n[optimizer]\nlr = 8e-4\nname = "AdamW"\n',
    "c.yaml": "training: {seq_len: 64, steps: 10}\noptimizer: {lr: 8e-4, name: AdamW}\n",
    "c.json": '{"training": {"seq_len": 64}, "optimizer": {"lr": 8e-4, "on": true}}',
}
OFFERED = ("--training.seq-len", "--training.steps", "--optimizer.lr", "--debug.seed", "--log.freq")


@pytest.mark.parametrize("name", FILES)
def test_numbers_of_a_config_file_are_tried_where_the_command_can_change_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(FILES[name])
    found = settings_to_try(seen(f"t.py --config {name}", offered=OFFERED))
    assert {one.key: one.value for one in found.change} == {"args.training.seq-len": 32, "args.optimizer.lr": 0.0024}
    assert dict(found.confirm) == {"args.training.seq-len": 64, "args.optimizer.lr": 8e-4}
    assert found.seed == "debug.seed"
    flat = seen(f"t.py --config {name} --lr 0.1", offered=("--seq-len", "--lr"))
    assert tried(flat) == {"args.lr": 0.3, "args.seq-len": 32}, "the command wins, and names need no section"
    assert tried(seen(f"t.py --config {name}")) == {}, "nothing is known to change them"


def test_a_seed_is_added_where_none_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("run: {seed: 7}\n")
    assert settings_to_try(seen("t.py --lr 1", offered=("--seed",))).seed == "seed"
    assert settings_to_try(seen("t.py --lr 1 --seed 3", offered=("--seed",))).seed is None
    assert settings_to_try(seen("t.py --lr 1 --config c.yaml", offered=("--seed",))).seed is None
    assert settings_to_try(seen("t.py --lr 1", offered=("--data.seed", "--model.seed"))).seed is None
    drafts = [draft(seen(line), name="t", base=tmp_path) for line in ("t.py --lr 1", "t.py --lr 1 --seed 3")]
    assert [loads(text).phases[0].seed for text in drafts] == [1, None], "by Python where it has no option"


def test_the_draft_is_a_sound_runbook_that_says_what_it_tries(tmp_path: Path) -> None:
    sizes = " ".join(f"--width{n}-dim 8" for n in range(8))
    text = draft(seen(f"t.py --batch-size 8 {sizes}", offered=("--seed",)), name="t", base=tmp_path)
    phase = loads(text).phases[0]
    assert (phase.kind, phase.required, phase.decide_all) == ("settings", True, False)
    assert (phase.args, len(phase.change)) == ({"seed": 1}, 6)
    assert "args.batch-size: 4    # 8 in the command, halved" in text
    assert "Not tried, to keep it short: args.width5-dim, args.width6-dim, args.width7-dim." in text
    assert "8 runs, about" in text
    assert [one["id"] for one in yaml.safe_load(text)["phases"]] == ["settings", "baseline", "soak"]
