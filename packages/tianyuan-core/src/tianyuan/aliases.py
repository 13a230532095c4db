"""Decide by which further names below ``tianyuan`` modules of plugins and of core are imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import plugins

_ROOT = f"{__package__}."

# Where MegEngine has a module of its own, and where its names are found here.
_MOVED = {
    "tensor": "imperative.tensor",
    "version": "_version",
    "autodiff.grad": "autodiff",
    "data.dataset.meta_dataset": "data.dataset",
    **{
        f"data.dataset.vision.{name}": "data.dataset"
        for name in (
            "cifar", "cityscapes", "coco", "folder", "imagenet", "meta_vision", "mnist",
            "objects365", "voc",
        )
    },
    "data.transform.meta_transform": "data.transform",
    "data.transform.vision.transform": "data.transform",
    "distributed.functional": "functional.distributed",
    "distributions.exponential": "distributions",
    "hub.hub": "hub",
    **{
        f"jit.{name}": "jit"
        for name in (
            "dtr_config", "graph_opt_config", "partial_tracing", "sublinear_memory_config",
            "tracing",
        )
    },
    "random.rng": "random",
    **{
        f"optimizer.{name}": "optimizer"
        for name in ("adadelta", "adamw", "clip_grad", "lr_scheduler", "multi_step_lr")
    },
    **{
        f"module.{name}": "module"
        for name in (
            "adaptive_pooling", "batch_matmul_activation", "batchnorm", "concat", "conv_bn",
            "conv_transpose_bn", "deformable_psroi_pooling", "dropout", "elemwise", "embedding",
            "identity", "linear_bn", "lrn", "multiheadattn", "normalization", "padding",
            "pixel_shuffle", "quant_dequant", "region_restricted_conv", "rnn", "sequential",
            "sliding_window", "vision",
        )
    },
    **{
        f"quantization.{name}": "quantization"
        for name in ("fake_quant", "observer", "qconfig", "quantize", "utils")
    },
    **{
        f"module.{form}.{name}": f"module.{form}"
        for form in ("qat", "quantized")
        for name in (
            "batch_matmul_activation", "concat", "conv", "conv_bn", "conv_transpose",
            "conv_transpose_bn", "elemwise", "linear", "linear_bn", "quant_dequant",
        )
    },
    "core.tensor.dtype": "quantization.dtypes",
}  # fmt: skip
# Of these there is nothing else, so that their other names are not found.
_EMPTY = ("core", "core.tensor")


class _Moved(ModuleType):
    """Stands for a module that lies elsewhere, and loads it when a name of it is asked for.

    It is never an attribute of its parent, where a function may bear its name.
    """

    def __init__(self, name: str, target: str) -> None:
        super().__init__(name, f"Names of ``{target}``, where MegEngine has them.")
        self._target = target

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(import_module(self._target), name)


class _Loader:
    """Hands out a module that is imported under its own name."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias's spec in; the module keeps its own.
        module.__spec__ = self._spec


# The import system asks for methods, not for importlib.abc's classes, which are slow to import.
class _Finder:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_ROOT):
            return None
        found = self._target(fullname[len(_ROOT) :])
        return None if found is None else ModuleSpec(fullname, _Loader(found))  # type: ignore[arg-type]

    def _target(self, name: str) -> str | None:
        return plugins.namespaces().get(name)


class _Below(_Finder):
    """Goes first, lest a module of an aliased package is loaded a second time by its path."""

    def _target(self, name: str) -> str | None:
        above, _, last = name.rpartition(".")
        package = sys.modules.get(_ROOT + above)
        if package is None or package.__name__ == _ROOT + above:
            return None
        from importlib.util import find_spec

        target = f"{package.__name__}.{last}"
        return target if find_spec(target) is not None else None


def install() -> None:
    """Ask plugins for modules below ``tianyuan`` that core does not have; name what has moved."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Below())
        sys.meta_path.append(_Finder())
    for name in _EMPTY:
        sys.modules.setdefault(_ROOT + name, ModuleType(_ROOT + name))
    for name, target in _MOVED.items():
        sys.modules.setdefault(_ROOT + name, _Moved(_ROOT + name, _ROOT + target))
