"""Train an LSTM to continue text letter by letter, and compare with PyTorch if asked to.

Usage: python examples/train_lstm_text.py [--epochs 12] [--compare-torch] [--steps N]. The text is
genesis.txt beside this script, from the King James Bible of 1611; its last tenth is held back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from beside_torch import Data, Job, command_line, main

TEXT = Path(__file__).with_name("genesis.txt").read_text(encoding="utf-8")
LETTERS = sorted(set(TEXT))
LENGTH, WIDTH, LAYERS = 32, 96, 2


class Net(M.Module):
    """An embedding, LSTM layers, and a linear layer on each state: (N, T) to (N * T, letters)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = M.Embedding(len(LETTERS), WIDTH)
        self.lstm = M.LSTM(WIDTH, WIDTH, num_layers=LAYERS, batch_first=True)
        self.fc = M.Linear(WIDTH, len(LETTERS))

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        states, _ = self.lstm(self.embedding(x))
        return self.fc(F.reshape(states, (-1, WIDTH)))


def torch_net() -> Any:
    """Return the same net of PyTorch's modules."""
    from torch import nn

    class TorchNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(len(LETTERS), WIDTH)
            self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=LAYERS, batch_first=True)
            self.fc = nn.Linear(WIDTH, len(LETTERS))

        def forward(self, x: Any) -> Any:
            return self.fc(self.lstm(self.embedding(x))[0].reshape(-1, WIDTH))

    return TorchNet()


def to_torch(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Name the values of the cells as PyTorch does: cells.1.0.bias_hh is lstm.bias_hh_l1."""
    result = {}
    for name, value in state.items():
        if ".cells." in name:
            _, _, layer, _, what = name.split(".")
            name = f"lstm.{what}_l{layer}"
        result[name] = value
    return result


def windows(text: str, step: int) -> Data:
    """Return pieces of a text as numbers (N, LENGTH), and the letters that follow each letter."""
    numbers = np.array([LETTERS.index(letter) for letter in text], np.int32)
    starts = range(0, len(numbers) - LENGTH, step)
    x = np.stack([numbers[i : i + LENGTH] for i in starts])
    y = np.stack([numbers[i + 1 : i + 1 + LENGTH] for i in starts])
    return x, y


def job(epochs: int) -> Job:
    """Return the net and how it is trained."""
    ty.random.seed(0)
    cut = len(TEXT) * 9 // 10
    return Job(
        Net(), torch_net, to_torch, windows(TEXT[:cut], 5), windows(TEXT[cut:], LENGTH),
        kind="adamw", rate=3e-3, epochs=epochs, batch=64, decay=0.01,
    )  # fmt: skip


if __name__ == "__main__":
    given = command_line(__doc__ or "", epochs=12).parse_args()
    main(job(given.epochs), given)
