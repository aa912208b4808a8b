"""Makes a graph slow for the reason that is its argument: route, straggler or spilling.

The graph with the slow route reads on the worker "near-0" from "far-0", and from two other workers
that are as near as they say. The program ends when its standard input ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np
from millrace import Client


def produce(i: int) -> np.ndarray:
    """Makes 2 MiB."""
    return np.full(1 << 18, i, dtype=np.float64)


def consume(block: np.ndarray) -> float:
    """Reads 2 MiB."""
    return float(block[0])


def resize(i: int) -> int:
    """Takes 20 ms, and number 31 takes 8 s."""
    time.sleep(8 if i == 31 else 0.02)
    return i


def tile(i: int) -> np.ndarray:
    """Makes 4 MiB."""
    return np.random.default_rng(i).random(1 << 19)


def blur(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Reads 8 MiB and makes 4 MiB."""
    return (a + b) / 2


def main() -> None:
    """Runs the graph of one cause."""
    client = Client()
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    cause = sys.argv[1]
    if cause == "route":
        while True:  # until the page has shown it: routes are compared every ten seconds
            blocks = [
                block
                for source in ("host-0", "host-1", "far-0")
                for block in client.map(produce, range(4), workers=source, pure=False)
            ]
            client.gather(client.map(consume, blocks, workers="near-0", pure=False))
    elif cause == "straggler":
        client.gather(client.map(resize, range(40)))
    else:
        tiles = client.map(tile, range(30))
        for step in (1, 7, 13):
            tiles = client.map(blur, tiles, tiles[step:] + tiles[:step])
        client.gather([client.submit(float, client.submit(np.sum, t)) for t in tiles])
    threading.Event().wait()


if __name__ == "__main__":
    main()
