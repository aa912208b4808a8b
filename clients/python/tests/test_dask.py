"""Dask's collections on a cluster of real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import dask.utils
import millrace
import numpy as np
import pandas as pd
import pytest
from conftest import PATIENCE
from dask._task_spec import Alias, DataNode, Task, TaskRef
from dask.base import tokenize
from dask.delayed import delayed
from millrace import AsyncClient, Client, Future, LocalCluster, errors, futures_of


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(n_workers=2) as opened:
        yield opened


def where() -> str:
    """Returns the name of the worker that runs this function."""
    info = millrace.get_task_info()
    return "" if info is None else info.worker


def inc(x: int) -> int:
    return x + 1


def add(x: int, y: int) -> int:
    return x + y


def frame(rows: int = 200) -> pd.DataFrame:
    return pd.DataFrame({"a": np.arange(rows), "b": np.arange(rows) % 7, "c": [f"t{n % 5}" for n in range(rows)]})


# ---- fewer tasks ---------------------------------------------------------------------------------


def test_the_steps_on_a_partition_are_one_task(client: Client) -> None:
    rows = frame()
    data = dd.from_pandas(rows, npartitions=4)
    steps = ((data.a + 1) * 2 - data.b).sum()
    with millrace.get_task_stream(client) as stream:
        assert steps.compute() == ((rows.a + 1) * 2 - rows.b).sum()
    assert 0 < len(stream.data) <= 6  # a task for each partition, and those for their sums
    with millrace.get_task_stream(client) as stream:
        assert dask.compute(steps, (data.a * 3 + data.b).max()) == (steps.compute(), (rows.a * 3 + rows.b).max())
    assert 0 < len(stream.data) <= 18
    assert client.compute(steps).result() == steps.compute()
    part = client.get(steps.expr.optimize(), list(steps.expr.optimize().__dask_keys__()))
    assert part == [steps.compute()]


# ---- the default scheduler -----------------------------------------------------------------------


def test_an_open_client_computes_what_names_no_scheduler(client: Client) -> None:
    assert delayed(where)().compute() in {w.name for w in client.session.workers()}
    assert delayed(where)().compute(scheduler="millrace") in {w.name for w in client.session.workers()}
    assert delayed(where)().compute(scheduler="distributed") in {w.name for w in client.session.workers()}
    with dask.config.set(scheduler="threads"):
        assert delayed(where)().compute() == ""


def test_the_default_returns_when_clients_close(client: Client) -> None:
    assert client.cluster is not None
    assert dask.config.get("scheduler") is client
    with Client(client.cluster) as second:
        assert dask.config.get("scheduler") is second
        with Client(client.cluster, set_as_default=False):
            assert dask.config.get("scheduler") is second
    assert dask.config.get("scheduler") is client


def test_dask_may_be_imported_after_the_client_and_its_settings_return() -> None:
    code = """
import sys, millrace
with millrace.Client(n_workers=1) as client:
    assert "dask" not in sys.modules
    import dask
    assert dask.config.get("scheduler") is client
    assert dask.config.get("dataframe.shuffle.method") == "millrace"
    assert dask.delayed(sum)([1, 2]).compute() == 3
assert dask.config.get("scheduler", None) is None
assert dask.config.get("dataframe.shuffle.method", None) is None
assert "millrace" not in dask.base.named_schedulers
assert "distributed" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


# ---- collections ---------------------------------------------------------------------------------


def test_arrays(client: Client) -> None:
    x = da.random.default_rng(1).random((300, 300), chunks=(100, 100))
    here = x.compute(scheduler="threads")
    np.testing.assert_allclose((x + x.T).sum(axis=0).compute(), (here + here.T).sum(axis=0))
    np.testing.assert_array_equal(x[::3, 5].compute(scheduler=client), here[::3, 5])
    u, s, v = dask.persist(*da.linalg.svd(x.rechunk((50, 300))))
    np.testing.assert_allclose(s.compute(), np.linalg.svd(here)[1])
    np.testing.assert_allclose((u * s @ v).compute(), here)


