"""Decide how Python values that hold tensors are kept in a file, without pickle.

The file is a container as for models: arrays and tensors lie in it under numbers, and its JSON
value tells how they are nested. JSON values stand for themselves; whatever JSON lacks is an object
of one tag, such as ``{"tuple": […]}``. An array or tensor that occurs twice is kept once and is one
object again after loading.
"""

from __future__ import annotations

import io
import math
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, NoReturn

import numpy as np

from . import dtypes
from .device import parse_device
from .errors import AttrError, AttrTypeError, DeviceError, ModelFormatError
from .graph.container import (
    Container,
    container_bytes,
    parse_container,
    read_container,
    replace_file,
)
from .imperative.tensor import Parameter, Tensor

MapLocation = str | Mapping[str, str] | Callable[[str], str] | None
File = str | os.PathLike[str] | IO[bytes]

_KIND = "tianyuan.object"
_VERSION = 1
_MAX_DEPTH = 200
_EXPECTED = (
    "dict, OrderedDict, list, tuple, str, int, float, bool, None, numpy arrays and scalars, "
    "Tensors, TracedModules"
)


def save(
    obj: Any,
    f: File,
    pickle_module: Any = pickle,
    pickle_protocol: int = pickle.DEFAULT_PROTOCOL,
) -> None:
    """Write a value to a file, in one step: a reader sees the old file or the whole new one.

    Args:
        obj: nested dict, OrderedDict, list, tuple, str, int, float, bool, None, numpy arrays and
            scalars, Tensors, and TracedModules; of these types exactly.
        f: path, or a file open for writing bytes.
        pickle_module, pickle_protocol: MegEngine's; nothing is pickled, so another module than
            ``pickle`` is refused, and the protocol has no effect.

    Raises:
        AttrError: for another pickle module.
        TypeError: for anything else (a module: save its ``state_dict()``), before a byte is
            written. The message says where it stands.
        ValueError: where a collection holds itself or is nested more than 200 deep.
        OSError: where the file cannot be written; what was there before stays.

    Example:
        >>> import io
        >>> import tianyuan as ty
        >>> file = io.BytesIO()
        >>> ty.save({"weight": ty.Tensor([1.0, 2.0]), "epoch": 3}, file)
        >>> _ = file.seek(0)
        >>> ty.load(file)["weight"].numpy().tolist()
        [1.0, 2.0]
    """
    _no_pickle("save", pickle_module)
    _check_file("save", f, "write")
    writer = _Writer()
    root = writer.encode(obj, "obj", ())
    graph = {"kind": _KIND, "version": _VERSION, "root": root}
    pieces = container_bytes(writer.arrays, graph)
    if isinstance(f, (str, os.PathLike)):
        replace_file(f, pieces)
    else:
        for piece in pieces:
            f.write(piece)


def load(f: File, map_location: MapLocation = None, pickle_module: Any = pickle) -> Any:
    """Read a value that ``save`` wrote.

    Args:
        f: path, or a file open for reading bytes, which is read to its end.
        map_location: where tensors go: None for the device they lay on, the name of a device for
            all of them, or a mapping or function from the old device's name to the new one's.
        pickle_module: MegEngine's; nothing is unpickled, so another than ``pickle`` is refused.

    Raises:
        FileNotFoundError, IsADirectoryError: where there is no such file.
        ModelFormatError: where the file is damaged, hostile or holds something else.
        DeviceError: where a tensor's device is not there.
        AttrError: for another pickle module.

    Example:
        >>> import io
        >>> import tianyuan as ty
        >>> file = io.BytesIO()
        >>> ty.save([ty.Tensor([1.0])], file)
        >>> _ = file.seek(0)
        >>> ty.load(file, map_location="cpux")[0].device
        'cpu'
    """
    _no_pickle("load", pickle_module)
    _check_file("load", f, "read")
    if isinstance(f, (str, os.PathLike)):
        container = read_container(f)
    else:
        container = parse_container(str(getattr(f, "name", "<file>")), f.read())
    graph = container.graph
    if graph.get("kind") != _KIND:
        raise ModelFormatError(
            f"{container.path}: not written by tianyuan.save, got another kind of content, "
            "expected a saved value (a model is read by tianyuan.jit.load)"
        )
    if graph.get("version") != _VERSION:
        raise ModelFormatError(
            f"{container.path}: unknown version of saved values, got {graph.get('version')!r}, "
            f"expected {_VERSION}"
        )
    return _Reader(container, map_location).decode(graph.get("root"), 0)


