"""Exceptions of tasks on their way to a client: with their types, attributes, causes, groups and
tracebacks.

A traceback cannot be pickled. Its frames travel as file, function, lines and columns, with the
source around each line. The reader makes a real traceback of them, by running code that raises at
these lines; `linecache` gets the source that the reader does not have, for example of modules that
are only on the worker. So tracebacks are printed, and debuggers open, as for exceptions of the
reader's own functions.
"""

from __future__ import annotations

import ast
import collections
import functools
import io
import itertools
import os
import pickle
import types
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from millrace._values import _serialize, _source

#: Most exceptions that are sent in one: causes, contexts and members of groups.
_MOST_EXCEPTIONS = 64
#: Frames at the beginning and at the end of a traceback that are sent.
_FIRST_FRAMES, _LAST_FRAMES = 20, 80
#: Lines of source before and after that of a frame that are sent.
_AROUND = 5
#: Most characters of a text that stands for an exception.
_TEXT = 64 << 10

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


#: Types of exceptions that this package does not raise on purpose.
_OWN_MISTAKES = (AttributeError, AssertionError, NameError, IndexError, RecursionError)


class Unsendable(Exception):
    """Stands for an exception that could not be sent. Its text has the type and the message."""


class Frame:
    """One frame of a traceback."""

    __slots__ = ("column", "end_column", "end_line", "file", "line", "module", "name")

    def __init__(
        self, file: str, name: str, module: str, line: int, end_line: int | None, column: int | None, end: int | None
    ) -> None:
        self.file, self.name, self.module, self.line = file, name, module, line
        self.end_line, self.column, self.end_column = end_line, column, end

    def __reduce__(self) -> Any:
        return Frame, (self.file, self.name, self.module, self.line, self.end_line, self.column, self.end_column)


#: Lines of source by file and number.
Sources: TypeAlias = dict[str, dict[int, str]]


# ---- out -----------------------------------------------------------------------------------------


def without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Returns a traceback without the frames of this package at its beginning."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return trace


def hidden(e: BaseException) -> BaseException:
    """Returns an exception that this package raises to its user, without the frames in which it did
    so. They stay in an exception that may be a mistake of this package."""
    trace = without_ours(e.__traceback__)
    return e if trace is None and isinstance(e, _OWN_MISTAKES) else e.with_traceback(trace)


def dumps(e: BaseException) -> bytes | None:
    """Pickles an exception with all that belongs to it; None if that is impossible."""
    try:
        data = _dump(e, e, _family(e))
        pickle.loads(data)
    except BaseException:
        return None
    return data


def _dump(obj: Any, whole: BaseException | None, family: dict[int, BaseException]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, whole, family).dump(obj)
    return file.getvalue()


def _family(e: BaseException) -> dict[int, BaseException]:
    """Returns the exceptions that are sent with one, by id: at most `_MOST_EXCEPTIONS`."""
    found: dict[int, BaseException] = {}
    next_ones = collections.deque([e])
    while next_ones and len(found) < _MOST_EXCEPTIONS:
        at = next_ones.popleft()
        if id(at) in found:
            continue
        found[id(at)] = at
        next_ones += [x for x in (at.__cause__, _context(at)) if x is not None]
        members: Any = getattr(at, "exceptions", ())
        if isinstance(members, tuple):
            next_ones += [x for x in members if isinstance(x, BaseException)]
    return found


def _context(e: BaseException) -> BaseException | None:
    return None if e.__suppress_context__ else e.__context__


class _Pickler(_serialize.CodePickler):
    """Pickles exceptions with their causes and tracebacks.

    Args:
        whole: the exception that is pickled; None: the parts of one are tried.
        family: the exceptions that are sent with it.
    """

    def __init__(self, file: io.BytesIO, whole: BaseException | None, family: dict[int, BaseException]) -> None:
        super().__init__(file, protocol=5)
        self._whole, self._family = whole, family

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, BaseException):
            return super().reducer_override(obj)
        if id(obj) not in self._family:
            return Unsendable, (named(obj),)
        made = _parts(obj, self._family)
        if self._whole is None:
            return _made, made
        frames, sources = _frames(without_ours(obj.__traceback__))
        links = [x if x is not None and id(x) in self._family else None for x in (obj.__cause__, _context(obj))]
        # The state is set when the object exists, so that causes may form circles.
        return _made, made, (*links, obj.__suppress_context__, frames, sources), None, None, _link


def _parts(e: BaseException, family: dict[int, BaseException]) -> tuple[Any, Any, Any]:
    """Returns what an exception is made of: a function, its arguments, and its state.

    Some exceptions can be pickled but not unpickled, because their __init__ takes other arguments
    than it passes on. They are made without a call of it. One whose attributes cannot be pickled,
    or which would end the reader's program, is replaced by its text.
    """
    if isinstance(e, Exception):
        for parts in (_as_pickle_does, _without_init):
            try:
                made = parts(e)
                if type(_made(*pickle.loads(_dump(made, None, family)))) is not type(e):
                    continue
            except BaseException:
                continue
            return made
    return Unsendable, (named(e),), None


