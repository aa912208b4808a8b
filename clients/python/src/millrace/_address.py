"""The addresses of schedulers: those that users give, and those that the environment and scheduler
files hold."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from millrace.cluster import LocalCluster

#: A host name or an IP address; IPv6 in brackets.
_HOST = re.compile(r"[\w.-]{1,253}|\[[0-9A-Fa-f:.]+(%\w+)?\]")


def _address(text: Any, place: str = "address") -> str:
    """Returns the host and port of an address, also of one such as "tcp://host:port". `place` is
    the source of the address, for error messages."""
    if not isinstance(text, str):
        raise TypeError(f'{place} must be "host:port" or a LocalCluster, not {text!r}')
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


def find(
    address: str | LocalCluster | None, token: str | None, file: str | os.PathLike[str] | None
) -> tuple[str, str] | None:
    """Returns address and token by argument, else environment, else scheduler file; None if no
    cluster is named."""
    if isinstance(address, LocalCluster):
        address.check()
        return address.address, address.token
    if address is not None:
        return _address(address), token if token is not None else os.environ.get("MILLRACE_TOKEN", "")
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
