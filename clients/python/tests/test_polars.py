"""Queries of Polars on a cluster, compared with Polars' own engine."""

from __future__ import annotations

import dataclasses
import importlib
import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import Gate
from millrace import AsyncClient, Client
from millrace._polars import _leaf, _msgpack, _plan, _pushdown, _questions, _tasks
from millrace._polars._cluster import Cluster
from millrace._polars._query import Query
from millrace.executor import _task_info
from millrace.executor._task_info import TaskInfo
from millrace.polars import Engine, Options, Result, UndividedWarning
from polars.testing import assert_frame_equal

c = pl.col


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 4 files."""
    home = tmp_path_factory.mktemp("data")
    for i in range(4):
        rows = range(i * 500, (i + 1) * 500)
        frame = pl.DataFrame(
            {
                "id": [r % 7 for r in rows],
                "amount": [None if r % 11 == 0 else r * 0.5 for r in rows],
                "name": [f"n{r % 5}" for r in rows],
                "row": list(rows),
            }
        )
        frame.write_parquet(home / f"{i}.parquet", row_group_size=100)
    return home


@pytest.fixture
def engine(client: Client) -> Engine:
    return Engine(client, options=Options(parts=3, least_bytes=1, fallback_mode="raise"))


def table(data: Path) -> pl.LazyFrame:
    return pl.scan_parquet(data / "*.parquet")


VALUES = [
    0, 127, 128, 255, 256, 65535, 65536, 2**32, 2**64 - 1, -1, -32, -33, -128, -129, -32769, -(2**63), 1.5, True, None,
    "x" * 31, "x" * 32, "é" * 300, b"", b"a" * 70000, [1] * 15, [300] * 300, [1] * 299 + ["a"], {"a": [None, {"b": 1}]},
    {str(i): i for i in range(70000)}, _msgpack.Bytes8(bytes(range(256)) * 3000), _msgpack.Bytes8(b"\xcc" * 1000),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda v: repr(v)[:20])
def test_messagepack_gives_values_back(value: object) -> None:
    again = _msgpack.unpack(_msgpack.pack(value))
    assert again == value and type(again) is type(value)


def test_messagepack_refuses_other_bytes() -> None:
    for data in (b"", b"\xc1", b"\x91", b"\xa5abc", b"\x01\x02", b"\xc7\x01\x01a"):
        with pytest.raises(_msgpack.FormatError):
            _msgpack.unpack(data)
    with pytest.raises(_msgpack.FormatError, match="object cannot be packed"):
        _msgpack.pack([object()])


def plans(lf: pl.LazyFrame) -> list[pl.LazyFrame]:
    other = pl.LazyFrame({"id": [1, 2], "z": [0.5, 1.5]})
    return [
        lf.filter(c("amount") > 3, c("name").is_in(["n1", "n2"])).group_by("id").agg(pl.len(), c("amount").std()),
        lf.join(other, on="id", how="left").select(pl.all().exclude("z"), c("z").sum().over("id").alias("w")),
        lf.join_where(other, c("amount") > c("z")).sort("row").head(3),
        pl.concat([lf, lf.filter(c("id") == 1)]).unique(),
        pl.concat([lf.select("id"), other], how="diagonal"),
        lf.with_row_index().drop_nulls().cast({"id": pl.String}).unpivot(index="id", on=["row"]),
        lf.top_k(3, by="row").with_columns(x=pl.when(c("id") > 2).then(c("row")).otherwise(pl.lit(None))),
    ]


def test_plans_are_written_as_they_were_read(data: Path) -> None:
    for lf in plans(table(data)):
        root = _plan.read(lf)
        written, leaves = _plan.write(root)
        assert not leaves and root.schema == lf.collect_schema()
        assert_frame_equal(_plan.load(written).collect(), lf.collect(), check_row_order=False)


def test_equal_nodes_of_a_plan_are_one(data: Path) -> None:
    lf = table(data).filter(c("id") > 1)
    again = table(data).filter(c("id") > 1)
    left, right = _plan.read(lf.join(again, on="id")).inputs
    assert left is right


def test_a_plan_of_another_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lf = pl.LazyFrame({"x": [1]})
    for data in (b"PLAN", lf.serialize()[:79] + _msgpack.pack({"plans": []}), lf.serialize()[:100]):
        monkeypatch.setattr(pl.LazyFrame, "serialize", lambda _, d=data: d)
        with pytest.raises(_plan.UnknownPlanError, match=f"Polars {pl.__version__}"):
            _plan.read(lf)


def test_unknown_references_of_a_plan_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data frame is read as one in known fields alone; columns may have the names in references."""
    lf = pl.LazyFrame({"k": [1], "b": ["a"]}).pivot(
        "b", on_columns=["a"], index="k", values="k", aggregate_function="len"
    )
    monkeypatch.delitem(_plan._FRAMES, "Pivot")
    with pytest.raises(_plan.UnknownPlanError, match="node 2 refers to itself"):
        _plan.read(lf)
    monkeypatch.delitem(_plan._FRAMES, "DataFrameScan")
    with pytest.raises(_plan.UnknownPlanError, match="refers to"):
        _plan.read(pl.LazyFrame({"k": [1]}).head(1).reverse())
    named = pl.scan_csv("/", schema={"idx": pl.Int64, "version": pl.String})
    assert _plan.write(_plan.read(named))[0] == named.serialize()


