"""Datasets: what they are, and the ones that Tianyuan reads itself."""

from __future__ import annotations

from .base import ArrayDataset, ConcatDataset, Dataset, StreamDataset
from .digits import Digits
from .mnist import MNIST

__all__ = ["MNIST", "ArrayDataset", "ConcatDataset", "Dataset", "Digits", "StreamDataset"]
