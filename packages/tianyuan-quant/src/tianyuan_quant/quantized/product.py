"""Compute convolutions and linear maps in integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.errors import AttrError, ShapeError
from tianyuan.functional.arguments import pair, whole
from tianyuan.functional.conv import plain_weight
from tianyuan.functional.quantized import spread_input, turned_weight
from tianyuan.op import QuantParams
from tianyuan.ops import quantized_rules as rules

from .. import qat
from ..checks import check_finite
from ..params import HostParams, host_params
from ..qat.product import BOUNDS
from ..registration import register_quantized
from .module import QuantizedModule, emit, source_of


class QuantizedProduct(QuantizedModule):
    """Base of layers with an int8 weight, given by ``fill`` or by their training form.

    >>> from tianyuan.functional.quantized import qint8
    >>> layer = Linear(qint8(0.5))
    >>> layer.fill([[2.0, -1.0]], None, qint8(0.25))
    >>> isinstance(layer, QuantizedProduct), layer.stored().tolist()
    (True, [[8, -4]])
    """

    epilogue = "identity"
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
                f"with zero point {params.zero_points[0]}"
            )
        biases = None if bias is None else bias.numpy().reshape(-1)
        check_finite(self.owner, "its layer", weight, *(() if biases is None else (biases,)))
        channels = weight.shape[1 if weight.ndim == 3 else 0] if weight.ndim > 1 else 0
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
            AttrError: where there are none yet.
        """
        if self.weight is None:
            raise AttrError(f"{self.owner}: it has no weight yet, see fill")
        return self.weight

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


