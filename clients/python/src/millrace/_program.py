"""The program millrace, as far as it comes with this package, and the command of this name that an
installed package has."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def packaged() -> str:
    """Returns the path of the program in this package, else of that in the checkout that this
    package is part of; empty if there is none."""
    here = Path(__file__).resolve()
    for candidate in (here.parent / "bin" / "millrace", *(p / "bin" / "millrace" for p in here.parents[2:6])):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    return ""


def main() -> None:
    """Runs the program with the arguments of this process."""
    program = packaged()
    if not program:
        sys.exit(
            "millrace: this installation has the Python package without the program: install a wheel that `make wheel` has "
            "made, or run `make build` in a checkout"
        )
    os.execv(program, ["millrace", *sys.argv[1:]])
