"""Write a Graph as JSON and read it back, believing nothing that the file says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np

from .. import dtypes, registry, shapes
from ..errors import ModelFormatError, TianyuanError
from ..floats import FloatList, floats
from ..op import Floats, Op, QuantParams, TensorSpec
from ..ops.quantized_rules import is_factor
from .graph import Constant, Graph, Value

_MAX_RANK = 64


def graph_to_json(
    graph: Graph, input_names: Sequence[str], output_names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a graph without states as JSON data, and its constants by unique name."""
    numbers: dict[Value, int] = {}

    def number(value: Value) -> int:
        return numbers.setdefault(value, len(numbers))

    inputs = [
        {"name": name, "value": number(value), **_spec_to_json(value.spec)}
        for name, value in zip(input_names, graph.inputs, strict=True)
    ]
    tensors: dict[str, np.ndarray] = {}
    constants = []
    # A tensor that two constants share stands in the file once.
    stored: dict[int, str] = {}
    for value, constant in graph.constants.items():
        name = stored.get(id(constant.array))
        if name is None:
            name = _unique(constant.name or "constant", tensors)
            tensors[name] = constant.array
            stored[id(constant.array)] = name
        constants.append({"value": number(value), "tensor": name})
    nodes = [
        {
            "op": node.op.name,
            "version": node.op.version,
            "inputs": [numbers[value] for value in node.inputs],
            "outputs": [number(value) for value in node.outputs],
            "attrs": _attrs_to_json(node.attrs),
        }
        for node in graph.nodes
    ]
    outputs = [
        {"name": name, "value": numbers[value]}
        for name, value in zip(output_names, graph.outputs, strict=True)
    ]
    data = {
        "symbols": _examples(graph),
        "inputs": inputs,
        "constants": constants,
        "nodes": nodes,
        "outputs": outputs,
    }
    return data, tensors


def _examples(graph: Graph) -> dict[str, int]:
    """Return a size of every symbol at which the graph is known to be valid."""
    return {
        extent.expr: int(extent)
        for value in graph.inputs
        for extent in value.spec.shape
        if isinstance(extent, shapes.Dim) and isinstance(extent.expr, str)
    }


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    candidate, count = name, 1
    while candidate in taken or candidate.startswith("__"):
        candidate, count = f"{name.lstrip('_')}_{count}", count + 1
    return candidate


def _spec_to_json(spec: TensorSpec) -> dict[str, Any]:
    found: dict[str, Any] = {
        "dtype": spec.dtype.name,
        "shape": [_expr_to_json(shapes.expr_of(n)) for n in spec.shape],
    }
    if spec.quant is not None:
        found["quant"] = {
            "scales": list(spec.quant.scales),
            "zero_points": list(spec.quant.zero_points),
            "axis": spec.quant.axis,
        }
    return found


def _expr_to_json(expr: Any) -> Any:
    return [expr[0], *map(_expr_to_json, expr[1:])] if isinstance(expr, tuple) else expr


def _attrs_to_json(attrs: Any) -> dict[str, Any]:
    return {field.name: _attr_to_json(getattr(attrs, field.name)) for field in fields(attrs)}


def _attr_to_json(value: Any) -> Any:
    if isinstance(value, (tuple, FloatList)):
        if value and all(isinstance(item, float) for item in value):
            # One text: a network of integers has tens of thousands of multipliers.
            return {"floats": " ".join(map(_hex, value))}
        return [_attr_to_json(item) for item in value]
    if isinstance(value, shapes.Dim):
        return {"dim": _expr_to_json(value.expr)}
    if isinstance(value, float):
        # JSON has no infinities; a float keeps its exact value as text.
        return {"float": value.hex()}
    return value


def _hex(value: float) -> str:
    """Write a float exactly, without the zeros that end the digits of a float32."""
    digits, mark, exponent = value.hex().partition("p")
    return f"{digits.rstrip('0').rstrip('.')}p{exponent}" if mark else digits


