"""Modules that combine others or wrap one function: Sequential, Identity, Elemwise, Concat."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import functional as F
from ..errors import AttrError
from ..imperative.tensor import Tensor
from .module import Module


class Sequential(Module):
    """Run modules one after another.

    Args:
        args: modules, named by their position; or one OrderedDict of modules by name.

    Raises:
        AttrError: where an item is no module or a name is taken.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layer_keys: list[str] = []
        items: Iterable[tuple[str, Any]]
        if len(args) == 1 and isinstance(args[0], dict):
            items = args[0].items()
        else:
            items = ((str(index), module) for index, module in enumerate(args))
        for key, module in items:
            if not isinstance(module, Module):
                raise AttrError(
                    f"Sequential: {key} is no module, got {type(module).__name__}, expected Module"
                )
            if hasattr(self, key):
                raise AttrError(f"Sequential: the name of a layer is taken, got {key!r}")
            setattr(self, key, module)
            self.layer_keys.append(key)

    @property
    def layer_values(self) -> list[Module]:
        """The modules in order."""
        return [getattr(self, key) for key in self.layer_keys]

    def __getitem__(self, index: int | slice) -> Module:
        if isinstance(index, slice):
            return Sequential(
                OrderedDict((key, getattr(self, key)) for key in self.layer_keys[index])
            )
        module: Module = getattr(self, self.layer_keys[index])
        return module

    def __setitem__(self, index: int, module: Module) -> None:
        if not isinstance(module, Module):
            raise AttrError(
                f"Sequential: not a module, got {type(module).__name__}, expected Module"
            )
        setattr(self, self.layer_keys[index], module)

    def __delitem__(self, index: int | slice) -> None:
        keys = self.layer_keys[index] if isinstance(index, slice) else [self.layer_keys[index]]
        for key in keys:
            delattr(self, key)
            self.layer_keys.remove(key)

    def __len__(self) -> int:
        return len(self.layer_keys)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layer_values)

    def forward(self, inputs: Any) -> Any:
        """Feed each module's output to the next."""
        for module in self.layer_values:
            inputs = module(inputs)
        return inputs


class Identity(Module):
    """Return the input as it is."""

    def forward(self, x: Any) -> Any:
        """Return ``x``."""
        return x


# MegEngine's elementwise modes whose name is not that of a function.
_ELEMWISE: dict[str, Callable[..., Any]] = {
    "relu": F.nn.relu,
    "sigmoid": F.nn.sigmoid,
    "silu": F.nn.silu,
    "gelu": F.nn.gelu,
    "softplus": F.nn.softplus,
    "h_swish": F.nn.hswish,
    "negate": F.neg,
    "max": F.maximum,
    "min": F.minimum,
    "true_div": F.div,
    "eq": F.equal,
    "lt": F.less,
    "leq": F.less_equal,
    "not": F.logical_not,
    "and": F.logical_and,
    "or": F.logical_or,
    "xor": F.logical_xor,
    "fuse_add_relu": lambda x, y: F.nn.relu(x + y),
    "fuse_add_sigmoid": lambda x, y: F.nn.sigmoid(x + y),
    "fuse_add_tanh": lambda x, y: F.tanh(x + y),
    "fuse_add_h_swish": lambda x, y: F.nn.hswish(x + y),
    "fuse_mul_add3": lambda x, y, z: x * y + z,
    "fuse_mul_add4": lambda a, b, c, d: a * b + c * d,
}


class Elemwise(Module):
    """Apply an elementwise function by its name.

    Args:
        method: a function's name such as ``add`` or ``exp``, or a fused one such as
            ``fuse_add_relu`` or ``fuse_mul_add3``; case does not matter.

    Raises:
        AttrError: where there is no function of the name.
    """

    def __init__(self, method: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        name = method.lower()
        function = _ELEMWISE.get(name) or getattr(F.elemwise, name, None)
        if not callable(function) or name.startswith("_"):
            raise AttrError(f"Elemwise: unknown method, got {method!r}")
        self.method = method
        self._name = name

    def forward(self, *inps: Tensor) -> Tensor:
        """Return the function of the inputs, which broadcast."""
        function = _ELEMWISE.get(self._name) or getattr(F.elemwise, self._name)
        result: Tensor = function(*inps)
        return result

    def _module_info_string(self) -> str:
        return f"method={self.method}"


class Concat(Module):
    """Join tensors along an axis."""

    def forward(self, inps: Iterable[Tensor], axis: int = 0) -> Tensor:
        """Return the tensors joined along ``axis``."""
        result: Tensor = F.concat(list(inps), axis)
        return result