class _Convolution(QuantizedProduct):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        dtype: Any = None,
        padding_mode: str = "zeros",
        owner: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(owner, dtype, **kwargs)
        self.in_channels = whole(self.owner, "in_channels", in_channels, 1)
        self.out_channels = whole(self.owner, "out_channels", out_channels, 1)
        self.kernel_size = pair(self.owner, "kernel_size", kernel_size, 1)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups, self.output_padding = whole(self.owner, "groups", groups, 1), 0
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise AttrError(
                f"{self.owner}: groups do not divide the channels, got {groups} for {in_channels} "
                f"and {out_channels}"
            )
        self.conv_mode, self.padding_mode = conv_mode, padding_mode
        self.take(self)

    def take(self, layer: Any) -> None:
        if layer.padding_mode != "zeros" or layer.conv_mode != "cross_correlation":
            raise AttrError(
                f"{self.owner}: only zeros pad an integer convolution, got padding_mode="
                f"{layer.padding_mode!r}, conv_mode={layer.conv_mode!r}"
            )
        top, left = pair(self.owner, "padding", layer.padding)
        self.geometry: dict[str, Any] = {
            "stride": pair(self.owner, "stride", layer.stride, 1),
            "padding": (top, left, top, left),
            "dilation": pair(self.owner, "dilation", layer.dilation, 1),
            "groups": int(layer.groups),
        }

    def arranged(self, weight: Tensor) -> Tensor:
        plain = plain_weight(self.owner, weight, self.geometry["groups"], 4)
        self.check_weight(plain, "out_channels", "in_channels")
        return plain

    def check_weight(self, plain: Tensor, first: str, second: str) -> None:
        """Raise ShapeError where a weight is not that of the layer which was asked for."""
        if not hasattr(self, first):  # made of a training form, whose weight fits
            return
        wanted = (getattr(self, first), getattr(self, second) // self.groups, *self.kernel_size)
        if tuple(plain.shape) != wanted:
            raise ShapeError(
                f"{self.owner}: weight has the wrong shape, got {tuple(plain.shape)}, expected "
                f"{wanted}"
            )

    def forward(self, inp: Tensor) -> Tensor:
        """Return the quantised convolution of quantised images."""
        quant, x = self.quantised(inp), source_of(inp)
        return emit(
            "conv2d_quantized", *self.operands(x, quant), **self.geometry,
            **self.product_attrs(quant),
        )  # fmt: skip


class _Transposed(_Convolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        dtype: Any = None,
        owner: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, conv_mode,
            compute_mode, dtype, owner=owner, **kwargs,
        )  # fmt: skip
        self.output_padding = output_padding
        self.take(self)

    def take(self, layer: Any) -> None:
        super().take(layer)
        own = self.geometry
        self.places = (
            own["stride"], own["padding"][:2], own["dilation"],
            pair(self.owner, "output_padding", layer.output_padding),
        )  # fmt: skip

    def arranged(self, weight: Tensor) -> Tensor:
        plain = plain_weight(self.owner, weight, self.geometry["groups"], 4)
        self.check_weight(plain, "in_channels", "out_channels")
        return turned_weight(self.owner, plain, self.geometry["groups"])

    def forward(self, inp: Tensor) -> Tensor:
        """Return the quantised transposed convolution, that of a spread input."""
        quant, x = self.quantised(inp), source_of(inp)
        window = self.stored().shape[2:]
        spread, margins = spread_input(self.owner, x, quant, window, self.places)
        return emit(
            "conv2d_quantized", *self.operands(spread, quant), stride=(1, 1), padding=margins,
            dilation=self.geometry["dilation"], groups=self.geometry["groups"],
            **self.product_attrs(quant),
        )  # fmt: skip


class _LinearMap(QuantizedProduct):
    def __init__(self, dtype: Any = None, owner: str = "", **kwargs: Any) -> None:
        super().__init__(owner, dtype, **kwargs)

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


@register_quantized(qat.BatchMatMulActivation)
class BatchMatMulActivation(QuantizedProduct):
    """One matrix for each item of a batch, in integers; one scale for all of them.

    Args:
        batch, in_features, out_features, bias, nonlinear_mode: as for the float module.
        dtype: how the result is quantised.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = BatchMatMulActivation(1, 2, 1, dtype=qint8(0.5))
    >>> layer.fill([[[1.0, 2.0]]], [[1.0]], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[1.0], [3.0]]]))).tolist()
    [[[16]]]
    """

    def __init__(
        self,
        batch: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        nonlinear_mode: str = "identity",
        dtype: Any = None,
        owner: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(owner, dtype, **kwargs)
        self.batch, self.in_features, self.out_features = batch, in_features, out_features
        self.epilogue = str(nonlinear_mode).lower()
        if self.epilogue not in ("identity", "relu"):
            raise AttrError(
                f"{self.owner}: unknown nonlinear_mode, got {nonlinear_mode!r}, expected identity "
                "or relu"
            )

    @classmethod
    def from_qat_module(cls, qat_module: Any, owner: str = "") -> QuantizedModule:
        """Return the integer form of a layer in training form."""
        found = cls(
            qat_module.batch, qat_module.in_features, qat_module.out_features,
            qat_module.bias is not None, qat_module.nonlinear_mode,
            qat_module.host_activation(owner), owner,
        )  # fmt: skip
        found.fill(qat_module.weight, qat_module.bias, qat_module.host_weight(owner))
        return found

    def forward(self, inp: Tensor) -> Tensor:
        """Map quantised (batch, in_features, n) to (batch, out_features, n)."""
        quant, x = self.quantised(inp), source_of(inp)
        # Channels of a product are its columns, so the transposed product is computed.
        y = emit(
            "matmul_quantized", *self.operands(x, quant), transpose_a=True, transpose_b=True,
            **self.product_attrs(quant),
        )  # fmt: skip
        result: Tensor = F.transpose(y, (0, 2, 1))
        return result


@register_quantized(qat.Conv2d)
class Conv2d(_Convolution):
    """``Conv2d`` in integers.

    Args:
        dtype: how the result is quantised, such as ``functional.quantized.qint8(scale)``.
        others: as for ``module.Conv2d``; only zeros pad. There is a bias if ``fill`` gives one.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = Conv2d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[[2.0]]]], [1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[1.0, 3.0]]]]))).tolist()
    [[[[6, 14]]]]
    """


@register_quantized(qat.ConvRelu2d)
class ConvRelu2d(_Convolution):
    """``ConvRelu2d`` in integers; arguments as for ``Conv2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvRelu2d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[[2.0]]]], [-1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[-1.0, 3.0]]]]))).tolist()
    [[[[0, 10]]]]
    """

    epilogue = "relu"


@register_quantized(qat.ConvBn2d)
class ConvBn2d(_Convolution):
    """``ConvBn2d`` in integers, the normalisation folded in; arguments as for ``Conv2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvBn2d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[[2.0]]]], [-1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[-1.0, 3.0]]]]))).tolist()
    [[[[-6, 10]]]]
    """


@register_quantized(qat.ConvBnRelu2d)
class ConvBnRelu2d(_Convolution):
    """``ConvBnRelu2d`` in integers, the normalisation folded in; arguments as for ``Conv2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvBnRelu2d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[[2.0]]]], [-1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[-1.0, 3.0]]]]))).tolist()
    [[[[0, 10]]]]
    """

    epilogue = "relu"


@register_quantized(qat.Linear)
class Linear(_LinearMap):
    """``Linear`` in integers.

    Args:
        dtype: how the result is quantised, such as ``functional.quantized.qint8(scale)``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = Linear(qint8(0.5))
    >>> layer.fill([[2.0, -1.0]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[1.0, 3.0]]))).tolist()
    [[-2]]
    """


@register_quantized(qat.LinearRelu)
class LinearRelu(_LinearMap):
    """``LinearRelu`` in integers; arguments as for ``Linear``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = LinearRelu(qint8(0.5))
    >>> layer.fill([[2.0, -1.0]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[1.0, 3.0]]))).tolist()
    [[0]]
    """

    epilogue = "relu"


@register_quantized(qat.LinearBn1d)
class LinearBn1d(_LinearMap):
    """``LinearBn1d`` in integers, the normalisation folded in; arguments as for ``Linear``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = LinearBn1d(qint8(0.5))
    >>> layer.fill([[2.0, -1.0]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[1.0, 3.0]]))).tolist()
    [[-2]]
    """


@register_quantized(qat.LinearBnRelu1d)
class LinearBnRelu1d(_LinearMap):
    """``LinearBnRelu1d`` in integers, the normalisation folded in; as ``Linear``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = LinearBnRelu1d(qint8(0.5))
    >>> layer.fill([[2.0, -1.0]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[1.0, 3.0]]))).tolist()
    [[0]]
    """

    epilogue = "relu"


@register_quantized(qat.ConvTranspose2d)
class ConvTranspose2d(_Transposed):
    """``ConvTranspose2d`` in integers, exactly: a convolution of the spread input.

    Args:
        dtype: how the result is quantised, such as ``functional.quantized.qint8(scale)``.
        others: as for ``module.ConvTranspose2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvTranspose2d(1, 1, (1, 2), (1, 2), dtype=qint8(0.5))
    >>> layer.fill([[[[1.0, 2.0]]]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[1.0, 3.0]]]]))).tolist()
    [[[[2, 4, 6, 12]]]]
    """


@register_quantized(qat.ConvTransposeRelu2d)
class ConvTransposeRelu2d(_Transposed):
    """``ConvTransposeRelu2d`` in integers; arguments as for ``ConvTranspose2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvTransposeRelu2d(1, 1, (1, 2), (1, 2), dtype=qint8(0.5))
    >>> layer.fill([[[[1.0, 2.0]]]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[-1.0, 3.0]]]]))).tolist()
    [[[[0, 0, 6, 12]]]]
    """

    epilogue = "relu"


@register_quantized(qat.ConvTransposeBn2d)
class ConvTransposeBn2d(_Transposed):
    """``ConvTransposeBn2d`` in integers, the normalisation folded in; as ``ConvTranspose2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvTransposeBn2d(1, 1, (1, 2), (1, 2), dtype=qint8(0.5))
    >>> layer.fill([[[[1.0, 2.0]]]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[-1.0, 3.0]]]]))).tolist()
    [[[[-2, -4, 6, 12]]]]
    """


@register_quantized(qat.ConvTransposeBnRelu2d)
class ConvTransposeBnRelu2d(_Transposed):
    """``ConvTransposeBnRelu2d`` in integers, the normalisation folded in.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvTransposeBnRelu2d(1, 1, (1, 2), (1, 2), dtype=qint8(0.5))
    >>> layer.fill([[[[1.0, 2.0]]]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[-1.0, 3.0]]]]))).tolist()
    [[[[0, 0, 6, 12]]]]
    """

    epilogue = "relu"
