"""The pages on gradients and tracing say what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGES = Path(__file__).parents[4] / "docs"


@pytest.mark.skipif(not PAGES.exists(), reason="not in a checkout")
@pytest.mark.parametrize(("page", "count"), [("gradients.md", 8), ("tracing.md", 3)])
def test_every_block_runs(page: str, count: int) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    assert len(blocks) == count
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
