"""Modules that combine others or wrap one function: Sequential, lists, Elemwise, Concat."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .. import functional as F
from ..errors import AttrError, AttrTypeError
from ..functional.arguments import whole
from ..imperative.tensor import Tensor
from .module import Module


class Sequential(Module):
    """Run modules one after another.

    Args:
        args: modules, named by their position; or one OrderedDict of modules by name.

    Raises:
        AttrError: where an item is no module or a name is taken.

    >>> from tianyuan.module import Linear, ReLU
    >>> Sequential(Linear(2, 3), ReLU())(F.ones((1, 2))).shape
    (1, 3)
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
            _module(f"Sequential: {key}", module)
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
        setattr(self, self.layer_keys[index], _module("Sequential", module))

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


class ModuleList(Module):
    """Hold modules in a list. A plain list as an attribute does as well; this one has a name.

    Raises:
        AttrError: where an item is no module.

    >>> layers = ModuleList([Identity(), Identity()])
    >>> layers.append(Concat())
    >>> len(layers), type(layers[-1]).__name__
    (3, 'Concat')
    """

    def __init__(self, modules: Iterable[Module] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._count = 0
        self.extend(modules)

    def _items(self) -> list[Module]:
        return [getattr(self, str(index)) for index in range(self._count)]

    def _fill(self, items: list[Module]) -> None:
        """Hold other modules, each as an attribute named by its position."""
        for index in range(len(items), self._count):
            delattr(self, str(index))
        for index, item in enumerate(items):
            setattr(self, str(index), item)
        self._count = len(items)

    def append(self, module: Module) -> None:
        """Put a module at the end."""
        self.extend((module,))

    def extend(self, modules: Iterable[Module]) -> None:
        """Put modules at the end."""
        self._fill(self._items() + [_module("ModuleList", module) for module in modules])

    def insert(self, index: int, module: Module) -> None:
        """Put a module before the one at ``index``."""
        items = self._items()
        items.insert(index, _module("ModuleList", module))
        self._fill(items)

    def __getitem__(self, index: int | slice) -> Any:
        found = self._items()[index]
        return ModuleList(found) if isinstance(found, list) else found

    def __setitem__(self, index: int, module: Module) -> None:
        items = self._items()
        items[index] = _module("ModuleList", module)
        self._fill(items)

    def __delitem__(self, index: int | slice) -> None:
        items = self._items()
        del items[index]
        self._fill(items)

    def __len__(self) -> int:
        return len(self._items())

    def __iter__(self) -> Iterator[Module]:
        return iter(self._items())

    def forward(self, inputs: Any) -> Any:
        """Refuse: a list says not what its modules do with inputs.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("ModuleList: is not run itself, expected a call of its items")


class ModuleDict(Module):
    """Hold modules by name. A plain dict as an attribute does as well; this one has a name.

    Raises:
        AttrError: where an item is no module, or its name that of an attribute.

    >>> heads = ModuleDict({"a": Identity()})
    >>> heads["b"] = Concat()
    >>> list(heads.keys()), "b" in heads
    (['a', 'b'], True)
    """

    def __init__(self, modules: Mapping[str, Module] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._names: list[str] = []
        self.update(modules or {})

    def _keys(self) -> list[str]:
        return self._names

    def update(self, modules: Mapping[str, Module]) -> None:
        """Put modules in under their names."""
        for name, module in modules.items():
            self[name] = module

    def __getitem__(self, name: str) -> Module:
        if name not in self._keys():
            raise KeyError(name)
        module: Module = getattr(self, name)
        return module

    def __setitem__(self, name: str, module: Module) -> None:
        _module("ModuleDict", module)
        if name not in self._names:
            if hasattr(self, name):
                raise AttrError(f"ModuleDict: the name of a module is taken, got {name!r}")
            self._names.append(name)
        setattr(self, name, module)

    def __delitem__(self, name: str) -> None:
        if name not in self._names:
            raise KeyError(name)
        delattr(self, name)
        self._names.remove(name)

    def __contains__(self, name: object) -> bool:
        return name in self._keys()

    def __len__(self) -> int:
        return len(self._keys())

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._keys()))

    def keys(self) -> Iterable[str]:
        """Return the names."""
        return tuple(self._keys())

    def values(self) -> Iterable[Module]:
        """Return the modules."""
        return [self[name] for name in self._keys()]

    def items(self) -> Iterable[tuple[str, Module]]:
        """Return names and modules."""
        return [(name, self[name]) for name in self._keys()]

    def forward(self, inputs: Any) -> Any:
        """Refuse: a dict says not what its modules do with inputs.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("ModuleDict: is not run itself, expected a call of its items")


def _module(owner: str, value: Any) -> Module:
    if not isinstance(value, Module):
        raise AttrTypeError(f"{owner}: not a module, got {type(value).__name__}, expected Module")
    return value


class Flatten(Module):
    """Join axes into one.

    Args:
        start_axis, end_axis: the first and the last of the axes that are joined.

    >>> Flatten()(F.ones((2, 3, 4))).shape
    (2, 12)
    """

    def __init__(self, start_axis: int = 1, end_axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_axis = whole("Flatten", "start_axis", start_axis)
        self.end_axis = whole("Flatten", "end_axis", end_axis)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the tensor with the axes joined."""
        result: Tensor = F.flatten(inputs, self.start_axis, self.end_axis)
        return result

    def _module_info_string(self) -> str:
        return f"start_axis={self.start_axis}, end_axis={self.end_axis}"


class Identity(Module):
    """Return the input as it is.

    >>> Identity()(Tensor([1.0])).numpy()
    array([1.], dtype=float32)
    """

    def forward(self, x: Any) -> Any:
        """Return ``x``."""
        return x


# MegEngine's elementwise modes whose name is not that of a function.
_ELEMWISE: dict[str, Callable[..., Any]] = {
    "relu": F.nn.relu,
    "relu6": F.nn.relu6,
    "prelu": F.nn.prelu,
    "hsigmoid": F.nn.hsigmoid,
    "logsigmoid": F.nn.logsigmoid,
    "sign": F.sign,
    "erfc": lambda x: 1.0 - F.erf(x),
    "fast_tanh": lambda x: x * (27.0 + x * x) / (27.0 + 9.0 * x * x),
    "log_sum_exp": F.logaddexp,
    "switch_gt0": lambda x, y: y * (x > 0).cast(y.dtype),
    "cond_leq_mov": lambda x, y, z: z * (x <= y).cast(z.dtype),
    "sigmoid": F.nn.sigmoid,
    "silu": F.nn.silu,
    "gelu": F.nn.gelu,
    "softplus": F.nn.softplus,
    "h_swish": F.nn.hswish,
    "negate": F.neg,
    "max": F.maximum,
    "min": F.minimum,
    "true_div": F.div,
    "eq": lambda x, y: F.equal(x, y).cast(x.dtype),
    "lt": lambda x, y: F.less(x, y).cast(x.dtype),
    "leq": lambda x, y: F.less_equal(x, y).cast(x.dtype),
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

    >>> Elemwise("add")(Tensor([1.0]), Tensor([2.0])).numpy()
    array([3.], dtype=float32)
    """

    def __init__(self, method: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        name = method.lower() if isinstance(method, str) else "_"
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
    """Join tensors along an axis.

    >>> Concat()([Tensor([1.0]), Tensor([2.0])]).numpy()
    array([1., 2.], dtype=float32)
    """

    def forward(self, inps: Iterable[Tensor], axis: int = 0) -> Tensor:
        """Return the tensors joined along ``axis``."""
        result: Tensor = F.concat(list(inps), axis)
        return result
