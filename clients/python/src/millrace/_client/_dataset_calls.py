"""The client's methods for published datasets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping
from typing import Any, NoReturn, cast

from millrace._calls._datasets import DatasetNotFoundError, Datasets, TooLargeError, is_plain, is_text
from millrace._client._client_part import AsyncPart, ClientPart, awaited
from millrace._connection._steps import run
from millrace._dask._stored import Stored
from millrace._tasks._scatter import Scatter, inside_of
from millrace._values._keys import UserKey
from millrace._values._serialize import DEPTH_LIMIT
from millrace.future import Future, futures_of, results_of

#: The default of `get_dataset`'s default: an unknown name is an error.
_REQUIRED: Any = object()
#: Keys of the dict that is published in the place of an object which is stored on workers.
_OBJECT, _PARTS = "stored object", "its futures"


class DatasetCalls(ClientPart):
    """Publishes values under names that all clients of the namespace can read."""

    _datasets: Datasets

    def publish_dataset(self, *args: Any, name: UserKey | None = None, override: bool = False, **kwargs: Any) -> None:
        """Publishes values under names, and keeps the results of the futures in them until they are
        unpublished. Clients in every language can read them.

        The forms are ``publish_dataset(x=data, y=more)``, ``publish_dataset(data, name="x")``,
        ``publish_dataset("x", data)`` and ``publish_dataset({"x": data})``.

        Args:
            args: the name and the value; or with `name` the value, several as a tuple; or a dict of
                values by name.
            name: name of the dataset, unique in the namespace: of any type that keys of tasks have.
            override: replaces a dataset of the same name, which is an error otherwise.
            kwargs: values by name.

        Readers in every language get futures, None, bool, int of 64 bits, float, complex, str,
        bytes, arrays of NumPy of at most 64 KiB, and lists, tuples and dicts with str keys of
        these, as values; a tuple is a list for them. All other objects, Dask's collections among
        them, are stored on workers as by `scatter`: readers in Python get them, too, and others a
        future in their place. A value that takes more than 1 MiB, or has more than 30 lists and
        dicts inside of each other, is stored as a whole.

        Raises:
            SerialisationError: an object cannot be pickled.
            KeyError: the name is taken.
        """
        for each, data in _named(args, name, kwargs).items():
            try:
                self._datasets.publish(each, self._with_stored(data), override=override)
            except TooLargeError:
                self._datasets.publish(each, self._stored([data])[0], override=override)

    def _with_stored(self, data: Any) -> Any:
        """Returns a value with a stored copy in the place of each object in it that has no form in
        every language."""
        objects: list[Any] = []
        tree = _divided(data, objects, 0)
        return _joined(tree, self._stored(objects)) if objects else data

    def _stored(self, objects: list[Any]) -> list[Any]:
        """Stores objects on workers, and returns what is published in their place: their futures,
        beside those that the objects need."""
        place = Scatter(self.session, self._maker, workers=None, broadcast=False, by_hash=True, timeout=30.0)
        whole = (list, tuple, set, dict)
        wrapped = [Stored(o) if isinstance(o, whole) or hasattr(o, "__dask_graph__") else o for o in objects]
        futures: list[Future[Any]] = run(place.put(wrapped, None))
        return [
            {_OBJECT: future, _PARTS: futures_of(obj) if hasattr(obj, "__dask_graph__") else inside_of(future)}
            for obj, future in zip(objects, futures, strict=True)
        ]

    def get_dataset(self, name: UserKey | list[UserKey], default: Any = _REQUIRED) -> Any:
        """Returns the value published under a name, with futures of this client; for a list of
        names a list of values.

        Args:
            name: the name, or a list of names.
            default: returned for a name that is not published; without it, that is an error.

        Raises:
            KeyError: the name is not published.
        """
        if isinstance(name, list):
            return [self.get_dataset(each, default) for each in name]
        try:
            return self._with_objects(self._datasets.get(name))
        except DatasetNotFoundError:
            if default is _REQUIRED:
                raise
            return default

    def _with_objects(self, data: Any) -> Any:
        """Returns a published value with the objects that are stored for it."""
        futures: dict[int, Future[Any]] = {}
        _find_stored(data, futures)
        if not futures:
            return data
        objects = dict(zip(futures, results_of(list(futures.values())), strict=True))
        return _with_found(data, objects)

    def list_datasets(self) -> list[Any]:
        """Returns the names of the datasets in this namespace."""
        return self._datasets.names()

    def unpublish_dataset(self, name: UserKey | list[UserKey]) -> None:
        """Removes a name, or a list of names; the results are freed once no other client holds
        them. A name that is not published is no error."""
        for each in name if isinstance(name, list) else [name]:
            self._datasets.unpublish(each)

    @property
    def datasets(self) -> DatasetView:
        """The datasets of this namespace as a dict: ``client.datasets["x"] = data``."""
        return DatasetView(self)


class _Place:
    """The place of an object in a value that is published: its index among the stored ones."""

    def __init__(self, index: int) -> None:
        self.index = index


def _divided(data: Any, objects: list[Any], depth: int) -> Any:
    """Returns a value with a _Place for each object that is to be stored, and adds these to
    `objects`. Data that are too deep for a dataset stay as they are: they are refused later."""
    if depth > DEPTH_LIMIT:
        return data
    if type(data) in (list, tuple):
        return [_divided(item, objects, depth + 1) for item in data]
    if type(data) is dict and all(type(k) is str and is_text(k) for k in cast("dict[Any, Any]", data)):
        return {k: _divided(v, objects, depth + 1) for k, v in cast("dict[Any, Any]", data).items()}
    if isinstance(data, Future) or is_plain(data):
        return cast("Any", data)
    objects.append(data)
    return _Place(len(objects) - 1)


def _joined(tree: Any, stored: list[Any]) -> Any:
    """Returns a value of `_divided` with what is published in the places."""
    if type(tree) is _Place:
        return stored[tree.index]
    if type(tree) is list:
        return [_joined(item, stored) for item in cast("list[Any]", tree)]
    if type(tree) is dict:
        return {k: _joined(v, stored) for k, v in cast("dict[Any, Any]", tree).items()}
    return tree


def _stands_for_object(data: Any) -> bool:
    return type(data) is dict and data.keys() == {_OBJECT, _PARTS} and isinstance(data[_OBJECT], Future)


def _find_stored(data: Any, futures: dict[int, Future[Any]]) -> None:
    """Collects the futures of stored objects in a published value, by the id of the dict that
    stands for each."""
    if _stands_for_object(data):
        futures[id(data)] = data[_OBJECT]
    elif type(data) is list:
        for item in cast("list[Any]", data):
            _find_stored(item, futures)
    elif type(data) is dict:
        for item in cast("dict[Any, Any]", data).values():
            _find_stored(item, futures)


def _with_found(data: Any, objects: dict[int, Any]) -> Any:
    """Returns a published value with the objects that `_find_stored` has found."""
    if _stands_for_object(data):
        found = objects[id(data)]
        return found.value if isinstance(found, Stored) else found
    if type(data) is list:
        return [_with_found(item, objects) for item in cast("list[Any]", data)]
    if type(data) is dict:
        return {k: _with_found(v, objects) for k, v in cast("dict[Any, Any]", data).items()}
    return data


def _named(args: tuple[Any, ...], name: UserKey | None, kwargs: dict[str, Any]) -> dict[UserKey, Any]:
    """Returns the values by name that the arguments of `publish_dataset` give."""
    out: dict[UserKey, Any] = {**kwargs}
    if name is not None:
        if not args:
            raise ValueError(
                "publish_dataset: If name is provided, expecting call signature publish_dataset(data, name='x')"
            )
        out[name] = args[0] if len(args) == 1 else args
    elif len(args) == 2 and isinstance(args[0], (str, bytes, tuple)):
        out[args[0]] = args[1]
    elif len(args) == 1 and isinstance(args[0], Mapping):
        out.update(cast("Mapping[UserKey, Any]", args[0]))
    elif args:
        raise ValueError(
            "publish_dataset: the value has no name. If name is omitted, positional argument must be a dict of values by "
            "name, or a name and its value: publish_dataset(x=data), publish_dataset(data, name='x')"
        )
    elif not kwargs:
        raise ValueError("publish_dataset: there is nothing to publish: publish_dataset(x=data)")
    return out


class DatasetView(MutableMapping[Any, Any]):
    """The datasets of a namespace, as a dict by name."""

    def __init__(self, calls: DatasetCalls) -> None:
        self._calls = calls

    def __getitem__(self, name: UserKey) -> Any:
        return self._calls.get_dataset(name)

    def __setitem__(self, name: UserKey, data: Any) -> None:
        self._calls.publish_dataset(data, name=name)

    def __delitem__(self, name: UserKey) -> None:
        self._calls.unpublish_dataset(name)

    def __contains__(self, name: object) -> bool:
        return name in self._calls.list_datasets()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._calls.list_datasets())

    def __aiter__(self) -> NoReturn:
        raise TypeError("`async for` needs an AsyncClient: for name in client.datasets")

    def __len__(self) -> int:
        return len(self._calls.list_datasets())

    def __repr__(self) -> str:
        return f"<datasets: {', '.join(map(repr, self))}>"


class AsyncDatasetCalls(AsyncPart):
    """The methods of `DatasetCalls`, as coroutines."""

    publish_dataset = awaited(DatasetCalls.publish_dataset)
    get_dataset = awaited(DatasetCalls.get_dataset)
    list_datasets = awaited(DatasetCalls.list_datasets)
    unpublish_dataset = awaited(DatasetCalls.unpublish_dataset)

    @property
    def datasets(self) -> AsyncDatasetView:
        """The datasets of this namespace: ``await client.datasets["x"]``, ``async for name in
        client.datasets``."""
        return AsyncDatasetView(self)


class AsyncDatasetView:
    """The datasets of a namespace for an event loop. They are published by
    `AsyncClient.publish_dataset`, because an assignment cannot be awaited."""

    def __init__(self, calls: AsyncDatasetCalls) -> None:
        self._calls = calls

    def __getitem__(self, name: UserKey) -> Any:
        """Returns a coroutine for the value."""
        return self._calls.get_dataset(name)

    def __setitem__(self, name: UserKey, data: Any) -> None:
        raise TypeError("an assignment cannot be awaited: await client.publish_dataset(data, name=...)")

    def __delitem__(self, name: UserKey) -> None:
        raise TypeError("`del` cannot be awaited: await client.unpublish_dataset(name)")

    def __iter__(self) -> NoReturn:
        raise TypeError("`for` cannot be awaited: async for name in client.datasets")

    def __len__(self) -> NoReturn:
        raise TypeError("`len` cannot be awaited: len(await client.list_datasets())")

    async def __aiter__(self) -> AsyncIterator[Any]:
        for name in await self._calls.list_datasets():
            yield name
