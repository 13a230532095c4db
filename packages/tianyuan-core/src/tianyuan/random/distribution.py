"""Draw from distributions: MegEngine's RNG class and the functions of the default generator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from .. import shapes
from ..dtypes import as_dtype
from ..errors import AttrError, DTypeError, ShapeError, TraceError
from ..functional import elemwise
from ..functional.arguments import non_negative, run, run_many, shape_of, tensor
from ..imperative import generator
from ..imperative.generator import Generator
from ..imperative.state import state
from ..imperative.tensor import Tensor
from ..ops.operand import Operand

Size = int | Iterable[int] | None


class RNG:
    """A random number generator of its own.

    Args:
        seed: any int from 0 to 2**64 - 1; taken from the system if None.
        device: where the numbers lie, the default device if None.

    >>> RNG(seed=3).uniform(size=(2, 2)).shape
    (2, 2)
    """

    def __init__(self, seed: int | None = None, device: str | None = None) -> None:
        self._generator = Generator(seed)
        self._device = device

    @classmethod
    def _of(cls, shared: Generator) -> RNG:
        made = cls.__new__(cls)
        made._generator, made._device = shared, None
        return made

    def seed(self, seed: int) -> None:
        """Start the stream of a seed anew.

        >>> rng = RNG(1); first = rng.uniform().item(); rng.seed(1)
        >>> rng.uniform().item() == first
        True
        """
        self._generator.seed(seed)

    def get_state(self) -> dict[str, int]:
        """Return what a checkpoint needs to continue the stream: seed and offset.

        >>> sorted(RNG(1).get_state())
        ['offset', 'seed']
        """
        return self._generator.get_state()

    def set_state(self, value: dict[str, int]) -> None:
        """Continue from what ``get_state`` returned.

        >>> rng = RNG(1); state = rng.get_state(); first = rng.normal().item()
        >>> rng.set_state(state); rng.normal().item() == first
        True
        """
        self._generator.set_state(value)

    def _draw(self, op: str, shape: shapes.Shape, dtype: str = "float32") -> Tensor:
        drawn = cast(Tensor, self._generator.draw(op, shape, dtype))
        return drawn if self._device is None else drawn.to(self._device)

    def uniform(self, low: float = 0, high: float = 1, size: Size = None) -> Tensor:
        """Draw float32 numbers evenly from low <= x < high; a scalar without ``size``.

        >>> drawn = RNG(0).uniform(2, 3, size=(100,)).numpy()
        >>> bool((drawn >= 2).all() and (drawn < 3).all())
        True
        """
        drawn = self._draw("philox_uniform", _shape("uniform", size))
        if low == 0 and high == 1:
            return drawn
        return elemwise.add(elemwise.mul(drawn, high - low), low)

    def normal(self, mean: float = 0, std: float = 1, size: Size = None) -> Tensor:
        """Draw float32 numbers from a normal distribution; a scalar without ``size``.

        Raises:
            AttrError: where ``std`` is negative.

        >>> RNG(0).normal(10, 0.001, size=(3,)).numpy().round()
        array([10., 10., 10.], dtype=float32)
        """
        if isinstance(std, (int, float)) and std < 0:
            raise AttrError(f"normal: std must not be negative, got {std}")
        drawn = self._draw("philox_normal", _shape("normal", size))
        if mean == 0 and std == 1:
            return drawn
        return elemwise.add(elemwise.mul(drawn, std), mean)

    def exponential(self, rate: Any = 1.0, size: Size = None) -> Tensor:
        """Draw from the exponential distribution of density rate * exp(-rate * x).

        A tensor of rates gives one draw per rate, for each element of ``size``.

        >>> bool(RNG(0).exponential(2.0, size=(100,)).numpy().min() >= 0)
        True
        """
        shape, (scale,) = _parameters("exponential", size, rate)
        uniform = self._draw("philox_uniform", shape)
        return elemwise.div(elemwise.neg(elemwise.log1p(elemwise.neg(uniform))), scale)

    def permutation(self, n: Any, *, dtype: Any = "int32") -> Tensor:
        """Return the numbers below ``n``, or the rows of a tensor, in random order.

        Raises:
            AttrError: where n is not positive.

        >>> sorted(RNG(0).permutation(5).tolist())
        [0, 1, 2, 3, 4]
        """
        if isinstance(n, Operand) and len(n.shape) > 0:
            return self._shuffled(cast(Tensor, n))
        count = n.item() if isinstance(n, Operand) else n  # type: ignore[attr-defined]
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or int(count) < 1:
            raise AttrError(f"permutation: n must be a positive int, got {n!r}")
        want = as_dtype(dtype)
        order = self._order(count if isinstance(count, int) else int(count))
        return cast(Tensor, order.cast(want))

    def _order(self, count: int) -> Tensor:
        """Return a random order of ``count`` things, all orders being equally likely.

        Sorting random keys gives it; 53-bit keys make ties, which would favour the first, rare.
        """
        keys = self._draw("philox_uniform", (count,), "float64")
        return run_many("sort", keys, axis=0, descending=False)[1]

    def _shuffled(self, inp: Tensor) -> Tensor:
        return run("take", inp, self._order(inp.shape[0]), axis=0)

    def shuffle(self, inp: Tensor) -> None:
        """Put the rows of a tensor in random order, in place.

        Raises:
            ShapeError: where the tensor is a scalar.

        >>> from tianyuan import Tensor
        >>> x = Tensor([3, 1, 2]); RNG(0).shuffle(x); sorted(x.tolist())
        [1, 2, 3]
        """
        if tensor("shuffle", inp).ndim == 0:
            raise ShapeError("shuffle: a scalar has no rows, expected 1 dimension or more")
        if int(inp.shape[0]) > 1:
            inp[...] = self._shuffled(inp)

    def gamma(self, shape: Any, scale: Any = 1, size: Size = None) -> Tensor:
        """Draw from the gamma distribution with density x**(shape-1) * exp(-x/scale).

        Marsaglia and Tsang's rejection method, on the host; not offered inside a trace.

        >>> RNG(0).gamma(2.0, 3.0, size=(4,)).shape
        (4,)
        """
        extents, (shapes_, scales) = _parameters("gamma", size, shape, scale)
        _expect_positive("gamma", "shape", shapes_)
        drawn = self._host("gamma").standard_gamma(np.broadcast_to(shapes_, extents))
        return self._made(drawn * scales)

    def beta(self, alpha: Any, beta: Any, size: Size = None) -> Tensor:
        """Draw from the beta distribution, on the host; not offered inside a trace.

        >>> RNG(0).beta(2.0, [1.0, 3.0], size=(4,)).shape
        (4, 2)
        """
        extents, (a, b) = _parameters("beta", size, alpha, beta)
        _expect_positive("beta", "alpha", a)
        _expect_positive("beta", "beta", b)
        return self._made(self._host("beta").beta(a, b, extents))

    def poisson(self, lam: Any, size: Size = None) -> Tensor:
        """Draw counts, as float32, from the Poisson distribution; not offered inside a trace.

        >>> drawn = RNG(0).poisson(4.0, size=(3,)).numpy()
        >>> bool((drawn == drawn.round()).all())
        True
        """
        extents, (rate,) = _parameters("poisson", size, lam)
        if np.any(rate < 0):
            raise AttrError(f"poisson: lam must not be negative, got {rate.min()}")
        return self._made(self._host("poisson").poisson(rate, extents))

    def multinomial(
        self, input: Tensor, num_samples: int, replacement: bool | None = False
    ) -> Tensor:
        """Draw int32 class indices with the probabilities, not necessarily normalised, of rows.

        Returns (num_samples,) for a vector and (rows, num_samples) for a matrix. Not offered
        inside a trace.

        Raises:
            AttrError: where a row has fewer positive entries than samples without replacement.

        >>> from tianyuan import Tensor
        >>> RNG(0).multinomial(Tensor([0.0, 1.0]), 3, replacement=True).numpy()
        array([1, 1, 1], dtype=int32)
        """
        weights = np.atleast_2d(tensor("multinomial", input).numpy().astype(np.float64))
        enough = replacement or (np.count_nonzero(weights, axis=1) >= num_samples).all()
        if np.any(weights < 0) or not weights.sum(axis=1).all() or not enough:
            raise AttrError(
                "multinomial: rows must hold weights >= 0, not all zero, and at least "
                f"num_samples={num_samples} positive ones without replacement"
            )
        host = self._host("multinomial")
        rows = [
            host.choice(len(row), num_samples, bool(replacement), row / row.sum())
            for row in weights
        ]
        found = np.stack(rows).astype(np.int32)
        return Tensor(found[0] if input.ndim == 1 else found, device=self._device)

    def _host(self, op: str) -> np.random.Generator:
        """Return numpy's generator, seeded by a draw of this stream.

        Raises:
            TraceError: inside a trace, where the numbers would become constants.
        """
        if state.recorder is not None:
            raise TraceError(f"{op}: cannot be drawn inside a trace, expected uniform or normal")
        words = self._generator.draw("philox_bits", (4,), "uint32").numpy()
        return np.random.Generator(np.random.Philox(key=words.astype(np.uint32).view(np.uint64)))

    def _made(self, array: np.ndarray) -> Tensor:
        return Tensor(np.asarray(array, np.float32), device=self._device)


def _shape(op: str, size: Any) -> shapes.Shape:
    return () if size is None else non_negative(op, shape_of(op, size))


def _parameters(op: str, size: Any, *values: Any) -> tuple[shapes.Shape, list[Any]]:
    """Return the shape of a draw and its parameters as arrays.

    A draw has the shape ``size`` followed by that which the parameters broadcast to.
    """
    arrays = [v.numpy() if isinstance(v, Operand) else np.asarray(v) for v in values]  # type: ignore[attr-defined]
    if any(array.dtype.kind not in "biuf" for array in arrays):
        raise DTypeError(f"{op}: parameters must be numbers, got {values!r}")
    lead = _shape(op, size)
    tail = shapes.broadcast(op, *(array.shape for array in arrays))
    return (*lead, *tail), [
        Tensor(a) if op == "exponential" and a.ndim else a.item() if op == "exponential" else a
        for a in arrays
    ]


def _expect_positive(op: str, what: str, value: np.ndarray) -> None:
    if not np.all(value > 0):
        raise AttrError(f"{op}: {what} must be positive, got {np.min(value)}")


_default = RNG._of(generator.default)

uniform: Callable[..., Tensor] = _default.uniform
normal: Callable[..., Tensor] = _default.normal
exponential: Callable[..., Tensor] = _default.exponential
permutation: Callable[..., Tensor] = _default.permutation
gamma: Callable[..., Tensor] = _default.gamma
beta: Callable[..., Tensor] = _default.beta
poisson: Callable[..., Tensor] = _default.poisson
multinomial: Callable[..., Tensor] = _default.multinomial


def shuffle(inp: Tensor) -> None:
    """Put the rows of a tensor in random order, in place.

    >>> from tianyuan import Tensor
    >>> x = Tensor([3, 1, 2]); shuffle(x); sorted(x.tolist())
    [1, 2, 3]
    """
    _default.shuffle(inp)


def seed(seed: int) -> None:
    """Start the default generator's stream of a seed anew; dropout draws from it too.

    >>> seed(7); first = uniform().item(); seed(7); uniform().item() == first
    True
    """
    _default.seed(seed)


def get_state() -> dict[str, int]:
    """Return the default generator's seed and offset, for a checkpoint.

    >>> seed(7); get_state()["seed"]
    7
    """
    return _default.get_state()


def set_state(value: dict[str, int]) -> None:
    """Continue the default generator from what ``get_state`` returned.

    >>> state = get_state(); first = uniform().item()
    >>> set_state(state); uniform().item() == first
    True
    """
    _default.set_state(value)
