"""Shuffles of data frames on a cluster of real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import dask
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import PATIENCE, Gate
from millrace import AsyncClient, Client, LocalCluster


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(n_workers=2) as opened:
        yield opened


def frame(rows: int = 3000) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame({
        "k": rng.integers(0, 500, rows),
        "value": rng.random(rows),
        "text": [f"t{n % 13}" for n in range(rows)],
        "kind": pd.Categorical(rng.choice(["x", "y", "z"], rows)),
        "time": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, rows), "h"),
        "maybe": pd.array(np.where(rng.random(rows) < 0.1, None, rng.integers(0, 9, rows)), "Int64"),
    })  # fmt: skip


def in_order(data: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows in an order that does not depend on partitions."""
    return data.sort_values(list(data.columns[:2])).reset_index(drop=True)


# ---- Dask ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3, 8, 20])
def test_equal_keys_meet_in_one_partition(client: Client, outputs: int) -> None:
    data = frame()
    shuffled = dd.from_pandas(data, npartitions=8).shuffle("k", npartitions=outputs)
    parts = dask.compute(*shuffled.to_delayed())
    assert len(parts) == outputs
    seen = [set(part.k) for part in parts]
    assert sum(map(len, seen)) == len(set(data.k))
    pd.testing.assert_frame_equal(
        pd.concat(parts).sort_index(), data, check_dtype=False, check_categorical=False, check_index_type=False
    )


def test_the_shuffle_has_two_tasks_a_partition(client: Client) -> None:
    shuffled = dd.from_pandas(frame(), npartitions=8).shuffle("k").map_partitions(len)
    graph = shuffled.optimize().__dask_graph__()
    named = [str(key[0]) for key in graph]
    assert sum("split" in name for name in named) == 8
    assert sum("split" not in name and "pandas" not in name for name in named) == 8


def test_some_partitions_of_a_shuffle(client: Client) -> None:
    shuffled = dd.from_pandas(frame(), npartitions=4).shuffle("k", npartitions=6)
    parts = dask.compute(*shuffled.to_delayed())
    some = shuffled.partitions[[4, 1]].compute()
    pd.testing.assert_frame_equal(some, pd.concat([parts[4], parts[1]]))


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_merge(client: Client, how: Any) -> None:
    left, right = frame(2000), frame(700).rename(columns={"value": "other"})[["k", "other"]]
    found = dd.from_pandas(left, npartitions=5).merge(dd.from_pandas(right, npartitions=3), on="k", how=how).compute()
    want = left.merge(right, on="k", how=how)
    names = ["k", "value", "other"]
    pd.testing.assert_frame_equal(
        found[names].sort_values(names).reset_index(drop=True), want[names].sort_values(names).reset_index(drop=True)
    )


def test_the_method_of_distributed_is_taken_for_ours(client: Client) -> None:
    left, right = frame(600), frame(300)[["k", "value"]].rename(columns={"value": "other"})
    a, b = dd.from_pandas(left, npartitions=4), dd.from_pandas(right, npartitions=3)
    shuffled = a.shuffle("k", shuffle_method="p2p")
    assert len(shuffled.optimize().__dask_graph__()) == len(a.shuffle("k").optimize().__dask_graph__())
    assert len(shuffled.compute()) == 600
    want = in_order(left.merge(right, on="k")[["k", "value", "other"]])
    found = a.merge(b, on="k", shuffle_method="p2p", broadcast=False).compute()
    pd.testing.assert_frame_equal(in_order(found[["k", "value", "other"]]), want, check_dtype=False)
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        found = a.merge(b, on="k", broadcast=False).compute()
        pd.testing.assert_frame_equal(in_order(found[["k", "value", "other"]]), want, check_dtype=False)
        assert a.set_index("k").compute().index.is_monotonic_increasing
        assert a.groupby("k").value.apply(len, meta=("n", int)).compute().sum() == 600


def test_a_small_side_of_a_merge_is_sent_to_all(client: Client) -> None:
    large, small = dd.from_pandas(frame(), npartitions=64), dd.from_pandas(frame(500), npartitions=2)
    graph = large.merge(small, on="k").optimize().__dask_graph__()
    assert not any("split" in str(key) and "broadcast" not in str(key) for key in graph if "partitions" in str(key))


def test_set_index_and_sort_values(client: Client) -> None:
    data = frame()
    df = dd.from_pandas(data, npartitions=6)
    indexed = df.set_index("time")
    assert indexed.known_divisions
    found = indexed.compute()
    assert found.index.is_monotonic_increasing and found.value.sum() == pytest.approx(data.value.sum())
    found = df.sort_values(["value"]).compute()
    np.testing.assert_array_equal(found.value, np.sort(data.value))


