"""The page on several processes trains as it says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "distributed.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="not in a checkout")


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_every_rank_ends_with_the_same_and_a_smaller_loss(tmp_path: Path) -> None:
    program = blocks()[0]
    last = "    print(main(20))"
    assert last in program
    (tmp_path / "train.py").write_text(program.replace(last, "    print(main(1) + main(20))"))
    command = [sys.executable, "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    before, also_before, after, also_after = ast.literal_eval(done.stdout)
    assert before == also_before
    assert after == also_after
    assert after < before


def test_a_communicator_of_ones_own_has_as_many_methods_as_the_page_says() -> None:
    names: dict[str, Any] = {}
    exec(blocks()[2], names)
    assert "# ten methods" in blocks()[2]
    assert len(names["MPI"].__abstractmethods__) == 10
    assert names["tianyuan_communicators"]() == {"mpi": names["MPI"]}