def test_inputs_are_read_in_place_of_nodes() -> None:
    schema = pl.Schema({"k": pl.Int64, "v": pl.Float64, "s": pl.Categorical()})
    node = _plan.Node.input("here", schema)
    lf = _plan.lazy(node).filter(c("v") > 1).select("s", "k")
    frame = pl.DataFrame({"k": [1, 2], "v": [1.0, 3.0], "s": ["a", "b"]}, schema=schema)
    with _leaf.reading(_leaf.of_frames([frame])):
        assert lf.collect().rows() == [("b", 2)]
    with pytest.raises(RuntimeError, match="input 0 of a plan is read outside of its task"):
        lf.collect()
    assert len(pickle.dumps(_leaf.Leaf(3))) < 60


ROW_BY_ROW = [
    c("v") + 1, c("s").str.slice(0, 2), c("s").is_in(["a"]), pl.when(c("v") > 1).then(c("k")).otherwise(0), c("d").dt.year(),
    c("v").is_between(1, 2), c("v").fill_null(0), pl.lit(1).alias("one") + c("k"), c("v").round(2), pl.struct("k", "v"),
    c("v").cast(pl.Int32), pl.col("k", "v") * 2, pl.all(),
]  # fmt: skip
TOGETHER = [
    c("v").sum(), c("v").cum_sum(), c("v").shift(), c("v").sum().over("k"), c("v").rank(), c("v") - c("v").mean(), c("v").first(),
    c("v").fill_null(strategy="forward"), c("v").sort(), c("v").reverse(), c("v").is_duplicated(), pl.int_range(pl.len()),
    pl.len(), pl.lit(1), c("v").map_batches(lambda s: s), c("v").head(1), c("v").unique(), c("k").filter(c("v") > 1),
]  # fmt: skip


@pytest.mark.parametrize("expr", [*ROW_BY_ROW, *TOGETHER], ids=lambda e: str(e)[:40])
def test_polars_says_what_works_row_by_row(expr: pl.Expr) -> None:
    schema = pl.Schema({"k": pl.Int64, "v": pl.Float64, "s": pl.String, "d": pl.Date})
    found = _questions.row_by_row([_plan.expression(expr)], schema)
    assert found == any(expr is e for e in ROW_BY_ROW)


