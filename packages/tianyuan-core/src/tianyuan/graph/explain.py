"""Tell people what a program does: its printed form, and a report on what runs each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..kernel import PLAIN
from ..records import record
from .arithmetic import FLOAT32, arithmetic_of, in_words
from .program import ALIAS, ARENA, Program, Slot, Step

NATIVE, CALLOUT, REFERENCE = "native", "callout", "reference"


@record()
class StepReport:
    """What runs one step.

    Attributes:
        how: ``native`` runs without Python, ``callout`` is a Python kernel, ``reference`` the
            slow oracle that serves where nothing else does.
        inputs, outputs: specs with layouts, as text.
        refusals: kernels that were asked first, with their reasons.
        flops: estimated operations, a multiplication and an addition counting as two.
        arithmetic: what they are done in: ``float32``, ``bfloat16`` or ``int8``.
        nbytes: bytes read and written, each value counted once.
    """

    index: int
    op: str
    kernel: str
    backend: str
    how: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    refusals: tuple[tuple[str, str], ...]
    flops: int
    nbytes: int
    workspace: int
    origin: str
    arithmetic: str = FLOAT32


@record()
class Explanation:
    """A report on a whole program; its text is a table with one row per step, then totals."""

    steps: tuple[StepReport, ...]
    arena_size: int
    arena_lower_bound: int
    constant_bytes: int
    threads: int
    device: str

    @property
    def native_steps(self) -> tuple[StepReport, ...]:
        """Return the steps that run without Python."""
        return self._of(NATIVE)

    @property
    def callout_steps(self) -> tuple[StepReport, ...]:
        """Return the steps that call a Python kernel."""
        return self._of(CALLOUT)

    @property
    def reference_steps(self) -> tuple[StepReport, ...]:
        """Return the steps for which only a reference was left."""
        return self._of(REFERENCE)

    @property
    def native_share(self) -> float:
        """Return the share of steps that run without Python, 1.0 for a program of none."""
        return len(self.native_steps) / len(self.steps) if self.steps else 1.0

    @property
    def flops(self) -> int:
        """Return the estimated arithmetic operations of one run."""
        return sum(step.flops for step in self.steps)

    @property
    def nbytes(self) -> int:
        """Return the bytes that one run reads and writes."""
        return sum(step.nbytes for step in self.steps)

    def _of(self, how: str) -> tuple[StepReport, ...]:
        return tuple(step for step in self.steps if step.how == how)

    def __str__(self) -> str:
        rows = [("#", "op", "kernel", "backend", "runs", "inputs", "outputs")]
        notes: dict[int, list[str]] = {}
        for step in self.steps:
            inputs, outputs = ", ".join(step.inputs), ", ".join(step.outputs)
            row = (str(step.index), step.op, step.kernel, step.backend, step.how, inputs, outputs)
            rows.append(row)
            notes[len(rows) - 1] = _refusal_lines(step.refusals)
        lines = []
        for index, line in enumerate(text_table(rows)):
            lines += [line, *notes.get(index, ())]
        return "\n".join([*lines, *self._totals()])

    def _totals(self) -> list[str]:
        counts = f"{len(self.native_steps)} native, {len(self.callout_steps)} call-outs"
        bound = self.arena_lower_bound
        excess = f"{self.arena_size / bound - 1:.1%} above" if bound else "at"
        return [
            f"{len(self.steps)} steps: {counts}, {len(self.reference_steps)} references "
            f"({self.native_share:.0%} native), {self.threads} threads on {self.device}",
            f"arena {_bytes(self.arena_size)}, {excess} its lower bound; "
            f"constants {_bytes(self.constant_bytes)}",
            f"about {in_words(self.flops)} and {_bytes(self.nbytes)} moved per run",
        ]


def explain(program: Program) -> Explanation:
    """Report, for every step of a program, the kernel, its layouts, and what refused before it."""
    return Explanation(
        steps=tuple(_report(program, i, step) for i, step in enumerate(program.steps)),
        arena_size=program.arena_size,
        arena_lower_bound=program.arena_lower_bound,
        constant_bytes=sum(array.nbytes for array in program.constants),
        threads=program.threads,
        device=program.device,
    )


def format_program(program: Program) -> str:
    """Write a program for people: its slots, then its steps."""
    lines = [
        f"program on {program.device}, {program.threads} threads, "
        f"arena {program.arena_size} bytes (lower bound {program.arena_lower_bound})"
    ]
    for index, slot in enumerate(program.slots):
        name = f" {slot.name!r}" if slot.name else ""
        place = f"{slot.kind} {'%' if slot.kind == ALIAS else '+' if slot.kind == ARENA else ''}"
        lines.append(f"%{index} = {place}{slot.index}{name} {_slot_text(slot)}")
    for step in program.steps:
        outputs = ", ".join(f"%{i}" for i in step.outputs)
        inputs = ", ".join(f"%{i}" for i in step.inputs)
        scratch = (
            f" scratch +{step.workspace_offset}:{step.workspace_size}"
            if step.workspace_size
            else ""
        )
        lines.append(f"{outputs} = {step.kernel.name}({inputs}){_attrs_text(step.attrs)}{scratch}")
    for name, slots in (("inputs", program.inputs), ("states", program.states)):
        lines.append(f"{name} {', '.join(f'%{i}' for i in slots)}".rstrip())
    lines.append(f"return {', '.join(f'%{i}' for i in program.outputs)}".rstrip())
    return "\n".join(lines)


def _report(program: Program, index: int, step: Step) -> StepReport:
    inputs = [program.slots[i] for i in step.inputs]
    outputs = [program.slots[i] for i in step.outputs]
    how = NATIVE if step.kernel.is_native else CALLOUT
    read = tuple(slot.spec for slot in inputs)
    work = step.op.work_of(read, tuple(slot.spec for slot in outputs), step.attrs)
    touched = {(i, program.slots[i].nbytes) for i in (*step.inputs, *step.outputs)}
    return StepReport(
        index=index,
        op=step.op.name,
        kernel=step.kernel.name,
        backend=step.kernel.backend,
        how=REFERENCE if step.kernel.is_reference else how,
        inputs=tuple(map(_slot_text, inputs)),
        outputs=tuple(map(_slot_text, outputs)),
        refusals=step.refusals,
        flops=int(work.operations),
        nbytes=sum(size for _, size in touched),
        workspace=step.workspace_size,
        origin=step.origin,
        arithmetic=arithmetic_of(step, read, work),
    )


def _refusal_lines(refusals: Sequence[tuple[str, str]]) -> list[str]:
    """Write one line per reason, naming all who gave it."""
    by_reason: dict[str, list[str]] = {}
    for who, why in refusals:
        by_reason.setdefault(why, []).append(who)
    return [f"    refused: {', '.join(names)}: {why}" for why, names in by_reason.items()]


def _slot_text(slot: Slot) -> str:
    return str(slot.spec) if slot.layout == PLAIN else f"{slot.spec}:{slot.layout}"


def _attrs_text(attrs: Any) -> str:
    items = ", ".join(f"{name}={value!r}" for name, value in vars(attrs).items())
    return f" {{{items}}}" if items else ""


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def text_table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def profile_of(program: Program, seconds: Sequence[float]) -> dict[str, Any]:
    """Return what a run of a program took, as a JSON value: in all, and step by step."""
    steps = [
        {
            "op": step.op.name,
            "kernel": step.kernel.name,
            "outputs": [str(program.slots[slot].spec) for slot in step.outputs],
            "origin": step.origin,
            "seconds": float(taken),
        }
        for step, taken in zip(program.steps, seconds, strict=True)
    ]
    return {"seconds": float(sum(seconds)), "arena_size": program.arena_size, "steps": steps}
