"""The moment at which the stop of a task is raised in its process."""

from __future__ import annotations

import signal
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import grpc._channel
import pytest
from conftest import PATIENCE
from millrace.executor._failure import TaskStopped
from millrace.executor._stopping import Stopping


class Interrupted:
    """A lock. SIGINT arrives when it has been taken, before its caller knows."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self) -> bool:
        self.lock.acquire()
        signal.raise_signal(signal.SIGINT)
        return True

    def __exit__(self, *exc: object) -> None:
        self.lock.release()


@pytest.mark.parametrize("file", [grpc._channel.__file__, __file__])
def test_a_stop_leaves_no_lock_of_a_channel_locked(file: str) -> None:
    control = SimpleNamespace(stop=0)
    stopping = Stopping(cast("Any", control))
    lock = Interrupted()
    call = compile("with condition:\n    inside.append(1)", file, "exec")
    inside: list[int] = []
    before = signal.signal(signal.SIGINT, stopping.on_signal)
    try:
        stopping.begin(7)
        control.stop = 7
        with pytest.raises(TaskStopped):
            exec(call, {"condition": threading.Condition(cast("Any", lock)), "inside": inside})
            # The stop comes again, because grpcio's part of the process is whole now.
            limit = time.monotonic() + PATIENCE
            while time.monotonic() < limit:
                time.sleep(0.01)
    finally:
        stopping.end()
        signal.signal(signal.SIGINT, before)
    # Without the file of grpcio, a stop is raised at once, in the middle of the program's own code.
    assert inside == ([1] if file == grpc._channel.__file__ else [])
    taken = threading.Thread(target=lambda: inside.append(2 if lock.acquire(blocking=False) else 3))
    taken.start()
    taken.join()
    assert inside[-1] == (2 if file == grpc._channel.__file__ else 3)
