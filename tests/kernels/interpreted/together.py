"""Programs that wait for each other, on the interpreter.

Each has a thread, one runs at a time, and a program passes its turn on at every atomic operation, for there it may wait
for another.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
import triton.language as tl  # noqa: F401 - the interpreter replaces this module's functions for whatever it runs
from triton.runtime import interpreter

__all__ = ["run_together"]

_MOST_TURNS = 100_000


class _Turns:
    """The programs of one launch and whose turn it is."""

    def __init__(self, count: int) -> None:
        self.changed = threading.Condition()
        self.waiting = list(range(count))
        self.turns = 0
        self.error: BaseException | None = None

    def _take(self, program: int) -> None:
        self.changed.wait_for(lambda: self.error is not None or self.waiting[0] == program, timeout=120)
        if self.error is not None or self.waiting[0] != program:
            raise RuntimeError("another program failed")
        interpreter.interpreter_builder.set_grid_idx(program, 0, 0)

    def pass_on(self) -> None:
        """Let all the others go first."""
        with self.changed:
            self.turns += 1
            if self.turns > _MOST_TURNS:
                raise RuntimeError("the programs wait for each other in vain")
            program = self.waiting.pop(0)
            self.waiting.append(program)
            self.changed.notify_all()
            self._take(program)

    def run(self, program: int, body: Callable[[], None]) -> None:
        try:
            with self.changed:
                self._take(program)
            body()
        except BaseException as error:  # raised again by the thread that started this one
            self.error = self.error or error
        finally:
            with self.changed:
                self.waiting.remove(program)
                self.changed.notify_all()


def _at_once(fn: Callable[..., None], count: int, current: list[_Turns]) -> Callable[..., None]:
    """``fn`` for the whole grid when the interpreter asks for its last program."""

    @functools.wraps(fn)
    def program(**arguments: Any) -> None:
        if interpreter.interpreter_builder.grid_idx[0] + 1 < count:
            return
        turns = _Turns(count)
        current[:] = [turns]
        threads = [
            threading.Thread(target=turns.run, args=(i, functools.partial(fn, **arguments)), daemon=True)
            for i in range(count)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        current.clear()
        if turns.error is not None:
            raise turns.error

    program.__signature__ = inspect.signature(fn)  # type: ignore[attr-defined]
    return program


def run_together(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on all programs of ``kernel`` run at the same time; its grid has one dimension."""
    current: list[_Turns] = []
    atomic = interpreter.InterpreterBuilder.create_atomic_rmw

    def passing_atomic(self: Any, *arguments: Any) -> Any:
        if current:
            current[0].pass_on()
        return atomic(self, *arguments)

    def run(*args: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> None:
        fn = _at_once(kernel.rewrite(), grid[0], current)
        interpreter.GridExecutor(fn, kernel.arg_names, grid)(*args, **options)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_atomic_rmw", passing_atomic)
    monkeypatch.setattr(kernel, "run", run, raising=False)
