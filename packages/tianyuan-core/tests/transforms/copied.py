"""What a test copies and another process takes: named things of a module, as pickle wants them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M


class Net(M.Module):
    """A network with a traced method."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = M.Conv2d(2, 3, 3)
        self.norm = M.BatchNorm2d(3)
        self.out = M.Linear(3 * 4, 2)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        """Return two numbers for each image."""
        return self.out(F.flatten(F.relu(self.norm(self.conv(x))), 1))

    @ty.jit.trace
    def twice(self, x: ty.Tensor) -> ty.Tensor:
        """Return the results twofold."""
        return self(x) * 2


@ty.jit.trace
def doubled(x: ty.Tensor) -> ty.Tensor:
    """Return the input twofold."""
    return x * 2


def shifted(x: ty.Tensor) -> ty.Tensor:
    """Return the input plus one."""
    return x + 1


def answer(connection: Any) -> None:
    """Call what comes with what comes, and send the result as an array."""
    for _ in range(connection.recv()):
        thing, x = pickle.loads(connection.recv_bytes())
        connection.send(np.asarray(thing(x)))