def _check_file(op: str, f: Any, method: str) -> None:
    if isinstance(f, (str, os.PathLike)):
        return
    if not callable(getattr(f, method, None)) or isinstance(f, io.TextIOBase):
        raise AttrTypeError(
            f"{op}: file is wrong, got {type(f).__name__}, expected a path, or a file open for "
            f"{'writing' if method == 'write' else 'reading'} bytes"
        )


@dataclass(frozen=True)
class _Codec:
    kind: type
    encode: Callable[[Any, Callable[[Any], Any]], Any]
    decode: Callable[[str, Any, Callable[[Any], Any]], Any]


_codecs: dict[str, _Codec] = {}


def register_codec(
    tag: str,
    kind: type,
    encode: Callable[[Any, Callable[[Any], Any]], Any],
    decode: Callable[[str, Any, Callable[[Any], Any]], Any],
) -> None:
    """Let ``save`` and ``load`` keep values of a further type.

    Args:
        tag: what such a value is called in a file.
        kind: the type, exactly.
        encode: ``encode(value, put)`` returns JSON data; ``put`` gives that of a plain value.
        decode: ``decode(file, data, get)`` returns the value; ``get`` reads what ``put`` gave.

    >>> class Celsius(float): ...
    >>> register_codec("celsius", Celsius, lambda value, put: float(value),
    ...                lambda file, data, get: Celsius(data))
    >>> save(Celsius(20.0), "room.bin")
    >>> type(load("room.bin")).__name__
    'Celsius'
    """
    _codecs[tag] = _Codec(kind, encode, decode)


def _no_pickle(what: str, module: Any) -> None:
    if module is not pickle:
        name = getattr(module, "__name__", type(module).__name__)
        raise AttrError(f"{what}: nothing is pickled, got pickle_module={name}, expected pickle")


class _Writer:
    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._known: dict[int, dict[str, Any]] = {}
        self._alive: list[Any] = []  # so that no id is used twice

    def encode(self, obj: Any, place: str, outer: tuple[int, ...]) -> Any:
        """Return the JSON value that stands for an object; ``outer`` holds what it stands in."""
        kind = type(obj)
        if obj is None or kind in (bool, str, int):
            return obj
        if kind is float:
            return obj if math.isfinite(obj) else {"float": str(obj)}
        if kind is np.ndarray or isinstance(obj, np.generic) or kind in (Tensor, Parameter):
            return self._leaf(obj, place)
        for tag, codec in _codecs.items():
            if kind is codec.kind:
                return {tag: codec.encode(obj, lambda part: self.encode(part, place, ()))}
        if kind not in (dict, OrderedDict, list, tuple):
            _refuse(f"{kind.__module__}.{kind.__qualname__}", place)
        if id(obj) in outer:
            raise ValueError(f"save: a {kind.__name__} holds itself, at {place}")
        if len(outer) >= _MAX_DEPTH:
            raise ValueError(f"save: nested too deeply, expected at most {_MAX_DEPTH}, at {place}")
        inner = (*outer, id(obj))
        if isinstance(obj, dict):
            pairs = [
                [self._key(key, place), self.encode(value, f"{place}[{key!r}]", inner)]
                for key, value in obj.items()
            ]
            return {"dict" if kind is dict else "ordered_dict": pairs}
        items = [self.encode(item, f"{place}[{at}]", inner) for at, item in enumerate(obj)]
        return items if kind is list else {"tuple": items}

    def _key(self, key: Any, place: str) -> Any:
        if key is not None and type(key) not in (str, int, bool, float):
            _refuse(f"a key of type {type(key).__qualname__}", place)
        return self.encode(key, place, ())

    def _leaf(self, obj: Any, place: str) -> dict[str, Any]:
        known = self._known.get(id(obj))
        if known is not None:
            return known
        if isinstance(obj, Tensor):
            if obj.qparams is not None:
                _refuse("a quantised Tensor", place)
            tag = "parameter" if type(obj) is Parameter else "tensor"
            node = {"device": obj.device, "name": obj.name}
            array = obj.numpy()
        else:
            tag = "array" if isinstance(obj, np.ndarray) else "scalar"
            node, array = {}, np.asarray(obj)
        if array.dtype.name not in dtypes.CODES:
            _refuse(f"dtype {array.dtype}", place)
        number = str(len(self.arrays))
        self.arrays[number] = array.astype(array.dtype.newbyteorder("="), copy=False)
        self._known[id(obj)] = {tag: number, **node}
        self._alive.append(obj)
        return self._known[id(obj)]


