"""Print the table of operators that docs/onnx.md holds: ``python -m tianyuan.onnx``."""

from __future__ import annotations

import sys

from . import supported


def table() -> str:
    """Return the operators that can be imported as a Markdown table."""
    rows = ["| operator | versions | form |", "|---|---|---|"]
    for entry in supported():
        name = entry.name if entry.domain == "ai.onnx" else f"{entry.domain}.{entry.name}"
        rows.append(f"| {name} | {entry.versions} | {entry.form} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