QUERIES = {
    "filter": lambda t: t.filter(c("amount") > 100, c("name") == "n3"),
    "with_columns": lambda t: t.with_columns(x=c("amount") * 2, y=c("name").str.to_uppercase()).select("y", "x"),
    "reduce": lambda t: t.select(
        c("amount").sum(), n=pl.len(), m=c("id").mean(), r=c("row").max() - c("row").min(), k=c("amount").count()
    ),
    "reduce nothing": lambda t: t.filter(c("id") > 99).select(c("amount").sum(), a=c("amount").mean(), b=c("id").min()),
    "group_by": lambda t: t.filter(c("amount") > 50)
    .group_by("id")
    .agg(
        c("amount").sum(),
        c("amount").mean().alias("mean"),
        (c("row").max() - c("row").min()).alias("range"),
        pl.len(),
        c("name").first(),
        c("row").last().alias("last"),
        share=100 * pl.when(c("name") == "n1").then(c("amount")).otherwise(0).sum() / c("amount").sum(),
        some=c("amount").filter(c("name") == "n2").sum(),
        top=pl.when(c("row") == 9).then(float("nan")).otherwise("row").nan_max(),
        mean32=c("amount").cast(pl.Float32).mean(),
    ),
    "keys": lambda t: t.group_by(c("name").str.slice(1), even=c("id") % 2 == 0).agg(c("amount").mean()),
    "null mean": lambda t: t.group_by("id", "row").agg(c("amount").mean()),
    "order": lambda t: t.group_by("name", maintain_order=True).agg(c("row").first()).filter(c("row") >= 0),
    "head": lambda t: t.filter(c("id") == 3).head(200),
    "tail": lambda t: t.filter(c("id") == 3).tail(100),
    "slice": lambda t: t.slice(450, 700),
    "rest": lambda t: t.slice(1700),
    "rest of sorted": lambda t: t.sort("row", descending=True).slice(1900),
    "top": lambda t: t.sort("amount", "row", descending=True, nulls_last=True).slice(3, 20),
    "sort": lambda t: t.sort("name", "row", descending=[True, False]),
    "stable sort": lambda t: t.sort("id", maintain_order=True),
    "sort nulls first": lambda t: t.sort("amount", maintain_order=True).select("amount", "row"),
    "sort nulls last": lambda t: t.sort("amount", descending=True, nulls_last=True, maintain_order=True),
    "sort nested": lambda t: t.sort(pl.struct("name", "amount"), maintain_order=True),
    "sort enum": lambda t: t.select("row", n=c("name").cast(pl.Enum(["n4", "n0", "n3", "n1", "n2"]))).sort("n", "row"),
    "sort lists": lambda t: t.select("row", l=pl.concat_list(c("id") % 3, "amount")).sort("l", "row"),
    "unique": lambda t: t.select("id", "name").unique(),
    "unique of some": lambda t: t.select("id", "name").unique(subset="id").select("id"),
    "unique in order": lambda t: t.unique(subset=["id"], keep="first", maintain_order=True),
    "unique last": lambda t: t.unique(subset=["name"], keep="last", maintain_order=True),
    "not repeated": lambda t: t.filter(c("row") < 1203).unique(subset=["id", "name"], keep="none"),
    "median": lambda t: t.group_by("id").agg(c("amount").median(), c("amount").std().alias("std"), c("row")),
    "n_unique": lambda t: t.group_by(c("id") % 3).agg(c("name").n_unique()),
    "median of few": lambda t: t.filter(c("row") > 1990).group_by("name").agg(c("amount").median()),
    "rename": lambda t: t.rename({"id": "key"}).filter(c("key") == 2).select("key", "row"),
    "inner": lambda t: t.join(other(t), on="id"),
    "left": lambda t: t.join(other(t), on="id", how="left").filter(c("x") > 2, c("amount") > 5).select("row", "x"),
    "left nulls": lambda t: t.join(other(t), left_on="amount", right_on="x", how="left"),
    "right": lambda t: other(t).join(t, on="id", how="right"),
    "full": lambda t: t.filter(c("id") != 3).join(other(t), on="id", how="full", coalesce=True),
    "semi": lambda t: t.join(other(t).filter(c("x") > 3), on="id", how="semi"),
    "anti": lambda t: t.join(other(t).filter(c("x") > 3), on="id", how="anti"),
    "cross": lambda t: t.filter(c("row") < 30).join(other(t).filter(c("id") < 3), how="cross"),
    "where": lambda t: t.filter(c("row") < 300).join_where(other(t).rename({"id": "key"}), c("row") > c("key")),
    "keys by expression": lambda t: t.join(other(t), left_on=c("row") % 7, right_on=c("id") + 0).select("row", "x"),
    "two keys": lambda t: t.join(t.select("id", "name", twin="row"), on=["id", "name"]).filter(c("twin") == c("row")),
    "itself": lambda t: t.join(t, left_on="row", right_on="row").select("row", "name_right"),
    "itself, other columns": lambda t: t.join(t, on="row").filter(c("id") > 3).select("name"),
    "shared": lambda t: (lambda s: s.join(s.select(c("amount").sum().alias("all")), how="cross"))(
        t.group_by("id").agg(c("amount").sum())
    ),
    "chain": lambda t: t.join(other(t), on="id")
    .join(other(t).select("id", y="x"), on="id", how="left")
    .filter(c("y") > 1.5, c("name") != "n1")
    .group_by("name")
    .agg(c("y").sum(), c("x").max())
    .sort("name"),
    "window": lambda t: t.with_columns(
        c("amount").sum().over("id").alias("all"), share=c("row") / c("row").max().over("name")
    ),
    "running window": lambda t: t.select("row", c("amount").cum_sum().over("id", "name").alias("sum")),
    "ordered window": lambda t: t.select("row", r=c("row").shift().over("id", order_by="amount", descending=True)),
    "windows of two kinds": lambda t: t.with_columns(
        c("amount").first().over("name"), x=c("row") - c("row").mean().over("id") + c("row").rank().over("id")
    ),
    "window of keys with nulls": lambda t: t.select(
        "row", n=pl.len().over("amount"), m=c("row").median().over("amount")
    ),
    "window by an expression": lambda t: t.select("row", c("amount").max().over(c("row") % 9, "name")),
    "window of lists": lambda t: t.filter(c("row") < 300).select("id", l=c("row").over("id", mapping_strategy="join")),
    "filter by a window": lambda t: t.filter(c("row") == c("row").max().over("id", "name")),
    "window in a sum": lambda t: t.select((c("row") - c("row").min().over("id")).sum()),
    "window of a function": lambda t: t.select("row", z=c("row").map_batches(lambda s: s + 1, pl.Int64).over("id")),
    "concat": lambda t: pl.concat([t.filter(c("id") == 1), t.filter(c("id") == 2)]),
}


