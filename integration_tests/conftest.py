"""Say which backends the environment has, so that a skipped test names what it lacks."""

from __future__ import annotations

import pytest
from tianyuan import registry


@pytest.fixture
def x86() -> str:
    """Return the name of the x86 backend, or skip where it is not there."""
    if "x86" not in registry.backends("cpu"):
        pytest.skip("tianyuan-x86 is not installed or does not fit this machine")
    return "x86"
