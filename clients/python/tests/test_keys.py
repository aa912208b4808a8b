"""Keys of results: every type of key that Dask uses works, and a key or a task that cannot be sent
fails alone."""

from __future__ import annotations

import itertools
import pickle
import random
import threading
import traceback
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE
from millrace import Client, LocalCluster, errors
from millrace._session._session import Session
from millrace._task_states._state import Spec, State
from millrace._values import _keys


def inc(x: int) -> int:
    return x + 1


ORDINARY = ["x", "x-1", "sum-0a1b", "('x', 1)", "1", "1.0", "None", "b'x'", "naïve 表", "a b", "\x00", "x=1"]
OTHERS: list[Any] = [
    "", "=", "=1", "=('x', 1)", "==x", "\udc80", "=\udc80",
    0, 1, -1, 1 << 70, 1.0, 0.1, -0.0, 1e300, float("inf"), float("-inf"), True, False, b"", b"x", b"\xff",
    (), ("x",), ("x", 1), ("x", "1"), ("x", 1.0), ("x", None), ("x-1",), (("x",), 1), ("x", (1, 2)), ("x", 1, 2), (b"x", 1),
    ("\udc80",), ("'", '"'), ("x', 1",),
]  # fmt: skip


def test_each_key_has_a_text_of_its_own() -> None:
    keys = [*ORDINARY, *OTHERS]
    wires = [_keys.to_wire(k) for k in keys]
    assert len(set(wires)) == len(keys)
    assert wires[: len(ORDINARY)] == ORDINARY
    for key, wire in zip(keys, wires, strict=True):
        wire.encode()
        again = _keys.from_wire(wire)
        assert (type(again), repr(again)) == (type(key), repr(key))


def test_random_keys_there_and_back() -> None:
    dice = random.Random(1)

    def make(depth: int) -> Any:
        kind = dice.randrange(7 if depth else 5)
        if kind == 0:
            return "".join(dice.choice("x='\"\\(),-1 b\n\udc80é") for _ in range(dice.randrange(6)))
        if kind == 1:
            return dice.randrange(-3, 3)
        if kind == 2:
            return dice.choice([0.0, 0.5, -1.0, 1e22, float("inf")])
        if kind == 3:
            return bytes(dice.randrange(256) for _ in range(dice.randrange(3)))
        if kind == 4:
            return dice.choice(["x", None, True]) if depth < 3 else "x"
        return tuple(make(depth - 1) for _ in range(dice.randrange(4)))

    seen: dict[str, str] = {}
    for _ in range(20_000):
        key = make(3)
        wire = _keys.to_wire(key)
        assert seen.setdefault(wire, repr(key)) == repr(key)
        assert repr(_keys.from_wire(wire)) == repr(key)


def test_numpy_scalars_are_their_numbers() -> None:
    assert _keys.to_wire(("x", np.int64(1))) == _keys.to_wire(("x", 1))
    assert _keys.to_wire(np.str_("x")) == "x"


@pytest.mark.parametrize("key", [object(), {"x"}, ["x"], ("x", [1]), {}, 1j])
def test_invalid_keys_are_refused_at_the_call(client: Client, key: Any) -> None:
    with pytest.raises(TypeError, match=r"key: a .* cannot name a result"):
        client.submit(inc, 1, key=key)
    with pytest.raises(TypeError, match=r"key\[1\]: a .* cannot name a result"):
        client.map(inc, [1, 2], key=["a", key])
    with pytest.raises(TypeError, match=r"key: a .* cannot name a result"):
        client.scatter(1, key=key)
    assert client.submit(inc, 1).result(PATIENCE) == 2


@pytest.mark.parametrize("key", ["x" * 1025, "é" * 513, ("x" * 1020, 1), float("nan"), ("x", float("nan"))])
def test_long_keys_and_nan_are_refused_at_the_call(client: Client, key: Any) -> None:
    with pytest.raises(ValueError, match="key: "):
        client.submit(inc, 1, key=key)
    assert client.submit(inc, 1, key="x" * 1024).result(PATIENCE) == 2


def test_all_of_dasks_kinds_of_keys(client: Client, cluster: LocalCluster) -> None:
    keys = [("x", 1), "x-1", 1, "1", 1.5, b"x", ("x", ("y", 2), None), "=1", "('x', 1)"]
    futures = [client.submit(inc, n, key=k) for n, k in enumerate(keys)]
    assert [f.key for f in futures] == keys
    assert client.gather(futures) == [n + 1 for n in range(len(keys))]
    assert client.submit(sum, futures).result(PATIENCE) == sum(range(1, len(keys) + 1))
    assert set(client.who_has(futures)) == set(keys)
    assert set(keys) <= set(itertools.chain.from_iterable(client.has_what().values()))
    assert "ENDED" in client.explain(("x", 1))
    mapped = client.map(inc, [1, 2], key=[("m", 0), ("m", 1)])
    assert [f.key for f in mapped] == [("m", 0), ("m", 1)]
    assert client.gather(mapped) == [2, 3]
    assert [f.key for f in client.map(inc, [1, 2], key=7)] == [(7, 0), (7, 1)]
    with pytest.raises(errors.InvalidRequestError, match=r"\('x', 1\).*KEY_CONFLICT"):
        client.submit(inc, 5, key=("x", 1)).result(PATIENCE)
    with Client(cluster) as other:
        client.publish_dataset("of-tuples", futures[:3])
        try:
            assert [f.key for f in other.get_dataset("of-tuples")] == keys[:3]
        finally:
            client.unpublish_dataset("of-tuples")


