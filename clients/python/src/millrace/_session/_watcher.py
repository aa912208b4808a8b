"""Receives the updates of tasks from the scheduler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from millrace import errors
from millrace._connection._connection import Connection
from millrace._connection._lease import Lease
from millrace._pb.millrace.v1 import watch_pb2
from millrace._task_states._task_table import TaskTable


class Watcher:
    """The thread that reads the Watch stream, and opens it again when it breaks.

    Args:
        connection: the scheduler.
        lease: the lease whose tasks are watched.
        tasks: the states that updates are applied to.
        renew: as for Sender.
    """

    def __init__(self, connection: Connection, lease: Lease, tasks: TaskTable, renew: Callable[[int], None]) -> None:
        self._connection, self._lease, self._tasks, self._renew = connection, lease, tasks, renew
        #: Monotonic time since which the scheduler has not answered; 0: it answers.
        self.silent_since = 0.0
        #: The call of the open stream; None before the first one.
        self.stream: Any = None
        #: The reading thread.
        self.thread = threading.Thread(target=self._run, name="millrace-watch", daemon=True)

    def cancel(self) -> None:
        """Ends the stream that is open. The thread opens the next one unless the client is
        closed."""
        if self.stream is not None:
            self.stream.cancel()

    def _run(self) -> None:
        connection, lease = self._connection, self._lease
        pause = 0.05
        told = False  # futures were failed because the scheduler is away
        while not connection.closed:
            client_id = lease.client_id
            request = watch_pb2.WatchRequest(client_id=client_id, after_revision=self._tasks.revision, life=lease.life)
            code, reason = grpc.StatusCode.UNAVAILABLE, ""
            try:
                self._tasks.begin_snapshot()
                self.stream = connection.watch(request)
                for response in self.stream:
                    if response.life and response.life != lease.life:
                        reason = "UNKNOWN_CLIENT"
                        self.stream.cancel()
                        break
                    self.silent_since, pause, told = 0.0, 0.05, False
                    self._tasks.receive(response, client_id)
            except grpc.RpcError as e:
                code, reason = e.code() if isinstance(e, grpc.Call) else None, errors.reason_of(e)
            except ValueError:
                return  # the channel was closed
            if connection.closed:
                return
            if reason == "UNKNOWN_CLIENT" or code == grpc.StatusCode.NOT_FOUND:
                try:
                    self._renew(client_id)
                    continue
                except grpc.RpcError as e:
                    code = e.code() if isinstance(e, grpc.Call) else None
                except ValueError:
                    return
            if code == grpc.StatusCode.OUT_OF_RANGE:
                self._tasks.revision = 0  # the revision is too old: begin with a snapshot
                continue
            now = time.monotonic()
            self.silent_since = self.silent_since or now
            refused = code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
            if not told and (refused or now - self.silent_since > connection.timeout):
                told = True
                self._tasks.lose(
                    f"the scheduler at {connection.address} is gone, or does not take this client any more ({code})"
                )
            connection.ended.wait(pause)
            pause = min(pause * 2, 1.0)
