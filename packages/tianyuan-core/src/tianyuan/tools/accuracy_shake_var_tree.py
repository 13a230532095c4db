"""Find the operator at which two backends begin to differ, as a tree from the outputs backwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import numpy as np

from ..jit.model import load
from ..utils.network import Network
from ..utils.network_node import VarNode
from .command import INPUTS, MODEL, inputs_or_random, run
from .compare_binary_iodump import Difference, difference
from .values import values


def differences(
    network: Network, arrays: Mapping[str, np.ndarray], left: str | None, right: str | None,
    rtol: float = 1e-4, atol: float = 1e-5, level: int = 0,
) -> dict[VarNode, Difference]:  # fmt: skip
    """Return how every variable differs between two backends.

    ``level`` is that of ``values``: 2 runs fused kernels and blocked layouts too.

    >>> net = Network()
    >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
    >>> [d] = differences(net, {"x": np.ones(2, "float32")}, "numpy", "numpy").values()
    >>> d.close
    True
    """
    one, other = (values(network, arrays, name, level) for name in (left, right))
    return {var: difference(var.name, one[var], other[var], rtol, atol) for var in one}


def tree(network: Network, found: Mapping[VarNode, Difference], deep: bool = False) -> list[str]:
    """Return lines that show, below every output that differs, the inputs of its operator.

    A variable that agrees is not followed further, unless ``deep``; one that differs although
    all it is computed from agrees is marked as an origin.

    >>> net = Network()
    >>> y = -net.make_input_node((2,), "float32", name="x")
    >>> net.add_output(y)
    >>> print(*tree(net, {y: Difference("y", 0.5, 0.5, (0,), "", False)}), sep="\\n")
    neg_0 (neg): absolute 0.5, relative 0.5 <- origin
    """
    seen: set[VarNode] = set()
    return [
        line
        for var in network.dest_vars
        for line in _branch(var, found, 0, seen, deep)
    ]  # fmt: skip


def _branch(
    var: VarNode, found: Mapping[VarNode, Difference], depth: int, seen: set[VarNode], deep: bool
) -> Iterator[str]:
    """Walk without recursion, since networks are deeper than Python's stack."""
    stack = [(var, depth)]
    while stack:
        var, depth = stack.pop()
        item = found.get(var)
        if item is None or (item.close and not deep):
            continue
        head = f"{'  ' * depth}{var.name} ({var.owner.type})"
        if var in seen:
            yield f"{head}: shown above"
            continue
        seen.add(var)
        inputs = [below for below in var.owner.inputs if below in found]
        origin = not item.close and all(found[below].close for below in inputs)
        yield (
            f"{head}: absolute {item.absolute:.3g}, relative {item.relative:.3g}"
            f"{' <- origin' if origin else ''}"
        )
        stack += [(below, depth + 1) for below in reversed(inputs)]


@click.command("accuracy_shake_var_tree")
@MODEL
@INPUTS
@click.option("--backend", "left", help="Backend to examine; the cheapest kernels of all without.")
@click.option("--against", "right", default="numpy", show_default=True)
@click.option("--rtol", type=float, default=1e-4, show_default=True)
@click.option("--atol", type=float, default=1e-5, show_default=True)
@click.option("--level", type=click.IntRange(0, 2), default=0, show_default=True,
              help="0 runs operator by operator, 2 fused and on blocked layouts.")  # fmt: skip
@click.option("--all", "deep", is_flag=True, help="Follow what agrees too.")
def _command(
    model: Path, inputs: tuple[str, ...], left: str | None, right: str, rtol: float, atol: float,
    level: int, deep: bool,
) -> None:  # fmt: skip
    """Show where MODEL's variables differ between two backends; leaves with 1 where they do."""
    network = Network.load(model)
    arrays = inputs_or_random(load(model), inputs)
    found = differences(network, arrays, left, right, rtol, atol, level)
    for line in tree(network, found, deep):
        click.echo(line)
    bad = sum(not item.close for item in found.values())
    click.echo(f"{len(found)} variables, {bad} differ between {left or 'all'} and {right}")
    sys.exit(1 if bad else 0)


def main() -> None:
    """Run the command line: ``python -m tianyuan.tools.accuracy_shake_var_tree MODEL``."""
    run(_command)


if __name__ == "__main__":
    main()
