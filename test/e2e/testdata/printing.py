"""Runs tasks that print bytes that are not text, and long multi-byte text, which a limit may cut
inside of a character.

Prints "ok" if all of them end.
"""

import os
import sys
import time

import millrace


def blocks(times, offset, fail):
    sys.stdout.write("x" * offset + "█" * times)
    sys.stdout.flush()
    time.sleep(0.05)  # until the report that it has begun has arrived
    if fail:
        raise ValueError("█" * times)
    return times


def raw(data, fail):
    os.write(1, data)
    if fail:
        raise ValueError(data.decode("latin-1"))
    return len(data)


with millrace.Client() as client:
    expected, futures = [], []
    for fail in (False, True):
        for times in (5000, 5001, 30001):
            for offset in range(3):
                futures.append(client.submit(blocks, times, offset, fail))
                expected.append(None if fail else times)
        for data in (b"\xff\n", b"caf\xe9 " * 5000, b"\x80" * 70000, "😀".encode() * 5001):
            futures.append(client.submit(raw, data, fail))
            expected.append(None if fail else len(data))
    for future, want in zip(futures, expected, strict=True):
        try:
            got = future.result(timeout=120)
        except ValueError:
            got = None
        assert got == want, (future.key, got, want)
print("ok")
