"""Normalisation as modules, with running statistics for batch normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from ..errors import AttrError, ShapeError
from ..functional.arguments import extents, real_number, whole
from ..imperative.tensor import Parameter, Tensor
from ..shapes import format_shape
from . import init
from .module import Module


class _BatchNorm(Module):
    """What the batch normalisations have in common; ``BatchNorm2d`` tells of the arguments."""

    _ranks: tuple[int, ...] = ()
    _flat_state = True

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        freeze: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if freeze and not track_running_stats:
            raise AttrError(
                f"{type(self).__name__}: freeze needs running statistics, got "
                "track_running_stats=False"
            )
        name = type(self).__name__
        self.num_features = whole(name, "num_features", num_features, 0)
        self.eps = real_number(name, "eps", eps, 0.0)
        self.momentum = real_number(name, "momentum", momentum, 0.0, 1.0)
        self.affine = affine
        self.track_running_stats = track_running_stats
        self.freeze = freeze
        shape = (1, self.num_features, 1, 1)
        self.weight = Parameter(np.ones(shape, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(shape, np.float32)) if affine else None
        self.running_mean = Tensor(np.zeros(shape, np.float32)) if track_running_stats else None
        self.running_var = Tensor(np.ones(shape, np.float32)) if track_running_stats else None

    def reset_running_stats(self) -> None:
        """Set the running mean to zero and the running variance to one."""
        if self.running_mean is not None and self.running_var is not None:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)

    def reset_parameters(self) -> None:
        """Set running statistics, weight and bias to what they start from."""
        self.reset_running_stats()
        if self.weight is not None and self.bias is not None:
            init.ones_(self.weight)
            init.zeros_(self.bias)

    def _check_rank(self, inp: Tensor) -> None:
        if inp.ndim not in self._ranks:
            expected = " or ".join(map(str, self._ranks))
            raise ShapeError(
                f"{type(self).__name__}: input has the wrong rank, got shape "
                f"{format_shape(inp.shape)}, expected {expected} dimensions"
            )

    def forward(self, inp: Tensor) -> Tensor:
        """Return the normalised input, of its shape."""
        self._check_rank(inp)
        weight: Tensor | None = self.weight
        bias: Tensor | None = self.bias
        if self.freeze and weight is not None and bias is not None:
            weight, bias = weight.detach(), bias.detach()
        # Read in any case, so that a trace of a frozen module too follows train() and eval().
        training = self.training and not self.freeze
        return self._normalised(inp, weight, bias, training or self.running_mean is None)

    def _normalised(
        self, inp: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool
    ) -> Tensor:
        result: Tensor = F.nn.batch_norm(
            inp, self.running_mean, self.running_var, weight, bias,
            training=training, momentum=self.momentum, eps=self.eps,
        )  # fmt: skip
        return result

    def _module_info_string(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    """Normalise the channels of (N, C) or (N, C, L); see ``BatchNorm2d``.

    >>> BatchNorm1d(1)(Tensor([[1.0], [3.0]])).numpy().round(2).ravel()
    array([-1.,  1.], dtype=float32)
    """

    _ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalise the channels of (N, C, H, W).

    The batch's statistics serve in training, running ones otherwise. Weight, bias, running mean
    and running variance are (1, num_features, 1, 1). In training the running ones become
    momentum * running + (1 - momentum) * batch, with the unbiased variance.

    Args:
        num_features: count of channels.
        eps: added to the variance.
        momentum: what is kept of the running statistics.
        affine: whether weight and bias are learned.
        track_running_stats: whether running statistics are kept; without them, the batch's are
            always used.
        freeze: uses the running statistics in training too, and lets no gradient into weight and
            bias.

    >>> BatchNorm2d(1)(Tensor([[[[1.0, 3.0]]]])).numpy().round(2).ravel()
    array([-1.,  1.], dtype=float32)
    """

    _ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Normalise the channels of (N, C, D, H, W); see ``BatchNorm2d``.

    >>> from tianyuan import functional as F
    >>> BatchNorm3d(2)(F.ones((1, 2, 2, 2, 2))).shape
    (1, 2, 2, 2, 2)
    """

    _ranks = (5,)


class SyncBatchNorm(_BatchNorm):
    """Normalise channels by the statistics of the batches of all processes of a group.

    Arguments as for ``BatchNorm2d``; inputs are (N, C) to (N, C, D, H, W).

    Args:
        group: the processes, ``distributed.WORLD`` if None.

    >>> SyncBatchNorm(1)(Tensor([[1.0], [3.0]])).numpy().round(2).ravel()
    array([-1.,  1.], dtype=float32)
    """

    _ranks = (2, 3, 4, 5)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        freeze: bool = False,
        group: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, freeze, **kwargs)
        self.group = group

    def _normalised(
        self, inp: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool
    ) -> Tensor:
        mean: Any = self.running_mean
        var: Any = self.running_var
        result: Tensor = F.nn.sync_batch_norm(
            inp, mean, var, weight, bias,
            training=training, momentum=self.momentum, eps=self.eps, group=self.group,
        )  # fmt: skip
        return result


class LayerNorm(Module):
    """Normalise over the last axes; weight and bias have their shape.

    Args:
        normalized_shape: extents of the last axes; an int for one.
        eps: added to the variance.
        affine: whether weight and bias are learned.

    >>> LayerNorm(2)(Tensor([[1.0, 3.0]])).numpy().round(2)
    array([[-1.,  1.]], dtype=float32)
    """

    _flat_state = True

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        affine: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        name = type(self).__name__
        self.normalized_shape = extents(name, "normalized_shape", normalized_shape)
        self.eps = real_number(name, "eps", eps, 0.0)
        self.affine = affine
        self.weight = Parameter(np.ones(self.normalized_shape, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(self.normalized_shape, np.float32)) if affine else None

    def reset_parameters(self) -> None:
        """Set weight to one and bias to zero."""
        _reset(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input, of its shape."""
        result: Tensor = F.nn.layer_norm(
            x, self.normalized_shape, self.affine, self.weight, self.bias, self.eps
        )
        return result

    def _module_info_string(self) -> str:
        return f"normalized_shape={self.normalized_shape}, eps={self.eps}, affine={self.affine}"


