"""The source of code that another process has sent, for tracebacks and debuggers.

Functions of a notebook or of an interactive session come from no file, and the modules of one
machine may be missing on another. Lines of their source travel with functions to the executors, and
with tracebacks to the clients. There they are added to `linecache`, where the standard library
looks for them.
"""

from __future__ import annotations

import collections
import linecache
import threading
import types
from typing import Any

#: Most characters of a line that are sent.
_LINE = 300
#: Files whose lines are kept, and the highest number of a line.
_MOST_FILES = 1000
_MOST_LINES = 50_000
#: Most lines that are sent with a function.
_MOST_SENT = 500

_lock = threading.Lock()
# The lines that were received, by file. Guarded by _lock.
_received: collections.OrderedDict[str, dict[int, str]] = collections.OrderedDict()


def lines_of(file: str, first: int, last: int, module: dict[str, Any] | None = None) -> dict[int, str]:
    """Returns lines of a file by their numbers, as far as they are known here."""
    first = max(first, 1)
    lines = linecache.getlines(file, module)[first - 1 : last]
    return {first + i: line.rstrip("\n")[:_LINE] for i, line in enumerate(lines)}


def of_code(code: types.CodeType) -> tuple[str, dict[int, str]] | None:
    """Returns the file of a function and the lines of its source, if no other process can read
    them: they are in `linecache`, but not in a file."""
    entry = linecache.cache.get(code.co_filename)
    if entry is None or len(entry) < 4 or entry[1] is not None:
        return None
    last = max((at[2] for at in code.co_lines() if at[2] is not None), default=code.co_firstlineno)
    lines = lines_of(code.co_filename, code.co_firstlineno, min(last, code.co_firstlineno + _MOST_SENT))
    return (code.co_filename, lines) if lines else None


def remember(file: str, lines: dict[int, str]) -> str:
    """Makes `linecache` know lines of another process. Returns the name of the file under which it
    knows them: another one if this process has a file of this name with other lines."""
    if file not in _received:
        here = linecache.getlines(file)
        if here:
            if all(n <= len(here) and here[n - 1].rstrip("\n")[:_LINE] == line for n, line in lines.items()):
                return file
            file = f"{file} (as on the worker)"
    register(file, lines)
    return file


def register(file: str, lines: dict[int, str]) -> None:
    """Adds lines of a file that does not exist here to `linecache`."""
    with _lock:
        known = _received.setdefault(file, {})
        _received.move_to_end(file)
        known.update((n, line) for n, line in lines.items() if 0 < n <= _MOST_LINES)
        if known:
            text = [known.get(n, "") + "\n" for n in range(1, max(known) + 1)]
            # Entries without a time are not compared with a file.
            linecache.cache[file] = sum(map(len, text)), None, text, file
        if len(_received) > _MOST_FILES:
            old, _ = _received.popitem(last=False)
            linecache.cache.pop(old, None)
