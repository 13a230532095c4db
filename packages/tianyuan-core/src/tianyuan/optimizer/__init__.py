"""Hold the optimisers, under MegEngine's names."""

from .adagrad import Adadelta, Adagrad
from .adam import Adam, AdamW
from .clip import clip_grad_norm, clip_grad_value
from .lamb import LAMB
from .optimizer import Optimizer
from .schedule import LRScheduler, MultiStepLR
from .sgd import SGD

__all__ = [
    "LAMB",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "LRScheduler",
    "MultiStepLR",
    "Optimizer",
    "clip_grad_norm",
    "clip_grad_value",
]
