"""Runs workload.py against Dask and then against Millrace on this machine, and prints the ratios.

compare.py PYTHON_WITH_DASK PYTHON_WITH_MILLRACE MILLRACE_BINARY
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
WORKERS = 2
DEADLINE_SECONDS = 900


def wait_for(file: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 60
    while not (file.exists() and file.stat().st_size):
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"{process.args[0]} did not start:\n{log.read_text()[-4000:]}")
        time.sleep(0.02)


@contextmanager
def processes(log: Path) -> Iterator[tuple[list[subprocess.Popen[bytes]], object]]:
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


def workload(python: str, library: str, where: str) -> dict[str, float]:
    done = subprocess.run(
        [python, str(HERE / "workload.py"), library, where],
        stdout=subprocess.PIPE,
        timeout=DEADLINE_SECONDS,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def dask(python: str, folder: Path) -> dict[str, float]:
    where, log = folder / "dask.json", folder / "dask.log"
    env = dict(os.environ, DASK_TEMPORARY_DIRECTORY=str(folder))
    with processes(log) as (running, out):

        def start(*args: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([python, "-m", *args], stdout=out, stderr=out, env=env, cwd=folder)
            running.append(process)
            return process

        common = ("--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(where))
        scheduler = start("distributed.cli.dask_scheduler", "--port", "0", "--dashboard-address", ":0", *common)
        wait_for(where, scheduler, log)
        for _ in range(WORKERS):
            start("distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", *common)
        return workload(python, "dask", json.loads(where.read_text())["address"])


def millrace(python: str, binary: str, folder: Path) -> dict[str, float]:
    where, log = folder / "millrace.json", folder / "millrace.log"
    with processes(log) as (running, out):
        command = [binary, "up", "--device", "host", "--workers", str(WORKERS)]
        command += ["--memory-limit", "2GiB", "--scheduler-file", str(where)]
        env = dict(os.environ, MILLRACE_PYTHON=python)
        running.append(subprocess.Popen(command, stdout=out, stderr=out, env=env))
        wait_for(where, running[0], log)
        return workload(python, "millrace", str(where))


def main() -> None:
    dask_python, millrace_python, binary = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        theirs = dask(dask_python, Path(name))
        ours = millrace(millrace_python, binary, Path(name))
    report = {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "workers": WORKERS,
        "dask": theirs,
        "millrace": ours,
    }
    out = Path("out/bench")
    out.mkdir(parents=True, exist_ok=True)
    (out / "peers.json").write_text(json.dumps(report, indent=2) + "\n")
    print(f"{WORKERS} one-thread workers and the client on {os.cpu_count()} CPUs; Python functions are really run")
    print(f"{'':32}{'dask':>12}{'millrace':>12}{'better by':>12}")
    for name, their in theirs.items():
        our = ours[name]
        ratio = our / their if "/s" in name and "us" not in name else their / our
        print(f"{name:32}{their:12.5g}{our:12.5g}{ratio:11.1f}x")


if __name__ == "__main__":
    main()
