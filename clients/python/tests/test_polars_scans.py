"""Scans of Polars in parts: their rows are those of the scan, in order."""

from __future__ import annotations

import dataclasses
import gzip
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from in_process import FAR, NEAR, collect
from millrace import Client
from millrace._polars import _files, _lines, _plan, _scans, _tasks
from millrace._polars._query import Query
from millrace._polars._stages import Stages
from millrace.polars import Engine, Options, UndividedWarning
from polars.io.plugins import register_io_source
from polars.testing import assert_frame_equal

_TEXTS = ["x", "y,z", 'q"u"o', "new\nline\n", '"\n"', "", None, "é\r\n"]
FRAME = pl.DataFrame(
    {
        "a": range(1000),
        "s": [_TEXTS[i * i % 11 % len(_TEXTS)] for i in range(1000)],
        "f": [i / 3 if i % 7 else None for i in range(1000)],
        "d": [f"2020-01-{1 + i % 20:02}" for i in range(1000)],
    }
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("scans")
    FRAME.write_csv(home / "quotes.csv")
    FRAME.drop("s").write_csv(home / "plain.csv")
    FRAME.write_csv(home / "other.csv", separator=";", quote_char="'", line_terminator="\r\n")
    FRAME.drop("s").write_csv(home / "bare.csv", include_header=False)
    FRAME.write_ndjson(home / "lines.ndjson")
    (home / "packed.csv.gz").write_bytes(gzip.compress((home / "quotes.csv").read_bytes()))
    for i in range(3):
        FRAME.slice(300 * i, 300).write_csv(home / f"part{i}.csv")
        FRAME.slice(300 * i, 300).write_ipc(home / f"part{i}.arrow")
    for y in range(4):
        for m in ("1", "a", "__HIVE_DEFAULT_PARTITION__"):
            folder = home / "hive" / f"y={y}" / f"m={m}"
            folder.mkdir(parents=True)
            FRAME.slice(y * 100, 50).write_parquet(folder / "0.parquet")
    FRAME.write_parquet(home / "groups.parquet", row_group_size=70)
    FRAME.head(7).write_parquet(home / "all.parquet")
    FRAME.head(5).drop("f").write_parquet(home / "fewer.parquet")
    FRAME.head(4).with_columns(more=1).write_parquet(home / "more.parquet")
    return home


#: Scans, and the number of their parts if 3 and if 9 are wanted.
SCANS: dict[str, tuple[Callable[[Path], pl.LazyFrame], int, int]] = {
    "quotes": (lambda h: pl.scan_csv(h / "quotes.csv"), 3, 9),
    "plain": (lambda h: pl.scan_csv(h / "plain.csv"), 3, 9),
    "other marks": (lambda h: pl.scan_csv(h / "other.csv", separator=";", quote_char="'"), 3, 9),
    "no quotes": (lambda h: pl.scan_csv(h / "plain.csv", quote_char=None), 3, 9),
    "no header": (lambda h: pl.scan_csv(h / "bare.csv", has_header=False), 3, 9),
    "names": (lambda h: pl.scan_csv(h / "plain.csv", new_columns=["u", "v", "w"]), 3, 9),
    "names, no header": (lambda h: pl.scan_csv(h / "bare.csv", has_header=False, new_columns=["u", "v", "w"]), 3, 9),
    "changed names": (lambda h: pl.scan_csv(h / "plain.csv", with_column_names=lambda n: [x.upper() for x in n]), 3, 9),
    "schema in another order": (
        lambda h: pl.scan_csv(h / "plain.csv", schema={"d": pl.Date, "a": pl.Int32, "f": pl.Float32}),
        3,
        9,
    ),
    "types": (lambda h: pl.scan_csv(h / "plain.csv", schema_overrides={"d": pl.Date, "a": pl.Float32}), 3, 9),
    "null values": (lambda h: pl.scan_csv(h / "quotes.csv", null_values=["x"]), 3, 9),
    "text": (lambda h: pl.scan_csv(h / "quotes.csv", infer_schema=False), 3, 9),
    "lines of JSON": (lambda h: pl.scan_ndjson(h / "lines.ndjson"), 3, 9),
    "files of JSON": (lambda h: pl.scan_ndjson([h / "lines.ndjson"] * 2), 4, 8),
    "files": (lambda h: pl.scan_csv(h / "part*.csv"), 3, 9),
    "files and their names": (lambda h: pl.scan_csv(h / "part*.csv", include_file_paths="path"), 3, 9),
    "file name": (lambda h: pl.scan_csv(h / "quotes.csv", include_file_paths="path"), 3, 9),
    "file URL": (lambda h: pl.scan_csv(f"file://{h}/quotes.csv", include_file_paths="path"), 3, 9),
    "file URLs": (lambda h: pl.scan_parquet(f"file://{h}/hive/**/*.parquet", hive_partitioning=True), 3, 9),
    "row index of files": (
        lambda h: pl.scan_ipc(h / "part*.arrow", row_index_name="i", row_index_offset=7, include_file_paths="path"),
        3,
        9,
    ),
    "row index": (lambda h: pl.scan_parquet(h / "hive", row_index_name="i"), 3, 9),
    "groups of rows": (lambda h: pl.scan_parquet(h / "groups.parquet", row_index_name="i"), 3, 9),
    "ipc": (lambda h: pl.scan_ipc(h / "part*.arrow"), 3, 9),
    "hive": (lambda h: pl.scan_parquet(h / "hive"), 3, 9),
    "hive by pattern": (lambda h: pl.scan_parquet(h / "hive/**/*.parquet", hive_partitioning=True), 3, 9),
    "hive types": (lambda h: pl.scan_parquet(h / "hive", hive_schema={"y": pl.Int8, "m": pl.String}), 3, 9),
    "hive, not wanted": (lambda h: pl.scan_parquet(h / "hive", hive_partitioning=False), 3, 9),
    "missing columns": (lambda h: pl.scan_parquet([h / "all.parquet", h / "fewer.parquet"], missing_columns="insert"), 3, 9),
    "more columns": (lambda h: pl.scan_parquet([h / "all.parquet", h / "more.parquet"], extra_columns="ignore"), 3, 8),
    # These cannot be divided: the rows of a part depend on the rest of the file.
    "part of hive": (lambda h: pl.scan_parquet(h / "hive/y=1"), 1, 1),
    "dates to be found": (lambda h: pl.scan_csv(h / "plain.csv", try_parse_dates=True), 1, 1),
    "compressed": (lambda h: pl.scan_csv(h / "packed.csv.gz"), 1, 1),
    "skipped rows": (lambda h: pl.scan_csv(h / "quotes.csv", skip_rows=2, has_header=False), 1, 1),
    "row index of lines": (lambda h: pl.scan_csv(h / "quotes.csv", row_index_name="i"), 1, 1),
    "first rows": (lambda h: pl.scan_csv(h / "quotes.csv", n_rows=500), 1, 1),
    "comments": (lambda h: pl.scan_csv(h / "quotes.csv", comment_prefix="#"), 1, 1),
}  # fmt: skip


def counting(path: str, ranges: list[tuple[int, int]], quote: int | None, eol: int) -> list[_lines.Count]:
    return [_lines.count(path, start, end, quote, eol) for start, end in ranges]


class Here:
    """A client that runs tasks in this process."""

    def submit(self, function: str, /, *arguments: Any) -> Any:
        return getattr(_tasks, function)(*arguments)

    def scatter(self, data: list[Any]) -> list[Any]:
        return data

    def sizes(self, futures: Sequence[Any]) -> list[int]:
        return [f.estimated_size() for f in futures]

    def results(self, futures: Sequence[Any]) -> list[Any]:
        return list(futures)


def divided(lf: pl.LazyFrame, n: int) -> _scans.Parts:
    scan = _plan.read(lf)
    return _scans.parts(_files.listed([scan], Here())[scan], n, 1, Here(), counting)


def frame(part: Any) -> pl.DataFrame:
    data, leaves = _plan.write(part)
    return _tasks.run(data, *[leaf.source for leaf in leaves])


@pytest.mark.parametrize("name", SCANS)
def test_the_parts_of_a_scan_are_the_scan(name: str, home: Path) -> None:
    make, *wanted = SCANS[name]
    lf = make(home)
    want = lf.collect()
    for n, number in zip((3, 9), wanted, strict=True):
        parts = divided(lf, n).nodes
        assert len(parts) == number
        assert_frame_equal(pl.concat([frame(p) for p in parts]), want)


def test_a_relative_path_is_one_of_the_client(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    for lf in (pl.scan_csv("plain.csv"), pl.scan_parquet("hive/"), pl.scan_parquet("all.parquet", n_rows=3)):
        want = lf.collect()
        parts = divided(lf, 3).nodes
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir("/")
            assert_frame_equal(pl.concat([frame(p) for p in parts]), want)


def test_a_file_without_a_row_for_each_part(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text('a,b\n1,"' + "long\n" * 100 + '"\n2,x\n')
    lf = pl.scan_csv(path)
    parts = divided(lf, 9).nodes
    assert 1 < len(parts) < 9
    assert_frame_equal(pl.concat([frame(p) for p in parts]), lf.collect())
    path.write_text("\na,b\n1,2\n3,4\n")  # the header is behind an empty line
    (whole,) = divided(lf, 3).nodes
    assert whole.kind == "Scan"


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cut.csv"
    path.write_text("a\n" + "1\n" * 100)
    *_, last = divided(pl.scan_csv(path), 3).nodes
    path.write_text("a\n1\n")
    with pytest.raises(OSError, match="the file ends at byte"):
        frame(last)


def test_parquet_is_divided_between_groups_of_rows(home: Path) -> None:
    assert _scans.cuts([70] * 14 + [20], 3) == [0, 350, 700, 1000]
    assert _scans.cuts([1000], 4) == [0, 250, 500, 750, 1000]  # one group is larger than a part
    assert _scans.cuts([10, 900, 10, 10], 3) == [0, 310, 620, 930]
    assert _scans.cuts([5, 5], 2) == [0, 5, 10]
    assert _scans.cuts([], 3) == [0, 1]
    parts = divided(pl.scan_parquet(home / "groups.parquet"), 5).nodes
    rows = [p["unified_scan_args"]["pre_slice"]["Positive"] for p in parts]
    assert all(r["offset"] % 70 == 0 for r in rows) and len(rows) == 5


def test_groups_of_rows_are_skipped_by_their_statistics(tmp_path: Path) -> None:
    """A filter above a part of a scan does not read what the statistics exclude: it is not readable."""
    path = tmp_path / "sorted.parquet"
    pl.DataFrame({"a": range(100_000)}).write_parquet(path, row_group_size=10_000)
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 3] = b"\xff" * (len(data) // 3 - 4)
    path.write_bytes(data)
    parts = divided(pl.scan_parquet(path), 2).nodes
    assert len(parts) == 2
    last = _plan.read(pl.scan_parquet(path).filter(pl.col("a") >= 40_000))
    found = [frame(last.over({n: p for n in last.inputs})) for p in parts]
    assert pl.concat(found)["a"].to_list() == list(range(40_000, 100_000))
    with pytest.raises(pl.exceptions.PolarsError):
        frame(parts[0])


def test_scans_that_are_not_divided_are_told_before_any_work(home: Path) -> None:
    class Refusing(Here):
        def submit(self, function: str, /, *arguments: Any) -> Any:
            raise AssertionError(function)

    undivided = {
        "compressed": pl.scan_csv(home / "packed.csv.gz"),
        "row index": pl.scan_ndjson(home / "lines.ndjson", row_index_name="i"),
        "all of its files together": pl.scan_csv(home / "plain.csv", try_parse_dates=True),
        "skipped rows or comments": pl.scan_csv(home / "quotes.csv", comment_prefix="#"),
        "from a function": pl.defer(lambda: FRAME.select("a"), schema={"a": pl.Int64}),
        "not a file": pl.scan_csv((home / "plain.csv").read_bytes()),
    }
    options = Options(parts=3, least_bytes=1, fallback_mode="raise")
    for reason, lf in undivided.items():
        query = pl.scan_parquet(home / "groups.parquet").sort("a").select("a").join(lf, on="a")
        with pytest.raises(NotImplementedError, match=f"Scan.* cannot be divided.*{reason}"):
            Query(Refusing(), 2, options, Stages).run(_plan.read(query))
    lines = pl.scan_csv(home / "quotes.csv").with_columns(pl.col("f").cum_sum())
    with pytest.raises(NotImplementedError, match=r"HStack cannot be divided, .*cum_sum"):
        Query(Refusing(), 2, options, Stages).run(_plan.read(lines))
    with pytest.warns(UndividedWarning, match="packed.csv.gz cannot be divided"):
        (part,) = Query(Here(), 2, dataclasses.replace(options, fallback_mode="warn")).run(
            _plan.read(undivided["compressed"])
        )
    assert len(part) == len(FRAME)


def test_the_stages_of_files_of_lines_are_explained(home: Path) -> None:
    query = pl.scan_csv(home / "quotes.csv").group_by("a").agg(pl.len())
    text = Query(Here(), 2, Options(parts=3, least_bytes=1), Stages).explained(_plan.read(query))
    assert "1. 3 tasks: count lines" in text and "2. 3 tasks: Select > GroupBy" in text, text


def test_a_worker_is_asked_once_for_the_rows_of_a_file(home: Path) -> None:
    """It is asked before the stages are foreseen; the query remembers the answer."""
    asked: Counter[str] = Counter()

    class Asked(Here):
        def submit(self, function: str, /, *arguments: Any) -> Any:
            asked[function] += 1
            return super().submit(function, *arguments)

    root = _plan.read(pl.scan_parquet(home / "groups.parquet"))
    (scan,) = (n for n in root.walk() if n.kind == "Scan")
    files = _files.listed([scan], Here())[scan]
    known = _files.known(files, dataclasses.replace(files.source, here=False))
    found = Query(Asked(), 2, Options(parts=3, least_bytes=1), Stages).run(root.rebuilt({scan: known}))
    assert_frame_equal(pl.concat(found), FRAME)
    assert asked["layout"] == 1


def test_the_rows_of_a_function_are_read_once(tmp_path: Path) -> None:
    """Its size is not known, so a join does not call it in each of its tasks."""
    calls = tmp_path / "calls"

    def rows(*_: Any) -> Iterator[pl.DataFrame]:
        with calls.open("a") as file:
            file.write("1")
        yield FRAME.head(5).select("a", z="f")

    source = register_io_source(rows, schema=pl.Schema({"a": pl.Int64, "z": pl.Float64}), is_pure=False)
    query = FRAME.lazy().join(source, on="a", how="left").filter(pl.col("a") % 2 == 0)
    want = query.collect()
    for options in (FAR, NEAR):
        calls.write_text("")
        with pytest.warns(UndividedWarning, match="PythonScan cannot be divided, .*: its rows come from a function"):
            found = collect(query, dataclasses.replace(options, fallback_mode="warn"))
        assert_frame_equal(found, want, check_row_order=False)
        assert calls.read_text() == "1"


def test_little_data_in_place_of_a_file_is_read_without_a_warning(home: Path) -> None:
    lf = pl.scan_csv((home / "plain.csv").read_bytes())
    (part,) = Query(Here(), 2, Options(parts=3, least_bytes=1 << 20, fallback_mode="raise")).run(_plan.read(lf))
    assert_frame_equal(part, lf.collect())


def test_a_limit_of_rows_is_divided_if_it_is_large(home: Path) -> None:
    for rows, limit in ((10, 100), (700, 100)):
        options = Options(parts=3, least_bytes=1, fallback_mode="raise", max_rows_per_partition=limit)
        for lf in (
            pl.scan_csv(home / "quotes.csv", n_rows=rows),
            pl.scan_parquet(home / "groups.parquet", n_rows=rows, row_index_name="i"),
            pl.scan_parquet(home / "hive", n_rows=rows),
        ):
            found = Query(Here(), 2, options).run(_plan.read(lf))
            assert_frame_equal(pl.concat(found), lf.collect())


@pytest.mark.parametrize("seed", range(24))
def test_random_files_are_read_in_parts_as_whole(seed: int, tmp_path: Path) -> None:
    """Files of all formats and sizes, empty ones too, with all arguments that parts must share."""
    pick = random.Random(seed)
    kind = ("parquet", "ipc", "csv", "ndjson")[seed % 4]
    hive = kind in ("parquet", "ipc") and pick.random() < 0.5
    for i in range(pick.choice([1, 2, 3, 7])):
        rows = FRAME.select("a", "s", "f").slice(pick.randrange(900), pick.choice([0, 1, 5, 40, 300]))
        if kind in ("csv", "ndjson"):  # Polars reads no types from an empty one, and takes "" for null
            rows = FRAME.select("a", s=pl.col("s").replace("", "e"), f="f").slice(pick.randrange(900), 1 + len(rows))
        file = (tmp_path / f"y={i % 3}" if hive else tmp_path) / f"{i}.{kind}"
        file.parent.mkdir(exist_ok=True)
        sized = {"parquet": {"row_group_size": pick.choice([3, 17, 1000])}, "ipc": {"record_batch_size": 7}}
        getattr(rows, f"write_{kind}")(file, **sized.get(kind, {}))
    arguments: dict[str, Any] = {}
    if pick.random() < 0.5:
        arguments |= {"row_index_name": "i", "row_index_offset": pick.choice([0, 5])}
    if pick.random() < 0.4:
        arguments["n_rows"] = pick.choice([0, 1, 7, 50, 1000])
    if pick.random() < 0.4:
        arguments["include_file_paths"] = "path"
    source = ("file://" if pick.random() < 0.3 else "") + (f"{tmp_path}" if hive else f"{tmp_path}/*.{kind}")
    lf: pl.LazyFrame = getattr(pl, f"scan_{kind}")(source, **arguments)
    if hive and source.startswith("file://"):
        lf = getattr(pl, f"scan_{kind}")(str(tmp_path), **arguments)  # Polars takes such a URL for a file
    for query in (lf, lf.filter(pl.col("a") % 3 == 1), lf.select(pl.last(), pl.len().over("a").alias("n"))):
        for options in (FAR, dataclasses.replace(NEAR, parts=11)):
            silent = dataclasses.replace(options, fallback_mode="silent")
            assert_frame_equal(collect(query, silent), query.collect(engine="in-memory"))


@pytest.mark.parametrize("name", ["quotes", "hive", "lines of JSON", "files"])
def test_workers_read_the_parts_of_files(name: str, home: Path, client: Client) -> None:
    lf = SCANS[name][0](home)
    engine = Engine(client, options=Options(parts=5, least_bytes=1, fallback_mode="raise"))
    assert_frame_equal(lf.collect(engine=engine), lf.collect())
    last = lf.collect_schema().names()[-1]
    query = lf.filter(pl.col("a") % 3 == 1).group_by(last).agg(pl.col("a").sum()).sort(last)
    assert_frame_equal(query.collect(engine=engine), query.collect())
