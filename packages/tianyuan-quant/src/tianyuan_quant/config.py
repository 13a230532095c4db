"""Say which observer and fake quantiser a module gets, by preset or by pattern of its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from tianyuan.errors import AttrError
from tianyuan.module import Module

from .arguments import any_matches, matches, named_or_close
from .fake import LSQ, PACT, TQT, FakeQuantize
from .histogram import HistogramObserver
from .observer import (
    ExponentialMovingAverageObserver,
    MinMaxObserver,
    PassiveObserver,
    SyncExponentialMovingAverageObserver,
    SyncMinMaxObserver,
)
from .params import QuantMode
from .registration import named

Factory = Callable[..., Any] | str | None


class _Parts(NamedTuple):
    weight_observer: Any
    act_observer: Any
    weight_fake_quant: Any
    act_fake_quant: Any


class QConfig(_Parts):
    """What weights and activations are watched and fake-quantised by.

    Each field makes the object without arguments: a class, or a ``functools.partial`` of one, or
    the name under which one is registered; None leaves it out.

    Raises:
        AttrError: where nothing is registered under a name, or a field is nothing to call.

    It is a named tuple: it can be compared, taken apart, and changed by ``_replace``.

    >>> min_max_fakequant_qconfig.act_observer().dtype.name
    'qint8'
    >>> calibration_qconfig._replace(act_observer=MinMaxObserver).act_observer.__name__
    'MinMaxObserver'
    """

    __slots__ = ()

    def __new__(
        cls,
        weight_observer: Factory,
        act_observer: Factory,
        weight_fake_quant: Factory,
        act_fake_quant: Factory,
    ) -> QConfig:
        given = (weight_observer, act_observer, weight_fake_quant, act_fake_quant)
        return super().__new__(cls, *map(_factory, _Parts._fields, given))

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> QConfig:  # type: ignore[override]
        """Return a configuration with parts of another, as ``_replace`` asks for: checked too."""
        return cls(*iterable)


def _factory(name: str, given: Factory) -> Any:
    if isinstance(given, str):
        return named(given)
    if given is not None and (not callable(given) or isinstance(given, Module)):
        raise AttrError(
            f"QConfig: {name} is wrong, got {given!r:.60}, expected a class, a "
            "functools.partial of one, the name of one, or None"
        )
    return given


_NARROW = partial(MinMaxObserver, dtype="qint8_narrow")
_FAKE_WEIGHT = partial(FakeQuantize, dtype="qint8_narrow")
_FAKE = partial(FakeQuantize, dtype="qint8")

min_max_fakequant_qconfig = QConfig(
    _NARROW, partial(MinMaxObserver, dtype="qint8"), _FAKE_WEIGHT, _FAKE
)
ema_fakequant_qconfig = QConfig(
    _NARROW, partial(ExponentialMovingAverageObserver, dtype="qint8"), _FAKE_WEIGHT, _FAKE
)
# Observers see the values of all ranks; weights are the same on every one.
sync_ema_fakequant_qconfig = QConfig(
    partial(SyncMinMaxObserver, dtype="qint8_narrow"),
    partial(SyncExponentialMovingAverageObserver, dtype="qint8"),
    _FAKE_WEIGHT,
    _FAKE,
)
ema_lowbit_fakequant_qconfig = QConfig(
    partial(MinMaxObserver, dtype="qint4"),
    partial(ExponentialMovingAverageObserver, dtype="quint4", mode=QuantMode.ASYMMERTIC),
    partial(FakeQuantize, dtype="qint4"),
    partial(FakeQuantize, dtype="quint4"),
)
calibration_qconfig = QConfig(_NARROW, partial(HistogramObserver, dtype="qint8"), None, None)
tqt_qconfig = QConfig(
    _NARROW,
    partial(ExponentialMovingAverageObserver, dtype="qint8"),
    partial(TQT, dtype="qint8_narrow"),
    partial(TQT, dtype="qint8"),
)
lsq_qconfig = QConfig(
    _NARROW,
    partial(ExponentialMovingAverageObserver, dtype="qint8"),
    partial(LSQ, dtype="qint8_narrow"),
    partial(LSQ, dtype="qint8"),
)
pact_qconfig = QConfig(
    _NARROW,
    partial(ExponentialMovingAverageObserver, dtype="qint8"),
    _FAKE_WEIGHT,
    partial(PACT, dtype="qint8"),
)
passive_qconfig = QConfig(
    partial(PassiveObserver, dtype="qint8_narrow"),
    partial(PassiveObserver, dtype="qint8"),
    _FAKE_WEIGHT,
    _FAKE,
)
easyquant_qconfig = passive_qconfig

# One scale per output channel of weights, unsigned activations with a zero point of their own:
# what loses least at 8 bits.
per_channel_fakequant_qconfig = QConfig(
    partial(MinMaxObserver, dtype="qint8_narrow", channel_axis=0),
    partial(ExponentialMovingAverageObserver, dtype="quint8", mode=QuantMode.ASYMMERTIC),
    _FAKE_WEIGHT,
    partial(FakeQuantize, dtype="quint8"),
)

# What PTQ watches by: no fake quantisation while it calibrates.
static_qconfig = QConfig(
    partial(MinMaxObserver, dtype="qint8_narrow", channel_axis=0),
    partial(HistogramObserver, dtype="quint8", mode=QuantMode.ASYMMERTIC),
    _FAKE_WEIGHT,
    partial(FakeQuantize, dtype="quint8"),
)

QConfigs = QConfig | Mapping[str, "QConfig | None"]


def check_patterns(qconfig: QConfigs, names: Iterable[str]) -> None:
    """Raise AttrError where a configuration is none, or a pattern, listed, matches no module."""
    if isinstance(qconfig, QConfig):
        return
    sound = isinstance(qconfig, Mapping) and all(
        isinstance(p, str) and isinstance(c, (QConfig, type(None))) for p, c in qconfig.items()
    )
    if not sound:
        raise AttrError(
            f"qconfig: got {qconfig!r:.80}, expected a QConfig, or one or None by pattern of names"
        )
    known = [name for name in names if name]
    # The network itself has the empty name, which "*" matches.
    lost = [p for p in qconfig if not any_matches(("", *known), p)]
    if lost:
        raise AttrError(
            f"qconfig: no module has a name of {named_or_close(lost, known)}, "
            f"got patterns {list(qconfig)}, expected a pattern of one of {', '.join(known[:12])}"
            f"{' …' if len(known) > 12 else ''}"
        )


def config_of_all(op: str, qconfig: Any) -> QConfig:
    """Return a configuration that is one, not one by patterns.

    Raises:
        AttrError: where it is none.
    """
    if not isinstance(qconfig, QConfig):
        raise AttrError(f"{op}: qconfig is wrong, got {qconfig!r:.60}, expected a QConfig")
    return qconfig


def config_of(qconfig: QConfigs, name: str) -> QConfig | None:
    """Return the configuration of a module: that of the last pattern that fits it or a parent."""
    if isinstance(qconfig, QConfig):
        return qconfig
    found: QConfig | None = None
    for pattern, given in qconfig.items():
        if matches(name, pattern):
            found = given
    return found
