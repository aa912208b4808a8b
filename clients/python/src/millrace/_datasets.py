"""Datasets: values with futures under a name, which all clients of a namespace can read, in any
language."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Mapping
from typing import Any, cast

from millrace import _check, _serialize, errors
from millrace._pb.millrace.v1 import dataset_pb2, value_pb2
from millrace._session import Session
from millrace.future import Future

#: Largest serialised value of a dataset, in bytes.
_MOST_VALUE = 1 << 20
#: Most futures of a dataset.
_MOST_KEYS = 100_000

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Datasets:
    """The datasets of a client's namespace."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def publish(self, name: str, data: Any, *, override: bool) -> None:
        """See `Client.publish_dataset`."""
        _check.text(name, "name", 256)
        session = self._session
        request = dataset_pb2.PublishDatasetRequest(client_id=session.client_id, name=name, replace=override)
        keys: dict[str, int] = {}
        _fill(request.value, data, f"dataset {name}: data", session, keys, 0)
        if (size := request.value.ByteSize()) > _MOST_VALUE:
            raise _too_large(f"dataset {name}: the value without its futures takes {_check.above(size, _MOST_VALUE)}")
        if len(keys) > _MOST_KEYS:
            raise _too_large(f"dataset {name}: it has {len(keys)} different futures, and the limit is {_MOST_KEYS}")
        request.keys.extend(keys)
        session.flush()
        session.call("PublishDataset", request)

    def get(self, name: str) -> Any:
        """Returns the value published under a name, with futures of this client."""
        request = dataset_pb2.GetDatasetRequest(name=name, namespace=self._session.namespace)
        found: dataset_pb2.Dataset = self._session.call("GetDataset", request).dataset
        states = self._session.hold_all(found.keys)
        futures = [Future[Any](self._session, state) for state in states]
        return _read(found.value, futures)

    def names(self) -> list[str]:
        """Returns the names of the datasets in this namespace."""
        names: list[str] = []
        token = ""
        while True:
            page = self._session.call(
                "ListDatasets",
                dataset_pb2.ListDatasetsRequest(page_size=1000, page_token=token, namespace=self._session.namespace),
            )
            names += [d.name for d in page.datasets]
            token = page.next_page_token
            if not token:
                return names

    def unpublish(self, name: str) -> None:
        """Removes the name; the results are freed once no other client holds them."""
        request = dataset_pb2.UnpublishDatasetRequest(name=name, namespace=self._session.namespace)
        self._session.call("UnpublishDataset", request)


def _too_large(message: str) -> errors.InvalidRequestError:
    error = errors.InvalidRequestError(f"{message}: scatter the data, and publish the futures")
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
            raise TypeError(
                f"{where}: more than {_serialize.DEPTH_LIMIT} lists and dicts are inside of each other: make the data flatter"
            )
        if kind is dict:
            _fill_map(value.map_value, cast("dict[Any, Any]", obj), where, session, keys, depth)
            return
        value.list_value.SetInParent()
        for i, item in enumerate(obj):
            _fill(value.list_value.values.add(), item, f"{where}[{i}]", session, keys, depth + 1)
    else:
        _fill_leaf(value, obj, where)


def _fill_map(
    value: value_pb2.MapValue, obj: dict[Any, Any], where: str, session: Session, keys: dict[str, int], depth: int
) -> None:
    value.SetInParent()
    for key, item in obj.items():
        if type(key) is not str:
            raise TypeError(f"{where}: key {key!r} is of type {type(key).__qualname__}: the keys of a dict must be str")
        _check.text(key, f"{where}: key {key!r}")
        _fill(value.fields[key], item, f"{where}[{key!r}]", session, keys, depth + 1)
    order = list(obj)
    if order != sorted(order):
        value.order.extend(order)


def _fill_leaf(value: value_pb2.Value, obj: Any, where: str) -> None:
    np = sys.modules.get("numpy")  # without NumPy there can be no array
    array = np is not None and isinstance(obj, (np.ndarray, np.generic))
    if type(obj) in _PLAIN or array:
        if array and not obj.ndim:
            obj = obj[()]
        try:
            _serialize.fill_argument(value, obj, _no_reference)
            return
        except _serialize.NotPlain:
            pass
    name = _type_name(obj)
    what = f"a {name} of {obj.dtype} and {_check.size(obj.nbytes)}" if array else f"{reprlib.repr(obj)} of type {name}"
    raise TypeError(
        f"{where}: {what} is no value that every language reads. Futures, None, bool, int of 64 bits, float, complex, "
        "str, bytes, arrays of native operations' element types up to 64 KiB, and lists, tuples and dicts of these are. "
        "Scatter it with client.scatter(), and publish the future"
    )


def _type_name(obj: Any) -> str:
    kind = type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


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
