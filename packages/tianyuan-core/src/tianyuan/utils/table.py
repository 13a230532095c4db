"""Text tables, as the command line and the statistics print them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def format_table(
    header: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None
) -> str:
    """Return rows under a header, in columns as wide as they need, below a title if given.

    >>> print(format_table(["item", "value"], [["flops", "9"]], "summary"))
    summary
    ╭────────┬─────────╮
    │ item   │ value   │
    ├────────┼─────────┤
    │ flops  │ 9       │
    ╰────────┴─────────╯
    """
    from tabulate import tabulate

    cells = [[str(cell) for cell in row] for row in rows]
    # Numbers come written as they shall be read.
    text = tabulate(cells, list(header), tablefmt="rounded_outline", disable_numparse=True)
    return text if title is None else f"{title}\n{text}"
