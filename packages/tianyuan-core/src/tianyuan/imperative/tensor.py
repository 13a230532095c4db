"""Tensor: a rebindable handle to an immutable value, eager or traced.

An operation never changes a value; ``x += 1`` and ``x[...] = y`` give the handle a new one. So
views, tapes and threads that hold the old value are never surprised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from .. import dtypes, native, registry
from ..device import get_default_device, parse_device
from ..errors import DTypeError, IndexRangeError, ShapeError, ShapeTypeError, TraceError
from ..op import Op, TensorSpec, intern_spec
from ..shapes import format_shape
from . import dispatch, memory
from .arguments import known_format
from .methods import Methods
from .state import state


class Tensor(Methods):
    """A multi-dimensional array on a device, as a user holds it.

    Args:
        data: array-like, scalar or another Tensor; copied. Python floats and float64 arrive as
            float32, int64 as int32, unless ``dtype`` says otherwise.
        dtype: dtype to convert to; one with a scale, such as ``functional.quantized.qint8(0.5)``,
            quantises numbers, and takes integers as those that stand for numbers.
        device: where it lies, ``get_default_device()`` if None.
        is_const, no_cache: accepted for MegEngine's sake and without effect.
        format: a label, see ``Tensor.format``.
        name: shown by tools and used for weights in model files.

    Raises:
        DTypeError: for data that is not numeric, or integers that do not fit.
        DeviceError: for a device that no backend serves.

    Example:
        >>> import tianyuan as ty
        >>> x = ty.Tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> (x @ x + 1).tolist()
        [[8.0, 11.0], [16.0, 23.0]]
    """

    __slots__ = ("_data", "_spec", "_grad", "name", "__weakref__", "__dict__")

    # Maps a pickled tensor's device to the one it is put on; set while unpickling.
    dmap_callback: ClassVar[Callable[[str], str] | None] = None

    _data: Any  # numpy array, a device's storage, or a value of the graph being traced
    _spec: TensorSpec

    def __init__(
        self,
        data: Any,
        dtype: Any = None,
        device: str | None = None,
        is_const: bool = False,
        no_cache: bool = False,
        name: str | None = None,
        format: str = "default",
    ) -> None:
        where = parse_device(device) if device is not None else None
        self._grad: Tensor | None = None
        self.name = name or ""
        if format != "default":
            self.__dict__["format"] = known_format(format)
        if dtype is not None and hasattr(dtype, "storage"):
            from ..functional.quantized_dtype import created

            data, dtype = created(data, dtype, where), None
        if isinstance(data, Tensor):
            source = data if dtype is None else data.astype(dtype)
            source = source if where in (None, source.device) else source.to(where)
            self._data, self._spec = source._own(), source._spec
            return
        array = dtypes.ingest(data, dtype)
        where = where or get_default_device()
        spec = registry.get_device_spec(where)
        self._spec = intern_spec(TensorSpec(array.shape, array.dtype, where))
        self._data = array if spec.is_host else dispatch.to_device(spec, array, where)
        if memory.following and spec.is_host:
            memory.note((array,))
        if state.recorder is not None:
            state.recorder.note_created(self)

    @classmethod
    def _apply(cls, op: Op, operands: tuple[Any, ...], attrs: Any) -> Any:
        return dispatch.apply(op, operands, attrs)

    def _own(self) -> Any:
        """Return this value under an identity of its own, so that tapes tell the two apart."""
        if state.recorder is not None:
            return registry.get_op("copy")(self)._data
        return self._data.view() if isinstance(self._data, np.ndarray) else self._data

    # What it is.

    @property
    def grad(self) -> Tensor | None:
        """Gradient that the last ``GradManager.backward`` left, or None.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([1.0]).grad is None
            True
        """
        if state.recorder is not None:
            return state.recorder.get_grad(self)
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if state.recorder is not None:
            state.recorder.set_grad(self, value)
        else:
            self._grad = value

    # Its data.

    def _concrete(self, what: str) -> Any:
        """Return the data, or raise where there is none because a trace is being recorded."""
        data = self._data
        if state.recorder is not None or not dispatch.is_concrete(data):
            known = dispatch.is_concrete(data) and not state.recorder.is_written(self)  # type: ignore[union-attr]
            if not known:
                raise TraceError(
                    f"{what}: the value of a traced tensor is not known while the trace is made, "
                    f"got {self._spec} at {dispatch.user_line()}; "
                    "expected an op such as functional.where instead of Python control flow"
                )
        return data

    def numpy(self) -> np.ndarray:
        """Return a numpy array of the value, which later updates of the tensor do not change.

        Raises:
            TraceError: inside a trace, where the value is not known yet.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([1.0, 2.0]).numpy()
            array([1., 2.], dtype=float32)
        """
        data = self._concrete("Tensor.numpy")
        return np.array(dispatch.host_array(self, data))

    def item(self, *index: int) -> bool | int | float:
        """Return the only element, or the one at an index, as a Python scalar.

        Raises:
            ShapeTypeError: where there is not one element, or no index of so many axes.
            IndexRangeError: where the index lies outside.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([[1.0, 2.0]]).item(0, 1)
            2.0
        """
        array = self._concrete("Tensor.item")
        if not index:
            self._check_single("item")
        host = np.asarray(dispatch.host_array(self, array))
        try:
            found: bool | int | float = host.item(*index)
        except IndexError:
            raise IndexRangeError(
                f"item: index is out of range, got {index}, expected one of shape "
                f"{format_shape(self.shape)}"
            ) from None
        except (TypeError, ValueError):
            raise ShapeTypeError(
                f"item: index is wrong, got {index}, expected a place in shape "
                f"{format_shape(self.shape)}, in the order of memory or one int for each axis"
            ) from None
        return found

    def _check_single(self, op: str, what: str = "a Python number") -> None:
        if self.size != 1:
            raise ShapeTypeError(
                f"{op}: {what} needs one element, got shape {format_shape(self.shape)}, expected "
                "1 element"
            )

    def _number(self, op: str, what: str = "a Python number") -> Any:
        """Return the only element: of a quantised tensor the number that it stands for."""
        data = self._concrete(op)
        self._check_single(op, what)
        if self._spec.quant is not None:
            return self.astype("float32").item()
        return np.asarray(dispatch.host_array(self, data)).item()

    def tolist(self) -> Any:
        """Return the elements as nested Python lists.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([[1.0, 2.0]]).tolist()
            [[1.0, 2.0]]
        """
        return dispatch.host_array(self, self._concrete("Tensor.tolist")).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            view: np.ndarray = dispatch.host_array(self, self._concrete("Tensor.__array__")).view()
            if dtype is not None and view.dtype != dtype:
                raise ValueError(
                    f"Tensor.__array__: no copy was asked for, got {view.dtype}, expected {dtype}"
                )
            view.flags.writeable = False
            return view
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Let numpy's functions compute on the values of tensors; they return arrays."""
        from .numpyfunctions import on_arrays

        return on_arrays(func, types, args, kwargs)

    def __dlpack__(self, *, stream: Any = None, **kwargs: Any) -> Any:
        """Return a DLPack capsule that shares memory with this tensor.

        ``max_version``, ``dl_device`` and ``copy`` are those of the array API.

        Raises:
            TraceError: inside a trace, where the value is not known.
            BufferError: where what is asked for cannot be had without a copy.
        """
        from .dlpack import lent_capsule

        data = self._concrete("Tensor.__dlpack__")
        if isinstance(data, np.ndarray):
            return lent_capsule(data, stream, **kwargs)
        return data.__dlpack__(stream=stream, **kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._concrete("Tensor.__dlpack_device__").__dlpack_device__()  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(self._number("bool", "a truth value"))

    def __int__(self) -> int:
        self._concrete("int")
        self._check_single("int")
        return int(self._real("int", self.item()))

    def __float__(self) -> float:
        return float(self._real("float", self._number("float")))

    def __complex__(self) -> complex:
        return complex(self._number("complex"))

    def _real(self, op: str, value: Any) -> Any:
        if isinstance(value, complex):
            raise DTypeError(
                f"{op}: a complex number is no real one, got {self.dtype.name}, expected x.real or "
                "complex(x)"
            )
        return value

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise DTypeError(
                f"index: only an integer can be an index, got {self.dtype.name}, "
                "expected an integer dtype"
            )
        self._concrete("index")
        self._check_single("index")
        return int(self.item())

    def __round__(self, ndigits: int | None = None) -> Any:
        scale = 10.0 ** (ndigits or 0)
        round_op = registry.get_op("round")
        return round_op(self * scale) / scale if ndigits else round_op(self)

    def __floor__(self) -> Tensor:
        return registry.get_op("floor")(self)  # type: ignore[no-any-return]

    def __ceil__(self) -> Tensor:
        return registry.get_op("ceil")(self)  # type: ignore[no-any-return]

    def __format__(self, spec: str) -> str:
        return format(self.item() if spec and self.size == 1 else str(self), spec)

    def __len__(self) -> int:
        if not self.ndim:
            raise ShapeTypeError("len: a 0-d tensor has no length, got shape (), expected an axis")
        return self.shape[0]

    def __iter__(self) -> Any:
        if not self.ndim:
            raise ShapeTypeError(
                "iter: a 0-d tensor cannot be iterated, got shape (), expected an axis"
            )
        return (self[index] for index in range(int(self.shape[0])))

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> Any:
        return self._binary("equal", other)

    def __ne__(self, other: object) -> Any:
        return self._binary("not_equal", other)

    def _other(self, other: Any) -> Any:
        if other.__class__ in (bool, int, float):
            return self.full((), other, dtypes.promote_scalar(self._spec.dtype, other.__class__))
        if isinstance(other, (np.ndarray, list, tuple)):
            return Tensor(other, device=self.device)
        return super()._other(other)

    def __matmul__(self, other: Any) -> Tensor:
        from ..functional import matmul

        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        from ..functional import matmul

        return matmul(Tensor(other, device=self.device), self)

    def __repr__(self) -> str:
        if not dispatch.is_concrete(self._data):
            return f"{type(self).__name__}({self._spec}, traced)"
        text = np.array2string(
            np.asarray(dispatch.host_array(self, self._data)), separator=", ", prefix="Tensor("
        )
        return f"{type(self).__name__}({text}, dtype={self.dtype.name}, device={self.device})"

    # New values for this handle.

    def _reset(self, other: Tensor) -> None:
        """Take another tensor's value; shape and dtype must agree.

        Raises:
            ShapeError, DTypeError: where they do not.
        """
        if other.dtype != self.dtype:
            raise DTypeError(
                f"Tensor: new value has another dtype, got {other.dtype.name}, "
                f"expected {self.dtype.name}"
            )
        if tuple(map(int, other.shape)) != tuple(map(int, self.shape)):
            raise ShapeError(
                f"Tensor: new value has another shape, got {format_shape(other.shape)}, "
                f"expected {format_shape(self.shape)}"
            )
        self._rebind(other, shared=True)

    def _rebind(self, other: Tensor, shared: bool = False) -> None:
        """Take the value of a tensor; ``shared`` where its handle lives on beside this one.

        A value of one's own stays the one that tapes know, so that gradients flow through it.
        """
        if state.recorder is not None and dispatch.is_concrete(self._data):
            state.recorder.write(self, other)
        else:
            self._data, self._spec = other._own() if shared else other._data, other._spec

    def __getitem__(self, key: Any) -> Tensor:
        from . import indexing  # a network that is run indexes nothing here

        found: Tensor = indexing.getitem(self, key)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        from . import indexing

        self._rebind(indexing.setitem(self, key, value))

    # The few verbs that MegEngine offers as methods.

    def detach(self) -> Tensor:
        """Return the same value, through which no gradient flows.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([1.0]).detach().tolist()
            [1.0]
        """
        if state.recorder is not None:
            saved, state.tapes = state.tapes, []
            try:
                return registry.get_op("copy")(self)  # type: ignore[no-any-return]
            finally:
                state.tapes = saved
        return wrap(self._own(), self._spec)

    def to(self, device: str, *, _borrow: bool = False) -> Tensor:
        """Return this tensor on a device; itself where it lies there already.

        Example:
            >>> import tianyuan as ty
            >>> x = ty.Tensor([1.0])
            >>> x.to("cpu0") is x
            True
        """
        where = parse_device(device)
        if where == self.device:
            return self
        return Tensor(self.numpy(), dtype=self.dtype, device=where)

    def __reduce__(self) -> Any:
        return type(self)._unpickle, (self.numpy(), self.device, self.name)

    @classmethod
    def _unpickle(cls, array: np.ndarray, device: str, name: str) -> Tensor:
        callback = Tensor.dmap_callback
        if callback is not None:
            device = callback(device)
        return cls(array, dtype=array.dtype, device=device, name=name)

    def __copy__(self) -> Tensor:
        return type(self)(self)

    def __deepcopy__(self, memo: Any) -> Tensor:
        copied = type(self)(self)
        copied.name = self.name
        copied.__dict__.update(self.__dict__)
        return copied


class Parameter(Tensor):
    """A tensor that a Module counts among its parameters.

    Example:
        >>> import tianyuan as ty
        >>> ty.Parameter([1.0]).tolist()
        [1.0]
    """

    __slots__ = ()


def wrap(data: Any, spec: TensorSpec, kind: type[Tensor] = Tensor) -> Tensor:
    """Make a tensor of data that is already in its final form."""
    tensor = kind.__new__(kind)
    tensor._data = data
    tensor._spec = spec
    tensor._grad = None
    tensor.name = ""
    return tensor


def create(op: Op, attrs: Any) -> Any:
    """Apply an op that has no inputs, in the runtime that is active."""
    return dispatch.apply(op, (), attrs)


def _use_engine(engine: native.Engine) -> None:
    """Let an engine apply ops to tensors."""
    dispatch.set_up_engine(engine, Tensor)
    Tensor._apply = staticmethod(engine.apply)  # type: ignore[method-assign, assignment]


dispatch.install(wrap)
native.set_engine_installer(_use_engine)
