"""Make a graph executable: specialise, lower, plan, and hand the program to what runs it best."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from .. import plugins, registry
from ..collecting import uncollected
from ..imperative import memory
from ..op import TensorSpec
from ..records import record
from . import lower, ordering, passes, plan, recompute
from .graph import Graph
from .interpreter import StepInterpreter
from .options import Options
from .program import Executable, Program


@record()
class Compiled:
    """A program, what runs it, and which backends declined and why."""

    program: Program
    executable: Executable
    declined: tuple[str, ...]

    @cached_property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """What a run writes, in order."""
        slots = self.program.slots
        return tuple(slots[index].spec for index in self.program.outputs)

    @cached_property
    def interpreter(self) -> StepInterpreter:
        """What runs the program step by step in Python, for whoever wants to look on."""
        given = self.executable
        return given if isinstance(given, StepInterpreter) else StepInterpreter(self.program)


def compile_graph(
    graph: Graph,
    sizes: Mapping[str, int],
    device: str = "cpu",
    options: Options | None = None,
) -> Compiled:
    """Compile an optimised graph for concrete sizes of its symbols.

    Raises:
        ShapeError: where the sizes do not fit the graph.
        KernelError: where no kernel serves an op.
        BackendError: where the chosen backend is not available.
    """
    with uncollected():
        return _compiled(graph, sizes, device, options or Options())


def _compiled(graph: Graph, sizes: Mapping[str, int], device: str, options: Options) -> Compiled:
    concrete = graph.specialise(sizes) if graph.symbols() else graph
    lowered = lower.lower(concrete, device, options)
    if options.memory is not None:
        lowered = recompute.reduce(lowered, options, device)
        passes.verify(lowered, "late")
    if options.level >= 2:
        ordered = ordering.advance_updates(lowered)
        if ordered is not lowered:
            passes.verify(ordered, "late")
        lowered = ordered
    lower.settle(lowered)
    program = plan.plan(lowered, options.threads, device)
    lowered.dissolve()
    if concrete is not graph:
        concrete.dissolve()
    executable, declined = plugins.compile_program(program, device, registry.chosen_backend())
    memory.trim()  # of what only making the program took, before runs take an arena
    return Compiled(program, executable or StepInterpreter(program), tuple(declined))
