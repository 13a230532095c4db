"""Bring PyTorch's checkpoints and modules in, and hand tensors over; torch is imported on use."""

from .checkpoint import load_checkpoint, read_checkpoint
from .handover import from_torch, to_torch
from .loading import load_into
from .module import TorchModule, from_module

__all__ = [
    "TorchModule",
    "from_module",
    "from_torch",
    "load_checkpoint",
    "load_into",
    "read_checkpoint",
    "to_torch",
]
