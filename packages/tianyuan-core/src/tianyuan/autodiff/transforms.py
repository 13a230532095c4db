"""Functional gradients: functions in, functions out, over nested tensors, as often as one likes.

Each transform records on a tape of its own, which sees its arguments under identities of their
own. So transforms nest, mix with ``GradManager``, and work inside a trace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import dtypes
from ..errors import GradError
from ..imperative.precision import as_given
from ..imperative.state import data_of, state
from ..imperative.tape import Tape, new_tape
from ..imperative.tensor import Tensor, wrap
from ..jit import pytree
from ..op import GradContext
from ..shapes import format_shape

Argnums = int | Sequence[int]


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray, float))


def _flatten(what: str, tree: Any) -> tuple[list[Tensor], Any]:
    """Return the floating tensors of nested containers; numbers and arrays become tensors.

    Raises:
        GradError: where one is not floating, or there is none.
    """
    leaves, structure = pytree.flatten(tree, _is_leaf)
    tensors = [leaf if isinstance(leaf, Tensor) else Tensor(leaf) for leaf in leaves]
    for tensor in tensors:
        if not dtypes.is_float(tensor.dtype):
            raise GradError(f"{what}: a tensor is not floating, got {tensor.dtype.name}")
    if not tensors:
        raise GradError(f"{what}: holds no tensor, got {type(tree).__name__}")
    return tensors, structure


class _Identity:
    """What gradients pass through unchanged."""

    name = "identity"

    def grad(self, ctx: GradContext, grads: tuple[Tensor | None, ...]) -> Sequence[Tensor | None]:
        """Return the gradients as they are."""
        return grads


_IDENTITY = _Identity()


def _renamed(tensor: Tensor) -> Tensor:
    """Return a value under another identity, through which gradients reach it on open tapes."""
    known = data_of(tensor)
    twin = wrap(tensor._own(), tensor._spec)
    if state.recorder is None:  # a trace's copy is an op, which its tapes have recorded
        for tape in state.tapes:
            tape.record(_IDENTITY, None, [known], [tensor._spec], [twin])
    return twin


class _Recorded:
    """One run of a function under a tape of its own."""

    def __init__(
        self, what: str, run: Callable[[Any], Any], argument: Any, has_aux: bool = False
    ) -> None:
        self.what = what
        tensors, self.structure = _flatten(f"{what}: the argument", argument)
        self.twins = [_renamed(tensor) for tensor in tensors]
        self.tape: Tape = new_tape()
        for twin in self.twins:
            self.tape.watch(data_of(twin))
        saved, state.tapes = state.tapes, [*state.tapes, self.tape]
        try:
            result = run(pytree.unflatten(self.structure, self.twins))
        finally:
            state.tapes = saved
        self.aux: Any = None
        if has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise GradError(f"{what}: with has_aux the function must return (output, aux)")
            result, self.aux = result
        self.result = result
        self.outputs, self.out_structure = _flatten(f"{what}: the result", result)

    def pull(self, seeds: Sequence[Tensor]) -> Any:
        """Return the argument's gradients for those of the outputs."""
        datas = [data_of(output) for output in self.outputs]
        with as_given():
            found = self.tape.gradients(datas, seeds)
        grads = [found.get(id(data_of(twin))) for twin in self.twins]
        return pytree.unflatten(
            self.structure,
            [
                twin.full(twin.shape, 0) if grad is None else grad
                for twin, grad in zip(self.twins, grads, strict=True)
            ],
        )


