"""Runs tasks whose inputs and arguments together exceed the largest message.

Prints "ok" if all of them arrive.
"""

import millrace


def make(i):
    return bytes([i % 251]) * 60_000


def total(parts):
    return sum(len(p) for p in parts), sum(p[0] for p in parts)


def length(data):
    return len(data)


with millrace.Client() as client:
    parts = client.map(make, range(INPUTS := 1500))
    got = client.submit(total, parts).result(timeout=240)
    assert got == (INPUTS * 60_000, sum(i % 251 for i in range(INPUTS))), got
    lengths = client.gather([client.submit(length, bytes([i]) * 4_000_000) for i in range(40)], timeout=240)
    assert lengths == [4_000_000] * 40, lengths
print("ok")
