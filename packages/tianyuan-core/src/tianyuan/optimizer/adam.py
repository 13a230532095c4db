"""Adam, and AdamW, which decays weights apart from the gradient."""

from __future__ import annotations

from typing import Any

from ..imperative.tensor import Tensor
from ..ops.update import ADAM_UPDATE
from .optimizer import Group, Optimizer, counter, zeros_like


class Adam(Optimizer):
    """Follow bias-corrected moments of the gradient (Kingma and Ba 2015).

    m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2,
    p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps), g = gradient + weight_decay * p.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: (b1, b2), each in [0, 1).
        eps: added to the divisor.
        weight_decay: factor of the parameter that is added to its gradient.

    Raises:
        AttrError: where a hyper-parameter is out of range.

    >>> from tianyuan import Parameter
    >>> weight = Parameter([1.0])
    >>> weight.grad = Tensor([5.0])
    >>> _ = Adam(weight, lr=0.25).step()
    >>> weight.numpy().round(4)
    array([0.75], dtype=float32)
    """

    _decoupled = False

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay},
        )

    def _create_state(self, param: Tensor, group: Group) -> dict[str, Tensor]:
        return {
            "exp_avg": zeros_like(param),
            "exp_avg_sq": zeros_like(param),
            "step": counter(param),
        }

    def _update(
        self,
        param: Tensor,
        grad: Tensor,
        state: dict[str, Tensor],
        group: Group,
        lr: Tensor,
    ) -> None:
        step = state["step"] + 1.0
        new, m, v = ADAM_UPDATE(
            param,
            grad,
            state["exp_avg"],
            state["exp_avg_sq"],
            step,
            lr,
            beta1=float(group["betas"][0]),
            beta2=float(group["betas"][1]),
            eps=float(group["eps"]),
            weight_decay=float(group["weight_decay"]),
            decoupled=self._decoupled,
        )
        param._reset(new)
        state["exp_avg"]._reset(m)
        state["exp_avg_sq"]._reset(v)
        state["step"]._reset(step)


class AdamW(Adam):
    """Adam that shrinks parameters by lr * weight_decay instead (Loshchilov and Hutter 2019).

    p is multiplied by 1 - lr * weight_decay first, and weight_decay does not enter the moments.
    Arguments as for ``Adam``.

    >>> from tianyuan import Parameter
    >>> weight = Parameter([1.0])
    >>> weight.grad = Tensor([0.0])
    >>> _ = AdamW(weight, lr=0.5, weight_decay=0.5).step()
    >>> weight.numpy()
    array([0.75], dtype=float32)
    """

    _decoupled = True

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
