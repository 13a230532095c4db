"""GradManager: says which tensors get gradients, records, and leaves them in ``.grad``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from ..errors import GradError
from ..imperative.observe import note_read
from ..imperative.precision import as_given
from ..imperative.state import data_of, state
from ..imperative.tape import Tape, new_tape
from ..imperative.tensor import Tensor
from ..shapes import format_shape


class Future(Protocol):
    """A gradient that a callback still works on, until all tensors have been called for."""

    def get(self) -> Tensor:
        """Return the gradient."""


Callback = Callable[[Tensor, Tensor], "Tensor | Future"]


class GradManager:
    """Manage gradients of attached tensors.

    Only what is computed between ``record`` (or entering the ``with`` block) and ``backward``
    counts. Managers nest: gradients that an inner one computes are recorded by the outer ones,
    which gives higher derivatives.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.autodiff import GradManager
        >>> w = ty.Parameter([2.0, 3.0])
        >>> gm = GradManager().attach(w)
        >>> with gm:
        ...     gm.backward((w * w).sum())
        >>> w.grad.tolist()
        [4.0, 6.0]
    """

    def __init__(self) -> None:
        self._attached: dict[int, tuple[weakref.ref[Tensor], list[Callback]]] = {}
        self._tape: Tape | None = None
        self._watched: list[tuple[Tensor, Any]] = []
        self._attachments = 0  # grows when something is attached, so that a trace notices

    def __reduce__(self) -> Any:
        # A copy is attached to the copies of the tensors, which whoever copies both gets.
        if self._tape is not None:
            raise GradError(
                "GradManager: it is recording, expected backward or release before a copy"
            )
        held = [(tensor(), callbacks) for tensor, callbacks in self._attached.values()]
        return _attached, (type(self), [pair for pair in held if pair[0] is not None])

    def attached_tensors(self) -> list[Tensor]:
        """Return the tensors that get gradients, in the order of attachment.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.autodiff import GradManager
            >>> w = ty.Parameter([2.0])
            >>> GradManager().attach(w).attached_tensors()[0] is w
            True
        """
        return [tensor for ref, _ in self._attached.values() if (tensor := ref()) is not None]

    def attach(
        self,
        tensors: Tensor | Iterable[Tensor],
        callbacks: Callback | Iterable[Callback] | None = None,
    ) -> GradManager:
        """Ask for gradients of tensors.

        ``callbacks`` are called with (tensor, gradient) in turn, and each returns the gradient to
        go on with, or an object whose ``get()`` does so once the callbacks of all tensors have
        been called. Attaching again adds callbacks.

        Raises:
            GradError: where something else than a Tensor is given.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.autodiff import GradManager
            >>> w = ty.Parameter([2.0])
            >>> gm = GradManager().attach([w], callbacks=lambda tensor, grad: grad * 10)
            >>> with gm:
            ...     gm.backward(w * w)
            >>> w.grad.tolist()
            [40.0]
        """
        if not isinstance(tensors, (Tensor, Iterable)):
            raise GradError(
                f"GradManager.attach: only tensors can be attached, got {type(tensors).__name__}, "
                "expected like net.parameters()"
            )
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        for tensor in given:
            if not isinstance(tensor, Tensor):
                raise GradError(
                    f"GradManager.attach: only tensors can be attached, got {type(tensor).__name__}"
                )
        added = [callbacks] if callable(callbacks) else list(callbacks or ())
        for tensor in given:
            known = self._attached.get(id(tensor))
            if known is not None and known[0]() is tensor:
                known[1].extend(added)
                self._note(bool(added))
                continue
            self._attached[id(tensor)] = (weakref.ref(tensor), list(added))
            self._note(True)
            if self._tape is not None:
                self._watch(tensor)
        return self

    def _note(self, changed: bool) -> None:
        # What a traced function attaches itself, it would attach again.
        if changed and state.recorder is None:
            self._attachments += 1

    def _watch(self, tensor: Tensor) -> None:
        assert self._tape is not None
        data = data_of(tensor)
        self._tape.watch(data)
        self._watched.append((tensor, data))

    def record(self) -> None:
        """Start recording.

        Raises:
            GradError: where it is recording already.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.autodiff import GradManager
            >>> w = ty.Parameter([2.0])
            >>> gm = GradManager().attach(w)
            >>> gm.record()
            >>> gm.backward(w * w)
            >>> w.grad.tolist()
            [4.0]
        """
        if self._tape is not None:
            raise GradError("GradManager.record: it is recording already")
        note_read(self, "_attachments")
        self._tape = new_tape()
        self._watched = []
        state.tapes = [*state.tapes, self._tape]
        for tensor in self.attached_tensors():
            self._watch(tensor)

    def release(self) -> None:
        """Stop recording and forget what was recorded, without computing gradients.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.autodiff import GradManager
            >>> w = ty.Parameter([2.0])
            >>> gm = GradManager().attach(w)
            >>> gm.record()
            >>> gm.release()
            >>> w.grad is None
            True
        """
        if self._tape is not None:
            tape = self._tape
            state.tapes = [open_tape for open_tape in state.tapes if open_tape is not tape]
            self._tape, self._watched = None, []

    def backward(
        self,
        y: Tensor | Sequence[Tensor] | None = None,
        dy: Tensor | Sequence[Tensor] | None = None,
    ) -> None:
        """Compute gradients of ``y`` and add them to ``.grad`` of every attached tensor.

        Args:
            y: output or outputs; recording ends.
            dy: gradient of each output, of its shape; ones if None.

        Raises:
            GradError: where it is not recording, nothing attached leads to ``y``, or ``dy`` does
                not fit.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.autodiff import GradManager
            >>> w = ty.Parameter([2.0, 3.0])
            >>> with GradManager().attach(w) as gm:
            ...     gm.backward([w * 2, w * w], dy=[ty.Tensor([1.0, 0.0]), ty.Tensor([0.0, 1.0])])
            >>> w.grad.tolist()
            [2.0, 6.0]
        """
        if self._tape is None:
            raise GradError(
                "GradManager.backward: it is not recording, expected a call inside `with gm:` "
                "or after record()"
            )
        tape, watched = self._tape, self._watched
        targets = _as_list(y)
        try:
            seeds = _seeds(targets, dy)
            datas = [data_of(target) for target in targets]
            if targets and not any(id(data) in tape.tracked for data in datas):
                raise GradError(
                    "GradManager.backward: y does not depend on any attached tensor, expected "
                    "tensors attached before the computation"
                )
        finally:
            self.release()
        with as_given():
            found = tape.gradients(datas, seeds)
        called = [
            (tensor, self._call_back(tensor, found[id(data)]))
            for tensor, data in watched
            if id(data) in found
        ]
        for tensor, given in called:
            grad, known = _awaited(given), tensor.grad
            tensor.grad = grad if known is None else known + grad

    def _call_back(self, tensor: Tensor, grad: Tensor) -> Tensor | Future:
        found: Tensor | Future = grad
        for callback in self._attached[id(tensor)][1]:
            found = callback(tensor, _awaited(found))
        return found

    def __enter__(self) -> GradManager:
        self.record()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        return GradManagerGroup([self]) | other


def _attached(cls: type[GradManager], held: list[tuple[Tensor, list[Callback]]]) -> GradManager:
    made = cls()
    for tensor, callbacks in held:
        made.attach(tensor, callbacks)
    return made


class GradManagerGroup:
    """Several managers that record and run backward together, as ``gm1 | gm2``.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.autodiff import GradManager
        >>> v, w = ty.Parameter([2.0]), ty.Parameter([3.0])
        >>> with GradManager().attach(v) | GradManager().attach(w) as both:
        ...     both.backward(v * w)
        >>> v.grad.tolist(), w.grad.tolist()
        ([3.0], [2.0])
    """

    def __init__(self, managers: Iterable[GradManager]) -> None:
        self._managers = list(managers)

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        more = other._managers if isinstance(other, GradManagerGroup) else [other]
        return GradManagerGroup([*self._managers, *more])

    def record(self) -> None:
        """Start recording on every manager."""
        for manager in self._managers:
            manager.record()

    def release(self) -> None:
        """Stop recording on every manager."""
        for manager in self._managers:
            manager.release()

    def backward(
        self,
        y: Tensor | Sequence[Tensor] | None = None,
        dy: Tensor | Sequence[Tensor] | None = None,
    ) -> None:
        """Run ``GradManager.backward`` of every manager, outermost last."""
        for manager in reversed(self._managers):
            manager.backward(y, dy)

    def __enter__(self) -> GradManagerGroup:
        self.record()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def _awaited(grad: Tensor | Future) -> Tensor:
    found = grad if isinstance(grad, Tensor) or not hasattr(grad, "get") else grad.get()
    if not isinstance(found, Tensor):
        raise GradError(
            "GradManager.backward: a callback must return the gradient to go on with, got "
            f"{type(found).__name__}"
        )
    return found


def _as_list(value: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
    if value is None:
        return []
    return [value] if isinstance(value, Tensor) else list(value)


def _seeds(targets: list[Tensor], dy: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
    if dy is None:
        return [target.full(target.shape, 1) for target in targets]
    seeds = _as_list(dy)
    if len(seeds) != len(targets):
        raise GradError(
            f"GradManager.backward: dy does not match y, got {len(seeds)}, expected {len(targets)}"
        )
    for seed, target in zip(seeds, targets, strict=True):
        if tuple(map(int, seed.shape)) != tuple(map(int, target.shape)):
            raise GradError(
                f"GradManager.backward: dy has the wrong shape, got {format_shape(seed.shape)}, "
                f"expected {format_shape(target.shape)}"
            )
    return seeds
