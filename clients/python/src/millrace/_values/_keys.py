"""Keys: the names that users give to results, and their text form on the wire.

A user's key is a str, bytes, int, float or bool, or a tuple of these and None, which may be
nested: Dask names chunks ("x", 0, 1). The cluster's keys are text. `to_wire` gives each user's key
a text of its own, so that ("x", 1), "('x', 1)" and "x-1" are three keys, and 1, 1.0 and "1" as
well:

- a str is unchanged, unless it is empty, begins with "=" or is not valid Unicode;
- every other key becomes "=" and its Python literal: ("x", 1) is "=('x', 1)".

`from_wire` converts the text back to the key. Values that are equal in Python but have different
types (1, 1.0 and True) are different keys. Subclasses and NumPy scalars count as the plain type:
numpy.int64(1) and 1 are one key.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Iterable
from typing import Any, TypeAlias

from millrace._values import _numpy

#: The types that a key of a result may have. Inside a tuple, None is allowed as well.
UserKey: TypeAlias = "str | bytes | int | float | tuple[Any, ...]"

#: Longest key on the wire, in bytes.
MOST_BYTES = 1024
#: The last part of a key that only distinguishes it: digits, or a digest.
_MARK = re.compile(r"-(?:\d+|[0-9a-f]{8,})$")
_KINDS = "a key is a str, bytes, int or float, or a tuple of these"


def to_wire(key: Any, what: str = "key") -> str:
    """Returns the text that stands for a key.

    Args:
        key: the user's key.
        what: the argument's name, for the error.

    Raises:
        TypeError: the key, or a part of it, has a type that keys cannot have.
        ValueError: it is longer than MOST_BYTES on the wire, or contains nan.
    """
    if isinstance(key, str) and type(key) is not str:
        key = str.__str__(key)
    if type(key) is str and key and key[0] != "=":
        try:
            size = len(key) if key.isascii() else len(key.encode())
        except UnicodeEncodeError:  # lone surrogates
            pass
        else:
            if size > MOST_BYTES:
                raise too_long(what, key, size)
            return key
    text = "=" + _literal(key, what)
    size = len(text) if text.isascii() else len(text.encode())
    if size > MOST_BYTES:
        raise too_long(what, key, size)
    return text


def too_long(what: str, key: Any, size: int) -> ValueError:
    return ValueError(
        f"{what}: {short(key)} takes {size:,} bytes, and a key has at most {MOST_BYTES:,}: choose a shorter one, "
        "for example a digest of it"
    )


def short(key: Any) -> str:
    """Returns a key for an error message, shortened."""
    text = repr(key)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-12:]}"


def _literal(key: Any, what: str) -> str:
    kind = type(key)
    if kind is tuple:
        parts = [_literal(k, what) for k in key]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if key is None or kind is bool or kind is int or kind is bytes:
        return repr(key)
    if kind is str:
        return repr(key).encode("utf-8", "backslashreplace").decode()
    if kind is float:
        if math.isnan(key):
            raise ValueError(f"{what}: nan is not equal to itself, so it cannot name anything")
        return repr(key) if math.isfinite(key) else "1e999" if key > 0 else "-1e999"
    if isinstance(key, str):
        return _literal(str.__str__(key), what)
    if isinstance(key, bytes):
        return repr(bytes(key))
    if isinstance(key, tuple):  # a named tuple
        return _literal(tuple(key), what)
    np = _numpy.loaded()
    if np is not None and isinstance(key, (np.integer, np.floating, np.bool_)):
        return _literal(key.item(), what)
    if isinstance(key, int):
        return repr(int(key))
    if isinstance(key, float):
        return _literal(float(key), what)
    raise TypeError(f"{what}: a {kind.__module__}.{kind.__qualname__} cannot name a result: {_KINDS}")


@functools.lru_cache(4096)
def _parsed(wire: str) -> Any:
    try:
        return ast.literal_eval(wire[1:])
    # No Python literal: another client uses this text as its key.
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return wire


def from_wire(wire: str) -> Any:
    """Returns the user's key for a text of the wire."""
    return _parsed(wire) if wire.startswith("=") else wire


def name(wire: str) -> str:
    """Returns a key for a message, as the user wrote it: ("x", 1) instead of =('x', 1)."""
    return wire[1:] if wire.startswith("=") and _parsed(wire) != wire else wire


def named(text: str, wires: Iterable[str]) -> str:
    """Replaces these wire texts of keys, where a message of the cluster has them, by the form that
    users write."""
    for wire in sorted(wires, key=len, reverse=True):
        if wire.startswith("="):
            text = re.sub(rf"(?<![\w=]){re.escape(wire)}(?!\w)", lambda _, w=wire: name(w), text)
    return text


def prefix(key: Any) -> str:
    """Returns the part of a key that names its function: "inc" for "inc-5f2b..." and for
    ("inc-5f2b...", 0)."""
    while isinstance(key, tuple) and key:
        key = key[0]
    text = key if isinstance(key, str) else str(key)
    while (shorter := _MARK.sub("", text)) != text:
        text = shorter
    return text


def marked(key: Any, token: str, number: int) -> str:
    """Returns the wire text of a key of a dict graph. It is marked with the graph's token, so that
    graphs do not share names. A key that `to_wire` refuses is replaced by the name of its type
    and `number`, its position in the graph."""
    try:
        if type(key) is str:
            return to_wire(f"{key}-{token}")
        if type(key) is tuple and key and type(key[0]) is str:
            return to_wire((f"{key[0]}-{token}", *key[1:]))
        return to_wire((key, token))
    except (TypeError, ValueError):
        return f"{type(key).__name__[:64]}-{number}-{token}"
