"""Measures what torch gains from an arena: python torch_arena.py MILLRACE_BINARY [small].

There are two kinds of clusters on one GPU: `with` has `--executor-arena-for torch`, `without` has
`--executor-arena-for cupy`, so that torch keeps memory of its own beside the slab.

1. The largest tensor that a torch task can make and use, and the largest one that it can return.
   One cluster after the other, with the default slab and the default number of slots.
2. Two clusters at the same time, measured in turns, with smaller slabs: the time from submit until
   a result made by torch is ready; the time of a step in a chain of such tasks; the memory that is
   in use outside of the slabs because of such a chain; and a reduction of five quarters of a slab.

Each line on stdout is one figure: a name, a number, a unit. Progress and a table go to stderr. The
folder $OUT, if it is set, gets torch-arena.json and the logs of the clusters. With `small` all
sizes are small, for the fake driver of the tests. The exit code is 77 if torch is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import millrace
from millrace import arrays
from millrace.errors import TaskFailedError

MIB, GIB = 1 << 20, 1 << 30
#: Longest time for all measurements, and for one task, in seconds.
LIMIT, TASK = 130.0, 40.0
#: Time in seconds after which an idle executor has given its cached memory back: half a second, and
#: time for the driver.
IDLE = 1.5
#: The clusters, and the libraries that their arenas are for.
KINDS = {"with": "torch", "without": "cupy"}


@dataclass
class Plan:
    """Sizes in bytes, and numbers of repetitions."""

    arena: int
    #: Step between the sizes that are tried as the largest tensor.
    step: int
    slab: int
    pinned: int
    #: Sizes of the results that are timed. The last one is used for the memory outside of the slab.
    results: tuple[int, ...]
    chain: int
    chunk: int
    warm: int
    timed: int
    rounds: int
    #: Flags of all clusters.
    flags: tuple[str, ...] = ()


LARGE = Plan(3 * GIB, GIB, 24 * GIB, 28 * GIB, (64 * MIB, 256 * MIB, GIB), 20, 512 * MIB, 12, 60, 2)
SMALL = Plan(32 * MIB, 64 * MIB, 96 * MIB, 128 * MIB, (12 * MIB, 16 * MIB), 4, 12 * MIB, 2, 3, 1, ("--slots", "2"))


# ---- tasks ---------------------------------------------------------------------------------------


@arrays("torch")
def warm(seconds: float) -> None:
    """Makes a process ready. It is long enough for every process of the worker to get one."""
    import torch

    torch.full((1024,), 1, dtype=torch.int64, device="cuda")
    time.sleep(seconds)


@arrays("torch")
def use(n: int) -> bool:
    """Makes a tensor, changes it, and reads it."""
    import torch

    x = torch.full((n,), 3, dtype=torch.int64, device="cuda")
    x += 1
    return int(x.sum()) == 4 * n


@arrays("torch")
def make(n: int, value: int) -> Any:
    import torch

    return torch.full((n,), value, dtype=torch.int64, device="cuda")


@arrays("torch")
def step(x: Any) -> Any:
    return x + 1


@arrays("torch")
def total(x: Any) -> int:
    return int(x.sum())


@arrays("torch")
def watched(before: Any, n: int) -> tuple[Any, int, int]:
    """A step of a chain that also returns the most memory of the GPU that was in use so far, and
    how many tensors of the chain were made in the slab."""
    import torch
    from millrace.executor import _process

    y = torch.full((n,), 1, dtype=torch.int64, device="cuda") if before is None else before[0] + 1
    free, whole = torch.cuda.mem_get_info()
    most, inside = before[1:] if before is not None else (0, 0)
    slab = _process._process.runner.memory.device
    return y, max(most, whole - free), inside + (slab.base <= y.data_ptr() < slab.base + slab.size)


@arrays("torch")
def outcome(last: Any) -> tuple[int, int]:
    return last[1:]


@arrays("torch")
def in_use() -> tuple[int, int]:
    """Returns the memory of the GPU that is in use, and all of it."""
    import torch

    free, whole = torch.cuda.mem_get_info()
    return whole - free, whole


# ---- clusters and figures ------------------------------------------------------------------------


class Cluster:
    """`millrace up` on one GPU, with its processes warm."""

    def __init__(self, binary: str, name: str, out: Path, plan: Plan, *flags: str) -> None:
        self.name = name
        directory = tempfile.mkdtemp(prefix="torch-arena-")
        file = Path(directory) / "scheduler.json"
        command = [binary, "up", "--device", "cuda", "--workers", "1", "--scheduler-file", str(file)]
        command += ["--local-directory", directory, "--python", sys.executable, "--preload", "torch"]
        command += ["--executor-arena", str(plan.arena), "--executor-arena-for", KINDS[name], *plan.flags, *flags]
        with (out / f"{name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        if not any(line.startswith(b"ready") for line in self.process.stdout):
            raise SystemExit(f"torch_arena: the cluster {name} did not start; see {log.name}")
        self.client = millrace.Client(scheduler_file=str(file))
        self.client.gather([self.client.submit(warm, 0.3, pure=False) for _ in range(8)], timeout=60)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: Any) -> None:
        self.client.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.client.submit(function, *args, pure=False).result(TASK)

    def begin(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.client.submit(function, *args, pure=False)

    def finish(self, *futures: Any) -> None:
        """Waits until results are ready. They stay on the GPU. Raises a failed task's error."""
        self.client.wait(futures, timeout=TASK)
        for future in futures:
            if (error := future.exception(TASK)) is not None:
                raise error


