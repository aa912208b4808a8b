"""Templates: functions that submit tasks, recorded once and submitted again and again."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE
from millrace import AsyncClient, Client, LocalCluster, errors, get_client, native, template
from millrace._pb.millrace.v1 import submission_pb2, task_pb2


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=1, memory_limit="256MiB") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


def pair(a: Any, b: Any = None, *, c: Any = ()) -> Any:
    return [a, b, c]


def total(numbers: Any) -> float:
    return float(np.sum(numbers))


VALUES: list[Any] = [
    None, True, 7, -(1 << 70), 2.5, "ä", "\ud800", b"b", 1j, (1, "t"), [1, (2,)], {"b": 1, "a": [None]}, {3: 4}, {5},
    np.arange(3), np.float32(1.5),
]  # fmt: skip


def test_instances_compute_what_the_function_computes_plainly(client: Client) -> None:
    """Random graphs with values of all types have the same results both ways."""
    for seed in range(8):
        rng = random.Random(seed)
        steps = [(rng.randrange(5), rng.randrange(1 << 30), rng.random() < 0.5) for _ in range(rng.randrange(1, 12))]

        def graph(client: Any, x: Any, y: Any, z: Any, steps: Any = steps) -> Any:
            made, kept = [client.submit(pair, x, c=(1, 2))], []
            for kind, number, keep in steps:
                last = made[number % len(made)]
                if kind == 0:
                    made.append(client.submit(pair, last, [y, {"z": z, "a": last}], c=z))
                elif kind == 1:
                    made.append(client.submit(pair, (number, "constant"), made[0], c=y))
                elif kind == 2:
                    made.append(client.submit(native("core.list"), number, [number, 2], (1, 2)))
                elif kind == 3:
                    made += client.map(pair, [last, x], [y, number])
                else:
                    made.append(client.submit("builtins:list", [z, last], retries=2, key=f"own-{len(made)}"))
                if keep:
                    kept.append(made[-1])
            return {"kept": kept, "last": (made[-1], made[0])}

        recorded = client.template(graph)
        future = client.submit(pair, 1, "outside", pure=False)
        calls = [tuple(rng.choice([*VALUES, future]) for _ in range(3)) for _ in range(4)]
        for args in calls:
            got, plain = recorded(*args), graph(renaming(client), *args)
            assert set(got) == {"kept", "last"} and type(got["last"]) is tuple
            both = client.gather([[*got["kept"], *got["last"]], [*plain["kept"], *plain["last"]]])
            assert repr(both[0]) == repr(both[1]), (seed, args)


class renaming:
    """A client whose tasks have keys of their own, as those of an instance do."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.map = client.map

    def submit(self, *args: Any, key: Any = None, **kwargs: Any) -> Any:
        return self._client.submit(*args, pure=False, **kwargs)


def test_many_instances_are_one_submission(client: Client) -> None:
    @client.template
    def squares(client: Any, n: int) -> Any:
        numbers = client.submit(native("array.arange"), 0, n, 1, key="numbers")
        return client.submit(total, client.submit(native("array.map"), "x0*x0", numbers))

    before = client.session.graphs
    many = squares.map(range(500))
    assert client.gather(many) == [sum(i * i for i in range(n)) for n in range(500)]
    assert len({f.key for f in many}) == 500 and many[0].key.startswith("squares-")
    assert squares(4).result() == 14.0 and squares.__wrapped__(client, 4).result() == 14.0
    assert len(set(client.session.graphs) - set(before)) <= 1
    assert squares.map([]) == []


def test_the_parameters_in_static_have_values(client: Client) -> None:
    recorded: list[Any] = []

    @client.template(static=["depth"])
    def chain(client: Any, x: Any, *, depth: int = 1) -> Any:
        recorded.append(depth)
        for _ in range(depth):
            x = client.submit(pair, x)
        return x

    assert chain(1, depth=2).result() == [[1, None, ()], None, ()]
    assert chain(2, depth=1).result() == [2, None, ()]
    assert chain(3, depth=2).result() == [[3, None, ()], None, ()]
    assert chain(client.submit(pair, 0), depth=1).result() == [[0, None, ()], None, ()]
    assert recorded == [2, 1, 1]


def test_a_template_without_a_client_uses_the_current_one(client: Client) -> None:
    @template
    def twice(client: Any, x: int) -> Any:
        return [client.submit(pair, x), client.submit(pair, x)]

    assert get_client() is client
    first, second = twice(5)
    assert first.key != second.key and first.result() == second.result() == [5, None, ()]


def test_a_template_that_the_scheduler_lost_is_sent_again(client: Client) -> None:
    @client.template
    def one(client: Any, x: int) -> Any:
        return client.submit(pair, x)

    for round in range(2):
        assert one(round).result() == [round, None, ()]
        request = submission_pb2.SubmitRequest(header=submission_pb2.SubmitHeader(client_id=client.session.client_id))
        for n in range(1000):
            request.templates.add(tasks=[task_pb2.TaskSpec(key=f"{round}-{n}", op="bench.noop")])
        client.session.call("SubmitBatch", request)
        shape = next(iter(one._shapes.values()))
        probe = submission_pb2.SubmitRequest(header=request.header)
        probe.template_instances.add(template_hash=shape.hash).instances.add(packed_values=[b""])
        assert client.session.call("SubmitBatch", probe).missing_templates == [shape.hash]


def test_refusals_reach_the_futures(client: Client) -> None:
    @client.template
    def one(client: Any, x: Any) -> Any:
        return client.submit(pair, x)

    with pytest.raises(errors.SerialisationError, match="pickled"):
        one(threading.Lock())
    refused = client.submit(native("no.such.op"))
    future = one(refused)
    with pytest.raises(errors.MillraceError, match=r"no\.such\.op"):
        future.result(PATIENCE)
    assert one(1).result(PATIENCE) == [1, None, ()]


