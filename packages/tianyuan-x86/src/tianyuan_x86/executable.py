"""Turn a Program into the native executor's form and run it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tianyuan.abi import encode_attrs
from tianyuan.dtypes import CODES, NAMES, name_of
from tianyuan.errors import KernelError
from tianyuan.graph.program import (
    ALIAS,
    ARENA,
    CONSTANT,
    INPUT,
    OUTPUT,
    STATE,
    Program,
    Slot,
    Step,
)
from tianyuan.kernel import MAX_DIMS, CFunction, Context

from . import native

_KINDS = {INPUT: 0, OUTPUT: 1, CONSTANT: 2, STATE: 3, ARENA: 4, ALIAS: 5}

CallOut = Callable[[list[np.ndarray], list[np.ndarray], "np.ndarray | None"], None]


class NativeExecutable:
    """A program prepared for the native executor; calls from many threads run side by side."""

    def __init__(self, program: Program) -> None:
        self.name = "x86"
        self.program = program
        keep: list[Any] = []
        constants = [np.ascontiguousarray(constant) for constant in program.constants]
        keep.append(constants)
        slots = [_slot(slot, constants, keep) for slot in program.slots]
        steps = [_step(step, program.threads, keep) for step in program.steps]
        counts = (len(program.inputs), len(program.outputs), len(program.states))
        used = {name_of(slot.spec.dtype): slot.spec.dtype for slot in program.slots}
        self._native = native.load().module.Program(
            slots,
            steps,
            counts,
            program.arena_size,
            program.threads,
            keep,
            [used.get(name) for name in NAMES],
        )

    def run(
        self,
        inputs: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> None:
        """Run once on C-contiguous arrays, writing ``outputs`` and updating ``states`` in place.

        Raises:
            ValueError: where an array does not fit its slot; nothing has run then.
            KernelError: where a kernel reports failure.
        """
        self._native.run(list(inputs), list(states), list(outputs))

    def profile(
        self,
        inputs: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> list[float]:
        """Run once as ``run`` does and return the seconds that each step took."""
        seconds: list[float] = self._native.profile(list(inputs), list(states), list(outputs))
        return seconds

    def native_share(self) -> float:
        """Return the fraction of steps that run without Python, 1.0 for an empty program."""
        steps = self.program.steps
        return sum(step.kernel.is_native for step in steps) / len(steps) if steps else 1.0

    @property
    def arenas(self) -> int:
        """Return how many arenas exist: the most runs that there were at the same time."""
        count: int = self._native.arenas
        return count


def _slot(slot: Slot, constants: list[np.ndarray], keep: list[Any]) -> tuple[Any, ...]:
    address = constants[slot.index].ctypes.data if slot.kind == CONSTANT else 0
    scales = zero_points = None
    axis = -1
    if slot.spec.quant is not None:
        scales = np.array(slot.spec.quant.scales, np.float32)
        zero_points = np.array(slot.spec.quant.zero_points, np.int32)
        axis = slot.spec.quant.axis
        keep += [scales, zero_points]
    return (
        _KINDS[slot.kind],
        slot.index,
        CODES[slot.spec.dtype.name],
        tuple(int(extent) for extent in slot.spec.shape),
        tuple(int(extent) for extent in slot.extents),
        slot.nbytes,
        address,
        scales,
        zero_points,
        axis,
    )


def _step(step: Step, threads: int, keep: list[Any]) -> tuple[Any, ...]:
    run = step.kernel.run
    if isinstance(run, CFunction):
        keep.append(run.owner)
        address, call_out = run.address, None
        attrs = encode_attrs(step.op, step.attrs, len(step.inputs), len(step.outputs))
    else:
        address, call_out, attrs = 0, _call_out(step, threads), b""
    return (
        address,
        call_out,
        step.kernel.name,
        step.op.name,
        step.origin,
        attrs,
        step.inputs,
        step.outputs,
        step.workspace_offset,
        step.workspace_size,
    )


def _call_out(step: Step, threads: int) -> CallOut:
    run, attrs, context = step.kernel.run, step.attrs, Context(threads)
    assert not isinstance(run, CFunction)

    def function(
        inputs: list[np.ndarray], outputs: list[np.ndarray], workspace: np.ndarray | None
    ) -> None:
        try:
            run(context, inputs, outputs, attrs, workspace)
        except Exception as error:
            where = f", from {step.origin}" if step.origin else ""
            kind = type(error) if isinstance(error, KernelError) else KernelError
            raise kind(f"{step.op.name}: {error} ({step.kernel.name}{where})") from error

    return function


def refusal(program: Program, device: str) -> str | None:
    """Return why the native executor declines a program, or None where it takes it."""
    if device != "cpu":
        return f"serves cpu, not {device}"
    reason = native.unavailable()
    if reason is not None:
        return reason
    if not any(step.kernel.is_native for step in program.steps):
        return "no step has a C kernel"
    deep = max((len(slot.spec.shape) for slot in program.slots), default=0)
    if deep > MAX_DIMS:
        return f"a value has {deep} dimensions, the C ABI carries at most {MAX_DIMS}"
    for slot in program.slots:
        if slot.spec.dtype.name not in CODES:
            return f"the C ABI has no dtype {slot.spec.dtype.name}"
    return None
