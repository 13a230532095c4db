"""Run bodies: on eager tensors, under a trace, or ahead of time where everything is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import dtypes
from ..errors import ModelFormatError, TianyuanError, TraceError
from ..imperative import dispatch
from ..imperative.state import integers_meant, state
from ..imperative.tensor import Tensor, wrap
from ..op import Op, TensorSpec
from .known import Known, settle
from .limits import check_size, limits
from .node import Body, Node
from .table import ARRAYS, SYMBOLIC, VALUES

Value = Any  # a Tensor, a Known, a list (sequence) or None (left out)

# What functions of the table may raise on purpose or because a file is wrong.
_FAILURES = (
    ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError,
    RecursionError,
)  # fmt: skip


class ValueNeededError(TraceError):
    """Raise where a graph cannot be made without the value of a traced tensor.

    Attributes:
        value: what stands for the tensor in the graph.
    """

    def __init__(self, message: str, value: Any) -> None:
        super().__init__(message)
        self.value = value


class Scope:
    """Values by name, with those of the graphs around."""

    __slots__ = ("parent", "values")

    def __init__(self, values: dict[str, Value], parent: Scope | None) -> None:
        self.values = values
        self.parent = parent

    def get(self, name: str) -> Value:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise KeyError(name)


class _Guard:
    """A recorder that runs each op at once, after its outputs were found to be of sane size."""

    def lift(self, tensor: Tensor) -> Any:
        return tensor._data

    def record(self, op: Op, datas: list[Any], attrs: Any) -> list[Tensor]:
        op.check_count(len(datas))
        specs = tuple(TensorSpec(data.shape, data.dtype) for data in datas)
        for spec in op.infer(specs, attrs):
            check_size(spec.shape, spec.dtype)
        with _without_recorder():
            found = dispatch.apply(
                op, [wrap(d, s) for d, s in zip(datas, specs, strict=True)], attrs
            )
        return list(found) if isinstance(found, tuple) else [found]

    def note_created(self, tensor: Tensor) -> None:
        """Ignore it: nothing is recorded."""

    def note_read(self, owner: Any, name: str) -> None:
        """Ignore it: nothing is recorded."""

    def note_attribute(self, owner: Any, name: str, written: bool = False) -> None:
        """Ignore it: nothing is recorded."""

    def is_written(self, tensor: Tensor) -> bool:
        return False

    def write(self, tensor: Tensor, value: Tensor) -> None:
        tensor._data, tensor._spec = value._data, value._spec

    def host_value(
        self, read: Callable[[], Any], dtype: Any, after: Callable[[], None] | None
    ) -> Tensor:
        array = np.asarray(read(), dtypes.as_dtype(dtype))
        if after is not None:
            after()
        return wrap(array, TensorSpec(array.shape, array.dtype))

    def get_grad(self, tensor: Tensor) -> Tensor | None:
        return tensor._grad

    def set_grad(self, tensor: Tensor, grad: Tensor | None) -> None:
        tensor._grad = grad


@contextmanager
def _without_recorder() -> Iterator[None]:
    saved = state.recorder, state.tapes
    state.recorder, state.tapes = None, []
    try:
        yield
    finally:
        state.recorder, state.tapes = saved


class Interpreter:
    """Runs the nodes of a body.

    Args:
        limit: most bytes that one value may have.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._scopes: list[Scope] = []

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Check sizes before anything is allocated, where no trace is recorded."""
        if state.recorder is not None:
            with integers_meant():
                yield
            return
        state.recorder = _Guard()
        try:
            with integers_meant():
                yield
        finally:
            state.recorder = None

    def run(
        self, body: Body, args: Sequence[Value], more: dict[str, Value] | None = None
    ) -> list[Value]:
        """Run a body on its inputs; a subgraph sees the values around it.

        Raises:
            TianyuanError: where a node fails; the message names it.
        """
        if len(args) != len(body.inputs):
            raise ModelFormatError(
                f"onnx: graph {body.name!r} has {len(body.inputs)} inputs, got {len(args)}"
            )
        values = {**body.constants, **(more or {}), **dict(zip(body.inputs, args, strict=True))}
        scope = Scope(values, self._scopes[-1] if self._scopes else None)
        self._scopes.append(scope)
        try:
            for node, last in zip(body.nodes, body.last_uses, strict=True):
                inputs = [scope.get(name) if name else None for name in node.inputs]
                results = self.apply(node, inputs)
                for name, result in zip(node.outputs, results, strict=False):
                    if name:
                        values[name] = result
                for name in last:
                    values.pop(name, None)
            return [scope.get(name) for name in body.outputs]
        finally:
            self._scopes.pop()

    def apply(self, node: Node, inputs: Sequence[Value]) -> list[Value]:
        """Run one node."""
        saved, limits.most_bytes = limits.most_bytes, self.limit
        try:
            results = self._listed(self._dispatch(node, inputs))
            for result in results:
                if isinstance(result, Tensor):
                    check_size(result.shape, result.dtype)
        except TianyuanError as error:
            text = str(error)
            if text.startswith("onnx: node "):
                raise
            raise _retold(error, f"onnx: {node.title}: {text.removeprefix('onnx: ')}") from error
        except _FAILURES as error:
            raise node.fail(f"{type(error).__name__}: {error}") from error
        finally:
            limits.most_bytes = saved
        wanted = sum(1 for name in node.outputs if name)
        if len(results) < wanted and any(node.outputs[len(results) :]):
            raise node.fail(f"has {len(node.outputs)} outputs, expected {len(results)}")
        return results

    def _dispatch(self, node: Node, inputs: Sequence[Value]) -> Any:
        operator = node.operator
        if operator.form == VALUES:
            return operator.run(node, self, *inputs)
        if any(name and value is None for name, value in zip(node.inputs, inputs, strict=True)):
            raise ModelFormatError("an optional value that is missing is read")
        plain = [value for value in inputs if value is not None]
        all_known = bool(plain) and all(isinstance(value, Known) for value in plain)
        if all_known and any(_needs_arrays(value) for value in plain):
            function = SYMBOLIC.get(node.op_type)
            if function is not None and not node.domain:
                found = function(node, *(None if v is None else v.array for v in inputs))
                if found is not NotImplemented:
                    return _of_extents(found, plain)
        if operator.form == ARRAYS:
            return operator.run(node, *(self._data_of(value) for value in inputs))
        if all_known and not any(value.is_symbolic for value in plain):
            return self._folded(node, inputs)
        return operator.run(node, *self._arguments(node, inputs))

    @staticmethod
    def _data_of(value: Value) -> Any:
        try:
            return array_of(value)
        except ValueNeededError as error:
            # The operator works on data, not on what describes them: no graph can hold it.
            raise TraceError(str(error)) from None

    def _arguments(self, node: Node, inputs: Sequence[Value]) -> list[Any]:
        known = node.operator.known
        return [
            array_of(value) if index in known else tensor_of(value)
            for index, value in enumerate(inputs)
        ]

    def _folded(self, node: Node, inputs: Sequence[Value]) -> Any:
        """Run a node on known values now, whatever is recorded."""
        with _without_recorder(), self.guarded():
            found = node.operator.run(node, *self._arguments(node, inputs))
            results = found if isinstance(found, (tuple, list)) else (found,)
            return tuple(
                Known(dispatch.host_array(r, r._data)) if isinstance(r, Tensor) else r
                for r in results
            )

    def _listed(self, found: Any) -> list[Value]:
        results = list(found) if isinstance(found, tuple) else [found]
        return [self._value(result) for result in results]

    @staticmethod
    def _value(result: Any) -> Value:
        if isinstance(result, np.generic):
            result = np.asarray(result)
        return Known(result) if isinstance(result, np.ndarray) else result


def _needs_arrays(value: Known) -> bool:
    return value.array.dtype == object or dtypes.name_of(value.dtype) not in dtypes.CODES


def _of_extents(found: Any, inputs: Sequence[Known]) -> Any:
    """Return what shape arithmetic gave as known values, with symbols only where some are left."""
    dtype = next((value.dtype for value in inputs if value.is_symbolic), None)
    if dtype is None:
        return found
    results = found if isinstance(found, tuple) else (found,)
    return tuple(settle(r, dtype) if r.dtype == object else Known(r) for r in results)


def _retold(error: TianyuanError, text: str) -> TianyuanError:
    """Return an error of the same class with another message."""
    if isinstance(error, ValueNeededError):
        return ValueNeededError(text, error.value)
    return type(error)(text)


def tensor_of(value: Value) -> Any:
    """Return a value as tensor; None and tensors stay."""
    if isinstance(value, Known):
        return value.tensor()
    if isinstance(value, list):
        raise ModelFormatError("a sequence was given, expected a tensor")
    return value


def array_of(value: Value) -> Any:
    """Return a value as array, of objects where extents are symbolic; None and lists stay.

    Raises:
        TraceError: where it depends on data that a trace does not have.
    """
    if isinstance(value, Known):
        return value.array
    if isinstance(value, Tensor):
        data = value._data
        known = dispatch.is_concrete(data) and (
            state.recorder is None or not state.recorder.is_written(value)
        )
        if not known:
            raise ValueNeededError(
                "the result depends on data that a graph does not have, got a traced tensor; "
                "expected a value known when the model is loaded",
                data,
            )
        return dispatch.host_array(value, data)
    if isinstance(value, list):
        return [array_of(item) for item in value]
    return value
