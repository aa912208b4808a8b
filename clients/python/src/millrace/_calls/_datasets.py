"""Datasets: values with futures under a name, which all clients of a namespace can read, in any
language."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, cast

from millrace import _check, errors
from millrace._pb.millrace.v1 import dataset_pb2, value_pb2
from millrace._session._session import Session
from millrace._values import _keys, _numpy, _serialize
from millrace._values._keys import UserKey
from millrace.future import Future, future_of_state

#: Largest serialised value of a dataset, in bytes.
_MOST_VALUE = 1 << 20
#: Most futures of a dataset.
_MOST_KEYS = 100_000

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class DatasetNotFoundError(errors.NotFoundError, KeyError):
    """There is no dataset of this name."""

    __str__ = Exception.__str__


class DatasetExistsError(errors.InvalidRequestError, KeyError):
    """There is a dataset of this name already."""

    __str__ = Exception.__str__


class TooLargeError(errors.InvalidRequestError):
    """A value has no room in a dataset: it must be stored on workers."""


class Datasets:
    """The datasets of a client's namespace. Their names are those that keys of tasks can be."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def publish(self, name: UserKey, data: Any, *, override: bool) -> None:
        """Publishes a value of futures, plain values, and lists, tuples and dicts with str keys of
        these.

        Raises:
            TooLargeError: it has too many bytes, futures or levels.
        """
        wire = _name(name)
        session = self._session
        request = dataset_pb2.PublishDatasetRequest(client_id=session.client_id, name=wire, replace=override)
        keys: dict[str, int] = {}
        _fill(request.value, data, f"dataset {name}: data", session, keys, 0)
        if (size := request.value.ByteSize()) > _MOST_VALUE:
            raise _too_large(f"dataset {name}: the value without its futures takes {_check.above(size, _MOST_VALUE)}")
        if len(keys) > _MOST_KEYS:
            raise _too_large(f"dataset {name}: it has {len(keys)} different futures, and the limit is {_MOST_KEYS}")
        request.keys.extend(keys)
        session.flush()
        try:
            session.call("PublishDataset", request)
        except errors.InvalidRequestError as e:
            if e.reason != "DATASET_EXISTS":
                raise
            error = DatasetExistsError(f"there is a dataset {name!r} already: unpublish it, or use override=True")
            error.reason = e.reason
            raise error from None

    def get(self, name: UserKey) -> Any:
        """Returns the value published under a name, with futures of this client."""
        request = dataset_pb2.GetDatasetRequest(name=_name(name), namespace=self._session.namespace)
        with _named(name):
            found: dataset_pb2.Dataset = self._session.call("GetDataset", request).dataset
        states = self._session.hold_all(found.keys)
        futures = [future_of_state(self._session, state) for state in states]
        return _read(found.value, futures)

    def names(self) -> list[Any]:
        """Returns the names of the datasets in this namespace."""
        names: list[Any] = []
        token = ""
        while True:
            page = self._session.call(
                "ListDatasets",
                dataset_pb2.ListDatasetsRequest(page_size=1000, page_token=token, namespace=self._session.namespace),
            )
            names += [_keys.from_wire(d.name) for d in page.datasets]
            token = page.next_page_token
            if not token:
                return names

    def unpublish(self, name: UserKey) -> None:
        """Removes the name if it is published; the results are freed once no other client holds
        them."""
        request = dataset_pb2.UnpublishDatasetRequest(name=_name(name), namespace=self._session.namespace)
        with contextlib.suppress(DatasetNotFoundError), _named(name):
            self._session.call("UnpublishDataset", request)


def _name(name: UserKey) -> str:
    return _check.text(_keys.to_wire(name, "name"), "name", 256)


@contextlib.contextmanager
def _named(name: UserKey) -> Iterator[None]:
    """Raises DatasetNotFoundError for the scheduler's answer that there is no such dataset."""
    try:
        yield
    except errors.NotFoundError as e:
        if e.reason != "UNKNOWN_DATASET":
            raise
        error = DatasetNotFoundError(f"dataset {name!r} not found in this namespace: client.datasets lists them")
        error.reason = e.reason
        raise error from None


def _too_large(message: str) -> TooLargeError:
    error = TooLargeError(f"{message}: scatter the data, and publish the futures")
    error.reason = "TOO_LARGE"
    return error


def _no_reference(obj: Any) -> None:
    """Is the `reference` of `_serialize.fill_argument` for objects that are no futures."""


def _fill(value: value_pb2.Value, obj: Any, where: str, session: Session, keys: dict[str, int], depth: int) -> None:
    """Writes an object as a value. `keys` has the index of each future's key, and gets new ones.
    `where` names the object in errors."""
    kind = type(obj)
    if isinstance(obj, Future):
        if obj._session is not session:
            raise ValueError(f"{where}: future {obj.key!r} belongs to another client: publish it there")
        value.input = keys.setdefault(obj._state.key, len(keys))
    elif kind in (list, tuple, dict):
        if depth == _serialize.DEPTH_LIMIT:
            raise _too_large(f"{where}: more than {_serialize.DEPTH_LIMIT} lists and dicts are inside of each other")
        if kind is dict:
            _fill_map(value.map_value, cast("dict[Any, Any]", obj), where, session, keys, depth)
            return
        value.list_value.SetInParent()
        for i, item in enumerate(obj):
            _fill(value.list_value.values.add(), item, f"{where}[{i}]", session, keys, depth + 1)
    else:
        _fill_leaf(value, obj)


def _fill_map(
    value: value_pb2.MapValue, obj: dict[Any, Any], where: str, session: Session, keys: dict[str, int], depth: int
) -> None:
    value.SetInParent()
    for key, item in obj.items():
        _fill(value.fields[key], item, f"{where}[{key!r}]", session, keys, depth + 1)
    order = list(obj)
    if order != sorted(order):
        value.order.extend(order)


def _fill_leaf(value: value_pb2.Value, obj: Any) -> None:
    """Raises NotPlain for an object that has no form in every language."""
    np = _numpy.loaded()  # without NumPy there can be no array
    array = np is not None and isinstance(obj, (np.ndarray, np.generic))
    if type(obj) not in _PLAIN and not array:
        raise _serialize.NotPlain
    _serialize.fill_argument(value, obj[()] if array and not obj.ndim else obj, _no_reference)


def is_plain(obj: Any) -> bool:
    """Returns whether an object that is no future, list, tuple or dict has a form in every
    language."""
    try:
        _fill_leaf(value_pb2.Value(), obj)
    except _serialize.NotPlain:
        return False
    return True


def is_text(text: str) -> bool:
    """Returns whether a text is valid Unicode, as the keys of a dict must be for other languages."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _read(value: value_pb2.Value, futures: list[Future[Any]]) -> Any:
    """Returns the object of a value. It unpickles nothing: another client wrote the value."""
    kind = value.WhichOneof("kind")
    if kind == "input":
        return futures[value.input]
    if kind == "list_value":
        return [_read(v, futures) for v in value.list_value.values]
    if kind == "map_value":
        fields: Mapping[str, value_pb2.Value] = value.map_value.fields
        return {k: _read(fields[k], futures) for k in _serialize.ordered(value.map_value)}
    if kind == "opaque_value":
        raise ValueError("a dataset holds a pickle, which is not read: its publisher must scatter the object instead")
    return _serialize.from_value(value, (), ())
