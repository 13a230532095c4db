"""A torch module as a Tianyuan module: the same weights under the same names, to be trained on."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..dtypes import as_dtype
from ..errors import ShapeError, TianyuanError
from ..imperative.tensor import Parameter, Tensor
from ..jit.tracer import Tracer
from ..module.module import Module
from ..op import TensorSpec
from .exported import Exported, Held, Ref, Step, export


class _Part(Module):
    """Holds the tensors of one layer of a torch module, and its parts."""

    def forward(self, *_: Any) -> Any:
        """Refuse: only the whole module can be called."""
        raise TypeError("torch.from_module: a part of an imported module cannot be called")


class TorchModule(Module):
    """A module that was made of a torch module; its tensors have torch's names and shapes.

    In training, batch normalisation uses the batch's statistics and moves the running ones, and
    dropout drops, if they did so when the module was exported; after ``eval()`` they do not.

    >>> import torch, tianyuan as ty
    >>> net = from_module(torch.nn.Linear(3, 2), (torch.ones(4, 3),))
    >>> type(net).__name__, net.weight.shape
    ('TorchModule', (2, 3))
    """

    def __init__(self, exported: Exported) -> None:
        super().__init__()
        known: dict[Any, Tensor] = {}
        for held in exported.held:
            _put(self, held.name, _shared(known, held))
        # The arrays are let go: the tensors are copies of them.
        held_names = tuple(replace(held, array=None) for held in exported.held)
        self._exported = replace(exported, held=held_names)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the torch module computes, from inputs nested as it takes them.

        Raises:
            ShapeError: where there are more or fewer inputs.
        """
        given = list(_leaves((args, kwargs)))
        wanted = self._exported.inputs
        if len(given) != len(wanted):
            raise ShapeError(
                f"TorchModule: wrong number of inputs, got {len(given)}, expected {len(wanted)}"
            )
        values: list[Any] = [None] * self._exported.count
        for held in self._exported.held:
            values[held.number] = operator.attrgetter(held.name)(self)
        for place, value in zip(wanted, given, strict=True):
            if place is not None:
                values[place] = value if isinstance(value, Tensor) else Tensor(value)
        training = self.training
        for step in self._exported.steps:
            values[step.result] = _call(step, values, training)
            for number in step.last:
                values[number] = None
        if training:
            self._update(values)
        return _filled(self._exported.outputs, values)

    def _update(self, values: Sequence[Any]) -> None:
        """Give buffers the values that the run has made for them."""
        for name, number in self._exported.updates.items():
            buffer = operator.attrgetter(name)(self)
            if values[number] is not buffer:
                buffer._reset(values[number].detach().cast(buffer.dtype))


def from_module(
    module: Any,
    example_inputs: Sequence[Any],
    dynamic_shapes: Mapping[str, Mapping[int, str]] | None = None,
) -> TorchModule:
    """Turn a ``torch.nn.Module`` into a module that computes and trains without torch.

    The module is exported by ``torch.export`` in the mode that it is in: export it in training
    mode to train batch norms and dropout further. Weights are copied; those that need no gradient
    in torch are buffers. A ``torch`` state dict of the module fits ``load_state_dict``, and
    ``to_torch(result.state_dict())`` fits the torch module.

    Args:
        module: what to turn.
        example_inputs: torch tensors (or nested lists, tuples and dicts of them), one per
            argument, to export with. Give batches of more than one example.
        dynamic_shapes: dimensions that may vary, by the names of ``forward``'s arguments:
            ``{"x": {0: "batch"}}``. By default the first axis of every input varies where the
            module allows it.

    Raises:
        BackendError: where torch is not installed.
        TypeError: where the module is none of torch, or the examples do not fit ``forward``.
        TraceError: where ``torch.export`` refuses the module.
        GraphError: names every ATen operator that has no counterpart.
        UnsupportedError: where an operator is used in a way that has none.

    >>> import torch, tianyuan as ty
    >>> net = from_module(torch.nn.ReLU(), (torch.ones(4, 2),))
    >>> net(ty.Tensor([[-1.0, 2.0]])).numpy()
    array([[0., 2.]], dtype=float32)
    """
    found = TorchModule(export(module, example_inputs, dynamic_shapes))
    found.train(bool(module.training))
    _try(found, list(_leaves(tuple(example_inputs))))
    return found


def _try(module: TorchModule, example_inputs: Sequence[Any]) -> None:
    """Run the steps without data, so that what has no counterpart shows at once."""
    tracer = Tracer(capture_as_const=False)
    with tracer.recording():
        values = [
            tracer.add_input(_spec(value), str(number)) if hasattr(value, "detach") else value
            for number, value in enumerate(example_inputs)
        ]
        module.forward(*values)


def _spec(value: Any) -> TensorSpec:
    name = str(value.dtype).removeprefix("torch.")
    return TensorSpec(tuple(int(n) for n in value.shape), as_dtype(name))


def _shared(known: dict[Any, Tensor], held: Held) -> Tensor:
    """Return the tensor for a weight; weights that share memory in torch are one tensor."""
    array = held.array
    assert array is not None
    place = (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype)
    if array.size and place in known:
        return known[place]
    kind = Parameter if held.trains else Tensor
    made = kind(array, dtype=array.dtype, name=held.name)
    known[place] = made
    return made


def _put(root: Module, name: str, tensor: Tensor) -> None:
    """Give a module a tensor under a dotted name, with parts in between."""
    *path, last = name.split(".")
    owner = root
    for key in path:
        if not isinstance(getattr(owner, key, None), Module):
            setattr(owner, key, _Part())
        owner = getattr(owner, key)
    setattr(owner, last, tensor)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    else:
        yield value


def _call(step: Step, values: Sequence[Any], training: bool) -> Any:
    args = [_filled(value, values) for value in step.args]
    kwargs = {key: _filled(value, values) for key, value in step.kwargs.items()}
    if step.modal:
        kwargs["training"] = training
    try:
        return step.function(*args, **kwargs)
    except TianyuanError as error:
        raise type(error)(f"{step.title}: {error}") from error


def _filled(value: Any, values: Sequence[Any]) -> Any:
    """Put values in the place of Refs."""
    if isinstance(value, Ref):
        return values[value.number]
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(item, values) for item in value)
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    return value


__all__ = ["TorchModule", "from_module"]
