"""Know which training form stands for a float module, which integer form for that, and names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tianyuan.errors import AttrError, did_you_mean

from .arguments import class_of

_qat: dict[type, type] = {}
_quantized: dict[type, type] = {}
_named: dict[str, type] = {}
Class = TypeVar("Class", bound=type)


def register_observer(name: str) -> Callable[[Class], Class]:
    """Let a ``QConfig`` name the decorated observer.

    Raises:
        AttrError: where the name is taken, or the class decides no parameters.

    >>> from .config import QConfig
    >>> from .observer import MinMaxObserver
    >>> @register_observer("doubled")
    ... class Doubled(MinMaxObserver):
    ...     def get_qparams(self):
    ...         found = super().get_qparams()
    ...         found.scale = found.scale * 2
    ...         return found
    >>> QConfig("doubled", "doubled", None, None).act_observer is Doubled
    True
    >>> del _named["doubled"]
    """
    return _register_named(name, "get_qparams")


def register_fake_quant(name: str) -> Callable[[Class], Class]:
    """Let a ``QConfig`` name the decorated fake quantiser; its dtype must have a default.

    Raises:
        AttrError: where the name is taken, or the class has no ``fake_quant_forward``.

    >>> from .config import QConfig
    >>> from .fake import FakeQuantize
    >>> @register_fake_quant("noisy")
    ... class Noisy(FakeQuantize):
    ...     def __init__(self, dtype="qint8"):
    ...         super().__init__(dtype)
    >>> QConfig(None, None, None, "noisy").act_fake_quant().dtype.name
    'qint8'
    >>> del _named["noisy"]
    """
    return _register_named(name, "fake_quant_forward")


def _register_named(name: str, method: str) -> Callable[[Class], Class]:
    if not isinstance(name, str) or not name:
        raise AttrError(f"register: the name is wrong, got {name!r}, expected a text")

    def register(cls: Class) -> Class:
        _check(method, cls)
        if name in _named:
            raise AttrError(
                f"register: the name is taken by {_named[name].__name__}, got {name!r}, expected "
                "another"
            )
        _named[name] = cls
        return cls

    return register


def named(name: str) -> type:
    """Return the observer or fake quantiser that is registered under a name.

    Raises:
        AttrError: where there is none.
    """
    if name not in _named:
        known = ", ".join(sorted(_named)) or "none"
        raise AttrError(
            f"QConfig: nothing is registered as that, got {name!r}{did_you_mean(name, _named)}, "
            f"expected one of: {known}"
        )
    return _named[name]


def register_qat(float_class: type) -> Callable[[Class], Class]:
    """Make the decorated QATModule the training form of a float module class.

    >>> import tianyuan.module as M
    >>> from .qat import QATModule
    >>> class Twice(M.Module):
    ...     def forward(self, x):
    ...         return x * 2
    >>> @register_qat(Twice)
    ... class QATTwice(QATModule):
    ...     with_weight = False
    ...     def forward(self, x):
    ...         return self.apply_quant_activation(x * 2)
    >>> qat_classes()[Twice] is QATTwice
    True
    >>> del _qat[Twice]
    """

    class_of("register_qat", float_class)

    def register(cls: Class) -> Class:
        _check("from_float_module", cls)
        _qat[float_class] = cls
        return cls

    return register


def register_quantized(qat_class: type) -> Callable[[Class], Class]:
    """Make the decorated QuantizedModule the integer form of a QATModule class.

    >>> from .qat import QATModule
    >>> from .quantized import QuantizedModule
    >>> class QATTwice(QATModule):
    ...     pass
    >>> @register_quantized(QATTwice)
    ... class QuantizedTwice(QuantizedModule):
    ...     @classmethod
    ...     def from_qat_module(cls, qat_module, owner=""):
    ...         return cls(owner, qat_module.host_activation(owner))
    >>> quantized_classes()[QATTwice] is QuantizedTwice
    True
    >>> del _quantized[QATTwice]
    """

    class_of("register_quantized", qat_class)

    def register(cls: Class) -> Class:
        _check("from_qat_module", cls)
        _quantized[qat_class] = cls
        return cls

    return register


def _check(method: str, cls: Any) -> None:
    class_of("register", cls)
    if not callable(getattr(cls, method, None)):
        raise AttrError(
            f"register: {cls.__name__} has no {method}, got {cls!r}, expected a class method"
        )


def qat_classes(mapping: dict[type, type] | None = None) -> dict[type, type]:
    """Return the training forms by float class; ``mapping`` comes first."""
    from . import qat  # noqa: F401  registers ours

    return {**_qat, **_further(mapping, "from_float_module")}


def qat_class_of(float_class: type) -> Any:
    """Return the training form that is registered for a float class, or None.

    >>> import tianyuan.module as M
    >>> qat_class_of(M.Linear).__name__, qat_class_of(M.ReLU)
    ('Linear', None)
    """
    from . import qat  # noqa: F401  registers ours

    return _qat.get(float_class)


def quantized_classes(mapping: dict[type, type] | None = None) -> dict[type, type]:
    """Return the integer forms by class of the training form; ``mapping`` comes first."""
    from . import quantized  # noqa: F401  registers ours

    return {**_quantized, **_further(mapping, "from_qat_module")}


def _further(mapping: Any, method: str) -> dict[type, type]:
    """Return classes by class that a call brings, none for None."""
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        raise AttrError(f"mapping: got {mapping!r}, expected classes by class")
    for key, cls in mapping.items():
        class_of("mapping", key)
        _check(method, cls)
    return dict(mapping)