def test_mistakes_are_named(client: Client) -> None:
    future = client.submit(pair, 1)

    def expect(words: str, function: Any, *args: Any, kind: Any = TypeError, static: Any = ()) -> None:
        with pytest.raises(kind, match=words):
            client.template(static=static)(function)(*args)

    expect("has no value", lambda client, x: client.submit(pair, x + 1 if x else x), 1)
    expect("static=", lambda client, x: [client.submit(pair) for _ in x], [1])
    for operation in (lambda x: x + 1, lambda x: 1 - x, lambda x: -x, lambda x: x @ x, lambda x: x**2):
        words = r"argument 'x' of template lambda has no value.*no operator works.*client\.submit\(operator\.add"
        expect(words, lambda client, x, operation=operation: client.submit(pair, operation(x)), 1)
    expect(
        r"the result of task 'pair-0' of template lambda has no value.*no \.result: .*return it",
        lambda client, x: client.submit(pair, x).result(),
        1,
        kind=AttributeError,
    )
    expect("of template lambda.*no operator", lambda client, x: client.submit(pair, x) + 1, 1)
    expect(r"no \.shape: read it in a task", lambda client, x: client.submit(pair, x.shape), 1, kind=AttributeError)
    expect(r"no \.key: give it to tasks", lambda client, x: client.submit(pair, x.key), future, kind=AttributeError)
    expect("actor=.*only Client.submit", lambda client, x: client.submit(pair, x, actor=True), 1)
    expect("has no value", lambda client, x: client.submit(pair, f"{x}"), 1)
    expect("in lists, and in dicts", lambda client, x: client.submit(pair, (x,)), 1)
    expect("in lists, and in dicts", lambda client, x: client.submit(pair, {1: x}), future)
    expect("must return futures", lambda client: [], kind=TypeError)
    expect("returned a builtins.int", lambda client: 1)
    expect(
        "used by two tasks",
        lambda client: [client.submit(pair, key="k"), client.submit(pair, key="k")],
        kind=ValueError,
    )
    expect("the end of the key", lambda client: client.submit(pair, key=("x", 1)))
    expect("gather: a template records.*in template lambda", lambda client, x: client.gather(x), 1, kind=AttributeError)
    expect("no typed value", lambda client: client.submit(native("core.list"), {1}), kind=errors.SerialisationError)
    expect(
        "a value for lambda: a builtins.set is no typed value",
        lambda client, x: client.submit(native("core.list"), x),
        {1},
        kind=errors.SerialisationError,
    )
    expect("hashable", lambda client, x: client.submit(pair, x), [1], static=["x"])
    expect("no parameter y", lambda client, x: client.submit(pair, x), 1, static=["y"])
    expect("no parameter for the client", lambda: None)
    expect("missing 1 required", lambda client, x: client.submit(pair, x))


def test_map_takes_lists_of_one_length(client: Client) -> None:
    @client.template
    def both(client: Any, a: Any, b: Any = 0, *, c: Any = 0) -> Any:
        return client.submit(pair, a, b, c=c)

    assert client.gather(both.map([1, 2], [3, 4], c=5)) == [[1, 3, 5], [2, 4, 5]]
    assert both.map([]) == []
    with pytest.raises(ValueError, match=r"both\.map\(\): the iterables have different lengths: 3, 2; .*by keyword"):
        both.map([1, 2, 3], range(2))
    with pytest.raises(ValueError, match="lengths: 2, more than 2;"):
        both.map(iter([1, 2]), itertools.count())
    with pytest.raises(TypeError, match="needs an iterable"):
        both.map()


async def test_in_an_event_loop(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster) as client:

        @client.template
        def one(client: Any, x: int) -> Any:
            return client.submit(pair, x)

        assert await one(3) == [3, None, ()]
        assert await client.gather(one.map([1, 2])) == [[1, None, ()], [2, None, ()]]


def test_a_template_is_much_shorter_than_its_tasks(client: Client) -> None:
    """Per task, an instance of ten tasks takes less than a fifth of the bytes of plain ones."""

    def graph(client: Any, x: Any) -> Any:
        last = client.submit(pair, x)
        for n in range(9):
            last = client.submit(pair, last, n)
        return last

    sent: list[int] = []
    submit = client.session.connection.submit

    def counting(chunks: Any, *args: Any) -> Any:
        sent.append(sum(chunk.ByteSize() for chunk in chunks))
        return submit(chunks, *args)

    recorded = client.template(graph)
    recorded(0).result()
    client.session.connection.submit = counting  # type: ignore[method-assign]
    short = [recorded(n) for n in range(1, 20)]
    client.session.flush()
    template_bytes = sum(sent)
    sent.clear()
    plain = [graph(client, n) for n in range(1, 20)]
    client.session.flush()
    assert template_bytes * 5 < sum(sent)
    assert client.gather(short) == client.gather(plain)


def test_the_output_of_all_tasks_is_shown(cluster: LocalCluster) -> None:
    """Also of tasks that no future holds."""
    words: set[str] = set()
    both = threading.Event()

    def show(line: Any) -> None:
        words.update(line.text.split())
        if {"inner", "outer"} <= words:
            both.set()

    with Client(cluster, output=show) as client:

        @client.template
        def printing(client: Any, text: str) -> Any:
            return client.submit(print, "outer", client.submit(print, text))

        printing("inner").result(PATIENCE)
        assert both.wait(PATIENCE), words
