"""Runs many short tasks at once, says "done", and ends when its standard input ends."""

from __future__ import annotations

import sys

from millrace import Client, ops, wait

with Client() as client:
    wait(client.map(ops.native("bench.sleep"), [0.0] * 20_000, pure=False))
    print("done", flush=True)
    sys.stdin.read()
