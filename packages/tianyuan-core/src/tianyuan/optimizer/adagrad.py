"""Optimisers that scale each element by its own history: Adagrad and Adadelta."""

from __future__ import annotations

from typing import Any

from ..functional.arguments import real_number
from ..imperative.tensor import Tensor
from ..ops.elementwise import SQRT, SQUARE
from .optimizer import Group, Optimizer, counter, zeros_like


def _decayed(param: Tensor, grad: Tensor, group: Group) -> Tensor:
    """Return the gradient with weight decay added."""
    if not group["weight_decay"]:
        return grad
    result: Tensor = grad + param * float(group["weight_decay"])
    return result


class Adagrad(Optimizer):
    """Divide by the root of all squared gradients so far (Duchi et al. 2011).

    s += g^2, p -= lr / (1 + (t - 1) lr_decay) * g / sqrt(s + eps).

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        lr_decay: how fast the learning rate falls.
        eps: added under the root.
        weight_decay: factor of the parameter that is added to its gradient.

    Raises:
        AttrError: where a hyper-parameter is out of range.

    >>> from tianyuan import Parameter
    >>> weight = Parameter([1.0])
    >>> weight.grad = Tensor([5.0])
    >>> _ = Adagrad(weight, lr=0.25).step()
    >>> weight.numpy()
    array([0.75], dtype=float32)
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay},
        )

    def _create_state(self, param: Tensor, group: Group) -> dict[str, Tensor]:
        return {"square_avg": zeros_like(param), "step": counter(param)}

    def _update(
        self,
        param: Tensor,
        grad: Tensor,
        state: dict[str, Tensor],
        group: Group,
        lr: Tensor,
    ) -> None:
        grad = _decayed(param, grad, group)
        step = state["step"] + 1.0
        total = state["square_avg"] + SQUARE(grad)
        rate = lr / ((step - 1.0) * float(group["lr_decay"]) + 1.0)
        change = grad / SQRT(total + float(group["eps"]))
        param._reset(param - change * rate.cast(param.dtype))
        state["square_avg"]._reset(total)
        state["step"]._reset(step)


class Adadelta(Optimizer):
    """Divide by a running root of squared gradients, in units of past changes (Zeiler 2012).

    s = rho s + (1 - rho) g^2, d = g sqrt(a + eps) / sqrt(s + eps), a = rho a + (1 - rho) d^2,
    p -= lr * d.

    Args:
        params: parameters, or groups of them.
        lr: factor of each change.
        rho: what is kept of the running averages, in [0, 1].
        eps: added under the roots.
        weight_decay: factor of the parameter that is added to its gradient.

    Raises:
        AttrError: where a hyper-parameter is out of range.

    >>> from tianyuan import Parameter
    >>> weight = Parameter([1.0])
    >>> weight.grad = Tensor([5.0])
    >>> bool(Adadelta(weight).step() and weight.item() < 1.0)
    True
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay})

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        real_number("Adadelta", "rho", group["rho"], 0.0, 1.0)

    def _create_state(self, param: Tensor, group: Group) -> dict[str, Tensor]:
        return {"square_avg": zeros_like(param), "acc_delta": zeros_like(param)}

    def _update(
        self,
        param: Tensor,
        grad: Tensor,
        state: dict[str, Tensor],
        group: Group,
        lr: Tensor,
    ) -> None:
        grad = _decayed(param, grad, group)
        rho, eps = float(group["rho"]), float(group["eps"])
        squares = state["square_avg"] * rho + SQUARE(grad) * (1.0 - rho)
        change = grad * SQRT(state["acc_delta"] + eps) / SQRT(squares + eps)
        param._reset(param - change * lr.cast(param.dtype))
        state["acc_delta"]._reset(state["acc_delta"] * rho + SQUARE(change) * (1.0 - rho))
        state["square_avg"]._reset(squares)
