"""Small functions and values of Dask's distributed that programs use, and the client does not need."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from millrace._cluster import _versions

_log = logging.getLogger("distributed.utils")
#: Files with the limit of a container's memory, in bytes or "max".
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def _memory_limit() -> int:
    """Returns the memory that this machine or container has, in bytes."""
    found = [math.prod(map(os.sysconf, "SC_PAGE_SIZE SC_PHYS_PAGES".split()))]
    for file in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(file).read_text()))
    return min(found)


#: Memory of this machine or container, in bytes.
MEMORY_LIMIT = _memory_limit()


def get_versions(packages: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns the versions of Python and of packages in this process, and of its host. See
    `Client.get_versions` for those of workers. `packages`: names of further packages."""
    return _versions.describe(tuple(packages or ()))


def log_errors(func: Callable[..., Any] | None = None, /, *, pdb: bool = False, unroll_stack: int = 1) -> Any:
    """Logs exceptions that leave a function or a with block, which raises them all the same. It is
    used as ``@log_errors``, ``@log_errors()`` or ``with log_errors():``.

    Args:
        func: a function, or a coroutine function.
        pdb: open the debugger of Python at the exception.
        unroll_stack: a parameter of distributed that has no effect.
    """
    made = _LogErrors(pdb)
    return made if func is None else made(func)


class _LogErrors(contextlib.ContextDecorator):
    def __init__(self, pdb: bool) -> None:
        self._pdb = pdb

    def __call__(self, func: Any) -> Any:
        if not inspect.iscoroutinefunction(func):
            return super().__call__(func)

        @functools.wraps(func)
        async def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await func(*args, **kwargs)

        return call

    def __enter__(self) -> _LogErrors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(value, Exception) or isinstance(value, (StopIteration, StopAsyncIteration)):
            return
        _log.error("%s", value, exc_info=value)
        if self._pdb:
            import pdb

            pdb.post_mortem(trace)
