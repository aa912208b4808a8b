"""Typed results without arrays (lists of strings) count against the workers' memory as others do:
they are spilled and read back."""

from __future__ import annotations

from conftest import PATIENCE, eventually
from millrace import Client, LocalCluster
from millrace.ops import native

_TASKS = 300
_TEXTS = 40


def _text(number: int) -> str:
    return f"{number}:" + "ä" * 15_000


def _lists(client: Client) -> list[object]:
    """Returns lists with 90 KB of text each in their headers, and without frames."""
    texts = client.map(_text, range(_TEXTS))
    return [client.op("core.list", *(texts[(n + i) % _TEXTS] for i in range(3)), n) for n in range(_TASKS)]


def _check(value: list[object], number: int) -> bool:
    return value == [*(_text((number + i) % _TEXTS) for i in range(3)), number]


def test_lists_of_strings_spill_and_are_right_wherever_they_are_read() -> None:
    with LocalCluster(2, memory_limit="8MiB", device="host") as own, Client(own) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        names = sorted(client.scheduler_info()["workers"])
        lists = _lists(client)
        assert client.gather(client.map(len, lists)) == [4] * _TASKS
        # 27 MB are more than two slabs of 8 MiB hold. Workers report their spilling once a
        # second.
        eventually(lambda: sum(w.spill_written_bytes for w in client.session.workers()) > 2 << 20, "too little spilled")
        states = client.session.workers()
        # The texts themselves are small enough to be stored outside of the slabs.
        assert all(w.memory_used_bytes <= (8 << 20) + _TEXTS * 40_000 for w in states)
        # Read in Python, on the worker that has the list and on the other one, and in a native op.
        for worker in names:
            some = range(0, _TASKS, 9)
            checks = client.map(_check, [lists[n] for n in some], some, workers=worker, pure=False)
            assert all(client.gather(checks))
            items = client.map(
                native("core.item"), [lists[n] for n in some], [1] * len(some), workers=worker, pure=False
            )
            assert client.gather(items) == [_text((n + 1) % _TEXTS) for n in some]
        # Read by a client, through shared memory and through gRPC.
        for share in (True, False):
            with Client(own, shared_memory=share) as reader:
                again = _lists(reader)
                for begin in range(0, _TASKS, 100):
                    values = reader.gather(again[begin : begin + 100])
                    assert all(_check(value, begin + i) for i, value in enumerate(values))
