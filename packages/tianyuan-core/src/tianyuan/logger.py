"""Decide where log messages go and how they look: one handler per logger, levels set together.

The level of loggers starts as INFO, or as what the environment's TIANYUAN_LOGGING_LEVEL names.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

RUNTIME = "tianyuan.runtime"  # the logger that the runtime itself writes to

_DATE = "%d %H:%M:%S"
_SHORT = {
    logging.DEBUG: "DBG",
    logging.INFO: "INF",
    logging.WARNING: "WRN",
    logging.ERROR: "ERR",
    logging.CRITICAL: "CRT",
}
_COLORS = {
    logging.DEBUG: "\x1b[32m",
    logging.WARNING: "\x1b[1;31m",
    logging.ERROR: "\x1b[1;4;31m",
    logging.CRITICAL: "\x1b[1;4;31m",
}
_PLAIN = "\x1b[0m"


class MegEngineLogFormatter(logging.Formatter):
    """Write a record as time, level, place and message, its level coloured for a terminal.

    Args:
        fmt, datefmt: as for ``logging.Formatter``; ``fmt`` shapes the message alone.
        color: whether to colour by level.

    >>> import logging
    >>> record = logging.LogRecord("demo", logging.WARNING, "net.py", 7, "hot", (), None, "main")
    >>> MegEngineLogFormatter(datefmt="today").format(record).split("[")[0]
    'today WRN'
    """

    def __init__(
        self, fmt: str | None = None, datefmt: str | None = _DATE, color: bool = False
    ) -> None:
        super().__init__(fmt, datefmt)
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        level = _SHORT.get(record.levelno, record.levelname)
        if self._color and record.levelno in _COLORS:
            level = _COLORS[record.levelno] + level + _PLAIN
        where = f"{record.process}@{record.filename}:{record.lineno}-{record.funcName}"
        time = self.formatTime(record, self.datefmt)
        return f"{time} {level}[{where}]: {super().format(record)}"


def _first_level() -> int:
    named = logging.getLevelName(os.environ.get("TIANYUAN_LOGGING_LEVEL", "INFO").upper())
    return named if isinstance(named, int) else logging.INFO


_level = _first_level()
_made: list[logging.Logger] = []
_file: logging.Handler | None = None


class _Errors(logging.StreamHandler):
    """Writes to what ``sys.stderr`` is when a message comes."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Ignore what the base class sets: the stream is looked up anew each time."""


def get_logger(
    name: str | None = None, formatter: Callable[..., logging.Formatter] = MegEngineLogFormatter
) -> logging.Logger:
    """Return the logger of a name, set up on first use to write to standard error.

    Args:
        name: the root logger if None.
        formatter: class of its formatter, called as ``formatter(datefmt=…)``.

    >>> get_logger("demo") is get_logger("demo")
    True
    """
    logger = logging.getLogger(name)
    if logger in _made:
        return logger
    handler = _Errors()
    # Another class may take no ``color``.
    colored = formatter is MegEngineLogFormatter and sys.stderr.isatty()
    handler.setFormatter(formatter(datefmt=_DATE, **({"color": True} if colored else {})))
    logger.propagate = False
    logger.setLevel(_level)
    logger.handlers[:] = [handler, *([_file] if _file is not None else [])]
    _made.append(logger)
    return logger


def set_log_level(level: int | str, update_existing: bool = True) -> int:
    """Set the level of loggers made from now on, and return the one before.

    Args:
        level: number or name of ``logging``.
        update_existing: whether loggers that ``get_logger`` has made take it too.

    Raises:
        ValueError, TypeError: where there is no such level.

    >>> import logging
    >>> before = set_log_level("ERROR")
    >>> get_logger("demo").isEnabledFor(logging.WARNING)
    False
    >>> set_log_level(before) == logging.ERROR
    True
    """
    global _level
    probe = logging.Logger("")
    probe.setLevel(level)
    before, _level = _level, probe.level
    if update_existing:
        for logger in _made:
            logger.setLevel(_level)
    return before


def enable_debug_log() -> None:
    """Let every message pass.

    >>> enable_debug_log(); set_log_level("INFO")
    10
    """
    set_log_level(logging.DEBUG)


def set_log_file(fout: str | os.PathLike[str] | TextIO, mode: str = "a") -> None:
    """Write every message to a file too, in place of the file that was set before.

    Args:
        fout: path, or an object with ``write`` and ``flush``.
        mode: how a path is opened.

    Raises:
        OSError: where it cannot be opened; what was set before stays.
        TypeError: where it is neither a path nor can be written to.

    >>> import io, logging
    >>> text = io.StringIO(); set_log_file(text)
    >>> get_logger("demo").error("cold"); text.getvalue().strip().endswith("cold")
    True
    """
    global _file
    if not isinstance(fout, (str, os.PathLike)) and not callable(getattr(fout, "write", None)):
        raise TypeError(
            f"set_log_file: fout is wrong, got {type(fout).__name__}, expected a path or a file"
        )
    made: logging.Handler = (
        logging.FileHandler(fout, mode, encoding="utf-8")
        if isinstance(fout, (str, os.PathLike))
        else logging.StreamHandler(fout)
    )
    made.setFormatter(MegEngineLogFormatter())
    before, _file = _file, made
    for logger in _made:
        logger.handlers[:] = [h for h in logger.handlers if h is not before] + [made]
    if before is not None:
        before.close()


@contextmanager
def replace_mgb_log_level(level: int | str) -> Iterator[None]:
    """Set the level of the runtime's own messages inside a ``with`` block.

    >>> with replace_mgb_log_level("ERROR"):
    ...     get_logger("tianyuan.runtime").level
    40
    """
    logger = get_logger(RUNTIME)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def call_countlog_func(
    func: Callable[..., Any], count: int = 1, msg: str | None = None
) -> Callable[..., Any]:
    """Return a function that does what ``func`` does and logs its first ``count`` calls.

    Args:
        func: what to call.
        count: how many calls are logged.
        msg: what is logged; the function's name by default.

    >>> call_countlog_func(abs, count=0)(-2)
    2
    """
    left = count

    @functools.wraps(func)
    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        if left > 0:
            left -= 1
            name = getattr(func, "__qualname__", repr(func))
            get_logger("tianyuan").info(msg if msg is not None else f"{name} is called")
        return func(*args, **kwargs)

    return counted
