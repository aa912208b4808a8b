"""Actors: objects that live in a process of their own on a worker."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import (
    Actor,
    ActorLostError,
    AsyncClient,
    Client,
    Future,
    Scheduler,
    Worker,
    as_completed,
    errors,
    get_client,
    get_worker,
    wait,
)
from millrace import worker_client as with_client
from millrace._actors import _host
from millrace._pb.millrace.v1 import task_calls_pb2
from millrace._tasks import _arguments


@pytest.fixture(scope="module")
def scheduler() -> Iterator[Scheduler]:
    """A cluster with two workers of one slot each. One of them has a seat."""
    with (
        Scheduler() as scheduler,
        Worker(scheduler.address, nthreads=1, name="seated", memory_limit="64MiB", resources={"seat": 1}),
        Worker(scheduler.address, nthreads=1, name="standing", memory_limit="64MiB"),
    ):
        yield scheduler


@pytest.fixture
def one(scheduler: Scheduler) -> Iterator[Client]:
    with Client(scheduler.address) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        yield client


def inc(x: int) -> int:
    return x + 1


class Counter:
    n = 0

    def __init__(self, n: int = 0) -> None:
        if n < 0:
            raise ValueError("too small")
        self.n = n

    def add(self, k: int = 1) -> int:
        self.n += k
        return self.n

    def fail(self) -> None:
        raise KeyError("no")

    def die(self) -> None:
        os._exit(3)

    async def never(self) -> None:
        await asyncio.Event().wait()

    def waits(self) -> int:
        return get_client().submit(inc, 1, pure=False).result()

    def pid(self) -> int:
        return os.getpid()

    def leave(self) -> None:
        raise SystemExit


def add_ten(actor: Any) -> int:
    return actor.add(10).result()


def test_an_actor_keeps_its_state(one: Client) -> None:
    actor: Any = one.submit(Counter, 5, actor=True).result(PATIENCE)
    assert [f.result(PATIENCE) for f in [actor.add() for _ in range(20)]] == list(range(6, 26))
    assert actor.n == 25
    assert "add" in dir(actor)
    assert "Counter" in repr(actor)
    with pytest.raises(KeyError, match="no"):
        actor.fail().result(PATIENCE)
    assert isinstance(actor.fail().exception(PATIENCE), KeyError)
    assert one.submit(add_ten, actor).result(PATIENCE) == 35
    assert actor.waits().result(PATIENCE) == 2
    with pytest.raises(AttributeError):
        _ = actor.nothing
    assert one.submit(inc, 1, pure=False).result(PATIENCE) == 2


class Store:
    def __init__(self, data: bytes = b"", **more: bytes) -> None:
        self.data, self.more = data, more

    def sizes(self, *data: bytes, **more: bytes) -> list[int]:
        return [*map(len, (self.data, *self.more.values(), *data, *more.values()))]


def test_large_arguments_of_actors_go_to_workers(one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of `submit` do, and not through the scheduler, whose messages have a limit."""
    monkeypatch.setattr(_arguments, "MOST_ARGUMENTS", 2 << 20)
    large = [bytes([n]) * ((3 << 20) + n) for n in range(4)]
    actor: Any = one.submit(Store, large[0], host=large[1], actor=True).result(PATIENCE)
    assert actor.sizes(b"", large[2], method=large[3]).result(PATIENCE) == [
        *map(len, large[:2]),
        0,
        *map(len, large[2:]),
    ]
    with pytest.raises(errors.SerialisationError, match=r"the arguments of Store\.sizes cannot be pickled"):
        actor.sizes(threading.Lock())
    with pytest.raises(errors.SerialisationError, match="the arguments of Store cannot be pickled"):
        one.submit(Store, threading.Lock(), actor=True)


def test_actors_of_classes_that_workers_import(one: Client) -> None:
    actor: Any = one.submit(collections.UserList, [1, 2], actor=True).result(PATIENCE)
    actor.append(3)
    assert actor.index(3).result(PATIENCE) == 2 and actor.pop(0).result(PATIENCE) == 1


