"""Turn what ``torch.export`` gives into steps that call Tianyuan's functions."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import GraphError, TraceError
from . import aten
from .aten.table import MODAL, TABLE, find
from .handover import from_torch, torch_module

aten.load()

# Options of ATen operators that say where and how memory lies, which Tianyuan decides itself.
_DROPPED = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator", "copy"}
)


@dataclass(frozen=True)
class Ref:
    """Stands in a step's arguments for the value of that number."""

    number: int


@dataclass(frozen=True)
class Step:
    """One call: what computes it, with which arguments, for which value.

    Attributes:
        title: what messages call it, with the line of the torch module that it comes from.
        function: called with the arguments, in which values have taken the place of Refs.
        modal: whether it takes ``training=``.
        result: number of the value that it gives.
        last: numbers of the values that nothing reads after it.
    """

    title: str
    function: Callable[..., Any]
    modal: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: int
    last: tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """A tensor that a module holds: its torch name, the number of its value, and its data.

    ``trains`` tells a parameter from a buffer; ``array`` is None once the module has the tensor.
    """

    name: str
    number: int
    array: np.ndarray | None
    trains: bool


@dataclass(frozen=True)
class Exported:
    """What a module of steps needs.

    Attributes:
        inputs: numbers of the values that take the inputs, None for inputs that are no tensors.
        held: parameters, buffers and constants.
        steps: calls in order.
        outputs: nested dicts, lists and tuples, with Refs where values go.
        updates: torch name of a buffer -> number of the value that it takes in training.
        count: how many values there are.
    """

    inputs: tuple[int | None, ...]
    held: tuple[Held, ...]
    steps: tuple[Step, ...]
    outputs: Any
    updates: dict[str, int]
    count: int


def export(
    module: Any,
    example_inputs: Sequence[Any],
    dynamic_shapes: Mapping[str, Mapping[int, str]] | None,
) -> Exported:
    """Export a torch module and find our function for each of its ATen operators.

    Raises:
        TypeError: where the module is none of torch, or the examples do not fit ``forward``.
        TraceError: where ``torch.export`` refuses the module.
        GraphError: names every ATen operator that has no counterpart, with its line.
    """
    torch = torch_module()
    _expect_fitting(torch, module, example_inputs)
    program = _program(torch, module, tuple(example_inputs), dynamic_shapes)
    nodes = list(program.graph.nodes)
    numbers = {node.name: number for number, node in enumerate(nodes)}
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    inputs: list[int | None] = []
    held: list[Held] = []
    for node in nodes:
        if node.op == "placeholder":
            spec = kinds[node.name]
            if spec.kind.name == "USER_INPUT":
                is_tensor = type(spec.arg).__name__ == "TensorArgument"
                inputs.append(numbers[node.name] if is_tensor else None)
            else:
                held.append(_held(torch, program, spec, numbers[node.name]))
    steps = _steps(nodes, numbers)
    outputs, updates = _outputs(torch, program, nodes[-1], numbers)
    return Exported(tuple(inputs), tuple(held), steps, outputs, updates, len(nodes))


def _program(
    torch: Any,
    module: Any,
    example_inputs: tuple[Any, ...],
    dynamic_shapes: Mapping[str, Mapping[int, str]] | None,
) -> Any:
    shapes = _dynamic(torch, module, example_inputs, dynamic_shapes)
    try:
        program = torch.export.export(module, example_inputs, dynamic_shapes=shapes)
        table = torch.export.default_decompositions()
        for known in list(table):
            if _name(known) and find(_name(known)):
                table.pop(known)
        return program.run_decompositions(table)
    except Exception as error:  # torch.export raises whatever its tracing meets
        text = " ".join(str(error).split())[:600]
        raise TraceError(
            f"torch.from_module: torch.export refuses the module, got {text}"
        ) from error


def _expect_fitting(torch: Any, module: Any, example_inputs: Any) -> None:
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"torch.from_module: the module is none of torch, got {type(module).__name__}, "
            "expected a torch.nn.Module"
        )
    if not isinstance(example_inputs, (tuple, list)):
        raise TypeError(
            f"torch.from_module: the examples are no tuple, got {type(example_inputs).__name__}, "
            "expected one item per argument, like (x,)"
        )
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*example_inputs)
    except TypeError as error:
        raise TypeError(
            f"torch.from_module: the examples do not fit forward{signature}, got "
            f"{len(example_inputs)} of them: {error}"
        ) from None


def _dynamic(
    torch: Any,
    module: Any,
    example_inputs: tuple[Any, ...],
    dynamic_shapes: Mapping[str, Mapping[int, str]] | None,
) -> Any:
    """Return torch's form of dynamic shapes; by default the first axes follow where they can."""
    given = inspect.signature(module.forward).bind(*example_inputs).arguments
    if dynamic_shapes is None:
        return {name: _first_axes(torch, value) for name, value in given.items()}
    unknown = sorted(set(dynamic_shapes) - set(given))
    if unknown:
        raise TraceError(
            f"torch.from_module: dynamic_shapes names no input, got {', '.join(unknown)}, "
            f"expected some of {', '.join(given)}"
        )
    # torch finds out itself which dimensions are equal and which sizes they may have.
    dynamic = torch.export.Dim.DYNAMIC
    return {name: dict.fromkeys(dynamic_shapes.get(name, {}), dynamic) or None for name in given}


