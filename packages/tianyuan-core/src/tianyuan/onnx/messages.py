"""Find ONNX's message classes without the rest of the package, which takes long to import."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from ..errors import MissingPackageError

_INSTALL = "onnx: the package onnx is not installed, expected `pip install onnx`"
_MESSAGES = (
    "onnx_ml_pb2"  # what protobuf made of onnx-ml.proto, which imports nothing of the package
)

_found: Any = None


def require() -> Any:
    """Return the package ``onnx``.

    Raises:
        MissingPackageError: where it is not installed; the message says how to get it.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingPackageError(_INSTALL) from error
    return onnx


def messages() -> Any:
    """Return a module that holds ``ModelProto``, the very class that ``onnx`` has.

    Protobuf makes one class per message of its pool, whoever asks for it, so a later import of
    the package finds the same.

    Raises:
        MissingPackageError: where the package is not installed.
    """
    global _found
    if "onnx" in sys.modules:
        return require()
    if _found is None:
        _found = _alone() or require()
    return _found


def _alone() -> Any:
    """Return the module of messages by itself, or None where the package has no such file."""
    package = find_spec("onnx")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder, f"{_MESSAGES}.py")
        spec = spec_from_file_location(f"{__name__}.{_MESSAGES}", file) if file.is_file() else None
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return None