def test_groupby_apply(client: Client) -> None:
    data = frame()
    found = dd.from_pandas(data, npartitions=6).groupby("text").apply(spread, meta=("value", "f8")).compute()
    pd.testing.assert_series_equal(
        found.sort_index(), data.groupby("text").apply(spread), check_names=False, check_index_type=False
    )


def spread(group: pd.DataFrame) -> float:
    return float(group.value.max() - group.value.min())


def of_type(kind: str) -> pd.Series:
    """Returns 600 values of a type, many of them equal, some of them missing where it allows that."""
    numbers = np.random.default_rng(2).integers(0, 40, 600)
    some = pd.Series(numbers).where(numbers % 9 != 0)
    text = some.map(lambda n: f"t{n:02.0f}", na_action="ignore")
    times = pd.Timestamp("2020-01-01") + pd.to_timedelta(pd.Series(numbers), "D")
    match kind:
        case "time":
            return times.where(numbers % 9 != 0)
        case "zone":
            return times.dt.tz_localize("Europe/Berlin")
        case "duration":
            return pd.to_timedelta(some, "h")
        case "bool":
            return pd.Series(numbers % 3 == 0)
        case "category":
            return text.astype("category")
        case "string":
            return text.astype("string[pyarrow]")
        case "Int64" | "Float64" | "float32" | "int64[pyarrow]":
            return some.astype(kind)
        case _:
            return pd.Series(numbers).astype(kind)


# Without objects: Dask makes strings of Arrow of them, and sorts no others.
TYPES = "int8 uint16 int64 float32 Int64 Float64 int64[pyarrow] bool string category time zone duration".split()


