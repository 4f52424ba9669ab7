"""Requests to stop: counted, waking, and tidy about signal handlers."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from validator.supervise.wait import CancelToken, cancel_on_signals


@pytest.fixture
def token() -> CancelToken:
    """A token; its descriptors are closed by the test that uses up many."""
    return CancelToken()


def test_the_second_request_is_urgent(token: CancelToken) -> None:
    assert not token.requested
    token.request("first")
    assert (token.requested, token.urgent, token.why) == (True, False, "first")
    token.request("second")
    assert (token.urgent, token.why) == (True, "first")
    token.close()


def test_a_request_wakes_a_sleeper(token: CancelToken) -> None:
    timer = threading.Timer(0.1, token.request)
    timer.start()
    began = time.monotonic()
    assert token.wait(10)
    assert time.monotonic() - began < 8
    timer.join()
    token.close()


def test_many_requests_never_block(token: CancelToken) -> None:
    for _ in range(100_000):
        token.request()
    token.drain()
    assert token.urgent
    token.close()


def test_handlers_are_set_and_put_back(token: CancelToken) -> None:
    before = signal.getsignal(signal.SIGINT)
    with cancel_on_signals(token):
        os.kill(os.getpid(), signal.SIGINT)
        assert token.wait(1)
        assert token.why == "received SIGINT"
    assert signal.getsignal(signal.SIGINT) is before
    token.close()


def test_what_nohup_ignores_stays_ignored(token: CancelToken) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with cancel_on_signals(token):
            os.kill(os.getpid(), signal.SIGHUP)
            assert not token.wait(0.05)
    finally:
        signal.signal(signal.SIGHUP, before)
        token.close()


def test_outside_the_main_thread_only_the_token_stops(token: CancelToken) -> None:
    entered = []

    def run() -> None:
        with cancel_on_signals(token):
            entered.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert entered == [signal.getsignal(signal.SIGINT)]
    token.close()
