"""Topics, Pub and Sub, and metadata."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from typing import Any

import pytest
from conftest import PATIENCE, eventually
from millrace import AsyncClient, Client, LocalCluster, Pub, Sub, get_client


def test_a_topic_keeps_its_messages(client: Client) -> None:
    before = time.time()
    client.log_event("kept", {"x": 1})
    client.log_event(["kept", "kept too"], (2, "two"))
    events = client.get_events("kept")
    assert [message for _, message in events] == [{"x": 1}, (2, "two")]
    assert before - 60 < events[0][0] <= events[1][0] < time.time() + 60
    everything = client.get_events()
    assert [message for _, message in everything["kept too"]] == [(2, "two")]
    assert client.get_events("nothing") == ()
    with pytest.raises(ValueError, match="empty"):
        client.log_event("", 1)


def log(topic: str, message: Any) -> None:
    get_client().log_event(topic, message)


def test_a_handler_is_called_with_later_messages(client: Client, cluster: LocalCluster) -> None:
    client.log_event("handled", "too early")
    seen: queue.Queue[Any] = queue.Queue()
    client.subscribe_topic("handled", lambda event: seen.put(event[1]))
    client.submit(log, "handled", "from a task", pure=False).result()
    assert seen.get(timeout=PATIENCE) == "from a task"

    async def handle(event: Any) -> None:
        seen.put(("other", event[1]))

    client.subscribe_topic("handled", handle)
    with Client(cluster) as other:
        other.log_event("handled", 2)
    assert seen.get(timeout=PATIENCE) == ("other", 2)
    client.unsubscribe_topic("handled")
    client.log_event("handled", 3)
    with pytest.raises(ValueError, match="No event handler known for topic"):
        client.unsubscribe_topic("handled")
    with pytest.raises(TypeError, match="handler"):
        client.subscribe_topic("handled", 1)  # pyright: ignore[reportArgumentType]
    assert seen.empty()


def test_a_handler_that_fails_does_not_end_the_others(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    seen: queue.Queue[Any] = queue.Queue()

    def handle(event: Any) -> None:
        if event[1] == "bad":
            raise ValueError("bad")
        seen.put(event[1])

    client.subscribe_topic("failing", handle)
    client.log_event("failing", "bad")
    client.log_event("failing", "good")
    assert seen.get(timeout=PATIENCE) == "good"
    assert "the handler of topic failing failed" in caplog.text
    client.unsubscribe_topic("failing")


def test_a_message_is_handled_before_the_result_of_its_task(client: Client) -> None:
    seen: list[Any] = []
    client.subscribe_topic("first", lambda event: seen.append(event[1]))
    for i in range(100):
        client.submit(log, "first", i, pure=False).result(PATIENCE)
        assert seen[-1] == i
    client.unsubscribe_topic("first")


def test_a_handler_may_wait_for_tasks(client: Client) -> None:
    seen: queue.Queue[Any] = queue.Queue()
    client.subscribe_topic("waits", lambda event: seen.put(client.submit(abs, event[1]).result(PATIENCE)))
    for i in range(3):
        client.submit(log, "waits", -i, pure=False).result(PATIENCE)
    assert [seen.get(timeout=PATIENCE) for _ in range(3)] == [0, 1, 2]
    client.unsubscribe_topic("waits")


def test_a_handler_that_is_stuck_does_not_withhold_results(client: Client) -> None:
    """Another handler that goes on makes the wait for it no longer."""
    done = threading.Event()

    def publish() -> None:
        while not done.is_set():
            client.log_event("goes on", 1)

    client.subscribe_topic("stuck", lambda _: done.wait())
    client.subscribe_topic("goes on", lambda _: None)
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        client.submit(log, "stuck", 1, pure=False).result(PATIENCE)
    finally:
        done.set()
        publisher.join()
    client.unsubscribe_topic("stuck")
    client.unsubscribe_topic("goes on")


def test_handlers_run_in_the_event_loop(cluster: LocalCluster) -> None:
    async def main() -> None:
        async with AsyncClient(cluster) as client:
            seen: asyncio.Queue[Any] = asyncio.Queue()

            async def handle(event: Any) -> None:
                await seen.put(event[1])

            client.subscribe_topic("loop", handle)
            await client.log_event("loop", 1)
            assert await asyncio.wait_for(seen.get(), PATIENCE) == 1
            client.unsubscribe_topic("loop")
            assert len(await client.get_events("loop")) == 1

    asyncio.run(main())


def put(name: str, count: int) -> None:
    pub = Pub(name)
    for i in range(count):
        pub.put(i)


def test_subscribers_get_what_is_published_later(client: Client, cluster: LocalCluster) -> None:
    Pub("numbers", client=client).put("too early")
    sub = Sub("numbers", client=client)
    with Client(cluster) as other:
        theirs = Sub("numbers", client=other)
        client.submit(put, "numbers", 5, pure=False).result()
        assert [sub.get(timeout=PATIENCE) for _ in range(5)] == list(range(5))
        assert [n for _, n in zip(range(5), theirs, strict=False)] == list(range(5))
    with pytest.raises(TimeoutError, match="numbers"):
        sub.get(timeout="10 ms")
    assert "pubsub/numbers" not in client.get_events()


def test_metadata_are_a_tree(client: Client) -> None:
    client.set_metadata(["t", "a", "b"], 1)
    client.set_metadata(["t", "a", 2], (3, None))
    assert client.get_metadata(["t", "a", "b"]) == 1
    assert client.get_metadata(["t", "a"]) == {"b": 1, 2: (3, None)}
    client.set_metadata("t", {"z": {"y": [1, {"x": 2}]}, "a": {}})
    assert client.get_metadata("t") == {"z": {"y": [1, {"x": 2}]}, "a": {}}
    assert list(client.get_metadata("t")) == ["z", "a"]
    assert client.get_metadata(["t", "z", "y"]) == [1, {"x": 2}]
    assert client.get_metadata(["t", "no"], default=None) is None
    with pytest.raises(KeyError, match="no"):
        client.get_metadata(["t", "no"])
    with pytest.raises(TypeError, match="Variable"):
        client.set_metadata("t", {"f": client.submit(abs, 1)})
    with pytest.raises(ValueError, match="names nothing"):
        client.set_metadata([], 1)
    with pytest.raises(ValueError, match="at most 30 levels"):
        client.set_metadata(["t"] * 31, 1)


def test_metadata_are_of_a_namespace(client: Client, cluster: LocalCluster) -> None:
    client.set_metadata("mine", 1)
    with Client(cluster, namespace="other") as other:
        assert other.get_metadata("mine", default=0) == 0


def test_an_ended_client_ends_its_handlers(cluster: LocalCluster) -> None:
    with Client(cluster) as client:
        client.subscribe_topic("ended", print)
        thread = client._subscriptions._running["ended"].thread
    eventually(lambda: not thread.is_alive())
