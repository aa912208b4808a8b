"""Client.profile: samples of the stacks of tasks, and the pictures of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import AsyncClient, Client, LocalCluster, performance_report
from millrace._calls._profile import ProfilePlot, merged
from millrace.executor import _profile, _task_info
from millrace.executor._profile import Sampler
from millrace.executor._task_info import TaskInfo


def wait_inside(gate: Gate) -> None:
    gate.pass_through()


def waits(gate: Gate) -> None:
    wait_inside(gate)


def names(profile: dict[str, Any]) -> Iterator[str]:
    for child in profile["children"].values():
        yield child["description"]["name"]
        yield from names(child)


@pytest.fixture
def running() -> Iterator[Callable[[Any], None]]:
    """Sets the key of the task that this thread is said to run."""

    def run(key: Any) -> None:
        _task_info.current = None if key is None else TaskInfo(key, 1, 1, "w", "default", 0, op="spinning")

    yield run
    _task_info.current = None


def outer(inner: Callable[[], bool]) -> bool:
    return function(inner)


def function(inner: Callable[[], bool]) -> bool:
    return inner()


def test_samples_are_counted_by_call_and_period(running: Callable[[Any], None]) -> None:
    sampler = Sampler(frozenset({outer.__code__}))
    assert sampler.sample(100.0) is False, "no task runs"
    running("spin-0123456789")
    for now in (100.0, 100.5, 102.0):
        assert outer(lambda now=now: sampler.sample(now))
    running(("other-0123456789", 3))
    assert outer(lambda: sampler.sample(102.5))
    tree = merged([sampler.collected()])
    assert tree["count"] == 4 and tree["identifier"] == "root"
    (first,) = tree["children"].values()
    assert first["count"] == 4
    assert first["description"] == {
        "filename": __file__, "name": "function", "line_number": function.__code__.co_firstlineno + 1, "line": "return inner()"
    }  # fmt: skip
    assert [c.name for c in sampler.collected().calls].count("function") == 1, "periods are summed up"
    assert merged([sampler.collected(key="spin")])["count"] == 3
    assert merged([sampler.collected(key="other")] * 2)["count"] == 2
    assert merged([sampler.collected(start=101.5)])["count"] == 2
    assert merged([sampler.collected(stop=101.5)])["count"] == 2
    assert merged([sampler.collected(key="nothing")])["count"] == 0
    assert merged([sampler.collected(["spinning", "f"], "spin")])["count"] == 3
    assert merged([sampler.collected(["f"])])["count"] == 0


def test_old_periods_are_forgotten(running: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_profile, "_MOST", 10)
    sampler = Sampler(frozenset({outer.__code__}))
    running("spin-0123456789")
    for now in range(100):
        outer(lambda now=now: sampler.sample(float(now)))
    left = merged([sampler.collected()])["count"]
    assert 1 <= left <= 10
    assert merged([sampler.collected(start=99.5)])["count"] == 1, "the latest one stays"


def test_inputs_are_free_after_the_sample(running: Callable[[Any], None]) -> None:
    sampler = Sampler(frozenset({outer.__code__}))
    running("x")
    in_sample, go_on, freed = threading.Event(), threading.Event(), threading.Event()
    count = sampler._count

    def slow(*args: Any) -> None:
        in_sample.set()
        go_on.wait(PATIENCE)
        count(*args)

    sampler._count = slow
    thread = threading.Thread(target=lambda: sampler.sample(0.0))

    class Input:
        pass

    def task() -> bool:
        held = Input()
        weakref.finalize(held, freed.set)
        thread.start()
        return in_sample.wait(PATIENCE)

    assert outer(task)
    assert not freed.is_set()  # the sample has the frame of the task, which has ended
    go_on.set()
    sampler.settle()
    assert freed.is_set()
    thread.join()


def test_a_deep_stack_is_cut(running: Callable[[Any], None]) -> None:
    sampler = Sampler(frozenset({outer.__code__}))
    running("deep-0123456789")

    def down(levels: int) -> bool:
        return down(levels - 1) if levels else sampler.sample(1.0)

    assert outer(lambda: down(300))
    assert len(sampler.collected().calls) == 100


def test_a_picture_shows_each_call(running: Callable[[Any], None], tmp_path: Path) -> None:
    sampler = Sampler(frozenset({outer.__code__}))
    assert "no samples" in ProfilePlot(merged([]), 0.01)._repr_html_()
    running("spin-0123456789")
    outer(lambda: sampler.sample(1.0))
    plot = ProfilePlot(merged([sampler.collected()]), 0.01)
    text = plot._repr_html_()
    assert "1 samples, about 0.01 s" in text and ">function</text>" in text and "&lt;lambda&gt;" in text
    plot.save(str(tmp_path / "profile.html"))
    assert text in (tmp_path / "profile.html").read_text()


def test_the_profile_of_a_cluster(client: Client, gate: Gate, tmp_path: Path) -> None:
    future = client.submit(waits, gate, pure=False)
    gate.wait()
    eventually(lambda: "wait_inside" in names(client.profile(key="waits")), "the task was never sampled")
    tree = client.profile()
    (call,) = [c for c in tree["children"].values() if c["description"]["name"] == "waits"]
    assert call["description"]["filename"] == __file__ and call["description"]["line"] == "wait_inside(gate)"
    assert set(names(call)) >= {"wait_inside", "pass_through"} and call["count"] <= tree["count"]
    assert client.profile(key="of-no-task")["count"] == 0 and client.profile(start=4e9)["count"] == 0
    assert client.profile(start="10 min")["count"] >= call["count"]
    apart = client.profile(merge_workers=False)
    assert set(apart) == set(client.nthreads())
    assert sum("waits" in names(t) for t in apart.values()) == 1
    one = next(n for n, t in apart.items() if "waits" in names(t))
    assert "waits" in names(client.profile(workers=one))
    file = tmp_path / "flame.html"
    profile, picture = client.profile(filename=str(file))
    assert profile["count"] and picture._repr_html_() in file.read_text() and "wait_inside" in file.read_text()
    gate.open()
    future.result(PATIENCE)


def test_questions_that_have_no_answer(client: Client) -> None:
    for name in ("server", "scheduler"):
        with pytest.raises(ValueError, match=f"{name}=True: that program runs no Python"):
            client.profile(**{name: True})
    with pytest.raises(ValueError, match="merge_workers"):
        client.profile(plot=True, merge_workers=False)
    with pytest.raises(ValueError, match="no active worker"):
        client.profile(workers="nobody")


def test_a_report_has_the_profile(client: Client, gate: Gate, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    with client.as_current(), performance_report(file):
        future = client.submit(waits, gate, pure=False)
        gate.wait()
        eventually(lambda: "wait_inside" in names(client.profile(key="waits", start="1 min")))
        gate.open()
        future.result(PATIENCE)
    assert '"op=waits":{"samples"' in file.read_text() and '"wait_inside"' in file.read_text()


async def test_the_profile_for_asyncio(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster) as client:
        assert "children" in await client.profile()


def test_sampling_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_PROFILE", "0")

    def threads() -> list[str]:
        return [t.name for t in threading.enumerate()]

    with LocalCluster(1, memory_limit="64MiB", device="host") as cluster, Client(cluster) as client:
        assert "millrace-profile" not in client.submit(threads).result(PATIENCE)
        assert client.profile()["count"] == 0
    monkeypatch.setenv("MILLRACE_PROFILE", "1")
    with LocalCluster(1, memory_limit="64MiB", device="host") as cluster, Client(cluster) as client:
        assert "millrace-profile" in client.submit(threads).result(PATIENCE)
