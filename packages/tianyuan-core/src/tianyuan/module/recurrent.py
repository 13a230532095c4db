"""Recurrent networks: cells, and stacks of them over time."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np

from .. import functional as F
from ..errors import AttrError, ShapeError
from ..functional.arguments import choice, share, whole
from ..imperative.tensor import Parameter, Tensor
from ..shapes import format_shape
from . import init
from .module import Module

# The hidden state, or the pair of hidden and cell state.
State = Any


class _Cell(Module):
    """Hold the two maps of a cell; all start from U(-1/sqrt(hidden), 1/sqrt(hidden)).

    Weights are (gates * hidden, input) and (gates * hidden, hidden), biases (gates * hidden,).
    """

    _gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool) -> None:
        super().__init__()
        name = type(self).__name__
        self.input_size = whole(name, "input_size", input_size, 0)
        self.hidden_size = whole(name, "hidden_size", hidden_size, 0)
        rows = self._gates * self.hidden_size
        self.weight_ih = Parameter(np.zeros((rows, self.input_size), np.float32))
        self.weight_hh = Parameter(np.zeros((rows, self.hidden_size), np.float32))
        self.bias_ih = Parameter(np.zeros(rows, np.float32)) if bias else None
        self.bias_hh = Parameter(np.zeros(rows, np.float32)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        bound = 1 / math.sqrt(max(self.hidden_size, 1))
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def zero_state(self, batch: int, like: Tensor) -> State:
        """Return the state to start from, in the dtype of ``like``."""
        return like.full((batch, self.hidden_size), 0.0)

    def _maps(self, inputs: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the maps of the input and of the hidden state."""
        if inputs.ndim != 2 or int(inputs.shape[1]) != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: input has the wrong shape, got "
                f"{format_shape(inputs.shape)}, expected (batch, {self.input_size})"
            )
        given: Tensor = F.nn.linear(inputs, self.weight_ih, self.bias_ih)
        kept: Tensor = F.nn.linear(hidden, self.weight_hh, self.bias_hh)
        return given, kept

    @abstractmethod
    def step(self, inputs: Tensor, state: State) -> State:
        """Return the next state."""

    def forward(self, input: Tensor, hx: State = None) -> State:
        """Return the next state for inputs (batch, input_size); from zeros if ``hx`` is None."""
        return self.step(input, self.zero_state(input.shape[0], input) if hx is None else hx)


class RNNCell(_Cell):
    """Take one step h' = act(W_ih x + b_ih + W_hh h + b_hh).

    Args:
        input_size, hidden_size: extents of x and h.
        bias: whether there are biases.
        nonlinearity: ``tanh`` or ``relu``.

    >>> RNNCell(3, 4)(F.ones((2, 3))).shape
    (2, 4)
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh"
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.nonlinearity = choice("RNNCell", "nonlinearity", nonlinearity, ("tanh", "relu"))

    def step(self, inputs: Tensor, state: Tensor) -> Tensor:
        """Return the next hidden state."""
        given, kept = self._maps(inputs, state)
        sums = given + kept
        result: Tensor = F.tanh(sums) if self.nonlinearity == "tanh" else F.nn.relu(sums)
        return result


class LSTMCell(_Cell):
    """Take one step of long short-term memory (Hochreiter and Schmidhuber 1997).

    With (i, f, g, o) = W_ih x + b_ih + W_hh h + b_hh: c' = sigmoid(f) c + sigmoid(i) tanh(g) and
    h' = sigmoid(o) tanh(c').

    Args:
        input_size, hidden_size: extents of x, and of h and c.
        bias: whether there are biases.

    >>> hidden, cell = LSTMCell(3, 4)(F.ones((2, 3)))
    >>> hidden.shape, cell.shape
    ((2, 4), (2, 4))
    """

    _gates = 4

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)

    def zero_state(self, batch: int, like: Tensor) -> State:
        """Return zeros for hidden and cell state."""
        zeros = super().zero_state(batch, like)
        return (zeros, zeros)

    def step(self, inputs: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the next hidden and cell state."""
        hidden, cell = state
        given, kept = self._maps(inputs, hidden)
        i, f, g, o = F.split(given + kept, 4, axis=1)
        cell = F.nn.sigmoid(f) * cell + F.nn.sigmoid(i) * F.tanh(g)
        return F.nn.sigmoid(o) * F.tanh(cell), cell


class GRUCell(_Cell):
    """Take one step of a gated recurrent unit (Cho et al. 2014), as PyTorch computes it.

    With (a_r, a_z, a_n) = W_ih x + b_ih and (h_r, h_z, h_n) = W_hh h + b_hh:
    r = sigmoid(a_r + h_r), z = sigmoid(a_z + h_z), n = tanh(a_n + r h_n), h' = (1 - z) n + z h.

    Args:
        input_size, hidden_size: extents of x and h.
        bias: whether there are biases.

    >>> GRUCell(3, 4)(F.ones((2, 3))).shape
    (2, 4)
    """

    _gates = 3

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)

    def step(self, inputs: Tensor, state: Tensor) -> Tensor:
        """Return the next hidden state."""
        given, kept = (F.split(part, 3, axis=1) for part in self._maps(inputs, state))
        reset, update = (F.nn.sigmoid(given[gate] + kept[gate]) for gate in (0, 1))
        new = F.tanh(given[2] + reset * kept[2])
        result: Tensor = new + update * (state - new)
        return result


