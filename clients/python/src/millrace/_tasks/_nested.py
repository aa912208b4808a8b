"""Tasks inside of tasks of a dict graph. Executors load this module, so it imports no part of the
client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from millrace.ops import ExecutorOp

T = TypeVar("T")


class Nested:
    """A task inside of another task of a dict graph. It runs where the outer task runs."""

    __slots__ = ("args", "function")

    def __init__(self, function: Callable[..., Any], args: list[Any]) -> None:
        self.function, self.args = function, args


def run_nested(tree: Any) -> Any:
    """Computes a nested task, or a list that contains some."""
    if isinstance(tree, Nested):
        return tree.function(*[run_nested(a) for a in tree.args])
    if type(tree) is list:
        return [run_nested(a) for a in tree]
    return tree


def identity(value: T) -> T:
    """The task of a key whose value is a constant, another key, or a list of these."""
    return value


def is_task(value: Any) -> bool:
    """Returns whether a value in a dict graph is a task: a tuple that begins with a function or an
    op."""
    return type(value) is tuple and bool(value) and (callable(value[0]) or isinstance(value[0], ExecutorOp))


def has_nested(tree: Any) -> bool:
    """Returns whether an argument is a nested task, or a list that contains one."""
    return isinstance(tree, Nested) or (type(tree) is list and any(has_nested(item) for item in tree))
