"""Decide what every module in training form can do: watch and fake-quantise what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tianyuan import Tensor
from tianyuan.errors import AttrError
from tianyuan.functional.quantized import QuantizedDType
from tianyuan.imperative.state import state
from tianyuan.module import Module

from ..config import QConfig, config_of_all
from ..fake import FakeQuantize, fake_quant_bias, fake_quant_mean
from ..memory import Memory
from ..observer import Observer
from ..params import HostParams, QParams, QuantDtype


class QATModule(Module):
    """A module that feels quantisation while it trains.

    A subclass computes with ``apply_quant_weight`` and ``apply_quant_activation`` in ``forward``;
    ``with_weight`` and ``with_act`` say what it has.

    >>> import tianyuan.module as M
    >>> from ..config import min_max_fakequant_qconfig
    >>> from .product import Linear
    >>> form = Linear.from_float_module(M.Linear(3, 2))
    >>> form.set_qconfig(min_max_fakequant_qconfig)
    >>> form.get_weight_dtype().name, form.get_activation_dtype().name
    ('qint8_narrow', 'qint8')
    >>> _ = form(Tensor([[1.0, 2.0, 3.0]]))
    >>> form.get_activation_dtype().scale == form.get_activation_qparams().scale.item()
    True
    """

    with_weight = True
    with_act = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Arguments are those of the float module, which follows in the order of classes.
        super().__init__(*args, **kwargs)
        self._init_quantisation()

    def _init_quantisation(self) -> None:
        self.weight_observer: Observer | None = None
        self.act_observer: Observer | None = None
        self.weight_fake_quant: FakeQuantize | None = None
        self.act_fake_quant: FakeQuantize | None = None

    @classmethod
    def from_float_module(cls, float_module: Module) -> QATModule:
        """Return the training form of a module; it shares parameters and children.

        Raises:
            AttrError: where the module is of another class.
        """
        floats = [base for base in cls.__mro__[1:] if not issubclass(base, QATModule)]
        known = next((b for b in floats if issubclass(b, Module) and b is not Module), Module)
        if not isinstance(float_module, known):
            raise AttrError(
                f"{cls.__name__}.from_float_module: got {type(float_module).__name__}, expected "
                f"{known.__name__}"
            )
        found = cls.__new__(cls)
        found.__dict__.update(vars(float_module))
        found._init_quantisation()
        return found

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run as one unit: what surrounds a network's ops does not look inside."""
        outer = state.interceptor
        state.interceptor = None
        try:
            outputs = super().__call__(*inputs, **kwargs)
        finally:
            state.interceptor = outer
        note = getattr(outer, "note_module", None)
        if note is not None:
            note(self, inputs, outputs)
        return outputs

    # Configuration.

    def set_qconfig(self, qconfig: QConfig) -> None:
        """Take observers and fake quantisers of a configuration.

        Raises:
            AttrError: where it is none, or one makes something else.
        """
        config_of_all("set_qconfig", qconfig)
        for kind in ("weight_observer", "act_observer", "weight_fake_quant", "act_fake_quant"):
            factory = getattr(qconfig, kind)
            wanted = self.with_act if kind.startswith("act") else self.with_weight
            found = _made(kind, factory) if factory is not None and wanted else None
            base = Observer if kind.endswith("observer") else FakeQuantize
            if found is not None and not isinstance(found, base):
                raise AttrError(
                    f"QConfig: {kind} makes the wrong thing, got {type(found).__name__}, expected "
                    f"an object of a class below {base.__name__}"
                )
            setattr(self, kind, found)
        if not self.training:
            self.set_observer(False)

    def set_observer(self, enable: bool) -> None:
        """Let the observers watch or not."""
        for observer in (self.weight_observer, self.act_observer):
            if observer is not None:
                observer.enable() if enable else observer.disable()

    def set_fake_quant(self, enable: bool) -> None:
        """Let the fake quantisers act or not."""
        for fake in (self.weight_fake_quant, self.act_fake_quant):
            if fake is not None:
                fake.enable() if enable else fake.disable()

    # What forward uses.

    def _applied(self, target: Tensor, observer: Any, fake: FakeQuantize | None) -> Tensor:
        if observer is not None:
            target = observer(target)
        if fake is None or not fake.enabled:
            return target
        result: Tensor = fake(target, None if observer is None else observer.get_qparams())
        return result

    def apply_quant_weight(self, target: Tensor) -> Tensor:
        """Watch and fake-quantise a weight."""
        return self._applied(target, self.weight_observer, self.weight_fake_quant)

    def apply_quant_activation(self, target: Tensor) -> Tensor:
        """Watch and fake-quantise a result, which remembers by what."""
        result = self._applied(target, self.act_observer, self.act_fake_quant)
        fake = self.act_fake_quant
        if fake is not None and fake.enabled:
            _makers.note(result, self)
        return result

    def apply_quant_bias(
        self, target: Tensor | None, inp: Tensor, w_qat: Tensor | None = None
    ) -> Tensor | None:
        """Round a bias to the scale of the sums that it is added to, where that is known.

        ``w_qat`` is accepted for MegEngine's sake: the weight's parameters are this module's.
        """
        fake = self.weight_fake_quant
        if target is None or fake is None or not fake.enabled:
            return target
        maker = None if self.training else _makers.of(inp)
        given = None if maker is None else maker.get_activation_qparams()
        return fake_quant_bias(target, given, self.get_weight_qparams())

    # What conversion asks.

    def get_weight_dtype(self) -> QuantDtype | QuantizedDType | None:
        """Return the quantised dtype of the weight, or None; one scale that is known is in it."""
        return _dtype(self.weight_observer, self.weight_fake_quant)

    def get_activation_dtype(self) -> QuantDtype | QuantizedDType | None:
        """Return the quantised dtype of the result, or None; a scale that is known is in it."""
        return _dtype(self.act_observer, self.act_fake_quant)

    def get_weight_qparams(self) -> QParams | None:
        """Return the parameters of the weight, or None."""
        return _qparams(self.weight_observer, self.weight_fake_quant)

    def get_activation_qparams(self) -> QParams | None:
        """Return the parameters of the result, or None."""
        return _qparams(self.act_observer, self.act_fake_quant)

    def host_activation(self, owner: str) -> HostParams:
        """Return the result's parameters as numbers.

        Raises:
            AttrError: naming the module, where they are not known or not usable.
        """
        return _host(owner, self.act_observer, self.act_fake_quant)

    def host_weight(self, owner: str) -> HostParams:
        """Return the weight's parameters as numbers, as ``host_activation``."""
        return _host(f"{owner} (weight)", self.weight_observer, self.weight_fake_quant)


