"""Datasets: futures under a name, which all clients of a namespace can get."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, cast

from millrace import _check, errors
from millrace._arguments import Key
from millrace._pb.millrace.v1 import dataset_pb2
from millrace._session import Session
from millrace._trees import rebuild
from millrace.future import Future

#: Largest description of a dataset, in bytes.
_MOST_METADATA = 1 << 20


class Datasets:
    """The datasets of a client's namespace."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def publish(self, name: str, data: Any, *, override: bool) -> None:
        """See `Client.publish_dataset`."""
        _check.text(name, "name", 256)
        keys: list[str] = []
        shape = pickle.dumps(_stripped(data, self._session, keys))
        if len(shape) > _MOST_METADATA:
            error = errors.InvalidRequestError(
                f"dataset {name}: the lists, dicts and values that hold its futures take {_check.above(len(shape), _MOST_METADATA)}: "
                "scatter the data, and publish the futures"
            )
            error.reason = "TOO_LARGE"
            raise error
        self._session.flush()
        self._session.call(
            "PublishDataset",
            dataset_pb2.PublishDatasetRequest(
                client_id=self._session.client_id, name=name, keys=keys, metadata=shape, replace=override
            ),
        )

    def get(self, name: str) -> Any:
        """Returns the data published under a name, with futures of this client."""
        request = dataset_pb2.GetDatasetRequest(name=name, namespace=self._session.namespace)
        found: dataset_pb2.Dataset = self._session.call("GetDataset", request).dataset
        return _restored(pickle.loads(found.metadata), self._session)

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


def _stripped(tree: Any, session: Session, keys: list[str]) -> Any:
    """Returns the same lists, tuples and dicts with a `Key` in place of each future, and adds the
    keys of the futures to `keys`."""
    if isinstance(tree, Future):
        if tree._session is not session:
            raise ValueError(f"data: future {tree.key!r} belongs to another client: publish it there")
        keys.append(tree._state.key)
        return Key(tree._state.key)
    if isinstance(tree, dict):
        return {k: _stripped(v, session, keys) for k, v in cast("dict[Any, Any]", tree).items()}
    if isinstance(tree, (list, tuple)):
        return rebuild(tree, [_stripped(v, session, keys) for v in cast("Iterable[Any]", tree)])
    return tree


def _restored(tree: Any, session: Session) -> Any:
    """Returns the same lists, tuples and dicts with a future in place of each `Key`."""
    if isinstance(tree, Key):
        return Future[Any](session, session.hold(tree.key))
    if isinstance(tree, dict):
        return {k: _restored(v, session) for k, v in cast("dict[Any, Any]", tree).items()}
    if isinstance(tree, (list, tuple)):
        return rebuild(tree, [_restored(v, session) for v in cast("Iterable[Any]", tree)])
    return tree