def _as_pickle_does(e: BaseException) -> tuple[Any, Any, Any]:
    reduced: Any = e.__reduce_ex__(5)
    return reduced[0], reduced[1], reduced[2] if len(reduced) > 2 else None


def _without_init(e: BaseException) -> tuple[Any, Any, Any]:
    return _new, (type(e), e.args), dict(vars(e))


def named(e: BaseException) -> str:
    """Returns the type and the message of an exception."""
    try:
        kind = f"{type(e).__module__}.{type(e).__qualname__}".removeprefix("builtins.")
        message = str(e)[:_TEXT]
    except BaseException:
        return type.__repr__(type(e))
    return f"{kind}: {message}" if message else kind


def _frames(trace: types.TracebackType | None) -> tuple[list[Frame], Sources]:
    entries: list[types.TracebackType] = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    if len(entries) > _FIRST_FRAMES + _LAST_FRAMES:
        entries[_FIRST_FRAMES:-_LAST_FRAMES] = []
    frames = [_frame(t) for t in entries]
    sources: Sources = {}
    for entry, frame in zip(entries, frames, strict=True):
        last = max(frame.line, frame.end_line or 0) + _AROUND
        some = _source.lines_of(frame.file, frame.line - _AROUND, last, entry.tb_frame.f_globals)
        if some:
            sources.setdefault(frame.file, {}).update(some)
    return frames, sources


def _frame(trace: types.TracebackType) -> Frame:
    code = trace.tb_frame.f_code
    end_line = column = end = None
    positions: Any = getattr(code, "co_positions", None)  # since Python 3.11
    if positions is not None and trace.tb_lasti >= 0:
        _, end_line, column, end = next(itertools.islice(positions(), trace.tb_lasti // 2, None))
    module = trace.tb_frame.f_globals.get("__name__")
    module = module if isinstance(module, str) else ""
    return Frame(code.co_filename, code.co_name, module, trace.tb_lineno, end_line, column, end)


# ---- in ------------------------------------------------------------------------------------------


def loads(data: bytes) -> BaseException:
    """Unpickles an exception. Raises whatever its class raises."""
    return pickle.loads(data)


def _new(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    exception = kind.__new__(kind, *args)
    exception.args = args
    return exception


def _made(make: Any, args: tuple[Any, ...], state: Any) -> BaseException:
    exception = make(*args)
    if state:
        exception.__setstate__(state)
    return exception


def _link(e: BaseException, links: tuple[Any, Any, bool, list[Frame], Sources]) -> None:
    cause, context, suppressed, frames, sources = links
    e.__cause__, e.__context__, e.__suppress_context__ = cause, context, suppressed
    e.__traceback__ = traceback_of(frames, sources)


def traceback_of(frames: Iterable[Frame], sources: Sources) -> types.TracebackType | None:
    """Makes a traceback of frames."""
    names = {file: _source.remember(file, lines) for file, lines in sources.items()}
    trace: types.TracebackType | None = None
    for frame in reversed(list(frames)):
        made = _raised(frame, names.get(frame.file, frame.file))
        if made is not None:
            made.tb_next = trace
            trace = made
    return trace


class _Raised(Exception):
    """Raised by the code that makes a frame."""


def _raised(frame: Frame, file: str) -> types.TracebackType | None:
    """Returns the traceback of one frame."""
    code = _code(file, frame.name, frame.line, frame.end_line, frame.column, frame.end_column)
    raising = _raising(code, {"__name__": frame.module, "__file__": file, "raised": _Raised})
    trace = next(raising)
    raising.close()
    return trace


def _raising(code: types.CodeType, module: dict[str, Any]) -> Generator[types.TracebackType | None, None, None]:
    """Yields the traceback of code that raises. A generator, because a frame refers to its caller,
    and a generator to nobody once it has ended: else the traceback would keep all frames alive that
    lead here, and so the exception that it is of. NB: it must wait outside of the try statement:
    from Python 3.13 on, only such a generator ends without a call that its frame would refer to."""
    trace: types.TracebackType | None = None
    try:
        exec(code, module, {})
    except _Raised as e:
        trace = e.__traceback__
    yield None if trace is None else trace.tb_next


@functools.lru_cache(1000)
def _code(file: str, name: str, line: int, end_line: int | None, column: int | None, end: int | None) -> types.CodeType:
    """Returns code that raises at a place of a file."""
    tree = ast.parse("raise raised")
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.lineno = line
            node.end_lineno = end_line if end_line is not None and end_line >= line else line
            node.col_offset = column or 0
            node.end_col_offset = end if end is not None and column is not None else 0
    return compile(tree, file, "exec").replace(co_name=name)
