"""A model that runs keeps no more of its file in memory than it reads as it lies there."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan.graph import lower

SMAPS = Path("/proc/self/smaps")


def resident(path: Path) -> int:
    """Return how many bytes of a mapped file this process holds."""
    found, inside = 0, False
    for line in SMAPS.read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


def written(path: Path, sizes: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(size).astype(np.float32) for size in sizes]

    def net(x: ty.Tensor) -> ty.Tensor:
        return F.concat([ty.Tensor(part) * x for part in parts])

    traced = ty.jit.trace(net, capture_as_const=True)
    traced(ty.Tensor(np.float32(2)))
    traced.dump(str(path), arg_names=["x"])
    return parts


@pytest.mark.skipif(not SMAPS.exists(), reason="only Linux tells what of a file is in memory")
@pytest.mark.parametrize("backend", [None, "numpy"])
def test_small_constants_leave_their_file(tmp_path: Path, backend: str | None) -> None:
    path = tmp_path / "net.tym"
    parts = written(path, [3, 5000, 0, 1, 9001, lower.SMALL // 4])
    model = ty.jit.load(path, backend=backend)
    expected = np.concatenate([part * np.float32(2) for part in parts])
    np.testing.assert_array_equal(model(np.float32(2)), expected)
    assert resident(path) == 0
    np.testing.assert_array_equal(copy.deepcopy(model)(np.float32(2)), expected)
    np.testing.assert_array_equal(model(np.float32(2)), expected)


@pytest.mark.skipif(not SMAPS.exists(), reason="only Linux tells what of a file is in memory")
def test_large_constants_are_read_where_they_lie(tmp_path: Path) -> None:
    path = tmp_path / "net.tym"
    large = lower.SMALL  # floats: four times as many bytes
    parts = written(path, [large, 7, 2 * large])
    model = ty.jit.load(path)
    expected = np.concatenate([part * np.float32(2) for part in parts])
    np.testing.assert_array_equal(model(np.float32(2)), expected)
    assert resident(path) >= 12 * large
    program = model.program(np.float32(2))
    assert all(not constant.flags.writeable for constant in program.constants)
    assert sum(constant.nbytes for constant in program.constants) == 12 * large + 28
