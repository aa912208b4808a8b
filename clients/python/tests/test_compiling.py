"""Notices of compilations that take seconds."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from millrace.executor import _compiling, _task_info
from millrace.executor._compiling import Watch
from millrace.executor._profile import Sampler
from millrace.executor._task_info import TaskInfo

PATIENCE = _compiling.PATIENCE


def stack_in(*modules: str) -> list[FrameType]:
    """Returns a stack of functions in modules of these names, innermost last."""

    def collect() -> list[FrameType]:
        found, frame = [], sys._getframe(1)
        for _ in modules:
            found.append(frame)
            frame = frame.f_back or frame
        return found[::-1]

    return within(collect, *modules)()


def within(inner: Callable[[], Any], *modules: str) -> Callable[[], Any]:
    """Returns a function that calls another one by functions in modules of these names."""
    for module in reversed(modules):
        names: dict[str, Any] = {"__name__": module}
        exec("def call(inner): return inner()", names)
        inner = functools.partial(names["call"], inner)
    return inner


@pytest.mark.parametrize(
    ("modules", "compiler"),
    [
        (["user", "cupy", "cupy.cuda.compiler"], "CuPy (NVRTC)"),
        (["user", "numba.core.compiler", "numba.core.lowering"], "numba"),
        (["user", "numba_cuda.numba.cuda.compiler"], "numba"),
        (["user", "torch._inductor.codecache", "subprocess"], "torch.compile"),
        (["user", "numba.core.dispatcher_of_mine"], ""),
        (["user"], ""),
    ],
)
def test_compilers_are_known_by_their_modules(modules: list[str], compiler: str) -> None:
    assert _compiling.compiler_of(stack_in(*modules)) == compiler


def test_a_long_compilation_is_told_once() -> None:
    watch, compiles, other = Watch(), stack_in("user", "numba.core.compiler"), stack_in("user")
    assert not watch.look("a", compiles, 100.0)
    assert not watch.look("a", compiles, 100.0 + PATIENCE / 2)
    assert "numba has been compiling for 3 s" in watch.look("a", compiles, 100.0 + PATIENCE)
    assert not watch.look("a", compiles, 101.0 + PATIENCE)
    # Another task, or one that did something else in between, begins anew.
    assert not watch.look("b", compiles, 110.0)
    assert not watch.look("b", other, 111.0)
    assert not watch.look("b", compiles, 112.0)
    assert not watch.look("b", compiles, 112.0 + PATIENCE / 2)
    assert watch.look("b", compiles, 112.0 + PATIENCE)


def test_a_long_call_of_a_library_is_told_if_a_compiler_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    call = stack_in("user", "cudf.core.groupby")
    for loaded in (False, True):
        monkeypatch.setattr(_compiling, "loaded", lambda loaded=loaded: loaded)
        watch = Watch()
        assert not watch.look("a", call, 100.0)
        told = watch.look("a", call, 100.0 + PATIENCE)
        assert ("may compile" in told and "cudf" in told) == loaded
        # A call of another place is another one.
        assert not watch.look("a", stack_in("user", "cudf.core.groupby"), 110.0)


def outer(inner: Callable[[], Any]) -> Any:
    return inner()


def test_the_task_is_told_while_it_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(_task_info, "current", TaskInfo("spin-1", 1, 1, "w", "default", 0))
    sampler = Sampler(frozenset({outer.__code__}))
    for now in (100.0, 102.0, 104.0, 106.0):
        outer(within(functools.partial(sampler.sample, now), "user", "numba.core.compiler"))
    assert capsys.readouterr().err.splitlines() == [
        "millrace: spin-1: numba has been compiling for 4 s; later calls of this process use the result"
    ]
