"""Scans of Polars in parts: their rows are those of the scan, in order."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from millrace import Client
from millrace._polars import _lines, _plan, _scans, _tasks
from millrace.polars import Engine, Options
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
    "files and their names": (lambda h: pl.scan_csv(h / "part*.csv", include_file_paths="path"), 3, 3),
    "ipc": (lambda h: pl.scan_ipc(h / "part*.arrow"), 3, 9),
    "hive": (lambda h: pl.scan_parquet(h / "hive"), 3, 9),
    "hive by pattern": (lambda h: pl.scan_parquet(h / "hive/**/*.parquet", hive_partitioning=True), 3, 9),
    "hive types": (lambda h: pl.scan_parquet(h / "hive", hive_schema={"y": pl.Int8, "m": pl.String}), 3, 9),
    "hive, not wanted": (lambda h: pl.scan_parquet(h / "hive", hive_partitioning=False), 3, 9),
    "missing columns": (lambda h: pl.scan_parquet([h / "all.parquet", h / "fewer.parquet"], missing_columns="insert"), 3, 7),
    "more columns": (lambda h: pl.scan_parquet([h / "all.parquet", h / "more.parquet"], extra_columns="ignore"), 3, 8),
    # These cannot be divided: the rows of a part depend on the rest of the file.
    "part of hive": (lambda h: pl.scan_parquet(h / "hive/y=1"), 1, 1),
    "dates to be found": (lambda h: pl.scan_csv(h / "plain.csv", try_parse_dates=True), 1, 1),
    "compressed": (lambda h: pl.scan_csv(h / "packed.csv.gz"), 1, 1),
    "skipped rows": (lambda h: pl.scan_csv(h / "quotes.csv", skip_rows=2, has_header=False), 1, 1),
    "row index": (lambda h: pl.scan_csv(h / "quotes.csv", row_index_name="i"), 1, 1),
    "first rows": (lambda h: pl.scan_csv(h / "quotes.csv", n_rows=500), 1, 1),
    "file name": (lambda h: pl.scan_csv(h / "quotes.csv", include_file_paths="path"), 1, 1),
    "comments": (lambda h: pl.scan_csv(h / "quotes.csv", comment_prefix="#"), 1, 1),
}  # fmt: skip


def counting(path: str, ranges: list[tuple[int, int]], quote: int | None, eol: int) -> list[_lines.Count]:
    return [_lines.count(path, start, end, quote, eol) for start, end in ranges]


def frame(part: Any) -> pl.DataFrame:
    data, leaves = _plan.write(part)
    return _tasks.run(data, *[leaf.source for leaf in leaves])


@pytest.mark.parametrize("name", SCANS)
def test_the_parts_of_a_scan_are_the_scan(name: str, home: Path) -> None:
    make, *wanted = SCANS[name]
    lf = make(home)
    want = lf.collect()
    for n, number in zip((3, 9), wanted, strict=True):
        parts = _scans.parts(_plan.read(lf), n, 1, counting)
        assert len(parts) == number
        assert_frame_equal(pl.concat([frame(p) for p in parts]), want)


def test_a_relative_path_is_one_of_the_client(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    for lf in (pl.scan_csv("plain.csv"), pl.scan_parquet("hive/"), pl.scan_parquet("all.parquet", n_rows=3)):
        want = lf.collect()
        parts = _scans.parts(_plan.read(lf), 3, 1, counting)
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir("/")
            assert_frame_equal(pl.concat([frame(p) for p in parts]), want)


def test_a_file_without_a_row_for_each_part(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text('a,b\n1,"' + "long\n" * 100 + '"\n2,x\n')
    lf = pl.scan_csv(path)
    parts = _scans.parts(_plan.read(lf), 9, 1, counting)
    assert 1 < len(parts) < 9
    assert_frame_equal(pl.concat([frame(p) for p in parts]), lf.collect())
    path.write_text("\na,b\n1,2\n3,4\n")  # the header is behind an empty line
    (whole,) = _scans.parts(_plan.read(lf), 3, 1, counting)
    assert whole.kind == "Scan"


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cut.csv"
    path.write_text("a\n" + "1\n" * 100)
    *_, last = _scans.parts(_plan.read(pl.scan_csv(path)), 3, 1, counting)
    path.write_text("a\n1\n")
    with pytest.raises(OSError, match="the file ends at byte"):
        frame(last)


@pytest.mark.parametrize("name", ["quotes", "hive", "lines of JSON", "files"])
def test_workers_read_the_parts_of_files(name: str, home: Path, client: Client) -> None:
    lf = SCANS[name][0](home)
    engine = Engine(client, options=Options(parts=5, least_bytes=1, fallback_mode="raise"))
    assert_frame_equal(lf.collect(engine=engine), lf.collect())
    last = lf.collect_schema().names()[-1]
    query = lf.filter(pl.col("a") % 3 == 1).group_by(last).agg(pl.col("a").sum()).sort(last)
    assert_frame_equal(query.collect(engine=engine), query.collect())