#: Queries whose answers have an order.
ORDERED = frozenset({
    "filter", "with_columns", "reduce", "reduce nothing", "order", "head", "tail", "slice", "concat", "sort", "top",
    "window", "running window", "ordered window", "windows of two kinds", "window of keys with nulls", "window of lists",
    "window by an expression", "filter by a window", "window in a sum", "window of a function", "rest", "rest of sorted", "sort nested", "sort enum", "sort lists", "stable sort", "sort nulls first", "sort nulls last", "unique in order", "unique last", "rename", "chain",
})  # fmt: skip
#: Queries of which a part runs in one task.
UNDIVIDED = frozenset({"cross", "where", "sort nested", "sort lists"})


def other(t: pl.LazyFrame) -> pl.LazyFrame:
    return t.filter(c("row") < 5).select("id", x=c("row") * 1.0)


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["far", "near"])
@pytest.mark.parametrize("name", QUERIES)
def test_answers_are_those_of_polars(name: str, limit: int, data: Path, client: Client) -> None:
    """With a limit of 0 bytes, rows meet by their hash or range; else they are brought together."""
    mode = "silent" if name in UNDIVIDED and not limit else "raise"
    options = Options(parts=3, least_bytes=1, broadcast_limit=limit, gather_limit=limit, fallback_mode=mode)
    lf = QUERIES[name](table(data))
    found = lf.collect(engine=Engine(client, options=options))
    assert_frame_equal(found, lf.collect(), check_row_order=name in ORDERED)


