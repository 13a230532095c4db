"""LAMB: Adam whose step is scaled to the size of each parameter, also for float16 parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from ..imperative.tensor import Tensor
from ..ops.elementwise import POW, SQRT, SQUARE
from .optimizer import Group, Optimizer, counter, zeros_like


class LAMB(Optimizer):
    """Scale Adam's change by the ratio of norms of parameter and change (You et al. 2020).

    r = m / (sqrt(v) + eps) + weight_decay * p with the moments of Adam, p -= lr * |p| / |r| * r;
    the ratio is 1 where a norm is zero.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: (b1, b2), each in [0, 1).
        eps: added to the divisor.
        bias_correction: whether moments are divided by 1 - b^t.
        weight_decay: factor of the parameter that is added to its change.
        always_adapt: whether the ratio applies without weight decay too.

    Raises:
        AttrError: where a hyper-parameter is out of range.

    >>> from tianyuan import Parameter, Tensor
    >>> weight = Parameter([3.0, 4.0])
    >>> weight.grad = Tensor([1.0, 1.0])
    >>> LAMB(weight, lr=0.1, always_adapt=True).step().param_groups[0]["params"][0].numpy().round(2)
    array([2.65, 3.65], dtype=float32)
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        bias_correction: bool = True,
        weight_decay: float = 0.0,
        always_adapt: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "bias_correction": bias_correction,
                "weight_decay": weight_decay,
                "always_adapt": always_adapt,
            },
        )

    def _create_state(self, param: Tensor, group: Group) -> dict[str, Tensor]:
        return {
            "exp_avg": zeros_like(param),
            "exp_avg_sq": zeros_like(param),
            "step": counter(param),
        }

    def _update(
        self, param: Tensor, grad: Tensor, state: dict[str, Tensor], group: Group, lr: Tensor
    ) -> None:
        param._reset(_step(param, grad, state, group, lr))


class LAMBFp16(LAMB):
    """LAMB for float16 parameters: moments and a master copy of each parameter are float32.

    A step changes the master copy ``param_fp32``, which the parameter then is rounded from, so
    that changes below float16's resolution add up; so make it after the parameters have got their
    values. Parameters of float32 need no copy and are treated as by ``LAMB``. Arguments as for
    ``LAMB``.

    >>> from tianyuan import Parameter, Tensor
    >>> weight = Parameter([1.0], dtype="float16")
    >>> optimizer = LAMBFp16(weight, lr=1e-4)
    >>> for _ in range(20):
    ...     weight.grad = Tensor([1.0], dtype="float16")
    ...     _ = optimizer.step()
    >>> weight.numpy()
    array([0.998], dtype=float16)
    """

    def _create_state(self, param: Tensor, group: Group) -> dict[str, Tensor]:
        master = Tensor(param.numpy().astype(np.float32), device=param.device)
        state = super()._create_state(master, group)
        return state if param.dtype == np.float32 else {**state, "param_fp32": master}

    def _update(
        self, param: Tensor, grad: Tensor, state: dict[str, Tensor], group: Group, lr: Tensor
    ) -> None:
        master = state.get("param_fp32")
        if master is None:
            super()._update(param, grad, state, group, lr)
            return
        master._reset(_step(master, grad.cast("float32"), state, group, lr))
        param._reset(master.cast(param.dtype))


def _step(
    param: Tensor, grad: Tensor, state: dict[str, Tensor], group: Group, lr: Tensor
) -> Tensor:
    """Return a parameter's new value and give its moments theirs."""
    b1, b2 = map(float, group["betas"])
    step = state["step"] + 1.0
    m = state["exp_avg"] * b1 + grad * (1.0 - b1)
    v = state["exp_avg_sq"] * b2 + SQUARE(grad) * (1.0 - b2)
    first, second = m, v
    if group["bias_correction"]:
        first = m / (1.0 - POW(step.full((), b1), step)).cast(param.dtype)
        second = v / (1.0 - POW(step.full((), b2), step)).cast(param.dtype)
    change = first / (SQRT(second) + float(group["eps"]))
    if group["weight_decay"]:
        change = change + param * float(group["weight_decay"])
    if group["weight_decay"] or group["always_adapt"]:
        change = change * _ratio(param, change)
    state["exp_avg"]._reset(m)
    state["exp_avg_sq"]._reset(v)
    state["step"]._reset(step)
    result: Tensor = param - change * lr.cast(param.dtype)
    return result


def _ratio(param: Tensor, change: Tensor) -> Tensor:
    """Return |param| / |change|, 1 where one of them is zero."""
    size, length = SQRT(F.sum(SQUARE(param))), SQRT(F.sum(SQUARE(change)))
    usable = F.logical_and(size > 0.0, length > 0.0)
    one = size.full((), 1.0)
    ratio: Tensor = F.where(usable, size / F.where(usable, length, one), one)
    return ratio
