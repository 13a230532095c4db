"""Fixtures for exchange with other frameworks; what is not installed skips with a reason."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")
