"""Scans of files in parts: whole files, ranges of rows of one, or lines of text."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _files, _lines, _plan
from millrace._polars._cluster import Submitter
from millrace._polars._files import Files
from millrace._polars._plan import Node

#: Formats whose ranges of rows can be read without the rows before them.
_RANGES = frozenset({"Parquet", "Ipc"})
#: Arguments of a scan that concern all of its files together.
_TOGETHER = ("pre_slice", "deletion_files", "table_statistics", "row_count", "column_mapping")
#: Arguments of a scan by which a file may differ from the first one.
_POLICIES = ("cast_columns_policy", "extra_columns_policy", "missing_columns_policy")
#: Files of unknown sizes are in so many parts at most, or in as many as are wanted.
_UNKNOWN = 256

#: Counts ranges of bytes of a text file: of each its start and end, the quote, the end of a line.
Counting = Callable[[str, "list[tuple[int, int]]", "int | None", int], "list[_lines.Count]"]


@dataclasses.dataclass
class Parts:
    """Scans and inputs whose results, one after the other, are those of a scan."""

    nodes: list[Node]
    #: The reason why the scan, or one of its files, is read in fewer parts than were wanted.
    whole: str | None = None


def size(scan: Node) -> int:
    """Returns the bytes of a scan's files; 0 if they cannot be told."""
    return scan.source.nbytes if isinstance(scan.source, Files) else 0


def limit(scan: Node) -> tuple[Node, int, int] | None:
    """Returns a scan without its limit of rows, and the first row and the number of rows of the
    limit; None if it has none."""
    arguments = scan["unified_scan_args"]
    found = arguments["pre_slice"]
    if not isinstance(found, dict) or "Positive" not in found:
        return None
    rows = found["Positive"]
    whole = scan.changed(unified_scan_args={**arguments, "pre_slice": None})
    return _files.known(whole, scan.source), rows["offset"], rows["len"]


