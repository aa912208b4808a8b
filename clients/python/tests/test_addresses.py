"""Clients with the addresses of several schedulers, of which one leads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from conftest import PATIENCE, Gate
from millrace import AsyncClient, Client, LocalCluster, Lock, errors, get_client
from millrace._connection import _address, _several
from proxy import with_reason
from restartable import Restartable, ThreeSchedulers, fixed_port

#: The tests of Go have the same tables.
_TABLES = Path(__file__).parents[3] / "internal"


@pytest.mark.parametrize("case", json.loads((_TABLES / "hostport/testdata/addresses.json").read_text()), ids=str)
def test_addresses_are_read_as_in_go(case: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_ADDRESS", case["text"])
    if "want" in case:
        assert _address._address(case["text"]) == case["want"]
        found = _address.find(None, "", None)
        assert found is not None
        assert found[0] == case["want"]
    else:
        with pytest.raises(ValueError) as raised:
            _address.find(None, "", None)
        assert str(raised.value).startswith("MILLRACE_ADDRESS: ")
        assert case["wrong"] in str(raised.value).replace("'", '"')


@pytest.mark.parametrize(
    "case", json.loads((_TABLES / "leader/testdata/turns.json").read_text()), ids=lambda c: c["name"]
)
def test_turns_are_those_of_go(case: dict[str, Any]) -> None:
    turns, got = _several.Turns(case["addresses"]), []
    for at, leader in case["left"]:
        turns.leave(at, leader)
        got.append(turns.at)
    assert got == case["then"]


def test_a_group_of_schedulers_is_one_cluster() -> None:
    same = _address.same("a:1,b:2", resolve=False)
    assert same("b:2") and same("tcp://c:3,a:1") and not same("c:3,a:2")


class Follower(grpc.GenericRpcHandler):
    """A scheduler that refuses all calls, because another one leads.

    Args:
        leader: the address of that one; empty: there is none.
    """

    def __init__(self, leader: str = "") -> None:
        self.leader = leader
        #: The number of calls.
        self.calls = 0
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), handlers=(self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, handler_call_details: Any) -> Any:
        def refuse(_: Any, context: Any) -> Iterator[bytes]:
            self.calls += 1
            ((name, details),) = with_reason("NOT_LEADER", leader=self.leader)
            # Go refuses a status whose details have another code than UNAVAILABLE, or another text.
            context.set_trailing_metadata(((name, b"\x08\x0e\x12\x02no" + details),))
            context.abort(grpc.StatusCode.UNAVAILABLE, "no")
            yield b""

        return grpc.stream_stream_rpc_method_handler(refuse)

    def close(self) -> None:
        self._server.stop(0).wait()


@pytest.fixture
def follow() -> Iterator[Callable[..., Follower]]:
    made: list[Follower] = []

    def start(leader: str = "") -> Follower:
        made.append(Follower(leader))
        return made[-1]

    yield start
    for follower in made:
        follower.close()


def dead() -> str:
    return f"127.0.0.1:{fixed_port()}"


@pytest.fixture(params=["dead", "hung", "follower", "leaderless", "stale"])
def several(request: pytest.FixtureRequest, cluster: LocalCluster, follow: Callable[..., Follower]) -> Iterator[str]:
    """Addresses of which the last one is that of the leader."""
    gone = dead()
    hung = socket.create_server(("127.0.0.1", 0))  # it accepts connections, and answers nothing
    before = {
        "dead": [gone, dead()],
        "hung": [f"127.0.0.1:{hung.getsockname()[1]}"],
        "follower": [follow(cluster.address).address, dead()],
        "leaderless": [follow().address, follow().address],
        "stale": [gone, follow(gone).address],
    }[request.param]
    yield ",".join([*before, cluster.address])
    hung.close()


def test_all_calls_find_the_leader(several: str, cluster: LocalCluster) -> None:
    # The first call of a client is each of these kinds of calls.
    def joined() -> Client:
        return Client(several, token=cluster.token, timeout=PATIENCE)

    with joined() as client:
        assert client.submit(int, "42").result(PATIENCE) == 42
        assert client.gather(client.map(abs, range(-20, 0)), timeout=PATIENCE) == list(range(20, 0, -1))
        assert client.submit(np.sum, client.scatter(np.ones(100_000))).result(PATIENCE) == 100_000
        with Lock("several", client=client):
            assert not Lock("several", client=client).acquire(timeout=0)
        assert client.rebalance(dry_run=True).planned_objects >= 0
        assert len(client.scheduler_info()["workers"]) == 2
        assert client.dashboard_link == cluster.dashboard_link
    with joined() as client:
        client.session.connection._channel._turns.leave(client.session.connection._channel._turns.at, "")
        future = client.submit(lambda: 1 / 0, pure=False)
        assert isinstance(future.exception(PATIENCE), ZeroDivisionError)
        client.retry(future)  # a call that is not repeated if it fails

    async def asynchronous() -> int:
        async with AsyncClient(several, token=cluster.token, timeout=PATIENCE) as client:
            return await client.submit(int, "7")

    assert asyncio.run(asynchronous()) == 7


def test_a_leader_outside_of_the_list_is_not_called(follow: Callable[..., Follower]) -> None:
    """A scheduler must not be able to have the client's token sent elsewhere."""
    stranger = follow()
    one, two = follow(stranger.address), follow(stranger.address)
    for address in (one.address, f"{one.address},{two.address}"):
        with pytest.raises(errors.SchedulerLostError, match="NOT_LEADER"):
            Client(address, token="secret", timeout=1)
    assert stranger.calls == 0
    assert one.calls > 0 and two.calls > 0