def _refuse(what: str, place: str) -> NoReturn:
    raise AttrTypeError(f"save: cannot be saved, got {what} at {place}, expected {_EXPECTED}")


class _Reader:
    def __init__(self, container: Container, map_location: MapLocation) -> None:
        self._container = container
        self._locate = _locator(map_location)
        self._known: dict[str, Any] = {}

    def decode(self, node: Any, depth: int) -> Any:
        """Return the object that a JSON value stands for."""
        if depth > _MAX_DEPTH:
            self._fail("nested too deeply", f"at most {_MAX_DEPTH}")
        if isinstance(node, list):
            return [self.decode(item, depth + 1) for item in node]
        if not isinstance(node, dict):
            return node
        tag = next(iter(node), "")
        value = node.get(tag)
        if tag in ("tensor", "parameter", "array", "scalar"):
            return self._leaf(tag, value, node)
        if len(node) == 1 and tag == "float" and value in ("nan", "inf", "-inf"):
            return float(value)
        if len(node) == 1 and tag == "traced_module":
            from . import traced_module  # noqa: F401  registers how it is read

        if len(node) == 1 and tag in _codecs:
            return _codecs[tag].decode(
                self._container.path, value, lambda part: self.decode(part, depth + 1)
            )
        if len(node) == 1 and isinstance(value, list):
            if tag == "tuple":
                return tuple(self.decode(item, depth + 1) for item in value)
            if tag in ("dict", "ordered_dict"):
                return self._mapping(tag, value, depth)
        self._fail(f"an unknown value {str(node)[:60]}", "one that save writes")
        return None

    def _mapping(self, tag: str, pairs: list[Any], depth: int) -> dict[Any, Any]:
        result: dict[Any, Any] = {} if tag == "dict" else OrderedDict()
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 2 or isinstance(pair[0], list):
                self._fail("a wrong pair of key and value", "a key and a value")
            key = self.decode(pair[0], depth + 1)
            if key is not None and not isinstance(key, (str, int, float)):
                self._fail("a key of a wrong type", "text, a number or None")
            result[key] = self.decode(pair[1], depth + 1)
        return result

    def _leaf(self, tag: str, number: Any, node: dict[str, Any]) -> Any:
        identity = f"{tag} {number}"
        if identity not in self._known:
            if not isinstance(number, str) or number not in self._container.names():
                self._fail(f"a reference to tensor {number!r}", "one that is in the file")
            # A copy of its own: the file's memory can be neither written nor kept for ever.
            array = np.array(self._container.tensor(number))
            if tag == "scalar" and array.ndim:
                self._fail(f"a scalar of shape {array.shape}", "()")
            if tag in ("tensor", "parameter"):
                self._known[identity] = self._tensor(tag, array, node)
            else:
                self._known[identity] = array if tag == "array" else array[()]
        return self._known[identity]

    def _tensor(self, tag: str, array: np.ndarray, node: dict[str, Any]) -> Tensor:
        device, name = node.get("device"), node.get("name")
        if not isinstance(device, str) or not isinstance(name, str):
            self._fail(f"a tensor on device {device!r} of name {name!r}", "text")
        target = self._locate(device)
        try:
            kind = Parameter if tag == "parameter" else Tensor
            return kind(array, dtype=array.dtype, device=target, name=name)
        except DeviceError as error:
            raise DeviceError(
                f"load: a tensor cannot go to {target}: {error}; map_location='cpu' brings all "
                "tensors to the host"
            ) from error

    def _fail(self, got: str, expected: str) -> NoReturn:
        raise ModelFormatError(
            f"{self._container.path}: saved value is wrong, got {got}, expected {expected}"
        )


def _locator(map_location: MapLocation) -> Callable[[str], str]:
    if map_location is None:
        return lambda device: device
    if isinstance(map_location, str):
        target = parse_device(map_location)
        return lambda device: target
    if isinstance(map_location, Mapping):
        table = {parse_device(old): parse_device(new) for old, new in map_location.items()}
        return lambda device: table.get(device, device)
    if callable(map_location):
        return map_location
    raise AttrTypeError(
        f"load: map_location is wrong, got {type(map_location).__name__}, expected None, a device, "
        "a mapping or a function of devices"
    )
