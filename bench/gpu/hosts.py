"""Measures objects between GPU workers of two hosts: python hosts.py MILLRACE_BINARY [small].

The hosts are two network namespaces of this machine, joined by a veth pair. If the kernel permits
none, they are two processes on the loopback device; a line says so. Each worker has a slab of its
own on the first GPU. A cluster runs for each way of transfer:

- UCX over tcp, staged through pinned memory
- TCP streams
- TCP streams of the program millrace-before, if it is beside this program: an earlier commit
- UCX over cma, both workers on one host, which shows the pipeline at the speed of memory

bench.stamp checks every byte that arrives.

    hosts.py MILLRACE_BINARY            asks the machine, measures all ways, and kills workers
                                        meanwhile, for $HOSTS_KILLS seconds: 15 if it is not set
    hosts.py MILLRACE_BINARY kills      only the last of these
    hosts.py MILLRACE_BINARY small      the same with small sizes, for the fake driver of the tests;
                                        `kills small` is the last part alone
    hosts.py --test BINARY ARGUMENT...  runs a test binary on the first host; its children can run
                                        on the second one: MILLRACE_TEST_OTHER_HOST is its address,
                                        the network devices of both, and a command that runs others
                                        there
    hosts.py --driver                   asks the driver what may read the memory of the first GPU
    hosts.py --on PID COMMAND...        runs a command on the host that the process PID keeps

A line with a number and a unit at its end is a figure. $OUT gets the logs of all processes. A part
that fails or takes too long is reported, and the others still run; the exit code is then 1. All of
it ends within $HOSTS_LIMIT seconds, 100 if it is not set.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MIB = 1 << 20
#: Longest time for everything, and for one task, in seconds.
LIMIT, TASK = float(os.environ.get("HOSTS_LIMIT", "100")), 20.0
#: How long workers are killed, in seconds.
KILLS = float(os.environ.get("HOSTS_KILLS", "15"))
#: Longest part of a log that is kept.
KEPT = 32 << 10
PORT = 7401
ADDRESSES = ("10.98.7.1", "10.98.7.2")
LOOPBACK = ("127.0.0.1", "127.0.0.1")
BEGAN = time.monotonic()


def say(line: str) -> None:
    print(line, flush=True)


def figure(name: str, value: float, unit: str) -> None:
    say(f"{name:<70} {value:10.3f} {unit}")


def left() -> float:
    return LIMIT - (time.monotonic() - BEGAN)


# --- The machine.


def output(*command: str, limit: float = 5) -> str:
    """Returns the output of a command on one line; why there is none, if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no ({type(error).__name__})"
    said = f"{done.stdout}\n{done.stderr[-300:] if done.returncode else ''}"
    return " ".join(said.split()) or f"exit code {done.returncode}"


def listed(folder: str) -> str:
    try:
        return " ".join(sorted(p.name for p in Path(folder).iterdir())) or "empty"
    except OSError as error:
        return f"no ({error.strerror})"


def text(path: str) -> str:
    try:
        return " ".join(Path(path).read_text().split()) or "empty"
    except OSError as error:
        return f"no ({error.strerror})"


def ask() -> None:
    """Prints what matters for RDMA and for hosts on one machine."""
    release = os.uname().release
    modules = Path("/lib/modules") / release
    known = ("rdma_rxe", "ib_uverbs", "ib_core", "nvidia_peermem", "mlx5_ib", "veth")
    found = {m for m in known if any(modules.rglob(f"{m}.ko*"))} if modules.exists() else set()
    builtin = text(str(modules / "modules.builtin"))
    loaded = text("/proc/modules")
    say(f"machine: uid {os.getuid()}, kernel {release}, {os.cpu_count()} processors, pid 1 is {text('/proc/1/comm')}")
    say(
        f"machine: programs: {', '.join(f'{p}: {shutil.which(p)}' for p in ('ip', 'nsenter', 'unshare', 'modprobe', 'rdma', 'ibv_devinfo'))}"
    )
    say(
        f"machine: capabilities {re.sub('.*CapEff: *', '', text('/proc/self/status'))[:16]}; ulimit -l {output('bash', '-c', 'ulimit -l')}"
    )
    say(f"machine: {modules}: {'there' if modules.exists() else 'absent'}; modules {sorted(found) or 'none'}")
    say(
        f"machine: built in: {[m for m in known if f'/{m}.ko' in builtin] or 'none'}; loaded: {[m for m in known if re.search(rf'(^| ){m} ', loaded)] or 'none'}"
    )
    say(f"machine: modprobe -n rdma_rxe: {output('modprobe', '-n', 'rdma_rxe')}")
    say(
        f"machine: /sys/class/infiniband: {listed('/sys/class/infiniband')}; /dev/infiniband: {listed('/dev/infiniband')}; /sys/class/net: {listed('/sys/class/net')}"
    )
    say(
        f"machine: kernel symbols: {symbols()}; ptrace_scope {text('/proc/sys/kernel/yama/ptrace_scope')}; {text('/proc/meminfo')[:80]}"
    )
    say(f"machine: {output(sys.executable, __file__, '--driver', limit=20)[-600:]}")


