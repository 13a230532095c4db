"""Refuse what no quantisation can serve, naming where it stands, before anything is changed."""

from __future__ import annotations

import errno
import inspect
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from tianyuan import Tensor
from tianyuan.errors import AttrError
from tianyuan.graph.graph import Graph
from tianyuan.jit.model import check_target as check_name
from tianyuan.module import Module

from .arguments import any_matches, named_or_close

# What a network must have to be quantised, and the way of those that have none.
LAYERS = (
    "a network with layers of tianyuan.module that have integer forms, as Conv2d and Linear; what "
    "torch.from_module and onnx.load return has none, nor have recurrent layers, but their files: "
    "trace the network, dump it, give the .tym"
)

# What those are told who give pairs of input and label.
LABELS = ", without labels: of pairs as loaders give them, [x for x, _ in loader]"


def warn_of_no_pairs(op: str) -> None:
    """Say that nothing was equalised: what was asked for needs layers that follow each other."""
    warnings.warn(
        f"{op}: nothing is equalised, as no two layers follow each other through ReLU or pooling "
        "only",
        stacklevel=3,
    )


def patterns_of(op: str, keep: Any) -> tuple[str, ...]:
    """Return patterns of names; a text is one pattern.

    >>> patterns_of("quantize_static", "head.*")
    ('head.*',)
    """
    found = (keep,) if isinstance(keep, str) else tuple(keep) if _is_iterable(keep) else keep
    if not isinstance(found, tuple) or not all(isinstance(p, str) for p in found):
        raise AttrError(f"{op}: keep is wrong, got {keep!r}, expected patterns of names")
    return found


def batches_of(op: str, data: Any) -> Iterable[Any]:
    """Return calibration data, which must be iterable."""
    if isinstance(data, (np.ndarray, Tensor)):
        raise AttrError(
            f"{op}: calibration data is wrong, got one array of shape {tuple(data.shape)}, "
            "expected a list of batches, such as [array]"
        )
    if isinstance(data, (str, bytes, Mapping)) or not _is_iterable(data):
        raise AttrError(
            f"{op}: calibration data is wrong, got {type(data).__name__}, expected batches: "
            "a list of them, or what gives one after the other"
        )
    return data  # type: ignore[no-any-return]


def batch_of(op: str, index: int, item: Any, names: Sequence[str] = ()) -> tuple[Any, ...]:
    """Return the inputs of one batch, those of a dict in the order of their names.

    Raises:
        AttrError: where one is no array and no tensor, or a dict has other names.

    >>> batch_of("quantize_static", 0, 1.0), batch_of("op", 0, {"b": 1.0, "a": 2.0}, ["a", "b"])
    ((1.0,), (2.0, 1.0))
    """
    if isinstance(item, Mapping):
        if set(item) != set(names):
            raise AttrError(
                f"{op}: batch {index} is wrong, got a dict of {_listed(item)}, expected "
                f"{_listed(names)}"
            )
        item = tuple(item[name] for name in names)
    given = tuple(item) if isinstance(item, (tuple, list)) else (item,)
    for value in given:
        if isinstance(value, (str, bytes, Mapping)) or value is None:
            raise AttrError(
                f"{op}: batch {index} is wrong, got {type(value).__name__}, expected an array or "
                "tensor, a tuple of them in the order of the inputs, or a dict of them by name"
            )
    return given


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def names_of(net: Module, item: Any) -> list[str]:
    """Return the names by which a dict gives a network its inputs, those it may omit if it does.

    >>> import tianyuan.module as M
    >>> names_of(M.Linear(1, 1), {"x": 1.0})
    ['x']
    """
    parameters = inspect.signature(net.forward).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    given = [index for index, p in enumerate(named) if p.name in item]
    # What stands in front of an input that is given must be given too: batches are tuples.
    count = max(given, default=-1) + 1
    return [p.name for i, p in enumerate(named) if i < count or p.default is p.empty]


