"""What the imperative runtime keeps per thread: the trace being recorded and the open tapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ..locks import Local

if TYPE_CHECKING:
    from .tape import Tape
    from .tensor import Tensor


class Recorder(Protocol):
    """What a trace offers to the imperative runtime; the graph room never appears here."""

    def lift(self, tensor: Tensor) -> Any:
        """Return the graph value that stands for a tensor, capturing one from outside."""

    def record(self, op: Any, datas: list[Any], attrs: Any) -> list[Tensor]:
        """Append an op and return its outputs as traced tensors."""

    def note_created(self, tensor: Tensor) -> None:
        """Note that a tensor of known data was made by the traced code itself."""

    def write(self, tensor: Tensor, value: Tensor) -> None:
        """Note that a tensor from outside takes a new value."""

    def host_value(
        self, read: Callable[[], Any], dtype: Any, after: Callable[[], None] | None
    ) -> Tensor:
        """Declare a program input that is read from Python before each run."""

    def note_read(self, owner: Any, name: str) -> None:
        """Note that the trace depends on an attribute of a Python object."""

    def note_attribute(self, owner: Any, name: str, written: bool = False) -> None:
        """Note that the traced code read, or gave a value to, an attribute of a followed object."""

    def is_written(self, tensor: Tensor) -> bool:
        """Tell whether the trace has given a tensor from outside a new value."""

    def get_grad(self, tensor: Tensor) -> Tensor | None:
        """Return the gradient that a tensor has at this point of the trace."""

    def set_grad(self, tensor: Tensor, grad: Tensor | None) -> None:
        """Note the gradient that a tensor has from this point of the trace on."""


# Runs an op in place of ``apply``: it takes op, operands and attributes, and returns the outputs.
Interceptor = Callable[[Any, Sequence[Any], Any], Any]


class _State(Local):
    recorder: Recorder | None = None
    precision: tuple[str, str] | None = None  # autocast's low and high dtype while it is on
    interceptor: Interceptor | None = None  # must set itself aside while it applies ops
    of_integers: bool = False  # quantised tensors' integers are meant as such, as ONNX's ops do
    origin: str = ""  # what stands for the user's line, where that would mislead

    def __init__(self) -> None:
        self.tapes: list[Tape] = []


state = _State()


@contextmanager
def integers_meant() -> Iterator[None]:
    """Let every op take the integers of quantised tensors as such inside a block."""
    saved, state.of_integers = state.of_integers, True
    try:
        yield
    finally:
        state.of_integers = saved


def data_of(tensor: Tensor) -> Any:
    """Return what stands for a tensor's value in the active runtime, tapes' identity for it."""
    return state.recorder.lift(tensor) if state.recorder is not None else tensor._data