class _Recurrent(Module):
    """What layers of cells have in common; ``RNN`` tells of the arguments."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if whole(name, "proj_size", proj_size):
            raise AttrError(f"{name}: proj_size is not supported, got {proj_size}, expected 0")
        self.input_size = whole(name, "input_size", input_size, 0)
        self.hidden_size = whole(name, "hidden_size", hidden_size, 0)
        self.num_layers = whole(name, "num_layers", num_layers, 1)
        self.batch_first = batch_first
        self.dropout = share(name, "dropout", dropout)
        self.bidirectional = bidirectional
        ways = 2 if bidirectional else 1
        sizes = [self.input_size] + [self.hidden_size * ways] * (self.num_layers - 1)
        self.cells = [[self._make(size, bias) for _ in range(ways)] for size in sizes]

    @abstractmethod
    def _make(self, input_size: int, bias: bool) -> _Cell:
        """Return a new cell."""

    def forward(self, input: Tensor, hx: State = None) -> tuple[Tensor, State]:
        """Return every step's output of the last layer, and the last state of every cell.

        States are (layers * directions, batch, hidden_size); the outputs of both directions lie
        behind each other along the last axis.
        """
        if input.ndim != 3:
            raise ShapeError(
                f"{type(self).__name__}: input has the wrong rank, got "
                f"{format_shape(input.shape)}, expected 3 dimensions"
            )
        sequence = F.transpose(input, (1, 0, 2)) if self.batch_first else input
        steps = [sequence[index] for index in range(int(sequence.shape[0]))]
        ends: list[State] = []
        for layer, cells in enumerate(self.cells):
            if layer and self.dropout and self.training:
                steps = [F.nn.dropout(step, self.dropout) for step in steps]
            outputs = []
            for way, cell in enumerate(cells):
                state = self._state(hx, len(ends), cell, sequence)
                found, state = _run(cell, steps[::-1] if way else steps, state)
                outputs.append(found[::-1] if way else found)
                ends.append(state)
            steps = [F.concat(list(parts), 1) for parts in zip(*outputs, strict=True)]
        result = F.stack(steps, axis=1 if self.batch_first else 0)
        return result, _stacked(ends)

    def _state(self, hx: State, number: int, cell: _Cell, sequence: Tensor) -> State:
        if hx is None:
            return cell.zero_state(sequence.shape[1], sequence)
        return tuple(part[number] for part in hx) if isinstance(hx, tuple) else hx[number]


def _run(cell: _Cell, steps: list[Tensor], state: State) -> tuple[list[Tensor], State]:
    """Run a cell over time and return its hidden states and its last state."""
    found = []
    for step in steps:
        state = cell(step, state)
        found.append(state[0] if isinstance(state, tuple) else state)
    return found, state


def _stacked(ends: list[State]) -> State:
    if isinstance(ends[0], tuple):
        return tuple(F.stack(list(parts)) for parts in zip(*ends, strict=True))
    return F.stack(ends)


class RNN(_Recurrent):
    """Run layers of ``RNNCell`` over time.

    Args:
        input_size, hidden_size: extents of one step's input and state.
        num_layers: how many layers feed each other.
        bias: whether there are biases.
        batch_first: inputs are (batch, time, input_size) instead of (time, batch, input_size).
        dropout: probability with which, in training, a layer's outputs are dropped before the
            next layer.
        bidirectional: whether a second cell per layer runs backwards in time.
        proj_size: must be 0.

    Raises:
        AttrError: where an option is out of range.

    >>> outputs, hidden = RNN(3, 4, num_layers=2)(F.ones((5, 2, 3)))
    >>> outputs.shape, hidden.shape
    ((5, 2, 4), (2, 2, 4))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.nonlinearity = kwargs.pop("nonlinearity", "tanh")
        super().__init__(*args, **kwargs)

    def _make(self, input_size: int, bias: bool) -> RNNCell:
        return RNNCell(input_size, self.hidden_size, bias, self.nonlinearity)


class LSTM(_Recurrent):
    """Run layers of ``LSTMCell`` over time; arguments as for ``RNN``.

    >>> outputs, (hidden, cell) = LSTM(3, 4, num_layers=2)(F.ones((5, 2, 3)))
    >>> outputs.shape, hidden.shape
    ((5, 2, 4), (2, 2, 4))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def _make(self, input_size: int, bias: bool) -> LSTMCell:
        return LSTMCell(input_size, self.hidden_size, bias)


class GRU(_Recurrent):
    """Run layers of ``GRUCell`` over time; arguments as for ``RNN``.

    >>> outputs, hidden = GRU(3, 4, num_layers=2)(F.ones((5, 2, 3)))
    >>> outputs.shape, hidden.shape
    ((5, 2, 4), (2, 2, 4))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def _make(self, input_size: int, bias: bool) -> GRUCell:
        return GRUCell(input_size, self.hidden_size, bias)
