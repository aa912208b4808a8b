"""Plans and expressions of any depth.

Polars runs a predicate of thousands of parts. Functions that follow expressions call themselves for
each level, so Python's limit is higher while they run.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

#: Calls within each other. Before Python 3.11, each takes about 500 bytes of the thread's stack.
_CALLS = 100_000 if sys.version_info >= (3, 11) else 10_000
_lock = threading.Lock()
_inside: list[int] = []


@contextlib.contextmanager
def plans() -> Iterator[None]:
    """Within it, plans may be deep."""
    with _lock:
        _inside.append(sys.getrecursionlimit() if not _inside else _inside[0])
        sys.setrecursionlimit(max(_CALLS, _inside[0]))
    try:
        yield
    finally:
        with _lock:
            before = _inside.pop()
            if not _inside:
                sys.setrecursionlimit(before)
