"""Shared parts of the measuring examples: a line for each figure, progress on a terminal, and the
end with "ok" or "failed"."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from millrace import Client, Future, as_completed, native


def flags(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repetitions", type=int, default=3, help="timed runs of each, after one run that is not timed (default 3)"
    )
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--progress", action="store_true", help="count tasks even if this is not a terminal")
    return parser


class Report:
    """Measured figures, and the largest difference to a check."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rows: list[dict[str, Any]] = []
        self._options = options
        self._show = options.progress or sys.stderr.isatty()
        self._worst = 0.0

    def progress(self, futures: Iterable[Future[Any]], label: str) -> None:
        """Counts tasks as they end, if the user asks for it, because handling each end adds to the
        measured time."""
        futures = list(futures)
        if not self._show:
            return
        terminal, total = sys.stderr.isatty(), len(futures)
        for done, _ in enumerate(as_completed(futures), 1):
            if terminal:
                print(f"\r{label}: {done}/{total}", end="" if done < total else "\n", file=sys.stderr, flush=True)
            elif 10 * done // total > 10 * (done - 1) // total:
                print(f"{label}: {done}/{total}", file=sys.stderr, flush=True)

    def timed(self, run: Callable[[int], tuple[float, float]]) -> tuple[list[float], float]:
        """Runs the repetitions: `run` returns seconds and a difference. The first run compiles and
        warms up."""
        results = [run(i) for i in range(self._options.repetitions + 1)]
        return [seconds for seconds, _ in results], max(difference for _, difference in results)

    def row(
        self,
        what: str,
        way: str,
        seconds: list[float],
        difference: float,
        tolerance: float,
        *,
        nbytes: float = 0,
        flop: float = 0,
        **more: Any,
    ) -> float:
        """Prints one measurement and returns its median. The first of `seconds` is the warm-up.
        Ends the program if the difference is too large."""
        first, warm = seconds[0], seconds[1:] or seconds
        median = statistics.median(warm)
        parts = [f"{what:<48} {way:<14} {median:9.4f} s [{min(warm):.4f}-{max(warm):.4f}], first {first:.3f}"]
        row = {"what": what, "way": way, "seconds": median, "all": seconds, "difference": difference, **more}
        if nbytes:
            row["gb_per_s"] = nbytes / median / 1e9
            parts.append(f"{row['gb_per_s']:.1f} GB/s")
        if flop:
            row["gflops"] = flop / median / 1e9
            parts.append(f"{row['gflops']:.0f} GFLOPS")
        parts.append(f"differs by {difference:.1e}")
        print(", ".join(parts), flush=True)
        self.rows.append(row)
        if not difference <= tolerance:
            sys.exit(f"failed: {what} by {way} differs from its check by {difference:.2e}, more than {tolerance:.0e}")
        self._worst = max(self._worst, difference)
        return median

    def end(self, **about: Any) -> None:
        if self._options.json:
            self._options.json.parent.mkdir(parents=True, exist_ok=True)
            self._options.json.write_text(json.dumps({**about, "rows": self.rows}, indent=1) + "\n")
        print(f"ok: {len(self.rows)} measurements, largest relative difference to a check {self._worst:.1e}")


class Cluster:
    """A client, and the workers that an example uses."""

    def __init__(self, client: Client, workers: int = 0) -> None:
        self.client = client
        known = client.scheduler_info()["workers"]
        self.on_gpus = all(w["device"] == "cuda" for w in known.values())
        #: Names of the used workers; other workers get no task.
        self.names = sorted(known, key=lambda name: (len(name), name))[: workers or None]
        self._all = len(self.names) == len(known)

    @property
    def python(self) -> str:
        """Label of tasks by Python functions."""
        return "CuPy tasks" if self.on_gpus else "NumPy tasks"

    def __str__(self) -> str:
        return f"{len(self.names)} {'GPU' if self.on_gpus else 'host worker'}{'s' * (len(self.names) > 1)}"

    def home(self, i: int, of: int) -> str:
        """Returns the worker of part i of `of` parts: each worker gets an equal run of consecutive
        parts."""
        return self.names[i * len(self.names) // of]

    def run(self, what: Any, *args: Any, at: str | None = None, **named: Any) -> Future[Any]:
        """Submits one task: a function, or a native op by its name."""
        workers = at if at is not None else None if self._all else self.names
        return self.client.submit(native(what) if isinstance(what, str) else what, *args, workers=workers, **named)

    def settle(self, futures: list[Future[Any]]) -> None:
        """Waits for all futures; raises the first error."""
        self.client.wait(futures)
        for f in futures:
            if f.exception() is not None:
                f.result()


def since(began: float) -> float:
    return time.perf_counter() - began