class _Reader:
    """Reads one graph; every complaint names the file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.values: dict[int, Value] = {}
        self.graph = Graph()
        self.sizes: dict[str, int] = {}

    def symbols(self, item: dict[str, Any]) -> None:
        """Read a valid size of every symbol, at which the graph is inferred when it is read."""
        for name, size in item.items():
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**31:
                raise self.fail(
                    f"graph has a wrong size of {name!r}, got {_short(size)}, expected a 31-bit int"
                )
            self.sizes[name] = size

    def fail(self, what: str) -> ModelFormatError:
        return ModelFormatError(f"model file {self._file}: {what}")

    def want(self, item: Any, key: str, kind: type | tuple[type, ...]) -> Any:
        """Return a member of a JSON object that must be of a kind."""
        if not isinstance(item, dict) or key not in item:
            raise self.fail(f"graph lacks {key!r}, got {_short(item)}, expected an object with it")
        value = item[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
            raise self.fail(f"graph has a wrong {key!r}, got {_short(value)}, expected {names}")
        return value

    def define(self, number: int, value: Value) -> None:
        if number in self.values:
            raise self.fail(
                f"graph defines a value twice, got {number} again, expected a new number"
            )
        self.values[number] = value

    def lookup(self, number: Any) -> Value:
        if not isinstance(number, int) or number not in self.values:
            raise self.fail(
                f"graph reads a value that is not defined before, got {_short(number)}, expected "
                "the number of one that is"
            )
        return self.values[number]

    def spec(self, item: Any) -> TensorSpec:
        shape = self.want(item, "shape", list)
        name = self.want(item, "dtype", str)
        if name not in dtypes.CODES or len(shape) > _MAX_RANK:
            raise self.fail(
                f"graph has an unknown spec, got {_short(item)}, expected a known dtype and at "
                f"most {_MAX_RANK} extents"
            )
        extents = tuple(self.extent(n) for n in shape)
        return TensorSpec(extents, dtypes.as_dtype(name), "cpu", self.quant(item.get("quant")))

    def quant(self, item: Any) -> QuantParams | None:
        if item is None:
            return None
        scales, zeros = self.want(item, "scales", list), self.want(item, "zero_points", list)
        if not scales or len(scales) != len(zeros) or not all(map(is_factor, scales)):
            raise self.fail(
                f"graph has wrong scales, got {_short(scales)}, expected positive float32"
            )
        if not all(type(zero) is int and abs(zero) < 2**31 for zero in zeros):
            raise self.fail(f"graph has wrong zero points, got {_short(zeros)}, expected int32")
        return QuantParams(tuple(map(float, scales)), tuple(zeros), self.want(item, "axis", int))

    def extent(self, item: Any) -> int:
        if isinstance(item, int) and not isinstance(item, bool):
            if item < 0:
                raise self.fail(f"graph has a negative extent, got {item}, expected at least 0")
            return item
        return self.dim(item)

    def dim(self, item: Any) -> int:
        """Read a symbolic extent."""
        expr = self.expr(item)
        try:
            return shapes.Dim(shapes.evaluate_expr(expr, self.sizes), expr)
        except (TianyuanError, ArithmeticError) as error:
            raise self.fail(f"graph has a malformed extent: {error}") from None

    def expr(self, item: Any) -> Any:
        """Turn JSON lists into the tuples of an expression."""
        if isinstance(item, list):
            return tuple(self.expr(part) for part in item)
        return item

    def attrs(self, op: Op, item: dict[str, Any]) -> Any:
        known = _kinds(op.attrs)
        if item.keys() != known.keys():
            raise self.fail(
                f"{op.name} has other attributes, got {', '.join(sorted(item)) or 'none'}, "
                f"expected {', '.join(sorted(known)) or 'none'}"
            )
        return op.attrs(**{k: self.attr(op, k, kind, item[k]) for k, kind in known.items()})

    def attr(self, op: Op, name: str, kind: str, item: Any) -> Any:
        read = _ATTR_READERS[kind]
        try:
            return read(self, item)
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            if isinstance(error, ModelFormatError):
                raise
            raise self.fail(
                f"{op.name} has a wrong {name!r}, got {_short(item)}, expected {kind}"
            ) from None


@cache
def _kinds(attrs: type) -> dict[str, str]:
    """Return the types of an op's attributes by name."""
    return {field.name: str(field.type) for field in fields(attrs)}


def _read_int(reader: _Reader, item: Any) -> int:
    if isinstance(item, dict):
        return reader.dim(item["dim"])
    if isinstance(item, bool) or not isinstance(item, int):
        raise TypeError
    if abs(item) >= 2**63:
        raise ValueError
    return item