def symbols() -> str:
    """Returns which of the kernel's parts for RDMA are in the running kernel, by their symbols."""
    try:
        names = Path("/proc/kallsyms").read_text()
    except OSError as error:
        return f"no ({error.strerror})"
    wanted = (
        "rxe_net_add",
        "ib_register_device",
        "dma_buf_dynamic_attach",
        "veth_newlink",
        "nvidia_p2p_get_pages",
        "nv_dma_buf_export",
    )
    return ", ".join(f"{w} {'yes' if re.search(rf' {w}', names) else 'no'}" for w in wanted)


def driver() -> None:
    """Prints what the driver says of the first GPU about other devices that read its memory."""
    wanted = {"dma-buf": 124, "GPUDirect RDMA": 116, "GPUDirect RDMA with VMM": 110, "writes ordered": 117}
    library = ctypes.CDLL(os.environ.get("MILLRACE_CUDA_LIBRARY", "libcuda.so.1"))
    version, context, at, fd = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int(-1)
    if code := library.cuInit(0) or library.cuDriverGetVersion(ctypes.byref(version)):
        raise OSError(0, f"the driver does not start: error {code}")
    values = []
    for name, number in wanted.items():
        value = ctypes.c_int()
        code = library.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
        values.append(f"{name} {value.value if not code else f'error {code}'}")
    say(f"driver for CUDA {version.value}: {', '.join(values)}")
    size = ctypes.c_size_t(8 << 30)
    if code := (
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        or library.cuCtxSetCurrent(context)
        or library.cuMemAlloc_v2(ctypes.byref(at), size)
    ):
        raise OSError(0, f"no memory: error {code}")
    began = time.perf_counter()
    code = library.cuMemGetHandleForAddressRange(ctypes.byref(fd), at, size, 1, ctypes.c_uint64(0))
    took = time.perf_counter() - began
    say(
        f"dma-buf of {size.value >> 30} GiB: {f'error {code}' if code else f'descriptor {fd.value}'} after {took * 1e3:.2f} ms"
    )


# --- Two hosts on this machine.

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x1000, 0x2000, 0x4000, 0x40000
REQUEST, ACKNOWLEDGE, CREATE = 1, 4, 0x600
NEW_LINK, NEW_ADDRESS, SET_LINK = 16, 20, 19
UP = 1


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, None):
        raise OSError(ctypes.get_errno(), f"mount {source} on {target}: {os.strerror(ctypes.get_errno())}")


