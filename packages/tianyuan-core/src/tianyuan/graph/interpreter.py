"""Run a program step by step in Python: the executable that every machine has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from ..errors import KernelError
from ..imperative import dispatch, monitor
from ..kernel import Call
from .program import ALIAS, ARENA, CONSTANT, INPUT, OUTPUT, Program, Slot, Step

Binder = Callable[[Sequence[np.ndarray]], np.ndarray]


class StepInterpreter:
    """Executes a Program with one Python call per step.

    Each run takes an arena of its own, so that runs from several threads stand side by side.
    """

    name = "interpreter"

    def __init__(self, program: Program) -> None:
        self._program = program
        self._runners = [_runner(program, step) for step in program.steps]
        self._arenas: list[np.ndarray] = []

    def run(
        self,
        inputs: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> None:
        """Run once; see ``Executable.run``."""
        self._run_all(self._runners, inputs, states, outputs)

    def watch(
        self,
        inputs: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> None:
        """Run once and tell the monitor of every step; states are as before where one raises."""
        program = self._program
        kept = [array.copy() for array in states] if program.mutates else []
        runners = [
            monitor.watched(
                runner,
                step.kernel,
                _call(program, step),
                _line(step),
                index,
                (_layouts(program, step.inputs), _layouts(program, step.outputs)),
            )
            for index, (step, runner) in enumerate(zip(program.steps, self._runners, strict=True))
        ]
        try:
            self._run_all(runners, inputs, states, outputs)
        except BaseException:
            for array, before in zip(states, kept, strict=False):
                np.copyto(array, before)
            raise

    def _run_all(
        self,
        runners: Sequence[dispatch.Runner],
        inputs: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> None:
        arena = self._take()
        try:
            arrays = self._bind(arena, inputs, states, outputs)
            for step, runner in zip(self._program.steps, runners, strict=True):
                self._run_step(step, runner, arena, arrays)
        finally:
            self._arenas.append(arena)

    def profile(
        self,
        inputs: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> list[float]:
        """Run once and return the seconds that each step took."""
        arena = self._take()
        seconds = []
        try:
            arrays = self._bind(arena, inputs, states, outputs)
            for step, runner in zip(self._program.steps, self._runners, strict=True):
                start = perf_counter()
                self._run_step(step, runner, arena, arrays)
                seconds.append(perf_counter() - start)
        finally:
            self._arenas.append(arena)
        return seconds

    def _take(self) -> np.ndarray:
        try:
            return self._arenas.pop()
        except IndexError:
            return dispatch.empty((max(self._program.arena_size, 1),), np.dtype(np.uint8))

    def _bind(
        self,
        arena: np.ndarray,
        inputs: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        bound = {INPUT: inputs, OUTPUT: outputs, CONSTANT: self._program.constants}
        arrays: list[np.ndarray] = []
        for slot in self._program.slots:
            if slot.kind == ARENA:
                arrays.append(_within(arena, slot))
            elif slot.kind == ALIAS:
                arrays.append(arrays[slot.index].reshape(slot.extents))
            else:
                arrays.append(bound.get(slot.kind, states)[slot.index])
        return arrays

    @staticmethod
    def _run_step(
        step: Step, runner: dispatch.Runner, arena: np.ndarray, arrays: list[np.ndarray]
    ) -> None:
        start = step.workspace_offset
        scratch = arena[start : start + step.workspace_size] if step.workspace_size else None
        try:
            runner([arrays[i] for i in step.inputs], [arrays[i] for i in step.outputs], scratch)
        except KernelError as error:
            raise type(error)(f"{error} (at {step.origin})") from None


def _within(arena: np.ndarray, slot: Slot) -> np.ndarray:
    return arena[slot.index : slot.index + slot.nbytes].view(slot.spec.dtype).reshape(slot.extents)


def _call(program: Program, step: Step) -> Call:
    inputs = tuple(program.slots[i].spec for i in step.inputs)
    outputs = tuple(program.slots[i].spec for i in step.outputs)
    return Call(step.op, inputs, outputs, step.attrs, program.threads)


def _layouts(program: Program, slots: Sequence[int]) -> tuple[str, ...]:
    return tuple(program.slots[i].layout for i in slots)


def _line(step: Step) -> Callable[[], str]:
    return lambda: step.origin


def _runner(program: Program, step: Step) -> dispatch.Runner:
    call = _call(program, step)
    inputs, outputs = call.inputs, call.outputs
    run = dispatch.bind_kernel(step.kernel, call)
    if not step.kernel.is_native:
        return run

    def run_logical(
        given: Sequence[np.ndarray], made: Sequence[np.ndarray], scratch: np.ndarray | None
    ) -> None:
        run(
            [dispatch.logical(a, s.shape) for a, s in zip(given, inputs, strict=True)],
            [dispatch.logical(a, s.shape) for a, s in zip(made, outputs, strict=True)],
            scratch,
        )

    return run_logical
