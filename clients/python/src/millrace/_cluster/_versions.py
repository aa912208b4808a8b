"""The versions of Python and of packages in a process."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Mapping
from typing import Any

#: Packages whose versions are always told.
PACKAGES = ("millrace", "cloudpickle", "numpy", "pandas", "pyarrow", "dask", "cupy", "torch")


def describe(packages: Iterable[str] = ()) -> dict[str, Any]:
    """Returns the versions in this process. A package that is not installed has the version
    None."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in (*PACKAGES, *packages):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = getattr(sys.modules.get(name), "__version__", None)
    system = platform.uname()
    host = {"OS": system.system, "OS-release": system.release, "machine": system.machine, "executable": sys.executable}
    return {"host": host, "packages": found}


def differences(client: Mapping[str, Any], workers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a line for each package whose versions differ from the client's on some worker."""
    lines: list[str] = []
    for package, here in client["packages"].items():
        there: dict[str, list[str]] = {}
        for name, versions in workers.items():
            other = versions["packages"].get(package)
            if other != here:
                there.setdefault(other or "not installed", []).append(name)
        if there:
            told = "; ".join(f"{version} on {', '.join(sorted(names))}" for version, names in sorted(there.items()))
            lines.append(f"{package}: {here or 'not installed'} in the client, {told}")
    return lines
