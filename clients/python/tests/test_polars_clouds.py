"""Scans of Polars of files that the client has no access to: in a cloud, or on workers alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from millrace import Client
from millrace._polars import _plan
from millrace.polars import Engine, Options, UndividedWarning
from polars.testing import assert_frame_equal

KEYS: dict[str, Any] = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
FRAME = pl.DataFrame({"a": range(400), "s": [f"{i % 7}\n" for i in range(400)], "f": [i / 3 for i in range(400)]})
OPTIONS = Options(parts=3, least_bytes=1, fallback_mode="raise")


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """A server of the S3 protocol. The value is the storage options without the keys."""
    # Here, because each process of pytest imports this module.
    import boto3  # pyright: ignore[reportMissingTypeStubs]

    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = next(m[0] for line in server.stderr if (m := re.search(r"http://127.0.0.1:\d+", line)))
            address: dict[str, Any] = {"aws_endpoint_url": url, "aws_allow_http": "true", "aws_region": "us-east-1"}
            boto3.client("s3", endpoint_url=url, region_name="us-east-1", **KEYS).create_bucket(Bucket="bucket")
            with_keys = {**address, **KEYS}
            for i in range(4):
                part = FRAME.slice(100 * i, 100)
                part.write_parquet(f"s3://bucket/hive/y={i}/0.parquet", storage_options=with_keys, row_group_size=30)
                part.write_csv(f"s3://bucket/text/{i}.csv", storage_options=with_keys)
                part.write_ipc(f"s3://bucket/ipc/{i}.arrow", storage_options=with_keys, compression="uncompressed")
            FRAME.write_parquet("s3://bucket/one.parquet", storage_options=with_keys, row_group_size=70)
            yield address
        finally:
            server.terminate()
            server.communicate()


SCANS: dict[str, tuple[Callable[..., pl.LazyFrame], int]] = {
    "hive": (lambda **o: pl.scan_parquet("s3://bucket/hive/", **o), 3),
    "hive by pattern": (lambda **o: pl.scan_parquet("s3://bucket/hive/*/*.parquet", hive_partitioning=True, **o), 3),
    "rows": (lambda **o: pl.scan_parquet("s3://bucket/one.parquet", **o), 3),
    "row index": (lambda **o: pl.scan_parquet("s3://bucket/hive/", row_index_name="i", **o), 3),
    "text": (lambda **o: pl.scan_csv("s3://bucket/text/*.csv", include_file_paths="path", **o), 4),
    "ipc": (lambda **o: pl.scan_ipc("s3://bucket/ipc/*.arrow", **o), 4),
}


@pytest.mark.parametrize("name", SCANS)
def test_files_of_a_cloud_are_divided(name: str, s3: dict[str, Any], client: Client) -> None:
    make, parts = SCANS[name]
    lf = make(storage_options={**s3, **KEYS})
    engine = Engine(client, options=OPTIONS)
    result = lf.execute(engine=engine)
    assert len(result.futures) == parts
    want = lf.collect()
    assert_frame_equal(result.lazy().collect(engine=engine), want)
    last = want.columns[-1]
    query = lf.filter(pl.col("a") % 3 == 1).group_by(last).agg(pl.col("a").sum()).sort(last)
    assert_frame_equal(query.collect(engine=engine), query.collect())


def test_workers_list_the_files_of_a_cloud_with_the_credentials_of_a_function(
    s3: dict[str, Any], client: Client, tmp_path: Path
) -> None:
    """The client does not call the function, because it asks the cloud for nothing."""

    def keys() -> tuple[dict[str, str], None]:
        (tmp_path / str(os.getpid())).touch()
        return KEYS, None

    lf = pl.scan_parquet("s3://bucket/hive/", storage_options=s3, credential_provider=keys)  # pyright: ignore[reportArgumentType]
    found = lf.filter(pl.col("y") > 1).select("a").collect(engine=Engine(client, options=OPTIONS))
    assert found["a"].to_list() == list(range(200, 400))
    callers = {int(p.name) for p in tmp_path.iterdir()}
    assert callers and os.getpid() not in callers


def test_a_query_of_little_in_a_cloud_is_one_task(s3: dict[str, Any], client: Client) -> None:
    lf = pl.scan_parquet("s3://bucket/hive/", storage_options={**s3, **KEYS})
    assert_frame_equal(lf.collect(engine=Engine(client)), lf.collect())


def test_text_in_one_file_of_a_cloud_is_not_divided(s3: dict[str, Any], client: Client) -> None:
    lf = pl.scan_csv("s3://bucket/text/0.csv", storage_options={**s3, **KEYS})
    sized = Options(parts=3, least_bytes=1)
    with pytest.warns(UndividedWarning, match="Scan of s3://bucket/text/0.csv cannot be divided.*text in a cloud"):
        assert_frame_equal(lf.collect(engine=Engine(client, options=sized)), lf.collect())
    with pytest.raises(NotImplementedError, match="text in a cloud is not divided"):
        lf.collect(engine=Engine(client, options=OPTIONS))


def test_a_file_that_is_nowhere(s3: dict[str, Any], client: Client) -> None:
    engine = Engine(client, options=OPTIONS)
    for lf in (
        pl.scan_parquet("s3://bucket/none.parquet", storage_options={**s3, **KEYS}),
        pl.scan_csv("/nowhere/none.csv"),
    ):
        with pytest.raises((OSError, pl.exceptions.PolarsError), match="none"):
            lf.collect(engine=engine)


def test_paths_that_only_workers_see(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin with the working directory of a process, which is another one for the client."""
    here = set(client.run(os.getcwd).values())
    assert len(here) == 1
    name = f"millrace-{os.getpid()}"
    folder = Path(*here) / name
    folder.mkdir()
    try:
        FRAME.write_parquet(folder / "one.parquet", row_group_size=70)
        FRAME.write_csv(folder / "one.csv")
        monkeypatch.chdir(tmp_path)
        engine = Engine(client, options=OPTIONS)
        for start in ("", "file://"):
            path = f"{start}/proc/self/cwd/{name}"
            for lf in (pl.scan_parquet(f"{path}/*.parquet"), pl.scan_csv(f"{path}/one.csv")):
                with pytest.raises((OSError, pl.exceptions.PolarsError)):
                    lf.collect()
                result = lf.execute(engine=engine)
                assert len(result.futures) == 3
                assert_frame_equal(result.lazy().collect(engine=engine), FRAME)
                query = lf.filter(pl.col("a") > 100).group_by("s").agg(pl.col("f").sum()).sort("s")
                want = FRAME.lazy().filter(pl.col("a") > 100).group_by("s").agg(pl.col("f").sum()).sort("s").collect()
                assert_frame_equal(query.collect(engine=engine), want)
                assert_frame_equal(query.collect(engine=Engine(client)), want)  # in one task
        assert _plan.read(pl.scan_parquet(path)).source is None
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