def test_a_join_reads_no_more_than_it_needs(data: Path) -> None:
    """A filter above two joins, and the columns above them, reach the scans."""
    small, rows = table(data).select("id", y="row"), table(data).select("row", z="id")
    lf = table(data).join(small, on="id").join(rows, on="row").filter(c("name") == "n1", c("y") > 7)
    plan = _pushdown.pushed(_plan.read(lf.group_by("name").agg(c("y").sum())))
    above = {n.inputs[0]: n for n in plan.walk() if n.inputs}
    scans = [n for n in plan.walk() if n.kind == "Scan"]
    text = _plan.lazy(plan).explain(optimized=False)
    assert len(scans) == 1 and above[scans[0]].kind in ("Select", "Filter")
    assert text.count('FILTER col("name") == "n1"') > 1 and 'SELECT [col("row")]' in text, text


class Counting(Cluster):
    """A cluster that notes the tasks of a query."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.tasks: list[str] = []
        self.plan_bytes = 0
        self.stored = 0

    def submit(self, function: str, /, *arguments: Any) -> Any:
        self.tasks.append(function)
        self.plan_bytes += len(arguments[0]) if isinstance(arguments[0], bytes) else 0
        return super().submit(function, *arguments)

    def scatter(self, data: list[Any]) -> list[Any]:
        self.stored += len(data)
        return super().scatter(data)


def test_the_workers_read_the_parts(data: Path, client: Client) -> None:
    """Each part is one task: the scan, the filter and the first step of the aggregate."""
    counting = Counting(client)
    query = Query(counting, 2, Options(parts=4, least_bytes=1))
    lf = table(data).filter(c("amount") > 1).group_by("id").agg(c("amount").sum())
    (future,) = query.run(_plan.read(lf))
    assert_frame_equal(future.result(), lf.collect(), check_row_order=False)
    assert len(counting.tasks) == 5


def test_a_query_that_reads_little_is_one_task(data: Path, client: Client) -> None:
    """Only the columns that it needs count, and the bytes of stored results. `run`, whose results
    stay on the cluster, divides it."""
    size = sum(p.stat().st_size for p in data.glob("*.parquet"))
    small = table(data).select("row", x=c("id") * 2)
    lf = table(data).filter(c("id") > 2).join(small, on="row").group_by("id").agg(c("x").sum())
    stored = small.execute(engine=Engine(client))
    (nbytes,) = [f._state.nbytes for f in stored.futures if f.result() is not None]
    stored_lf = table(data).join(stored.lazy(), on="row").select(c("x").sum())

    def tasks(lf: pl.LazyFrame, limit: int, *, collect: bool = True) -> int:
        counting = Counting(client)
        query = Query(counting, 2, Options(undivided_limit=limit, target_partition_size=2000, least_bytes=1))
        futures = (query.collect if collect else query.run)(_plan.read(lf))
        assert_frame_equal(pl.concat(f.result() for f in futures), lf.collect(), check_row_order=False)
        return len(counting.tasks)

    assert tasks(lf, size) == tasks(lf, size * 3 // 4) == 1
    assert tasks(lf, size // 4) > 1 and tasks(lf, 0) > 1 and tasks(lf, size, collect=False) > 1
    assert tasks(stored_lf, size + nbytes) == 1
    assert tasks(stored_lf, nbytes - 1) > 1


def test_windows_of_all_rows_run_in_one_task(data: Path, client: Client) -> None:
    lf = table(data).with_columns(c("amount").cum_sum().alias("all"))
    options = Options(parts=4, least_bytes=1)
    with pytest.warns(UndividedWarning, match="HStack cannot be divided"):
        assert_frame_equal(lf.collect(engine=Engine(client, options=options)), lf.collect())
    silent = Engine(client, options=dataclasses.replace(options, fallback_mode="silent"))
    assert_frame_equal(lf.collect(engine=silent), lf.collect())
    with pytest.raises(NotImplementedError, match="fallback_mode='warn' allows it"):
        lf.collect(engine=Engine(client, options=dataclasses.replace(options, fallback_mode="raise")))


def test_a_data_frame_of_the_client_is_divided(client: Client) -> None:
    frame = pl.DataFrame({"k": [i % 3 for i in range(1000)], "v": range(1000)})
    engine = Engine(client, options=Options(max_rows_per_partition=300, fallback_mode="raise"))
    result = frame.lazy().filter(c("v") > 10).execute(engine=engine)
    assert [len(f) for f in (future.result() for future in result.futures)] == [289, 300, 300, 100]
    assert_frame_equal(result.lazy().collect(engine=engine), frame.filter(c("v") > 10))
    once = frame.lazy().join(frame.lazy().group_by("k").agg(c("v").sum().alias("s")), on="k")
    assert_frame_equal(once.collect(engine=engine), once.collect(), check_row_order=False)


def test_a_data_frame_goes_to_the_workers_once_and_not_in_plans(client: Client) -> None:
    frame = pl.DataFrame({"k": [i % 3 for i in range(20_000)], "v": range(20_000)})
    lf = frame.lazy().filter(c("v") > 7).join(frame.lazy().group_by("k").agg(c("v").sum().alias("s")), on="k")
    for divided in (False, True):
        counting = Counting(client)
        query = Query(counting, 2, Options(max_rows_per_partition=20_000))
        futures = (query.run if divided else query.collect)(_plan.read(lf))
        assert_frame_equal(pl.concat(f.result() for f in futures), lf.collect(), check_row_order=False)
        assert counting.stored == 1 and counting.plan_bytes < 20_000
    with Engine(client, options=Options(max_rows_per_partition=8_000)) as engine:
        assert_frame_equal(engine.persist(frame).filter(c("k") == 1).collect(engine=engine), frame.filter(c("k") == 1))
        assert_frame_equal(engine.persist(frame.clear()).collect(engine=engine), frame.clear())


def test_parts_stay_small_where_rows_meet(data: Path, client: Client) -> None:
    """A table in more parts than the cluster has slots is not brought into fewer."""
    sized = Options(target_partition_size=2000, least_bytes=1, gather_limit=0, broadcast_limit=0)
    engine = Engine(client, options=sized)
    parts = len(table(data).execute(engine=engine).futures)
    assert parts > 2 * engine.nranks
    t = table(data)
    for lf in (t.group_by("row").agg(c("id").median()), t.join(t.select("row", x="id"), on="row"), t.sort("row")):
        assert len(lf.execute(engine=engine).futures) == parts


def test_plans_that_read_files_run_on_the_gpu(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cudf-polars is asked as Polars asks it: after its own optimiser, with the engine's options."""
    (tmp_path / "cudf_polars.py").write_text(
        "configs = []\ndef execute_with_cudf(nt, *times, config):\n    configs.append(config.config)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    lf = table(data).filter(c("id") > 2)
    plan, _ = _plan.write(_plan.read(lf))
    frame = lf.collect()
    on_frame, _ = _plan.write(_plan.Node.input(None, frame.schema))
    assert_frame_equal(_tasks.run(plan), frame)
    monkeypatch.setattr(_task_info, "current", TaskInfo("key", 1, 1, "worker", "default", 0, on_gpu=True))
    assert_frame_equal(_tasks.run(plan), frame)
    assert_frame_equal(_tasks.run(on_frame, [frame]), frame)  # has an input, and runs on the host
    cudf_polars = importlib.import_module("cudf_polars")
    assert cudf_polars.configs == [{"executor": "in-memory", "raise_on_fail": False}]


def test_options_of_streaming_engines(data: Path, client: Client, tmp_path: Path) -> None:
    class StreamingOptions:
        """As cudf-polars' class of this name."""

        def to_dict(self) -> dict[str, object]:
            return {"broadcast_limit": "auto", "target_partition_size": 0, "fallback_mode": "silent", "num_streams": 8}

    with pytest.warns(UserWarning, match="options without effect on this engine: num_streams"):
        assert Options.of(StreamingOptions()) == Options(fallback_mode="silent")
    with pytest.raises(ValueError, match="fallback_mode is 'never'"):
        Options.of({"fallback_mode": "never"})
    with pytest.raises(ValueError, match="target_partition_size is -1"):
        Options(target_partition_size=-1)
    sized = {"target_partition_size": 2000, "least_bytes": 1, "sink_to_directory": True}
    engine = Engine.from_options(sized, client=client)
    lf = table(data)
    assert len(lf.execute(engine=engine).futures) > 4
    lf.sink_parquet(tmp_path / "parts", engine=engine)
    assert len(list((tmp_path / "parts").iterdir())) > 4
    assert_frame_equal(pl.read_parquet(tmp_path / "parts"), lf.collect())


def test_an_error_of_a_stage_is_raised(data: Path, engine: Engine) -> None:
    bad = table(data).with_columns(c("name").cast(pl.Int64)).group_by("id").agg(c("name").sum())
    with pytest.raises(pl.exceptions.InvalidOperationError, match="conversion from `str` to `i64` failed"):
        bad.collect(engine=engine)


def test_an_engine_describes_its_cluster(engine: Engine) -> None:
    assert engine.nranks == 2
    found = engine.gather_cluster_info()
    assert len({f["pid"] for f in found}) == 2 and all(f["hostname"] for f in found)
    with pytest.raises(ValueError, match="background"):
        pl.LazyFrame({"x": [1]}).collect(engine=engine, background=True)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="n_workers"):
        Engine(engine.client, n_workers=2)


