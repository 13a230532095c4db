"""Show what this installation is made of."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import click
import numpy as np

from .. import __version__, native, plugins, registry
from ..plugin import API
from ..utils.table import format_table


def show_info() -> None:
    """Print versions, plugins with state and reason, and what each reports."""
    click.echo(f"tianyuan {__version__}, plugin API {API[0]}.{API[1]}")
    click.echo(f"Python {platform.python_version()}, numpy {np.__version__}")
    click.echo(f"CPU {cpu_name()}, {platform.machine()}, {native.get_num_threads()} threads")
    plugins.ensure_kernels("cpu")
    rows = []
    for record in plugins.records():
        count = sum(
            len(kernels)
            for (name, _), backend in registry.all_backends().items()
            if name == record.name
            for kernels in backend.kernels.values()
        )
        origin = f"{record.distribution} {record.version}"
        rows.append([record.name, origin, record.state, count, record.reason])
    click.echo(format_table(["plugin", "distribution", "state", "kernels", "reason"], rows))
    for record in plugins.records():
        if record.state == plugins.LOADED:
            for line in _lines(plugins.report(record)):
                click.echo(f"{record.name}: {line}")


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
