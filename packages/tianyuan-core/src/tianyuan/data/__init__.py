"""Datasets, samplers, transforms and the loader that turns them into batches of numpy arrays."""

from __future__ import annotations

from . import dataset, transform
from .collator import Collator
from .dataloader import DataLoader, get_worker_info
from .sampler import (
    Infinite,
    MapSampler,
    RandomSampler,
    ReplacementSampler,
    Sampler,
    SequentialSampler,
    StreamSampler,
)

__all__ = [
    "Collator",
    "DataLoader",
    "Infinite",
    "MapSampler",
    "RandomSampler",
    "ReplacementSampler",
    "Sampler",
    "SequentialSampler",
    "StreamSampler",
    "dataset",
    "get_worker_info",
    "transform",
]