def test_an_error_names_the_key_as_it_was_given(client: Client) -> None:
    failed = client.submit(lambda: (i for i in ()), key=("odd", 1))
    with pytest.raises(errors.ResultNotSerialisableError) as caught:
        failed.result(PATIENCE)
    assert caught.value.key == ("odd", 1)


def test_scattered_dicts_name_their_elements(client: Client) -> None:
    put = client.scatter({"alpha": 1, ("alpha", 0): 2, 3: 4, frozenset("x"): 5})
    assert [f.key for f in put.values()][:3] == ["alpha", ("alpha", 0), 3]
    assert client.gather(put) == {"alpha": 1, ("alpha", 0): 2, 3: 4, frozenset("x"): 5}
    assert client.gather(client.scatter({"alpha": 1})) == {"alpha": 1}


def test_other_data_under_a_key_is_a_conflict(client: Client, cluster: LocalCluster) -> None:
    first = client.scatter(1, key="mine")
    with pytest.raises(errors.InvalidRequestError, match="KEY_CONFLICT"):
        client.scatter(2, key="mine")
    with Client(cluster) as other, pytest.raises(errors.InvalidRequestError, match="KEY_CONFLICT"):
        other.scatter(2, key="mine")
    with Client(cluster) as other:
        assert other.scatter(1, key="mine").result(PATIENCE) == 1
    assert first.result(PATIENCE) == 1
    first.release()
    assert client.scatter(2, key="mine").result(PATIENCE) == 2
    with pytest.raises(ValueError, match="key: 'mine' cannot name each element of a list"):
        client.scatter([1, 2], key="mine")


@pytest.mark.parametrize("key", [5, ("x", 1), b"b", "=5", 1.5])
def test_texts_have_keys_as_users_write_them(client: Client, key: Any) -> None:
    with pytest.raises(errors.NotFoundError) as caught:
        client.explain(key)
    text = str(caught.value)
    assert f"no task with the key {key!r} in" in text and f"={key!r}" not in text, text
    assert text.startswith("explain: ") and "client.has_what()" in text and "ListTasks" not in text, text

    def fail() -> None:
        raise ValueError("x == 5 =5")

    future = client.submit(fail, key=key)
    error = future.exception(PATIENCE)
    assert error is not None and str(error) == "x == 5 =5"
    assert f"in task {key!r} on worker" in "".join(traceback.format_exception(error))
    follower = client.submit(inc, future, key=("after", key))
    error = follower.exception(PATIENCE)
    assert error is not None and f"in task {key!r} on worker" in "".join(traceback.format_exception(error))
    assert f"input {key!r} failed" in client.explain(follower), client.explain(follower)
    lock = client.submit(threading.Lock, key=("lock", key))
    assert f"the result of ('lock', {key!r}), a" in str(lock.exception(PATIENCE)), lock.exception()


def test_a_key_that_was_just_released_is_free(client: Client) -> None:
    for n in range(50):
        assert client.submit(inc, n, key="again").result(PATIENCE) == n + 1
        assert client.scatter(n, key="again-scattered").result(PATIENCE) == n
    # Data that are reached by a pickled future count as the same as scattered data.
    put = client.scatter(1234)
    data = pickle.dumps(put)
    del put
    with pytest.raises(errors.NotFoundError):
        client.session.flush()
        pickle.loads(data)
    put = client.scatter(1234)
    again = pickle.loads(pickle.dumps(put))
    assert client.scatter(1234).key == again.key


def test_graphs_with_keys_of_all_kinds(client: Client) -> None:
    graph = {
        ("x", 1): 11, ("x", "1"): 12, "x-1": 13, 1: 14, "1": 15, b"1": 16, 1.5: 17, frozenset("a"): 18, "long" * 300: 19,
        "sum": (sum, [("x", 1), ("x", "1"), "x-1", 1, "1", b"1", 1.5, frozenset("a"), "long" * 300]),
    }  # fmt: skip
    assert client.get(graph, ["sum", ("x", 1), "x-1", 1, "1"]) == [135, 11, 13, 14, 15]


@pytest.mark.parametrize("error", [TypeError, ValueError, MemoryError, RuntimeError, KeyError, RecursionError])
def test_a_task_that_cannot_be_encoded_fails_alone(client: Client, error: type[Exception]) -> None:
    """Any error of one task, at any place in the batch."""

    class Poisoned(Spec):
        __slots__ = ()

        @property
        def options(self) -> bytes:  # type: ignore[override]
            raise error("poisoned")

        @options.setter
        def options(self, _: bytes) -> None:
            pass

    session: Session = client.session
    dice = random.Random(error.__name__)
    for attempt in range(5):
        places = set(dice.sample(range(40), 4))
        good: dict[int, Any] = {}
        bad: list[State] = []
        # The sending thread blocks at its first request, so the others form one batch.
        with session.changed:
            first = client.submit(inc, -1, pure=False)
            for n in range(40):
                if n in places:
                    state, _ = session.state(f"poison-{error.__name__}-{attempt}-{n}")
                    session.submit([Poisoned(state.key, (1, "bench.noop", b""), [], b"", b"", state)])
                    bad.append(state)
                else:
                    good[n] = client.submit(inc, n, pure=False)
        assert first.result(PATIENCE) == 0
        assert client.gather(good, timeout=PATIENCE) == {n: n + 1 for n in good}
        assert session.wait(bad, PATIENCE)
        assert all(isinstance(s.failure, error) for s in bad)
