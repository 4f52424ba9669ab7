"""Names of machines, people and places: found in every form, replaced alike, and nothing else touched."""

from __future__ import annotations

import json
import time

import pytest

from validator.secrets.pseudonyms import Pseudonyms

RUN_ID = "20260101T120000Z-ddp-node-17-ab12"


@pytest.fixture
def names() -> Pseudonyms:
    return Pseudonyms(
        run_id=RUN_ID,
        hosts=["node-17.cluster.example"],
        users=["miriam", "root"],
        roots={"/home/miriam/work": "WORK", "/opt/venv": "PYTHON"},
    )


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"results in /scratch/miriam/{RUN_ID}/runs/a", "results in RUN/runs/a"),
        (RUN_ID, "20260101T120000Z-ddp-host1-ab12"),
        ("node-17:4711:4712 [0] NCCL INFO eth0:10.1.2.3<0>", "host1:4711:4712 [0] NCCL INFO eth0:ip1<0>"),
        ("node-17.cluster.example said", "host1 said"),
        ("miriam@node-17 in '/home/miriam/work/nsa/train.py'", "user1@host1 in 'WORK/nsa/train.py'"),
        ("mail a.b@example.org", "mail mail1"),
        ("--out=/data/x/y/z.csv,", "--out=DIR1/z.csv,"),
        ("/opt/venv/bin/python -m x", "PYTHON/bin/python -m x"),
        ("/opt/venv/lib/python3.12/site-packages/torch/nn/a.py:3", "PACKAGES/torch/nn/a.py:3"),
        ("/usr/lib/python3.12/json/decoder.py", "PYTHON/json/decoder.py"),
        ("/usr/lib/x86_64-linux-gnu/libcudnn.so.9", "SYSTEM-usr/lib/x86_64-linux-gnu/libcudnn.so.9"),
        ("A=/a/b:/a/c", "A=DIR1/b:DIR1/c"),
        ("file:///a/b", "DIR1/b"),
        ("see /tmp.", "see DIR1/tmp."),
        ("GPU-1a2b3c4d-1111-2222-3333-444455556666", "GPU-uuid1"),
        ("on 00000000:3B:00.0 and PCI:0000:3b:00", "on pci1 and PCI:pci2"),
        ("link/ether 0a:1b:2c:3d:4e:5f", "link/ether mac1"),
        ("guid 0c42:a103:0046:1d4e", "guid guid1"),
        ("fe80::42:acff:fe11:2 and ::1", "ip1 and localhost"),
        ("tcp://127.0.0.1:29500 0.0.0.0", "tcp://localhost:29500 anywhere"),
        ("ip-10-0-3-17.ec2.internal", "host2"),
        ("Serial Number : 1650123456789", "Serial Number : withheld"),
        ("<serial>165012</serial><uuid>GPU-x</uuid>", "<serial>withheld</serial><uuid>withheld</uuid>"),
        ("Linux-6.1.0-acme-gpu7-x86_64-with-glibc2.36", "Linux-6.1.0-x86_64-with-glibc2.36"),
        ("Linux 6.1.0-acme-gpu7 x86_64", "Linux 6.1.0 x86_64"),
        ("trace\\n/home/miriam/work/a.py", "trace\\nWORK/a.py"),
        ("key=hf_abcdefghijklmnopqrstuvwx", "key=[redacted]"),
    ],
)
def test_each_form_of_a_name_is_replaced(names: Pseudonyms, text: str, clean: str) -> None:
    assert names.text(text) == clean
    assert not list(names.leaks(clean))


@pytest.mark.parametrize(
    "text",
    [
        "toks_per_s.mean >= 39 tok/s at 12:34:56, step 3/40, and/or, 1/2",
        "2026-01-01T12:00:00.123+00:00",
        "nvidia-cudnn-cu13==9.19.0.56 driver 580.159.04, cuDNN version: 9.1.0.70",
        "std::vector c10::cuda at::Tensor c10d::Work",
        "https://docs.example.org/a/b?c=d",
        "{out}/runs/{x} and {stdlib}/*.py",
        "step (?P<step>\\d+).*loss (?P<loss>[\\d.]+) and s/a/b/",
        "runs/baseline/r1/training.csv",
        "the root cause of the train phase on the gpu",
        "sha 2f591f9c3a36d7548650e6aa9967b865248fba9b",
        "1,2.5,0.1,100.0",
        "[0x7f12] <b>bold</b> </gpu>",
    ],
)
def test_what_names_nobody_stays(names: Pseudonyms, text: str) -> None:
    assert names.text(text) == text
    assert names.text(names.text(text)) == text


