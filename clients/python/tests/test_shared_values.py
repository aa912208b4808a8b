"""Variables, events and queues, in clients, in tasks and in event loops."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE, eventually
from millrace import AsyncClient, Client, Event, LocalCluster, Queue, Variable, errors
from test_locks import in_thread


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    def __repr__(self) -> str:
        return f"Point({self.x})"

    def __hash__(self) -> int:
        return hash(self.x)


def add_one(x: int) -> int:
    return x + 1


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1,
        -(1 << 63),
        1 << 70,
        1.5,
        1j,
        "x",
        b"x",
        [1, "a"],
        {"b": 1, "a": [None]},
        (1, 2),
        {1: 2},
        {1, 2},
        Point(3),
    ],
    ids=str,
)
def test_values_come_back_as_they_are(client: Client, value: Any) -> None:
    variable = Variable(client=client)
    variable.set(value)
    got = variable.get()
    assert got == value and type(got) is type(value)
    if isinstance(value, dict):
        assert list(got) == list(value)
    variable.delete()


def test_arrays_come_back_as_they_are(client: Client) -> None:
    queue = Queue(client=client)
    queue.put(np.arange(5, dtype="int16"))
    got = queue.get()
    assert got.dtype == np.int16 and got.tolist() == [0, 1, 2, 3, 4]


def test_values_that_are_too_large_are_refused(client: Client) -> None:
    with pytest.raises(errors.InvalidRequestError, match=r"limit is 1.0 MiB.*scatter"):
        Variable("large", client=client).set(b"x" * (2 << 20))
    with pytest.raises(errors.SerialisationError, match="queue unpicklable"):
        Queue("unpicklable", client=client).put(i for i in range(3))


# ---- variables -----------------------------------------------------------------------------------


def test_a_variable_has_its_last_value(client: Client, cluster: LocalCluster) -> None:
    variable = Variable("last", client=client)
    with Client(cluster) as other:
        theirs = Variable("last", client=other)
        with pytest.raises(TimeoutError, match="variable last got no value within"):
            theirs.get(timeout="10 ms")
        got = in_thread(theirs.get)
        variable.set(1)
        assert got.result(PATIENCE) == 1
        theirs.set(2, timeout="10s")
        assert variable.get() == 2
        variable.delete()
        with pytest.raises(TimeoutError):
            theirs.get(timeout=0)
    assert pickle.loads(pickle.dumps(variable)).name == "last"


def test_futures_in_variables_are_held(cluster: LocalCluster, client: Client) -> None:
    with Client(cluster) as writer:
        future = writer.submit(add_one, 41, pure=False)
        Variable("future", client=writer).set({"best": future, "all": [future]})
        future.result()
    value = Variable("future", client=client).get()
    Variable("future", client=client).delete()
    assert value["best"].result() == 42
    assert value["all"][0].key == value["best"].key


def read_and_write() -> int:
    seen = Variable("seen by a task").get(timeout=PATIENCE)
    Variable("written by a task").set(seen + 1)
    return seen


def test_tasks_use_variables(client: Client) -> None:
    future = client.submit(read_and_write, pure=False)
    Variable("seen by a task").set(7)
    assert Variable("written by a task").get(timeout=PATIENCE) == 8
    assert future.result() == 7


# ---- events --------------------------------------------------------------------------------------


def wait_for(name: str) -> bool:
    return Event(name).wait(timeout=PATIENCE)


def test_an_event_ends_all_waits(client: Client) -> None:
    event = Event("all waits", client=client)
    assert not event.is_set()
    assert event.wait(timeout=0.01) is False
    waits = [in_thread(event.wait) for _ in range(3)]
    tasks = client.map(wait_for, ["all waits"] * 2, pure=False)
    event.set()
    assert [w.result(PATIENCE) for w in waits] == [True] * 3
    assert client.gather(tasks) == [True, True]
    assert event.is_set()
    event.clear()
    assert not event.is_set()


# ---- queues --------------------------------------------------------------------------------------


def test_a_queue_has_an_order_and_a_size(client: Client) -> None:
    queue = Queue("sized", client=client, maxsize=2)
    queue.put(1)
    queue.put([2])
    assert queue.qsize() == 2
    with pytest.raises(TimeoutError, match="had no room"):
        Queue("sized", client=client).put(3, timeout="10 ms")
    blocked = in_thread(lambda: queue.put(3))
    assert queue.get() == 1
    blocked.result(PATIENCE)
    assert queue.get(batch=True) == [[2], 3]
    assert queue.get(batch=True) == []
    with pytest.raises(TimeoutError, match="got no value"):
        queue.get(timeout=0)
    three = in_thread(lambda: queue.get(batch=3))
    for i in range(3):
        queue.put(i)
    assert three.result(PATIENCE) == [0, 1, 2]
    with pytest.raises(NotImplementedError):
        queue.get(timeout=1, batch=3)
    copy = pickle.loads(pickle.dumps(queue))
    assert (copy.name, copy.maxsize) == ("sized", 2)


def test_futures_in_queues_are_held(client: Client, cluster: LocalCluster) -> None:
    queue = Queue("of futures", client=client)
    for i in range(20):
        queue.put(client.submit(add_one, i, pure=False))  # only the queue has the future
    with Client(cluster) as other:
        theirs = Queue("of futures", client=other)
        assert [theirs.get().result() for _ in range(10)] == list(range(1, 11))
    assert client.gather(queue.get(batch=10)) == list(range(11, 21))


def produce(name: str, count: int) -> None:
    queue = Queue(name, maxsize=3)
    for i in range(count):
        queue.put(i)


def consume(name: str, count: int) -> int:
    queue = Queue(name)
    return sum(queue.get() for _ in range(count))


def test_tasks_exchange_values(client: Client) -> None:
    made = client.submit(produce, "between tasks", 50, pure=False)
    assert client.submit(consume, "between tasks", 50, pure=False).result() == sum(range(50))
    made.result()


def test_a_queue_is_gone_after_its_last_close(client: Client, cluster: LocalCluster) -> None:
    with Client(cluster) as other:
        ours, theirs = Queue("closed", client=client), Queue("closed", client=other)
        ours.put(1)
        ours.close()
        assert theirs.qsize() == 1
        blocked = in_thread(lambda: Queue("closed too", client=client).get())
        eventually(lambda: waiting_takes(other, "closed too") == 1)
        Queue("closed too", client=client).close()
        with pytest.raises(errors.ClosedError, match="closed too"):
            blocked.result(PATIENCE)
        theirs.close()
        assert theirs.qsize() == 0


def waiting_takes(client: Client, name: str) -> int:
    from millrace._pb.millrace.v1 import coordination_pb2

    return client.session.call("GetQueue", coordination_pb2.GetQueueRequest(name=name)).waiting_takes


# ---- asyncio -------------------------------------------------------------------------------------


def test_shared_values_are_awaited(cluster: LocalCluster) -> None:
    async def main() -> None:
        async with AsyncClient(cluster) as client:
            variable, event = Variable("awaited", client=client), Event("awaited", client=client)
            queue = await Queue("awaited", client=client, maxsize=1)
            gets = [asyncio.create_task(queue.get()) for _ in range(3)]
            for i in range(3):
                await queue.put(i)
            assert sorted(await asyncio.gather(*gets)) == [0, 1, 2]
            assert await queue.qsize() == 0
            wait = asyncio.create_task(event.wait())
            await event.set()
            assert await wait is True
            future = client.submit(add_one, 1)
            await variable.set(future)
            assert await (await variable.get()) == 2
            await variable.delete()
            with pytest.raises(TimeoutError):
                await variable.get(timeout=0.01)
            # Without a client: that of the event loop.
            await Variable("default").set(1)
            assert await Variable("default").get() == 1

    asyncio.run(main())
