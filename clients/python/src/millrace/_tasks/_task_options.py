"""The rules of a task: where, when and how often it may run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypedDict

from millrace import _check
from millrace._connection import _slot
from millrace._pb.millrace.v1 import task_pb2
from millrace._session._session import Session
from millrace.ops import ExecutorOp, NativeOp

#: Longest timeout of a task, in seconds: 100 years.
_LONGEST = 3_153_600_000


class SubmitOptions(TypedDict, total=False):
    """The options of `Client.submit` that can apply to every call of an executor."""

    pure: bool
    priority: int | None
    retries: int | None
    workers: str | Sequence[str] | None
    allow_other_workers: bool
    resources: Mapping[str, float] | None
    timeout: _check.Seconds | None
    slots: int
    no_wait: bool


#: Keyword arguments of `Client.submit` and `Client.map` that are no rules of the task.
NO_RULES = frozenset({"pure", "fifo_timeout", "batch_size", "actor", "actors"})
#: Keyword arguments of theirs, except for `key`, that are not passed on to the function.
OPTIONS = NO_RULES | SubmitOptions.__annotations__.keys()
_TAKEN = OPTIONS | {"key"}


def bound(func: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns a function and keyword arguments for a `Client.submit` that passes all of these on to
    the function: those that `submit` would take for itself are bound to it."""
    own = {k: v for k, v in kwargs.items() if k in _TAKEN}
    if not own:
        return func, dict(kwargs)
    if isinstance(func, (str, NativeOp, ExecutorOp)):
        raise TypeError(
            f"{', '.join(sorted(own))}: an import path or an op gets no argument of this name here: use client.submit()"
        )
    return partial(func, **own), {k: v for k, v in kwargs.items() if k not in own}


def checked(options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Returns the SubmitOptions that every call of an executor shall have.

    Raises:
        TypeError, ValueError: there is no such option, or its value is wrong; the message says what
            had the option.
    """
    unknown = sorted(set(options) - set(SubmitOptions.__annotations__))
    if unknown:
        raise TypeError(
            f"unsupported arguments to {what}: {unknown}; there are: {', '.join(sorted(SubmitOptions.__annotations__))}"
        )
    TaskOptions(**{name: value for name, value in options.items() if name != "pure"}).pack()
    return dict(options)


@dataclass(frozen=True)
class TaskOptions:
    """The options of `Client.submit` that are rules of the task. They are checked by `pack`."""

    #: None: that of the task in which `pack` is called; 0 outside of tasks.
    priority: int | None = None
    retries: int | None = 0
    workers: str | Sequence[str] | None = None
    allow_other_workers: bool = False
    resources: Mapping[str, float] | None = None
    timeout: _check.Seconds | None = None
    slots: int = 1
    no_wait: bool = False
    #: Seconds before the first retry; it doubles with each one. None: 0.1.
    retry_pause: float | None = None

    def pack(self, session: Session | None = None) -> bytes:
        """Returns a serialised TaskOptions message; empty for the defaults.

        Args:
            session: finds the workers of addresses, "tcp://host:port".

        Raises:
            TypeError, ValueError: an option is of a wrong type or out of its range; the message
                names it.
        """
        retries = 0 if self.retries is None else self.retries
        priority = _slot.priority() if self.priority is None else self.priority
        plain = type(priority) is type(retries) is type(self.slots) is int
        if (
            plain
            and (priority, retries, self.slots) == (0, 0, 1)
            and self.workers is None
            and not self.resources
            and self.timeout is None
            and not self.no_wait
        ):
            return b""
        out = task_pb2.TaskOptions(
            priority=_check.integer(priority, "priority", -(1 << 31), (1 << 31) - 1),
            max_retries=_check.integer(retries, "retries", 0, 1_000_000),
            allow_other_workers=bool(self.allow_other_workers),
            no_wait=bool(self.no_wait),
        )
        listed = _check.names(self.workers, "workers")
        if listed is not None:
            if not 1 <= len(listed) <= 4096:
                raise ValueError(
                    f"workers has {len(listed)} names: give 1 to 4,096, or leave it out for a task that may run anywhere"
                )
            for text in listed if session is None else _named(session, listed):
                _select(out, text)
        for name, amount in _check.resources(self.resources).items():
            out.resources[name] = amount
        if self.timeout is not None:
            limit = _check.seconds(self.timeout, "timeout")
            if not 1e-6 <= limit <= _LONGEST:
                raise ValueError(
                    f"timeout must be positive and at most {_LONGEST} s, not {self.timeout!r}: leave it out for none"
                )
            out.timeout.FromTimedelta(timedelta(seconds=limit))
        if self.retry_pause is not None and out.max_retries:
            out.retry_backoff.FromTimedelta(timedelta(seconds=self.retry_pause))
        number = _check.integer(self.slots, "slots", 1, 65536)
        if number != 1:
            out.slots = number
        return out.SerializeToString()


def _named(session: Session, texts: Sequence[str]) -> list[str]:
    """Returns the texts, with the name of the worker instead of each address. The address of a
    worker that is not known stands for no worker."""
    if not any(":" in text for text in texts):
        return list(texts)
    known = {w.data_address: w.name for w in session.workers()}
    return [known.get(text.removeprefix("tcp://"), text) for text in texts]


def _select(out: task_pb2.TaskOptions, text: str) -> None:
    """Adds all that a text may mean: a worker's name, a host and, in the form "w3", an id."""
    out.workers.add(name=text)
    out.workers.add(host=text)
    if text[:1] == "w" and text[1:].isdecimal() and 0 < int(text[1:]) < 1 << 32:
        out.workers.add(worker_id=int(text[1:]))