class Report:
    """The figures so far, by what they are of and by cluster."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.rows: dict[str, dict[str, Any]] = {}

    def late(self) -> bool:
        """Returns whether the time for measurements is over."""
        return time.perf_counter() - self.began > LIMIT

    def say(self, text: str) -> None:
        print(f"torch-arena {time.perf_counter() - self.began:6.1f} s: {text}", file=sys.stderr, flush=True)

    def add(self, what: str, cluster: str, unit: str, value: float, lowest: float = 0, highest: float = 0) -> None:
        row = self.rows.setdefault(what, {"unit": unit})
        row[cluster] = {"value": value, "lowest": lowest or value, "highest": highest or value}
        print(f"{f'torch arena, {what}: {cluster}':<66} {value:10.3f} {unit}", flush=True)

    def median(self, what: str, cluster: str, unit: str, values: list[float]) -> None:
        if values:
            self.add(what, cluster, unit, statistics.median(values), min(values), max(values))

    def table(self) -> str:
        lines = [f"{'':<52} {'with':>10} {'without':>10} {'ratio':>7}  unit"]
        for what, row in self.rows.items():
            values = [row[kind]["value"] if kind in row else None for kind in KINDS]
            shown = [f"{'-' if v is None else format(v, '.3f'):>10}" for v in values]
            one, other = values
            ratio = f"{one / other:7.3f}" if one and other else f"{'-':>7}"
            lines.append(f"{what:<52} {shown[0]} {shown[1]} {ratio}  {row['unit']}")
        return "\n".join(lines)


def in_turns(clusters: list[Cluster], times: int) -> Any:
    """Yields each cluster `times` times. The one that begins changes."""
    for i in range(times):
        yield from clusters if i % 2 == 0 else clusters[::-1]


def sized(n: int) -> str:
    return f"{n // GIB} GiB" if n % GIB == 0 else f"{n // MIB} MiB"


# ---- measurements --------------------------------------------------------------------------------


def largest(cluster: Cluster, report: Report, plan: Plan, what: str, attempt: Callable[[int], bool]) -> None:
    """Finds the largest number of elements for which `attempt` succeeds, by bisection."""
    low, high = 0, cluster.call(in_use)[1] // plan.step + 1  # low is possible, high is not
    while high - low > 1 and not report.late():
        size = (low + high) // 2
        began = time.perf_counter()
        try:
            fits, why = attempt(size * plan.step // 8), ""
            assert fits, "a tensor has wrong elements"
        except TaskFailedError as e:
            if "out of memory" not in str(e).lower() and "OUT_OF_MEMORY" not in str(e):
                raise
            fits, why = False, f": {' '.join(str(e).split())[:300]}"
        took = time.perf_counter() - began
        report.say(
            f"{cluster.name}: {what} of {sized(size * plan.step)}: {'fits' if fits else 'does not fit'}, {took:.1f} s{why}"
        )
        low, high = (size, high) if fits else (low, size)
    report.add(what, cluster.name, "GiB", low * plan.step / GIB)


def returned(cluster: Cluster, n: int) -> bool:
    """Makes a tensor of n elements as the result of a task. The next task reads it."""
    made = cluster.begin(make, n, 5)
    cluster.finish(made)
    return cluster.call(total, made) == 5 * n


def results(clusters: list[Cluster], report: Report, plan: Plan, size: int) -> None:
    """Times single tasks, and chains in which each result is the input of the next task."""
    n = size // 8
    times: dict[str, list[float]] = {c.name: [] for c in clusters}
    for i, c in enumerate(in_turns(clusters, plan.warm + plan.timed)):
        if report.late():
            break
        began = time.perf_counter()
        made = c.begin(make, n, i)
        c.finish(made)
        if i >= plan.warm * len(clusters):
            times[c.name].append((time.perf_counter() - began) * 1e3)
        del made
    for name, values in times.items():
        report.median(f"submit until a result of {sized(size)} is ready", name, "ms", values)
    times = {c.name: [] for c in clusters}
    for i, c in enumerate(in_turns(clusters, 2 + max(2, plan.timed // 4))):
        if report.late():
            break
        last = c.begin(make, n, 0)
        c.finish(last)
        began = time.perf_counter()
        for _ in range(plan.chain):
            last = c.begin(step, last)
        c.finish(last)
        if i >= 2 * len(clusters):
            times[c.name].append((time.perf_counter() - began) / plan.chain * 1e3)
        if i < len(clusters):
            assert c.call(total, last) == plan.chain * n, "a chain has a wrong result"
        del last
    for name, values in times.items():
        report.median(f"step of a chain of {plan.chain} with {sized(size)} each", name, "ms", values)


def outside(cluster: Cluster, report: Report, plan: Plan) -> None:
    """Measures the memory in use outside of the slabs, beyond that of two idle clusters, while a
    chain runs, at once after it, and when the processes are idle again."""
    size = plan.results[-1]
    time.sleep(IDLE)
    idle, _ = cluster.call(in_use)
    last = cluster.begin(watched, None, size // 8)
    for _ in range(plan.chain):
        last = cluster.begin(watched, last, size // 8)
    most, inside = cluster.call(outcome, last)
    after, _ = cluster.call(in_use)
    del last
    time.sleep(IDLE)
    later, _ = cluster.call(in_use)
    chain = f"a chain with {sized(size)} each"
    report.add(f"memory outside of the slab in {chain}", cluster.name, "GiB", (most - idle) / GIB)
    report.add("memory outside of the slab at once after it", cluster.name, "GiB", (after - idle) / GIB)
    report.add(f"memory outside of the slab {IDLE:g} s after it", cluster.name, "GiB", (later - idle) / GIB)
    report.add("results of the chain that torch made in the slab", cluster.name, "%", 100 * inside / (plan.chain + 1))
    report.say(f"{cluster.name}: in use with two idle clusters {(idle - 2 * plan.slab) / GIB:.2f} GiB beside the slabs")


def reduction(clusters: list[Cluster], report: Report, plan: Plan) -> None:
    """Makes five quarters of the slab with torch, and reduces them with torch."""
    chunks, n = plan.slab * 5 // 4 // plan.chunk, plan.chunk // 8
    size = sized(chunks * plan.chunk)
    times: dict[str, dict[str, list[float]]] = {
        f"make {size} with torch": {c.name: [] for c in clusters},
        f"reduce {size} with torch": {c.name: [] for c in clusters},
    }
    making, reducing = times.values()
    for i, c in enumerate(in_turns(clusters, 1 + plan.rounds)):
        if report.late():
            break
        began = time.perf_counter()
        made = [c.begin(make, n, k) for k in range(chunks)]
        c.finish(*made)
        between = time.perf_counter()
        sums = [c.begin(total, x) for x in made]
        found = sum(c.client.gather(sums, timeout=TASK))
        ended = time.perf_counter()
        assert found == n * chunks * (chunks - 1) // 2, "a reduction has a wrong result"
        report.say(f"{c.name}: made {size} in {between - began:.2f} s, reduced it in {ended - between:.2f} s")
        if i >= len(clusters):  # in the first round the workers pin host memory
            making[c.name].append(between - began)
            reducing[c.name].append(ended - between)
        del made, sums
    for what, by_cluster in times.items():
        for name, values in by_cluster.items():
            report.median(what, name, "s", values)


def main() -> None:
    if importlib.util.find_spec("torch") is None:
        print("torch_arena: torch is not installed", file=sys.stderr)
        raise SystemExit(77)
    binary, plan = sys.argv[1], SMALL if sys.argv[2:] == ["small"] else LARGE
    out = Path(os.environ.get("OUT") or tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    report = Report()
    try:
        for name in KINDS:
            with Cluster(binary, name, out, plan) as c:
                report.say(f"{name}: a cluster with the default slab is ready")
                largest(c, report, plan, "largest tensor that a task makes and uses", lambda n, c=c: c.call(use, n))
                largest(c, report, plan, "largest tensor that a task returns", lambda n, c=c: returned(c, n))
        limits = ["--device-memory-limit", str(plan.slab), "--pinned-limit", str(plan.pinned)]
        with ExitStack() as stack:
            clusters = [stack.enter_context(Cluster(binary, name, out, plan, *limits)) for name in KINDS]
            report.say(f"two clusters with slabs of {sized(plan.slab)} are ready")
            for size in plan.results:
                results(clusters, report, plan, size)
                report.say(f"results of {sized(size)} are measured")
            for c in clusters:
                outside(c, report, plan)
            reduction(clusters, report, plan)
    finally:
        print(f"\n{report.table()}\n", file=sys.stderr, flush=True)
        (out / "torch-arena.json").write_text(json.dumps({"figures": report.rows}, indent=1) + "\n")
    if report.late():
        raise SystemExit(f"torch_arena: not everything was measured within {LIMIT:g} s")


if __name__ == "__main__":
    main()