def test_results_stay_on_the_cluster(data: Path, engine: Engine) -> None:
    lf = table(data).filter(c("id") != 2)
    result = lf.execute(engine=engine)
    assert isinstance(result, Result) and len(result.futures) == 3
    kept = engine.persist(lf)
    sums = kept.filter(c("id") > 1).group_by("id").agg(c("amount").sum())
    want = lf.filter(c("id") > 1).group_by("id").agg(c("amount").sum()).collect()
    assert_frame_equal(sums.collect(engine=engine), want, check_row_order=False)
    assert_frame_equal(sums.collect(), want, check_row_order=False)  # Polars fetches the result
    data_of = kept.serialize()
    del kept, sums
    with pytest.raises((LookupError, pl.exceptions.ComputeError), match="another process holds"):
        _plan.load(data_of).collect()


def test_workers_write_files(data: Path, engine: Engine, tmp_path: Path) -> None:
    lf = table(data).filter(c("id") == 1)
    lf.sink_parquet(tmp_path / "one.parquet", engine=engine, compression="lz4")
    assert_frame_equal(pl.read_parquet(tmp_path / "one.parquet"), lf.collect())
    lf.sink_parquet(f"{tmp_path}/many/", engine=engine)
    assert len(list((tmp_path / "many").iterdir())) == 3
    assert_frame_equal(pl.read_parquet(tmp_path / "many"), lf.collect())
    with pytest.raises(TypeError, match="workers write to a path only"):
        lf.sink_parquet(io.BytesIO(), engine=engine)


