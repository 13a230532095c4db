"""Log each kernel call in one line, while ``config.verbose`` is on."""

from __future__ import annotations

from . import monitor


def line(run: monitor.KernelRun) -> str:
    """Return what is logged of a kernel call: op, kernel, shapes, microseconds and place."""
    specs = ", ".join(map(str, run.input_specs))
    made = ", ".join(map(str, run.output_specs))
    return (
        f"{run.op}({specs}) -> {made}: {run.kernel} ({run.backend}), "
        f"{run.seconds * 1e6:.1f} µs, {run.place()}"
    )


def _tell(run: monitor.KernelRun) -> None:
    from .. import logger

    logger.get_logger(logger.RUNTIME).info(line(run))


def switch(value: bool) -> None:
    """Follow ``config.verbose``."""
    monitor.remove(_tell)
    if value:
        monitor.add(_tell)
