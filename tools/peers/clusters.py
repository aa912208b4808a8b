"""Clusters of distributed and of Millrace on this machine, and the memory that they use."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

WORKERS = 2
#: Seconds from one sample of the memory to the next. A sample takes about 10 ms for each GB.
_SAMPLE_SECONDS = 0.5


@dataclass
class Cluster:
    """A cluster that runs.

    Attributes:
        where: what clients connect to: the address of distributed's scheduler, or the scheduler
            file of Millrace.
        log: the output of its processes.
    """

    where: str
    log: Path
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @contextmanager
    def peak(self) -> Iterator[list[int]]:
        """Samples the memory of all processes in a with block. Afterwards the list has the most
        that they used at one time, in bytes. Memory that processes share counts once."""
        found, stop = [0], threading.Event()
        roots = [process.pid for process in self._processes]

        def sample() -> None:
            while not stop.wait(_SAMPLE_SECONDS):
                found[0] = max(found[0], sum(map(_own_bytes, _trees(roots))))

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield found
        finally:
            stop.set()
            thread.join()


def _trees(roots: list[int]) -> list[int]:
    """Returns processes, with all processes that they have started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended
            children.setdefault(parent, []).append(int(entry.name))
    found = list(roots)
    for pid in found:
        found += children.get(pid, [])
    return found


def _own_bytes(pid: int) -> int:
    """Returns the memory of a process: a page that n processes have counts as 1/n of a page."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def _wait_for(file: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 60
    while not (file.exists() and file.stat().st_size):
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"{process.args[0]} did not start:\n{log.read_text()[-4000:]}")
        time.sleep(0.02)


@contextmanager
def _processes(log: Path) -> Iterator[tuple[list[subprocess.Popen[bytes]], IO[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    with log.open("wb") as out:
        try:
            yield running, out
        finally:
            for process in reversed(running):
                process.terminate()
            for process in running:
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@contextmanager
def dask(python: str, folder: Path, memory: int = 0) -> Iterator[Cluster]:
    """Runs distributed with workers of one thread.

    Args:
        python: an interpreter that has distributed.
        folder: an empty directory, for logs and for what does not fit into memory.
        memory: the limit of each worker in bytes. A nanny ends a worker that exceeds it. Zero means
            no limit and no nannies.
    """
    where, log = folder / "dask.json", folder / "dask.log"
    env = dict(os.environ, DASK_TEMPORARY_DIRECTORY=str(folder))
    with _processes(log) as (running, out):

        def start(*args: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([python, "-m", *args], stdout=out, stderr=out, env=env, cwd=folder)
            running.append(process)
            return process

        common = ("--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(where))
        scheduler = start("distributed.cli.dask_scheduler", "--port", "0", "--dashboard-address", ":0", *common)
        _wait_for(where, scheduler, log)
        limit = ("--memory-limit", str(memory)) if memory else ("--no-nanny",)
        for _ in range(WORKERS):
            start("distributed.cli.dask_worker", "--nthreads", "1", *limit, *common)
        yield Cluster(json.loads(where.read_text())["address"], log, running)


@contextmanager
def millrace(python: str, binary: str, folder: Path, memory: int = 0) -> Iterator[Cluster]:
    """Runs Millrace with workers of one slot.

    Args:
        python: an interpreter that has the client.
        binary: the program millrace.
        folder: an empty directory, for logs and for what does not fit into memory.
        memory: the limit of each worker in bytes: one half is its slab, and one half is for its
            functions. Zero means a slab of 2 GiB, and functions have their default.
    """
    where, log = folder / "millrace.json", folder / "millrace.log"
    command = [binary, "up", "--device", "host", "--workers", str(WORKERS), "--slots", "1"]
    command += ["--scheduler-file", str(where), "--local-directory", str(folder)]
    if memory:
        command += ["--memory-limit", str(memory // 2), "--function-memory-limit", str(memory // 2)]
    else:
        command += ["--memory-limit", "2GiB"]
    with _processes(log) as (running, out):
        running.append(subprocess.Popen(command, stdout=out, stderr=out, env=dict(os.environ, MILLRACE_PYTHON=python)))
        _wait_for(where, running[0], log)
        yield Cluster(str(where), log, running)
