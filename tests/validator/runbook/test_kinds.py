"""What `check` says of audits, profiles, data phases and remedies. Each mistake has a sound twin."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.runbook.trees import Tree, check


def audit(**more: Any) -> Tree:
    return {"id": "a", "kind": "audit", "steps": 10, **more}


def profile(**more: Any) -> Tree:
    return {"id": "p", "kind": "profile", "steps": 60, **more}


def data(**more: Any) -> Tree:
    return {"id": "d", "kind": "data", "steps": 60, "args": {"data": "local", "data-path": "/t"}, **more}


def train(**more: Any) -> Tree:
    return {"id": "t", "kind": "train", "steps": 60, **more}


GPU = {"hardware": {"gpus": 2}, "defaults": {"nproc": 2}}


@pytest.mark.parametrize(
    "phase",
    [
        audit(accept=["audit.cmp == 'triton'", "audit.fallbacks == 0", "audit.layers == 12"]),
        audit(variants=["plain"]),
        profile(accept=["profile.gpu_busy_share >= 0.7", "profile.step_time_ms <= 300 ms"]),
        profile(ranges=["nsa.cmp", "nsa.sel.*"], on_failure=["shorter_profile"]),
        data(accept=["smoke.first_batch_s <= 30 s", "startup.first_batch_s <= 30 s"], first_batch="30s"),
        train(on_failure=["port", "bucket_50", {"name": "mine", "args": {"lr": 0.01}, "on": ["criterion"]}]),
    ],
)
def test_sound_phases_pass(phase: Tree) -> None:
    assert check(phase, **GPU) == []


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (audit(variants=[]), "a.variants has 0 entries"),
        (audit(variants=["plain", "plain"]), "variants names plain twice"),
        (audit(variants=["flsh_only"]), "did you mean flash_only?"),
        (audit(steps=2), "write steps: 3 or more"),
        (audit(env={"NSA_SDPA_AUDIT": 0}), "NSA_SDPA_AUDIT is 0, but a phase of kind audit needs 1 | remove"),
        (audit(args={"sdpa-audit": "false"}), "args.sdpa-audit overrules NSA_SDPA_AUDIT"),
        (audit(args={"sdpa": "auto"}), "args.sdpa overrules NSA_SDPA_FLASH_ONLY"),
        (audit(accept=["audit.cmp >= 3"]), "audit.cmp is a text and is compared with the number 3"),
        (audit(accept=["profile.steps == 3"]), "profile.steps is not known in a phase of kind audit"),
        (profile(profile_steps=60), "profile_steps is 60 of 60 steps"),
        (profile(ranges=[" "]), "ranges has an empty name"),
        (profile(env={"NSA_PROFILE_STEPS": 3}), "set profile_steps of the phase"),
        (profile(args={"nvtx": "false"}), "args.nvtx overrules NSA_NVTX"),
        (data(args={"data": "synthetic"}), "trains on data: synthetic, which no loader reads"),
        (data(smoke=[], accept=["smoke.toks_per_s > 1"]), "runs no data-loader smoke test"),
        (data(first_batch="soon"), "first_batch"),
        (train(on_failure=["prot"]), "name is 'prot', which is not in the playbook and changes nothing"),
        (train(on_failure=["port", "port"]), "names port twice"),
        (train(on_failure=["shorter_profile"]), "only a profile says the same with fewer steps"),
        (train(on_failure=["port"] * 5), "at most 4"),
        (train(on_failure=[{"name": "x", "env": {"A": 1}, "on": ["never"]}]), "must be one of stall, error, criterion"),
        (profile(steps=40, on_failure=["shorter_profile"]), "runs 50 steps, where p runs 40"),
    ],
)
def test_mistakes_are_named_with_their_fix(phase: Tree, words: str) -> None:
    found = check(phase, **GPU)
    assert len(found) == 1, found
    assert words in found[0]


def test_a_share_of_the_gpu_is_not_known_on_a_cpu() -> None:
    (found,) = check(profile(accept=["profile.gpu_busy_share >= 0.7"]))
    assert "it is measured on a GPU, and hardware.gpus is 0" in found
    assert check(profile(accept=["profile.top_operator_share <= 0.7"])) == []


def test_a_remedy_must_not_make_the_arms_alike() -> None:
    phase = {
        **train(kind="ab", on_failure=["fused_off"]),
        "arms": {"plain": {"env": {"NSA_OPT_FUSED": 0}}, "fused": {"env": {"NSA_OPT_FUSED": 1}}},
        "choose": {"highest": "toks_per_s.mean"},
    }
    (found,) = check(phase)
    assert "sets env.NSA_OPT_FUSED, in which the arms of t differ" in found


def test_placeholders_of_remedies_and_trials_are_checked() -> None:
    (found,) = check(data(smoke=["try.py", "{outt}"]))
    assert "there is no placeholder {outt}" in found
    (found,) = check(train(on_failure=[{"name": "x", "env": {"A": "{phse}"}}]))
    assert "there is no placeholder {phse}" in found