def rows(data: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Returns the rows in an order that does not depend on partitions; missing values are None."""
    plain = data.astype(object).where(data.notna(), None)
    return sorted(plain.itertuples(index=False, name=None), key=lambda row: tuple(map(str, row)))


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("kind", TYPES)
def test_all_types_of_keys(kind: str) -> None:
    left = pd.DataFrame({"k": of_type(kind), "a": np.arange(600)})
    right = left.drop_duplicates("k").rename(columns={"a": "b"})
    df, other = dd.from_pandas(left, npartitions=5, sort=False), dd.from_pandas(right, npartitions=3, sort=False)

    merged = df.merge(other, on="k", how="left", broadcast=False).compute()
    want = left.merge(right, on="k", how="left")
    assert merged.k.dtype == left.k.dtype
    assert rows(merged) == rows(want)

    ordered = df.sort_values("k").compute()
    assert ordered.k.dtype == left.k.dtype
    assert list(ordered.k.astype(object).dropna()) == list(left.sort_values("k").k.astype(object).dropna())
    assert rows(ordered) == rows(left)

    known = left.dropna()
    indexed = dd.from_pandas(known, npartitions=5, sort=False).set_index("k").compute()
    assert indexed.index.dtype == left.k.dtype
    assert rows(indexed.reset_index()) == rows(known)
    assert list(indexed.index) == sorted(indexed.index)

    sums = df.groupby("k", observed=True).apply(lambda group: group.a.sum(), meta=("a", "i8")).compute()
    assert dict(sums) == dict(left.groupby("k", observed=True).a.sum())


def test_partitions_with_different_categories(client: Client) -> None:
    parts = [pd.DataFrame({"k": range(6), "kind": pd.Categorical([c] * 6)}) for c in "abc"]
    df = dd.from_map(lambda n: parts[n], range(3), meta=parts[0].iloc[:0])
    found = df.shuffle("k", npartitions=4).compute()
    assert sorted(found.kind.astype(str)) == sorted("abc" * 6)


def test_other_schedulers_run_the_same_graph(client: Client) -> None:
    data = frame()
    found = dd.from_pandas(data, npartitions=4).shuffle("k").compute(scheduler="threads")
    assert found.value.sum() == pytest.approx(data.value.sum())


def test_bags_group_by_tasks(client: Client) -> None:
    found = dict(db.range(100, npartitions=4).groupby(lambda n: n % 3).map(lambda pair: (pair[0], sum(pair[1]))))
    assert found == {r: sum(range(r, 100, 3)) for r in range(3)}


# ---- futures -------------------------------------------------------------------------------------


def kinds() -> list[Any]:
    return [pa.Table.from_pandas, pd.DataFrame]


@pytest.mark.parametrize("make", kinds(), ids=["pyarrow", "pandas"])
@pytest.mark.parametrize("by", ["k", ["text", "k"]])
def test_frames_of_futures_are_shuffled(client: Client, make: Any, by: Any) -> None:
    parts = [frame(500).assign(value=n) for n in range(5)]
    futures = [*client.scatter([make(part) for part in parts[:4]]), make(parts[4])]
    shuffled = [as_pandas(part) for part in client.gather(client.shuffle(futures, by, 7))]
    assert len(shuffled) == 7
    labels = by if isinstance(by, list) else [by]
    keys = [set(part[labels].itertuples(index=False, name=None)) for part in shuffled]
    assert sum(map(len, keys)) == len(set.union(*keys))
    for part in shuffled:
        assert part.value.is_monotonic_increasing
    names = ["value", "k", "text", "time", "maybe"]
    found = pd.concat(shuffled)[names].sort_values(names).reset_index(drop=True)
    want = pd.concat(parts)[names].sort_values(names).reset_index(drop=True)
    pd.testing.assert_frame_equal(found, want, check_dtype=False)


def as_pandas(part: Any) -> pd.DataFrame:
    return part.to_pandas() if isinstance(part, pa.Table) else part


def test_frames_that_are_shuffled_alike_match(client: Client) -> None:
    left, right = frame(900), frame(400).assign(k=lambda df: df.k.astype("int32"))
    lefts = client.shuffle([left[:300], left[300:]], "k", 4)
    rights = client.shuffle([right], "k", 4)
    merged = pd.concat(client.gather(client.map(pd.merge, lefts, rights, on="k")))
    assert len(merged) == len(left.merge(right, on="k"))


def test_a_shuffle_of_nothing_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="futures is empty"):
        client.shuffle([], "k")
    with pytest.raises(ValueError, match="npartitions is 0"):
        client.shuffle([frame(3)], "k", 0)
    with pytest.raises(KeyError, match="no column 'absent'"):
        client.shuffle([frame(3)], "absent")[0].result()


async def test_the_asynchronous_client_shuffles(client: Client) -> None:
    async with AsyncClient(client.cluster) as other:
        parts = await other.gather(other.shuffle([frame(50), frame(20)], "k"))
        assert [type(part) for part in parts] == [pd.DataFrame] * 2 and sum(map(len, parts)) == 70


# ---- memory and deaths ---------------------------------------------------------------------------


def numbered(part: int) -> pd.DataFrame:
    """Makes 4 MiB: the numbers of a part, with keys in an order like a random one."""
    ids = np.arange(1 << 18) + (part << 18)
    return pd.DataFrame({"k": ids * 2654435761 % (1 << 32), "a": ids})


def numbered_behind(gate: Gate, part: int) -> pd.DataFrame:
    gate.pass_through()
    return numbered(part)


def rows_and_sum(part: pd.DataFrame) -> tuple[int, int]:
    return len(part), int(part.a.sum())


def rows_and_sum_behind(gate: Gate, part: pd.DataFrame) -> tuple[int, int]:
    gate.pass_through()
    return rows_and_sum(part)


def totals(found: list[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*found, strict=True)))


@pytest.mark.parametrize("stage", [pytest.param("split", marks=pytest.mark.long), "join"])
def test_a_worker_dies_in_the_middle_of_a_shuffle(gate: Gate, stage: str) -> None:
    """The gate holds the tasks of one stage back on all workers: when the worker dies, a part of the
    frames is split, or a part of the partitions is joined and read."""
    with LocalCluster(3, threads_per_worker=1, memory_limit="256MiB", device="host") as own, Client(own) as client:
        client.wait_for_workers(3, timeout=PATIENCE)
        victim = client.submit(os.getppid, pure=False).result(PATIENCE)
        early, late = client.map(numbered, range(2)), range(2, 4)
        if stage == "split":
            made = early + client.map(numbered_behind, [gate] * 2, late)
            sums = client.map(rows_and_sum, client.shuffle(made, "k", 6))
        else:
            made = early + client.map(numbered, late)
            sums = client.map(rows_and_sum_behind, [gate] * 6, client.shuffle(made, "k", 6))
        del early, made
        gate.wait()
        os.kill(victim, signal.SIGKILL)
        gate.open(100)
        assert totals(client.gather(sums)) == (1 << 20, (1 << 20) * ((1 << 20) - 1) // 2)


def test_partitions_of_a_small_slab_are_joined_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A join has pieces of 3 MB and a result of 3 MB, and each worker runs two tasks at once."""
    monkeypatch.setenv("MILLRACE_MEMORY_WAIT", f"{PATIENCE}s")
    with LocalCluster(2, threads_per_worker=2, memory_limit="16MiB", device="host") as own, Client(own) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        made = client.map(numbered, range(10))
        sums = client.map(rows_and_sum, client.shuffle(made, "k", 20))
        del made
        rows = 10 << 18
        assert totals(client.gather(sums)) == (rows, rows * (rows - 1) // 2)
