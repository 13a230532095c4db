"""Record what kernels run and when, in eager code and in programs, and write it for viewers.

While a profiler records, traced and loaded programs run step by step, which adds a few microseconds
to each step. Times are those of one clock for all processes of a machine.
"""

from __future__ import annotations

import json
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from pathlib import Path
from time import perf_counter
from typing import Any

from ..errors import AttrError
from ..imperative import monitor
from . import memory_flow

_PACKAGE = str(Path(__file__).parents[1])
_TIMELINE = re.compile(r"\d+\.chrome_timeline\.json")

_active: list[Profiler] = []
_scopes: ContextVar[tuple[str, ...]] = ContextVar("scopes", default=())

Event = dict[str, Any]


class Profiler(ContextDecorator):
    """Record the kernel calls of this process, in a ``with`` block or a decorated function.

    Leaving the block writes one file per format, ``{path}/{pid}.{format}``:
    ``chrome_timeline.json`` for chrome://tracing or Perfetto, and ``memory_flow.svg``, which shows
    each value's memory over its life.

    Args:
        path: folder for the files.
        format: what to write, where ``formats`` is not given.
        formats: what to write.
        with_backtrace: whether each call tells the user's stack.
        with_scopes: whether each call tells the scopes that it ran in.
        sample_rate, profile_device, num_tensor_watch, enable_cupti: accepted for MegEngine's sake.

    Raises:
        AttrError: for an unknown format or option.

    >>> import os, tianyuan as ty
    >>> with Profiler("profile") as profiler:
    ...     _ = ty.Tensor([1.0]) + 1.0
    >>> os.listdir("profile") == [f"{os.getpid()}.chrome_timeline.json"]
    True
    """

    CHROME_TIMELINE = "chrome_timeline.json"
    MEMORY_FLOW = "memory_flow.svg"

    valid_options = ("sample_rate", "profile_device", "num_tensor_watch", "enable_cupti")
    valid_formats = (CHROME_TIMELINE, MEMORY_FLOW)

    def __init__(
        self,
        path: str = "profile",
        format: str = "chrome_timeline.json",
        formats: list[str] | None = None,
        with_backtrace: bool = False,
        with_scopes: bool = False,
        **kwargs: Any,
    ) -> None:
        chosen = [format] if formats is None else [formats] if isinstance(formats, str) else formats
        unknown = [name for name in chosen if name not in self.valid_formats]
        unknown += [name for name in kwargs if name not in self.valid_options]
        if unknown:
            raise AttrError(
                f"Profiler: format or option is unknown, got {unknown[0]!r}, expected some of "
                f"{', '.join((*self.valid_formats, *self.valid_options))}"
            )
        self._path = os.fspath(path)
        self._formats = list(chosen)
        self._with_backtrace = with_backtrace
        self._with_scopes = with_scopes
        self._events: list[Event] = []
        self._steps = 0
        self._lives = memory_flow.Lives()

    @property
    def path(self) -> str:
        """Folder for the files."""
        return self._path

    @property
    def directory(self) -> str:
        """Folder for the files."""
        return self._path

    @property
    def formats(self) -> list[str]:
        """What is written."""
        return list(self._formats)

    def format_path(self, path: str, pid: int, format: str) -> str:
        """Return the path of the file of one process and format.

        >>> Profiler("out").format_path("out", 7, "memory_flow.svg")
        'out/7.memory_flow.svg'
        """
        return os.path.join(path, f"{pid}.{format}")

    def start(self) -> Profiler:
        """Forget what was recorded and record from here on.

        Raises:
            AttrError: where it records already.

        >>> profiler = Profiler().start()
        >>> is_profiling(), profiler.stop(), is_profiling()
        (True, None, False)
        """
        if self in _active:
            raise AttrError("Profiler.start: it records already, expected stop() first")
        self._events, self._steps, self._lives = [], 0, memory_flow.Lives()
        _active.append(self)
        monitor.add(self._note)
        return self

    def stop(self) -> None:
        """Stop recording; what was recorded is kept for ``dump``.

        >>> profiler = Profiler().start()
        >>> profiler.stop()
        >>> is_profiling()
        False
        """
        if self in _active:
            _active.remove(self)
            monitor.remove(self._note)
            self._lives.end(perf_counter())

    def step(self) -> None:
        """Mark the end of a step of training on the timeline.

        >>> with Profiler("profile") as profiler:
        ...     profiler.step()
        >>> file = profiler.format_path("profile", os.getpid(), "chrome_timeline.json")
        >>> with open(file) as timeline:
        ...     "step 1" in timeline.read()
        True
        """
        self._steps += 1
        self._add(f"step {self._steps}", "step", perf_counter(), ph="i", s="p")

    def dump(self) -> None:
        """Write one file per format.

        Raises:
            OSError: where they cannot be written.

        >>> profiler = Profiler("profile", formats=["memory_flow.svg"])
        >>> profiler.dump()
        >>> os.listdir("profile") == [f"{os.getpid()}.memory_flow.svg"]
        True
        """
        os.makedirs(self._path, exist_ok=True)
        for format in self._formats:
            text = (
                json.dumps({"traceEvents": [*self._names(), *self._events]})
                if format == self.CHROME_TIMELINE
                else self._lives.svg()
            )
            Path(self.format_path(self._path, os.getpid(), format)).write_text(text)

    def __enter__(self) -> Profiler:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self.dump()

    # What is recorded.

    def _note(self, run: monitor.KernelRun) -> None:
        args: dict[str, Any] = {
            "kernel": run.kernel,
            "backend": run.backend,
            "inputs": list(map(str, run.input_specs)),
            "outputs": list(map(str, run.output_specs)),
            "bytes": sum(spec.nbytes for spec in (*run.input_specs, *run.output_specs)),
            "where": run.where,
        }
        if run.step is not None:
            args["step"] = run.step
        if self._with_scopes:
            args["scope"] = "/".join(_scopes.get())
        if self._with_backtrace:
            args["backtrace"] = _backtrace()
        kind = "eager" if run.step is None else "program"
        self._add(run.op, kind, run.start, ph="X", dur=run.seconds * 1e6, args=args)
        for data, spec in zip(run.outputs, run.output_specs, strict=True):
            self._lives.begin(data, f"{run.op}: {spec}", spec.nbytes, run.start)

    def _add(self, name: str, category: str, start: float, **rest: Any) -> None:
        self._events.append(
            {
                "name": name, "cat": category, "ts": start * 1e6, "pid": os.getpid(),
                "tid": threading.get_native_id(), **rest,
            }
        )  # fmt: skip

    def _names(self) -> list[Event]:
        pid = os.getpid()
        names = {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"rank {pid}"}}
        return [names]


