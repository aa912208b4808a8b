"""The benchmark bench/gpu/torch_arena.py with small sizes, on the fake driver with a fake torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from millrace.cluster import find_binary
from test_device import FAKES, Fake
from test_device import fake as fake

SCRIPT = Path(__file__).parents[3] / "bench/gpu/torch_arena.py"
_MEMORY = 16  # offset of the size of a GPU in the driver's state


@pytest.mark.long
def test_the_benchmark_measures_everything(fake: Fake, tmp_path: Path) -> None:  # noqa: F811
    fake.set(_MEMORY, 768 << 20)
    path = os.pathsep.join([str(FAKES), *(p for p in sys.path if p)])
    found = {"MILLRACE_CUDA_LIBRARY": str(fake.library), "MILLRACE_NVML_LIBRARY": "none", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, SCRIPT, find_binary(), "small"],
        env={**os.environ, **found, "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    figures = json.loads((tmp_path / "torch-arena.json").read_text())["figures"]
    values = {what: (row["with"]["value"], row["without"]["value"]) for what, row in figures.items()}
    assert len(values) == 12
    # Torch has the slab as well, which is 70 % of the GPU.
    for what in ("makes and uses", "returns"):
        (found_sizes,) = (v for k, v in values.items() if k == f"largest tensor that a task {what}")
        assert found_sizes[0] >= 0.4375 > 0.125 >= found_sizes[1] > 0
    made, never = values["results of the chain that torch made in the slab"]
    assert made >= 50 and never == 0
    # Each line is a name, a number and a unit, as tools/gpu-run reads them.
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 24 and all(float(line[-2]) >= 0 for line in lines)
