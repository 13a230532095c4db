"""Train a small vision transformer on Fashion-MNIST, and compare with PyTorch if asked to.

Usage: python examples/train_transformer_fashion.py [--epochs 4] [--compare-torch] [--count 60000]
[--steps N]. The pictures are those of Debian's package dataset-fashion-mnist.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from beside_torch import Job, command_line, main
from train_resnet_fashion import pictures

PATCH, COUNT, WIDTH, HEADS, LAYERS = 7, 16, 64, 4, 3


class Net(M.Module):
    """Patches as a sequence with learned places, encoder layers, the mean, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = M.Conv2d(1, WIDTH, PATCH, PATCH)
        self.place = ty.Parameter(ty.random.normal(0, 0.02, (1, COUNT, WIDTH)).numpy())
        layer = M.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", norm_first=True
        )
        self.encoder = M.TransformerEncoder(layer, LAYERS, M.LayerNorm(WIDTH))
        self.fc = M.Linear(WIDTH, 10)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        tokens = F.transpose(F.flatten(self.patch(x), 2), (0, 2, 1)) + self.place
        return self.fc(F.mean(self.encoder(tokens), axis=1))


def torch_net() -> Any:
    """Return the same net of PyTorch's modules."""
    import torch
    from torch import nn

    class TorchNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(1, WIDTH, PATCH, PATCH)
            self.place = nn.Parameter(torch.zeros(1, COUNT, WIDTH))
            layer = nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", norm_first=True,
                batch_first=True,
            )  # fmt: skip
            self.encoder = nn.TransformerEncoder(
                layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False
            )
            self.fc = nn.Linear(WIDTH, 10)

        def forward(self, x: Any) -> Any:
            tokens = self.patch(x).flatten(2).transpose(1, 2) + self.place
            return self.fc(self.encoder(tokens).mean(1))

    return TorchNet()


def to_torch(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Join the projections of queries, keys and values, which PyTorch holds as one."""
    projections = (".q_proj.", ".k_proj.", ".v_proj.")
    result = {n: value for n, value in state.items() if not any(p in n for p in projections)}
    for name in state:
        if ".q_proj." in name:
            parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            result[name.replace("q_proj.", "in_proj_")] = np.concatenate(parts)
    return result


def job(count: int | None, epochs: int) -> Job:
    """Return the net and how it is trained."""
    ty.random.seed(0)
    return Job(
        Net(), torch_net, to_torch, pictures(True, count), pictures(False),
        kind="adamw", rate=1e-3, epochs=epochs, batch=128, decay=0.01,
    )  # fmt: skip


if __name__ == "__main__":
    options = command_line(__doc__ or "", epochs=4)
    options.add_argument("--count", type=int, help="pictures to train on")
    given = options.parse_args()
    main(job(given.count, given.epochs), given)
