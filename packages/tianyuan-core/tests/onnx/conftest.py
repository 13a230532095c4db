"""Print how the node cases went, per operator, when the suite has run."""

from __future__ import annotations

import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path

MISSING = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []

Row = dict[str, Any]


def pytest_report_header() -> str | None:
    """Say that the tests are left out, and why."""
    return f"tests/onnx is left out: {', '.join(MISSING)} not installed" if MISSING else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table per operator and the shares per set of kernels."""
    rows: list[Row] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = dict(getattr(report, "user_properties", ()))
            if "node_case" in properties and report.when == "call":
                rows.append(properties["node_case"])
    if not rows:
        return
    terminalreporter.section("ONNX node cases")
    for kernels in sorted({row["kernels"] for row in rows}):
        chosen = [row for row in rows if row["kernels"] == kernels]
        terminalreporter.write_line(_shares(kernels, chosen))
    for line in _table(rows):
        terminalreporter.write_line(line)


def _shares(kernels: str, rows: list[Row]) -> str:
    standard = [row for row in rows if row["domain"] == "ai.onnx"]
    passed = sum(row["passed"] for row in standard)
    clean = sum(row["passed"] and not row["references"] for row in standard)
    compiled = sum(row["passed"] and row["compiled"] for row in standard)
    everything = sum(row["passed"] for row in rows)
    count = max(len(standard), 1)
    return (
        f"{kernels}: {passed} of {len(standard)} cases of ai.onnx pass ({passed / count:.2%}), "
        f"{clean / count:.2%} without a reference step, {compiled / count:.2%} as a program; "
        f"{everything} of {len(rows)} with all domains"
    )


def _table(rows: list[Row]) -> list[str]:
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for row in rows:
        cell = counts[row["operator"]][row["kernels"]]
        cell[0] += row["passed"]
        cell[1] += 1
    names = sorted({row["kernels"] for row in rows})
    lines = [f"{'operator':32}" + "".join(f"{name:>12}" for name in names)]
    for operator, cells in sorted(counts.items()):
        shares = "".join(f"{cells[n][0]:>6}/{cells[n][1]:<5}" for n in names)
        lines.append(f"{operator:32}{shares}")
    return lines
