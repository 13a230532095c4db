"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from typing import Any

from ..imperative.tensor import Tensor
from ..ops.update import SGD_UPDATE
from .optimizer import Group, Optimizer, zeros_like


class SGD(Optimizer):
    """Follow the gradient, with Nesterov's momentum if asked for (Sutskever et al. 2013).

    With g = gradient + weight_decay * p: v = momentum * v + g and p -= lr * v; with ``nesterov``
    p -= lr * (g + momentum * v). There is no dampening.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        momentum: what is kept of the velocity.
        nesterov: whether the velocity looks ahead.
        weight_decay: factor of the parameter that is added to its gradient.

    >>> from tianyuan import Parameter
    >>> weight = Parameter([1.0])
    >>> weight.grad = Tensor([2.0])
    >>> _ = SGD(weight, lr=0.25).step()
    >>> weight.numpy()
    array([0.5], dtype=float32)
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "nesterov": nesterov,
                "weight_decay": weight_decay,
            },
        )

    # Made when momentum is first wanted; kept as it is while there is none.
    _optional_state = frozenset({"momentum_buffer"})

    def _create_state(self, param: Tensor, group: Group) -> dict[str, Tensor]:
        return {"momentum_buffer": zeros_like(param)} if group["momentum"] else {}

    def _update(
        self,
        param: Tensor,
        grad: Tensor,
        state: dict[str, Tensor],
        group: Group,
        lr: Tensor,
    ) -> None:
        velocity = None
        if group["momentum"]:
            if "momentum_buffer" not in state:
                state.update(self._create_state(param, group))
            velocity = state["momentum_buffer"]
        updated = SGD_UPDATE(
            param,
            grad,
            lr,
            *(() if velocity is None else (velocity,)),
            momentum=float(group["momentum"]),
            weight_decay=float(group["weight_decay"]),
            nesterov=bool(group["nesterov"]),
        )
        if velocity is None:
            param._reset(updated)
        else:
            param._reset(updated[0])
            velocity._reset(updated[1])
