"""The pages on gradients, tracing, finding trouble and coming from MegEngine say what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M

PAGES = Path(__file__).parents[4] / "docs"
needs_checkout = pytest.mark.skipif(not PAGES.exists(), reason="not in a checkout")


def run_blocks(page: str, count: int, names: dict[str, Any]) -> dict[str, Any]:
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    assert len(blocks) == count
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
    return names


@needs_checkout
@pytest.mark.parametrize(("page", "count"), [("gradients.md", 8), ("tracing.md", 3)])
def test_every_block_runs(page: str, count: int) -> None:
    run_blocks(page, count, {})


@needs_checkout
def test_the_page_on_trouble_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net, images = M.Linear(2, 2), ty.Tensor([[1.0, 2.0]])
    given = {"net": net, "images": images, "labels": ty.Tensor([0])}
    names = run_blocks("finding-trouble.md", 2, {**given, "step": lambda x, y: net(x).sum()})
    written = sorted(path.name.partition(".")[2] for path in Path("profile").iterdir())
    assert written == ["chrome_timeline.json", "memory_flow.svg"]
    told = pytest.raises(ty.errors.NonFiniteError, match="log: result is not finite, got nan")
    with told, names["detect_anomaly"]():
        F.log(ty.Tensor([-1.0, 1.0]))


@needs_checkout
def test_the_imports_of_a_megengine_program_are_one_line_apart() -> None:
    names = run_blocks("migrating-from-megengine.md", 1, {})
    assert names["mge"] is ty
    array = np.array([1.5], np.float64)
    assert names["mge"].Tensor(array).dtype == np.float32
