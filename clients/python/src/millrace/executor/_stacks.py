"""Describes the task that runs in this process."""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from millrace.executor import _task_info

_OURS = str(Path(__file__).parent)


def call_stack() -> list[tuple[Any, list[str]]]:
    """Returns the key of the task that runs in this process and the lines of its call stack, the
    outermost frame first; nothing if no task runs."""
    task = _task_info.current
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if task is None or frame is None:
        return []
    frames = traceback.extract_stack(frame)
    while frames and frames[0].filename.startswith((_OURS, "<frozen runpy>")):
        del frames[0]
    lines = [f'  File "{f.filename}", line {f.lineno}, in {f.name}\n\t{f.line}\n' for f in frames]
    return [(task.key, lines)]
