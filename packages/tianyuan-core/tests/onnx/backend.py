"""Tianyuan as a backend of the onnx package's own test-suite."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import tianyuan.onnx
from onnx.backend.base import Backend, BackendRep
from tianyuan import registry
from tianyuan.imperative import dispatch
from tianyuan.jit.model import Model
from tianyuan.onnx.model import EagerModel, SizedModel


class Prepared(BackendRep):
    """A model that was loaded for one set of kernels."""

    def __init__(self, model: Model, kernels: str | None) -> None:
        self.model = model
        self.kernels = kernels

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> tuple[Any, ...]:
        """Run on a list of arrays and return a tuple of arrays."""
        choice = registry.use_backend(self.kernels) if self.kernels else nullcontext()
        with choice, np.errstate(all="ignore"):
            results = self.model(*inputs)
        return results if isinstance(results, tuple) else (results,)

    def kernels_of(self, inputs: Sequence[Any]) -> list[str] | None:
        """Return the kernel of each step of the program, or None where ops run one by one."""
        model = self.model
        if isinstance(model, SizedModel):
            model = model.model_for(inputs)
        if isinstance(model, EagerModel):
            return None
        return [step.kernel.name for step in model.program(*inputs).steps]


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


@contextmanager
def noted_references() -> Iterator[set[str]]:
    """Collect the names of references that are chosen for eager ops meanwhile."""
    found: set[str] = set()
    select = registry.select

    def watched(*args: Any, **kwargs: Any) -> Any:
        choice = select(*args, **kwargs)
        if choice.kernel.is_reference:
            found.add(choice.kernel.name)
        return choice

    registry.select = watched
    dispatch._plans.clear()
    try:
        yield found
    finally:
        registry.select = select
