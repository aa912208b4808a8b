"""Metadata: a tree of small values that the scheduler keeps for all clients of a namespace."""

from __future__ import annotations

from typing import Any, cast

from millrace import _check, errors
from millrace._calls._coordination import restored, stored
from millrace._pb.millrace.v1 import coordination_pb2, value_pb2
from millrace._session._session import Session
from millrace._values import _keys

#: Deepest level of the tree.
_MOST_LEVELS = 30


def set_metadata(session: Session, key: Any, value: Any) -> None:
    """Puts a value at a path; dicts become subtrees."""
    path = _path(key)
    if not path:
        raise ValueError("key: an empty list names nothing: give a key, or a list of keys")
    request = coordination_pb2.SetMetadataRequest(client_id=session.client_id, path=path)
    _fill(session, request.value, value, "/".join(path), len(path))
    session.call("SetMetadata", request)


def get_metadata(session: Session, keys: Any) -> tuple[bool, Any]:
    """Returns whether there is something at a path, and the value."""
    request = coordination_pb2.GetMetadataRequest(client_id=session.client_id, path=_path(keys))
    answer = session.call("GetMetadata", request)
    return answer.found, _read(session, answer.value) if answer.found else None


def _path(keys: Any) -> list[str]:
    listed = cast("list[Any]", list(keys)) if isinstance(keys, (list, tuple)) else [keys]
    if len(listed) > _MOST_LEVELS:
        raise ValueError(f"keys: metadata have at most {_MOST_LEVELS} levels, not {len(listed)}")
    return [_name(key) for key in listed]


def _name(key: Any) -> str:
    return _check.text(_keys.to_wire(key), "keys: a key", 256)


def _fill(session: Session, value: value_pb2.Value, obj: Any, where: str, level: int) -> None:
    if type(obj) is not dict:
        packed, _ = stored(session, obj, f"metadata {where}")
        if packed.keys:
            raise TypeError(f"metadata {where}: futures cannot be metadata: use a Variable, which keeps their results")
        value.CopyFrom(packed.value)
        return
    if level > _MOST_LEVELS:
        raise errors.InvalidRequestError(f"metadata {where}: more than {_MOST_LEVELS} levels: make the data flatter")
    value.map_value.SetInParent()
    order: list[str] = []
    for key, item in cast("dict[Any, Any]", obj).items():
        name = _name(key)
        order.append(name)
        _fill(session, value.map_value.fields[name], item, f"{where}/{name}", level + 1)
    if order != sorted(order):
        value.map_value.order.extend(order)


def _read(session: Session, value: value_pb2.Value) -> Any:
    if value.WhichOneof("kind") != "map_value":
        return restored(session, coordination_pb2.StoredValue(value=value))
    fields = value.map_value.fields
    order = list(value.map_value.order) or sorted(fields)
    return {_keys.from_wire(name): _read(session, fields[name]) for name in order}