def _made(kind: str, factory: Any) -> Any:
    try:
        return factory()
    except TypeError as error:
        raise AttrError(
            f"QConfig: {kind} cannot be made without arguments, got {error}; expected defaults "
            "for all, or a functools.partial that gives them"
        ) from error


_makers = Memory()  # which module fake-quantised a value
_pooled = Memory()  # the same of values that lie between its steps


def hand_on(values: Sequence[Tensor], result: Tensor, in_range: bool) -> None:
    """Note for what was made of values the module that fake-quantised all of them.

    ``in_range`` says that the result lies in the range of the values, but not on their steps.
    """
    maker = _makers.of(values[0])
    if maker is not None and all(_makers.of(x) is maker for x in values[1:]):
        _makers.note(result, maker)
        if in_range or any(_pooled.of(x) is not None for x in values):
            _pooled.note(result, maker)


def as_read(x: Tensor) -> Tensor:
    """Return a layer's input as its integer form reads it: rounded, where it is between steps."""
    maker = _pooled.of(x)
    return x if maker is None else fake_quant_mean(x, maker.get_activation_qparams())


def _learned(fake: FakeQuantize | None) -> Any:
    return fake if hasattr(fake, "get_qparams") else None


def _qparams(observer: Any, fake: FakeQuantize | None) -> QParams | None:
    source = _learned(fake) or observer
    return None if source is None else source.get_qparams()


def _dtype(observer: Any, fake: FakeQuantize | None) -> QuantDtype | QuantizedDType | None:
    source = fake if observer is None else observer
    if source is None:
        return None
    try:
        found = _host(type(source).__name__, observer, fake)
    except AttrError:  # nothing usable was seen yet
        found = None
    dtype: QuantDtype = source.dtype
    return dtype if found is None or len(found.scales) > 1 else found.carried()


def _host(owner: str, observer: Any, fake: FakeQuantize | None) -> HostParams:
    if observer is not None:
        observer.check_ready(owner)
    found = _qparams(observer, fake)
    if found is None:
        found = QParams(None, None)  # type: ignore[arg-type]
    return found.host(owner)