def own_network() -> None:
    """Moves this process to a network of its own, with a /sys that shows it: UCX looks for devices there."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    place = tempfile.mkdtemp()
    mount("sysfs", place, "sysfs", 0)
    if Path("/sys/fs/cgroup").is_dir():
        mount("/sys/fs/cgroup", f"{place}/fs/cgroup", None, MS_BIND | MS_REC)
    mount(place, "/sys", None, MS_MOVE)
    link("lo", UP)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def netlink(kind: int, flags: int, body: bytes, what: str) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.settimeout(5)
        s.send(struct.pack("IHHII", 16 + len(body), kind, REQUEST | ACKNOWLEDGE | flags, 1, 0) + body)
        answer = s.recv(1 << 16)
    code = -struct.unpack_from("i", answer, 16)[0]
    if code:
        raise OSError(code, f"{what}: {os.strerror(code)}")


def link(name: str, flags: int) -> None:
    netlink(SET_LINK, 0, struct.pack("BxHiII", 0, 0, socket.if_nametoindex(name), flags, flags), f"set {name} up")


def pair(here: str, there: str, pid: int) -> None:
    """Makes a veth pair; its second end is in the network of another process."""
    info, none = struct.pack("BxHiII", 0, 0, 0, 0, 0), b"\0"
    peer = info + attribute(3, there.encode() + none) + attribute(19, struct.pack("I", pid))
    data = attribute(1, b"veth\0") + attribute(2, attribute(1, peer))
    netlink(NEW_LINK, CREATE, info + attribute(3, here.encode() + none) + attribute(18, data), "make a veth pair")


def address(name: str, of: str) -> None:
    body = struct.pack("BBBBI", socket.AF_INET, 24, 0, 0, socket.if_nametoindex(name))
    netlink(
        NEW_ADDRESS,
        CREATE,
        body + attribute(2, socket.inet_aton(of)) + attribute(1, socket.inet_aton(of)),
        f"give {name} an address",
    )
    link(name, UP)


def running(name: str) -> None:
    """Waits until a link works: UCX takes no other."""
    for _ in range(500):
        if Path(f"/sys/class/net/{name}/operstate").read_text() == "up\n":
            return
        time.sleep(0.01)  # the kernel reports it some time after the other end is up
    raise OSError(0, f"{name} does not work")


class Hosts:
    """This process is on the first host, a process that it has forked keeps the second one."""

    def __init__(self) -> None:
        self.keeper = 0
        self.addresses = LOOPBACK
        ready, theirs = socket.socketpair()
        self.keeper = os.fork()
        if not self.keeper:
            ready.close()
            self.keep(theirs)
        theirs.close()
        self.socket = ready
        self.socket.settimeout(20)
        try:
            own_network()
            self.told()
            pair("hosts0", "hosts1", self.keeper)
            address("hosts0", ADDRESSES[0])
            self.socket.send(b"go\n")
            self.told()
            running("hosts0")
            self.addresses = ADDRESSES
            say("hosts: two network namespaces, joined by a veth pair")
        except OSError as error:
            self.socket.close()
            self.keeper = 0
            say(f"hosts: no namespaces ({error}): two processes on the loopback device instead")

    def told(self) -> None:
        line = self.socket.recv(1000).decode()
        if line != "ok\n":
            raise OSError(0, line or "the process that keeps the second host has ended")

    def keep(self, channel: socket.socket) -> None:
        """Keeps the second host until the first one ends."""
        try:
            own_network()
            channel.send(b"ok\n")
            if channel.recv(3):
                address("hosts1", ADDRESSES[1])
                running("hosts1")
                channel.send(b"ok\n")
                channel.recv(1)
        except OSError as error:
            channel.send(str(error).encode())
        os._exit(0)

    def on(self, host: int) -> list[str]:
        """Returns what a command line begins with so that it runs on a host."""
        return [sys.executable, __file__, "--on", str(self.keeper)] if host and self.keeper else []


def enter(pid: int, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, flag in (("net", CLONE_NEWNET), ("mnt", CLONE_NEWNS)):
        here = str(Path.cwd())
        with Path(f"/proc/{pid}/ns/{kind}").open() as f:
            if libc.setns(f.fileno(), flag):
                raise OSError(ctypes.get_errno(), f"setns {kind}: {os.strerror(ctypes.get_errno())}")
        os.chdir(here)
    os.execvp(command[0], command)


# --- Clusters.


class Cluster:
    """A scheduler and worker a on the first host, worker b on the second one or on the same."""

    def __init__(
        self, name: str, binary: Path, flags: list[str], hosts: Hosts, small: bool, apart: bool = True
    ) -> None:
        import millrace

        self.name, self.binary = name, binary
        self.folder = Path(tempfile.mkdtemp())
        self.processes: list[subprocess.Popen[bytes]] = []
        self.client: Any = None
        self.where = f"{hosts.addresses[0]}:{PORT}"
        try:
            self.run("scheduler", [], ["scheduler", "--listen", self.where, "--http", "", "--token", "hosts"])
            limits = ["256MiB", "--pinned-limit", "128MiB"] if small else ["20GiB", "--pinned-limit", "1GiB"]
            for host, worker in enumerate("ab"):
                at = hosts.addresses[host * apart]
                line = [
                    "worker",
                    "--address",
                    self.where,
                    "--token",
                    "hosts",
                    "--listen",
                    f"{at}:0",
                    "--name",
                    worker,
                    "--device",
                    "cuda",
                ]
                line += [
                    "--gpu",
                    "0",
                    "--slots",
                    "2",
                    "--local-directory",
                    tempfile.mkdtemp(),
                    "--device-memory-limit",
                    *limits,
                    *flags,
                ]
                self.run(worker, hosts.on(host * apart), line)
            self.client = millrace.Client(self.where, token="hosts", shared_memory=False, timeout=20)
            self.ready(min(40, left()))
        except BaseException:
            self.close()
            raise

    def run(self, what: str, before: list[str], line: list[str]) -> None:
        env = {k: v for k, v in os.environ.items() if k != "MILLRACE_SCHEDULER_FILE"}
        with (self.folder / what).open("wb") as log:
            self.processes.append(subprocess.Popen([*before, str(self.binary), *line], env=env, stdout=log, stderr=log))

    def ready(self, limit: float) -> None:
        """Waits for both workers, as long as their processes live."""
        end = time.monotonic() + limit
        while len(self.workers()) < 2:
            ended = [p.args for p in self.processes if p.poll() is not None]
            if ended or time.monotonic() > end:
                raise TimeoutError(f"no two workers after {limit:.0f} s; ended: {ended or 'none'}; see logs.txt")
            time.sleep(0.02)

    def command(self, *line: str, limit: float = 10) -> str:
        command = [str(self.binary), *line, "--address", self.where, "--token", "hosts"]
        return subprocess.run(command, capture_output=True, text=True, timeout=limit, check=True).stdout

    def workers(self) -> dict[str, Any]:
        """Returns the active workers by name, without the number at the end."""
        listed = json.loads(self.command("get", "workers", "--state", "ACTIVE", "-o", "json"))["workers"]
        return {w["name"].split("-")[0]: w for w in listed}

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        for p in reversed(self.processes):
            p.terminate()
        for p in reversed(self.processes):
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        out = Path(os.environ.get("OUT", self.folder))
        out.mkdir(parents=True, exist_ok=True)
        with (out / "logs.txt").open("a") as all_logs:
            for path in sorted(self.folder.iterdir()):
                all_logs.write(f"\n===== {self.name}, {path.name}\n{path.read_text(errors='replace')[-KEPT:]}")

    # Objects with stamps.

    def make(self, count: int, size: int, **options: Any) -> tuple[list[int], list[Any]]:
        keys = [next(KEYS) for _ in range(count)]
        return keys, [self.op("bench.stamp", k, size, [], **({"workers": "a-0"} | options)) for k in keys]

    def op(self, name: str, *arguments: Any, **options: Any) -> Any:
        from millrace.ops import native

        return self.client.submit(native(name), *arguments, pure=False, timeout=TASK, **options)

    def timed(self, count: int, size: int) -> float:
        """Returns the seconds in which objects come from a to b, after which b checks their bytes."""
        keys, made = self.make(count, size)
        self.client.wait(made)
        took = []
        for _ in range(2):  # the second time the objects are there
            began = time.perf_counter()
            self.client.wait([self.op("bench.noop", *made, workers="b-0")])
            took.append(time.perf_counter() - began)
        self.client.gather(self.op("bench.stamp", next(KEYS), 32, keys, *made, workers="b-0"))
        return max(took[0] - took[1], 1e-6)

    def reported(self, size: int) -> list[float]:
        """Returns the seconds of the last fetches of one object, as worker b reports them."""
        [memory] = json.loads(self.command("memory", "b-0", "-o", "json"))["workers"]
        return [
            float(f["usableAfter"].removesuffix("s"))
            for f in memory["memory"].get("fetches", [])
            if size <= int(f["objectBytes"]) < size + 4096 and f["objectCount"] == 1
        ]


def numbers() -> Iterator[int]:
    n = 0
    while True:
        n += 1
        yield n


KEYS = numbers()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the main thread after some time, whatever it waits for."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"it took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    began = time.monotonic()
    outer, _ = signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        # An outer limit continues.
        signal.setitimer(signal.ITIMER_REAL, max(outer - (time.monotonic() - began), 0.1) if outer else 0)
        signal.signal(signal.SIGALRM, before)


def measure(c: Cluster, small: bool) -> dict[str, float]:
    """Prints the rates of a cluster, and returns them in GB/s by their names."""
    rates: dict[str, float] = {}
    scale = 16 if small else 1
    for count, size, times in (
        (1, MIB, 12),
        (1, 64 * MIB // scale, 6),
        (1, 256 * MIB // scale, 4),
        (1000 // scale, 64 << 10, 4),
    ):
        # The first one maps and connects.
        took = [c.timed(count, size) for _ in range(3 if small else times + 1)][1:]
        what = f"{count} x {size >> 10} KiB"
        rates[what] = count * size / statistics.median(took) / 1e9
        figure(f"{c.name}: {what}", rates[what], "GB/s")
        if count == 1 and (reported := c.reported(size)[-times:]):
            figure(f"{c.name}: {what}, as the reader reports", size / statistics.median(reported) / 1e9, "GB/s")
    say(f"{c.name}: {lane(c)}")
    return rates


def bench_transfer(c: Cluster, program: list[str], tls: str, small: bool) -> dict[str, float]:
    """Prints what `millrace bench transfer --hosts` measures: fetches as b reports them, and UCX alone.

    program is what the command line begins with, so that it runs on b's host. Returns the rates of
    the fetches in GB/s.
    """
    line = [*program, "bench", "transfer", "--hosts", "a-0,b-0", "--memory", "cuda", "--json", "--ucx-tls", tls]
    if small:
        line += ["--samples", "3", "--sizes", "64KiB", "--objects", "1,60"]
    else:
        line += ["--samples", "8", "--sizes", "64KiB,1MiB,64MiB", "--objects", "1,1000"]
    done = subprocess.run(
        [*line, "--address", c.where, "--token", "hosts"], capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        raise OSError(0, done.stderr[-600:])
    result = json.loads(done.stdout)
    say(f"{c.name}: {result['raw']}")
    rates = {}
    for row in result["rows"]:
        what = f"{row['objects']} x {row['bytes'] >> 10} KiB, bench"
        rates[what] = row["gb_per_s"]
        figure(f"{c.name}: {what}", rates[what], "GB/s")
        if row.get("ratio"):
            figure(f"{c.name}: {what}, UCX alone", row["raw_gb_per_s"], "GB/s")
            figure(f"{c.name}: {what}, beside UCX alone", row["ratio"], "x")
    return rates


def lane(c: Cluster) -> str:
    """Returns how b reads from a."""
    try:
        (c.folder / "topo").write_text(c.command("topo"))
        workers = json.loads(c.command("get", "workers", "-o", "json"))["workers"]
        return "; ".join(json.dumps(w.get("routes", [])) for w in workers if w["name"] == "b-0")[:700]
    except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
        return f"no lane is known: {error}"


def kills(c: Cluster, seconds: float, small: bool) -> None:
    """Kills a or b while b reads; every word of what arrives is checked."""
    rounds = objects = wrong = 0
    end = time.monotonic() + seconds
    dice = random.Random(1)
    sizes = (64 << 10, MIB, 5 * MIB // 2, 16 * MIB // (4 if small else 1))
    while time.monotonic() < end:
        # Preferences, so that work goes on while a worker is dead.
        keys, made = [], []
        for _ in range(40):
            k, f = c.make(1, dice.choice(sizes), allow_other_workers=True)
            keys += k
            made += f
        reads = [
            c.op(
                "bench.stamp",
                next(KEYS),
                32,
                keys[i : i + 4],
                *made[i : i + 4],
                workers="b-0",
                allow_other_workers=True,
            )
            for i in range(0, len(made), 2)
        ]
        victim = c.workers().get(dice.choice("ab"))
        time.sleep(dice.random() * 0.1)  # some moment of the transfers
        if victim is not None:
            os.kill(int(victim["pid"]), signal.SIGKILL)
            rounds += 1
        for f in reads:
            try:
                c.client.gather(f)
                objects += 4
            except Exception as error:
                wrong += 1
                say(f"{c.name}: after a kill: {str(error)[:300]}")
        while len(c.workers()) < 2 and left() > 0:
            time.sleep(0.02)
    figure(f"{c.name}: kills, with all words right", rounds, "kills")
    figure(f"{c.name}: kills, objects checked", objects, "objects")
    if wrong or not rounds:
        raise AssertionError(f"{wrong} reads failed in {rounds} rounds")


# --- All parts.


def main(binary: Path, small: bool, only_kills: bool = False) -> int:
    failed = []

    def part(name: str, limit: float, do: Callable[[], Any]) -> Any:
        limit = min(limit, left() - 2)
        if limit <= 0:
            failed.append(name)
            say(f"{name}: no time was left")
            return None
        began = time.monotonic()
        try:
            with within(limit):
                return do()
        except Exception as error:
            failed.append(name)
            say(f"{name}: failed: {type(error).__name__}: {str(error)[:600]}")
            return None
        finally:
            say(f"{name}: ended after {time.monotonic() - began:.1f} s")

    part("machine", 25, ask)
    hosts = Hosts()

    def way(
        name: str, flags: list[str], do: Callable[[Cluster], Any], program: Path = binary, apart: bool = True
    ) -> Any:
        c = Cluster(name, program, flags, hosts, small, apart)
        try:
            return do(c)
        finally:
            c.close()

    tcp = ["--protocol", "ucx", "--ucx-tls", "tcp"]
    ways: dict[str, dict[str, Any]] = {"ucx tcp": {"flags": tcp}, "streams": {"flags": ["--protocol", "grpc"]}}
    before = binary.with_name("millrace-before")
    if before.exists():
        ways["streams before"] = {"flags": ["--protocol", "grpc"], "program": before}
    ways["ucx cma"] = {"flags": ["--protocol", "ucx", "--ucx-tls", "posix,cma"], "apart": False}
    rates: dict[str, dict[str, float]] = {}

    def all_of(c: Cluster) -> dict[str, float]:
        found = measure(c, small)
        apart = ways[c.name].get("apart", True)
        program = [*(hosts.on(1) if apart else []), str(binary)]
        more = part(f"{c.name}, bench", 20, lambda: bench_transfer(c, program, "tcp" if apart else "posix,cma", small))
        return found | (more or {})

    for name, how in ways.items() if not only_kills else ():
        rates[name] = part(name, 30, lambda name=name, how=how: way(name, do=all_of, **how)) or {}
    for other in ("streams", "streams before"):
        for what, rate in rates.get(other, {}).items():
            for name in ("ucx tcp", "ucx cma", "streams"):
                if name != other and what in rates.get(name, {}):
                    figure(f"{name} beside {other}: {what}", rates[name][what] / rate, "x")
    if KILLS:
        part(
            "kills",
            KILLS + 20,
            lambda: way("ucx tcp", tcp, lambda c: kills(c, 3 if small and not only_kills else KILLS, small)),
        )
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def test(binary: str, arguments: list[str]) -> int:
    hosts = Hosts()
    devices = ["hosts0", "hosts1"] if hosts.keeper else ["lo", "lo"]
    os.environ["MILLRACE_TEST_OTHER_HOST"] = " ".join([hosts.addresses[1], *devices, *hosts.on(1)])
    return subprocess.run([binary, *arguments], check=False).returncode


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--on", pid, *command]:
            enter(int(pid), command)
        case ["--driver"]:
            driver()
        case ["--test", binary, *arguments]:
            sys.exit(test(binary, arguments))
        case [binary, *rest]:
            # A call of the driver that never returns must not keep the machine.
            watch = threading.Timer(LIMIT + 30, lambda: os._exit(124))
            watch.daemon = True
            watch.start()
            sys.exit(main(Path(binary).resolve(), "small" in rest, "kills" in rest))
