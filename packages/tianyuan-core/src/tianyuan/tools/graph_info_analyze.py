"""Tell how much memory a model file's program needs step by step, for TensorBoard or as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from ..graph.program import ALIAS, ARENA, Program
from ..jit.model import Model, load
from ..utils.module_stats import sizeof_fmt
from ..utils.network import Network
from ..utils.tensorboard import SummaryWriterExtend
from .command import MODEL, run
from .network_visualize import write_graph


@dataclass(frozen=True)
class StepMemory:
    """What lies in the arena while one step runs.

    Attributes:
        op, kernel: what runs.
        nbytes: size of the values that are alive, and of the step's scratch memory.
        slots: which values these are.
    """

    op: str
    kernel: str
    nbytes: int
    slots: tuple[int, ...]


def memory_by_step(program: Program) -> list[StepMemory]:
    """Return what lies in a program's arena at every step.

    >>> import numpy as np, tianyuan.functional as F
    >>> from tianyuan.jit import trace
    >>> from tianyuan import Tensor
    >>> twice = trace(lambda x: F.exp(x).sum() + 1, opt_level=0)
    >>> _ = twice(Tensor(np.zeros(1000, "float32")))
    >>> memory_by_step(twice._program)[0].nbytes
    4000
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, step in enumerate(program.steps):
        for slot in (*step.inputs, *step.outputs):
            root = _root(program, slot)
            if program.slots[root].kind == ARENA:
                first.setdefault(root, index)
                last[root] = index
    found = []
    for index, step in enumerate(program.steps):
        alive = tuple(slot for slot in first if first[slot] <= index <= last[slot])
        size = sum(program.slots[slot].nbytes for slot in alive) + step.workspace_size
        found.append(StepMemory(step.op.name, step.kernel.name, size, alive))
    return found


def _root(program: Program, slot: int) -> int:
    while program.slots[slot].kind == ALIAS:
        slot = program.slots[slot].index
    return slot


def write_log(model: Model, network: Network, memory: Sequence[StepMemory], folder: Path) -> None:
    """Write a network's graph, and its memory by step, to a folder that TensorBoard watches."""
    write_graph(network, folder)
    peak = max(range(len(memory)), key=lambda index: memory[index].nbytes, default=0)
    with SummaryWriterExtend(folder, filename_suffix=".memory") as writer:
        for index, step in enumerate(memory):
            writer.add_scalar("memory/bytes", step.nbytes, index)
        if memory:
            writer.add_text("memory/peak", _peak_lines(memory, peak))


def _peak_lines(memory: Sequence[StepMemory], peak: int) -> list[str]:
    step = memory[peak]
    return [f"peak {sizeof_fmt(step.nbytes)} at step {peak}: {step.op} by {step.kernel}"]


@click.command("graph_info_analyze")
@MODEL
@click.option("--log-path", type=click.Path(file_okay=False, path_type=Path),
              help="Folder for TensorBoard.")  # fmt: skip
@click.option("--backend", help="Backend whose kernels serve the model.")
def _command(model: Path, log_path: Path | None, backend: str | None) -> None:
    """Tell how much memory MODEL needs step by step."""
    loaded = load(model, backend=backend)
    memory = memory_by_step(loaded.program())
    most = max((step.nbytes for step in memory), default=0)
    for index, step in enumerate(memory):
        bar = "#" * int(30 * step.nbytes / most) if most else ""
        click.echo(f"{index:4} {sizeof_fmt(step.nbytes):>12} {bar:30} {step.op} {step.kernel}")
    if memory:
        peak = max(range(len(memory)), key=lambda index: memory[index].nbytes)
        click.echo("\n".join(_peak_lines(memory, peak)))
    if log_path is not None:
        write_log(loaded, Network.load(model), memory, log_path)


def main() -> None:
    """Run the command line: ``python -m tianyuan.tools.graph_info_analyze MODEL``."""
    run(_command)


if __name__ == "__main__":
    main()
