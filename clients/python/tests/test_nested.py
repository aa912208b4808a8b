"""Tasks that wait for tasks."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import (
    AsyncClient,
    Client,
    Environ,
    Event,
    Future,
    LocalCluster,
    Lock,
    Queue,
    Reschedule,
    as_completed,
    fire_and_forget,
    get_client,
    get_task_info,
    get_worker,
    rejoin,
    secede,
    wait,
)
from millrace import worker_client as with_client
from millrace.errors import AuthenticationError


@pytest.fixture(scope="module")
def single() -> Iterator[LocalCluster]:
    """A cluster with one slot in all."""
    before = os.environ.get("MILLRACE_SLOTS")
    os.environ["MILLRACE_SLOTS"] = "1"
    try:
        with LocalCluster(1, memory_limit="64MiB", device="host") as cluster:
            yield cluster
    finally:
        if before is None:
            del os.environ["MILLRACE_SLOTS"]
        else:
            os.environ["MILLRACE_SLOTS"] = before


@pytest.fixture
def one(single: LocalCluster) -> Iterator[Client]:
    with Client(single) as client:
        yield client


def fib(n: int, pure: bool) -> int:
    if n < 2:
        return n
    client = get_client()
    a, b = (client.submit(fib, n - k, pure, pure=pure) for k in (1, 2))
    return a.result() + b.result()


def inc(x: int) -> int:
    return x + 1


def pid() -> int:
    return os.getpid()


@pytest.mark.parametrize("pure", [True, False])
def test_recursion_ends_in_one_slot(one: Client, pure: bool) -> None:
    assert one.submit(fib, 5, pure, pure=pure).result(PATIENCE) == 5


async def fib_in_coroutines(n: int) -> int:
    if n < 2:
        return n
    client = get_client()
    a, b = (client.submit(fib_in_coroutines, n - k, pure=False) for k in (1, 2))
    return await a + await b


async def fib_at_once(n: int) -> int:
    if n < 2:
        return n
    client = get_client()
    return sum(await asyncio.gather(*[client.submit(fib_at_once, n - k, pure=False) for k in (1, 2)]))


def fib_in_a_loop(n: int) -> int:
    async def main() -> int:
        async with AsyncClient() as client:
            futures = client.map(fib_in_a_loop, [n - 1, n - 2], pure=False)
            return sum([await f async for f in as_completed(futures)])

    return asyncio.run(main()) if n > 1 else n


@pytest.mark.parametrize("f", [fib_in_coroutines, fib_at_once, fib_in_a_loop])
def test_coroutines_give_the_slot_back(one: Client, f: Any) -> None:
    # One process after the other starts for tasks that others wait for.
    assert one.submit(f, 5, pure=False).result(3 * PATIENCE) == 5
    assert one.submit(inc, 1, pure=False).result(PATIENCE) == 2


async def awaits(gate: Gate) -> str:
    return await get_client().submit(gate_passed, gate, key="inner of a coroutine")


def test_a_coroutine_that_waits_is_cancelled(one: Client, gate: Gate) -> None:
    outer = one.submit(awaits, gate, key="outer coroutine")
    gate.wait()
    eventually(lambda: "it waits for tasks" in str(one.explain(outer)))
    outer.cancel()
    gate.open()
    assert one.submit(inc, 1, pure=False).result(PATIENCE) == 2


def every_wait(x: int) -> list[Any]:
    client = get_client()
    results: list[Any] = [client.submit(inc, x, pure=False).result()]
    results.append(client.gather(client.map(inc, [x, x + 1], pure=False)))
    results.append(len(wait(client.map(inc, [x, x + 1], pure=False)).done))
    results += [f.result() for f in as_completed([client.submit(inc, x, pure=False)])]
    with client.get_executor() as pool:
        results.append(pool.submit(inc, x).result())
    return results


def test_every_wait_gives_the_slot_back(one: Client) -> None:
    assert one.submit(every_wait, 1).result(PATIENCE) == [2, [2, 3], 2, 2, 2]


def waits_for(gate: Gate) -> str:
    return get_client().submit(gate_passed, gate, key="inner").result() + " outside"


def gate_passed(gate: Gate) -> str:
    gate.pass_through()
    return "inside"


def test_explain_says_that_a_task_waits_for_tasks(one: Client, gate: Gate) -> None:
    outer = one.submit(waits_for, gate, key="outer")
    gate.wait()
    eventually(lambda: "it waits for tasks" in str(one.explain(outer)))
    gate.open()
    assert outer.result(PATIENCE) == "inside outside"
    eventually(lambda: "it waits for tasks" not in str(one.explain(outer)))


def test_a_task_that_waits_is_cancelled(one: Client, gate: Gate) -> None:
    outer = one.submit(waits_for, gate, key="outer")
    gate.wait()
    eventually(lambda: "it waits for tasks" in str(one.explain(outer)))
    outer.cancel()
    gate.open()
    assert one.submit(inc, 1, pure=False).result(PATIENCE) == 2


def secedes(gate: Gate, here: Gate) -> str:
    secede()
    secede()
    here.arrive()
    gate.pass_through()
    rejoin()
    rejoin()
    return "done"


def test_secede_and_rejoin(one: Client, gate: Gate, tmp_path: Any) -> None:
    here = Gate(tmp_path / "here").make()
    outer = one.submit(secedes, gate, here)
    here.wait()
    assert one.submit(inc, 1, pure=False).result(PATIENCE) == 2  # in the only slot
    gate.open()
    assert outer.result(PATIENCE) == "done"
    assert one.submit(inc, 1, pure=False).result(PATIENCE) == 2
    here.close()


def waits_for_an_event(name: str) -> list[Any]:
    waited = Event(name).wait(PATIENCE)
    with Lock(name):
        return [waited, Queue(name).get(PATIENCE)]


def tells(name: str) -> None:
    Event(name).set()
    Queue(name).put("word")


def test_waits_for_shared_state_give_the_slot_back(one: Client) -> None:
    waiting = one.submit(waits_for_an_event, "nested")
    eventually(lambda: "it waits for tasks" in str(one.explain(waiting)))
    one.submit(tells, "nested", pure=False).result(PATIENCE)
    assert waiting.result(PATIENCE) == [True, "word"]


def secedes_for_good() -> str:
    secede()
    return "gone"


def test_a_task_may_end_without_rejoining(one: Client) -> None:
    assert one.gather([one.submit(secedes_for_good, pure=False) for _ in range(5)]) == ["gone"] * 5
    assert one.submit(inc, 1, pure=False).result(PATIENCE) == 2


def uses_worker_client(x: int) -> int:
    with with_client() as client:
        return sum(client.gather(client.map(inc, range(x))))


def test_worker_client(one: Client) -> None:
    assert one.submit(uses_worker_client, 4).result(PATIENCE) == 10


def computes_elsewhere() -> tuple[bool, bool]:
    from dask.delayed import delayed

    call: Any = delayed(pid)
    return call().compute() != os.getpid(), call().persist().compute() != os.getpid()


def test_a_task_computes_collections_on_the_cluster(one: Client) -> None:
    assert one.submit(computes_elsewhere, pure=False).result(PATIENCE) == (True, True)


def in_threads(x: int) -> list[int]:
    def call(k: int) -> int:
        with with_client() as client:
            return client.submit(inc, k, pure=False).result()

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(call, range(x)))


def test_threads_of_a_task_give_its_slot_back(one: Client) -> None:
    assert one.submit(in_threads, 8, pure=False).result(PATIENCE) == list(range(1, 9))
    assert one.submit(inc, 1, pure=False).result(PATIENCE) == 2


def test_secede_outside_of_a_task() -> None:
    with pytest.raises(ValueError, match=r"secede\(\) is for the function of a task"):
        secede()
    with pytest.raises(ValueError, match=r"rejoin\(\) is for the function of a task"):
        rejoin()
    with pytest.raises(ValueError, match=r"worker_client\(\) is for the function of a task"), with_client():
        pass


def many_waiters(n: int) -> int:
    client = get_client()
    return sum(client.gather([client.submit(uses_worker_client, k, pure=False) for k in range(n)]))


def test_processes_are_bounded(one: Client) -> None:
    assert one.submit(many_waiters, 20).result(PATIENCE) == sum(sum(range(1, k + 1)) for k in range(20))
    # The slot, and a process that took over for it.
    eventually(lambda: len(set(one.gather([one.submit(pid, pure=False) for _ in range(50)]))) <= 2)


def too_deep(n: int) -> int:
    return 0 if not n else get_client().submit(too_deep, n - 1, pure=False).result() + 1


def test_too_many_waiting_tasks_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_SLOTS", "1")
    monkeypatch.setenv("MILLRACE_MAX_WAITING", "2")
    with LocalCluster(1, memory_limit="64MiB", device="host") as cluster, Client(cluster) as client:
        assert client.submit(too_deep, 2).result(PATIENCE) == 2
        with pytest.raises(Exception, match="--max-waiting"):
            client.submit(too_deep, 9).result(PATIENCE)


def returns_futures(n: int) -> list[Future[int]]:
    client = get_client()
    return [client.submit(inc, k, pure=False) for k in range(n)]


def test_tasks_return_futures(one: Client) -> None:
    for _ in range(3):
        futures = one.submit(returns_futures, 5, pure=False).result(PATIENCE)
        assert one.gather(futures) == [1, 2, 3, 4, 5]


def asks_to_run_again(path: str) -> str:
    mark = Path(path)
    if not mark.exists():
        mark.write_text(get_worker().name)
        raise Reschedule
    return f"{mark.read_text()} {get_worker().name}"


def test_reschedule_goes_to_another_worker(client: Client, tmp_path: Any) -> None:
    first, second = client.submit(asks_to_run_again, str(tmp_path / "first"), retries=0).result(PATIENCE).split()
    assert first != second


def test_reschedule_in_the_only_slot(one: Client, tmp_path: Any) -> None:
    assert one.submit(asks_to_run_again, str(tmp_path / "first")).result(PATIENCE)


def own_priority() -> int:
    info = get_task_info()
    assert info is not None
    return info.priority


def priorities() -> list[int]:
    client = get_client()
    here = own_priority()
    inherited = client.submit(own_priority, pure=False)
    mapped = client.map(lambda _: own_priority(), [0], pure=False)
    chosen = client.submit(own_priority, pure=False, priority=here + 1)
    graph = client.get({"x": (own_priority,)}, "x")
    with dask.annotate(priority=here + 2):
        annotated = dask.delayed(own_priority)(pure=False)
    collections = dask.compute(dask.delayed(own_priority)(pure=False), annotated, optimize_graph=False)
    return [here, inherited.result(), *client.gather(mapped), chosen.result(), graph, *collections]


def test_tasks_inherit_the_priority_of_the_task_that_submits_them(one: Client) -> None:
    assert one.submit(priorities, priority=7, pure=False).result(PATIENCE) == [7, 7, 7, 8, 7, 7, 9]
    assert one.submit(priorities, priority=-7, pure=False).result(PATIENCE) == [-7, -7, -7, -6, -7, -7, -5]
    assert one.submit(own_priority, pure=False).result(PATIENCE) == 0


def test_a_task_joins_one_of_another_priority(one: Client) -> None:
    held = one.submit(inc, 70)
    outer = one.submit(lambda: get_client().submit(inc, 70).result(), priority=1)
    assert outer.result(PATIENCE) == held.result(PATIENCE) == 71


def set_attribute() -> str:
    worker: Any = get_worker()
    worker.mine = getattr(worker, "mine", "") + "x"
    assert Path(worker.local_directory).is_dir()
    return worker.mine


def test_get_worker(one: Client) -> None:
    # The slot may have several processes after tasks that waited.
    eventually(lambda: one.submit(set_attribute, pure=False).result(PATIENCE) != "x")
    with pytest.raises(ValueError, match=r"get_worker\(\) is for the function of a task"):
        get_worker()
    address = one.submit(lambda: get_worker().address, pure=False).result(PATIENCE)
    (worker,) = one.scheduler_info()["workers"].values()
    assert address == f"tcp://{worker['address']}"
    assert one.run(lambda: get_worker().name, workers=address) == {worker["name"]: worker["name"]}


def reach_others() -> list[str]:
    inner, refused = get_client(), []
    for order in (lambda: inner.run(os.getpid), lambda: inner.register_plugin(Environ({"A": "1"}))):
        try:
            order()
        except AuthenticationError as e:
            refused.append(str(e))
    return refused


def test_tasks_run_no_functions_in_executors_of_others(one: Client) -> None:
    refused = one.submit(reach_others).result(PATIENCE)
    assert len(refused) == 2 and all("role" in text and "task" in text for text in refused), refused


def marks(path: str, gate: Gate) -> None:
    gate.pass_through()
    Path(path).touch()


def test_fire_and_forget(one: Client, gate: Gate, tmp_path: Any) -> None:
    mark = tmp_path / "mark"
    fire_and_forget(one.submit(marks, str(mark), gate))
    gate.wait()
    gc.collect()
    gate.open()
    eventually(mark.exists)


def namespace_of_a_computation() -> str:
    get_client()

    def namespace() -> str:
        info = get_task_info()
        return "" if info is None else info.namespace

    return dask.delayed(namespace)().compute()  # pyright: ignore


def test_a_task_computes_collections_in_its_own_namespace(single: LocalCluster) -> None:
    """A process runs tasks of several namespaces."""
    with Client(single, namespace="one") as one, Client(single, namespace="two") as two:
        for _ in range(2):
            assert one.submit(namespace_of_a_computation, pure=False).result(PATIENCE) == "one"
            assert two.submit(namespace_of_a_computation, pure=False).result(PATIENCE) == "two"
