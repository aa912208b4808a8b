"""The client's methods for topics and metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from millrace import _check
from millrace._calls import _metadata, _topics
from millrace._calls._topics import Subscriptions
from millrace._client._client_part import AsyncPart, ClientPart, awaited, same

_NO_DEFAULT = object()


class SharedCalls(ClientPart):
    """Publishes messages and metadata for all clients of the namespace."""

    _subscriptions: Subscriptions

    def log_event(self, topic: str | Collection[str], msg: Any) -> None:
        """Appends a message to a topic, or to several. Each topic keeps its last 10,000 messages, at
        most 16 MiB.

        Args:
            topic: name of the topic, or names.
            msg: any object of at most 1 MiB when pickled.
        """
        for name in [topic] if isinstance(topic, str) else topic:
            _topics.publish(self.session, _topic(name), msg)

    def get_events(self, topic: str | None = None) -> Any:
        """Returns the messages of a topic, each as (time in seconds since 1970, message). Without a
        topic, returns a dict of all topics."""
        if topic is not None:
            return _topics.events(self.session, _topic(topic))
        return {name: _topics.events(self.session, name) for name in _topics.topics(self.session)}

    def subscribe_topic(self, topic: str, handler: Callable[[Any], Any]) -> None:
        """Calls a handler with each message of a topic from now on, as (time, message): a function,
        or a coroutine function. It runs in the event loop that runs here, else in a thread. A topic
        has one handler in a client: another one replaces it."""
        if not callable(handler):
            raise TypeError(f"handler must be a function of one argument, not {handler!r}")
        self._subscriptions.add(_topic(topic), handler)

    def unsubscribe_topic(self, topic: str) -> None:
        """Ends the calls of the handler of a topic."""
        self._subscriptions.remove(_topic(topic))

    def set_metadata(self, key: Any, value: Any) -> None:
        """Stores a small value in the scheduler, for all clients of the namespace.

        Args:
            key: a key, or a list of keys: the path in a tree. `set_metadata(["a", "b"], 1)` is
                `metadata["a"]["b"] = 1`; the dicts between are made.
            value: any object of at most 1 MiB without futures. Dicts become parts of the tree.
        """
        _metadata.set_metadata(self.session, key, value)

    def get_metadata(self, keys: Any, default: Any = _NO_DEFAULT) -> Any:
        """Returns a value that `set_metadata` has stored, or a part of the tree as a dict.

        Args:
            keys: a key, or a list of keys.
            default: returned if there is nothing. Without it, that is a KeyError.
        """
        found, value = _metadata.get_metadata(self.session, keys)
        if found:
            return value
        if default is _NO_DEFAULT:
            raise KeyError(keys)
        return default


def _topic(name: Any) -> str:
    if not _check.text(name, "topic", 256):
        raise ValueError("topic: the name of a topic cannot be empty")
    return name


class AsyncSharedCalls(AsyncPart):
    """The methods of `SharedCalls`, as coroutines."""

    log_event = awaited(SharedCalls.log_event)
    get_events = awaited(SharedCalls.get_events)
    subscribe_topic = same(SharedCalls.subscribe_topic)
    unsubscribe_topic = same(SharedCalls.unsubscribe_topic)
    set_metadata = awaited(SharedCalls.set_metadata)
    get_metadata = awaited(SharedCalls.get_metadata)
