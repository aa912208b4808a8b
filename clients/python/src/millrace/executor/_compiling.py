"""Notices of compilations that take seconds: the first call of a function may compile it, and its
user should know why nothing happens."""

from __future__ import annotations

from pathlib import Path
from types import FrameType

#: A compilation that has taken so long is told, in seconds.
PATIENCE = 3.0
#: Time between two looks at a stack, in seconds.
_PAUSE = 0.25
#: The compilers, by the modules whose functions compile.
_COMPILERS = {
    "cupy.cuda.compiler": "CuPy (NVRTC)",
    "cupy._core._jit_cache": "CuPy (NVRTC)",
    "numba.core.compiler": "numba",
    "numba.cuda.compiler": "numba",
    "torch._inductor": "torch.compile",
    "triton.compiler": "Triton",
}
#: Libraries that compile within one call of C++, which Python's stack does not show.
_LIBRARIES = ("cudf", "pylibcudf", "cuml", "cugraph")
#: The compilers that they load, by the names of their files.
_LOADED = ("libnvrtc", "libnvJitLink", "libnvidia-ptxjitcompiler")


def compiler_of(stack: list[FrameType]) -> str:
    """Returns the name of the compiler that runs on a stack, innermost function last; empty: none.
    numba-cuda has its modules below `numba_cuda`."""
    for frame in reversed(stack):
        module = str(frame.f_globals.get("__name__", "")).removeprefix("numba_cuda.")
        while module:
            if module in _COMPILERS:
                return _COMPILERS[module]
            module = module.rpartition(".")[0]
    return ""


def library_of(stack: list[FrameType]) -> str:
    """Returns the library of `_LIBRARIES` in which the innermost function is; empty: none."""
    module = str(stack[-1].f_globals.get("__name__", "")) if stack else ""
    top = module.partition(".")[0]
    return top if top in _LIBRARIES else ""


def loaded() -> bool:
    """Reports whether this process has loaded a compiler for GPUs."""
    try:
        return any(name in Path("/proc/self/maps").read_text() for name in _LOADED)
    except OSError:
        return False


class Watch:
    """Finds long compilations in the stacks of tasks."""

    def __init__(self) -> None:
        self._next = 0.0
        # The task with the compiler or the place of its call, at the latest look; the time since
        # when it is so; and whether that was told.
        self._seen: tuple[object, ...] | None = None
        self._since = 0.0
        self._told = False

    def look(self, key: object, stack: list[FrameType], now: float) -> str:
        """Looks at the stack of a task, innermost function last. Returns a notice, or "".

        Args:
            key: the key of the task.
            stack: its functions; none is kept.
            now: the time in seconds.
        """
        if self._next - _PAUSE <= now < self._next:
            return ""
        self._next = now + _PAUSE
        compiler = compiler_of(stack)
        seen: tuple[object, ...] | None = None
        if compiler:
            seen = key, compiler
        elif library := library_of(stack):
            seen = key, library, id(stack[-1].f_code), stack[-1].f_lineno
        if seen is None or seen != self._seen:
            self._seen, self._since, self._told = seen, now, False
            return ""
        seconds = now - self._since
        if self._told or seconds < PATIENCE:
            return ""
        self._told = True
        if compiler:
            return f"{compiler} has been compiling for {seconds:.0f} s; later calls of this process use the result"
        if not loaded():
            return ""
        return (
            f"one call of {seen[1]} has taken {seconds:.0f} s, and this process has loaded a compiler for GPUs: "
            "a first call may compile kernels, and later ones use them"
        )
