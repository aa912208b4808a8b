"""The ops that a task can run instead of a Python function."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NativeOp:
    """An op that workers run themselves, without Python."""

    #: Name of the op: "array.matmul".
    name: str

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise TypeError(f"{self.name} runs on workers: client.submit({self!r}, ...) or client.op({self.name!r}, ...)")


@dataclass(frozen=True)
class ExecutorOp:
    """An op that a registered executor program runs."""

    #: The program's registered name, a slash, and the op's name in the program: "echo/upper".
    name: str


def native(name: str) -> NativeOp:
    """Returns the native op of a name. It is used in place of a function in ``submit``, ``map`` and
    dict graphs."""
    return NativeOp(name)
