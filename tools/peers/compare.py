"""Runs workload.py and collections_workload.py against Dask and then against Millrace on this
machine, and prints the ratios. With --write, the tables of docs/performance.md get the figures.

compare.py PYTHON_WITH_DASK PYTHON_WITH_MILLRACE MILLRACE_BINARY [--write]
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import clusters

HERE = Path(__file__).parent
DEADLINE_SECONDS = 900
PAGE = HERE.parents[1] / "docs/performance.md"
#: The section of the page that --write replaces, up to the next heading.
SECTION = "### Collections beside LocalCluster\n"


def workload(python: str, library: str, where: str) -> dict[str, float]:
    """Returns the figures of both programs; those of the collections are in COLLECTIONS."""
    return {
        name: value
        for program in ("workload.py", "collections_workload.py")
        for name, value in figures(python, program, library, where).items()
    }


def figures(python: str, program: str, library: str, where: str) -> dict[str, float]:
    done = subprocess.run(
        [python, str(HERE / program), library, where],
        stdout=subprocess.PIPE,
        timeout=DEADLINE_SECONDS,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def limits() -> dict[str, float]:
    """Returns the greatest wanted ratios of the times of collections, by name."""
    code = "import collections_workload as c, json; print(json.dumps({n: r for n, (_, r) in c.PROGRAMS.items()}))"
    done = subprocess.run([sys.argv[1], "-c", code], cwd=HERE, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def section(theirs: dict[str, float], ours: dict[str, float], wanted: dict[str, float]) -> str:
    """Returns the section of docs/performance.md about collections."""
    rows = "".join(
        f"| {name} | {theirs[name]:.3g} s | {ours[name]:.3g} s | {bold(ours[name] / theirs[name], limit)} | {limit} |\n"
        for name, limit in wanted.items()
    )
    return f"""{SECTION}
Programs of Dask's collections with distributed's cluster of processes on this machine, and with
Millrace: {clusters.WORKERS} workers of one thread, {os.cpu_count()} CPUs, the least of
three runs each (`make bench-peers WRITE=--write` writes this section). The ratio is that of the
times; one above the wanted ratio is **missed**.

| program | distributed | Millrace | ratio | wanted |
|---|---|---|---|---|
{rows}
"""


def bold(ratio: float, limit: float) -> str:
    text = f"{ratio:.2f}"
    return f"**{text}**" if ratio > limit else text


def with_section(page: str, text: str) -> str:
    """Returns a page with a section in the place of the old one, or before "## Bytes"."""
    if SECTION not in page:
        return page.replace("## Bytes\n", text + "## Bytes\n", 1)
    before, _, rest = page.partition(SECTION)
    after = rest.find("\n## ") + 1
    return before + text + rest[after:]


def main() -> None:
    dask_python, millrace_python, binary = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as name:
        with clusters.dask(dask_python, Path(name)) as cluster:
            theirs = workload(dask_python, "dask", cluster.where)
        with clusters.millrace(millrace_python, binary, Path(name)) as cluster:
            ours = workload(millrace_python, "millrace", cluster.where)
    report = {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "workers": clusters.WORKERS,
        "dask": theirs,
        "millrace": ours,
    }
    out = Path("out/bench")
    out.mkdir(parents=True, exist_ok=True)
    (out / "peers.json").write_text(json.dumps(report, indent=2) + "\n")
    print(
        f"{clusters.WORKERS} one-thread workers and the client on {os.cpu_count()} CPUs; Python functions are really run"
    )
    print(f"{'':32}{'dask':>12}{'millrace':>12}{'better by':>12}")
    wanted = limits()
    for name, their in theirs.items():
        if name in wanted or "own work" in name:
            continue
        our = ours[name]
        ratio = our / their if "/s" in name and "us" not in name else their / our
        print(f"{name:32}{their:12.5g}{our:12.5g}{ratio:11.1f}x")
    print(f"\n{'collections of Dask, seconds':45}{'dask':>9}{'millrace':>9}{'ratio':>7}{'wanted':>8}")
    for name, limit in wanted.items():
        print(f"{name:45}{theirs[name]:9.3f}{ours[name]:9.3f}{ours[name] / theirs[name]:7.2f}{limit:8.2f}")
    rest = [name for name in ours if "own work" in name]
    print("\n".join(f"{name:45}{theirs[name]:9.3f}{ours[name]:9.3f}" for name in rest))
    if sys.argv[4:] == ["--write"]:
        PAGE.write_text(with_section(PAGE.read_text(), section(theirs, ours, wanted)))


if __name__ == "__main__":
    main()