def test_the_names_of_an_actor(one: Client) -> None:
    future = one.submit(Counter, 5, actor=True, key="the counter")
    actor: Any = future.result(PATIENCE)
    worker = one.scheduler_info()["workers"][actor.worker]
    assert future.key == actor.key == "the counter"
    assert actor.address == worker["address"]
    again: Any = Actor(Counter, actor.address, "the counter", actor.worker)
    assert again.key == "the counter" and actor.add().result(PATIENCE) == again.n == 6
    with pytest.raises(
        ValueError, match=r"'the counter' is <Actor: Counter .*, and no actor of Counter at 1\.2\.3\.4:5"
    ):
        Actor(Counter, "1.2.3.4:5", "the counter")
    with pytest.raises(errors.InvalidRequestError, match="'the counter' is taken"):
        one.submit(Counter, 7, actor=True, key="the counter").result(PATIENCE)


class Addressed:
    def __init__(self) -> None:
        self.address = "of a house"
        self.worker = "a person"


def test_attributes_of_an_actor_come_first(one: Client) -> None:
    actor: Any = one.submit(Addressed, actor=True).result(PATIENCE)
    assert (actor.address, actor.worker) == ("of a house", "a person")


def test_a_map_of_actors(one: Client) -> None:
    futures = one.map(Counter, [1, 2, 3], actor=True, key="counter")
    assert [f.key for f in futures] == ["counter-0", "counter-1", "counter-2"]
    actors: list[Any] = one.gather(futures)
    assert [a.add(10).result(PATIENCE) for a in actors] == [11, 12, 13]
    assert one.map(Counter, [], actors=True) == []
    with pytest.raises(TypeError, match="actor=True is for a class"):
        one.map(inc, [1], actor=True)


def test_actors_take_turns_on_workers(one: Client) -> None:
    actors: list[Any] = one.gather(one.map(Counter, range(4), actor=True))
    assert sorted(a.worker for a in actors) == ["seated-0", "seated-0", "standing-0", "standing-0"]


def passes(gate: Gate) -> None:
    gate.pass_through()


def test_actors_are_placed_by_their_resources(one: Client, gate: Gate) -> None:
    busy = [one.submit(passes, gate, workers="seated-0", pure=False) for _ in range(2)]
    gate.wait()
    first = one.submit(Counter, 1, actor=True, resources={"seat": 1})
    second = one.submit(Counter, 2, actor=True, resources={"seat": 1}, workers=["seated-0", "standing-0"])
    gate.open(2)
    one.gather(busy)
    actor: Any = first.result(PATIENCE)
    assert (actor.worker, actor.n) == ("seated-0", 1) and not second.done()
    del actor, first  # the seat is free
    gc.collect()
    again: Any = second.result(PATIENCE)
    assert (again.worker, again.n) == ("seated-0", 2)
    with pytest.raises(errors.NoWorkerFitsError, match=r"Counter with resources=\{'seat': 2\}"):
        one.submit(Counter, actor=True, resources={"seat": 2})


class Moody:
    """Cannot be made at the first time."""

    def __init__(self, path: str) -> None:
        mark = Path(path)
        if not mark.exists():
            mark.touch()
            raise ValueError("not yet")

    def pid(self) -> int:
        return os.getpid()


def test_an_actor_is_made_again_by_its_retries(one: Client, tmp_path: Path) -> None:
    actor: Any = one.submit(Moody, str(tmp_path / "mark"), actor=True, retries=1).result(PATIENCE)
    assert actor.pid().result(PATIENCE)
    with pytest.raises(ValueError, match="not yet"):
        one.submit(Moody, str(tmp_path / "other"), actor=True).result(PATIENCE)


