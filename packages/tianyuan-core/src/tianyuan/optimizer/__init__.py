"""Hold the optimisers, under MegEngine's names."""

from .adagrad import Adadelta, Adagrad
from .adam import Adam, AdamW
from .clip import clip_grad_norm, clip_grad_value
from .decay import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearWarmup,
    MultiStepLR,
    OneCycleLR,
    StepLR,
)
from .lamb import LAMB, LAMBFp16
from .optimizer import Optimizer
from .plateau import ReduceLROnPlateau
from .schedule import LRScheduler
from .sgd import SGD

__all__ = [
    "LAMB",
    "LAMBFp16",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "CosineAnnealingLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearWarmup",
    "MultiStepLR",
    "OneCycleLR",
    "Optimizer",
    "ReduceLROnPlateau",
    "StepLR",
    "clip_grad_norm",
    "clip_grad_value",
]
