"""Records of logging in the processes of tasks, handled in the client's process, too."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from typing import Any

from millrace import _check, errors
from millrace._calls import _topics
from millrace._client._client_part import AsyncPart, awaited
from millrace._client._plugin_calls import PluginCalls
from millrace._client._shared_calls import SharedCalls
from millrace._connection import _address
from millrace._session._session import Session
from millrace.plugins import WorkerPlugin

#: Records that wait in a process until they are sent. Others are lost: no task waits for a client.
_MOST_WAITING = 10_000
#: Most records in one message, and most characters of one text in a record.
_MOST_RECORDS, _TEXT = 100, 8 << 10
#: Longest wait for the last records of a process that ends, in seconds.
_LAST_SECONDS = 2.0
_PLAIN = (type(None), bool, int, float, str)


class LogForwarding(PluginCalls, SharedCalls):
    """Handles log records of tasks in the client's process."""

    def forward_logging(self, logger_name: str | None = None, level: int | str = logging.INFO) -> None:
        """Handles the records of a logger on the workers in this process, too: by the logger of the
        same name.

        A record must be of the logger's level on the worker, which is WARNING unless a task or a
        plugin has set it, of `level`, and of the level of the logger here. Arguments of records
        travel as text.

        Args:
            logger_name: the logger, with all below it. Default: all loggers.
            level: lowest level of the records that are sent.

        Raises:
            ValueError, TypeError: `level` is no level of logging.
        """
        lowest = logging.Handler(level).level
        namespace = self.session.namespace
        topic = _topic(logger_name)
        self._subscriptions.add(topic, _handle)
        try:
            self.register_plugin(_Plugin(logger_name, lowest, namespace, topic), _plugin(namespace, topic))
        except BaseException:
            self._subscriptions.remove(topic)
            raise

    def unforward_logging(self, logger_name: str | None = None) -> None:
        """Ends `forward_logging` of a logger, for all clients of the namespace.

        Raises:
            ValueError: this client does not forward the records of the logger.
        """
        topic = _topic(logger_name)
        try:
            self._subscriptions.remove(topic)
        except ValueError:
            raise ValueError(
                f"unforward_logging: the records of logger {logger_name or 'root'} are not forwarded: forward_logging() first"
            ) from None
        with contextlib.suppress(errors.NotFoundError):  # another client was first
            self.unregister_worker_plugin(_plugin(self.session.namespace, topic))


class AsyncLogForwarding(AsyncPart):
    """The methods of `LogForwarding`, as coroutines."""

    forward_logging = awaited(LogForwarding.forward_logging)
    unforward_logging = awaited(LogForwarding.unforward_logging)


def _topic(logger_name: str | None) -> str:
    return "forwarded-logs/" + ("" if logger_name is None else _check.text(logger_name, "logger_name", 128))


def _plugin(namespace: str, topic: str) -> str:
    return f"{topic} of {namespace}"


def _handle(event: tuple[float, list[dict[str, Any]]]) -> None:
    """Handles records from a worker."""
    for attributes in event[1]:
        record = logging.makeLogRecord(attributes)
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)


class _Plugin(WorkerPlugin):
    """Sends the records of a logger in a process to a topic."""

    def __init__(self, logger_name: str | None, level: int, namespace: str, topic: str) -> None:
        self._logger_name, self._level, self._namespace, self._topic = logger_name, level, namespace, topic
        self._sender: _Sender | None = None

    def setup(self, worker: Any) -> None:
        self._sender = _Sender(self._level, self._namespace, self._topic)
        logging.getLogger(self._logger_name).addHandler(self._sender)

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if self._sender is not None and start == "executing":
            self._sender.drain()  # the client handles them before it has the result

    def teardown(self, worker: Any) -> None:
        if self._sender is not None:
            logging.getLogger(self._logger_name).removeHandler(self._sender)
            self._sender.close()


class _Sender(logging.Handler):
    """Sends records in a thread of its own, with a lease of its own: the clients of tasks may be of
    other namespaces. The thread starts with the first record."""

    def __init__(self, level: int, namespace: str, topic: str) -> None:
        super().__init__(level)
        self._namespace, self._topic = namespace, topic
        # Records; None ends the thread.
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        # Guards the number of records that wait or are on their way, and whether no more are
        # sent.
        self._sent = threading.Condition()
        self._unsent, self._ended = 0, False

    def emit(self, record: logging.LogRecord) -> None:
        # logging holds the handler's lock during this call.
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="millrace-forward-logging", daemon=True)
            self._thread.start()
        if self._ended or threading.current_thread() is self._thread:
            return  # a record about the sending itself, or one that nobody sends
        try:
            self.format(record)  # makes a text of its exception
            found = _attributes(record)
            with self._sent:
                self._waiting.put_nowait(found)
                self._unsent += 1
        except queue.Full:
            pass
        except Exception:
            self.handleError(record)

    def drain(self) -> None:
        """Waits until all records are sent, but not for long if the scheduler does not answer."""
        with self._sent:
            self._sent.wait_for(lambda: self._ended or not self._unsent, _LAST_SECONDS)

    def _run(self) -> None:
        try:
            self._send()
        finally:
            with self._sent:
                self._ended = True
            self._settle(0)

    def _settle(self, count: int) -> None:
        with self._sent:
            self._unsent -= count
            self._sent.notify_all()

    def close(self) -> None:
        """Ends the thread, after it has sent what waits."""
        super().close()
        thread, self._thread = self._thread, None
        if thread is not None:
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(None)
            thread.join(_LAST_SECONDS)

    def _send(self) -> None:
        where = _address.find(None, None, None)
        if where is None:
            return
        try:
            session = Session(
                *where, name="forward_logging", namespace=self._namespace, timeout=30.0, shared_memory=False
            )
        except errors.MillraceError:
            return  # the scheduler is gone, and this process ends with its worker
        try:
            ended = False
            while not ended:
                records = [self._waiting.get()]
                while len(records) < _MOST_RECORDS and not self._waiting.empty():
                    records.append(self._waiting.get())
                ended = None in records
                some = [r for r in records if r is not None]
                if some:
                    with contextlib.suppress(errors.MillraceError):  # these are lost
                        _topics.publish(session, self._topic, some)
                    self._settle(len(some))
        finally:
            session.close(timeout=1.0)


def _attributes(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the attributes of a record that has been formatted, so that its exception is a text.
    Objects that may not be known in the client's process are left out."""
    found = {**vars(record), "msg": record.getMessage(), "args": None, "exc_info": None}
    return {k: v[:_TEXT] if isinstance(v, str) else v for k, v in found.items() if type(v) in _PLAIN}
