"""What a run was given and must not say: known by its environment and command, hidden wherever it is repeated."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from tests.validator.judge.samples import result
from tests.validator.secrets.test_redact import NAMES, SECRET, TOKENS, TOLD
from validator.model.result import InvalidWindow, LogHit, NamedTest, RunEvidence, RunTable, UnpassedTests
from validator.secrets.masking import Mask, clean_result, known_secrets
from validator.secrets.redact import redact_output


def lines(text: str, *secrets: str) -> str:
    return Mask(secrets).block(text.encode()).decode()


@pytest.mark.parametrize(
    ("environment", "words", "known"),
    [
        ({"HF_TOKEN": SECRET, "PLAIN": "visible-value"}, (), {SECRET}),
        ({"DATABASE_URL": f"postgres://me:{SECRET}@db/x"}, (), {SECRET}),
        ({}, ("train.py", "--api-key", SECRET), {SECRET}),
        ({}, ("train.py", f"--api-key={SECRET}"), {SECRET}),
        ({}, ("curl", "-u", f"me:{SECRET}", "https://host"), {SECRET}),
        ({"KAGGLE_KEY": SECRET, "SORT_ORDER": "descending"}, (), {SECRET}),
        ({"SHORT_TOKEN": "abc123", "AUTH": "disabled", "PIN_TOKEN": "123456789"}, (), set()),
    ],
)
def test_secrets_are_known_by_name_and_place(
    environment: dict[str, str], words: tuple[str, ...], known: set[str]
) -> None:
    assert known_secrets(environment, words) == known


def test_where_a_secret_lies_is_none(tmp_path: Path) -> None:
    kept = tmp_path / "token-file"
    kept.touch()
    assert known_secrets({"IDENTITY_TOKEN": str(kept), "OTHER_TOKEN": str(tmp_path / "missing")}, ()) == {
        str(tmp_path / "missing")
    }


def test_a_key_of_several_lines_is_known_line_by_line() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvgIBADANBgkqhkiG9w0B\n-----END PRIVATE KEY-----"
    known = known_secrets({"SSH_PRIVATE_KEY": key}, ())
    assert "MIIEvgIBADANBgkqhkiG9w0B" not in lines("[rank0] MIIEvgIBADANBgkqhkiG9w0B\n", *known)


def test_a_secret_that_json_writes_otherwise_is_known_in_json_too() -> None:
    secret = 'correct "horse"\\ \u00fcber staple'
    said = {"said": f"as {secret} says"}
    for ascii_only in (True, False):
        written = json.dumps(said, ensure_ascii=ascii_only)
        assert json.loads(lines(written + "\n", secret)) == {"said": "as [redacted] says"}
        assert lines(f"step 1: {written}\n", secret) == 'step 1: {"said": "as [redacted] says"}\n'


def test_a_secret_alone_on_a_line_is_hidden_and_the_rest_stays() -> None:
    text = f"step 1\nlogging in with {SECRET} now\nstep 2\n"
    assert lines(text, SECRET) == "step 1\nlogging in with [redacted] now\nstep 2\n"


@pytest.mark.parametrize(
    "line",
    [
        f"HF_TOKEN={SECRET}",
        f"calling https://me:{SECRET}@host/x",
        f"GET https://host/a?x=1&sig={SECRET}",
        f"train.py --api-key {SECRET}",
        f"authorization: Bearer {SECRET}",
        f"machine host login me password {SECRET}",
        f"curl -u me:{SECRET} https://host",
        f"https://hooks.slack.com/services/T000/B000/{SECRET}",
        f'{{"username": "me", "key": "{"ab12" * 8}"}}',
        "using nvapi-" + "a1" * 20,
        "Client('ghp_" + "a1" * 18 + "')",
    ],
)
def test_what_nobody_knew_shows_by_its_name_place_or_shape(line: str) -> None:
    clean = lines(f"before\n{line}\nafter\n")
    assert SECRET not in clean
    assert "a1a1a1" not in clean
    assert "ab12ab12" not in clean
    assert clean.startswith("before\n")
    assert clean.endswith("\nafter\n")
    assert clean.count("\n") == 3


@pytest.mark.parametrize(
    "said",
    [
        *(f"a\n{text}\nb\n" for text in TOLD[:-1]),  # a key that is cut is cut elsewhere in a log: see below
        *(f"loading with {token} now\n" for token in TOKENS),
        *(f"{name}={SECRET}\n" for name in NAMES),
        *(f"x {name}: '{SECRET}'\n" for name in NAMES),
        *(f"train.py --{name} {SECRET}\n" for name in NAMES),
    ],
)
def test_a_log_says_nothing_that_a_sentence_does_not_say(said: str) -> None:
    """Only lines with what announces a secret are looked at: that must be each of them."""
    assert lines(said) == redact_output(said) != said


def test_json_stays_json() -> None:
    said = {
        "flops_per_token": {"nsa": 1.5e6, "note": f"as {SECRET} says"},
        "api_key": SECRET + "2",
        "auth": ["none", 3, None, True],
        "command": f'train.py --token "{SECRET}3" --steps 5\ntoken={SECRET}4\nstep 2',
        "notes": [{"password": ""}, {"key": "ab12" * 8, "HF_TOKEN": "hf_" + "aB" * 10}],
        "token_acc": "0.93",
        "loss": float("inf"),
    }
    for text in (json.dumps(said, indent=2) + "\n", "step 1\n" + json.dumps(said) + "\nstep 2\n"):
        clean = lines(text, SECRET)
        assert SECRET not in clean
        assert "aBaB" not in clean
        assert "ab12ab12" not in clean
        read = json.loads(clean.removeprefix("step 1\n").removesuffix("step 2\n"))
        assert read["flops_per_token"]["nsa"] == 1.5e6
        assert read["api_key"] == "[redacted]"
        assert (read["token_acc"], read["loss"], read["notes"][0]) == ("0.93", float("inf"), {"password": ""})
        assert read["command"].startswith("train.py --token ")
        assert read["command"].endswith("\nstep 2")
    quiet = json.dumps({"flops_per_token": {"nsa": 1}, "tokens": 5}, indent=7)
    assert lines(quiet, SECRET) == quiet, "what has nothing to hide is not written anew"


@pytest.mark.parametrize(
    "line",
    [
        "step 20 loss 3.2 tokens/s 4567 tokens: 512 token_acc=0.93 auth: 1.5e-3 key=7",
        '{"step": 3, "secret_score": 0.25, "session": 4, "pass": 3}',
        "12,3.25,0.001,48000",
        "Traceback (most recent call last): token expected",
        "password:",
        "https://host/path?step=3",
    ],
)
def test_figures_stay_whatever_they_are_called(line: str) -> None:
    assert lines(line + "\n", SECRET) == line + "\n"


def test_a_key_that_is_printed_in_full_goes_in_full() -> None:
    text = f"a\n-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END RSA PRIVATE KEY-----\nb\n"
    assert lines(text) == "a\n[redacted]\nb\n"
    cut = lines(f"a\n-----BEGIN PRIVATE KEY-----\n{SECRET}\nstep 3 of 4\n")
    assert SECRET not in cut
    assert "of 4\n" in cut, "a key without its end does not take the rest of the log with it"


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    block = b"\xff\xfe step 1\n\x80 " + SECRET.encode() + b" \xff\n"
    assert Mask([SECRET]).block(block) == b"\xff\xfe step 1\n\x80 [redacted] \xff\n"


def test_a_secret_of_figures_alone_is_found_too() -> None:
    assert lines("pin 90210.90210,17\n", "90210.90210,17") == "pin [redacted]\n"


def test_sentences_hide_figures_under_telling_names() -> None:
    assert Mask([SECRET]).sentence(f"password=12345 and {SECRET}") == "password=[redacted] and [redacted]"


@pytest.mark.parametrize("before", ["", "u", "us", "user:", "https://user:"])
@pytest.mark.parametrize("secret", ["hunter2!hunter2", "k3y/with+signs=", "pass wörd"])
def test_a_secret_that_an_address_or_base64_writes_is_hidden(secret: str, before: str) -> None:
    data = f"{before}{secret}@host".encode()
    for written in (
        quote(secret, safe=""),
        quote(secret, safe="").lower(),
        quote_plus(secret),
        base64.b64encode(data).decode(),
        base64.urlsafe_b64encode(data).decode(),
    ):
        said = lines(f"GET /x {written} 200\n", secret)
        assert "[redacted]" in said, written
        assert said.startswith("GET /x ")
        assert said.endswith(" 200\n")
        left = len(said) - len("GET /x [redacted] 200\n")
        assert left <= len(base64.b64encode(f"{before}@host".encode())) + 4, "no more than what was written beside it"


def test_what_is_masked_in_json_keeps_every_other_value() -> None:
    text = '{"seed": 18446744073709551615, "token": "hunter2!hunter2"}\n'
    assert json.loads(lines(text, "hunter2!hunter2")) == {**json.loads(text), "token": "[redacted]"}
    for deep in ("[" * 900 + "]" * 900, '{"token":' * 300 + '"hunter2!hunter2"' + "}" * 300):
        assert "hunter2" not in lines(deep + "\n", "hunter2!hunter2")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", ["-", "--a", "--pass", "pass", "a.", "sk-", "://", "a=", "login x ", "-u=a"])
def test_a_line_without_end_is_masked_in_a_moment(part: str) -> None:
    """A million characters, which a program prints by mistake, must not keep the runner busy for minutes."""
    line = f"token {part * (200_000 // len(part))}\n"
    began = time.process_time()
    assert lines(line, "hunter2!hunter2")
    assert redact_output(line)
    assert time.process_time() - began < 15


@dataclass(frozen=True)
class Own:
    """What a kind of its own might keep."""

    api_token: str
    note: str


def test_what_was_read_of_a_run_is_cleaned_by_name_and_by_shape_at_any_depth() -> None:
    text = f"HF_TOKEN={TOKENS[0]}"
    found = clean_result(
        result(
            evidence=RunEvidence(
                log_hits={"oom": [LogHit("a.log", 3, text)]},
                log_contains={"x": LogHit("a.log", 1, text), "y": None},
                tests=UnpassedTests(failed=(NamedTest("test_a", text),)),
                invalid_windows=(InvalidWindow(1, 2, text),),
                tables=(RunTable(caption="c", columns=("a",), rows=((text, 1.5),)),),
                own=Own("0123abcd", text),
            )
        )
    ).evidence
    assert TOKENS[0] not in repr(found)
    assert "0123abcd" not in repr(found)
    assert (found.log_hits["oom"][0].line, found.tables[0].rows[0][1], found.log_contains["y"]) == (3, 1.5, None)
    assert isinstance(found.own, Own)
