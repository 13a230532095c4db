"""Change learning rates by epoch."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from ..errors import AttrError, StateDictError
from .optimizer import Optimizer


class LRScheduler(metaclass=ABCMeta):
    """Base of all schedules; the first epoch's rates are set at once.

    Args:
        optimizer: whose groups' ``lr`` is set.
        current_epoch: the last epoch that ran; -1 starts anew and notes each ``lr`` as
            ``initial_lr``.

    Raises:
        AttrError: where the optimiser is none, or goes on without ``initial_lr``.
    """

    _kept: tuple[str, ...] = ("current_epoch", "base_lrs")

    def __init__(self, optimizer: Optimizer, current_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise AttrError(
                f"LRScheduler: not an optimiser, got {type(optimizer).__name__}, expected Optimizer"
            )
        for index, group in enumerate(optimizer.param_groups):
            if current_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise AttrError(
                    f"LRScheduler: group {index} lacks initial_lr, which going on from epoch "
                    f"{current_epoch} needs"
                )
        self.optimizer = optimizer
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.current_epoch = current_epoch
        self.step()

    @abstractmethod
    def get_lr(self) -> list[float]:
        """Return the learning rate of each group in the current epoch."""

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, or to a given one, and set the learning rates."""
        self.current_epoch = self.current_epoch + 1 if epoch is None else epoch
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule needs to go on."""
        return {name: getattr(self, name) for name in self._kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned.

        Raises:
            StateDictError: where a name is missing or unexpected.
        """
        if set(state_dict) != set(self._kept):
            raise StateDictError(
                f"{type(self).__name__}.load_state_dict: names differ, got {sorted(state_dict)}, "
                f"expected {sorted(self._kept)}"
            )
        for name in self._kept:
            setattr(self, name, state_dict[name])


class MultiStepLR(LRScheduler):
    """Multiply the learning rate by ``gamma`` at each milestone.

    Args:
        optimizer: whose groups' ``lr`` is set.
        milestones: epochs, ascending.
        gamma: factor.
        current_epoch: the last epoch that ran.

    Raises:
        AttrError: where the milestones do not ascend.
    """

    _kept = ("current_epoch", "base_lrs", "milestones", "gamma")

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        current_epoch: int = -1,
    ) -> None:
        self.milestones = list(milestones)
        if self.milestones != sorted(self.milestones):
            raise AttrError(f"MultiStepLR: milestones must ascend, got {self.milestones}")
        self.gamma = gamma
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Return base_lr * gamma^(milestones passed) for each group."""
        factor = self.gamma ** bisect_right(self.milestones, self.current_epoch)
        return [base * factor for base in self.base_lrs]
