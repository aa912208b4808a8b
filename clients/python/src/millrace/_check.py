"""Checks of the arguments that a user passes, made at the call: an error names the parameter, its
value and the allowed values."""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

#: A time: seconds, a timedelta, or text with a unit ("500 ms", "5s", "2 min").
Seconds: TypeAlias = "float | timedelta | str"

_UNITS = {
    "": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "us": 1e-6, "µs": 1e-6, "ms": 1e-3,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_TIME = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zµ]*)\s*")
_FORMS = 'seconds, a timedelta, or text such as "500 ms", "5s" or "2 min"'


def seconds(value: Any, what: str) -> float:
    """Returns a time in seconds, 0 or longer; infinity is allowed."""
    if isinstance(value, timedelta):
        out = value.total_seconds()
    elif isinstance(value, str):
        match = _TIME.fullmatch(value)
        if match is None or match[2] not in _UNITS:
            raise ValueError(f"{what}: {value!r} is no time: give {_FORMS}")
        out = float(match[1]) * _UNITS[match[2]]
    else:
        try:
            out = float(operator.index(value)) if not isinstance(value, float) else value
        except TypeError:
            try:  # a NumPy scalar or a Decimal
                out = float(value)
            except (TypeError, ValueError):
                raise TypeError(f"{what}: a {type(value).__name__} is no time: give {_FORMS}") from None
    if math.isnan(out) or out < 0:
        raise ValueError(f"{what} must be 0 or longer, not {value!r}")
    return out


def longest(value: Seconds | None, what: str = "timeout") -> float | None:
    """Returns the longest wait in seconds; None: without a limit, also for more than 100 years."""
    if value is None:
        return None
    out = seconds(value, what)
    return out if out < 3.2e9 else None


def integer(value: Any, what: str, low: int, high: int) -> int:
    """Returns a whole number in a range. True and 1.0 are refused."""
    if isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    try:
        out = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, not {value!r}") from None
    if not low <= out <= high:
        raise ValueError(f"{what} must be from {low} to {high}, not {out}")
    return out


def boolean(value: Any, what: str) -> bool:
    """Returns True or False. Other values are refused, also 0 and 1."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {value!r}")
    return value


def switch(word: str, what: str) -> bool:
    """Returns what a variable of the environment says."""
    if word.lower() in ("1", "true", "yes", "on"):
        return True
    if word.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{what} is 1 or 0, not {word!r}")


def choice(value: Any, what: str, choices: tuple[str, ...]) -> str:
    """Returns the value, or raises ValueError if it is none of the choices."""
    if value not in choices:
        raise ValueError(f"{what}: {value!r} is none of {', '.join(map(repr, choices))}")
    return value


def names(value: Any, what: str) -> list[str] | None:
    """Returns names of workers as a list, from one name or several; None stands for all workers."""
    if value is None:
        return None
    listed: list[Any] = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    for name in listed:
        if not isinstance(name, str):
            raise TypeError(f"{what}: {name!r} is no name of a worker: give names, ids or hosts as text")
        text(name, what)
        if not name:
            raise ValueError(f"{what}: the name of a worker cannot be empty")
    return listed


def resources(value: Any) -> dict[str, float]:
    """Returns resource amounts by name."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f'resources must be a dict such as {{"licence": 1}}, not {value!r}')
    if len(value) > 32:
        raise ValueError(f"resources: a task can take 32 of them, not {len(value)}")
    out: dict[str, float] = {}
    for name, amount in value.items():
        if not isinstance(name, str) or not 1 <= len(name) <= 128:
            raise ValueError(f"resources: {name!r} is no name: give a text of 1 to 128 characters")
        text(name, "resources")
        try:
            number = float(amount)
        except (TypeError, ValueError):
            raise TypeError(f"resources: the amount of {name} must be a number, not {amount!r}") from None
        if not math.isfinite(number) or number <= 0:
            raise ValueError(f"resources: the amount of {name} must be finite and greater than 0, not {amount!r}")
        out[name] = number
    return out


def text(value: Any, what: str, most: int | None = None) -> str:
    """Returns text that can be sent: valid Unicode of at most `most` characters."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what}: {value!r} is not valid Unicode") from None
    if most is not None and len(value) > most:
        raise ValueError(f"{what} has at most {most} characters, not {len(value)}")
    return value


_SIZES = {
    "": 1,
    **{u + b: base ** (i + 1) for i, u in enumerate("kmgtp") for b, base in (("", 1000), ("b", 1000), ("ib", 1024))},
    "b": 1,
}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)\s*([a-z]*)\s*")


def byte_count(value: Any, what: str) -> int:
    """Returns a number of bytes, from a number or from text with a unit ("4GiB", "500 MB")."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.lower())
        if match is None or match[2] not in _SIZES:
            raise ValueError(f'{what}: {value!r} is no amount of memory: give bytes, or text such as "4GiB"')
        return int(float(match[1]) * _SIZES[match[2]])
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise TypeError(f'{what} must be bytes, or text such as "4GiB", not {value!r}')
    return int(value)


def size(count: int) -> str:
    """Formats a number of bytes for people, in the units that limits are given in."""
    return f"{count / 2**20:.1f} MiB" if count >= 1 << 20 else f"{count / 2**10:.1f} KiB"


def above(count: int, limit: int, what: str = "") -> str:
    """Formats a size and the limit that it exceeds, for people; in bytes if rounding would make
    both equal."""
    if size(count) == size(limit):
        return f"{count} bytes{what}, and the limit is {limit}"
    return f"{size(count)}{what}, and the limit is {size(limit)}"


_HERE = str(Path(__file__).parent)


def outside_stacklevel() -> int:
    """Returns the stacklevel for a warning of the caller: that of the first frame outside of this
    package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame, level = frame.f_back, level + 1
    return level
