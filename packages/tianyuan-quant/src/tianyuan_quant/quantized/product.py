"""Compute convolutions and linear maps in integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.errors import AttrError
from tianyuan.functional.arguments import pair
from tianyuan.op import QuantParams
from tianyuan.ops import quantized_rules as rules

from .. import qat
from ..params import HostParams
from ..qat.product import BOUNDS, activate
from ..registration import register_quantized
from .module import QuantizedModule, dequantise, emit, quantise, source_of


class QuantizedProduct(QuantizedModule):
    """Base of layers with an int8 weight, fixed when they are made from their training form."""

    channel_axis = 0

    def __init__(
        self,
        owner: str,
        weight: np.ndarray,
        bias: np.ndarray | None,
        weight_params: HostParams,
        result: HostParams,
        epilogue: str,
    ) -> None:
        super().__init__(owner)
        self.weight = Tensor(weight_params.stored(weight), weight_params.dtype.storage)
        self.bias_values = bias
        self.weight_params = weight_params
        self.result = result
        self.epilogue = epilogue
        self._constants = _Constants()

    @classmethod
    def from_qat_module(cls, qat_module: Any, owner: str = "") -> QuantizedModule:
        """Return the integer form of a layer in training form."""
        params = qat_module.host_weight(owner)
        weight, bias = qat_module.folded()
        if params.dtype.storage != "int8" or any(params.zero_points):
            raise AttrError(
                f"{owner}: weights must be signed and symmetric, got {params.dtype.name} with "
                f"zero point {params.zero_points[0]}"
            )
        found = cls(
            owner,
            weight.numpy(),
            None if bias is None else bias.numpy().reshape(-1),
            params,
            qat_module.host_activation(owner),
            qat_module.epilogue,
        )
        found.take(qat_module.layer())
        return found

    def take(self, layer: Any) -> None:
        """Take the geometry of the float layer."""

    def product_attrs(self, quant: QuantParams) -> dict[str, Any]:
        """Return the attributes that both products share."""
        scale = self.result.scales[0]
        factors = [quant.scales[0] * own for own in self.weight_params.scales]
        return {
            "has_bias": self.bias_values is not None,
            "has_residual": False,
            "x_zero_point": quant.zero_points[0],
            "w_zero_points": (0,),
            "multipliers": tuple(rules.multiplier(f, scale) for f in factors),
            "residual_zero_point": 0,
            "residual_multiplier": 1.0,
            **self.result.form(*BOUNDS[self.epilogue]),
        }

    def operands(self, x: Tensor, quant: QuantParams) -> list[Tensor]:
        """Return input, weight and, where there is one, the bias at the accumulator's scale."""
        if self.bias_values is None:
            return [x, self.weight]
        key = quant.scales[0]
        if key not in self._constants.bias:
            scales = np.array(self.weight_params.scales, np.float64) * key
            limit = rules.ACCUMULATOR_LIMIT
            found = np.clip(np.rint(self.bias_values.astype(np.float64) / scales), -limit, limit)
            self._constants.bias[key] = Tensor(
                found.astype(np.int32), "int32", name=f"{self.owner}.bias"
            )
        return [x, self.weight, self._constants.bias[key]]


class _Constants:
    """Biases by input scale; not part of what is saved, as they follow from what is."""

    def __init__(self) -> None:
        self.bias: dict[float, Tensor] = {}


class _Convolution(QuantizedProduct):
    def take(self, layer: Any) -> None:
        if layer.padding_mode != "zeros" or layer.conv_mode != "cross_correlation":
            raise AttrError(
                f"{self.owner}: only zeros pad an integer convolution, got padding_mode="
                f"{layer.padding_mode!r}, conv_mode={layer.conv_mode!r}"
            )
        top, left = pair(self.owner, "padding", layer.padding)
        self.geometry = {
            "stride": pair(self.owner, "stride", layer.stride, 1),
            "padding": (top, left, top, left),
            "dilation": pair(self.owner, "dilation", layer.dilation, 1),
            "groups": int(layer.groups),
        }

    def forward(self, inp: Tensor) -> Tensor:
        """Return the quantised convolution of quantised images."""
        quant, x = self.quantised(inp), source_of(inp)
        return emit(
            "conv2d_quantized", *self.operands(x, quant), **self.geometry,
            **self.product_attrs(quant),
        )  # fmt: skip


