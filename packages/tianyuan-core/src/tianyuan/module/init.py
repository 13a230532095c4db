"""Fill parameters in place with what a network starts from."""

from __future__ import annotations

import math

from ..errors import AttrError, ShapeError
from ..functional.arguments import real_number
from ..functional.arguments import tensor as given
from ..imperative.tensor import Tensor
from ..random import normal, uniform
from ..shapes import format_shape


def fill_(tensor: Tensor, val: float) -> None:
    """Set every element to a value.

    >>> weight = Tensor([0.0, 0.0])
    >>> fill_(weight, 3)
    >>> weight.numpy()
    array([3., 3.], dtype=float32)
    """
    given("fill_", tensor)
    tensor._reset(tensor.full(tensor.shape, real_number("fill_", "val", val), tensor.dtype))


def zeros_(tensor: Tensor) -> None:
    """Set every element to zero.

    >>> weight = Tensor([1.0])
    >>> zeros_(weight)
    >>> weight.numpy()
    array([0.], dtype=float32)
    """
    fill_(tensor, 0)


def ones_(tensor: Tensor) -> None:
    """Set every element to one.

    >>> weight = Tensor([0.0])
    >>> ones_(weight)
    >>> weight.numpy()
    array([1.], dtype=float32)
    """
    fill_(tensor, 1)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> None:
    """Draw every element from the uniform distribution over [a, b).

    >>> weight = Tensor([0.0] * 4)
    >>> uniform_(weight, 2.0, 3.0)
    >>> bool(((weight.numpy() >= 2) & (weight.numpy() < 3)).all())
    True
    """
    given("uniform_", tensor)
    low, high = real_number("uniform_", "a", a), real_number("uniform_", "b", b)
    drawn = uniform(low=low, high=high, size=tensor.shape)
    tensor._reset(_like(drawn, tensor))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> None:
    """Draw every element from the normal distribution of a mean and a standard deviation.

    >>> weight = Tensor([0.0, 0.0])
    >>> normal_(weight, 5.0, 0.0)
    >>> weight.numpy()
    array([5., 5.], dtype=float32)
    """
    given("normal_", tensor)
    mean, std = real_number("normal_", "mean", mean), real_number("normal_", "std", std, 0.0)
    drawn = normal(mean=mean, std=std, size=tensor.shape)
    tensor._reset(_like(drawn, tensor))


def _like(drawn: Tensor, tensor: Tensor) -> Tensor:
    moved: Tensor = drawn.cast(tensor.dtype)
    return moved.to(tensor.device)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return by how much weights must grow so that variance survives a nonlinearity.

    Args:
        nonlinearity: ``linear``, ``conv1d`` to ``conv_transpose3d``, ``sigmoid``, ``tanh``,
            ``relu`` or ``leaky_relu``.
        param: negative slope of ``leaky_relu``, 0.01 if None.

    Raises:
        AttrError: for another name, or a slope that is no number.

    >>> round(calculate_gain("relu"), 4)
    1.4142
    """
    linear = (
        "linear",
        *(f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)),
    )
    if nonlinearity in linear or nonlinearity == "sigmoid":
        return 1.0
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise AttrError(
                f"calculate_gain: slope of leaky_relu is not a number, got {param!r}, "
                "expected a number"
            )
        return math.sqrt(2.0 / (1 + slope**2))
    raise AttrError(
        f"calculate_gain: unknown nonlinearity, got {nonlinearity!r}, expected one of "
        f"{', '.join((*linear, 'sigmoid', 'tanh', 'relu', 'leaky_relu'))}"
    )


def calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[float, float]:
    """Return how many inputs and outputs one element of a weight's result meets.

    A linear weight is (out, in), a convolution's (out, in, kh, kw), a grouped one's
    (groups, out/groups, in/groups, kh, kw).

    Raises:
        ShapeError: where the weight has fewer than two dimensions.

    >>> calculate_fan_in_and_fan_out(Tensor([[0.0, 0.0, 0.0]]))
    (3, 1)
    """
    given("calculate_fan_in_and_fan_out", tensor)
    shape = tuple(int(extent) for extent in tensor.shape)
    if len(shape) < 2:
        raise ShapeError(
            f"calculate_fan_in_and_fan_out: weight has too few dimensions, got shape "
            f"{format_shape(shape)}, expected at least 2"
        )
    outputs, inputs, *window = shape[1:] if len(shape) == 5 else shape
    field = math.prod(window)
    return inputs * field, outputs * field


def calculate_correct_fan(tensor: Tensor, mode: str) -> float:
    """Return the fan that a mode, ``fan_in`` or ``fan_out`` in any case, names.

    Raises:
        AttrError: for another mode.

    >>> calculate_correct_fan(Tensor([[0.0, 0.0, 0.0]]), "fan_in")
    3
    """
    chosen = str(mode).lower()
    if chosen not in ("fan_in", "fan_out"):
        raise AttrError(
            f"calculate_correct_fan: unknown mode, got {mode!r}, expected fan_in or fan_out"
        )
    return calculate_fan_in_and_fan_out(tensor)[chosen == "fan_out"]


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> None:
    """Draw from U(-a, a), a = gain * sqrt(6 / (fan_in + fan_out)); Glorot and Bengio 2010.

    >>> weight = Tensor([[0.0] * 6] * 6)
    >>> xavier_uniform_(weight)
    >>> bool((abs(weight.numpy()) <= (6 / 12) ** 0.5).all())
    True
    """
    gain = real_number("xavier_uniform_", "gain", gain)
    bound = gain * math.sqrt(6.0 / sum(calculate_fan_in_and_fan_out(tensor)))
    uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> None:
    """Draw from N(0, gain^2 * 2 / (fan_in + fan_out)); Glorot and Bengio 2010.

    >>> weight = Tensor([[0.0] * 6] * 6)
    >>> xavier_normal_(weight, gain=0.0)
    >>> float(abs(weight.numpy()).max())
    0.0
    """
    gain = real_number("xavier_normal_", "gain", gain)
    normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(calculate_fan_in_and_fan_out(tensor))))


def msra_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> None:
    """Draw from U(-b, b), b = gain * sqrt(3 / fan); He et al. 2015.

    Args:
        a: negative slope of ``leaky_relu``.
        mode: ``fan_in`` keeps variance in the forward pass, ``fan_out`` in the backward pass.
        nonlinearity: what follows the weight; see ``calculate_gain``.

    >>> weight = Tensor([[0.0] * 6] * 6)
    >>> msra_uniform_(weight)
    >>> bool((abs(weight.numpy()) <= 1.0).all())
    True
    """
    std = calculate_gain(nonlinearity, a) / math.sqrt(calculate_correct_fan(tensor, mode))
    bound = math.sqrt(3.0) * std
    uniform_(tensor, -bound, bound)


def msra_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> None:
    """Draw from N(0, gain^2 / fan); He et al. 2015. Arguments as for ``msra_uniform_``.

    >>> weight = Tensor([[0.0] * 6] * 6)
    >>> msra_normal_(weight)
    >>> bool(weight.numpy().any())
    True
    """
    std = calculate_gain(nonlinearity, a) / math.sqrt(calculate_correct_fan(tensor, mode))
    normal_(tensor, 0.0, std)
