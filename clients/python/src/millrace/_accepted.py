"""Arguments of Dask's distributed that need no setting here. They are accepted, and a line in the
log says why; none is ignored in silence."""

from __future__ import annotations

import logging
import threading
from typing import Any

_log = logging.getLogger("millrace")
_lock = threading.Lock()
# The arguments that the log has already. Guarded by _lock.
_said: set[tuple[str, str]] = set()


def accept(function: str, argument: str, value: Any, why: str) -> None:
    """Logs, once per process and argument, why an argument has no effect. Does nothing if it was
    not given, so that its value is None."""
    if value is None:
        return
    with _lock:
        if (function, argument) in _said:
            return
        _said.add((function, argument))
    _log.warning("%s: %s=%.80r has no effect: %s", function, argument, value, why)


#: Why `direct` of gather and scatter has no effect.
DIRECT = "clients always exchange bulk data with the workers themselves, never through the scheduler"
