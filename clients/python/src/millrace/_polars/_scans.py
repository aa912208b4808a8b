"""Scans of files in parts: whole files, ranges of rows of one, or lines of text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _lines, _plan
from millrace._polars._plan import Node

#: Formats whose ranges of rows can be read without the rows before them.
_RANGES = frozenset({"Parquet", "Ipc"})
#: Arguments of a scan that concern all of its files together.
_TOGETHER = ("row_index", "pre_slice", "deletion_files", "table_statistics", "row_count", "column_mapping")
#: Arguments of a scan that say which files it reads.
_FILES = ("glob", "hidden_file_prefix", "expand_paths", "cloud_options", "hive_options")
#: Arguments of a scan by which a file may differ from the first one.
_POLICIES = ("cast_columns_policy", "extra_columns_policy", "missing_columns_policy")

#: Counts ranges of bytes of a text file: of each its start and end, the quote, the end of a line.
Counting = Callable[[str, "list[tuple[int, int]]", "int | None", int], "list[_lines.Count]"]


def size(scan: Node) -> int:
    """Returns the bytes of a scan's files; 0 if they cannot be told."""
    return sum(_size(p) for p in _paths(scan) or ())


def parts(scan: Node, n: int, least: int, counting: Counting) -> list[Node]:
    """Returns scans and inputs whose results, one after the other, are the scan's.

    Args:
        scan: a node of kind "Scan".
        n: number of parts that are wanted.
        least: bytes of files below which a part is not divided.
        counting: counts ranges of text files.
    """
    scan = absolute(scan)
    paths = _paths(scan)
    if not paths or any(scan["unified_scan_args"].get(k) is not None for k in _TOGETHER):
        return [scan]
    sizes = [_size(p) for p in paths]
    n = min(n, max(sum(sizes) // max(least, 1), 1))
    typed = _typed(scan, paths) if n > 1 else None
    if typed is None:
        return [scan]
    if len(paths) < n:
        return [
            p for path, each in zip(paths, _shares(sizes, n), strict=True) for p in _file(typed, path, each, counting)
        ]
    return [_of_files(typed, group) for group in _groups(paths, sizes, n)]


def _file(scan: Node, path: str, n: int, counting: Counting) -> list[Node]:
    """Divides a scan of one file."""
    file = _of_files(scan, [path])
    if n == 1:
        return [file]
    if next(iter(scan["scan_type"])) in _RANGES:
        return _ranges(file, n)
    marks = _lines.marks(scan)
    if marks is None or not _lines.plain(path):
        return [file]
    length = _size(path)
    begins = _lines.begins(counting(path, _lines.ranges(length, n), *marks))
    return _lines.parts(file, path, length, begins) if len(begins) > 1 else [file]


def _ranges(file: Node, n: int) -> list[Node]:
    rows: int = _plan.lazy(file).select(pl.len()).collect().item()
    step = max(-(-rows // n), 1)
    arguments = file["unified_scan_args"]
    return [
        file.changed(unified_scan_args={**arguments, "pre_slice": {"Positive": {"offset": at, "len": step}}})
        for at in range(0, max(rows, 1), step)
    ]


def _of_files(scan: Node, paths: list[str]) -> Node:
    return scan.changed(sources=_lines.sources(paths))


def _groups(paths: list[str], sizes: list[int], n: int) -> list[list[str]]:
    """Divides files into at most `n` groups of about the same size that follow each other."""
    groups: list[list[str]] = [[]]
    share, full = sum(sizes) / n, 0.0
    for path, each in zip(paths, sizes, strict=True):
        if groups[-1] and full + each / 2 > share * len(groups) and len(groups) < n:
            groups.append([])
        groups[-1].append(path)
        full += each
    return groups


def _shares(sizes: list[int], n: int) -> list[int]:
    """Returns how many of `n` parts each file gets, at least one."""
    whole = max(sum(sizes), 1)
    return [max(round(n * s / whole), 1) for s in sizes]


# Files.


def _given(scan: Node) -> list[str] | None:
    """Returns the paths of a scan as the user gave them, or None if they are not on a file system of
    this machine."""
    sources = scan["sources"]
    if not isinstance(sources, dict) or "Paths" not in sources:
        return None
    paths = cast("dict[str, Any]", sources)["Paths"]
    inner: list[Any] = [cast("dict[str, Any]", s).get("inner") for s in paths if isinstance(s, dict)]
    found = [p for p in inner if isinstance(p, str) and "://" not in p]
    return found if found and len(found) == len(paths) else None


def absolute(scan: Node) -> Node:
    """Returns a scan of the same files for processes with other working directories."""
    given = _given(scan)
    if given is None or all(Path(p).is_absolute() for p in given):
        return scan
    return _of_files(scan, [str(Path(p).absolute()) for p in given])


def _paths(scan: Node) -> list[str] | None:
    """Returns the files of a scan, in order, or None if they are not on a file system of this
    machine. Polars expands patterns and directories: it is asked by a scan that opens no file."""
    given = _given(scan)
    if given is None:
        return None
    if all(Path(p).is_file() for p in given):
        return given
    arguments = scan["unified_scan_args"]
    same = {**_PROBE["unified_scan_args"], **{k: arguments[k] for k in _FILES}}
    try:
        found: Any = _plan.lazy(_PROBE.changed(sources=scan["sources"], unified_scan_args=same))._ldf.visit()
        files = [os.fspath(p) for p in found.view_current_node().paths]
    except (AttributeError, KeyError, NotImplementedError, pl.exceptions.PolarsError):
        return None
    return files if all(Path(p).is_file() for p in files) else None


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


# Columns.


def _typed(scan: Node, paths: Sequence[str]) -> Node | None:
    """Returns a scan with the names and types of its columns, so that each part has those of the
    whole; None if they cannot be given."""
    ((kind, body),) = scan["scan_type"].items()
    arguments, options = scan["unified_scan_args"], body.get("options")
    from_paths = _hive_columns(scan, paths)
    if from_paths is None:
        return None
    others = {arguments["include_file_paths"], *from_paths}
    columns = pl.Schema({k: v for k, v in scan.schema.items() if k not in others})
    if from_paths:
        schema = _plan.schema(pl.Schema({k: scan.schema[k] for k in from_paths}))
        hive = {**arguments["hive_options"], "enabled": True, "schema": schema}
        scan = scan.changed(unified_scan_args={**arguments, "hive_options": hive})
    if kind == "Parquet" and all(arguments[k] == _PROBE["unified_scan_args"][k] for k in _POLICIES):
        return scan  # all files have the columns of the first one
    if kind == "Csv" and options["parse_options"]["try_parse_dates"] and any(d.is_temporal() for d in columns.dtypes()):
        return None  # the formats of dates are found from the first rows
    if kind not in ("Parquet", "Csv", "NDJson"):
        return scan
    typed = {**options, "schema": _plan.schema(columns)}
    if kind != "Parquet":
        typed["schema_overwrite"] = None
    return scan.changed(scan_type={kind: {"options": typed}})


def _hive_columns(scan: Node, paths: Sequence[str]) -> list[str] | None:
    """Returns the columns of a scan that come from the names of directories; None if some directory
    above those that the user named looks like a column, too."""
    options, given = scan["unified_scan_args"]["hive_options"], _given(scan) or []
    enabled = options["enabled"]
    if enabled is None:
        enabled = len(given) == 1 and Path(given[0]).is_dir()
    if not enabled:
        return []
    found = list(dict.fromkeys(name for p in paths for name in _keys(Path(p).parts[:-1])))
    return None if any(name not in scan.schema for name in found) else found


def _keys(directories: Iterable[str]) -> list[str]:
    return [name for name, equals, _ in (d.partition("=") for d in directories) if equals]


#: A scan that has the paths of another one: Polars expands them, and opens no file.
_PROBE = _plan.read(pl.scan_csv("/", schema={"x": pl.Int8}))