class _LinearMap(QuantizedProduct):
    def forward(self, inp: Tensor) -> Tensor:
        """Return the quantised product of quantised rows with the weight."""
        quant, x = self.quantised(inp), source_of(inp)
        lead = x.shape[:-1]
        if len(lead) == 0:
            x = x.reshape(1, x.shape[0])
        y = emit(
            "matmul_quantized", *self.operands(x, quant), transpose_a=False, transpose_b=True,
            **self.product_attrs(quant),
        )  # fmt: skip
        return y if lead else y.reshape(y.shape[-1])


class _Island(QuantizedModule):
    """Keeps an int8 weight, computes in floats, and quantises the result."""

    def __init__(self, owner: str, module: Any, weight: HostParams, result: HostParams) -> None:
        super().__init__(owner)
        self.weight_params, self.result = weight, result
        layer = module.layer() if hasattr(module, "layer") else module
        self.weight = Tensor(weight.stored(layer.weight.numpy()), weight.dtype.storage)
        self._parts = _Parts(module)

    @classmethod
    def from_qat_module(cls, qat_module: Any, owner: str = "") -> QuantizedModule:
        """Return the integer form of a layer in training form."""
        return cls(
            owner, qat_module, qat_module.host_weight(owner), qat_module.host_activation(owner)
        )

    def float_weight(self) -> Tensor:
        """Return the numbers that the weight stands for."""
        own = self.weight_params
        return emit(
            "dequantize", self.weight, scales=own.scales, zero_points=own.zero_points, axis=own.axis
        )


class _Parts:
    """The module in training form, which is no part of the network any more."""

    def __init__(self, module: Any) -> None:
        self.module = module


class _Transposed(_Island):
    def forward(self, inp: Tensor) -> Tensor:
        """Return the quantised transposed convolution."""
        module = self._parts.module
        self.quantised(inp)
        y = module.calc(dequantise(source_of(inp)), self.float_weight(), module.flat_bias())
        norm = module.norm()
        if norm is not None:
            y = norm(y)
        return quantise(activate(y, module.epilogue), self.result)


@register_quantized(qat.BatchMatMulActivation)
class BatchMatMulActivation(_Island):
    """``BatchMatMulActivation`` with an int8 weight, computed in floats."""

    def forward(self, inp: Tensor) -> Tensor:
        """Return the quantised product."""
        module = self._parts.module
        self.quantised(inp)
        y: Tensor = F.matmul(self.float_weight(), dequantise(source_of(inp)))
        y = y if module.bias is None else y + module.bias
        relu = module.nonlinear_mode == "relu"
        return quantise(activate(y, "relu" if relu else "identity"), self.result)


@register_quantized(qat.Conv2d)
class Conv2d(_Convolution):
    """``Conv2d`` in integers."""


@register_quantized(qat.ConvRelu2d)
class ConvRelu2d(_Convolution):
    """``ConvRelu2d`` in integers."""


@register_quantized(qat.ConvBn2d)
class ConvBn2d(_Convolution):
    """``ConvBn2d`` in integers, the normalisation folded in."""


@register_quantized(qat.ConvBnRelu2d)
class ConvBnRelu2d(_Convolution):
    """``ConvBnRelu2d`` in integers, the normalisation folded in."""


@register_quantized(qat.Linear)
class Linear(_LinearMap):
    """``Linear`` in integers."""


@register_quantized(qat.LinearRelu)
class LinearRelu(_LinearMap):
    """``LinearRelu`` in integers."""


@register_quantized(qat.LinearBn1d)
class LinearBn1d(_LinearMap):
    """``LinearBn1d`` in integers, the normalisation folded in."""


@register_quantized(qat.LinearBnRelu1d)
class LinearBnRelu1d(_LinearMap):
    """``LinearBnRelu1d`` in integers, the normalisation folded in."""


@register_quantized(qat.ConvTranspose2d)
class ConvTranspose2d(_Transposed):
    """``ConvTranspose2d`` with an int8 weight, computed in floats."""


@register_quantized(qat.ConvTransposeRelu2d)
class ConvTransposeRelu2d(_Transposed):
    """``ConvTransposeRelu2d`` with an int8 weight, computed in floats."""


@register_quantized(qat.ConvTransposeBn2d)
class ConvTransposeBn2d(_Transposed):
    """``ConvTransposeBn2d`` with an int8 weight, computed in floats."""


@register_quantized(qat.ConvTransposeBnRelu2d)
class ConvTransposeBnRelu2d(_Transposed):
    """``ConvTransposeBnRelu2d`` with an int8 weight, computed in floats."""