def test_frames(client: Client) -> None:
    pdf = frame()
    df = dd.from_pandas(pdf, npartitions=4)
    pd.testing.assert_series_equal(
        df.groupby("c").a.sum().compute().sort_index(), pdf.groupby("c").a.sum(), check_index_type=False
    )
    kept = df.persist()
    assert len(kept) == 200 and kept.a.max().compute() == 199
    merged = kept.merge(df, on="b").compute()
    assert len(merged) == len(pdf.merge(pdf, on="b"))
    assert kept.shuffle("b").b.sum().compute() == pdf.b.sum()
    assert df.set_index("a").loc[10:12].compute().index.tolist() == [10, 11, 12]


def test_bags_and_delayed(client: Client) -> None:
    assert db.range(100, npartitions=5).map(inc).filter(lambda n: n % 2).sum().compute() == 2500
    tree = [delayed(inc)(n) for n in range(16)]
    while len(tree) > 1:
        tree = [delayed(add)(a, b) for a, b in zip(tree[::2], tree[1::2], strict=True)]
    assert tree[0].compute() == sum(range(17))
    assert delayed(dict)(a=delayed(inc)(1), b=[delayed(inc)(2), {"c": delayed(inc)(3)}]).compute() == {
        "a": 2,
        "b": [3, {"c": 4}],
    }
    assert delayed("a,b")[2].compute() == "b" and delayed("a,b").split(",").compute() == ["a", "b"]


def test_compute_gives_futures_and_persist_collections(client: Client) -> None:
    x = delayed(inc)(1)
    one = client.compute(x)
    assert isinstance(one, Future) and one.result() == 2
    futures = client.compute([x, 7, [x, 1]])
    assert futures[1] == 7 and client.gather(futures) == [2, 7, [2, 1]]
    assert client.compute(x, sync=True) == 2 and client.compute([x, x], sync=True) == [2, 2]
    kept = client.persist(da.ones(10, chunks=5))
    assert isinstance(kept, da.Array) and kept.sum().compute() == 10
    a, b = client.persist([da.ones(4), delayed(inc)(5)])
    assert a.sum().compute() == 4 and b.compute() == 6


def test_futures_in_graphs(client: Client) -> None:
    f = client.submit(inc, 1, key=("f", 0))
    assert delayed(inc)(f).compute() == 3
    assert delayed(sum)([f, {"x": f}["x"], delayed(inc)(f)]).compute() == 7
    assert client.get({"y": Task("y", add, TaskRef(f.key), 1)}, "y") == 3
    again = client.submit(inc, 1, key=("f", 0))
    assert tokenize(f) == tokenize(f) != tokenize(again)


def test_graphs_of_tasks(client: Client) -> None:
    dsk = {
        ("a", 1): Task(("a", 1), add, 1, 2),
        ("a", "1"): Task(("a", "1"), add, TaskRef(("a", 1)), TaskRef("d")),
        "b": Alias("b", ("a", "1")),
        "c": Alias("c", "b"),
        "d": DataNode("d", 10),
        "x": Task("x", lambda: 1 / 0),
    }
    assert client.get(dsk, ["b", ["c", ("a", 1)], "d"]) == [13, [13, 3], 10]
    with pytest.raises(ZeroDivisionError):
        client.get(dsk, "x")
    with pytest.raises(KeyError, match="missing"):
        client.get(dsk, "missing")
    with pytest.raises(KeyError, match="nowhere"):
        client.get({"a": Task("a", inc, TaskRef("nowhere"))}, "a")


# ---- constants -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [3000, 1000, 100])
def test_large_constants(client: Client, chunks: int) -> None:
    data = np.arange(3000 * 3000, dtype=np.float64).reshape(3000, 3000)
    x = da.from_array(data[:, :chunks], chunks=chunks) if chunks < 3000 else da.from_array(data, chunks=chunks)
    assert x.sum().compute() == data[:, :chunks].sum()


def test_large_texts_and_lists(client: Client) -> None:
    text = "x" * 300_000
    assert delayed(len)(text).compute() == 300_000
    assert delayed(len)([str(n) for n in range(100_000)]).compute() == 100_000
    assert delayed(len)(b"y" * 200_000).compute() == 200_000


