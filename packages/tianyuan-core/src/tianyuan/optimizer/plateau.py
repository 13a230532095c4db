"""Lower the learning rate where a measurement no longer improves."""

from __future__ import annotations

import math
from typing import Any

from ..functional.arguments import choice, real_number, share, whole
from .optimizer import Optimizer
from .schedule import Resumable, check_optimizer, rates


class ReduceLROnPlateau(Resumable):
    """Multiply the learning rate by ``factor`` once a measurement has not improved for a while.

    Args:
        optimizer: whose groups' ``lr`` is set.
        mode: ``min`` where less is better, ``max`` where more is.
        factor: what the rate is multiplied by, below 1.
        patience: how many epochs without improvement are borne.
        threshold: how much better counts: relative to the best with ``threshold_mode="rel"``,
            absolute with ``"abs"``.
        cooldown: epochs after a reduction that are not counted.
        min_lr: the lowest rate, one for all groups or one per group.
        eps: a smaller reduction is left out.

    Raises:
        AttrError: where a value is out of range.

    >>> from tianyuan import Parameter
    >>> from tianyuan.optimizer import SGD
    >>> optimizer = SGD(Parameter([1.0]), lr=1.0)
    >>> schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    >>> for loss in (3.0, 3.0, 3.0):
    ...     schedule.step(loss)
    >>> optimizer.param_groups[0]["lr"]
    0.5
    """

    _kept = (
        "mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lrs", "eps",
        "best", "bad_epochs", "cooldown_left", "current_epoch",
    )  # fmt: skip

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        name = "ReduceLROnPlateau"
        check_optimizer(name, optimizer)
        self.optimizer = optimizer
        self.mode = choice(name, "mode", mode, ("min", "max"))
        self.factor = share(name, "factor", factor)
        self.patience = whole(name, "patience", patience, 0)
        self.threshold = real_number(name, "threshold", threshold)
        self.threshold_mode = choice(name, "threshold_mode", threshold_mode, ("rel", "abs"))
        self.cooldown = whole(name, "cooldown", cooldown, 0)
        self.min_lrs = rates(name, "min_lr", min_lr, optimizer)
        self.eps = real_number(name, "eps", eps)
        self.best = math.inf if mode == "min" else -math.inf
        self.bad_epochs = 0
        self.cooldown_left = 0
        self.current_epoch = 0

    def step(self, metrics: Any) -> None:
        """Note an epoch's measurement, a number or a tensor of one, and lower the rates if due."""
        value = float(metrics)
        self.current_epoch += 1
        if self._improves(value):
            self.best, self.bad_epochs = value, 0
        else:
            self.bad_epochs += 1
        if self.cooldown_left > 0:
            self.cooldown_left -= 1
            self.bad_epochs = 0
        if self.bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                rate = max(group["lr"] * self.factor, least)
                if group["lr"] - rate > self.eps:
                    group["lr"] = rate
            self.cooldown_left, self.bad_epochs = self.cooldown, 0

    def _improves(self, value: float) -> bool:
        sign = 1.0 if self.mode == "max" else -1.0
        if self.threshold_mode == "abs" or math.isinf(self.best):
            return sign * value > sign * self.best + self.threshold
        return sign * value > sign * self.best * (1.0 + sign * self.threshold)
