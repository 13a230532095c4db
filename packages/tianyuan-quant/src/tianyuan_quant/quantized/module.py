"""Decide what every module of integers can do: take and give quantised tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from tianyuan import Tensor, registry
from tianyuan.errors import AttrError
from tianyuan.imperative.state import state
from tianyuan.jit.pytree import flatten, unflatten
from tianyuan.module import Module
from tianyuan.op import QuantParams

from ..arguments import tensor_of
from ..memory import Memory
from ..params import HostParams, host_params
from ..watch import MOVES, run_op

_sources = Memory()  # the quantised tensor behind floats
_roundings = Memory()  # what floats of a known range become where a layer reads integers


class QuantizedModule(Module):
    """A module that computes with integers; it does not train.

    >>> from tianyuan.functional.quantized import qint8
    >>> class Same(QuantizedModule):
    ...     def forward(self, inp):
    ...         return inp
    >>> Same("head", qint8(0.5)).result.scales
    (0.5,)
    """

    def __init__(self, owner: str = "", dtype: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._training = False
        self.owner = owner or type(self).__name__
        self._result: HostParams | None = None
        self.result_scale: Tensor | None = None
        self.result_zero_point: Tensor | None = None
        if dtype is not None:
            self.result = dtype

    @property
    def result(self) -> HostParams:
        """How the result is quantised.

        Raises:
            AttrError: naming this module, where nobody said.
        """
        if self._result is None:
            raise AttrError(
                f"{self.owner}: it is not known how its result is quantised, got None, expected "
                "dtype=qint8(scale) or the like"
            )
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        found = self._result = host_params(value, self.owner)
        self.result_scale, self.result_zero_point = found.tensors()

    def _module_info_string(self) -> str:
        """Return how the result is quantised, where that is known."""
        if self._result is None:
            return ""
        scale, zero, name = self._result.scales[0], self._result.zero_points[0], self._result.dtype
        return f"{name.name}, scale={scale:.6g}, zero_point={zero}"

    def _after_loading(self) -> None:
        """Compute with the scale and zero point that a state dict has brought."""
        if self._result is not None:
            assert self.result_scale is not None
            assert self.result_zero_point is not None
            self._result = self._result.replaced(
                self.result_scale, self.result_zero_point, self.owner
            )

    @classmethod
    def from_qat_module(cls, qat_module: Any, owner: str = "") -> QuantizedModule:
        """Return the integer form of a module in training form."""
        raise NotImplementedError(f"{cls.__name__}.from_qat_module: not defined")

    @property
    def training(self) -> bool:
        """False: integers do not train."""
        return False

    @training.setter
    def training(self, value: bool) -> None:
        if value:
            raise AttrError(
                f"{self.owner}: a quantised module cannot train, got train(), expected the "
                "training form that quantize_qat returns"
            )

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run as one unit: what surrounds a network's ops does not look inside."""
        outer = state.interceptor
        state.interceptor = None if _is_ours(type(self)) else _by_numbers
        numbers = getattr(outer, "numbers", None)
        if numbers is not None:
            inputs, kwargs = on_tensors(source_of, (inputs, kwargs))
        try:
            outputs = super().__call__(*inputs, **kwargs)
        finally:
            state.interceptor = outer
        return outputs if numbers is None else numbers(outputs)

    def quantised(self, x: Tensor) -> QuantParams:
        """Return how an input is quantised.

        Raises:
            AttrError: where it is not, naming this module.
            DTypeError: where it is no tensor.
        """
        tensor_of(self.owner, x)
        quant = integers_of(x).qparams
        if quant is None or quant.axis >= 0:
            raise AttrError(
                f"{self.owner}: its input is not quantised, got {x.dtype.name}; expected a "
                "QuantStub in front of it, or an example given to quantize_qat"
            )
        return quant


class Unreached(QuantizedModule):
    """Stands for a module that no value went through while the network was watched.

    >>> try:
    ...     Unreached("spare")(Tensor([1.0]))
    ... except AttrError as error:
    ...     print(error)
    spare: its observer never ran, got no batch, expected training or calibration that reaches it
    """

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Refuse: how results are quantised is not known."""
        raise AttrError(
            f"{self.owner}: its observer never ran, got no batch, expected training or "
            "calibration that reaches it"
        )


# What functional does in integers where it is given quantised tensors.
_OF_INTEGERS = MOVES | {"adaptive_max_pool2d", "pad"}


@cache
def _is_ours(cls: type) -> bool:
    """Tell whether a class computes with integers as this package does it."""
    forward: Any = cls.forward  # type: ignore[attr-defined]
    return bool(forward.__module__.startswith(f"{__package__}."))


def _by_numbers(op: Any, operands: Sequence[Any], attrs: Any) -> Any:
    """Give ops that know nothing of quantised tensors the numbers these stand for."""
    if op.family == "quantized" or op.name in _OF_INTEGERS:
        return run_op(op, operands, attrs)
    return run_op(op, [dequantise(value) for value in operands], attrs)


def on_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Return nested lists, tuples and dicts with what a function makes of their tensors."""
    leaves, structure = flatten(tree, lambda item: isinstance(item, Tensor))
    return unflatten(structure, [function(leaf) for leaf in leaves])


def emit(name: str, *inputs: Tensor, **attrs: Any) -> Tensor:
    """Apply an op by its name, as if nobody intercepted."""
    op = registry.get_op(name)
    result: Tensor = run_op(op, inputs, op.attrs(**attrs))
    return result


def quantise(x: Tensor, params: HostParams) -> Tensor:
    """Quantise floats, or numbers of another dtype as floats; bounds of a narrow dtype are kept."""
    x = floats_of(x)
    q = emit(
        "quantize",
        x,
        scales=params.scales,
        zero_points=params.zero_points,
        axis=params.axis,
        dtype=params.dtype.storage,
    )
    form = params.form()
    info = np.iinfo(params.dtype.storage)
    if (form["lower"], form["upper"]) == (info.min, info.max):
        return q
    return emit("requantize", q, x_zero_point=params.zero_points[0], multiplier=1.0, **form)


def floats_of(x: Tensor) -> Tensor:
    """Return numbers as float32, which float layers convert their inputs to as well.

    Quantised ones are the numbers that they stand for.

    Raises:
        DTypeError: where they are no tensor.

    >>> floats_of(Tensor([1], "uint8")).dtype.name
    'float32'
    """
    found = dequantise(tensor_of("quantize", x))
    return found if found.dtype == np.float32 else emit("cast", found, dtype="float32")


def source_of(x: Tensor) -> Tensor:
    """Return the quantised tensor that floats were made from, or the tensor itself."""
    found: Tensor | None = _sources.of(x)
    return x if found is None else found


def integers_of(x: Tensor) -> Tensor:
    """Return the quantised tensor that a layer reads: the source of floats, or their rounding."""
    found: Tensor | None = _roundings.of(x)
    return source_of(x) if found is None else found


def note_rounding(x: Tensor, integers: Tensor) -> None:
    """Note which quantised tensor a layer reads in the place of floats."""
    _roundings.note(x, integers)


def dequantise(x: Tensor) -> Tensor:
    """Return the numbers that a quantised tensor stands for; they remember it."""
    quant = tensor_of("dequantize", x).qparams
    if quant is None:
        return x
    found = emit(
        "dequantize", x, scales=quant.scales, zero_points=quant.zero_points, axis=quant.axis
    )
    _sources.note(found, x)
    return found
