"""Run a function once under a tracer, and keep all that its program and its next calls need."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph.graph import Constant, Graph
from ..imperative import dispatch
from ..imperative.tensor import Tensor
from ..op import TensorSpec
from . import pytree, sizes
from .tracer import SymbolFixed, Tracer

_REFUSED = "cannot have another size"  # how reasons begin where other sizes raise


@dataclass
class Recording:
    """What one run of a function gave.

    Attributes:
        graph: inputs are the tensor arguments, then the host values.
        structure: how the results are nested; the first ``n_results`` outputs are their tensors.
        grads: tensors whose gradient the function leaves: the tensor, a gradient that is known
            already, or the index of the output that holds it (-1 for none).
        changed: arguments that the function gives a new value: index, and index of the output.
    """

    tracer: Tracer
    graph: Graph
    structure: pytree.Structure
    n_results: int
    grads: tuple[tuple[Tensor, Tensor | None, int], ...]
    changed: tuple[tuple[int, int], ...]

    def fits(self, arguments: Sequence[Tensor]) -> bool:
        """Tell whether the Python facts that the recording relied on still hold."""
        tracer = self.tracer
        return (
            tracer.facts.hold()
            and all(guard.holds() for guard in tracer.guards)
            and all(cell.get()._spec == cell.spec for cell in tracer.cells)
            and all(tensor._data is data for tensor, data in tracer.frozen)
            and all(arguments[index] is tensor for index, tensor in tracer.aliased)
        )

    def deployable(self) -> Graph:
        """Return the graph without states: their present data become constants."""
        tracer = self.tracer
        graph = Graph()
        hosts = set(tracer.host_values)
        graph.inputs = [value for value in self.graph.inputs if value not in hosts]
        graph.constants = dict(self.graph.constants)
        for value, cell in zip(self.graph.states, tracer.cells, strict=True):
            graph.constants[value] = Constant(cell.get().numpy(), cell.name)
        for value, host in zip(tracer.host_values, tracer.hosts, strict=True):
            array = np.asarray(host.read(), dtype=host.dtype)
            graph.constants[value] = Constant(array, value.name)
        graph.nodes = list(self.graph.nodes)
        graph.outputs = self.graph.outputs[: self.n_results]
        return graph


@dataclass(frozen=True)
class Recorder:
    """Records one function for given specs of its tensor arguments.

    Attributes:
        structure: how the arguments are nested, from ``pytree.flatten``.
        arguments: the tensors of the call at hand, which the function may know by other names.
    """

    function: Callable[..., Any]
    signature: inspect.Signature
    structure: pytree.Structure
    arguments: Sequence[Tensor]
    capture_as_const: bool

    def record(self, specs: Sequence[TensorSpec]) -> Recording:
        """Record at one size, and where dimensions are dynamic check that others give the same.

        Raises:
            SymbolFixed: where a dynamic dimension decides a branch or is used as a plain number.
        """
        examples = sizes.examples(specs)
        if not examples:
            return self._once(specs)
        specs, made = self._generic(specs, examples)
        examples = sizes.examples(specs)
        second, where = self._probe(made, specs, examples)
        if where is None:
            second, where = self._probe_clamps(made, specs, examples, second)
        if where is None:
            self._check_apart(made, specs, examples)
            return made
        # A first run may make what later ones find, such as an optimiser's state.
        made, again = self._once(specs), self._once(specs)
        if sizes.first_difference(made.graph, again.graph) is not None:
            return made  # no two runs are alike, whatever the sizes
        where = self._difference(made, specs, second)
        if where is None:
            return made
        guilty = {
            symbol
            for symbol in second
            if self._difference(made, specs, {**examples, symbol: second[symbol]})
        }
        raise SymbolFixed(guilty or set(second), where)

    def _probe(
        self, made: Recording, specs: Sequence[TensorSpec], examples: Mapping[str, int]
    ) -> tuple[dict[str, int], str | None]:
        """Return other sizes, and where a recording at these differs from the one at hand.

        All are doubled first, so that one that is the sum of others stays it, then all are one
        more, so that one that is another and a number does. Code may bear no larger sizes, as a
        table of learned positions does; then smaller ones tell.
        """
        first = {symbol: 2 * size for symbol, size in examples.items()}
        refusals = []
        for second in (first, {symbol: size + 1 for symbol, size in examples.items()}):
            where = self._difference(made, specs, second)
            if where is None or not where.startswith(_REFUSED):
                return second, where
            refusals.append(where)
        second = dict(examples)
        for symbol, size in examples.items():
            for other in (n for n in (2 * size, size // 2, size - 1, size + 1) if n >= 2):
                difference = self._difference(made, specs, {**second, symbol: other})
                if difference is None:
                    second[symbol] = other
                    break
            else:
                return first, refusals[0]
        return second, None

    def _probe_clamps(
        self,
        made: Recording,
        specs: Sequence[TensorSpec],
        examples: Mapping[str, int],
        second: dict[str, int],
    ) -> tuple[dict[str, int], str | None]:
        """Probe at sizes that move ends of slices, quotients and remainders that did not move yet.

        The size of ``x[:2]`` is 2 at all sizes but 1, ``x.shape[0] % 2`` is 0 at 6 and 12. Sizes
        that the code refuses tell nothing.
        """
        for moved in sizes.unmoved(made.graph, made.tracer.cuts, examples, second):
            where = self._difference(made, specs, moved, broadcasts=1 not in moved.values())
            if where is not None and not where.startswith(_REFUSED):
                return moved, where
        return second, None

    def _check_apart(
        self, made: Recording, specs: Sequence[TensorSpec], examples: Mapping[str, int]
    ) -> None:
        """Raise SymbolFixed where two symbols are one dimension: they vary together, not apart."""
        for one, other in itertools.combinations(sorted(examples), 2):
            size = examples[one]
            if size != examples[other]:
                continue
            for changed in (n for n in (size + 1, size - 1) if n >= 2):
                where = self._difference(made, specs, {**examples, one: changed})
                if where is None or not where.startswith(_REFUSED):
                    break
                together = {**examples, one: changed, other: changed}
                if self._difference(made, specs, together) is None:
                    reason = "cannot vary apart, only as one dimension of one name,"
                    raise SymbolFixed({one, other}, where.replace(_REFUSED, reason))

    def _generic(
        self, specs: Sequence[TensorSpec], examples: Mapping[str, int]
    ) -> tuple[Sequence[TensorSpec], Recording]:
        """Record at sizes of at least 2: 0 and 1 hide what broadcasting does with others."""
        usual = {symbol: max(size, 2) for symbol, size in examples.items()}
        if usual == examples:
            return specs, self._once(specs)
        doubled = {symbol: 2 * size for symbol, size in examples.items()}  # a sum stays one
        refused: Exception | None = None
        for chosen in (usual, doubled) if min(doubled.values()) > 1 else (usual,):
            wider = sizes.resized(specs, chosen)
            try:
                return wider, self._once(wider)
            except Exception as error:  # the function's own, which may bear no other size
                refused = refused or error
        self._once(specs)  # raises where the fault is not in the size
        assert refused is not None
        raise SymbolFixed(set(examples), _refused(refused))

    def _difference(
        self,
        made: Recording,
        specs: Sequence[TensorSpec],
        chosen: Mapping[str, int],
        broadcasts: bool = True,
    ) -> str | None:
        try:
            twin = self._once(sizes.resized(specs, chosen))
        except Exception as error:  # the function's own, which may bear no other size
            return _refused(error)
        line = sizes.first_difference(made.graph, twin.graph, broadcasts)
        return None if line is None else f"is used as a plain number at {line}"

    def _once(self, specs: Sequence[TensorSpec]) -> Recording:
        tracer = Tracer(self.capture_as_const)
        with tracer.recording():
            names = pytree.leaf_names(self.structure, "")
            inputs = [
                tracer.add_input(spec, name, known)
                for spec, name, known in zip(specs, names, self.arguments, strict=True)
            ]
            values = list(tracer.graph.inputs)
            given = pytree.unflatten(self.structure, inputs)
            bound = inspect.BoundArguments(self.signature, given)
            result = self.function(*bound.args, **bound.kwargs)
            leaves, structure = pytree.flatten(result, lambda leaf: isinstance(leaf, Tensor))
            graph = tracer.graph
            graph.outputs = [tracer.lift(leaf) for leaf in leaves]
            grads = tuple(_grads(tracer))
            changed = []
            for index, (tensor, value) in enumerate(zip(inputs, values, strict=True)):
                if tensor._data is not value:
                    changed.append((index, len(graph.outputs)))
                    graph.outputs.append(tracer.lift(tensor))
            tracer.finish()
        return Recording(tracer, graph, structure, len(leaves), grads, tuple(changed))


def _refused(error: Exception) -> str:
    return f"{_REFUSED} at {dispatch.raising_line(error)} ({error})"


def _grads(tracer: Tracer) -> Any:
    """Yield the gradients that tensors from outside have at the end, as hidden outputs."""
    for tensor, grad in tracer.grads.values():
        if grad is None or dispatch.is_concrete(grad._data):
            yield tensor, grad, -1
        else:
            tracer.graph.outputs.append(tracer.lift(grad))
            yield tensor, grad, len(tracer.graph.outputs) - 1