def test_a_plan_is_explained(data: Path, engine: Engine) -> None:
    lf = table(data).join(table(data), on="row").filter(c("id") > 3).select("name")
    assert 'SELECT [col("id"), col("name"), col("row")]' in engine.explain(lf)


def test_queries_are_collected_together(data: Path, engine: Engine) -> None:
    both = pl.collect_all([table(data).select(pl.len()), table(data).select(c("row").max())], engine=engine)
    assert [f.item() for f in both] == [2000, 1999]


def test_queries_that_are_collected_together_run_at_the_same_time(client: Client, gate: Gate) -> None:
    def behind(column: pl.Series) -> pl.Series:
        if len(column):  # Polars also runs plans without rows
            gate.pass_through()
        return column

    lfs = [pl.LazyFrame({"x": [i]}).select(c("x").map_batches(behind, pl.Int64)) for i in range(2)]
    with ThreadPoolExecutor(1) as pool:
        both = pool.submit(pl.collect_all, lfs, engine=Engine(client))
        gate.wait(2)
        gate.open(2)
        assert [f.item() for f in both.result()] == [0, 1]


def test_an_engine_refuses_an_asynchronous_client() -> None:
    with pytest.raises(TypeError, match="client is of the class AsyncClient: an engine needs a Client"):
        Engine(AsyncClient("127.0.0.1:1"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="client is of the class str"):
        Engine("127.0.0.1:1")  # pyright: ignore[reportArgumentType]
