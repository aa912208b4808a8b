"""NumPy, if the process has imported it. Without it there can be no array."""

from __future__ import annotations

import sys
from typing import Any

_numpy: Any = None


def loaded() -> Any:
    """Returns the module numpy; None if it is not imported, or another thread is still importing
    it: a module that is being imported lacks names."""
    global _numpy
    if _numpy is None:
        found = sys.modules.get("numpy")
        if found is None or getattr(found.__spec__, "_initializing", False):
            return None
        _numpy = found
    return _numpy
