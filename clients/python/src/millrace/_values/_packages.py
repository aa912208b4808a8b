"""The packages that a pickle refers to, and their versions on both sides.

An executor that cannot unpickle something tells the versions of the packages that the pickle names.
The client compares them with its own.
"""

from __future__ import annotations

import importlib.metadata
import pickletools
import re

#: Most packages that are told.
_MOST = 12
_TOLD = re.compile(r" Its packages there: ([^;]*);")


def told(payload: bytes) -> str:
    """Returns a sentence with the versions that the packages in a pickle have in this process;
    empty if it names none."""
    tops: set[str] = set()
    try:
        for _, argument, _ in pickletools.genops(payload):
            if isinstance(argument, str):
                # A module, or "module name" of an old protocol.
                top = argument.partition(" ")[0].partition(".")[0]
                if top.isidentifier():
                    tops.add(top)
    except Exception:
        pass  # no whole pickle: those that were found are told
    owners = importlib.metadata.packages_distributions()
    # Python 3.10 does not know the owners of all modules: most packages have the module's name.
    names = {owner for top in tops for owner in owners.get(top) or (top,)} - {"millrace"}
    there = [f"{name} {version}" for name in sorted(names) if (version := _version(name)) is not None]
    return f" Its packages there: {', '.join(there[:_MOST])};" if there else ""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def compared(message: str) -> str:
    """Replaces the sentence of `told` in a message by one that names the packages whose versions
    differ in this process."""
    found = _TOLD.search(message)
    if found is None:
        return message
    differ: list[str] = []
    for package in found[1].split(", "):
        name, _, there = package.rpartition(" ")
        here = _version(name) or "not installed"
        if here != there:
            differ.append(f"{name} is {there} there and {here} in the client")
    text = (
        f" Versions differ: {'; '.join(differ)}." if differ else " Its packages have the same versions in the client."
    )
    return message[: found.start()] + text + message[found.end() :]
