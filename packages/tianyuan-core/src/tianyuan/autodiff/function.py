"""Function: an op with a gradient that the user writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..dtypes import is_float
from ..errors import GradError
from ..imperative.state import data_of, state
from ..imperative.tensor import Tensor, wrap
from ..op import GradContext


class Function:
    """Base of user-defined gradients; an instance serves one call.

    Example:
        >>> import tianyuan as ty, tianyuan.functional as F
        >>> from tianyuan.autodiff import Function, GradManager
        >>> class Sigmoid(Function):
        ...     def forward(self, x):
        ...         self.y = 1 / (1 + F.exp(-x))
        ...         return self.y
        ...     def backward(self, dy):
        ...         return dy * self.y * (1 - self.y)
        >>> x = ty.Parameter([0.0])
        >>> with GradManager().attach(x) as gm:
        ...     gm.backward(Sigmoid()(x))
        >>> x.grad.tolist()
        [0.25]
    """

    def __init__(self) -> None:
        self._used = False

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Compute the outputs; what it computes is not recorded for gradients.

        Raises:
            NotImplementedError: unless a subclass defines it.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.autodiff import Function
            >>> class Double(Function):
            ...     def forward(self, x):
            ...         return x * 2
            >>> Double()(ty.Tensor([1.0])).tolist()
            [2.0]
        """
        raise NotImplementedError(f"{type(self).__name__}.forward: not defined")

    def backward(self, *output_grads: Tensor | None) -> Tensor | Sequence[Tensor | None] | None:
        """Return one gradient per input (None where there is none) for those of the outputs.

        A gradient of another float dtype than its input's is converted to that.

        Raises:
            NotImplementedError: unless a subclass defines it.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.autodiff import Function, grad
            >>> class Straight(Function):
            ...     def forward(self, x):
            ...         return round(x)
            ...     def backward(self, dy):
            ...         return dy
            >>> grad(lambda x: Straight()(x))(ty.Tensor(1.4)).item()
            1.0
        """
        raise NotImplementedError(f"{type(self).__name__}.backward: not defined")

    def __call__(self, *inputs: Tensor) -> Any:
        """Run forward and record backward.

        Raises:
            GradError: where the instance has served a call before, or an input is no Tensor.
        """
        name = type(self).__name__
        if getattr(self, "_used", False):
            raise GradError(f"{name}: an instance serves one call, expected a new one")
        for given in inputs:
            if not isinstance(given, Tensor):
                raise GradError(f"{name}: inputs must be tensors, got {type(given).__name__}")
        self._used = True
        tapes, state.tapes = state.tapes, []
        try:
            result = self.forward(*inputs)
        finally:
            state.tapes = tapes
        results = (result,) if isinstance(result, Tensor) else tuple(result)
        datas = [data_of(tensor) for tensor in inputs]
        # An input that is returned as it is gets an identity of its own. Any other output keeps
        # its identity, so that what forward saved of it counts in higher derivatives.
        known = {id(data) for data in datas}
        outputs = [
            wrap(tensor._own(), tensor._spec) if id(data_of(tensor)) in known else tensor
            for tensor in results
        ]
        for tape in state.tapes:
            tape.record(self, None, datas, [tensor._spec for tensor in inputs], outputs)
        return outputs[0] if isinstance(result, Tensor) else tuple(outputs)

    @property
    def name(self) -> str:
        """The class's name, by which messages call it."""
        return type(self).__name__

    def grad(self, ctx: GradContext, grads: tuple[Tensor | None, ...]) -> Sequence[Tensor | None]:
        found = self.backward(*grads)
        results = [found] if found is None or isinstance(found, Tensor) else list(found)
        for grad in results:
            if grad is not None and not isinstance(grad, Tensor):
                raise GradError(
                    f"{type(self).__name__}.backward: gradients must be tensors or None, got "
                    f"{type(grad).__name__}"
                )
        if len(results) != len(ctx.inputs):
            raise GradError(
                f"{type(self).__name__}.backward: wrong number of gradients, got {len(results)}, "
                f"expected {len(ctx.inputs)}"
            )
        return [_like(grad, x) for grad, x in zip(results, ctx.inputs, strict=True)]


def _like(grad: Tensor | None, x: Any) -> Tensor | None:
    """Return a gradient in the float dtype of its input, as under autocast the two may differ."""
    if grad is None or grad.dtype == x.dtype or not (is_float(grad.dtype) and is_float(x.dtype)):
        return grad
    found: Tensor = grad.cast(x.dtype)
    return found
