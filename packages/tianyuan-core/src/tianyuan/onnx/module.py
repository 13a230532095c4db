"""A model from an ONNX file as a module: its weights are parameters, its graph is its forward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .. import dtypes, registry, shapes
from ..device import get_default_device
from ..errors import DTypeError, ModelFormatError, ShapeError
from ..imperative.state import state
from ..imperative.tensor import Parameter, Tensor, wrap
from ..jit.naming import bind_inputs
from ..module.module import Module
from ..op import TensorSpec
from .build import Imported, ValueInfo
from .dims import plain_symbols, read_extent
from .interpret import Interpreter, Value
from .known import Known
from .limits import TooLargeError
from .node import Body, Node
from .table import ARRAYS

# What is folded when a model is loaded may take this much more than the model's own weights.
_FOLD_SLACK = 64 << 20


class OnnxModule(Module):
    """An imported model, to be called, traced, trained and saved like any module.

    Floating initialisers with at least one axis are parameters, named as in the file; running
    statistics are buffers; all other values are constants. Batch normalisation keeps the file's
    statistics, and dropout is off, whether the module trains or not.

    Args:
        model: what was read from the file.
        limit: most bytes that one value may have.

    Attributes:
        inputs, outputs: what the file says of them.
        weights: parameters and buffers by the names of the file's initialisers.

    >>> import tianyuan as ty, tianyuan.module as M
    >>> ty.onnx.export(M.Linear(3, 2), "net.onnx", ty.Tensor([[1.0, 2.0, 3.0]]))
    >>> {name: w.shape for name, w in sorted(ty.onnx.load("net.onnx").weights.items())}
    {'bias': (2,), 'weight': (2, 3)}
    """

    def __init__(self, model: Imported, limit: int) -> None:
        super().__init__(model.body.name)
        self.inputs: tuple[ValueInfo, ...] = model.inputs
        self.outputs: tuple[ValueInfo, ...] = model.outputs
        self.weights: dict[str, Tensor] = {}
        self._body = model.body
        self._limit = limit
        frozen, known = _roles(model.body)
        for name, array in model.initialisers.items():
            trains = dtypes.name_of(array.dtype) in dtypes.CODES and dtypes.is_float(array.dtype)
            if not trains or array.ndim == 0 or name in known:
                self._body.constants[name] = Known(array)
            else:
                kind = Tensor if name in frozen else Parameter
                self.weights[name] = _adopted(kind, array, name)
        _fold(self._body, limit, sum(a.nbytes for a in model.initialisers.values()))

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; inputs by position or by the file's names.

        Returns a tensor, or a tuple where there are several outputs. Text and dtypes that tensors
        lack come as arrays, sequences as lists.

        Raises:
            TypeError: where an input is missing, unknown or given twice.
            ShapeError, DTypeError: where an input does not fit.
            TianyuanError: where a node fails; the message names it.
        """
        given = self.bind(args, kwargs)
        interpreter = Interpreter(self._limit)
        with interpreter.guarded():
            values = [
                _as_value(info, value) for info, value in zip(self.inputs, given, strict=True)
            ]
            check_shapes(self.inputs, values)
            results = interpreter.run(self._body, values, dict(self.weights))
            _check_outputs(self.outputs, results)
            found = [_as_result(result) for result in results]
        return found[0] if len(found) == 1 else tuple(found)

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Return the inputs in order.

        Raises:
            TypeError: where one is missing, unknown or given twice.
        """
        optional = {info.name for info in self.inputs if info.dtype is None}
        return bind_inputs([info.name for info in self.inputs], args, kwargs, optional)

    def _module_info_string(self) -> str:
        inputs = ", ".join(info.name for info in self.inputs)
        return f"inputs={inputs}, nodes={len(self._body.nodes)}"


def _adopted(kind: type[Tensor], array: np.ndarray, name: str) -> Tensor:
    """Return a tensor of an array that nobody else holds; on the host it is not copied."""
    if state.recorder is not None or not registry.get_device_spec(get_default_device()).is_host:
        return kind(array, dtype=array.dtype, name=name)
    tensor = wrap(array, TensorSpec(array.shape, array.dtype), kind)
    tensor.name = name
    return tensor


def _roles(body: Body) -> tuple[set[str], set[str]]:
    """Return the names that nodes read as state, and those that they need to know."""
    frozen: set[str] = set()
    known: set[str] = set()
    for node in _below(body):
        named = {i: name for i, name in enumerate(node.inputs) if name}
        frozen |= {name for i, name in named.items() if i in node.operator.frozen}
        if node.operator.form == ARRAYS:
            known |= set(named.values())
        else:
            known |= {name for i, name in named.items() if i in node.operator.known}
    return frozen, known


def _below(body: Body) -> Iterable[Node]:
    for node in body.nodes:
        yield node
        for value in node.attrs.values():
            if isinstance(value, Body):
                yield from _below(value)


def _fold(body: Body, limit: int, weights: int) -> None:
    """Run the nodes that read only constants, and drop them from the body."""
    most = min(limit, _FOLD_SLACK + weights)
    interpreter = Interpreter(most)
    kept: list[Node] = []
    last_uses: list[list[str]] = []
    budget = most
    for node, last in zip(body.nodes, body.last_uses, strict=True):
        known = (
            node.operator.folds
            and bool(node.inputs)
            and all(not name or name in body.constants for name in node.inputs)
        )
        results: list[Value] | None = None
        if known:
            inputs = [body.constants[name] if name else None for name in node.inputs]
            results = _tried(interpreter, node, inputs)
            size = sum(r.array.nbytes for r in results or () if isinstance(r, Known))
            if results is not None and size <= budget:
                budget -= size
                body.constants.update(
                    (name, result)
                    for name, result in zip(node.outputs, results, strict=False)
                    if name
                )
                continue
        kept.append(node)
        last_uses.append(last)
    body.nodes, body.last_uses = kept, last_uses
    needed = set(body.outputs).union(*(node.reads() for node in kept))
    body.constants = {name: v for name, v in body.constants.items() if name in needed}


def _tried(interpreter: Interpreter, node: Node, inputs: Sequence[Any]) -> list[Value] | None:
    """Run a node ahead of time, or leave it for later where its result is too large."""
    try:
        results = interpreter.apply(node, inputs)
    except TooLargeError:
        return None
    return results if all(r is None or isinstance(r, Known) for r in results) else None


def _as_value(info: ValueInfo, value: Any) -> Value:
    """Bring an input into the form that nodes take."""
    if isinstance(value, Known):
        return value
    if info.dtype is None:
        return _any_value(value)
    if isinstance(value, Tensor):
        if value.dtype == np.int32 and info.dtype == np.int64:
            return value.astype(info.dtype)  # int64 data arrives in tensors as int32
        if value.dtype != info.dtype:
            raise _wrong_dtype(info, value.dtype)
        return value
    array = np.asarray(value)
    if info.dtype == object:
        return Known(array.astype(object))
    if array.dtype != info.dtype:
        weak = not isinstance(value, np.ndarray) or array.dtype == np.float64
        fits = array.dtype.kind in "iuf" and (
            dtypes.is_float(info.dtype) or array.dtype.kind in "iu"
        )
        if not (weak and fits):
            raise _wrong_dtype(info, array.dtype)
        array = array.astype(info.dtype)
    if dtypes.name_of(info.dtype) not in dtypes.CODES:
        return Known(array)
    return Tensor(array, dtype=info.dtype)


def _check_outputs(infos: Sequence[ValueInfo], values: Sequence[Value]) -> None:
    """Raise ModelFormatError where an output has another dtype than the file declares."""
    for info, value in zip(infos, values, strict=True):
        got = getattr(value, "dtype", None)
        if info.dtype is not None and got is not None and got != info.dtype:
            raise ModelFormatError(
                f"onnx: output {info.name!r} is {got}, which the file declares as {info.dtype}"
            )


def _wrong_dtype(info: ValueInfo, got: np.dtype) -> DTypeError:
    return DTypeError(
        f"model: input {info.name!r} has the wrong dtype, got {got}, expected {info.dtype}"
    )


def _any_value(value: Any) -> Value:
    if value is None or isinstance(value, Tensor):
        return value
    if isinstance(value, (list, tuple)):
        return [_any_value(item) for item in value]
    array = np.asarray(value)
    array = array.astype(object) if array.dtype.kind in "US" else array
    if dtypes.name_of(array.dtype) not in dtypes.CODES:
        return Known(array)
    return Tensor(array, dtype=array.dtype)


def check_shapes(infos: Sequence[ValueInfo], values: Sequence[Any]) -> dict[str, int]:
    """Return the size of every symbol.

    Raises:
        ShapeError: where a shape does not fit what the file says.
    """
    sizes: dict[str, int] = {}
    symbols = plain_symbols(info.shape for info in infos)
    given = [
        (info, info.shape, tuple(map(int, value.shape)))
        for info, value in zip(infos, values, strict=True)
        if info.shape is not None and value is not None
    ]
    for compound in (False, True):  # sums and products of symbols when these are known
        for info, declared, shape in given:
            if not _fits(declared, shape, symbols, sizes, compound):
                raise ShapeError(
                    f"model: input {info.name!r} has the wrong shape, got "
                    f"{shapes.format_shape(shape)}, expected {format_extents(declared)}"
                )
    return sizes


def _fits(
    declared: Sequence[int | str | None],
    shape: Sequence[int],
    symbols: set[str],
    sizes: dict[str, int],
    compound: bool,
) -> bool:
    """Compare a shape with what is declared, either its compound extents or all others."""
    fits = len(shape) == len(declared)
    for want, got in zip(declared, shape, strict=False):
        if isinstance(want, str):
            expr = read_extent(want, symbols)
            if isinstance(expr, tuple) != compound:
                continue
            size = shapes.evaluate_expr(expr, sizes) if compound else sizes.setdefault(want, got)
            fits = fits and size == got
        elif want is not None:
            fits = fits and want == got
    return fits


def format_extents(shape: Sequence[int | str | None]) -> str:
    """Write a declared shape, with ``?`` where nothing is said."""
    return "(" + ", ".join("?" if n is None else str(n) for n in shape) + ")"


def _as_result(value: Value) -> Any:
    if isinstance(value, Known):
        if value.is_symbolic or dtypes.name_of(value.dtype) in dtypes.CODES:
            found = value.tensor()
            # A constant must not change where the caller updates what it was given.
            return wrap(found._data, TensorSpec(found.shape, found.dtype))
        return value.array
    if isinstance(value, list):
        return [_as_result(item) for item in value]
    return value
