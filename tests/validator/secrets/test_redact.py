"""Twenty kinds of secrets, planted; and what merely looks like one."""

from __future__ import annotations

import sys

import pytest

from validator.secrets.redact import TOKEN_MARKS, WORD_STEMS, is_secret_name, redact, redact_env

SECRET = "s3cr3tVALUE0123456789abcdefghij"


TOLD = (
    f"HF_TOKEN={SECRET}",
    f"export AWS_SECRET_ACCESS_KEY='{SECRET} two words'",
    f'{{"password": "{SECRET}", "steps": 3}}',
    f"password: {SECRET}",
    f"dbPassword={SECRET}",
    f"train.py --api-key {SECRET} --steps 3",
    f"train.py --hf-token={SECRET} --steps 3",
    f"curl -H 'Authorization: Bearer {SECRET}'",
    f"curl -H 'X-Api-Key: {SECRET}'",
    f"Proxy: Basic {SECRET}=",
    f"git clone https://user:{SECRET}@host/repo.git",
    f"git clone https://{SECRET}@host/repo.git",
    f"redis://:{SECRET}@host:6379/0",
    f"https://host/blob?sv=1&sig={SECRET}&x=2",
    f"https://host/a?access_token={SECRET}",
    f"SENTRY_DSN=https://{SECRET}@sentry.example/1",
    f"WANDB_API_KEY={SECRET} python x.py",
    f"MY_CREDENTIALS={SECRET}",
    f"session_id={SECRET}; path=/",
    f"client-secret = {SECRET}",
    f"SSH_PRIVATE_KEY={SECRET}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}",
)
"""A secret under a telling name or at a telling place."""

NAMES = (
    *("MY_PASS", "dbPassword", "root-passwd", "passphrase", "user_passcode", "DB_PWD", "client.secret", "HF_TOKEN"),
    *("api_key", "ACCESS-KEY", "license_key", "credential", "AWS_CREDENTIALS", "creds", "authorization", "my-auth"),
    *("bearer", "cookie", "session_id", "STORAGE_SAS", "signature", "url_sig", "SENTRY_DSN", "JWT", "otp"),
    *("card_pin", "GITHUB_PAT", "MY_PATS", "HOOK_WEBHOOK"),
)
"""Names of secrets, one for each word that tells one."""

TOKENS = (
    *("ghp_" + "a1" * 18, "github_pat_" + "a1" * 20, "glpat-" + "a1" * 10, "hf_" + "aB" * 17, "sk-" + "a1" * 20),
    *("xoxb-123456789012-abcdef", "AKIA" + "A1" * 8, "AIza" + "a1" * 18, "ya29." + "a1" * 20),
    *("npm_" + "a1" * 18, "pypi-" + "a1" * 20, "SG." + "a1" * 11 + "." + "b2" * 20, "dop_v1_" + "a1" * 12),
    *("nvapi-" + "a1" * 12, "sk_live_" + "a1" * 9, "rk_test_" + "a1" * 9, "gsk_" + "a1" * 12, "r8_" + "a1" * 16),
    *("dckr_pat_" + "a1" * 9, "dapi" + "a1" * 16, "hvs." + "a1" * 12, "GOCSPX-" + "a1" * 12),
    *("123456789:AA" + "a1" * 16 + "b", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"),
)
"""Tokens of well-known services."""


@pytest.mark.parametrize("text", TOLD)
def test_a_secret_under_a_telling_name_or_place_never_stays(text: str) -> None:
    clean = redact(text)
    assert SECRET not in clean
    assert "two words" not in clean
    assert "[redacted]" in clean
    assert redact(clean) == clean, "what is clean stays as it is"


@pytest.mark.parametrize("name", NAMES)
def test_every_word_that_tells_a_secret_is_known(name: str) -> None:
    assert is_secret_name(name)
    assert redact(f"{name}={SECRET}") == f"{name}=[redacted]"
    assert any(stem in name.lower() for stem in WORD_STEMS), "what looks for secrets in logs starts from these"


@pytest.mark.parametrize("token", TOKENS)
def test_well_known_tokens_are_known_by_their_shape(token: str) -> None:
    assert redact(f"loading with {token} now") == "loading with [redacted] now"
    assert any(mark in token for mark in TOKEN_MARKS)


@pytest.mark.parametrize(
    "text",
    [
        "step 20 loss 3.2 toks/s 4567 tokens_per_step=16384 tokens: 512",
        "max_tokens=5 num_tokens: 3 n_tokens=4 tokens_seen=9",
        "tokenizer=byte TOKENIZERS_PARALLELISM=false --tokenizer gpt2",
        "pin_memory=True --pin-memory true",
        "tests.passed=3 passed: 5",
        "unexpected token '(' in expression",
        "PATH=/usr/bin PYTHONPATH=/a:/b NCCL_DEBUG=INFO",
        "https://host/path?step=3&seed=4",
        "git@github.com:owner/repo.git ssh://git@host/repo",
        "/runs/2024/baseline/r1/training.csv",
        "'token': None",
        '"flops_per_token": {',
        '"auth": [',
        "--steps 300 --lr 0.0003 --config m7c_125m",
        "key=value",
    ],
)
def test_plain_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


def test_names_and_the_rest_of_the_line_stay_readable() -> None:
    assert redact(f"a=1 HF_TOKEN={SECRET} b=2") == "a=1 HF_TOKEN=[redacted] b=2"
    assert redact(f"https://me:{SECRET}@host/x?y=1") == "https://me:[redacted]@host/x?y=1"


def test_variables_are_redacted_by_name_and_by_value() -> None:
    found = redact_env({"HF_TOKEN": SECRET, "EMPTY_SECRET": "", "URL": f"https://u:{SECRET}@h/", "NCCL_ALGO": "Ring"})
    assert found == {
        "HF_TOKEN": "[redacted]",
        "EMPTY_SECRET": "",
        "URL": "https://u:[redacted]@h/",
        "NCCL_ALGO": "Ring",
    }


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('run: "curl --password=abc123 x"', 'run: "curl --password=[redacted] x"'),
        ("cmd='login --token abc123 y'", "cmd='login --token [redacted] y'"),
        ("metrics.tokens == 42", "metrics.tokens == 42"),
    ],
)
def test_an_innocent_name_does_not_hide_what_its_value_holds(text: str, clean: str) -> None:
    assert redact(text) == clean


@pytest.mark.parametrize("text", ["a" * 1000, "/" * 1000, "0:" * 1000, "step 1 loss 2.5 tok/s 100\n" * 100])
def test_a_text_without_any_mark_is_searched_by_no_pattern(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of millions of characters costs seconds where every character is held against forty words."""
    monkeypatch.setattr(sys.modules[redact.__module__], "_HINT", None)
    assert redact(text) == text


@pytest.mark.parametrize("mark", [*WORD_STEMS, *TOKEN_MARKS, "basic ", "://", "?", "&", "BEGIN ", "-u ", "--user"])
def test_every_mark_of_a_secret_is_looked_at(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[redact.__module__], "_HINT", None)
    with pytest.raises(AttributeError):
        redact(f"x{mark.upper()}x")