def inputs_of(op: str, net: Module, item: Any, index: int = 0) -> tuple[Tensor, ...]:
    """Return an example, or a batch of a network, as tensors in the order of its inputs.

    Raises:
        AttrError: where it is neither an input, nor a tuple or a dict of those that it takes.

    >>> import tianyuan.module as M
    >>> inputs_of("op", M.Linear(1, 1), {"x": [1.0]})[0].tolist()
    [1.0]
    """
    names = names_of(net, item) if isinstance(item, Mapping) else ()
    given = batch_of(op, index, item, names)
    found = tuple(x if isinstance(x, Tensor) else Tensor(x) for x in given)
    check_call(op, net, found)
    return found


def batch_size(x: Any) -> int:
    """Return how many numbers an input has: an empty one shows no layer anything.

    >>> batch_size(np.zeros((0, 3)))
    0
    """
    return int(np.prod(x.shape))


def check_call(op: str, net: Module, batch: Sequence[Any]) -> None:
    """Raise AttrError where a network's forward does not take as many inputs as a batch has.

    >>> import tianyuan.module as M
    >>> check_call("quantize_qat", M.ReLU(), [1.0])
    """
    signature = inspect.signature(net.forward)
    try:
        signature.bind(*batch)
    except TypeError:
        raise AttrError(
            f"{op}: inputs do not fit the network, got {len(batch)}, expected "
            f"{', '.join(signature.parameters) or 'none'}; a tuple or list holds all inputs of one "
            f"call{LABELS}"
        ) from None


def network_of(op: str, module: Any) -> Module:
    """Return what must be a network.

    Raises:
        AttrError: where it is none.
    """
    if not isinstance(module, Module):
        raise AttrError(f"{op}: module is wrong, got {module!r:.60}, expected a Module")
    return module


def check_source(op: str, model: Any) -> None:
    """Raise AttrError where a model is neither a network nor the path of a file."""
    if not isinstance(model, (Module, str, os.PathLike)):
        raise AttrError(
            f"{op}: model is wrong, got {_named(model)}, expected a Module of "
            "tianyuan.module or the path of a .tym or .onnx file"
        )


def check_target(op: str, target: str | os.PathLike[str]) -> None:
    """Look at where a model file is to be written, before anything is computed.

    Raises:
        AttrError: where the name is that of another format.
        FileNotFoundError: where there is no folder for it to lie in.
    """
    check_name(op, target)
    folder = os.path.dirname(os.path.abspath(target))
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "No such folder to write to", folder)


def check_no_target(op: str, target: Any) -> None:
    """Raise AttrError where a file is to be written of what is no file."""
    if target is not None:
        raise AttrError(
            f"{op}: target is for files, got {target!r} and a network, expected a trace of "
            "result.module to write, see trace.dump"
        )


def _named(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _is_iterable(value: Any) -> bool:
    return hasattr(value, "__iter__")


def check_finite(op: str, name: str, *arrays: np.ndarray) -> None:
    """Raise AttrError where a weight or bias has infinities or NaN."""
    wrong = sum(array.size - np.count_nonzero(np.isfinite(array)) for array in arrays)
    if wrong:
        raise AttrError(
            f"{op}: the weights of {name or 'the network itself'} have numbers that are not "
            f"finite, got {wrong} of them, expected none"
        )


def check_parameters(op: str, net: Module) -> None:
    """Raise AttrError where a parameter of a network has infinities or NaN."""
    for name, parameter in net.named_parameters():
        check_finite(op, name, parameter.numpy())


def check_kept(
    op: str, keep: Sequence[str], names: Sequence[str], what: str, graph: Graph | None = None
) -> None:
    """Raise AttrError where there is nothing to quantise, or a pattern matches none of it."""
    if not names:
        if graph is not None and any(_is_stored(node.op.name) for node in graph.nodes):
            raise AttrError(
                f"{op}: the model is quantised already, got ops on integers, expected floats"
            )
        wanted = LAYERS if graph is None else "one"
        raise AttrError(f"{op}: the model has no {what} to quantise, got none, expected {wanted}")
    lost = [p for p in keep if not any_matches(names, p)]
    if lost:
        raise AttrError(
            f"{op}: nothing has a name of {named_or_close(lost, names)}, got keep={list(keep)}, "
            f"expected patterns of {', '.join(sorted(set(names))[:12])}"
        )


def _is_stored(op: str) -> bool:
    return op.endswith("_quantized") or op in ("linear_dynamic", "linear_int4")
