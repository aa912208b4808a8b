"""The benchmark bench/gpu/hosts.py with small sizes, on the fake driver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from millrace.cluster import find_binary
from test_device import Fake
from test_device import fake as fake

SCRIPT = Path(__file__).parents[3] / "bench/gpu/hosts.py"
_MEMORY = 16  # offset of the size of a GPU in the driver's state


@pytest.mark.long
def test_the_benchmark_measures_everything(fake: Fake, tmp_path: Path) -> None:  # noqa: F811
    fake.set(_MEMORY, 1 << 30)
    found = {
        "MILLRACE_CUDA_LIBRARY": str(fake.library),
        "MILLRACE_NVML_LIBRARY": "none",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run(
        [sys.executable, SCRIPT, find_binary(), "small"],
        env={**os.environ, **found, "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:] + (tmp_path / "logs.txt").read_text()[-4000:]
    for part in (
        "machine",
        "ucx tcp",
        "ucx tcp, bench",
        "streams",
        "streams, bench",
        "ucx cma",
        "ucx cma, bench",
        "kills",
    ):
        assert re.search(rf"^{part}: ended after", done.stdout, re.MULTILINE), part
    # A figure is a name, a number and a unit, as tools/gpu-run reads them.
    figures = {
        m[1]: float(m[2])
        for m in re.finditer(r"^(.*?) {2,}([0-9.]+) (?:GB/s|kills|objects|x)$", done.stdout, re.MULTILINE)
    }
    assert len(figures) == 3 * (7 + 2) + 2 * 2 * 2 + 2 * (4 + 2) + 2 and all(v > 0 for v in figures.values()), figures
    assert figures["ucx tcp: kills, with all words right"] >= 1
