"""A traced graph made callable: programs per concrete size, states bound by address."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import config, native, registry, shapes
from ..errors import DTypeError, ShapeError
from ..graph import passes
from ..graph.compile import Compiled, compile_graph
from ..graph.graph import Graph
from ..graph.options import MemoryLimit, Options
from ..graph.program import Program
from ..imperative import dispatch, memory, monitor
from ..imperative.tensor import Tensor
from ..kernel import FULL
from ..locks import ForkSafeLock
from .tracer import Cell, HostInput

_PROGRAM_LIMIT = 32

# Programs that change state take turns, whichever function they belong to. Nobody forks while one
# runs, so a child finds whole states and open locks.
_turn = threading.RLock()
os.register_at_fork(
    before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release
)


class CompiledGraph:
    """Runs one graph for whatever sizes it is called with.

    Args:
        graph: as traced or loaded; it is optimised here, once, so that all sizes share constants.
        cells: what its states are bound to.
        hosts: its last inputs, read from Python before each run.
    """

    def __init__(
        self,
        graph: Graph,
        cells: Sequence[Cell] = (),
        hosts: Sequence[HostInput] = (),
        device: str = "cpu",
        level: int = 2,
        threads: int | None = None,
        memory: MemoryLimit | None = None,
        precision: str = FULL,
    ) -> None:
        self._memory = memory
        self._precision = precision
        self._device = device
        self._level = level
        self._threads = threads
        self.cells = tuple(cells)
        self.hosts = tuple(hosts)
        self.graph = passes.optimise(graph, self._options(), device)
        self._updated = sorted(self.graph.updates)
        self._programs: OrderedDict[Any, Compiled] = OrderedDict()
        self._lock = ForkSafeLock()
        self._recent: tuple[Any, Any, Compiled] | None = None  # shapes, choices, what served them

    @property
    def settings(self) -> tuple[int | None, str]:
        """How many threads were asked for, and which precision."""
        return self._threads, self._precision

    def _options(self) -> Options:
        return Options(
            level=self._level,
            threads=self._threads or native.get_num_threads(),
            memory=self._memory,
            precision=self._precision,
        )

    @property
    def changes_state(self) -> bool:
        """Tell whether a run writes the tensors that the graph is bound to."""
        return bool(self._updated)

    def sizes_for(self, given: Sequence[shapes.Shape]) -> dict[str, int]:
        """Return what each symbol stands for when inputs have these shapes.

        Raises:
            ShapeError: where a shape does not fit an input.
        """
        return sizes_of(self.graph, given)

    def compiled_for(self, sizes: Mapping[str, int]) -> Compiled:
        """Return the program for concrete sizes, compiling it on first use."""
        key = (tuple(sorted(sizes.items())), *self._choices())
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                found = compile_graph(self.graph, sizes, self._device, self._options())
                # Compiling may have brought plugins in, which changes the generation.
                key = (*key[:-1], registry.generation)
                self._programs[key] = found
                if len(self._programs) > _PROGRAM_LIMIT:
                    self._programs.popitem(last=False)
            else:
                self._programs.move_to_end(key)
            return found

    def _choices(self) -> tuple[Any, ...]:
        """Return what the choice of kernels depends on, the registry's generation last."""
        return (
            registry.chosen_backend(), registry.isa_cap(),
            self._threads or native.get_num_threads(), config.setting, registry.generation,
        )  # fmt: skip

    def _compiled_now(self, given: Sequence[np.ndarray]) -> Compiled:
        """Return the program for these inputs; most calls are as the one before."""
        shapes_, choices = [array.shape for array in given], self._choices()
        recent = self._recent
        if recent is not None and recent[0] == shapes_ and recent[1] == choices:
            return recent[2]
        compiled = self.compiled_for(self.sizes_for(shapes_))
        if self._choices() == choices:  # or compiling brought plugins in
            self._recent = (shapes_, choices, compiled)
        return compiled

    def run(
        self, inputs: Sequence[np.ndarray], out: Sequence[np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """Run on arrays of the inputs' dtypes; return outputs that the caller owns.

        Raises:
            ShapeError: where an input does not fit; nothing has been changed then.
        """
        return self.run_program(inputs, out)[1]

    def run_program(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray] | None = None,
        seconds: list[float] | None = None,
    ) -> tuple[Program, list[np.ndarray]]:
        """Run as ``run`` does, and also return the program that served.

        ``seconds`` is a list to which the time of each step is appended.
        """
        compiled = self._compiled_now(inputs)
        if not self._updated:
            outputs = self._execute(compiled, inputs, out, seconds)
        else:
            with _turn:
                for index in self._updated:
                    make_private(self.cells[index].get())
                outputs = self._execute(compiled, inputs, out, seconds)
        return compiled.program, outputs

    def _execute(
        self,
        compiled: Compiled,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray] | None,
        seconds: list[float] | None,
    ) -> list[np.ndarray]:
        outputs = self.make_outputs(compiled) if out is None else self._given(compiled, inputs, out)
        states = [cell.get()._data for cell in self.cells]
        given = [*inputs, *self._read_hosts()] if self.hosts else inputs
        if seconds is not None:
            profile = getattr(compiled.executable, "profile", compiled.interpreter.profile)
            seconds += profile(given, states, outputs)
            return outputs
        run = compiled.interpreter.watch if monitor.active else compiled.executable.run
        run(given, states, outputs)
        return outputs

    @staticmethod
    def _given(
        compiled: Compiled, inputs: Sequence[np.ndarray], out: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Check arrays that the caller wants the outputs in.

        Raises:
            DTypeError: where one is no array.
            ShapeError: where one has not the shape, dtype or memory order that it must have.
        """
        slots = [compiled.program.slots[i] for i in compiled.program.outputs]
        if len(out) != len(slots):
            raise ShapeError(
                f"model: out has a wrong count, got {len(out)} arrays, expected {len(slots)}"
            )
        for array, slot in zip(out, slots, strict=True):
            if not isinstance(array, np.ndarray):
                raise DTypeError(
                    f"model: out holds no array, got {type(array).__name__}, expected numpy arrays "
                    "to write to"
                )
            fits = array.shape == slot.spec.shape and array.dtype == slot.spec.dtype
            if not fits or not array.flags.carray:
                kind = array.dtype.name if array.dtype.isnative else array.dtype.str
                raise ShapeError(
                    f"model: an array of out does not fit, got {kind}{array.shape}, "
                    f"expected a writeable aligned C-contiguous {slot.spec}"
                )
        for index, array in enumerate(out):
            if any(np.may_share_memory(array, other) for other in (*inputs, *out[:index])):
                raise ShapeError(
                    f"model: an array of out overlaps an input or another of out, got it at "
                    f"{index}, expected memory of its own"
                )
        return list(out)

    @staticmethod
    def make_outputs(compiled: Compiled) -> list[np.ndarray]:
        """Allocate the outputs of one run."""
        outputs = [dispatch.empty(spec.shape, spec.dtype) for spec in compiled.output_specs]
        if memory.following:
            memory.note(outputs)
        return outputs

    def _read_hosts(self) -> list[np.ndarray]:
        # In the order of the trace, each followed by its effect: the next may read what it left.
        found = []
        for host in self.hosts:
            array = np.asarray(host.read(), dtype=host.dtype)
            if array.shape != host.shape:
                raise ShapeError(
                    f"trace: a value read from Python changed its shape, got {array.shape}, "
                    f"expected {host.shape}"
                )
            found.append(np.ascontiguousarray(array).reshape(host.shape))
            if host.after is not None:
                host.after()
        return found


def make_private(tensor: Tensor) -> None:
    """Give a tensor data that nobody else holds, so that a program may write it in place."""
    if not _is_private(tensor):
        data = tensor._data
        fresh = dispatch.empty(data.shape, data.dtype)
        np.copyto(fresh, data)
        tensor._data = fresh
        if memory.following:
            memory.note((fresh,))


def _is_private(tensor: Tensor) -> bool:
    data = tensor._data
    if not data.flags.writeable:
        return False
    # References: the tensor's slot, `data` here, and the argument of getrefcount.
    if sys.getrefcount(data) > 3:
        return False
    base = data.base
    # The owner of a view: the view's reference, `base` here, and the argument.
    return base is None or (isinstance(base, np.ndarray) and sys.getrefcount(base) <= 3)


def sizes_of(graph: Graph, given: Sequence[shapes.Shape]) -> dict[str, int]:
    """Return what each symbol of a graph stands for when its inputs have these shapes.

    Raises:
        ShapeError: where a shape does not fit an input.
    """
    sizes: dict[str, int] = {}
    inputs = list(zip(graph.inputs, given, strict=False))
    fits = True
    for value, shape in inputs:
        expected = value.spec.shape
        fits = len(expected) == len(shape) and all(
            _fits(want, int(got), sizes) for want, got in zip(expected, shape, strict=True)
        )
        if not fits:
            break
    else:  # sums and products of symbols can be told when all of these are known
        for value, shape in inputs:
            fits = tuple(shape) == shapes.specialise(value.spec.shape, sizes)
            if not fits:
                break
    if not fits:
        known = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        raise ShapeError(
            f"model: input {value.name!r} has the wrong shape, got "
            f"{shapes.format_shape(tuple(shape))}, expected "
            f"{shapes.format_shape(value.spec.shape)}{f' with {known}' if known else ''}"
        )
    return sizes


def _fits(want: int, got: int, sizes: dict[str, int]) -> bool:
    expr = shapes.expr_of(want)
    if isinstance(expr, int):
        return expr == got
    if isinstance(expr, str):
        return sizes.setdefault(expr, got) == got
    return True  # a compound extent is checked when all symbols are known
