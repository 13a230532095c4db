"""Module: a part of a network that owns parameters, buffers and further modules."""

from __future__ import annotations

import threading
from abc import ABCMeta, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..imperative.observe import Followed, unobserved
from ..imperative.state import state
from ..imperative.tensor import Parameter, Tensor
from ..shapes import format_shape
from ..utils.hook import HookHandler
from .loading import load
from .structure import HOOKS, members, walk


class _Depth(threading.local):
    calls = 0


_depth = _Depth()


class Module(Followed, metaclass=ABCMeta):
    """Base of all parts of a network.

    A subclass assigns tensors and modules to attributes and defines ``forward``. A ``Parameter``
    is a parameter, any other ``Tensor`` a buffer; lists, tuples and dicts are searched too.

    Args:
        name: shown in messages and by tools.

    >>> class Scale(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = Parameter([2.0])
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> net = Scale()
    >>> net(Tensor([3.0])).numpy(), list(net.state_dict())
    (array([6.], dtype=float32), ['factor'])
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.quantize_disabled = False
        self._training = True
        self._forward_pre_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self._forward_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()

    @property
    def training(self) -> bool:
        """Whether the module trains."""
        return self._training

    @training.setter
    def training(self, value: bool) -> None:
        self._training = bool(value)

    # Whether loading takes an array of another shape but as many elements: MegEngine keeps what
    # normalises as vectors, and (1, C, 1, 1) means the same as (C,).
    _flat_state = False

    _told = HOOKS

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, (Tensor, Module)) and "_forward_hooks" not in vars(self):
            raise AttributeError(
                f"{type(self).__name__}: super().__init__() must be called before {name!r} "
                "is assigned"
            )
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        # A copy traces its methods anew.
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_traced_")}

    def _contents(self) -> tuple[tuple[str, Any], ...]:
        return tuple(members(self))

    @abstractmethod
    def forward(self, inputs: Any) -> Any:
        """Compute the outputs; subclasses choose the signature.

        >>> from tianyuan.module import ReLU
        >>> ReLU().forward(Tensor([-1.0, 2.0])).tolist()
        [0.0, 2.0]
        """

    def __call__(self, /, *inputs: Any, **kwargs: Any) -> Any:
        """Run the pre-hooks, ``forward`` and the hooks.

        A pre-hook ``hook(module, inputs)`` may return new inputs, a hook
        ``hook(module, inputs, outputs)`` new outputs.
        """
        if state.recorder is not None:
            state.recorder.note_attribute(self, "_edition")
            if _depth.calls == 0:
                self._name_tensors()
        _depth.calls += 1
        try:
            for hook in tuple(self._forward_pre_hooks.values()):
                changed = hook(self, inputs)
                if changed is not None:
                    inputs = changed if isinstance(changed, tuple) else (changed,)
            outputs = self.forward(*inputs, **kwargs)
            for hook in tuple(self._forward_hooks.values()):
                changed = hook(self, inputs, outputs)
                if changed is not None:
                    outputs = changed
            return outputs
        finally:
            _depth.calls -= 1

    def _name_tensors(self) -> None:
        """Give tensors their path as name, so that a model file names its weights."""
        with unobserved():
            for name, tensor in self.named_tensors():
                tensor.name = tensor.name or name

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> HookHandler:
        """Call ``hook(module, inputs)`` before each forward; ``remove()`` of the result ends it.

        >>> from tianyuan.module import Identity
        >>> net = Identity()
        >>> handler = net.register_forward_pre_hook(lambda module, inputs: inputs[0] + 1)
        >>> net(Tensor([1.0])).tolist()
        [2.0]
        """
        return HookHandler(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Callable[..., Any]) -> HookHandler:
        """Call ``hook(module, inputs, outputs)`` after each forward.

        >>> from tianyuan.module import Identity
        >>> net = Identity()
        >>> handler = net.register_forward_hook(lambda module, inputs, outputs: outputs * 3)
        >>> net(Tensor([1.0])).tolist()
        [3.0]
        """
        return HookHandler(self._forward_hooks, hook)

    # What it holds.

    def named_tensors(
        self, prefix: str | None = None, recursive: bool = True, **kwargs: Any
    ) -> Iterator[tuple[str, Tensor]]:
        """Walk parameters and buffers with their names, each once.

        >>> from tianyuan.module import BatchNorm1d
        >>> [name for name, _ in BatchNorm1d(2).named_tensors()]
        ['bias', 'running_mean', 'running_var', 'weight']
        """
        for name, leaf, _ in walk(self, recursive, _dotted(prefix)):
            if isinstance(leaf, Tensor):
                yield name, leaf

    def tensors(self, recursive: bool = True, **kwargs: Any) -> Iterator[Tensor]:
        """Walk parameters and buffers, each once.

        >>> from tianyuan.module import BatchNorm1d
        >>> len(list(BatchNorm1d(2).tensors()))
        4
        """
        return (tensor for _, tensor in self.named_tensors(recursive=recursive))

    def named_parameters(
        self, prefix: str | None = None, recursive: bool = True, **kwargs: Any
    ) -> Iterator[tuple[str, Parameter]]:
        """Walk parameters with their names, each once.

        >>> from tianyuan.module import Linear
        >>> [name for name, _ in Linear(2, 3).named_parameters(prefix="fc")]
        ['fc.bias', 'fc.weight']
        """
        for name, tensor in self.named_tensors(prefix, recursive):
            if isinstance(tensor, Parameter):
                yield name, tensor

    def parameters(self, recursive: bool = True, **kwargs: Any) -> Iterator[Parameter]:
        """Walk parameters, each once.

        >>> from tianyuan.module import Linear
        >>> sum(parameter.size for parameter in Linear(2, 3).parameters())
        9
        """
        return (tensor for _, tensor in self.named_parameters(recursive=recursive))

    def named_buffers(
        self, prefix: str | None = None, recursive: bool = True, **kwargs: Any
    ) -> Iterator[tuple[str, Tensor]]:
        """Walk tensors that are no parameters with their names, each once.

        >>> from tianyuan.module import BatchNorm1d
        >>> [name for name, _ in BatchNorm1d(2).named_buffers()]
        ['running_mean', 'running_var']
        """
        for name, tensor in self.named_tensors(prefix, recursive):
            if not isinstance(tensor, Parameter):
                yield name, tensor

    def buffers(self, recursive: bool = True, **kwargs: Any) -> Iterator[Tensor]:
        """Walk tensors that are no parameters, each once.

        >>> from tianyuan.module import Linear
        >>> list(Linear(2, 3).buffers())
        []
        """
        return (tensor for _, tensor in self.named_buffers(recursive=recursive))

    def named_children(self, **kwargs: Any) -> Iterator[tuple[str, Module]]:
        """Walk the modules that this module itself holds, with their names.

        >>> from tianyuan.module import ReLU, Sequential
        >>> list(Sequential(ReLU()).named_children())
        [('0', ReLU())]
        """
        for name, leaf, _ in walk(self, recursive=False):
            if isinstance(leaf, Module):
                yield name, leaf

    def children(self, **kwargs: Any) -> Iterator[Module]:
        """Walk the modules that this module itself holds.

        >>> from tianyuan.module import ReLU, Sequential
        >>> list(Sequential(Sequential(ReLU())).children())[0]
        Sequential(
          (0): ReLU()
        )
        """
        return (module for _, module in self.named_children())

    def named_modules(
        self, prefix: str | None = None, **kwargs: Any
    ) -> Iterator[tuple[str, Module]]:
        """Walk this module, named by the prefix, and all below it, each once.

        >>> from tianyuan.module import ReLU, Sequential
        >>> [name for name, _ in Sequential(Sequential(ReLU())).named_modules()]
        ['', '0', '0.0']
        """
        yield prefix or "", self
        for name, leaf, _ in walk(self, prefix=_dotted(prefix)):
            if isinstance(leaf, Module):
                yield name, leaf

    def modules(self, **kwargs: Any) -> Iterator[Module]:
        """Walk this module and all below it, each once.

        >>> from tianyuan.module import ReLU, Sequential
        >>> len(list(Sequential(ReLU(), ReLU()).modules()))
        3
        """
        return (module for _, module in self.named_modules())

    def apply(self, fn: Callable[[Module], Any]) -> None:
        """Call ``fn`` with this module and with all below it.

        >>> from tianyuan.module import ReLU, Sequential
        >>> Sequential(ReLU()).apply(lambda module: print(type(module).__name__))
        Sequential
        ReLU
        """
        for module in self.modules():
            fn(module)

    # What it is set to.

    def train(self, mode: bool = True, recursive: bool = True) -> Module:
        """Set this module, and all below it if ``recursive``, to training or evaluation.

        >>> from tianyuan.module import ReLU, Sequential
        >>> [part.training for part in Sequential(ReLU()).eval().train().modules()]
        [True, True]
        """
        parts = list(self.modules()) if recursive else [self]
        before = [part.training for part in parts]
        try:
            for part in parts:
                part.training = mode
        except Exception:  # a part that cannot train: no other may be left in that mode
            for part, was in zip(parts, before, strict=True):
                part.training = was
            raise
        return self

    def eval(self) -> Module:
        """Set this module and all below it to evaluation.

        >>> from tianyuan.module import ReLU, Sequential
        >>> [part.training for part in Sequential(ReLU()).eval().modules()]
        [False, False]
        """
        return self.train(False)

    def disable_quantize(self, value: bool = True) -> None:
        """Exclude this module and all below it from quantisation.

        >>> from tianyuan.module import ReLU
        >>> net = ReLU()
        >>> net.disable_quantize()
        >>> net.quantize_disabled
        True
        """

        def disable(module: Module) -> None:
            module.quantize_disabled = value

        self.apply(disable)

    def zero_grad(self) -> None:
        """Set every parameter's gradient to zero.

        >>> from tianyuan.module import Linear
        >>> net = Linear(1, 1)
        >>> net.weight.grad = Tensor([[5.0]])
        >>> net.zero_grad()
        >>> net.weight.grad.tolist()
        [[0.0]]
        """
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.reset_zero()

    def replace_param(
        self, params: dict[int, Parameter], start_pos: int, seen: set[int] | None = None
    ) -> int:
        """Put other parameters in the place of those with given numbers; return how many there are.

        Args:
            params: new parameters by number, counted in the order of ``parameters()``.
            start_pos: the number of this module's first parameter.
            seen: ids of parameters and modules that were counted before.

        Raises:
            ShapeError: where a new parameter has another shape.

        >>> from tianyuan.module import Linear
        >>> net = Linear(1, 1, bias=False)
        >>> net.replace_param({0: Parameter([[7.0]])}, 0)
        1
        >>> net.weight.tolist()
        [[7.0]]
        """
        seen = {id(self)} if seen is None else seen
        count = 0
        for key, leaf in list(members(self)):
            if id(leaf) in seen:
                continue
            seen.add(id(leaf))
            if isinstance(leaf, Module):
                count += leaf.replace_param(params, start_pos + count, seen)
            elif isinstance(leaf, Parameter):
                new = params.get(start_pos + count)
                if new is not None:
                    _replace(self, key, leaf, new)
                    seen.add(id(new))
                count += 1
        return count

    # What is kept of it.

    def state_dict(
        self,
        rst: dict[str, Any] | None = None,
        prefix: str = "",
        keep_var: bool = False,
    ) -> dict[str, Any]:
        """Return parameters and buffers by name, as numpy arrays, or tensors if ``keep_var``.

        Args:
            rst: the dict to add to; a new one if None.
            prefix: what is put before each name, as it is: ``"net."`` gives ``net.weight``.

        >>> from tianyuan.module import Linear
        >>> Linear(1, 1).state_dict(prefix="fc.")["fc.bias"]
        array([0.], dtype=float32)
        """
        result = OrderedDict() if rst is None else rst
        for name, tensor in self._state_tensors():
            result[prefix + name] = tensor if keep_var else tensor.numpy()
        return result

    def _state_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Walk what ``state_dict`` keeps; a subclass may leave something out."""
        return self.named_tensors()

    def load_state_dict(
        self,
        state_dict: dict[str, Any] | Callable[[str, Tensor], np.ndarray | None],
        strict: bool = True,
    ) -> tuple[list[str], list[str]]:
        """Give parameters and buffers the values of a state dict.

        Args:
            state_dict: arrays by name, or a function (name, tensor) -> array, None where it has
                none. Weights of normalisations may have another shape of as many elements.
            strict: False lets names be missing or unexpected.

        Returns:
            Missing and unexpected names.

        Raises:
            StateDictError: names everything missing, unexpected or of another shape; nothing has
                been changed then.

        >>> from tianyuan.module import Linear
        >>> net = Linear(1, 1)
        >>> net.load_state_dict({"weight": [[2.0]]}, strict=False)
        (['bias'], [])
        >>> net.weight.tolist()
        [[2.0]]
        """
        if not callable(state_dict):
            for name, part in self.named_modules():
                part._before_loading(_below(_dotted(name), state_dict))
        tensors = dict(self._state_tensors())
        flat = {name for name, _, parent in walk(self) if parent._flat_state}
        found = load(type(self).__name__, tensors, state_dict, strict, flat)
        for part in self.modules():
            part._after_loading()
        return found

    def _before_loading(self, values: dict[str, Any]) -> None:
        """Make room for buffers whose shapes are known from data only; a subclass's to define.

        ``values`` holds what the state dict has for this module, by the names of its attributes.
        """

    def _after_loading(self) -> None:
        """Follow values that a state dict has given to buffers; a subclass's to define."""

    def _module_info_string(self) -> str:
        """Return what a subclass wants its printed form to say."""
        return ""

    def __repr__(self) -> str:
        children: dict[int, tuple[str, Module]] = {}
        for name, leaf in members(self, by_name=False):
            if isinstance(leaf, Module):
                children.setdefault(id(leaf), (name, leaf))
        lines = [
            f"  ({name}): " + repr(child).replace("\n", "\n  ") for name, child in children.values()
        ]
        head = f"{type(self).__name__}({self._module_info_string()}"
        return head + ("\n" + "\n".join(lines) + "\n)" if lines else ")")


def _dotted(prefix: str | None) -> str:
    return f"{prefix}." if prefix else ""


def _below(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a state dict that stand below a prefix, without it."""
    return {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}


def _replace(owner: Module, path: str, old: Tensor, new: Tensor) -> None:
    """Put a tensor in the place of another inside an attribute, list or dict."""
    if tuple(new.shape) != tuple(old.shape):
        raise ShapeError(
            f"Module.replace_param: new parameter {path!r} has another shape, got "
            f"{format_shape(new.shape)}, expected {format_shape(old.shape)}"
        )
    key = path.split(".")[0]
    setattr(owner, key, _substituted(getattr(owner, key), old, new))


def _substituted(value: Any, old: Tensor, new: Tensor) -> Any:
    if value is old:
        return new
    if isinstance(value, (list, tuple)):
        return type(value)(_substituted(item, old, new) for item in value)
    if isinstance(value, dict):
        return type(value)((name, _substituted(item, old, new)) for name, item in value.items())
    return value