class Local:
    """A class of this module, which executors cannot import by name if it is __main__."""

    def __init__(self, value: Any) -> None:
        self.value = value


def test_errors_name_the_task(client: Client) -> None:
    import threading

    with pytest.raises(errors.SerialisationError, match="cannot be pickled"):
        delayed(inc)(threading.Lock()).compute()


# ---- annotations ---------------------------------------------------------------------------------


def test_annotations(client: Client, tmp_path: Any) -> None:
    names = sorted(w.name for w in client.session.workers())
    for name in names:
        with dask.annotate(workers=[name]):
            x = delayed(where)()
        assert x.compute(optimize_graph=False) == name
    mark = tmp_path / "mark"

    def flaky() -> int:
        if not mark.exists():
            mark.write_text("")
            raise OSError("once")
        return 1

    with dask.annotate(retries=1):
        x = delayed(flaky)()
    assert x.compute(optimize_graph=False) == 1
    assert client.compute(delayed(where)(), workers=names[0]).result() == names[0]


# ---- inputs that are kept decoded ----------------------------------------------------------------


@pytest.fixture(scope="module")
def one_worker() -> Iterator[LocalCluster]:
    with LocalCluster(1, device="host") as made:
        yield made


class Counted:
    """Counts how often its objects of a size were decoded in a process."""

    def __init__(self, size: int) -> None:
        self.data = np.zeros(size)

    def __setstate__(self, state: dict[str, Any]) -> None:
        import builtins

        vars(self).update(state)
        name = f"decoded {self.data.size}"
        vars(builtins)[name] = vars(builtins).get(name, 0) + 1


def decoded(made: Any, __: int) -> int:
    import builtins

    return vars(builtins).get(f"decoded {made.data.size}", 0)


@pytest.mark.one_python
@pytest.mark.parametrize("size", [1, 10_000, 100_000])
def test_inputs_are_decoded_once_for_many_tasks(one_worker: LocalCluster, size: int) -> None:
    with Client(one_worker) as own:
        made = delayed(Counted)(size)
        assert max(dask.compute(*[delayed(decoded)(made, n) for n in range(20)])) == 2
        # Other calls get objects of their own.
        held = own.submit(Counted, size)
        assert max(own.gather(own.map(decoded, [held] * 10, range(10)))) >= 5


@pytest.mark.one_python
def test_kept_inputs_do_not_fill_the_memory() -> None:
    with Client(n_workers=1, memory_limit="64 MiB") as own:
        for _ in range(3):
            made = [delayed(Counted)(250_000, dask_key_name=f"made-{n}-{_}") for n in range(10)]
            counts = dask.compute(*[delayed(decoded)(m, n) for m in made for n in range(3)])
            assert len(counts) == 30
        assert own.submit(lambda: np.zeros(5_000_000).nbytes).result() == 40_000_000


def text_of(thing: Any, _: int) -> str:
    return thing.text()


