"""What a task can run besides a Python function."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NativeOp:
    """An op that workers run themselves, without Python."""

    #: Its name: "array.matmul".
    name: str

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise TypeError(f"{self.name} runs on workers: client.submit({self!r}, ...) or client.op({self.name!r}, ...)")


@dataclass(frozen=True)
class ExecutorOp:
    """Something that a registered executor program runs."""

    #: Registered name, slash, the program's own name: "echo/upper".
    name: str


def native(name: str) -> NativeOp:
    """The native op of that name, to be used where a function is: in ``submit``, ``map`` and dict graphs."""
    return NativeOp(name)
