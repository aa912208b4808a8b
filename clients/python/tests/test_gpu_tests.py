"""The tests that need a GPU, as far as they can be checked without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE
from millrace._local._local_process import find_binary

TESTS = ("test_gpu.py", "test_gpu_torch.py", "test_gpu_cluster.py", "test_device_cluster.py")


def test_gpu_tests_have_their_fixtures() -> None:
    """They share tests and fixtures with other modules, so a rename there may break them."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--setup-plan", "-p", "no:cacheprovider", *TESTS],
        cwd=here,
        env={**os.environ, "MILLRACE_GPU_TESTS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.long
def test_the_benchmark_of_frames_counts_its_rows() -> None:
    """It runs at a small size with pandas, and ends if rows are missing."""
    program = Path(__file__).parents[3] / "bench/gpu/frames.py"
    done = subprocess.run(
        [sys.executable, program, find_binary(), "small"], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    names = [line.rsplit(None, 2)[0] for line in done.stdout.splitlines()]
    assert names == [f"{kind} of cuDF, {what}" for kind in ("shuffle", "merge") for what in ("median", "least", "rate")]
