"""What a tensor tells of itself, and the few verbs that MegEngine offers as its methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..op import QuantParams
from ..shapes import Shape
from .arguments import given
from .arithmetic import Arithmetic

if TYPE_CHECKING:
    from .tensor import Tensor


class Methods(Arithmetic):
    """Facts of a tensor, and verbs that only rearrange, reduce, convert or replace its value."""

    __slots__ = ()

    @property
    def shape(self) -> Shape:
        """Extents; inside a trace some may be symbols that behave as ints.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([[1.0, 2.0]]).shape
            (1, 2)
        """
        return self._spec.shape

    @property
    def dtype(self) -> np.dtype:
        """numpy dtype of the elements.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([1, 2]).dtype
            dtype('int32')
        """
        return self._spec.dtype

    @property
    def device(self) -> str:
        """Canonical name of the device it lies on.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([1.0], device="cpux").device
            'cpu'
        """
        return self._spec.device

    @property
    def ndim(self) -> int:
        """Number of dimensions.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([[1.0, 2.0]]).ndim
            2
        """
        return len(self._spec.shape)

    @property
    def size(self) -> int:
        """Number of elements.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([[1.0, 2.0]]).size
            2
        """
        return self._spec.size

    @property
    def itemsize(self) -> int:
        """Bytes of one element.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([1.0]).itemsize
            4
        """
        return self._spec.dtype.itemsize

    @property
    def qparams(self) -> QuantParams | None:
        """Quantisation parameters, or None.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([1.0]).qparams is None
            True
        """
        return self._spec.quant

    @property
    def format(self) -> str:
        """Label ``default``, ``nchw`` or ``nhwc``; shape, values and indices do not follow it.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([1.0]).format
            'default'
        """
        label: str = self.__dict__.get("format", "default")
        return label

    @property
    def T(self) -> Tensor:  # noqa: N802
        """This tensor with its axes reversed.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([[1.0, 2.0]]).T.shape
            (2, 1)
        """
        return self.transpose()

    @property
    def requires_grad(self) -> bool:
        """Not offered: gradients are asked for by ``GradManager.attach``.

        Raises:
            AttributeError: always, also where it is set or deleted.

        Example:
            >>> import tianyuan as ty
            >>> hasattr(ty.Tensor([1.0]), "requires_grad")
            False
        """
        raise AttributeError("requires_grad: not offered, use autodiff.GradManager.attach")

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        raise AttributeError("requires_grad: not offered, use autodiff.GradManager.attach")

    def _reset(self, other: Any) -> None:
        raise NotImplementedError

    def astype(self, dtype: Any) -> Tensor:
        """Return this tensor converted to another dtype.

        Of a quantised tensor, floats are the numbers that it stands for. A dtype with a scale,
        such as ``functional.quantized.qint8(scale)``, quantises.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([1.7]).astype("int32").tolist()
            [1]
        """
        if self._spec.quant is None and not hasattr(dtype, "storage"):
            return cast("Tensor", self.cast(dtype))
        from ..functional.quantized_dtype import converted

        return converted(cast("Tensor", self), dtype)

    def reshape(self, *shape: Any) -> Tensor:
        """Return this tensor in another shape; one extent may be -1.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([1.0, 2.0, 3.0, 4.0]).reshape(2, -1).shape
            (2, 2)
        """
        from ..functional import reshape

        return reshape(cast("Tensor", self), given(shape))

    def transpose(self, *pattern: Any) -> Tensor:
        """Return this tensor with permuted axes, reversed if none are given.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([[1.0, 2.0]]).transpose(1, 0).tolist()
            [[1.0], [2.0]]
        """
        from ..functional import transpose

        axes = given(pattern) if pattern else tuple(reversed(range(self.ndim)))
        return transpose(cast("Tensor", self), axes)

    def flatten(self, start_axis: int = 0, end_axis: int = -1) -> Tensor:
        """Return this tensor with a run of axes merged into one.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([[1.0], [2.0]]).flatten().shape
            (2,)
        """
        from ..functional import flatten

        return flatten(cast("Tensor", self), start_axis, end_axis)

    def sum(self, axis: Any = None, keepdims: bool = False, *, keepdim: bool = False) -> Tensor:
        """Return the sum over axes, over all of them if None; ``keepdim`` is ``keepdims``.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([[1.0, 2.0], [3.0, 4.0]]).sum(axis=0).tolist()
            [4.0, 6.0]
        """
        from ..functional import sum

        return sum(cast("Tensor", self), axis, keepdims or keepdim)

    def prod(self, axis: Any = None, keepdims: bool = False, *, keepdim: bool = False) -> Tensor:
        """Return the product over axes, over all of them if None.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([[1.0, 2.0], [3.0, 4.0]]).prod().item()
            24.0
        """
        from ..functional import prod

        return prod(cast("Tensor", self), axis, keepdims or keepdim)

    def min(self, axis: Any = None, keepdims: bool = False, *, keepdim: bool = False) -> Tensor:
        """Return the minimum over axes, over all of them if None.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([[1.0, 2.0], [3.0, 4.0]]).min(axis=1, keepdims=True).tolist()
            [[1.0], [3.0]]
        """
        from ..functional import min

        return min(cast("Tensor", self), axis, keepdims or keepdim)

    def max(self, axis: Any = None, keepdims: bool = False, *, keepdim: bool = False) -> Tensor:
        """Return the maximum over axes, over all of them if None.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([[1.0, 2.0], [3.0, 4.0]]).max(axis=1).tolist()
            [2.0, 4.0]
        """
        from ..functional import max

        return max(cast("Tensor", self), axis, keepdims or keepdim)

    def mean(self, axis: Any = None, keepdims: bool = False, *, keepdim: bool = False) -> Tensor:
        """Return the mean over axes, over all of them if None; integers give float32.

        Example:
            >>> import tianyuan as ty
            >>> ty.Tensor([1, 2]).mean().item()
            1.5
        """
        from ..functional import mean

        return mean(cast("Tensor", self), axis, keepdims or keepdim)

    def set_value(self, value: Any) -> None:
        """Give this tensor a new value of the same shape, in its own dtype.

        Raises:
            ShapeError: where the shape differs.

        Example:
            >>> import tianyuan as ty
            >>> x = ty.Tensor([1.0, 2.0])
            >>> x.set_value([3, 4])
            >>> x.tolist()
            [3.0, 4.0]
        """
        from .tensor import Tensor

        this = cast("Tensor", self)
        new = value if isinstance(value, Tensor) else Tensor(value, this.dtype, this.device)
        self._reset(new.cast(this.dtype))

    def reset_zero(self) -> None:
        """Set every element to zero.

        Example:
            >>> import tianyuan as ty
            >>> x = ty.Tensor([1.0, 2.0])
            >>> x.reset_zero()
            >>> x.tolist()
            [0.0, 0.0]
        """
        self._reset(self.full(self.shape, 0))