def _backtrace() -> list[str]:
    """Return the user's frames, innermost last."""
    return [
        f"{frame.filename}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_stack()
        if not frame.filename.startswith(_PACKAGE)
    ]


def is_profiling() -> bool:
    """Tell whether some profiler of this process records.

    >>> is_profiling()
    False
    """
    return bool(_active)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Show a ``with`` block, or a decorated function, by its name on the timeline.

    >>> with scope("backbone"):
    ...     pass
    """
    token = _scopes.set((*_scopes.get(), name))
    start = perf_counter()
    try:
        yield
    finally:
        seconds = perf_counter() - start
        for profiler in _active:
            profiler._add(name, "scope", start, ph="X", dur=seconds * 1e6)
        _scopes.reset(token)


def profile(*args: Any, **kwargs: Any) -> Any:
    """Decorate a function so that each call is profiled; options as for ``Profiler``.

    >>> @profile
    ... def step():
    ...     pass
    """
    if len(args) == 1 and not kwargs and callable(args[0]):
        function: Callable[..., Any] = args[0]
        return Profiler()(function)
    return Profiler(*args, **kwargs)


def merge_trace_events(directory: str) -> None:
    """Put the timelines of all processes in a folder into ``merge.chrome_timeline.json``.

    Raises:
        FileNotFoundError: where the folder holds none.

    >>> import pathlib
    >>> for pid in (1, 2):
    ...     text = '{"traceEvents": [{"pid": %d}]}' % pid
    ...     _ = pathlib.Path(f"{pid}.chrome_timeline.json").write_text(text)
    >>> merge_trace_events(".")
    >>> pathlib.Path("merge.chrome_timeline.json").read_text()
    '{"traceEvents": [{"pid": 1}, {"pid": 2}]}'
    """
    folder = Path(directory)
    paths = sorted(path for path in folder.iterdir() if _TIMELINE.fullmatch(path.name))
    if not paths:
        raise FileNotFoundError(
            f"merge_trace_events: {directory} holds no timeline, expected *.chrome_timeline.json"
        )
    events = [event for path in paths for event in json.loads(path.read_text())["traceEvents"]]
    merged = folder / f"merge.{Profiler.CHROME_TIMELINE}"
    merged.write_text(json.dumps({"traceEvents": events}))
