"""What an installation may cost: time to import, and size of what is shipped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import tianyuan

IMPORT_RATIO = 1.6
CORE_BYTES = 4_000_000
_ROUNDS = 7
_ATTEMPTS = 4  # neighbours on the machine may disturb one, hardly all


def seconds(module: str) -> float:
    """Return how long a process takes that imports one module."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import {module}"], env=environment, check=True
    )
    return time.perf_counter() - start


def ratio() -> float:
    """Return the least import time of tianyuan over numpy's, in turns."""
    pairs = [(seconds("numpy"), seconds("tianyuan")) for _ in range(_ROUNDS)]
    numpy, ours = (min(times) for times in zip(*pairs, strict=True))
    return ours / numpy


def test_importing_costs_little_more_than_numpy() -> None:
    seconds("tianyuan")  # leaves byte code behind, where an installer did not
    found = []
    for _ in range(_ATTEMPTS):
        found.append(ratio())
        if found[-1] <= IMPORT_RATIO:
            return
    raise AssertionError(f"import takes {found} times numpy's, expected at most {IMPORT_RATIO}")


def test_core_stays_small() -> None:
    package = Path(tianyuan.__file__).parent
    files = [p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert sum(p.stat().st_size for p in files) <= CORE_BYTES


def test_importing_loads_nothing_heavy() -> None:
    others = {"onnx", "torch", "cupy", "tabulate", "click", "PIL", "cv2", "scipy"}
    heavy = {*others, "tianyuan.functional"}
    program = "import sys, tianyuan; print(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert not heavy & set(out.stdout.split())