def test_actors_end_with_their_last_handle(one: Client) -> None:
    future = one.submit(Counter, actor=True)
    actor: Any = future.result(PATIENCE)
    pid = actor.pid().result(PATIENCE)
    assert Path(f"/proc/{pid}").exists()
    key = str(actor._host.key)
    assert key in keys(one)
    del actor, future
    gc.collect()
    eventually(lambda: key not in keys(one))


def keys(client: Client) -> list[str]:
    answer = client.session.call("ListTasks", task_calls_pb2.ListTasksRequest())
    return [str(t.key) for t in answer.tasks]


def test_the_death_of_an_actor(one: Client) -> None:
    actor: Any = one.submit(Counter, actor=True).result(PATIENCE)
    waiting = actor.never()
    assert isinstance(actor.leave().exception(PATIENCE), ActorLostError)
    assert isinstance(waiting.exception(PATIENCE), ActorLostError)
    actor = one.submit(Counter, actor=True).result(PATIENCE)
    assert isinstance(actor.die().exception(PATIENCE), ActorLostError)
    assert isinstance(actor.add().exception(PATIENCE), ActorLostError)
    again: Any = one.submit(Counter, 3, actor="restart").result(PATIENCE)
    again.add().result(PATIENCE)
    assert isinstance(again.die().exception(PATIENCE), ActorLostError)
    assert again.add().result(PATIENCE) == 4


def test_actors_that_cannot_be_made(one: Client) -> None:
    with pytest.raises(ValueError, match="too small"):
        one.submit(Counter, -1, actor=True).result(PATIENCE)
    with pytest.raises(TypeError, match="actor=True is for a class"):
        one.submit(inc, 1, actor=True)
    with pytest.raises(errors.NoWorkerFitsError, match="no worker is there"):
        one.submit(Counter, actor=True, workers="nobody")


async def test_actors_in_asyncio(scheduler: Scheduler) -> None:
    async with AsyncClient(scheduler.address) as client:
        actor: Any = await client.submit(Counter, 1, actor=True)
        assert await actor.add() == 2
        assert await actor.n == 2 and actor.worker in client.sync.scheduler_info()["workers"]
        assert not hasattr(actor, "abc")
        assert await client.gather([actor.add(), [actor.add()]]) == [3, [4]]
        assert actor.add().result(PATIENCE) == 5


# ---- coroutines ----------------------------------------------------------------------------------


