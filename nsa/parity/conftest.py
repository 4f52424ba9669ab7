"""The fused kernels compile beside the tests that need none: one after the other they took 13 s of a first run's 33."""

from __future__ import annotations

import pytest

from nsa.config import Config, replace_flat
from nsa.parity.cases import KERNEL_CASE
from nsa.warmup import WarmUp, start_warm_up

_COMPILING = pytest.StashKey[WarmUp]()


def kernel_config() -> Config:
    """A config of the trainer whose attention launches what the tests of the fused kernels do."""
    case = KERNEL_CASE
    sizes = {"l_cmp": case.l, "d_cmp": case.d, "l_sel": case.l_sel, "n_sel": case.n_sel, "w": case.w}
    heads = {"n_heads": case.G * case.heads_per_group, "n_kv_groups": case.G, "d_k": case.Dk, "d_v": case.Dv}
    return replace_flat(Config(), seq_len=case.S, batch_size=case.B, dtype="bf16", **heads, **sizes)


def pytest_configure(config: pytest.Config) -> None:
    """Start the compilers before tests are collected: that asks for a GPU, and then no process may be forked."""
    config.stash[_COMPILING] = start_warm_up(kernel_config())


@pytest.fixture(scope="session")
def compiled_kernels(pytestconfig: pytest.Config) -> None:
    """Wait until the kernels are compiled."""
    pytestconfig.stash[_COMPILING].finish(say=print)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what no test has waited for."""
    config.stash[_COMPILING].close()