def _read_ints(reader: _Reader, item: Any) -> tuple[int, ...]:
    if not isinstance(item, list):
        raise TypeError
    # Zero points come in thousands, and are most often plain.
    if set(map(type, item)) == {int} and min(item) > -(2**63) and max(item) < 2**63:
        return tuple(item)
    return tuple(_read_int(reader, part) for part in item)


def _read_float(reader: _Reader, item: Any) -> float:
    return float.fromhex(item["float"])


def _read_floats(reader: _Reader, item: Any) -> Floats:
    if isinstance(item, list):
        return floats(_read_float(reader, part) for part in item)
    return floats(map(float.fromhex, _read_str(reader, item["floats"]).split()))


def _read_bool(reader: _Reader, item: Any) -> bool:
    if not isinstance(item, bool):
        raise TypeError
    return item


def _read_str(reader: _Reader, item: Any) -> str:
    if not isinstance(item, str):
        raise TypeError
    return item


def _read_dtype(reader: _Reader, item: Any) -> str:
    if item not in dtypes.CODES:
        raise ValueError
    return str(item)


_ATTR_READERS: dict[str, Callable[[_Reader, Any], Any]] = {
    "int": _read_int,
    "float": _read_float,
    "bool": _read_bool,
    "str": _read_str,
    "DTypeName": _read_dtype,
    "Ints": _read_ints,
    "Floats": _read_floats,
}


def attrs_to_json(attrs: Any) -> dict[str, Any]:
    """Return an op's attributes as JSON data."""
    return _attrs_to_json(attrs)


def attrs_from_json(file: str, op: Op, item: dict[str, Any]) -> Any:
    """Return an op's attributes from JSON data.

    Raises:
        ModelFormatError: naming the file, where they are not those of the op.
    """
    return _Reader(file).attrs(op, item)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def graph_from_json(
    file: str, data: Any, constant: Callable[[str], Constant]
) -> tuple[Graph, list[str]]:
    """Build a graph from JSON data; return it with its output names.

    ``constant(name)`` gives a weight, whose data may be read later.

    Raises:
        ModelFormatError: where the data breaks a rule of the format, names an unknown op, or an
            op's inference refuses it.
    """
    reader = _Reader(file)
    graph = reader.graph
    reader.symbols(reader.want(data, "symbols", dict))
    for item in reader.want(data, "inputs", list):
        name = reader.want(item, "name", str)
        reader.define(reader.want(item, "value", int), graph.add_input(reader.spec(item), name))
    shared: dict[str, Constant] = {}
    for item in reader.want(data, "constants", list):
        name = reader.want(item, "tensor", str)
        if name not in shared:
            shared[name] = constant(name)
        spec = shared[name].spec
        value = Value(spec, name)
        graph.constants[value] = shared[name]
        reader.define(reader.want(item, "value", int), value)
    for item in reader.want(data, "nodes", list):
        _read_node(reader, item)
    names = []
    for item in reader.want(data, "outputs", list):
        names.append(reader.want(item, "name", str))
        graph.outputs.append(reader.lookup(item.get("value")))
    return graph, names


def _read_node(reader: _Reader, item: Any) -> None:
    name = reader.want(item, "op", str)
    try:
        op = registry.get_op(name)
    except KeyError:
        raise reader.fail(
            f"graph uses an unknown op, got {_short(name)}, expected one of this core"
        ) from None
    version = reader.want(item, "version", int)
    if version > op.version:
        raise reader.fail(
            f"{name} is too new for this core, got version {version}, expected up to {op.version}"
        )
    inputs = [reader.lookup(number) for number in reader.want(item, "inputs", list)]
    attrs = reader.attrs(op, reader.want(item, "attrs", dict))
    try:
        op.check_count(len(inputs))
        outputs = reader.graph.add_node(op, inputs, attrs)
    except ModelFormatError:
        raise
    except (TianyuanError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise reader.fail(f"graph is not valid: {error}") from None
    numbers = reader.want(item, "outputs", list)
    if len(numbers) != len(outputs) or not all(isinstance(n, int) for n in numbers):
        raise reader.fail(
            f"{name} has a wrong count of outputs, got {len(numbers)}, expected {len(outputs)}"
        )
    for number, value in zip(numbers, outputs, strict=True):
        reader.define(number, value)