def deeper(x: int) -> int:
    return get_client().submit(abs, x).result(PATIENCE)


def pass_through(gate: Gate) -> str:
    gate.pass_through()
    return "through"


def goes_on(client: Client, gate: Gate, change: Callable[[], Callable[[], object]]) -> None:
    """Has the leader changed in the middle of a graph, and checks all that must survive.

    Args:
        change: ends the leader, and returns a function that lets the next one lead.
    """
    client.wait_for_workers(1, timeout=PATIENCE)
    scattered = client.scatter(np.ones(100_000))
    ended = client.submit(np.arange, 100_000)
    assert ended.exception(PATIENCE) is None
    running = client.submit(pass_through, gate, pure=False)
    waiting = client.submit(str.upper, running)
    total = client.submit(np.dot, scattered, ended)
    inner = client.submit(deeper, -5)
    lock = Lock("held", client=client)
    assert lock.acquire(timeout=PATIENCE)
    gate.wait()
    life = client.session.life
    lead = change()
    during = client.map(abs, range(-5, 0))
    lead()
    gate.open()
    assert running.result(PATIENCE) == "through"
    assert waiting.result(PATIENCE) == "THROUGH"
    assert client.gather(during, timeout=PATIENCE) == [5, 4, 3, 2, 1]
    assert total.result(PATIENCE) == np.arange(100_000).sum()
    assert inner.result(PATIENCE) == 5
    lock.release()
    assert client.session.life == life and client.session.renewals == 0


def test_a_graph_goes_on_at_another_address(tmp_path: Path, gate: Gate, follow: Callable[..., Follower]) -> None:
    """A scheduler is killed, and the next one goes on with its journal elsewhere in the list, as
    another leader does. A follower still names the one that is gone."""
    follower, third = follow(), dead()
    moving = Restartable(tmp_path, "--journal", str(tmp_path / "journal"), before=[follower.address, third])
    follower.leader = moving.address

    def change() -> Callable[[], object]:
        moving.stop()
        return lambda: moving.start(third)

    try:
        with Client(moving.addresses, token=moving.token, timeout=PATIENCE) as client:
            goes_on(client, gate, change)
    finally:
        moving.close()


def test_a_graph_outlives_the_leader(tmp_path: Path, gate: Gate) -> None:
    """The leader of three schedulers is killed in the middle of a graph."""
    three = ThreeSchedulers(tmp_path)
    try:
        with Client(three.addresses, token=three.token, timeout=PATIENCE) as client:

            def leader() -> str:
                client.scheduler_info()  # any call goes to the leader
                return three.addresses.split(",")[client.session.connection._channel._turns.at]

            led: list[str] = []

            def change() -> Callable[[], object]:
                led.append(leader())
                three.kill(led[0])
                return lambda: None

            goes_on(client, gate, change)
            assert leader() != led[0]
    finally:
        three.close()
