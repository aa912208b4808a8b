"""Pickled functions that are kept for their next use."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator

from millrace._task_states._state import Function

#: Most bytes of pickles that are kept. A dropped function is pickled again at its next use.
_FUNCTION_BYTES = 64 << 20


class FunctionCache:
    """Pickled functions by digest. Their pickles take at most _FUNCTION_BYTES, except that one
    function is always kept, whatever its size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The most recently used one last. Guarded by _lock.
        self._functions: collections.OrderedDict[bytes, Function] = collections.OrderedDict()
        #: Bytes of the pickles that are kept.
        self.nbytes = 0

    def add(self, digest: bytes, function: Function) -> None:
        """Keeps a function. If the pickles exceed the limit, drops the least recently used ones."""
        with self._lock:
            if digest not in self._functions:
                self._functions[digest] = function
                self.nbytes += len(function[0])
            while self.nbytes > _FUNCTION_BYTES and len(self._functions) > 1:
                self.nbytes -= len(self._functions.popitem(last=False)[1][0])

    def get(self, digest: bytes) -> Function | None:
        """Returns a function that is kept, or None."""
        with self._lock:
            found = self._functions.get(digest)
            if found is not None:
                self._functions.move_to_end(digest)
            return found

    def __iter__(self) -> Iterator[Function]:
        with self._lock:
            return iter(list(self._functions.values()))