def value_and_grad(
    function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that gives ``function``'s value and its gradient.

    Args:
        function: gives a tensor of one element, or ``(tensor, anything)`` with ``has_aux``.
        argnums: which positional argument to differentiate for, or several. Each may be a tensor,
            a float, or nested tuples, lists and dicts of them; gradients are nested alike.
        has_aux: whether the function also returns something that is handed through.

    Returns a function of the same arguments that gives ``(value, gradient)``, or
    ``((value, aux), gradient)``; the gradient is a tuple where ``argnums`` is a sequence.

    Raises:
        GradError: at the call, where an argument to differentiate for is not floating, or the
            value has more than one element.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.autodiff import value_and_grad
        >>> value, slope = value_and_grad(lambda x: (x * x).sum())(ty.Tensor([3.0]))
        >>> value.item(), slope.numpy().tolist()
        (9.0, [6.0])
    """
    single = isinstance(argnums, int)
    places = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not places or any(not -len(args) <= place < len(args) for place in places):
            raise GradError(
                f"value_and_grad: argnums do not fit, got {argnums} for {len(args)} arguments"
            )

        def run(chosen: tuple[Any, ...]) -> Any:
            given = list(args)
            for place, value in zip(places, chosen, strict=True):
                given[place] = value
            return function(*given, **kwargs)

        recorded = _Recorded("value_and_grad", run, tuple(args[place] for place in places), has_aux)
        value = recorded.result
        if not isinstance(value, Tensor) or value.size != 1:
            got = format_shape(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise GradError(
                f"value_and_grad: the value must be a tensor of one element, got {got}, expected "
                "like a loss; see vjp"
            )
        grads = recorded.pull([value.full(value.shape, 1)])
        return (value, recorded.aux) if has_aux else value, grads[0] if single else grads

    return wrapper


def grad(
    function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that gives the gradient of ``function``.

    As ``value_and_grad``, but the value is dropped: the result is the gradient, or
    ``(gradient, aux)`` with ``has_aux``. ``grad(grad(f))`` is the second derivative.

    Raises:
        GradError: at the call, as ``value_and_grad``.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.autodiff import grad
        >>> cube = lambda x: x * x * x
        >>> grad(cube)(ty.Tensor(2.0)).item(), grad(grad(cube))(ty.Tensor(2.0)).item()
        (12.0, 12.0)
    """
    both = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        value, slope = both(*args, **kwargs)
        return (slope, value[1]) if has_aux else slope

    return wrapper


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Run a function and return its result with what pulls gradients back through it.

    Args:
        function: of the primals; gives nested tensors, or ``(these, aux)`` with ``has_aux``.
        primals: nested tensors.

    Returns ``(result, pullback)``, or ``(result, pullback, aux)``. ``pullback(seeds)`` takes
    gradients nested like the result and returns a tuple of gradients, one per primal; it may be
    called again, and be differentiated.

    Raises:
        GradError: where something to differentiate is not floating, or seeds do not fit.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.autodiff import vjp
        >>> y, pullback = vjp(lambda x: x * x, ty.Tensor([1.0, 2.0]))
        >>> pullback(ty.Tensor([1.0, 10.0]))[0].numpy().tolist()
        [2.0, 40.0]
    """
    recorded = _Recorded("vjp", lambda given: function(*given), primals, has_aux)

    def pullback(seeds: Any) -> tuple[Any, ...]:
        return tuple(recorded.pull(_seeds("vjp", seeds, recorded.out_structure, recorded.outputs)))

    found = (recorded.result, pullback)
    return (*found, recorded.aux) if has_aux else found


def _seeds(what: str, seeds: Any, structure: Any, like: Sequence[Tensor]) -> list[Tensor]:
    tensors, nested = _flatten(f"{what}: the seeds", seeds)
    fits = nested == structure and all(
        tuple(map(int, seed.shape)) == tuple(map(int, value.shape))
        for seed, value in zip(tensors, like, strict=True)
    )
    if not fits:
        got, want = (", ".join(format_shape(t.shape) for t in ts) for ts in (tensors, like))
        raise GradError(f"{what}: seeds do not fit, got {got}, expected {want}, nested alike")
    return tensors


def jvp(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """Run a function and return its result with the derivative along a direction.

    Computed by two reverse passes, as the pullback's own pullback (Townsend, A new trick for
    calculating Jacobian vector products, 2017).

    Args:
        function: of the primals; gives nested tensors.
        primals: a sequence of arguments, each nested tensors.
        tangents: the direction, nested like the primals.

    Raises:
        GradError: where the tangents do not fit the primals.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.autodiff import jvp
        >>> y, dy = jvp(lambda x: x * x, [ty.Tensor([3.0])], [ty.Tensor([0.5])])
        >>> dy.numpy().tolist()
        [3.0]
    """
    given, structure = _flatten("jvp: the primals", tuple(primals))
    direction = _seeds("jvp", tuple(tangents), structure, given)
    recorded = _Recorded("jvp", lambda given: function(*given), tuple(primals))
    zeros = [output.full(output.shape, 0) for output in recorded.outputs]

    def pulled(seeds: list[Tensor]) -> Any:
        return recorded.pull(seeds)

    back = _Recorded("jvp", pulled, zeros)
    moved = back.pull([d.cast(g.dtype) for d, g in zip(direction, back.outputs, strict=True)])
    return recorded.result, pytree.unflatten(recorded.out_structure, moved)


def hessian_vector_product(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, ...]:
    """Return the product of a function's Hessian with a vector, without forming the Hessian.

    Computed as the gradient pulled back (Pearlmutter, Fast exact multiplication by the Hessian,
    1994); costs about two gradients.

    Args:
        function: of the primals; gives a tensor of one element.
        primals: a sequence of arguments, each nested tensors.
        tangents: the vector, nested like the primals.

    Returns a tuple with one product per primal.

    Raises:
        GradError: where the value has more than one element, or the tangents do not fit.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.autodiff import hessian_vector_product
        >>> cubes = lambda x: (x * x * x).sum()
        >>> x, v = ty.Tensor([1.0, 2.0]), ty.Tensor([1.0, 10.0])
        >>> hessian_vector_product(cubes, [x], [v])[0].numpy().tolist()
        [6.0, 120.0]
    """
    slope = grad(function, argnums=tuple(range(len(primals))))
    _, pullback = vjp(slope, *primals)
    found: tuple[Any, ...] = pullback(tuple(tangents))
    return found


def stop_gradient(tree: Any) -> Any:
    """Return the same values, nested alike, through which no gradient flows.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.autodiff import grad, stop_gradient
        >>> grad(lambda x: x * stop_gradient(x))(ty.Tensor(3.0)).item()
        3.0
    """
    leaves, structure = pytree.flatten(tree, lambda leaf: isinstance(leaf, Tensor))
    return pytree.unflatten(structure, [leaf.detach() for leaf in leaves])


detach = stop_gradient


class no_grad:
    """Record nothing inside a block, or inside a decorated function.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.autodiff import grad, no_grad
        >>> def f(x):
        ...     with no_grad():
        ...         weight = x * x
        ...     return weight * x
        >>> grad(f)(ty.Tensor(3.0)).item()
        9.0
    """

    def __init__(self) -> None:
        self._outer: list[list[Tape]] = []

    def __enter__(self) -> no_grad:
        self._outer.append(state.tapes)
        state.tapes = []
        return self

    def __exit__(self, *exc: object) -> None:
        state.tapes = self._outer.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with no_grad():
                return function(*args, **kwargs)

        return wrapper
