"""Recurrent networks, written out over time."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import AttrError, ShapeError
from ..node import Node
from ..table import operator
from .activation import elu, hard_sigmoid
from .common import Tensor, binary, full, permuted, reshaped, run, scalar

_Function = Callable[[Tensor], Tensor]


def _activation(name: str, alpha: float | None, beta: float | None) -> _Function:
    """Return an activation by its name, with its parameters where it has some."""
    low = name.lower()

    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    table: dict[str, _Function] = {
        "sigmoid": lambda x: run("sigmoid", x),
        "tanh": lambda x: run("tanh", x),
        "relu": lambda x: run("relu", x),
        "softplus": lambda x: run("softplus", x),
        "softsign": lambda x: run("div", x, binary("add", run("abs", x), 1)),
        "affine": lambda x: binary("add", binary("mul", x, given(alpha, 1.0)), given(beta, 0.0)),
        "leakyrelu": lambda x: run(
            "where", binary("greater", x, 0), x, binary("mul", x, given(alpha, 0.01))
        ),
        "thresholdedrelu": lambda x: run(
            "where", binary("greater", x, given(alpha, 1.0)), x, scalar(x, 0)
        ),
        "scaledtanh": lambda x: binary(
            "mul", run("tanh", binary("mul", x, given(beta, 1.0))), given(alpha, 1.0)
        ),
        "hardsigmoid": lambda x: hard_sigmoid(x, given(alpha, 0.2), given(beta, 0.5)),
        "elu": lambda x: elu(x, given(alpha, 1.0)),
    }
    if low not in table:
        raise AttrError(f"activation is unknown, got {name!r}")
    return table[low]


class _Cell:
    """What the three kinds of network share: attributes, directions, walking over time."""

    def __init__(self, node: Node, x: Tensor, gates: int, defaults: tuple[str, ...]) -> None:
        self.node = node
        direction = node.text("direction", "forward", ("forward", "reverse", "bidirectional"))
        self.backs = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
            direction
        ]
        self.batch_first = node.flag("layout")
        if x.ndim != 3:
            raise ShapeError(f"input must be (time, batch, size), got rank {x.ndim}")
        self.x = permuted(x, (1, 0, 2)) if self.batch_first else x
        self.hidden = node.int("hidden_size")
        self.gates = gates
        names = node.texts("activations", defaults * len(self.backs))
        if len(names) != len(defaults) * len(self.backs):
            raise AttrError(f"activations do not fit, got {names}")
        alphas = list(node.floats("activation_alpha", ()))
        betas = list(node.floats("activation_beta", ()))
        each = len(defaults)
        made = [
            _activation(
                n, alphas[i] if i < len(alphas) else None, betas[i] if i < len(betas) else None
            )
            for i, n in enumerate(names)
        ]
        self.functions = [made[i * each : (i + 1) * each] for i in range(len(self.backs))]
        self.clip = node.float("clip", 0.0)

    def expect(
        self, w: Tensor, r: Tensor, bias: Tensor | None, peephole: Tensor | None = None,
        *states: Tensor | None,
    ) -> None:  # fmt: skip
        """Raise ShapeError where a weight or a first state does not fit; None is left out."""
        sides, rows = len(self.backs), self.gates * self.hidden
        state = (-1, sides, self.hidden) if self.batch_first else (sides, -1, self.hidden)
        wanted: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
            ("W", w, (sides, rows, int(self.x.shape[2]))), ("R", r, (sides, rows, self.hidden)),
            ("B", bias, (sides, 2 * rows)), ("P", peephole, (sides, 3 * self.hidden)),
            *(("a first state", given, state) for given in states),
        ]  # fmt: skip
        for what, given, want in wanted:
            if given is None:
                continue
            got = tuple(map(int, given.shape))
            if len(got) != len(want) or any(
                b not in (-1, a) for a, b in zip(got, want, strict=True)
            ):
                text = str(want).replace("-1", "batch")
                raise ShapeError(f"{what} does not fit, got {got}, expected {text}")

    def clipped(self, x: Tensor) -> Tensor:
        if not self.clip:
            return x
        return binary("minimum", binary("maximum", x, -self.clip), self.clip)

    def state(self, given: Tensor | None, number: int) -> Tensor:
        """Return the first state (batch, hidden) of a direction."""
        batch = self.x.shape[1]
        if given is None:
            return full((batch, self.hidden), 0.0, self.x.dtype)
        given = permuted(given, (1, 0, 2)) if self.batch_first else given
        return picked(given, number)

    def walk(
        self, lengths: Tensor | None, back: bool, states: list[Tensor],
        step: Callable[[Tensor, list[Tensor]], list[Tensor]],
    ) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
        """Run a step over time; where a sequence has ended its states stay and it puts out zero."""
        count = int(self.x.shape[0])
        order = range(count)[::-1] if back else range(count)
        rows: dict[int, Tensor] = {}
        for time in order:
            new = step(picked(self.x, time), states)
            if lengths is None:
                states, rows[time] = new, new[0]
                continue
            alive = reshaped(binary("greater", lengths, time), (lengths.shape[0], 1))
            states = [run("where", alive, a, b) for a, b in zip(new, states, strict=True)]
            rows[time] = run("where", alive, new[0], scalar(new[0], 0))
        return [rows[time] for time in range(count)], states

    def joined(self, rows: list[list[Tensor]], last: list[list[Tensor]]) -> tuple[Tensor, ...]:
        """Return all outputs (time, direction, batch, hidden), and the last of each state."""
        batch, hidden = self.x.shape[1], self.hidden
        sides = []
        for row in rows:
            steps = [reshaped(y, (1, 1, batch, hidden)) for y in row]
            nothing = (0, 1, batch, hidden)
            sides.append(run("concat", *steps, axis=0) if steps else self.x.full(nothing, 0.0))
        whole = run("concat", *sides, axis=1)
        ends = []
        for states in zip(*last, strict=True):
            parts = [reshaped(state, (1, batch, hidden)) for state in states]
            end = run("concat", *parts, axis=0)
            ends.append(permuted(end, (1, 0, 2)) if self.batch_first else end)
        if self.batch_first:
            whole = permuted(whole, (2, 0, 1, 3))
        return (whole, *ends)


def picked(x: Tensor, number: int) -> Tensor:
    """Return one element of the first axis."""
    part = run("slice", x, starts=(number, *(0,) * (x.ndim - 1)), sizes=(1, *x.shape[1:]),
               steps=(1,) * x.ndim)  # fmt: skip
    return reshaped(part, x.shape[1:])


def _parts(x: Tensor, count: int) -> list[Tensor]:
    """Cut the last axis into equal parts."""
    size = x.shape[-1] // count
    lead = x.shape[:-1]
    zeros = (0,) * len(lead)
    return [
        run("slice", x, starts=(*zeros, i * size), sizes=(*lead, size), steps=(1,) * x.ndim)
        for i in range(count)
    ]


def _linear(x: Tensor, w: Tensor) -> Tensor:
    return run("matmul", x, w, transpose_a=False, transpose_b=True)


def _biases(bias: Tensor | None, number: int, gates: int, hidden: int, x: Tensor) -> list[Tensor]:
    """Return the bias of the input and that of the state, each for all gates."""
    if bias is None:
        return [x.full((gates * hidden,), 0.0)] * 2
    return _parts(picked(bias, number), 2)


@operator("RNN", 7)
def rnn(
    node: Node, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None,
    lengths: Tensor | None = None, first: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute h = f(x W' + h R' + b)."""
    cell = _Cell(node, x, 1, ("Tanh",))
    cell.expect(w, r, bias, None, first)
    rows, last = [], []
    for number, back in enumerate(cell.backs):
        wi, ri = picked(w, number), picked(r, number)
        wb, rb = _biases(bias, number, 1, cell.hidden, x)
        (f,) = cell.functions[number]

        def step(
            xt: Tensor, states: list[Tensor], wi: Tensor = wi, ri: Tensor = ri, wb: Tensor = wb,
            rb: Tensor = rb, f: _Function = f,
        ) -> list[Tensor]:  # fmt: skip
            total = run(
                "add", run("add", _linear(xt, wi), _linear(states[0], ri)), run("add", wb, rb)
            )
            return [f(cell.clipped(total))]

        row, end = cell.walk(lengths, back, [cell.state(first, number)], step)
        rows.append(row)
        last.append(end)
    return cell.joined(rows, last)


