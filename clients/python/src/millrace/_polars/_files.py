"""The files of a scan: their names, sizes and rows, told by a process that can read them.

The client tells them if it has the files itself. Else a worker does, for the files may be in a
cloud that the client has no access to, or on a file system that only workers have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _lines, _parquet, _plan
from millrace._polars._cluster import Submitter
from millrace._polars._plan import Node

#: Arguments of a scan that say which files it reads.
_CHOICE = ("glob", "hidden_file_prefix", "expand_paths", "cloud_options")
#: So many files of a cloud are asked for their rows.
_ASKED = 64
#: Bytes of a value in a file, about.
_VALUE = 8


@dataclasses.dataclass(frozen=True)
class Files:
    """The files of a scan, in order."""

    #: As Polars names them: paths, or URLs.
    paths: list[str]
    #: Their bytes; those of files in a cloud are estimates. None: unknown.
    sizes: list[int] | None
    #: Columns of the scan.
    schema: pl.Schema
    #: This process has them, and need not ask a worker.
    here: bool = True
    #: How the rows of files are stored, of those that were asked for. See `layout`.
    layouts: dict[str, list[int] | str] = dataclasses.field(default_factory=dict[str, "list[int] | str"], compare=False)

    @property
    def nbytes(self) -> int:
        """The bytes of all files; 0 if they are not known."""
        return sum(self.sizes or ())


def given(scan: Node) -> list[str] | None:
    """Returns the paths of a scan as the user gave them; None if it reads something else."""
    sources = scan["sources"]
    if not isinstance(sources, dict) or "Paths" not in sources:
        return None
    paths = cast("dict[str, Any]", sources)["Paths"]
    inner: list[Any] = [cast("dict[str, Any]", s).get("inner") for s in paths if isinstance(s, dict)]
    return inner if inner and len(inner) == len(paths) and all(isinstance(p, str) for p in inner) else None


def local(path: str) -> str | None:
    """Returns the path of a file in a file system; None if it is in a cloud."""
    if path.startswith("file://"):
        return path[len("file://") :]
    return None if "://" in path else path


def absolute(scan: Node) -> Node:
    """Returns a scan of the same files for processes with other working directories."""
    paths = given(scan)
    if paths is None or all("://" in p or Path(p).is_absolute() for p in paths):
        return scan
    return scan.changed(sources=_lines.sources([p if "://" in p else str(Path(p).absolute()) for p in paths]))


def listed(scans: Sequence[Node], client: Submitter) -> dict[Node, Node]:
    """Returns scans that have their files as `source`, by scans without. Those of other sources than
    files are missing.

    Raises:
        Exception: errors of Polars, if no process finds a scan's files.
    """
    found: dict[Node, Node] = {}
    asked: dict[Node, Any] = {}
    for scan in scans:
        if given(scan) is None:
            continue
        found[scan] = absolute(scan)
        files = _here(found[scan])
        if files is None:
            asked[scan] = client.submit("listed", _plan.write(found[scan])[0])
        else:
            found[scan] = known(found[scan], files)
    for scan, files in zip(asked, client.results(list(asked.values())), strict=True):
        found[scan] = known(found[scan], files)
    return found


def _here(scan: Node) -> Files | None:
    """Returns the files of a scan if this process has them all."""
    if any(local(p) is None for p in given(scan) or ()):
        return None
    try:
        paths = expanded(scan)
        sizes = [Path(local(p) or p).stat().st_size for p in paths]
    except (OSError, pl.exceptions.PolarsError):
        return None
    return Files(paths, sizes, scan.schema) if paths else None


def there(plan: bytes) -> Files:
    """Returns the files of a scan; called in a worker.

    Args:
        plan: the serialized scan.
    """
    scan = _plan.read(_plan.load(plan))
    paths, schema = expanded(scan), _plan.load(plan).collect_schema()
    found = [local(p) for p in paths]
    if all(p is not None for p in found):
        return Files(paths, [Path(p or "").stat().st_size for p in found], schema, here=False)
    return Files(paths, _estimated(scan, paths, schema), schema, here=False)


def expanded(scan: Node) -> list[str]:
    """Returns the paths and URLs of a scan's files, in order. Polars expands patterns and
    directories."""
    paths = given(scan) or []
    if all("://" not in p and Path(p).is_file() for p in paths):
        return paths
    arguments = scan["unified_scan_args"]
    same = {**_PROBE["unified_scan_args"], **{k: arguments[k] for k in _CHOICE}}
    probe = _PROBE.changed(
        sources=scan["sources"], unified_scan_args=same, scan_type={"ExpandedPaths": {"name": "path"}}
    )
    return _plan.lazy(probe).collect(engine="in-memory").to_series().to_list()


def _estimated(scan: Node, paths: list[str], schema: pl.Schema) -> list[int] | None:
    """Returns about how many bytes files of a cloud have, from the rows that the ends of Parquet
    files name; None for other formats."""
    if next(iter(scan["scan_type"])) != "Parquet":
        return None
    some = paths[:: -(-len(paths) // _ASKED)]
    counts = pl.collect_all([_plan.lazy(of_paths(scan, [p])).select(pl.len()) for p in some], engine="in-memory")
    sizes = [c.item() * len(schema) * _VALUE for c in counts]
    return sizes if len(some) == len(paths) else [sum(sizes) // len(sizes)] * len(paths)


def known(scan: Node, files: Files) -> Node:
    """Returns a scan whose files and columns are known."""
    node = scan.changed()
    node.source, node._schema = files, files.schema
    return node


def of_paths(scan: Node, paths: list[str]) -> Node:
    return scan.changed(sources=_lines.sources(paths))


def layout(plan: bytes) -> list[int] | str:
    """Returns how the rows of one file are stored: the rows of each group of rows that is read as a
    whole; for text nothing. If it cannot be divided, the result is the reason.

    Args:
        plan: a serialized scan of the file, of nothing but columns.
    """
    scan = _plan.read(_plan.load(plan))
    ((path,), kind) = given(scan) or [], next(iter(scan["scan_type"]))
    name = local(path)
    if kind not in ("Parquet", "Ipc"):
        if name is None:
            return "text in a cloud is not divided"
        return [] if _lines.plain(name) else "it is compressed, or its first line is empty"
    groups = _parquet.rows_of_groups(name) if kind == "Parquet" and name is not None else None
    return groups or [_plan.load(plan).select(pl.len()).collect().item()]


#: A scan that has the paths of another one.
_PROBE = _plan.read(pl.scan_csv("/", schema={"x": pl.Int8}))
