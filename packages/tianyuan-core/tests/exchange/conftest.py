"""Fixtures for exchange with other frameworks; what is not installed skips with a reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path


@pytest.fixture(scope="session")
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was measured of each real model."""
    rows: dict[str, dict[str, Any]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = dict(getattr(report, "user_properties", ()))
            if "real_model" in properties and report.when == "call":
                rows[report.nodeid.rpartition("::")[2]] = properties["real_model"]
    if rows:
        terminalreporter.section("real models")
    for name, row in rows.items():
        terminalreporter.write_line(name)
        for what, value in row.items():
            shown = f"{value:.2g}" if isinstance(value, float) else value
            terminalreporter.write_line(f"    {what}: {shown}")
