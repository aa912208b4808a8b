"""Measures how fast workers get results from each other."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence

from millrace._connection._steps import Steps
from millrace._session._session import Session
from millrace._tasks._scatter import Scatter, replicate
from millrace._tasks._task_maker import TaskMaker
from millrace.executor._hardware import SIZES

#: Results of each size that one worker gets from another one.
_TIMES = 3
#: Sizes of results that are copied.
NETWORK = ("1 kiB", "100 kiB", "1 MiB", "10 MiB")


def network(session: Session, maker: TaskMaker, workers: Sequence[str]) -> Steps[dict[str, float]]:
    """Returns the bytes per second with which one worker gets results of each size from another
    one, with the time of the scheduler, as the mean of random pairs of workers; nothing if there is
    only one."""
    shuffled = random.sample(list(workers), len(workers))
    found: dict[str, list[float]] = {}
    for source, target in zip(shuffled[::2], shuffled[1::2], strict=False):
        place = Scatter(session, maker, workers=[source], broadcast=False, by_hash=False, timeout=30.0)
        for name in NETWORK:
            size = SIZES[name]
            futures = yield from place.put([os.urandom(size) for _ in range(_TIMES)], None)
            began = time.perf_counter()
            yield from replicate(session, maker, futures, None, [target])
            found.setdefault(name, []).append(_TIMES * size / (time.perf_counter() - began))
    return {name: sum(speeds) / len(speeds) for name, speeds in found.items()}
