"""Show what this installation is made of."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from .. import __version__, native, plugins, registry
from ..plugin import API


def show_info() -> None:
    """Print versions, plugins with state and reason, and what each reports."""
    console = Console()
    console.print(f"tianyuan {__version__}, plugin API {API[0]}.{API[1]}")
    console.print(f"Python {platform.python_version()}, numpy {np.__version__}")
    console.print(f"CPU {cpu_name()}, {platform.machine()}, {native.get_num_threads()} threads")
    plugins.ensure_kernels("cpu")
    table = Table("plugin", "distribution", "state", "kernels", "reason")
    for record in plugins.records():
        count = sum(
            len(kernels)
            for (name, _), backend in registry.all_backends().items()
            if name == record.name
            for kernels in backend.kernels.values()
        )
        table.add_row(
            record.name,
            f"{record.distribution} {record.version}",
            record.state,
            str(count),
            record.reason,
        )
    console.print(table)
    for record in plugins.records():
        if record.state == plugins.LOADED:
            for line in _lines(plugins.report(record)):
                console.print(f"{record.name}: {line}", highlight=False)


def _lines(report: dict[str, Any]) -> Iterator[str]:
    for key, value in report.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {_word(item)}" for name, item in value.items())
        elif isinstance(value, (list, tuple)):
            value = ", ".join(map(str, value))
        yield f"{key.replace('_', ' ')}: {_word(value)}"


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def cpu_name() -> str:
    """Return the processor's name as the operating system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or "unknown"
    return platform.processor() or "unknown"