def test_the_same_name_gets_the_same_pseudonym_in_every_file(names: Pseudonyms) -> None:
    first = names.text("eth0 10.9.8.7, then 10.9.8.8")
    assert first == "eth0 ip1, then ip2"
    assert json.loads(names.json_text('{"peer": "10.9.8.8", "10.9.8.7": 1}')) == {"peer": "ip2", "ip1": 1}


def test_json_stays_json_and_keeps_what_is_no_name(names: Pseudonyms) -> None:
    found = {
        "uuid": "GPU-1a2b3c4d-1111-2222-3333-444455556666",
        "serial": "1650",
        "pci_bus_id": "00000000:3B:00.0",
        "api_key": "zq-secret",
        "argv": ["/opt/venv/bin/python", "--tokens", "5"],
        "n": [1, 2.5, None, True],
    }
    clean = json.loads(names.json_text(json.dumps(found)))
    assert clean["uuid"] == "uuid1"
    assert clean["serial"] == "serial1"
    assert clean["api_key"] == "[redacted]"
    assert clean["argv"] == ["PYTHON/bin/python", "--tokens", "5"]
    assert clean["n"] == found["n"]


def test_a_line_of_a_log_that_is_json_stays_json(names: Pseudonyms) -> None:
    log = 'on node-17\n{"token": 5, "auth": true, "host": "node-17"}\n'
    first, second = names.log(log).splitlines()
    assert first == "on host1"
    assert json.loads(second) == {"token": 5, "auth": True, "host": "host1"}
    whole = json.dumps({"train_tokens": 4575883, "data": "/data/x/y.txt"}, indent=2)
    assert json.loads(names.log(whole)) == {"train_tokens": 4575883, "data": "DIR1/y.txt"}


def test_lines_without_a_name_keep_their_spelling(names: Pseudonyms) -> None:
    plain = '{"ts": 1.50, "step": 3}\n'
    torn = '{"ts": 1, "host": "node-1'
    assert names.json_text(plain + '{"host": "node-17"}\n' + torn) == plain + '{"host":"host1"}\n' + torn


def test_a_host_whose_name_is_a_word_of_the_report_does_not_spoil_it() -> None:
    names = Pseudonyms(run_id="20260101T120000Z-x-train-ab12", hosts=["train"])
    assert names.text('kind: train, "state": "done"') == 'kind: train, "state": "done"'


def cost_s(names: Pseudonyms, text: str) -> float:
    began = time.process_time()
    names.text(text)
    list(names.leaks(text))
    return time.process_time() - began


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "part",
    [
        *("/a", "=/", "0a:", "1.", "x@", "a-", "f::", "a.b-", "Linux 1.2.3-a", "serial:", "<uuid>", "eyJ-", "_--eyJ"),
        *("SG.a", "a://", "-----BEGIN ", ":--user ", "login ", "?key=", "Bearer /", "key='\\", "f::|'", "ip-1-"),
    ],
)
def test_a_long_line_costs_no_more_than_its_length(names: Pseudonyms, part: str) -> None:
    """Four times the length may cost four times the time, with room for a busy machine, and not sixteen times."""
    short, long = (part * (size // len(part)) for size in (20_000, 80_000))
    assert cost_s(names, long) < 0.2 + 8 * cost_s(names, short)


def test_a_path_of_the_run_is_sought_backwards_from_its_name(names: Pseudonyms) -> None:
    """Forwards, each slash that could begin a path would cost the 400 characters that it could be long."""
    assert cost_s(names, "!/" * 100_000 + RUN_ID) < 0.1 + 2 * cost_s(names, "!-" * 100_000 + RUN_ID)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"/a/{RUN_ID}/b/{RUN_ID}", "RUN/b/20260101T120000Z-ddp-host1-ab12"),
        (f"x=/a b/{RUN_ID}", "x=/a b/20260101T120000Z-ddp-host1-ab12"),
        (f"/{RUN_ID}", "/20260101T120000Z-ddp-host1-ab12"),
        (f"//{RUN_ID}", "RUN"),
        (f"({'/abc' * 100}/{RUN_ID})", "(RUN)"),
        (f"file:///x/{RUN_ID}, /y/{RUN_ID}.", "RUN, RUN."),
    ],
)
def test_the_way_to_the_run_folder_is_replaced_with_it(names: Pseudonyms, text: str, clean: str) -> None:
    assert names.text(text) == clean


@pytest.mark.timeout(60)
def test_lines_that_only_begin_like_json_are_cleaned_together(
    names: Pseudonyms, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[str] = []
    genuine = Pseudonyms.text
    monkeypatch.setattr(
        Pseudonyms, "text", lambda self, text, **how: cleaned.append(text) or genuine(self, text, **how)
    )
    assert names.log("{\n" * 1000 + '{"a": "node-17"}\n{') == "{\n" * 1000 + '{"a":"host1"}\n{'
    assert len(cleaned) < 10