class Turnstile:
    """Its methods are coroutines."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.waiting = 0

    async def passes(self) -> int:
        self.waiting += 1
        await self.opened.wait()
        return self.waiting

    async def open(self) -> None:
        self.opened.set()

    def count(self) -> int:
        return self.waiting

    async def fails(self) -> None:
        raise KeyError("no")

    async def asks(self, other: Any) -> int:
        with with_client() as client:
            return await other.add() + await client.submit(inc, 1, pure=False)

    def asks_in_a_loop(self, x: int) -> int:
        async def main() -> int:
            return await get_client().submit(inc, x, pure=False)

        return asyncio.run(main())


def test_methods_that_are_coroutines(one: Client) -> None:
    actor: Any = one.submit(Turnstile, actor=True).result(PATIENCE)
    waits = [actor.passes() for _ in range(3)]
    eventually(lambda: actor.count().result(PATIENCE) == 3)
    assert not any(w.done() for w in waits)
    with pytest.raises(TimeoutError):
        waits[0].result(timeout="1ms")
    actor.open().result(PATIENCE)
    assert one.gather(waits) == [3, 3, 3]
    with pytest.raises(KeyError, match="no"):
        actor.fails().result(PATIENCE)
    counter = one.submit(Counter, actor=True).result(PATIENCE)
    assert [actor.asks(counter).result(PATIENCE) for _ in range(2)] == [3, 4]
    assert actor.asks_in_a_loop(4, separate_thread=True).result(PATIENCE) == 5
    assert one.sync(actor.asks_in_a_loop, 5) == 6


class Composite:
    """Makes an actor, and is a result itself."""

    def __init__(self) -> None:
        self.actor: Any = get_client().submit(Counter, 7, actor=True).result()

    def __getstate__(self) -> Any:
        return self.actor

    def __setstate__(self, state: Any) -> None:
        self.actor = state


def test_results_with_actors_inside(one: Client) -> None:
    made = one.submit(Composite, pure=False).result(PATIENCE)
    assert made.actor.add().result(PATIENCE) == 8


def test_the_worker_of_an_actor(one: Client) -> None:
    class Knows:
        def address(self) -> str:
            return get_worker().address

    actor: Any = one.submit(Knows, actor=True).result(PATIENCE)
    assert actor.address().result(PATIENCE) == f"tcp://{actor._address}"


# ---- futures of calls ----------------------------------------------------------------------------


def test_futures_of_calls_are_futures(one: Client) -> None:
    actor: Any = one.submit(Counter, actor=True).result(PATIENCE)
    futures = [actor.add() for _ in range(5)]
    assert all(isinstance(f, Future) for f in futures)
    assert sorted(f.result() for f in as_completed(futures)) == one.gather(futures) == [1, 2, 3, 4, 5]
    assert wait(futures, timeout=PATIENCE).done == set(futures)
    assert sorted(r for _, r in as_completed(futures, with_results=True)) == [1, 2, 3, 4, 5]
    assert one.submit(inc, futures[0]).result(PATIENCE) == 2
    failed = actor.fail()
    with pytest.raises(KeyError, match="no"):
        one.gather([failed])
    assert one.gather([failed, futures[1]], errors="skip") == [2]
    ((found, (kind, error, _)),) = as_completed([failed], with_results=True, raise_errors=False)
    assert found is failed and kind is KeyError and isinstance(error, KeyError)
    with pytest.raises(KeyError, match="no"):
        one.submit(inc, failed).result(PATIENCE)
    assert (
        one.submit(lambda: [get_client().submit(Counter, actor=True).result().add()]).result(PATIENCE)[0].result() == 1
    )


# ---- the socket ----------------------------------------------------------------------------------


@pytest.fixture
def host() -> Iterator[Any]:
    """Makes an actor in this process. Yields a function that calls it."""
    key, ended = os.urandom(_host.KEY_BYTES), threading.Event()
    ready: list[Any] = []

    def live() -> None:
        made = _host.Host(Counter(), name, 1, key, handshake=0.05)
        ready.append(made)
        ended.set()
        with contextlib.suppress(SystemExit):
            made.serve()
        made.close()

    name = os.urandom(8).hex()
    thread = threading.Thread(target=live)
    thread.start()
    assert ended.wait(PATIENCE)

    def call(method: str, *args: Any) -> Any:
        with _host.connect(name, 1, key) as actor:
            _host.send(actor, pickle.dumps((method, args, {})))
            return pickle.loads(_host.receive(actor)).value

    call.name = name  # type: ignore[attr-defined]
    yield call
    with pytest.raises(EOFError):
        call("leave")
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_strangers_do_not_disturb_an_actor(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host("add", 2) == 2
    # One that says nothing is sent away, and others are not kept waiting by it.
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(_host.address(host.name, 1))
        assert host("add", 2) == 4
        silent.settimeout(PATIENCE)
        assert silent.recv(1) == b""
    for wrong in (b"", b"x", bytes(_host.KEY_BYTES)):
        with _host.connect(host.name, 1, wrong) as stranger:
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(PATIENCE)
            assert stranger.recv(1) == b""
    assert host("add", 2) == 6
    # Processes of other users are no callers, and no actors.
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    with pytest.raises(ConnectionError, match="another user"):
        host("add", 2)
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(_host.address(host.name, 1))
        other.settimeout(PATIENCE)
        assert other.recv(1) == b""
    monkeypatch.undo()
    assert host("add", 2) == 8