class RMSNorm(Module):
    """Divide by the root mean square over the last axes (Zhang and Sennrich 2019).

    y = x / sqrt(mean(x^2) + eps) * weight, with a weight of the last axes' shape.

    Args:
        normalized_shape: extents of the last axes; an int for one.
        eps: added to the mean.
        affine: whether a weight is learned.

    >>> RMSNorm(2, eps=0.0)(Tensor([[3.0, 4.0]])).numpy().round(3)
    array([[0.849, 1.131]], dtype=float32)
    """

    _flat_state = True

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-6, affine: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        name = type(self).__name__
        self.normalized_shape = extents(name, "normalized_shape", normalized_shape)
        self.eps = real_number(name, "eps", eps, 0.0)
        self.affine = affine
        self.weight = Parameter(np.ones(self.normalized_shape, np.float32)) if affine else None

    def reset_parameters(self) -> None:
        """Set the weight to one."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input, of its shape.

        Raises:
            ShapeError: where the input does not end in the normalised shape.
        """
        last = len(self.normalized_shape)
        if tuple(map(int, x.shape[-last:])) != self.normalized_shape:
            raise ShapeError(
                f"RMSNorm: input does not fit, got {format_shape(x.shape)}, expected it to end in "
                f"{format_shape(self.normalized_shape)}"
            )
        axes = tuple(range(x.ndim - last, x.ndim))
        scale = F.sqrt(F.mean(x * x, axes, keepdims=True) + self.eps)
        result: Tensor = x / scale
        return result if self.weight is None else result * self.weight

    def _module_info_string(self) -> str:
        return f"normalized_shape={self.normalized_shape}, eps={self.eps}, affine={self.affine}"


