"""Splits data frames into pieces, and puts pieces together.

A frame is a DataFrame or a Series of pandas, Polars or cuDF, or a Table or a RecordBatch of Arrow.
The pieces of a split are slices of one frame whose rows were put into order once: a list of them is
an object of the cluster in which every piece has frames of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from millrace._frames._cudf import Cudf
from millrace._frames._library import Library
from millrace._frames._pandas import Pandas
from millrace._frames._polars import Polars
from millrace._frames._pyarrow import PyArrow

_LIBRARIES: tuple[Library, ...] = (Pandas(), PyArrow(), Polars(), Cudf())


def is_frame(obj: Any) -> bool:
    """Returns whether an object is a data frame that can be split."""
    return any(library.has(obj) for library in _LIBRARIES)


def split_by_hash(frame: Any, by: Any, n: int) -> list[Any]:
    """Splits a frame into n pieces. Rows with equal values in the columns `by` are in the same
    piece, in every process, for all frames whose columns have the same kind of type: numbers of
    pandas and Arrow may differ in width, times in their unit, text in its storage.

    Args:
        frame: a data frame.
        by: the label of a column, or a list of labels.
        n: the number of pieces.
    """
    library = _library(frame)
    labels = _labels(library, frame, by)
    _check(n)
    return library.split(frame, library.by_hash(frame, labels, n), n)


def split_by_range(
    frame: Any,
    by: Any,
    edges: Sequence[Any],
    *,
    descending: bool = False,
    missing: Literal["first", "last"] = "last",
) -> list[Any]:
    """Splits a frame by the values of a column into one piece more than there are edges: piece j
    has the values from edges[j - 1] up to, but without, edges[j].

    Args:
        frame: a data frame.
        by: the label of the column.
        edges: values of the column's type, in ascending order.
        descending: the pieces are in the opposite order: piece 0 has the largest values.
        missing: the piece that rows without a value are in.
    """
    library = _library(frame)
    (label,) = _labels(library, frame, [by])
    n = len(edges) + 1
    numbers, without = library.by_range(frame, label, edges)
    if descending:
        numbers = n - 1 - numbers
    if without is not None:
        numbers = numbers.copy()
        numbers[without] = 0 if missing == "first" else n - 1
    return library.split(frame, numbers, n)


def split_by_number(frame: Any, numbers: Any, n: int) -> list[Any]:
    """Splits a frame into n pieces: piece j has the rows of number j, in their order.

    Args:
        frame: a data frame.
        numbers: for each row the number of its piece, from 0 to n-1: an array of integers, of CuPy
            for frames of cuDF.
        n: the number of pieces.
    """
    library = _library(frame)
    _check(n)
    return library.split(frame, numbers, n)


def concatenate(frames: Sequence[Any]) -> Any:
    """Returns a frame with the rows of all frames, in order. Frames without rows count only if there
    are no others. Arrow and Polars do not copy the rows: the result keeps all frames in memory.

    Args:
        frames: at least one frame, all of the same library and type.
    """
    if not len(frames):
        raise ValueError("nothing to put together: at least one frame is needed, which may be empty")
    library = _library(frames[0])
    for at, frame in enumerate(frames):
        if not library.has(frame):
            raise TypeError(f"frame {at} is a {_name(frame)}, and frame 0 a {_name(frames[0])}: convert one of them")
    return library.concatenate(frames)


def _library(frame: Any) -> Library:
    for library in _LIBRARIES:
        if library.has(frame):
            return library
    raise TypeError(f"a {_name(frame)} is no data frame of pandas, Arrow, Polars or cuDF")


def _labels(library: Library, frame: Any, by: Any) -> list[Any]:
    known = library.columns(frame)
    labels: list[Any] = by if isinstance(by, list) else [by]
    for label in labels:
        if label not in known:
            raise KeyError(f"by: no column {label!r}; there are {', '.join(map(repr, known[:20]))}")
    if not labels:
        raise ValueError("by: the label of at least one column is needed")
    return labels


def _check(n: int) -> None:
    if n < 1:
        raise ValueError(f"n is {n}: at least 1 piece is needed")


def _name(obj: Any) -> str:
    return f"{type(obj).__module__.partition('.')[0]}.{type(obj).__qualname__}"
