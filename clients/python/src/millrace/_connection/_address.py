"""The addresses of schedulers: those that users give, and those that the environment and scheduler
files hold."""

from __future__ import annotations

import json
import os
import re
import socket
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast


class Joinable(Protocol):
    """A cluster that clients can join, as far as this module knows it: a LocalCluster."""

    @property
    def address(self) -> str: ...

    @property
    def token(self) -> str: ...

    def check(self) -> None:
        """Raises an error if the cluster has ended."""


#: The clusters that this process has started and that run, by address.
running: weakref.WeakValueDictionary[str, Joinable] = weakref.WeakValueDictionary()

#: A host name or an IP address; IPv6 in brackets.
_HOST = re.compile(r"[\w.-]{1,253}|\[[0-9A-Fa-f:.]+(%\w+)?\]")


def _address(text: Any, place: str = "address") -> str:
    """Returns the host and port of an address, also of one such as "tcp://host:port", or those of
    several with commas between them. `place` is the source of the address, for error messages."""
    if not isinstance(text, str):
        raise TypeError(f'{place} must be "host:port" or a LocalCluster, not {text!r}')
    if "," not in text:
        return _one(text, place)
    several: list[str] = []
    for part in text.split(","):
        if not part.strip():
            raise ValueError(
                f'{place}: {text!r} has an empty address: give "host:port,host:port,..." with one comma between two of them'
            )
        one = _one(part, place)
        if one in several:
            raise ValueError(f"{place}: {text!r} has the address {one} twice: give each scheduler once")
        several.append(one)
    return ",".join(several)


def _one(text: str, place: str) -> str:
    """Returns the host and port of one address."""
    text = text.strip()
    scheme, mark, rest = text.partition("://")
    if not mark:
        rest = text
    elif scheme not in ("tcp", "grpc", "millrace"):
        raise ValueError(f'{place}: {text!r} has the scheme {scheme}: clients speak gRPC, give "host:port"')
    rest = rest.strip().rstrip("/")
    if rest.startswith("unix:"):
        return rest
    host, _, port = rest.rpartition(":")
    if not _HOST.fullmatch(host) or not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ValueError(
            f'{place}: {text!r} is not an address of a scheduler: give "host:port", as `millrace up` prints it'
        )
    return rest


def same(address: str, *, resolve: bool) -> Callable[[str], bool]:
    """Returns a function that tells whether an address is that of the same scheduler, or of the same
    group of schedulers: both have one in common. With `resolve`, names of one host are equal."""
    where = _address(address).split(",")

    def resolved(text: str) -> str | tuple[Any, ...]:
        if text.startswith("unix:"):
            return text
        host, _, port = text.rpartition(":")
        try:
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except OSError:
            return text
        return found[0][4][:2]

    def is_same(text: str) -> bool:
        there = _address(text).split(",")
        if not set(there).isdisjoint(where):
            return True
        return resolve and not {resolved(a) for a in there}.isdisjoint(resolved(a) for a in where)

    return is_same


def find(
    address: str | Joinable | None, token: str | None, file: str | os.PathLike[str] | None
) -> tuple[str, str] | None:
    """Returns address and token by argument, else environment, else scheduler file; None if no
    cluster is named."""
    if isinstance(address, type):
        raise TypeError(f"Scheduler address must be a string or a Cluster instance, not the class {address.__name__}")
    if address is not None and hasattr(address, "check"):
        address = cast("Joinable", address)
        address.check()
        return address.address, address.token
    if address is not None:
        where = _address(address)
        if token is None:
            own = running.get(where)
            token = own.token if own is not None else os.environ.get("MILLRACE_TOKEN", "")
        return where, token
    if file is None:
        if os.environ.get("MILLRACE_ADDRESS"):
            return _address(os.environ["MILLRACE_ADDRESS"], "MILLRACE_ADDRESS"), token or os.environ.get(
                "MILLRACE_TOKEN", ""
            )
        file = os.environ.get("MILLRACE_SCHEDULER_FILE")
    if file is None:
        return None
    return _from_file(file, token)


def _from_file(file: str | os.PathLike[str], token: str | None) -> tuple[str, str]:
    """Returns address and token of a scheduler file."""
    place = f"scheduler file {os.fspath(file)!r}"
    remedy = "name the file that `millrace up` wrote"
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as e:
        raise ValueError(f"{place}: {e.strerror or e}. Is the cluster running?") from e
    except ValueError as e:
        raise ValueError(f"{place}: it is not text: {e}; {remedy}") from e
    if not text.strip():
        raise ValueError(f"{place}: it is empty; {remedy}")
    try:
        info = json.loads(text)
    except ValueError as e:
        raise ValueError(f"{place}: it is not JSON: {e}; {remedy}") from e
    if not isinstance(info, dict) or not isinstance(info.get("address"), str) or not info["address"]:
        raise ValueError(f'{place}: it has no "address"; {remedy}')
    found = token or info.get("token") or ""
    if not isinstance(found, str):
        raise ValueError(f'{place}: its "token" is not a text; {remedy}')
    return _address(info["address"], place), found
