"""The short scripts among the examples print tables that say what their texts promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="not a checkout")


def rows(script, folder):
    """Return the rows of a script's table: name and numbers."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script)], cwd=folder, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^(.*?)\s+((?:\d+\s+)?(?:[\d.]+|inf))$", done.stdout, re.MULTILINE)
    return {name: [float(number) for number in numbers.split()] for name, numbers in found}


def test_own_parts(tmp_path):
    found = rows("quantize_own.py", tmp_path)
    assert found["three_sigma"][0] > found["min-max"][0] + 2


def test_encoder(tmp_path):
    found = rows("quantize_encoder.py", tmp_path)
    sizes = [found[n][0] for n in ("float", "dynamic int8", "int4, groups of 128")]
    assert sizes[1] < 0.35 * sizes[0]
    assert sizes[2] < 0.6 * sizes[1]
    ratios = [found[f"int4, groups of {n}"][1] for n in (128, 32, 8)]
    assert ratios == sorted(ratios)
    assert found["dynamic int8"][1] > 30
    assert found["float"][1] > 100
