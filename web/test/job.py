"""Work for the tests of the dashboard: it spills, fails, has a straggler and writes output.

It prints "begun" when its first graph is done, and goes on with small tasks until its standard
input ends. Its results stay held until then.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
from millrace import Client


def load(i: int) -> np.ndarray:
    """Makes 3 MiB."""
    return np.random.default_rng(i).random((768, 512))


def clean(block: np.ndarray) -> np.ndarray:
    """Reads 3 MiB and makes as much."""
    return np.nan_to_num(block) * 2


def join(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Needs two blocks, one of them often from another worker."""
    time.sleep(0.02)
    return left + right


def part(block: np.ndarray) -> float:
    """Reads 3 MiB and makes a number."""
    return float(block.sum())


def total(parts: list[float]) -> float:
    """Needs all parts."""
    return sum(parts)


def score(i: int) -> int:
    """Takes a while, and number 7 is a straggler."""
    time.sleep(2.5 if i == 7 else 0.01 + 0.03 * (i % 5))
    if i % 20 == 0:
        print(f"scored {i}")
    return i * i


def parse(i: int) -> int:
    """Fails for one line."""
    if i == 3:
        print("line 3: not a number")
        raise ValueError("line 3 is not a number: 'x7'")
    return i


def report(lines: list[int]) -> int:
    """Cannot run, because one of its inputs fails."""
    return sum(lines)


def main() -> None:
    """Runs the work."""
    client = Client()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    blocks = client.map(load, range(24))
    cleaned = client.map(clean, blocks)
    joined = [client.submit(join, a, b) for a, b in zip(cleaned, cleaned[5:] + cleaned[:5], strict=True)]
    answer = client.submit(total, client.map(part, joined))
    scores = client.map(score, range(60))
    lines = client.map(parse, range(6))
    broken = client.submit(report, lines)
    answer.result()
    client.gather(scores)
    broken.exception()
    client.publish_dataset(cleaned=cleaned[:4])
    print("begun", flush=True)
    n, pause = 100, 0.5
    while not ended.wait(pause):
        client.gather(client.map(score, range(n, n + 12)))
        # Many more tasks would make the straggler too small a part of all to be one.
        n, pause = n + 12, min(1.04 * pause, 5)
    client.close()


if __name__ == "__main__":
    main()
