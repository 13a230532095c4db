"""Tell from a profile what takes the time: the slowest kernels, or groups of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ..errors import AttrError
from ..utils.profile_analyzer import (
    OprProfRst,
    ProfileAnalyzer,
    Record,
    TimeFuncHelper,
    from_timeline,
)
from ..utils.table import format_table
from .command import run

_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum, "max": max, "min": min, "mean": lambda values: sum(values) / len(values),
}  # fmt: skip
_COLUMNS = ("time", "name", "type", "memory", "bandwidth", "in_shapes", "out_shapes")


def read_profile(path: Path) -> dict[str, Any]:
    """Return a profile from a timeline of ``utils.profiler``, or from a profile kept as JSON.

    Raises:
        AttrError: where it is neither.
    """
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise AttrError(f"profile_analyze: {path} is not JSON, got {error}") from None
    if isinstance(found, dict) and "traceEvents" in found:
        return from_timeline(found)
    if isinstance(found, dict) and {"graph_exec", "profiler"} <= found.keys():
        return found
    raise AttrError(f"profile_analyze: {path} is no profile, expected a chrome_timeline.json")


def analyze(
    profile: dict[str, Any],
    top: int = 10,
    order_by: str = "time",
    types: Sequence[str] = (),
    min_time: float = 0.0,
    max_time: float = float("inf"),
    aggregate: str | None = None,
    aggregate_by: str | None = None,
) -> list[Record]:
    """Return the records that a command line asks for.

    Args:
        profile: what ``read_profile`` returns.
        top: how many records, all if 0.
        order_by: column to sort by, the largest first unless ``+`` stands before it.
        types: names of ops or kernels to keep, all if empty.
        min_time, max_time: bounds of an op's time in seconds.
        aggregate, aggregate_by: how to put ops together (sum, max, min, mean), and by what column.

    >>> event = {"name": "exp", "cat": "eager", "ph": "X", "ts": 0, "dur": 5e6, "args": {}}
    >>> [record.time for record in analyze(from_timeline({"traceEvents": [event]}))]
    [5.0]

    Raises:
        AttrError: for an unknown column.
    """
    took = TimeFuncHelper.eval_time_func("host", "end", sum)

    def keep(opr: OprProfRst) -> bool:
        seconds = took(opr)
        named = not types or opr.opr_info["name"] in types or opr.opr_info["type"] in types
        return named and seconds is not None and min_time <= seconds <= max_time

    chosen = _AGGREGATES[aggregate] if aggregate else (sum if aggregate_by else None)
    return ProfileAnalyzer(profile).select(took, keep, chosen, aggregate_by, order_by, top)


def _table(records: Sequence[Record], total: float) -> str:
    columns = [
        name for name in _COLUMNS if any(getattr(record, name) is not None for record in records)
    ]
    rows = [
        [_cell(name, getattr(record, name)) for name in columns]
        + [f"{record.time / total:.1%}" if total else ""]
        for record in records
    ]
    return format_table([*columns, "share"], rows)


def _cell(column: str, value: Any) -> str:
    if column == "time":
        return f"{value * 1e6:.1f} us"
    if column in ("memory", "bandwidth"):
        return f"{float(value):.4g}"
    return "" if value is None else str(value)


@click.command("profile_analyze")
@click.argument("profile", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--top", "-t", type=click.IntRange(0), default=10, show_default=True)
@click.option("--order-by", default="time", show_default=True, help="Column, + before it ascends.")
@click.option("--type", "types", multiple=True, help="Op or kernel to keep.")
@click.option("--min-time", type=float, default=0.0, help="Seconds.")
@click.option("--max-time", type=float, default=float("inf"), help="Seconds.")
@click.option("--aggregate", type=click.Choice(list(_AGGREGATES)))
@click.option("--aggregate-by", help="Column whose equal values are put together, as name or type.")
def _command(
    profile: Path, top: int, order_by: str, types: tuple[str, ...], min_time: float,
    max_time: float, aggregate: str | None, aggregate_by: str | None,
) -> None:  # fmt: skip
    """Tell what takes the time in PROFILE, a timeline that the profiler has written."""
    read = read_profile(profile)
    total = sum(record.time for record in analyze(read, top=0))
    records = analyze(read, top, order_by, types, min_time, max_time, aggregate, aggregate_by)
    click.echo(_table(records, total))
    click.echo(f"total {total * 1e3:.3f} ms")


def main() -> None:
    """Run the command line: ``python -m tianyuan.tools.profile_analyze PROFILE``."""
    run(_command)


if __name__ == "__main__":
    main()