@operator("GRU", 7)
def gru(
    node: Node, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None,
    lengths: Tensor | None = None, first: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute gated units with gates in the order update, reset, hidden."""
    cell = _Cell(node, x, 3, ("Sigmoid", "Tanh"))
    cell.expect(w, r, bias, None, first)
    after = node.flag("linear_before_reset")
    rows, last = [], []
    for number, back in enumerate(cell.backs):
        wi, ri = picked(w, number), picked(r, number)
        wb, rb = _biases(bias, number, 3, cell.hidden, x)
        f, g = cell.functions[number]

        def step(
            xt: Tensor, states: list[Tensor], wi: Tensor = wi, ri: Tensor = ri, wb: Tensor = wb,
            rb: Tensor = rb, f: _Function = f, g: _Function = g,
        ) -> list[Tensor]:  # fmt: skip
            (h,) = states
            xz, xr, xh = _parts(run("add", _linear(xt, wi), wb), 3)
            hz, hr, hh = _parts(run("add", _linear(h, ri), rb), 3)
            z = f(cell.clipped(run("add", xz, hz)))
            reset = f(cell.clipped(run("add", xr, hr)))
            if after:
                inner = run("mul", reset, hh)
            else:
                size = (cell.hidden, cell.hidden)
                rh = run("slice", ri, starts=(2 * cell.hidden, 0), sizes=size, steps=(1, 1))
                bh = run("slice", rb, starts=(2 * cell.hidden,), sizes=size[:1], steps=(1,))
                inner = run("add", _linear(run("mul", reset, h), rh), bh)
            new = g(cell.clipped(run("add", xh, inner)))
            kept = run("mul", z, h)
            return [run("add", run("mul", run("sub", scalar(z, 1), z), new), kept)]

        row, end = cell.walk(lengths, back, [cell.state(first, number)], step)
        rows.append(row)
        last.append(end)
    return cell.joined(rows, last)


@operator("LSTM", 7)
def lstm(
    node: Node, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None,
    lengths: Tensor | None = None, first: Tensor | None = None, first_cell: Tensor | None = None,
    peephole: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute long short-term memory with gates in the order input, output, forget, cell."""
    cell = _Cell(node, x, 4, ("Sigmoid", "Tanh", "Tanh"))
    cell.expect(w, r, bias, peephole, first, first_cell)
    coupled = node.flag("input_forget")
    rows, last = [], []
    for number, back in enumerate(cell.backs):
        wi, ri = picked(w, number), picked(r, number)
        wb, rb = _biases(bias, number, 4, cell.hidden, x)
        peeps = None if peephole is None else _parts(picked(peephole, number), 3)
        step = _lstm_step(cell, (wi, ri, run("add", wb, rb)), peeps, number, coupled)
        states = [cell.state(first, number), cell.state(first_cell, number)]
        row, end = cell.walk(lengths, back, states, step)
        rows.append(row)
        last.append(end)
    return cell.joined(rows, last)


def _lstm_step(
    cell: _Cell, weights: tuple[Tensor, Tensor, Tensor], peeps: list[Tensor] | None, number: int,
    coupled: bool,
) -> Callable[[Tensor, list[Tensor]], list[Tensor]]:  # fmt: skip
    f, g, out = cell.functions[number]
    wi, ri, both = weights

    def peeped(gate: Tensor, c: Tensor, which: int) -> Tensor:
        return gate if peeps is None else run("add", gate, run("mul", peeps[which], c))

    def step(xt: Tensor, states: list[Tensor]) -> list[Tensor]:
        h, c = states
        total = run("add", run("add", _linear(xt, wi), _linear(h, ri)), both)
        i, o, forget, new = _parts(total, 4)
        i = f(cell.clipped(peeped(i, c, 0)))
        forget = run("sub", scalar(i, 1), i) if coupled else f(cell.clipped(peeped(forget, c, 2)))
        c = run("add", run("mul", forget, c), run("mul", i, g(cell.clipped(new))))
        o = f(cell.clipped(peeped(o, c, 1)))
        return [run("mul", o, out(c)), c]

    return step
