"""The connection to the scheduler: its channel, its calls, and their errors."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

import grpc

from millrace import errors
from millrace._connection._several import NOT_LEADER, STARTING, addresses, open_scheduler
from millrace._pb.millrace.v1 import (
    client_pb2,
    cluster_pb2,
    coordination_service_pb2_grpc,
    plugin_service_pb2_grpc,
    scheduler_service_pb2_grpc,
    submission_pb2,
    task_calls_pb2,
    watch_pb2,
    worker_calls_pb2,
)

_log = logging.getLogger("millrace")

#: Beginnings of the names of calls that are repeated if the connection breaks: they change nothing,
#: or the same thing however often they are made.
_REPEATABLE = (
    "Get",
    "List",
    "Locate",
    "Explain",
    "Renew",
    "Hold",
    "Set",
    "Delete",
    "OpenQueue",
    "Withdraw",
    "Acknowledge",
)


#: Pause between two calls to a scheduler that reads its journal, in seconds.
_STARTING_PAUSE = 0.2


def broke(error: grpc.RpcError) -> bool:
    """Returns whether a call failed because there is no connection, or because it broke. Then the
    scheduler may have received the call or not. Includes the errors of `starting`, and those of
    schedulers of which none leads now."""
    code = error.code() if isinstance(error, grpc.Call) else None
    return code == grpc.StatusCode.UNAVAILABLE and errors.reason_of(error) in ("", STARTING, NOT_LEADER)


def starting(error: grpc.RpcError) -> bool:
    """Returns whether the scheduler has answered that it still reads its journal. It has not begun
    the call, and will be there soon: this time is not part of an outage."""
    return errors.reason_of(error) == STARTING


class _Notices:
    """Tells the user, at growing intervals, that a call waits for a scheduler that reads its journal.

    Args:
        name: the call, for the notices.
        first: seconds until the first notice.
    """

    def __init__(self, name: str, first: float) -> None:
        self._name, self._next = name, first
        self._began = time.monotonic()

    def waits(self) -> None:
        """Notes that the call still waits."""
        waited = time.monotonic() - self._began
        if waited >= self._next:
            self._next = 2 * waited
            _log.warning("%s: waits for %.0f s already, because the scheduler reads its journal", self._name, waited)


class Connection:
    """A channel to the scheduler, or to the leader of several, with the token and the time limit of
    its calls."""

    def __init__(self, address: str, token: str, timeout: float, reconnect_timeout: float) -> None:
        self.address, self.token = address, token
        #: Number of the schedulers, of which one leads.
        self.schedulers = len(addresses(address))
        #: Longest wait of a call for the scheduler to answer or to come back, in seconds.
        self.timeout = timeout
        #: How long the scheduler may be away until futures and submissions fail, in seconds.
        self.reconnect_timeout = reconnect_timeout
        #: Monotonic time since which the stream of updates is broken; 0: it is open.
        self.silent_since = 0.0
        self.metadata: tuple[tuple[str, str], ...] = (("authorization", f"Bearer {token}"),) if token else ()
        self._channel: Any = open_scheduler(address)
        self.stub = scheduler_service_pb2_grpc.SchedulerServiceStub(self._channel)
        # Further services. No name of a method is in two services.
        self._others = (
            plugin_service_pb2_grpc.PluginServiceStub(self._channel),
            coordination_service_pb2_grpc.CoordinationServiceStub(self._channel),
        )
        self._submit_batch = self._channel.unary_unary(
            "/millrace.v1.SchedulerService/SubmitBatch",
            request_serializer=submission_pb2.SubmitRequest.SerializeToString,
            response_deserializer=submission_pb2.SubmitResponse.FromString,
        )
        #: True once the client has begun to close, or in a forked child.
        self.closed = False
        #: The error message of calls after that.
        self.why = "the client is closed"
        #: Set when the client is closed; ends all pauses.
        self.ended = threading.Event()

    def open(self, request: client_pb2.OpenClientRequest) -> client_pb2.OpenClientResponse:
        """Opens a lease. Waits until the scheduler is reachable, at most `timeout` seconds."""
        deadline = time.monotonic() + self.timeout
        notices = _Notices(f"joining the cluster at {self.address}", self.timeout)
        pause = 0.05
        for attempt in itertools.count(1):
            left = deadline - time.monotonic()
            try:
                return self.stub.OpenClient(request, metadata=self.metadata, timeout=max(left, 0.1))
            except grpc.RpcError as e:
                if isinstance(e, grpc.Call) and e.code() == grpc.StatusCode.UNIMPLEMENTED:
                    raise errors.SchedulerLostError(
                        f"cannot join the cluster at {self.address}: another server than a scheduler of Millrace answers "
                        f"there: check the address and the port to connect to ({e.details()})"
                    ) from None
                # wait_for_ready would report only a timeout, without the cause.
                refused = isinstance(e, grpc.Call) and e.code() == grpc.StatusCode.UNAVAILABLE
                begins = starting(e)
                if begins:
                    deadline = time.monotonic() + self.timeout
                    notices.waits()
                if not refused or (not begins and time.monotonic() + pause > deadline):
                    raise errors.from_rpc(e, f"cannot join the cluster at {self.address}") from None
            if attempt % self.schedulers == 0:
                self.ended.wait(pause)
                pause = min(pause * 1.5, 0.5)
        raise AssertionError

    def open_again(self, request: client_pb2.OpenClientRequest) -> client_pb2.OpenClientResponse:
        """Opens another lease, with a single attempt. Raises grpc.RpcError."""
        return self.stub.OpenClient(request, metadata=self.metadata, timeout=max(self.timeout, 1.0))

    def call(self, method: str, request: Any, *, timeout: float | None = None, keys: Iterable[str] = ()) -> Any:
        """Makes a unary call, and translates errors.

        Args:
            method: its name.
            request: its request.
            timeout: longest time, in seconds. Default: `timeout` of the client, 30 s at least; the
                time in which the scheduler reads its journal is not counted.
            keys: those of the request, which an error names as users write them.
        """
        self.check_open()
        limit = timeout or max(self.timeout, 30.0)
        deadline = time.monotonic() + limit
        name = errors.call_name(method)
        notices = _Notices(f"{name} at {self.address}", self.timeout)
        if self.schedulers > 1 and not method.startswith(_REPEATABLE):
            # A call that may not be repeated must not fail because there is no connection yet.
            self.call("GetClusterInfo", cluster_pb2.GetClusterInfoRequest(), timeout=timeout)
        for attempt in itertools.count(1):
            left = max(deadline - time.monotonic(), 0.01)
            try:
                return self._method(method)(request, metadata=self.metadata, timeout=left, wait_for_ready=True)
            except grpc.RpcError as e:
                code = e.code() if isinstance(e, grpc.Call) else None
                if code == grpc.StatusCode.DEADLINE_EXCEEDED and not errors.reason_of(e):
                    raise errors.SchedulerLostError(
                        f"{name}: the scheduler at {self.address} gave no answer within {limit:g} s: "
                        "see with 'millrace status' whether it runs and can be reached"
                    ) from None
                begins = starting(e)
                if begins and timeout is None:
                    deadline = time.monotonic() + limit
                    notices.waits()
                unbegun = begins or errors.reason_of(e) == NOT_LEADER
                repeatable = unbegun or (broke(e) and method.startswith(_REPEATABLE))
                if not repeatable or time.monotonic() > deadline:
                    raise errors.from_rpc(e, name, keys) from None
                pause = _STARTING_PAUSE if begins else 0.02
            except ValueError as e:  # grpcio's error for a closed channel
                raise errors.SchedulerLostError(f"{name}: the client is closed") from e
            # If the connection broke during the call, the next attempt waits for another one, or
            # goes to another scheduler.
            if attempt % self.schedulers == 0:
                self.ended.wait(pause)
            self.check_open()
        raise AssertionError

    def _method(self, name: str) -> Any:
        """Returns the method of one of the scheduler's services."""
        return next(getattr(service, name) for service in (self.stub, *self._others) if hasattr(service, name))

    def begin(self, method: str, request: Any, timeout: float) -> Any:
        """Begins a unary call, with a single attempt, and returns it. Its result raises
        grpc.RpcError."""
        self.check_open()
        try:
            return self._method(method).future(request, metadata=self.metadata, timeout=timeout, wait_for_ready=True)
        except ValueError as e:  # grpcio's error for a closed channel
            raise errors.SchedulerLostError(f"{errors.call_name(method)}: the client is closed") from e

    def submit(self, chunks: list[submission_pb2.SubmitRequest], metadata: tuple[tuple[str, str], ...] = ()) -> Any:
        """Sends a submission, once, with additional metadata. Raises grpc.RpcError."""
        metadata = self.metadata + metadata
        if len(chunks) == 1:
            # SubmitRequest has the same fields, so the chunk is sent without a copy of the
            # tasks.
            return self._submit_batch(chunks[0], metadata=metadata, timeout=300.0)
        return self.stub.Submit(iter(chunks), metadata=metadata, timeout=600.0)

    def release(self, request: task_calls_pb2.ReleaseTasksRequest) -> None:
        """Releases tasks, with a single attempt. Raises grpc.RpcError, and ValueError if the
        channel is closed."""
        self.stub.ReleaseTasks(request, metadata=self.metadata, timeout=30.0)

    def explain(self, request: task_calls_pb2.ExplainTaskRequest, timeout: float) -> Any:
        """Asks why a task waits, with a single attempt. Raises grpc.RpcError, and ValueError if the
        channel is closed."""
        return self.stub.ExplainTask(request, metadata=self.metadata, timeout=timeout)

    def watch(self, request: watch_pb2.WatchRequest) -> Any:
        """Opens the stream of updates."""
        return self.stub.Watch(request, metadata=self.metadata)

    def rebalance(self, request: worker_calls_pb2.RebalanceRequest) -> Any:
        """Opens the stream of a rebalance. The rebalance ends with it."""
        return self.stub.Rebalance(request, metadata=self.metadata)

    def end_lease(self, client_id: int, *, shutdown: bool, timeout: float) -> None:
        """Gives up the lease, or stops the whole cluster. Only a refusal of the latter raises."""
        try:
            if shutdown:
                stop = cluster_pb2.ShutdownRequest(reason="asked by a client")
                self.stub.Shutdown(stop, metadata=self.metadata, timeout=timeout)
            else:
                end = client_pb2.CloseClientRequest(client_id=client_id)
                self.stub.CloseClient(end, metadata=self.metadata, timeout=timeout)
        except grpc.RpcError as e:
            if isinstance(e, grpc.Call) and e.code() == grpc.StatusCode.PERMISSION_DENIED:
                raise errors.from_rpc(e, "shutdown") from None
        except ValueError:  # the channel is closed already
            pass

    def check_open(self) -> None:
        """Raises SchedulerLostError if the client is closed."""
        if self.closed:
            raise errors.SchedulerLostError(self.why)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()
