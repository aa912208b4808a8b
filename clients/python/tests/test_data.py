"""The data path: what is scattered arrives, whatever becomes of the worker that took it first."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from conftest import PATIENCE
from millrace import Client
from millrace._pb.millrace.v1 import data_service_pb2, worker_pb2


class Vanishing:
    """A worker that takes objects and is gone before it could report them."""

    def __init__(self) -> None:
        self.taken = 0
        handler = grpc.stream_unary_rpc_method_handler(
            self._write, response_serializer=data_service_pb2.WriteObjectResponse.SerializeToString
        )
        self._server = grpc.server(ThreadPoolExecutor(4), maximum_concurrent_rpcs=4)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("millrace.v1.DataService", {"WriteObject": handler}),)
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.worker = worker_pb2.Worker(worker_id=4711, name="vanishing", data_address=f"127.0.0.1:{port}")

    def _write(self, messages: Iterator[bytes], _: grpc.ServicerContext) -> data_service_pb2.WriteObjectResponse:
        size = sum(len(m) for m in messages)
        self.taken += 1
        return data_service_pb2.WriteObjectResponse(bytes=size)

    def close(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def vanishing() -> Iterator[Vanishing]:
    made = Vanishing()
    yield made
    made.close()


def test_scatter_goes_to_another_worker_if_one_dies_before_it_reports(
    client: Client, vanishing: Vanishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = client.session.workers

    def workers(fresh: bool = True) -> list[worker_pb2.Worker]:
        return [vanishing.worker] if vanishing.taken == 0 else real(fresh)

    monkeypatch.setattr(client.session, "workers", workers)
    data = np.arange(300_000)
    future = client.scatter(data, hash=False)
    assert vanishing.taken == 1
    assert future.status == "finished"
    assert np.array_equal(future.result(PATIENCE), data)


def test_scatter_skips_a_worker_that_is_not_there(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    real = client.session.workers
    gone = worker_pb2.Worker(worker_id=4711, name="gone", data_address="127.0.0.1:1")

    def workers(fresh: bool = True) -> list[worker_pb2.Worker]:
        return [gone, *real(fresh)]

    monkeypatch.setattr(client.session, "workers", workers)
    futures = client.scatter([np.full(10_000, n) for n in range(3)], hash=False)
    assert [int(a[0]) for a in client.gather(futures)] == [0, 1, 2]


def test_large_data_is_not_hashed_unless_asked(client: Client) -> None:
    data = np.zeros((16 << 20) + 8, np.uint8)
    assert client.scatter(data).key != client.scatter(data).key
    one = client.scatter(data, hash=True)
    assert client.scatter(data, hash=True).key == one.key
