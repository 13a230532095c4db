"""Keep an integer weight with its scales and bias, as convolutions and linear maps share it."""

from __future__ import annotations

from typing import Any

import numpy as np
from tianyuan import Tensor
from tianyuan.errors import AttrError, ShapeError
from tianyuan.op import QuantParams
from tianyuan.ops import quantized_rules as rules

from ..checks import check_finite
from ..params import HostParams, host_params
from ..qat.product import BOUNDS, product_flops
from .module import QuantizedModule


class QuantizedProduct(QuantizedModule):
    """Base of layers with an int8 weight, given by ``fill`` or by their training form.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .linear import Linear
    >>> layer = Linear(qint8(0.5))
    >>> layer.fill([[2.0, -1.0]], None, qint8(0.25))
    >>> isinstance(layer, QuantizedProduct), layer.stored().tolist()
    (True, [[8, -4]])
    """

    epilogue = "identity"
    channel_axis = 0  # of the weight
    weight: Tensor | None = None
    weight_scale: Tensor | None = None
    bias: Tensor | None = None
    bias_values: np.ndarray | None = None
    weight_params: HostParams

    @classmethod
    def from_qat_module(cls, qat_module: Any, owner: str = "") -> QuantizedModule:
        """Return the integer form of a layer in training form."""
        found = cls.__new__(cls)
        QuantizedModule.__init__(found, owner, qat_module.host_activation(owner))
        found.take(qat_module.layer())
        weight, bias = qat_module.folded()
        found.store(weight.numpy(), bias, qat_module.host_weight(owner))
        found.epilogue = qat_module.epilogue
        return found

    def take(self, layer: Any) -> None:
        """Take the geometry of the float layer."""

    def arranged(self, weight: Tensor) -> Tensor:
        """Return a weight of the float layer with output channels first."""
        return weight

    def fill(self, weight: Any, bias: Any, qparams: Any) -> None:
        """Quantise and keep a float weight, shaped as the float layer has it, and a float bias.

        Args:
            weight, bias: tensors or arrays; the bias may be None.
            qparams: how the weight is quantised: QParams, or ``qint8_narrow(scale)`` or the like;
                scales per channel go along the output channels.

        Raises:
            AttrError: where the weight would not be signed and symmetric, or is not finite.
            ShapeError: where weight, bias and scales do not fit each other and the layer.
        """
        given = weight if isinstance(weight, Tensor) else Tensor(weight)
        values = None if bias is None else bias if isinstance(bias, Tensor) else Tensor(bias)
        self.store(self.arranged(given).numpy(), values, host_params(qparams, self.owner))

    def store(self, weight: np.ndarray, bias: Tensor | None, params: HostParams) -> None:
        """Quantise and keep a weight with output channels first, and a bias."""
        if params.dtype.storage != "int8" or any(params.zero_points):
            raise AttrError(
                f"{self.owner}: weights must be signed and symmetric, got {params.dtype.name} "
                f"with zero point {params.zero_points[0]}, expected int8 with 0"
            )
        biases = None if bias is None else bias.numpy().reshape(-1)
        check_finite(self.owner, "its layer", weight, *(() if biases is None else (biases,)))
        channels = weight.shape[self.channel_axis] if weight.ndim > 1 else 0
        count = channels if biases is None else biases.size
        if not channels or len(params.scales) not in (1, channels) or count != channels:
            raise ShapeError(
                f"{self.owner}: weight, scales and bias do not fit each other, got shape "
                f"{weight.shape}, {len(params.scales)} scales and {count} biases, "
                "expected output channels first, one scale or as many, and as many biases"
            )
        self.weight = Tensor(params.stored(weight), "int8")
        self.bias_values = biases
        self.weight_params = params
        self.weight_scale = params.tensors()[0]
        # Copies for state dicts: values of tensors are not known while a trace is recorded.
        self.bias = None if self.bias_values is None else Tensor(self.bias_values)
        self._constants = _Constants()

    def _module_info_string(self) -> str:
        """Return the weight's shape, and how the result is quantised."""
        shape = "" if self.weight is None else f"weight={tuple(self.weight.shape)}, "
        return shape + super()._module_info_string()

    def _after_loading(self) -> None:
        """Compute with scales and bias that a state dict has brought."""
        super()._after_loading()
        if self.weight_scale is None:
            return
        zero = Tensor(self.weight_params.zero_points, "int32")
        self.weight_params = self.weight_params.replaced(self.weight_scale, zero, self.owner)
        self.bias_values = None if self.bias is None else self.bias.numpy()
        self._constants = _Constants()

    def stored(self) -> Tensor:
        """Return the integers of the weight.

        Raises:
            AttrError: where there are none yet, or they were set without their scales.
        """
        if self.weight is None or self.weight_scale is None:
            missing = "weight" if self.weight is None else "scale for its weight"
            raise AttrError(
                f"{self.owner}: it has no {missing} yet, got None, expected "
                "fill(weight, bias, qparams)"
            )
        return self.weight

    def _count_flops(self, inputs: Any, outputs: Any) -> int:
        """Count the product; what bounds and rounds the result comes with it."""
        return product_flops(self.stored().shape[self.channel_axis :], self.bias, outputs)

    def product_attrs(self, quant: QuantParams) -> dict[str, Any]:
        """Return the attributes that both products share."""
        self.stored()
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
        weight = self.stored()
        if self.bias_values is None:
            return [x, weight]
        key = quant.scales[0]
        if key not in self._constants.bias:
            scales = np.array(self.weight_params.scales, np.float64) * key
            limit = rules.ACCUMULATOR_LIMIT
            found = np.clip(np.rint(self.bias_values.astype(np.float64) / scales), -limit, limit)
            self._constants.bias[key] = Tensor(
                found.astype(np.int32), "int32", name=f"{self.owner}.bias"
            )
        return [x, weight, self._constants.bias[key]]


class _Constants:
    """Biases by input scale; not part of what is saved, as they follow from what is."""

    def __init__(self) -> None:
        self.bias: dict[float, Tensor] = {}
