"""Topics: messages that clients and tasks publish, and others read."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from millrace import errors
from millrace._calls._coordination import Reply, ask, restored, stored
from millrace._connection._steps import run
from millrace._pb.millrace.v1 import coordination_pb2, watch_pb2
from millrace._session._session import Session

_log = logging.getLogger("millrace")

#: Prefix of the topics of Pub and Sub. They are not among those of `get_events`.
PRIVATE = "pubsub/"


def publish(session: Session, topic: str, message: Any) -> None:
    """Appends a message to a topic."""
    value, kept = stored(session, message, f"topic {topic}")
    session.call(
        "PublishToTopic",
        coordination_pb2.PublishToTopicRequest(client_id=session.client_id, name=topic, values=[value]),
    )
    del kept


def last(session: Session, topic: str) -> int:
    """Returns the number of the last message of a topic; 0: there is none."""
    request = coordination_pb2.GetTopicRequest(client_id=session.client_id, name=topic, later=True)
    return session.call("GetTopic", request).number


def topics(session: Session) -> list[str]:
    """Returns the names of the topics that have messages, without those of Pub and Sub."""
    found = session.call("ListTopics", coordination_pb2.ListTopicsRequest(client_id=session.client_id)).topics
    return [t.name for t in found if not t.name.startswith(PRIVATE)]


def events(session: Session, topic: str) -> tuple[tuple[float, Any], ...]:
    """Returns the messages of a topic that are kept, each with its time."""
    out: list[tuple[float, Any]] = []
    after = 0
    while True:
        request = coordination_pb2.GetTopicRequest(client_id=session.client_id, name=topic, after=after)
        answer = session.call("GetTopic", request)
        if not answer.messages:
            return tuple(out)
        out += [(seconds(m), restored(session, m.value)) for m in answer.messages]
        after = answer.number


def seconds(message: coordination_pb2.TopicMessage) -> float:
    """Returns the time of a message, in seconds since 1970."""
    return message.time.seconds + message.time.nanos / 1e9


class Subscriptions:
    """The handlers of a client for topics, each with a thread that waits for messages."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._running: dict[str, _Subscription] = {}
        session.on_messages = self._precede

    def _precede(self, positions: Sequence[watch_pb2.TopicPosition]) -> None:
        """Waits until the handlers had these messages."""
        for position in positions:
            with self._lock:
                subscription = self._running.get(position.name)
            if subscription is not None:
                subscription.reach(position.number)

    def add(self, topic: str, handler: Callable[[Any], Any]) -> None:
        """Calls a handler with each later message. It replaces the topic's earlier handler."""
        begun = _Subscription(self._session, topic, handler)
        with self._lock:
            old = self._running.pop(topic, None)
            self._running[topic] = begun
        if old is not None:
            _log.info("topic %s has another handler now", topic)
            old.end()
        begun.thread.start()

    def remove(self, topic: str) -> None:
        """Ends the calls of a handler."""
        with self._lock:
            old = self._running.pop(topic, None)
        if old is None:
            raise ValueError(f"No event handler known for topic {topic}: subscribe_topic() first")
        old.end()


class _Subscription:
    def __init__(self, session: Session, topic: str, handler: Callable[[Any], Any]) -> None:
        self._session, self._topic, self._handler = session, topic, handler
        self._after, self._life = last(session, topic), session.life
        self._ended = False
        # The number of the last message that the handler had, and of the one for which nobody has
        # waited to the end.
        self._handled, self._late = self._after, 0
        self._reply: Reply | None = None
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self.thread = threading.Thread(target=self._run, name=f"millrace-topic-{topic}", daemon=True)

    def end(self) -> None:
        """Makes no more calls of the handler."""
        self._ended = True
        if self._reply is not None:
            self._reply.give_up()

    def reach(self, number: int) -> None:
        """Waits until the handler has had a message. A handler that has fallen behind is not waited
        for until it has caught up."""
        if self._handled < self._late:
            return
        if not self._session.order.until(lambda: self._ended or self._handled >= number, lambda: self._handled):
            self._late = number

    def _began(self, reply: Reply) -> None:
        self._reply = reply

    def _run(self) -> None:
        try:
            self._read()
        finally:
            self._ended = True
            self._session.order.step()

    def _read(self) -> None:
        while not self._ended:
            if self._session.life != self._life:
                self._after, self._life = 0, self._session.life
            request = coordination_pb2.GetTopicRequest(name=self._topic, after=self._after)
            try:
                answer = run(ask(self._session, "GetTopic", request, None, self._began))
            except errors.MillraceError as e:
                if self._session.closed or self._ended:
                    return
                _log.warning("topic %s: %s: trying again", self._topic, e)
                self._session.connection.ended.wait(1.0)
                continue
            self._after = answer.number
            for message in answer.messages:
                if self._ended:
                    return
                with self._session.order.handling():
                    self._call((seconds(message), message))
                    self._handled = message.number

    def _call(self, event: tuple[float, coordination_pb2.TopicMessage]) -> None:
        """Calls the handler, in the event loop in which it was subscribed, if there was one."""
        try:
            given = event[0], restored(self._session, event[1].value)
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._in_loop, given)
                return
            result = self._handler(given)
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except Exception:
            _log.exception("the handler of topic %s failed", self._topic)

    def _in_loop(self, event: tuple[float, Any]) -> None:
        async def call() -> None:
            try:
                result = self._handler(event)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                _log.exception("the handler of topic %s failed", self._topic)

        task = asyncio.ensure_future(call())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)


# Calls of handlers: an event loop alone does not keep its tasks.
_tasks: set[asyncio.Task[None]] = set()