def parts(scan: Node, n: int, least: int, client: Submitter, counting: Counting) -> Parts:
    """Divides a scan.

    Args:
        scan: a node of kind "Scan", as `_files.listed` gave it.
        n: number of parts that are wanted.
        least: bytes of files below which a part is not divided.
        client: asks workers about files that only workers have.
        counting: counts ranges of text files.
    """
    files = scan.source
    if not isinstance(files, Files):
        small = _bytes_within(scan) <= least
        return Parts([scan], None if small else "its source is not a file")
    if files.sizes is None:
        n = max(n, min(len(files.paths), _UNKNOWN))
        files = dataclasses.replace(files, sizes=[max(least, 1) * n] * len(files.paths))
    n = min(n, max(files.nbytes // max(least, 1), 1))
    if n < 2:
        return Parts([scan])
    reason = _undivided(scan)
    typed = _typed(scan, files.paths) if reason is None else None
    if typed is None:
        return Parts([scan], reason or "its columns are those of all of its files together")
    return _Division(typed, files, client, counting).parts(n)


def _bytes_within(scan: Node) -> float:
    """Returns the number of bytes of data that a scan contains itself, in place of files."""
    sources = scan["sources"]
    found = sources.get("Buffers") if isinstance(sources, dict) else None
    return math.inf if found is None else sum(len(b) for b in found)


def _undivided(scan: Node) -> str | None:
    """Returns the reason why a scan cannot be divided, or None."""
    arguments = scan["unified_scan_args"]
    for name in _TOGETHER:
        if arguments.get(name) is not None:
            return f"it has {name}"
    if arguments["row_index"] is not None and next(iter(scan["scan_type"])) not in _RANGES:
        return "it has a row index, and lines of text have no numbers"
    return None


class _Division:
    """Divides one scan."""

    def __init__(self, scan: Node, files: Files, client: Submitter, counting: Counting) -> None:
        self._scan = scan
        self._files = files
        self._client = client
        self._counting = counting
        self._kind = next(iter(scan["scan_type"]))
        #: Rows of the files before each one, if there is a row index.
        self._before: dict[str, int] = {}
        self._whole: str | None = None

    def parts(self, n: int) -> Parts:
        """Divides the scan into about `n` parts: large files for themselves, and runs of small ones
        together."""
        paths, sizes = self._files.paths, self._files.sizes or []
        share = max(sum(sizes), 1) / n
        shares = [max(round(s / share), 1) for s in sizes]
        indexed = self._scan["unified_scan_args"]["row_index"] is not None
        divided = [p for p, k in zip(paths, shares, strict=True) if k > 1 or indexed]
        layouts = dict(zip(divided, self._layouts(divided), strict=True))
        if indexed:
            rows = [sum(r) if isinstance(r := layouts[p], list) else 0 for p in paths]
            self._before = dict(zip(paths, itertools.accumulate(rows, initial=0), strict=False))
        nodes: list[Node] = []
        for large, run in itertools.groupby(zip(paths, sizes, shares, strict=True), lambda f: f[2] > 1):
            some = list(run)
            if large:
                for path, nbytes, k in some:
                    nodes += self._file(path, nbytes, k, layouts[path])
            else:
                k = max(round(sum(s for _, s, _ in some) / share), 1)
                for group in _groups([(p, s) for p, s, _ in some], k):
                    nodes.append(self._of([p for p, _ in group], sum(s for _, s in group)))
        return Parts(nodes, self._whole)

    def _layouts(self, paths: list[str]) -> list[list[int] | str]:
        """Returns how the rows of files are stored. See `_files.layout`. Each file is asked for once."""
        known = self._files.layouts
        asked = [p for p in dict.fromkeys(paths) if p not in known]
        known |= zip(asked, self._asked(asked), strict=True)
        return [known[p] for p in paths]

    def _asked(self, paths: list[str]) -> list[list[int] | str]:
        arguments = {**self._scan["unified_scan_args"], "row_index": None, "include_file_paths": None}
        plain = self._scan.changed(unified_scan_args=arguments)
        plans = [_plan.write(_files.of_paths(plain, [p]))[0] for p in paths]
        if self._files.here:
            return [_files.layout(p) for p in plans]
        return self._client.results([self._client.submit("layout", p) for p in plans])

    def _of(self, paths: list[str], nbytes: int, **arguments: Any) -> Node:
        """Returns a scan of some files, or of a part of one."""
        same = self._scan["unified_scan_args"]
        index = same["row_index"]
        if index is not None:
            arguments["row_index"] = {**index, "offset": index["offset"] + self._before[paths[0]]}
        scan = _files.of_paths(self._scan.changed(unified_scan_args={**same, **arguments}), paths)
        return _files.known(scan, dataclasses.replace(self._files, paths=paths, sizes=[nbytes]))

    def _file(self, path: str, nbytes: int, n: int, layout: list[int] | str) -> list[Node]:
        """Divides a scan of one file."""
        file = self._of([path], nbytes)
        if isinstance(layout, str):
            self._whole = layout
            return [file]
        if self._kind in _RANGES:
            return [
                self._of([path], nbytes // n, pre_slice={"Positive": {"offset": start, "len": end - start}})
                for start, end in itertools.pairwise(cuts(layout, n))
            ]
        marks, name = _lines.marks(file), _files.local(path)
        if marks is None or name is None:
            self._whole = "it has skipped rows or comments"
            return [file]
        begins = _lines.begins(self._counting(name, _lines.ranges(nbytes, n), *marks))
        return _lines.parts(file, name, nbytes, begins) if len(begins) > 1 else [file]


def cuts(groups: Sequence[int], n: int) -> list[int]:
    """Returns where `n` ranges of rows begin, and the end of the last one: between groups of rows,
    and within a group that is larger than a range."""
    ends = list(itertools.accumulate(groups, initial=0))
    rows = ends[-1]
    if not rows:
        return [0, 1]
    found = {0, rows}
    for i in range(1, n):
        cut = rows * i // n
        k = bisect.bisect_right(ends, cut) - 1
        if groups[k] * n <= rows + n:
            cut = ends[k] if cut - ends[k] <= ends[k + 1] - cut else ends[k + 1]
        found.add(cut)
    return sorted(found)


def _groups(files: list[tuple[str, int]], n: int) -> list[list[tuple[str, int]]]:
    """Divides files with their sizes into at most `n` groups of about the same size that follow
    each other."""
    groups: list[list[tuple[str, int]]] = [[]]
    share, full = sum(s for _, s in files) / n, 0.0
    for file in files:
        if groups[-1] and full + file[1] / 2 > share * len(groups) and len(groups) < n:
            groups.append([])
        groups[-1].append(file)
        full += file[1]
    return groups


# Columns.


def _typed(scan: Node, paths: Sequence[str]) -> Node | None:
    """Returns a scan with the names and types of its columns, so that each part has those of the
    whole; None if they cannot be given."""
    ((kind, body),) = scan["scan_type"].items()
    arguments, options = scan["unified_scan_args"], body.get("options")
    from_paths = _hive_columns(scan, paths)
    if from_paths is None:
        return None
    index = arguments["row_index"]
    others = {arguments["include_file_paths"], *from_paths, *([index["name"]] if index else [])}
    columns = pl.Schema({k: v for k, v in scan.schema.items() if k not in others})
    if from_paths:
        schema = _plan.schema(pl.Schema({k: scan.schema[k] for k in from_paths}))
        hive = {**arguments["hive_options"], "enabled": True, "schema": schema}
        scan = scan.changed(unified_scan_args={**arguments, "hive_options": hive})
    if kind == "Parquet" and all(arguments[k] == _DEFAULT["unified_scan_args"][k] for k in _POLICIES):
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
    options, named = scan["unified_scan_args"]["hive_options"], _files.given(scan) or []
    enabled = options["enabled"]
    if enabled is None:  # if the user named one directory
        enabled = len(named) == 1 and list(paths) != named and not (set("*?[") & set(named[0]))
    if not enabled:
        return []
    keys = [list(_keys(Path(p).parts[:-1])) for p in paths]
    found = list(dict.fromkeys(name for k in keys for name in k))
    if any(len(set(k)) < len(k) for k in keys) or any(name not in scan.schema for name in found):
        return None
    return found


def _keys(directories: Iterable[str]) -> list[str]:
    return [name for name, equals, _ in (d.partition("=") for d in directories) if equals]


#: A scan with the arguments that Polars chooses.
_DEFAULT = _plan.read(pl.scan_csv("/", schema={"x": pl.Int8}))
