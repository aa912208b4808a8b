"""The runs of tasks that the scheduler remembers, and reports about them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE
from millrace import AsyncClient, Client, LocalCluster, get_task_metadata, get_task_stream, performance_report, wait
from millrace._calls._task_plot import TaskPlot
from millrace._calls._task_runs import moment, number_lanes


def inc(x: int) -> int:
    return x + 1


def fail(x: int) -> int:
    raise KeyError(x)


def test_runs_outlive_their_tasks(cluster: LocalCluster) -> None:
    with Client(cluster, namespace="stream") as client:
        before = time.time() - 1
        futures = [*client.map(inc, range(5), key="inc"), client.submit(fail, 1, key=("bad", 0))]
        wait(futures, PATIENCE)
        for future in futures:
            future.release()
        client.session.flush()
        runs = client.get_task_stream()
        assert sorted(str(r["key"]) for r in runs) == sorted(str(f.key) for f in futures)
        assert {str(r["key"]): r["status"] for r in runs}["('bad', 0)"] == "error"
        for run in runs:
            (span,) = run["startstops"]
            assert span["action"] == "compute" and before < span["start"] <= span["stop"] < time.time() + 1
            # A slot takes the next call while the result of the last one is stored: two lanes.
            assert run["worker"] in client.nthreads() and run["thread"] in (0, 1)
        # The lanes are those of the runs that are asked for.
        assert [{**r, "thread": 0} for r in client.get_task_stream(count=2)] == [{**r, "thread": 0} for r in runs[-2:]]
        assert client.get_task_stream(count=0) == []
        assert client.get_task_stream(start=time.time() + 60) == []
        assert client.get_task_stream(start="1 h", stop="0s") == runs and client.get_task_stream(stop=before) == []
        with Client(cluster, namespace="other") as other:
            assert other.get_task_stream() == []


def test_pictures(client: Client, tmp_path: Path) -> None:
    client.submit(inc, 1, key="<inc>", pure=False).result()
    file = tmp_path / "stream.html"
    runs, picture = client.get_task_stream(plot="save", filename=str(file))
    assert "&lt;inc&gt;" in file.read_text() and "<svg" in picture._repr_html_()
    assert picture._repr_html_().count("<rect") == len(runs)
    assert "No task ran" in TaskPlot([])._repr_html_()


def test_runs_of_one_lane_do_not_overlap() -> None:
    spans = [(0.0, 3.0), (1.0, 2.0), (2.5, 4.0), (3.0, 5.0)]
    runs = [{"worker": "w", "startstops": [{"start": start, "stop": stop}]} for start, stop in spans]
    number_lanes(runs)
    assert [r["thread"] for r in runs] == [0, 1, 1, 0]


def test_times_before_now() -> None:
    assert moment(5, "start") == 5 and abs(moment("2 s", "start") - time.time() + 2) < 1
    with pytest.raises(ValueError, match="stop"):
        moment("soon", "stop")


def test_blocks(client: Client, tmp_path: Path) -> None:
    client.submit(inc, 0, key="before-the-block").result()
    with get_task_stream(plot="save", filename=str(tmp_path / "stream.html")) as stream:
        client.submit(inc, 1, key="inside").result()
    assert [r["key"] for r in stream.data] == ["inside"]
    assert stream.figure is not None and "inside" in (tmp_path / "stream.html").read_text()
    report = tmp_path / "report.html"
    with performance_report(filename=report):
        held = client.map(inc, range(3), key="in-the-report")
        wait(held)
        "a line of this function"
    kept = frozen(report)
    assert "a line of this function" in kept["code"] and len(kept["topics"]["workers"]["rows"]) >= 2
    keys = [run[kept["runs"]["columns"].index("key")] for run in kept["runs"]["rows"]]
    assert len(keys) == 3 and all("in-the-report" in key for key in keys)
    (graph,) = kept["topics"]["graphs"]["rows"]
    assert len(kept["tasks"][graph["graphId"]]) == 3 and set(kept["logs"]) > {""}
    assert not re.findall(r"""(?:src|href)="(?!#|data:)""", report.read_text().partition("<script")[0])


def frozen(report: Path) -> dict[str, Any]:
    """Returns the data in a report."""
    found = re.search(r'<script type="application/json" id="frozen">(.*?)</script>', report.read_text())
    assert found is not None
    return json.loads(found[1])


async def test_blocks_in_an_event_loop(cluster: LocalCluster, tmp_path: Path) -> None:
    async with AsyncClient(cluster) as client:
        async with performance_report(tmp_path / "report.html"), get_task_stream(client) as stream:
            await client.submit(inc, 1, key="in-a-loop", pure=False)
        assert [r["key"] for r in stream.data] == ["in-a-loop"] and stream.figure is None
        assert "in-a-loop" in (tmp_path / "report.html").read_text()
        assert [r["key"] for r in await client.get_task_stream(count=1)] == ["in-a-loop"]


def test_the_metadata_of_tasks(client: Client) -> None:
    client.submit(str, "before").result()
    with client.as_current(), get_task_metadata() as tasks:
        good, bad = client.submit(str, 1, pure=False), client.submit(divmod, 1, 0, pure=False)
        wait([good, bad])
    assert tasks.state == {good.key: "memory", bad.key: "erred"}
    assert tasks.metadata is not None and set(tasks.metadata) == set(tasks.state)
    told = tasks.metadata[good.key]
    assert told["start_time"] <= told["stop_time"] and told["worker"] in client.nthreads() and told["attempt"] == 1


async def test_the_metadata_of_tasks_for_asyncio(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster) as client, get_task_metadata() as tasks:
        future = client.submit(str, 2, pure=False)
        await future
    assert tasks.state == {future.key: "memory"}