def test_inputs_are_decoded_again_after_an_upload(
    one_worker: LocalCluster, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "uploaded_thing.py"
    source = "class Thing:\n    def text(self):\n        return {!r}\n"
    module.write_text(source.format("first"))
    import uploaded_thing  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

    with Client(one_worker) as own:
        own.upload_file(module)
        thing: Any = uploaded_thing.Thing
        made = delayed(own.submit(thing))
        assert set(dask.compute(*[delayed(text_of)(made, n) for n in range(20)])) == {"first"}
        module.write_text(source.format("second one"))
        own.upload_file(module)
        assert set(dask.compute(*[delayed(text_of)(made, n) for n in range(20)])) == {"second one"}


# ---- locks ---------------------------------------------------------------------------------------


class Exclusive:
    """A target of stores that fails if two are in it at the same time."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def __setitem__(self, _: Any, value: Any) -> None:
        (self.path / "inside").touch(exist_ok=False)
        time.sleep(0.005)
        (self.path / "inside").unlink()


@pytest.mark.one_python
def test_a_store_with_a_lock_locks_the_cluster(client: Client, tmp_path: Any) -> None:
    # Few chunks: one executor process starts for each task that waits for the lock.
    da.ones(3, chunks=1).store(Exclusive(tmp_path), lock=True)
    assert isinstance(dask.utils.get_scheduler_lock(), millrace.Lock)
    assert isinstance(dask.utils.get_scheduler_lock(scheduler="millrace"), millrace.Lock)
    assert not isinstance(dask.utils.get_scheduler_lock(scheduler="threads"), millrace.Lock)


# ---- results that cannot be pickled, waits, datasets ---------------------------------------------


def numbers(n: int) -> Iterator[int]:
    yield from range(n)


def test_results_that_cannot_be_pickled_are_made_where_they_are_read(client: Client) -> None:
    parts = [delayed(numbers)(n) for n in (3, 4)]
    assert sorted(db.from_delayed(parts).map(inc).compute()) == [1, 1, 2, 2, 3, 3, 4]
    dsk = {
        "a": Task("a", numbers, TaskRef("n")),
        "n": Task("n", inc, 3),
        "b": Task("b", list, TaskRef("a")),
        "c": Task("c", sum, TaskRef("a")),
    }
    assert client.get(dsk, ["b", "c"]) == [[0, 1, 2, 3], 6]
    with pytest.raises(errors.TaskFailedError) as caught:
        client.get(dsk, "a")
    assert caught.value.reason == "RESULT_NOT_SERIALISABLE"


def noted(path: Path, n: int) -> int:
    with path.open("a") as file:
        file.write("called\n")
    return n


def test_a_graph_with_an_iterator_runs_once_in_each_way(client: Client, tmp_path: Path) -> None:
    ways: list[Callable[..., Any]] = [
        dask.compute,
        lambda *read: client.compute(read, sync=True),
        lambda *read: dask.compute(*client.persist(read)),
    ]
    for number, compute in enumerate(ways):
        notes = tmp_path / str(number)
        made: Any = delayed(numbers)(delayed(noted)(notes, 3))
        assert list(compute(delayed(list)(made), delayed(sum)(made))) == [[0, 1, 2], 3]
        assert notes.read_text() == "called\n"
    bag = db.range(4, npartitions=2).map_partitions(iter)
    assert client.gather(client.compute([bag.sum(), bag.count()])) == [6, 4]


def test_waits_for_collections(client: Client) -> None:
    x = da.ones((40, 40), chunks=10).persist()
    futures = millrace.futures_of(x)
    assert len(futures) == 16 and futures_of([x, {"x": x}]) == futures
    assert millrace.wait(x).done == set(futures) == client.wait([x]).done
    assert set(client.as_completed(x)) == set(futures)
    df = dd.from_pandas(frame(), npartitions=3).persist()
    assert len(futures_of(df)) == 3 and not futures_of(da.ones(3))


def test_published_collections(client: Client) -> None:
    x = da.arange(40, chunks=10).persist()
    df = dd.from_pandas(frame(), npartitions=3).persist()
    client.publish_dataset(x=x, both=[df, {"x": x, "n": 1}])
    millrace.wait([x, df])
    del x, df
    try:
        assert client.cluster is not None
        with Client(client.cluster, set_as_default=False) as other:
            found = other.get_dataset("x")
            assert isinstance(found, da.Array) and found.sum().compute(scheduler=other) == 780
        both = client.get_dataset("both")
        assert len(both[0]) == 200 and both[1]["n"] == 1 and both[1]["x"].max().compute() == 39
    finally:
        client.unpublish_dataset(["x", "both"])


def test_an_asynchronous_client_computes() -> None:
    async def main() -> None:
        async with AsyncClient(n_workers=1) as own:
            x = delayed(inc)(1)
            assert await own.compute(x) == 2
            assert await own.compute([x, x], sync=True) == [2, 2]
            kept = own.persist(da.ones(10, chunks=5))
            await own.wait(kept)
            assert await own.compute(kept.sum(), sync=True) == 10

    asyncio.run(main())


def test_arguments_without_an_effect_are_said(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    assert client.compute(delayed(inc)(1), fifo_timeout="60s", num_workers=3).result() == 2
    assert "fifo_timeout" in caplog.text and "num_workers" in caplog.text