class GroupNorm(Module):
    """Normalise each group of channels of each sample of (N, C, ...).

    Args:
        num_groups: into how many groups the channels are split.
        num_channels: count of channels, a multiple of ``num_groups``.
        eps: added to the variance.
        affine: whether weight and bias, (num_channels,), are learned.

    Raises:
        AttrError: where the groups do not divide the channels.

    >>> GroupNorm(1, 2)(Tensor([[1.0, 3.0]])).numpy().round(2)
    array([[-1.,  1.]], dtype=float32)
    """

    _flat_state = True

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        num_groups = whole("GroupNorm", "num_groups", num_groups)
        num_channels = whole("GroupNorm", "num_channels", num_channels, 0)
        if num_groups < 1 or num_channels % num_groups:
            raise AttrError(
                f"GroupNorm: num_groups must divide the channels, got {num_groups} groups for "
                f"{num_channels} channels, "
                "expected a divisor"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = real_number("GroupNorm", "eps", eps, 0.0)
        self.affine = affine
        self.weight = Parameter(np.ones(num_channels, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(num_channels, np.float32)) if affine else None

    def reset_parameters(self) -> None:
        """Set weight to one and bias to zero."""
        _reset(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input, of its shape."""
        result: Tensor = F.nn.group_norm(
            x, self.num_groups, self.affine, self.weight, self.bias, self.eps
        )
        return result

    def _module_info_string(self) -> str:
        return (
            f"groups={self.num_groups}, channels={self.num_channels}, eps={self.eps}, "
            f"affine={self.affine}"
        )


class InstanceNorm(Module):
    """Normalise each channel of each sample of (N, C, ...).

    Args:
        num_channels: count of channels.
        eps: added to the variance.
        affine: whether weight and bias, (num_channels,), are learned.

    >>> InstanceNorm(1)(Tensor([[[[1.0, 3.0]]]])).numpy().round(2).ravel()
    array([-1.,  1.], dtype=float32)
    """

    _flat_state = True

    def __init__(
        self, num_channels: int, eps: float = 1e-5, affine: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.num_channels = whole("InstanceNorm", "num_channels", num_channels, 0)
        self.eps = real_number("InstanceNorm", "eps", eps, 0.0)
        self.affine = affine
        self.weight = Parameter(np.ones(self.num_channels, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(self.num_channels, np.float32)) if affine else None

    def reset_parameters(self) -> None:
        """Set weight to one and bias to zero."""
        _reset(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input, of its shape."""
        result: Tensor = F.nn.instance_norm(x, self.affine, self.weight, self.bias, self.eps)
        return result

    def _module_info_string(self) -> str:
        return f"channels={self.num_channels}, eps={self.eps}, affine={self.affine}"


class GeneralNorm(Module):
    """Normalise over chosen axes; weight and bias have their extents.

    Args:
        normalized_shape: extents of the axes; needed where ``affine``.
        normalized_axis: the axes, as one int or several.
        eps: added to the variance.
        affine: whether weight and bias are learned.

    Raises:
        AttrError: where there are not as many extents as axes.

    >>> GeneralNorm(2, 1)(Tensor([[1.0, 3.0]])).numpy().round(2)
    array([[-1.,  1.]], dtype=float32)
    """

    _flat_state = True

    def __init__(
        self,
        normalized_shape: Any = None,
        normalized_axis: Any = 0,
        eps: float = 1e-5,
        affine: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.normalized_axis = extents("GeneralNorm", "normalized_axis", normalized_axis, None)
        self.normalized_shape: tuple[Any, ...] = (None,)
        if normalized_shape is not None:
            self.normalized_shape = extents("GeneralNorm", "normalized_shape", normalized_shape)
        if affine and (
            None in self.normalized_shape or len(self.normalized_shape) != len(self.normalized_axis)
        ):
            raise AttrError(
                "GeneralNorm: normalized_shape does not fit the axes, got "
                f"{normalized_shape} for {normalized_axis}, expected an extent for each axis"
            )
        self.eps = real_number("GeneralNorm", "eps", eps, 0.0)
        self.affine = affine
        self.weight = Parameter(np.ones(self.normalized_shape, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(self.normalized_shape, np.float32)) if affine else None

    def reset_parameters(self) -> None:
        """Set weight to one and bias to zero."""
        _reset(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input, of its shape."""
        result: Tensor = F.nn.general_norm(
            x, self.normalized_axis, self.affine, self.weight, self.bias, self.eps
        )
        return result

    def _module_info_string(self) -> str:
        return (
            f"normalized_shape={self.normalized_shape}, "
            f"normalized_axis={self.normalized_axis}, eps={self.eps}, affine={self.affine}"
        )


class LocalResponseNorm(Module):
    """Divide by (k + alpha * sum of squares over neighbouring channels)^beta.

    Args:
        kernel_size: how many channels are neighbours, odd.

    >>> LocalResponseNorm(1, k=0.0, alpha=1.0, beta=0.5)(Tensor([[[[2.0]]]])).numpy().ravel()
    array([1.], dtype=float32)
    """

    def __init__(
        self,
        kernel_size: int = 5,
        k: float = 2.0,
        alpha: float = 1e-4,
        beta: float = 0.75,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        name = "LocalResponseNorm"
        self.kernel_size = whole(name, "kernel_size", kernel_size, 1)
        if self.kernel_size % 2 == 0:
            raise AttrError(f"{name}: kernel_size must be odd, got {kernel_size}, expected odd")
        self.k = real_number(name, "k", k)
        self.alpha = real_number(name, "alpha", alpha)
        self.beta = real_number(name, "beta", beta)

    def forward(self, inp: Tensor) -> Tensor:
        """Return the normalised (N, C, H, W)."""
        result: Tensor = F.nn.local_response_norm(
            inp, self.kernel_size, self.k, self.alpha, self.beta
        )
        return result

    def _module_info_string(self) -> str:
        return f"kernel_size={self.kernel_size}, k={self.k}, alpha={self.alpha}, beta={self.beta}"


def _reset(weight: Tensor | None, bias: Tensor | None) -> None:
    if weight is not None and bias is not None:
        init.ones_(weight)
        init.zeros_(bias)
