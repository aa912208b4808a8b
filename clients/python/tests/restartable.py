"""Schedulers that tests stop and start again."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from millrace._local._local_process import find_binary, python_path

_given: set[int] = set()


def fixed_port() -> int:
    """Returns a free port below the kernel's range of ephemeral ports. With a port of that range, a
    client that dials it while no process listens can be connected to itself, and occupy the port.
    The Go tests, which run at the same time, take ports below these. No port is given twice."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(max(lowest - 6_000, 1024), lowest)
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _given.add(port)
            return port


class _Processes:
    """Schedulers and a worker as processes of their own.

    Args:
        directory: for their logs and files.
        addresses: those of the schedulers.
    """

    token = "for-the-test"

    def __init__(self, directory: Path, addresses: Sequence[str]) -> None:
        #: The addresses for workers and clients.
        self.addresses = ",".join(addresses)
        self._environment = {**os.environ, "MILLRACE_TOKEN": self.token, "PYTHONPATH": python_path()}
        self._directory = directory
        self.worker = self._run(
            "worker", "--address", self.addresses, "--workers", "1", "--memory-limit", "128MiB", "--device", "host",
            "--local-directory", str(directory), "--stop-grace", "1s", "--python", sys.executable,
        )  # fmt: skip

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        log = (self._directory / f"{command[0]}.log").open("ab")
        with log:
            return subprocess.Popen(
                [find_binary(), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )

    def _end(self, *schedulers: subprocess.Popen[bytes]) -> None:
        """Ends the worker and the schedulers."""
        for process in (self.worker, *schedulers):
            process.terminate()
        for process in (self.worker, *schedulers):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()


class Restartable(_Processes):
    """A scheduler and a worker.

    Args:
        directory: for their logs and files.
        options: of the scheduler.
        before: addresses of other schedulers, for workers and clients.
    """

    def __init__(self, directory: Path, *options: str, before: Sequence[str] = ()) -> None:
        #: The address of the scheduler.
        self.address = f"127.0.0.1:{fixed_port()}"
        self._options = options
        super().__init__(directory, [*before, self.address])
        self.start()

    def stop(self) -> None:
        self.scheduler.kill()
        self.scheduler.wait()

    def start(self, address: str = "") -> None:
        """Starts the scheduler, at the same address if no other is given."""
        self.address = address or self.address
        self.scheduler = self._run("scheduler", "--listen", self.address, "--http", "", *self._options)

    def close(self) -> None:
        self._end(self.scheduler)


class ThreeSchedulers(_Processes):
    """Three schedulers, of which one leads, and a worker.

    Args:
        directory: for their logs and files.
    """

    def __init__(self, directory: Path) -> None:
        schedulers = [f"127.0.0.1:{fixed_port()}" for _ in range(3)]
        peers = [f"127.0.0.1:{fixed_port()}" for _ in schedulers]
        super().__init__(directory, schedulers)
        #: The processes of the schedulers, by address.
        self.schedulers = {
            address: self._run(
                "scheduler", "--listen", address, "--http", "", "--journal", str(directory / f"journal-{own[-5:]}"),
                "--peers", ",".join(peers), "--peer-advertise", own,
                "--election-timeout", "3s",  # on a busy machine processes stand still for a second
            )
            for address, own in zip(schedulers, peers, strict=True)
        }  # fmt: skip

    def kill(self, address: str) -> None:
        self.schedulers[address].kill()
        self.schedulers[address].wait()

    def close(self) -> None:
        self._end(*self.schedulers.values())
