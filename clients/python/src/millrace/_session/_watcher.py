"""Receives the updates of tasks from the scheduler."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from millrace import errors
from millrace._connection._connection import Connection, starting
from millrace._connection._lease import Lease
from millrace._pb.millrace.v1 import watch_pb2
from millrace._task_states._task_table import TaskTable

_log = logging.getLogger("millrace")


class Watcher:
    """The thread that reads the Watch stream, and opens it again when it breaks.

    Args:
        connection: the scheduler.
        lease: the lease whose tasks are watched.
        tasks: the states that updates are applied to.
        renew: as for Sender.
        before: called with each message before its updates are applied.
        gone: returns why the scheduler will never come back; empty if it may.
    """

    def __init__(
        self,
        connection: Connection,
        lease: Lease,
        tasks: TaskTable,
        renew: Callable[[int], None],
        before: Callable[[watch_pb2.WatchResponse], None],
        gone: Callable[[], str],
    ) -> None:
        self._connection, self._lease, self._tasks, self._renew = connection, lease, tasks, renew
        self._before = before
        self._outage = _Outage(connection, tasks, gone)
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
        pause, failed = 0.05, 0
        while not connection.closed:
            client_id = lease.client_id
            request = watch_pb2.WatchRequest(client_id=client_id, after_revision=self._tasks.revision, life=lease.life)
            code, reason = grpc.StatusCode.UNAVAILABLE, ""
            begins = False  # the scheduler reads its journal
            try:
                self._tasks.begin_snapshot()
                self.stream = connection.watch(request)
                for response in self.stream:
                    if response.life and response.life != lease.life:
                        reason = "UNKNOWN_CLIENT"
                        self.stream.cancel()
                        break
                    pause, failed = 0.05, 0
                    self._outage.ended()
                    self._before(response)
                    self._tasks.receive(response, client_id)
            except grpc.RpcError as e:
                code, reason = e.code() if isinstance(e, grpc.Call) else None, errors.reason_of(e)
                begins = starting(e)
            except ValueError:
                return  # the channel was closed
            if connection.closed:
                return
            if reason == "UNKNOWN_CLIENT" or code == grpc.StatusCode.NOT_FOUND:
                try:
                    self._renew(client_id)
                    continue
                except grpc.RpcError as e:
                    code, begins = e.code() if isinstance(e, grpc.Call) else None, starting(e)
                except ValueError:
                    return
            if code == grpc.StatusCode.OUT_OF_RANGE:
                self._tasks.revision = 0  # the revision is too old: begin with a snapshot
                continue
            self._outage.goes_on(code, begins=begins)
            failed += 1
            if failed % connection.schedulers == 0:
                connection.ended.wait(pause)
                pause = min(pause * 2, 1.0)


class _Outage:
    """A time without a scheduler: tells the user of it, and fails the tasks when it is over their
    limit. Only the watching thread uses it.

    Args:
        connection: the scheduler.
        tasks: the tasks.
        gone: as for Watcher.
    """

    def __init__(self, connection: Connection, tasks: TaskTable, gone: Callable[[], str]) -> None:
        self._connection, self._tasks, self._gone = connection, tasks, gone
        # Monotonic time of the last sign of life, and seconds of silence until the next notice; 0:
        # none was given.
        self._alive, self._notice = 0.0, 0.0
        self._lost = False  # the tasks were failed

    def ended(self) -> None:
        """Notes that the scheduler answers."""
        connection = self._connection
        since, connection.silent_since = connection.silent_since, 0.0
        if since and self._notice:
            _log.warning("the scheduler at %s is back after %.0f s", connection.address, time.monotonic() - since)
        self._notice, self._lost = 0.0, False

    def goes_on(self, code: grpc.StatusCode | None, *, begins: bool) -> None:
        """Notes that the stream of updates could not be opened. `begins`: the scheduler is there,
        and reads its journal."""
        connection = self._connection
        now = time.monotonic()
        if not connection.silent_since:
            connection.silent_since = self._alive = now
        if begins:
            self._alive = now
        if self._lost:
            return
        away = now - connection.silent_since
        refused = code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        if refused:
            why = f"the scheduler at {connection.address} does not take this client any more ({code})"
        elif now - self._alive > connection.reconnect_timeout:
            why = (
                f"the scheduler at {connection.address} has been away for {away:.0f} s, longer than the client's "
                "reconnect_timeout: see with 'millrace status' whether it runs; then submit the tasks again"
            )
        else:
            why = self._gone()
        if why:
            self._lost = True
            self._tasks.lose(why)
        elif away >= max(self._notice, connection.timeout) and self._tasks.waits():
            self._notice = 2 * away
            _log.warning(
                "the scheduler at %s has been away for %.0f s; still trying%s",
                connection.address,
                away,
                ": it reads its journal" if begins else f", for {connection.reconnect_timeout:g} s in all",
            )
