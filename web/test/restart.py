"""Runs some tasks, says "before", reads a line, runs some others, and says "after".

It ends when its standard input ends.
"""

from __future__ import annotations

import sys

from millrace import Client


def early(i: int) -> int:
    """Runs before the restart of the scheduler."""
    return i


def late(i: int) -> int:
    """Runs after it."""
    return i


with Client() as client:
    first = client.map(early, range(20))
    client.gather(first)
    print("before", flush=True)
    sys.stdin.readline()
    second = client.map(late, range(3))
    client.gather(second)
    print("after", flush=True)
    sys.stdin.read()
