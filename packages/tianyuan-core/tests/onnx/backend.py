"""Tianyuan as a backend of the onnx package's own test-suite."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import tianyuan
import tianyuan.onnx
from onnx.backend.base import Backend, BackendRep
from tianyuan import registry
from tianyuan.jit.model import Model
from tianyuan.onnx.model import EagerModel


class Prepared(BackendRep):
    """A model that was loaded for one set of kernels."""

    def __init__(self, model: Model, backend: str | None) -> None:
        self.model = model
        self.backend = backend

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> tuple[Any, ...]:
        """Run on a list of arrays and return a tuple of arrays."""
        choice = registry.use_backend(self.backend) if self.backend else nullcontext()
        with choice, np.errstate(all="ignore"):
            results = self.model(*inputs)
        return results if isinstance(results, tuple) else (results,)

    def kernels(self, inputs: Sequence[Any]) -> list[str] | None:
        """Return the kernel of each step, or None where the model runs eagerly."""
        if isinstance(self.model, EagerModel):
            return None
        return [step.kernel.name for step in self.model.program(*inputs).steps]


class TianyuanBackend(Backend):
    """Loads models through ``tianyuan.onnx``; ``kernels`` chooses whose kernels serve."""

    kernels: str | None = None

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Load a ModelProto.

        Raises:
            ModelFormatError: where it cannot be imported.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="onnx: the model runs eagerly")
            module = tianyuan.onnx.load(model)
            return Prepared(tianyuan.onnx.load_model(module, cls.kernels, None), cls.kernels)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Tell whether a device of the suite is the host."""
        return device == "CPU"
