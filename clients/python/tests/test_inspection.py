"""Descriptions of the cluster, of results and of tasks."""

from __future__ import annotations

import gzip
import html.parser
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE, Gate
from millrace import AsyncClient, Client, LocalCluster, errors, wait
from millrace._cluster._cluster_html import bar, card, lanes, size, workers_table
from millrace._values._keys import prefix


def inc(x: int) -> int:
    return x + 1


def pass_through(gate: Gate) -> str:
    gate.pass_through()
    return "through"


class Tags(html.parser.HTMLParser):
    """Checks that each tag is closed, and keeps the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img"), "a card needs no other file"
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_places_and_sizes_of_results(cluster: LocalCluster) -> None:
    with Client(cluster, namespace="where") as client:
        small = client.map(inc, range(3), key="inc")
        large = client.submit(np.zeros, 1000, key=("zeros", 0))
        wait([*small, large])
        everything = client.who_has()
        assert set(everything) == {f.key for f in (*small, large)} and all(everything.values())
        assert client.who_has([large]) == {("zeros", 0): everything[("zeros", 0)]}
        keys = {key for found in client.has_what().values() for key in found}
        assert keys == set(everything)
        each = client.nbytes(summary=False)
        assert each[("zeros", 0)] >= 8000 and len(each) == 4
        assert client.nbytes()["inc"] == sum(each[f.key] for f in small)
        assert client.nbytes([large]) == {"zeros": each[("zeros", 0)]}
        slots = client.nthreads()
        assert slots == client.ncores() and set(slots) == set(client.scheduler_info()["workers"])
        name = next(iter(slots))
        assert client.nthreads(name) == client.ncores([name]) == {name: slots[name]}


def test_tasks_of_workers_and_their_story(cluster: LocalCluster, gate: Gate) -> None:
    with Client(cluster, namespace="doing") as client:
        blocked = client.submit(pass_through, gate, key=("blocked", 1))
        gate.wait()
        busy = client.processing()
        assert set(busy) == set(client.nthreads())
        assert [keys for keys in busy.values() if keys] == [[("blocked", 1)]]
        gate.open()
        assert blocked.result(PATIENCE) == "through"
        told = client.story(blocked)
        assert told[0][:3] == (("blocked", 1), "NONE", "WAITING")
        assert told[-1][2] == "SUCCEEDED" and told == client.story(("blocked", 1))
        with pytest.raises(errors.NotFoundError, match="no-such-key"):
            client.story("no-such-key")
        assert client.story("no-such-key", blocked, on_error="ignore") == told
        with pytest.raises(ValueError, match="on_error"):
            client.story(blocked, on_error="return")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("inc-5f2b9c3de8", "inc"), (("x-0123456789abcdef", 1, 2), "x"), ("load-3", "load"), ("read-csv", "read-csv"),
        ("a-1-2", "a"), (5, "5"), ("-", "-"),
    ],
)  # fmt: skip
def test_the_names_of_functions(key: Any, name: str) -> None:
    assert prefix(key) == name


def test_the_description_of_the_cluster(client: Client) -> None:
    info = client.scheduler_info()
    assert info["type"] == "Scheduler" and info["n_workers"] == len(info["workers"]) == 2
    assert info["total_threads"] == sum(w["nthreads"] for w in info["workers"].values())
    assert info["total_memory"] == sum(w["memory_limit"] for w in info["workers"].values())
    assert all(w["status"] == "running" and w["last_seen"] > info["started"] for w in info["workers"].values())
    few = client.scheduler_info(n_workers=1)
    assert len(few["workers"]) == 1 and few["n_workers"] == 2
    assert json.loads(json.dumps(info)) == info
    shown = Tags(info._repr_html_()).text
    assert "2 workers" in shown and all(name in shown for name in info["workers"])


def test_the_hardware_is_measured(client: Client) -> None:
    found = client.benchmark_hardware()
    assert set(found) == {"memory", "disk", "network"}
    assert set(found["memory"]) == set(found["network"]) == {"1 kiB", "100 kiB", "1 MiB", "10 MiB"}
    assert set(found["disk"]) == {*found["memory"], "100 MiB"}
    assert all(speed > 0 for speeds in found.values() for speed in speeds.values())


async def test_the_description_in_an_event_loop(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster) as client:
        info = client.scheduler_info()
        assert len(info["workers"]) == 2 and len(info) == len(list(info)) and "2 workers" in info._repr_html_()
        assert repr(info).startswith("{") and dict(info) == dict(info)
        assert set((await client.scheduler_info(1))["workers"]) < set(info["workers"])
        assert await client.nthreads() == {name: w["slots"] for name, w in info["workers"].items()}


def test_cards(cluster: LocalCluster) -> None:
    client = Client(cluster)
    future = client.submit(inc, 1, key="<b>")
    future.result()
    text = Tags(client._repr_html_()).text
    assert client.session.address in text and "2 workers" in text and "host" in text
    assert "futures: 1" in text
    assert "<b>" in Tags(future._repr_html_()).text and "<code>&lt;b&gt;</code>" in future._repr_html_()
    assert "2 workers" in Tags(cluster._repr_html_()).text
    client.close()
    assert "closed" in Tags(client._repr_html_()).text


def test_parts_of_cards() -> None:
    assert [size(n) for n in (0, 1023, 1536, 3 << 20, 5 << 30, 3 << 41)] == [
        "0 B", "1023 B", "1.50 KiB", "3.00 MiB", "5.00 GiB", "6.00 TiB",
    ]  # fmt: skip
    assert "#2a7" in bar(1, 2) and "#d90" in bar(75, 100) and "#c33" in bar(9, 10) and "width:0%" in bar(1, 0)
    assert lanes(1, 3).count("#36c") == 1 and lanes(0, 100).endswith(" of 100")
    row = {
        "state": "active", "device": "host", "assigned_tasks": 0, "slots": 1, "memory_used": 0, "memory_limit": 1,
        "rss": 0, "finished_tasks": 0,
    }  # fmt: skip
    assert "and 10 more" in Tags(workers_table({f"<w{i}>": row for i in range(60)})).text
    assert Tags(card("<x>", {"a&": "b"})).text == "<x>a&: b"


def test_files_with_the_state(client: Client, tmp_path: Path) -> None:
    future = client.submit(inc, 1, key="in-the-dump")
    future.result()
    client.dump_cluster_state(tmp_path / "dump")
    state = json.loads(gzip.decompress((tmp_path / "dump.json.gz").read_bytes()))
    assert state["tasks"]["in-the-dump"]["state"] == "TASK_STATE_SUCCEEDED" and len(state["workers"]) == 2
    client.dump_cluster_state(tmp_path / "less.json.gz", exclude=["tasks", "pid"])
    less = json.loads(gzip.decompress((tmp_path / "less.json.gz").read_bytes()))
    assert "tasks" not in less and not any("pid" in w for w in less["workers"].values())
    client.dump_cluster_state(tmp_path / "dump", format="yaml")
    assert "in-the-dump" in (tmp_path / "dump.yaml").read_text()
    client.dump_cluster_state(f"file://{tmp_path}/url", auto_mkdir=True)
    assert (tmp_path / "url.json.gz").exists()
    for arguments, text in (
        ({"format": "xml"}, "format"),
        ({"write_from_scheduler": True}, "write_from_scheduler"),
        ({"exclude": "tasks"}, "exclude"),
        ({"mode": "w"}, "storage_options: mode"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            client.dump_cluster_state(tmp_path / "x", **arguments)
