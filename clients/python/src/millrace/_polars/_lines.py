"""Text files in parts: ranges of whole lines, which tasks read.

A quoted value may hold ends of lines, so the end of a row is not known from the bytes around it:
the number of quotes from the start of the file on says it. Tasks count them in each range of bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _plan
from millrace._polars._plan import Node

_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda", b"\x28\xb5\x2f\xfd")
#: Bytes in which quotes are counted at once.
_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Count:
    """A range of bytes of a text file, and the rows that begin in it."""

    #: The number of quotes is odd.
    odd: bool
    #: The first byte of the first row, if no quote is open at the start of the range; None: none
    #: begins.
    outside: int | None
    #: The same if a quote is open there.
    inside: int | None


@dataclasses.dataclass(frozen=True)
class Lines:
    """Lines of a text file: the source of an input of a plan, in place of a data frame."""

    #: The fields of the scan of the whole file.
    scan: dict[str, Any]
    path: str
    #: Bytes at the start of the file that stand before the lines, with the names of the columns.
    header: int
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start

    @contextlib.contextmanager
    def opened(self) -> Iterator[pl.LazyFrame]:
        """Yields a scan of the lines. They are a copy in memory, because Polars reads whole files."""
        copy = os.memfd_create("millrace-lines")
        try:
            with Path(self.path).open("rb") as file:
                _copy(file.fileno(), copy, 0, self.header)
                _copy(file.fileno(), copy, self.start, self.end)
            scan = Node("Scan", self.scan)
            arguments = scan["unified_scan_args"]
            (path,), name = scan["sources"]["Paths"], arguments["include_file_paths"]
            same = {**arguments, "include_file_paths": None}
            lines = _plan.lazy(scan.changed(sources=sources([f"/proc/self/fd/{copy}"]), unified_scan_args=same))
            yield lines if name is None else lines.with_columns(pl.lit(path["inner"]).alias(name))
        finally:
            os.close(copy)


def _copy(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        sent = os.sendfile(target, source, start, end - start)
        if not sent:
            raise OSError(f"the file ends at byte {start}; it had {end} bytes or more when the query began")
        start += sent


def sources(paths: Sequence[str]) -> dict[str, Any]:
    """Returns the field `sources` of a scan of these files."""
    return {"Paths": [{"inner": p} for p in paths]}


def count(path: str, start: int, end: int, quote: int | None, eol: int) -> Count:
    """Counts the quotes in a range of bytes, and finds the first row that begins in it, for both
    cases: no quote is open at its start, or one is."""
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        if quote is None:
            first = _row(data, start, end, b"", bytes((eol,)), False)
            return Count(False, first, first)
        mark, line = bytes((quote,)), bytes((eol,))
        quotes = sum(data[at : min(at + _BLOCK, end)].count(mark) for at in range(start, end, _BLOCK))
        return Count(
            quotes % 2 == 1, _row(data, start, end, mark, line, False), _row(data, start, end, mark, line, True)
        )


def _row(data: mmap.mmap, at: int, end: int, quote: bytes, eol: bytes, inside: bool) -> int | None:
    """Returns where the first row begins behind `at`."""
    while True:
        if inside:
            close = data.find(quote, at, end)
            if close < 0:
                return None
            at = close + 1
        stop = data.find(eol, at, end)
        if stop < 0:
            return None
        opened = data.find(quote, at, stop) if quote else -1
        if opened < 0:
            return stop + 1
        at, inside = opened + 1, True


def begins(counts: Sequence[Count]) -> list[int]:
    """Returns where rows begin: the second row of a file, and the first row of each range but the
    first one.

    Args:
        counts: of the ranges of a file, in order.
    """
    found: list[int] = []
    inside = False
    for each in counts:
        start = each.inside if inside else each.outside
        if start is not None:
            found.append(start)
        inside ^= each.odd
    return found


def ranges(size: int, n: int) -> list[tuple[int, int]]:
    """Returns `n` ranges of about the same size."""
    return list(itertools.pairwise(size * i // n for i in range(n + 1)))


def marks(scan: Node) -> tuple[int | None, int] | None:
    """Returns the quote and the end of a line in the files of a scan, or None if they cannot be
    divided by lines."""
    ((kind, body),) = scan["scan_type"].items()
    if kind == "NDJson":
        return None, ord("\n")
    if kind != "Csv":
        return None
    options = body["options"]
    if any(options[k] for k in ("skip_rows", "skip_lines", "skip_rows_after_header")):
        return None
    parsing = options["parse_options"]
    return None if parsing["comment_prefix"] is not None else (parsing["quote_char"], parsing["eol_char"])


def plain(path: str) -> bool:
    """Reports whether a file is not compressed, and its first line is not empty."""
    with Path(path).open("rb") as file:
        start = file.read(4)
    return not start.startswith(_COMPRESSED) and not start[:1].isspace()


def parts(scan: Node, path: str, size: int, begins: Sequence[int]) -> list[Node]:
    """Returns inputs for the lines of a file.

    Args:
        scan: a scan of this file, with a schema.
        path: of the file in the file system.
        size: of the file.
        begins: where the second row and further ones begin.
    """
    ((kind, body),) = scan["scan_type"].items()
    options, header, first = body["options"], 0, 0
    if kind == "Csv" and options["has_header"]:
        header = begins[0]
        first = header
        if options["column_names_overwrite"] is not None:
            header, options = 0, {**options, "has_header": False, "column_names_overwrite": None}
    fields = {**scan.body, "scan_type": {kind: {"options": options}}}
    edges = [first, *begins[1:], size]
    return [
        Node.input([Lines(fields, path, header, start, end)], scan.schema) for start, end in itertools.pairwise(edges)
    ]