def _first_axes(torch: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {0: torch.export.Dim.AUTO} if value.ndim and value.shape[0] > 1 else None
    if isinstance(value, (list, tuple)):
        return type(value)(_first_axes(torch, item) for item in value)
    if isinstance(value, dict):
        return {key: _first_axes(torch, item) for key, item in value.items()}
    return None


def _name(target: Any) -> str:
    """Return an ATen operator's name with its overload; empty for anything else."""
    text = str(target)
    return text[len("aten.") :] if text.startswith("aten.") else ""


def _held(torch: Any, program: Any, spec: Any, number: int) -> Held:
    name = spec.target
    tensor = program.state_dict[name] if name in program.state_dict else program.constants[name]
    if not isinstance(tensor, torch.Tensor):
        raise GraphError(f"torch.from_module: {name!r} is no tensor, got {type(tensor).__name__}")
    trains = spec.kind.name == "PARAMETER" and bool(tensor.requires_grad)
    return Held(name, number, from_torch(tensor), trains)


def _steps(nodes: Sequence[Any], numbers: Mapping[str, int]) -> tuple[Step, ...]:
    problems: dict[str, str] = {}
    found: list[tuple[Any, str]] = []
    for node in nodes:
        if node.op == "call_function":
            entry = _entry(node.target)
            if entry is None:
                problems.setdefault(str(node.target), _line(node))
            found.append((node, entry or ""))
        elif node.op not in ("placeholder", "output"):
            problems.setdefault(f"{node.op} {node.target}", _line(node))
    if problems:
        listed = "; ".join(f"{name}{line}" for name, line in sorted(problems.items()))
        raise GraphError(f"torch.from_module: operators have no counterpart, got {listed}")
    last = _last_uses(nodes, numbers)
    return tuple(
        Step(
            f"{_name(node.target) or node.target}{_line(node)}",
            TABLE.get(entry, node.target),
            entry in MODAL,
            tuple(_argument(value, numbers) for value in node.args),
            {
                key: _argument(value, numbers)
                for key, value in node.kwargs.items()
                if key not in _DROPPED
            },
            numbers[node.name],
            last.get(node.name, ()),
        )
        for node, entry in found
    )


def _entry(target: Any) -> str | None:
    """Return what computes a call: an entry of the table, or the Python operator itself."""
    name = _name(target)
    if name:
        return find(name)
    title = str(getattr(target, "__name__", ""))
    return f"operator.{title}" if getattr(operator, title, None) is target else None


def _line(node: Any) -> str:
    """Return `` at file:line`` of the torch code that a node comes from, if it is known."""
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    if not lines:
        return ""
    parts = lines[-1].split(", ")
    return f" at {parts[0][5:].strip(chr(34))}:{parts[1].removeprefix('line ')}"


def _last_uses(nodes: Sequence[Any], numbers: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    final: dict[str, str] = {}
    kept = {used.name for used in nodes[-1].all_input_nodes}
    for node in nodes:
        for used in node.all_input_nodes:
            final[used.name] = node.name
    found: dict[str, tuple[int, ...]] = {}
    for name, user in final.items():
        if name not in kept:
            found[user] = (*found.get(user, ()), numbers[name])
    return found


def _argument(value: Any, numbers: Mapping[str, int]) -> Any:
    """Turn an argument into plain data: nodes become Refs, dtypes their names."""
    if isinstance(value, (list, tuple)):
        return tuple(_argument(item, numbers) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    text = str(value)
    if type(value).__name__ == "Node":
        return Ref(numbers[value.name])
    if type(value).__name__ == "dtype":
        return text.removeprefix("torch.")
    if type(value).__name__ in ("device", "layout", "memory_format"):
        return None
    raise GraphError(f"torch.from_module: an argument of another kind, got {text[:80]}")


def _outputs(
    torch: Any, program: Any, node: Any, numbers: Mapping[str, int]
) -> tuple[Any, dict[str, int]]:
    values = [_argument(value, numbers) for value in node.args[0]]
    results: list[Any] = []
    updates: dict[str, int] = {}
    for spec, value in zip(program.graph_signature.output_specs, values, strict=True):
        kind = spec.kind.name
        if kind == "USER_OUTPUT":
            results.append(value)
        elif kind == "BUFFER_MUTATION":
            updates[spec.target] = value.number
        else:
            raise GraphError(
                f"torch.from_module: the module changes what it is given, got {kind} of "
                f"{spec.target!r}, expected only buffers to change"
            )
    nested = torch.utils._pytree.tree_unflatten(results, program.call_spec.out_spec)
    return _plain(nested), updates


def _plain(value: Any) -> Any:
    """Return nested results as dicts, lists and tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(_plain(item) for item in value)
    return value
