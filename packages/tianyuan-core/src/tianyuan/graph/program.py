"""A Program: a graph of concrete sizes, flat enough to run without looking anything up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..kernel import Kernel
from ..op import Op, TensorSpec
from ..records import record

INPUT, OUTPUT, CONSTANT, STATE, ARENA, ALIAS = (
    "input", "output", "constant", "state", "arena", "alias",
)  # fmt: skip


@record()
class Slot:
    """Where one value of a program lies.

    Attributes:
        kind: ``input``, ``output``, ``constant`` and ``state`` lie where the caller bound number
            ``index``; ``arena`` at byte ``index`` of the arena, 64-byte aligned; ``alias`` shares
            the memory of slot ``index``.
        extents: physical shape, which differs from ``spec.shape`` in a blocked layout.
    """

    kind: str
    index: int
    spec: TensorSpec
    layout: str
    extents: tuple[int, ...]
    name: str = ""

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.extents, dtype=np.int64)) * self.spec.dtype.itemsize


@record()
class Step:
    """One kernel call: slots read and written, attributes, and scratch memory in the arena."""

    kernel: Kernel
    op: Op
    attrs: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace_offset: int = 0
    workspace_size: int = 0
    origin: str = ""  # file and line of the user's code
    refusals: tuple[tuple[str, str], ...] = ()


@record()
class Program:
    """Specs, constants, steps and the memory plan; see ``format_program`` for its printed form."""

    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: tuple[int, ...]
    constants: tuple[np.ndarray, ...]
    arena_size: int
    arena_lower_bound: int
    threads: int = 1
    device: str = "cpu"
    notes: tuple[str, ...] = ()

    @property
    def mutates(self) -> bool:
        """Tell whether a run writes states, so that runs must take turns."""
        state_slots = {i for i, slot in enumerate(self.slots) if self.root(i).kind == STATE}
        return any(out in state_slots for step in self.steps for out in step.outputs)

    def root(self, slot: int) -> Slot:
        """Return the slot whose memory a slot shares: itself unless it is an alias."""
        found = self.slots[slot]
        while found.kind == ALIAS:
            found = self.slots[found.index]
        return found


class Executable(Protocol):
    """What ``tianyuan_compile`` returns for a program."""

    name: str

    def run(
        self,
        inputs: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> None:
        """Run once on C-contiguous arrays, writing ``outputs`` and updating ``states`` in place."""
        ...
