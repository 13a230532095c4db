"""Datasets: what they are, and the ones that Tianyuan reads itself."""

from __future__ import annotations

from .base import ArrayDataset, ConcatDataset, Dataset, StreamDataset
from .cifar import CIFAR10, CIFAR100
from .cityscapes import Cityscapes
from .coco import COCO, Objects365
from .digits import Digits
from .folder import ImageFolder, ImageNet
from .mnist import MNIST
from .vision import VisionDataset
from .voc import PascalVOC

__all__ = [
    "CIFAR10", "CIFAR100", "COCO", "MNIST", "ArrayDataset", "Cityscapes", "ConcatDataset",
    "Dataset", "Digits", "ImageFolder", "ImageNet", "Objects365", "PascalVOC", "StreamDataset",
    "VisionDataset",
]  # fmt: skip
