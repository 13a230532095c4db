"""Decide who is told of each kernel call, in both runtimes; while nobody listens, nothing is asked.

Eager plans that tell are kept beside those that do not. A traced or loaded program runs step by
step in Python while somebody listens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np

from .. import config
from ..kernel import Call, Kernel
from ..locks import RLock
from ..op import Specs
from ..records import record


@record(eq=False)
class KernelRun:
    """One kernel call that has just ended.

    Attributes:
        op, kernel, backend: names of what ran.
        attrs: the op's attributes.
        input_specs, output_specs: logical shapes and dtypes.
        inputs, outputs: the data, in the physical form that the kernel works on; only to be read,
            and not to be kept where ``step`` is set, since programs use memory again.
        start, seconds: when it began, on ``time.perf_counter``'s clock, and how long it took.
        where: file and line of the user's code, an imported node's name, or empty where a model
            file tells none.
        step: number in its program, or None for an eager op.
        layouts: names of the inputs' layouts and of the outputs'; None where all are plain.
    """

    op: str
    kernel: str
    backend: str
    attrs: Any
    input_specs: Specs
    output_specs: Specs
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    start: float
    seconds: float
    where: str
    step: int | None = None
    layouts: Layouts | None = None

    def place(self) -> str:
        """Return step and line as they are told."""
        step = f"step {self.step}" if self.step is not None else ""
        return " ".join(filter(None, (step, f"at {self.where}" if self.where else "")))


Layouts = tuple[tuple[str, ...], tuple[str, ...]]
Listener = Callable[[KernelRun], None]
Runner = Callable[[Sequence[Any], Sequence[Any], "np.ndarray | None"], None]

active = False
_listeners: tuple[Listener, ...] = ()
_lock = RLock()


def add(listener: Listener) -> None:
    """Tell a function of every kernel call of the process from now on; what it raises goes on."""
    with _lock:
        _set((*_listeners, listener))


def remove(listener: Listener) -> None:
    """Take back one ``add`` of a function; does nothing where there was none."""
    with _lock:
        left = list(_listeners)
        if listener in left:
            left.remove(listener)
        _set(tuple(left))


def _set(listeners: tuple[Listener, ...]) -> None:
    global _listeners, active
    _listeners, active = listeners, bool(listeners)


def tell(run: KernelRun) -> None:
    """Hand a kernel call to all listeners."""
    for listener in _listeners:
        listener(run)


def watched(
    run: Runner,
    kernel: Kernel,
    call: Call,
    where: Callable[[], str],
    step: int | None = None,
    layouts: Layouts | None = None,
) -> Runner:
    """Return a runner that also tells the listeners."""

    def run_and_tell(
        inputs: Sequence[Any], outputs: Sequence[Any], workspace: np.ndarray | None
    ) -> None:
        given = inputs if step is None else [_kept(data, outputs) for data in inputs]
        start = perf_counter()
        run(inputs, outputs, workspace)
        seconds = perf_counter() - start
        tell(
            KernelRun(
                call.op.name, kernel.name, kernel.backend, call.attrs, call.inputs, call.outputs,
                given, outputs, start, seconds, where(), step, layouts,
            )
        )  # fmt: skip

    return run_and_tell


def _kept(data: Any, outputs: Sequence[Any]) -> Any:
    """Return data, or a copy of what a kernel is going to overwrite in place."""
    written = any(np.may_share_memory(data, made) for made in outputs)
    return data.copy() if written else data


def _follow(module: str, value: bool) -> None:
    """Let a switch of ``config`` add or remove its listener, which is loaded when first wanted."""
    if value or f"{__package__}.{module}" in sys.modules:
        import_module(f".{module}", __package__).switch(value)


config.follow("verbose", partial(_follow, "verbose"))
config.follow("detect_anomaly", partial(_follow, "anomaly"))
